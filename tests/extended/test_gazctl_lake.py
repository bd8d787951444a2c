"""`gazctl lake` against a real broker and etcd, and a real metastore where one is asked."""

import gzip
import hashlib
import json
import re
import time
from dataclasses import replace

import orjson
import pytest
import yaml
from gazctl_runner import gazctl_runner

from gazette_platform.lake import parse_table_spec
from gazette_platform.testing.broker import BrokerServer

pytestmark = pytest.mark.etcd

JOURNALS = """
name: {root}/
replication: 1
fragment:
  length: 1024
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1s
  path_postfix_template: date={{{{ .Spool.FirstAppendTime.Format "2006-01-02" }}}}
children:
- name: {root}/region=eu
- name: {root}/region=us
"""
# Odd keys, mixed types, nulls, nested values, a blank line, and no newline at the end.
MESS = (
    b'{"order id": 1, "unit.price": 2.5, "at": "2026-01-02", "tags": ["a"], "no": null}\n'
    b"\n"
    b'{"order id": "two", "unit.price": 3, "address": {"city": "K\xc3\xb6ln", "zip code": 5}}\n'
    b'{"order id": 3, "big": 18446744073709551616, "region": "north"}'
)
DATABASE = "gazctl_lake"


@pytest.fixture(scope="module")
def broker(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/test-gazctl-lake") as server:
        yield server


@pytest.fixture
def root(request, broker, gazctl, append):
    """Journals of this test's own, with a mess in one of them."""
    name = request.node.name.replace("[", "-").replace("]", "")
    assert gazctl("apply", stdin=JOURNALS.format(root=name).encode()).code == 0
    append(f"{name}/region=eu", MESS)
    return name


@pytest.fixture
def append(gazctl, tmp_path):
    def run(journal, content):
        (tmp_path / "input").write_bytes(content)
        done = gazctl("append", "-l", f"name={journal}", "-i", "input")
        assert done.code == 0, done.err

    return run


@pytest.fixture
def gazctl(broker, monkeypatch, tmp_path, capfdbinary):
    for name in ("GAZETTE_ENDPOINTS", "GAZETTE_METASTORE_URI", "GAZETTE_TABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GAZETTE_TABLES", str(tmp_path / "tables"))
    roots = {"file:///": f"file://{broker.fragments}/"}
    monkeypatch.setenv("GAZETTE_LAKE_STORE_ROOTS", json.dumps(roots))
    return gazctl_runner(broker.address, monkeypatch, tmp_path, capfdbinary)


@pytest.fixture
def lake(gazctl):
    return lambda *args, stdin=b"": gazctl(*args, group="lake", stdin=stdin)


def test_a_mess_becomes_a_table_spec_that_is_applied(lake, root, tmp_path):
    done = lake("infer", "-l", f"name:prefix={root}/", "--name", "shop.orders")
    assert done.code == 0, done.err
    spec = parse_table_spec(done.out)
    assert [(c.name, c.key, c.type) for c in spec.columns] == [
        ("order_id", "order id", "string"),
        ("unit_price", "unit.price", "double"),
        ("at", "at", "date"),
        ("tags", "tags", "array<string>"),
        ("no", "no", "string"),
        ("address", "address", "string"),
        ("big", "big", "decimal(38,0)"),
        ("region", "region", "string"),
    ]
    assert [(p.name, p.column, p.type) for p in spec.partitions] == [
        ("region", "fragment_region", "string"),
        ("date", "date", "date"),
    ]
    for told in ("3 records", "mixed: 2 integer", "beyond 64 bits", "fragment_region"):
        assert told in done.err

    (tmp_path / "orders.yaml").write_bytes(done.out)
    dry = lake("apply", "orders.yaml", "--dry-run")
    assert dry.code == 0, dry.err
    assert b"+++ b/orders.yaml" in dry.out
    assert not (tmp_path / "tables").exists()
    applied = lake("apply", "orders.yaml")
    assert (applied.code, applied.out) == (0, b"")
    assert "shop.orders: new" in applied.err
    assert (tmp_path / "tables" / "orders.yaml").read_bytes() == done.out
    assert "shop.orders: unchanged" in lake("apply", "orders.yaml").err
    piped = lake("apply", "-", stdin=done.out.replace(b"shop.orders", b"shop.others"))
    assert piped.code == 0, piped.err
    assert (tmp_path / "tables" / "shop.others.yaml").is_file()


def test_every_error_of_every_spec_is_told_and_nothing_applied(lake, root, tmp_path):
    good = f"name: a.a\nselector: 'name:prefix={root}/'\nformat: json\ncolumns:\n"
    (tmp_path / "one.yaml").write_text(good + "  - {name: x y, type: text}\n")
    (tmp_path / "two.yaml").write_text(
        good.replace(f"{root}/", "nowhere/") + "  - {name: x, type: string}\n"
    )
    (tmp_path / "three.yaml").write_text(good + "  - {name: tags, type: bigint}\n")
    (tmp_path / "four.yaml").write_text(
        good.replace("a.a", "b.b") + "  - {name: tags, type: array<string>}\n"
    )
    done = lake("apply", "one.yaml", "two.yaml", "three.yaml", "four.yaml")
    assert done.code == 1
    for told in (
        "one.yaml: columns[0].name: 'x y' is not a column name",
        "one.yaml: columns[0].type: unknown type 'text'",
        "two.yaml: selector: 'name:prefix=nowhere/' matches no journal",
        "three.yaml: name: table a.a is defined in two.yaml already",
        "three.yaml: columns: a.a: column tags is bigint",
        "5 error(s) in 4 spec(s)",
    ):
        assert told in done.err, told
    assert "four.yaml" not in done.err
    assert not (tmp_path / "tables").exists()
    forced = lake("apply", "two.yaml", "--force")
    assert forced.code == 0, forced.err


def test_tables_are_listed_and_described_also_without_a_metastore(lake, root, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "bad.yaml").write_text("name: 1")
    empty = lake("list")
    assert empty.code == 0
    assert "refused: bad.yaml" in empty.err
    text = f"name: s.t\nselector: 'name:prefix={root}/'\nformat: json\ncolumns:\n"
    (tmp_path / "tables" / "t.yaml").write_text(
        text + "  - {name: order_id, from: order id, type: string}\n"
    )
    lines = lake("list").out.decode().splitlines()
    assert lines[0].split() == [
        "Table",
        "Format",
        "Journals",
        "Partitions",
        "Rows",
        "Lag",
        "bytes",
        "Problems",
    ]
    assert lines[1].split() == ["s.t", "json", "2", "<none>", "<none>", "<none>"]
    (table, refused) = orjson.loads(lake("list", "-o", "json").out)
    assert (table["table"], table["journals"], table["rows"]) == ("s.t", 2, None)
    assert refused["file"] == "bad.yaml"
    described = lake("describe", "s.t")
    assert described.code == 0, described.err
    assert f"{root}/region=eu  head {len(MESS)}" in described.out.decode()
    assert "from 'order id'" in described.out.decode()
    (full,) = yaml.safe_load(lake("describe", "s.t", "-o", "yaml").out)
    assert full["columns"] == [
        {"name": "order_id", "from": "order id", "type": "string", "comment": ""}
    ]
    lost = lake("describe", "s.nothing")
    assert lost.code == 1
    assert "is of table s.nothing; 1 files there are refused" in lost.err


def test_a_table_whose_spec_is_refused_is_told_by_its_name_with_all_errors(lake, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "mine.yaml").write_text(
        "name: s.mine\nselector: ''\nformat: json\ncolumns: [{name: a, type: text}]\nmore: 1\n"
    )
    told = (
        "mine.yaml: Object contains unknown field `more`",
        "mine.yaml: selector: may not be empty",
        "mine.yaml: columns[0].type: unknown type 'text'",
    )
    listed = lake("list")
    assert listed.code == 0, listed.err
    for text in told:
        assert f"s.mine: refused: {text}" in listed.err
    (refused,) = orjson.loads(lake("list", "s.mine", "-o", "json").out)
    assert (refused["table"], refused["file"], len(refused["problems"])) == (
        "s.mine",
        "mine.yaml",
        3,
    )
    for command in (("ddl", "s.mine", "--dialect", "duckdb"), ("flush", "s.mine")):
        done = lake(*command)
        assert done.code == 1
        assert "no spec in" in done.err
        assert told[1] in done.err


@pytest.mark.parametrize("dialect", ["trino", "duckdb"])
def test_ddl_is_told_before_the_table_exists(lake, root, tmp_path, dialect, broker):
    text = f"name: s.t\nselector: 'name:prefix={root}/'\nformat: json\ncolumns:\n"
    (tmp_path / "t.yaml").write_text(text + "  - {name: at, type: date}\n")
    done = lake("ddl", "t.yaml", "--dialect", dialect)
    assert done.code == 0, done.err
    assert f"{broker.fragments}/{root}" in done.out.decode()
    assert "'region'" in done.out.decode()
    there = lake("ddl", "t.yaml", "--dialect", dialect, "--location", "s3://bucket/x/")
    assert "s3://bucket/x'" in there.out.decode() or "s3://bucket/x/*" in there.out.decode()


def test_the_option_that_an_error_of_infer_names_is_one(lake, root, append):
    append(f"{root}/region=us", b"one,1\ntwo,2\n")
    selected = ("infer", "-l", f"name={root}/region=us", "--name", "shop.us")
    refused = lake(*selected, "--data", "json")
    assert refused.code == 1
    (option,) = re.findall(r"give `(--\w+ csv)`", refused.err)
    given = lake(*selected, *option.split())
    assert given.code == 0, given.err
    assert parse_table_spec(given.out).format == "csv"


def test_infer_says_how_much_of_the_journals_it_read(lake, root, append):
    lines = b"".join(b'{"n": %d}\n' % n for n in range(1000))
    append(f"{root}/region=us", lines)
    selected = ("infer", "-l", f"name={root}/region=us", "--name", "shop.us")
    whole = lake(*selected)
    assert f"1000 records, {len(lines)} of {len(lines)} bytes, of 1 of 1 journal" in whole.err
    assert "--bytes" not in whole.err
    part = lake(*selected, "--bytes", "1024")
    assert f" of {len(lines)} bytes, of 1 of 1 journal" in part.err
    assert "note: what was not read may hold other keys" in part.err
    assert "--bytes and --journals read more" in part.err


def test_what_is_wrong_ends_with_one_line_and_no_traceback(lake, tmp_path):
    for args in (
        ("infer", "-l", "name:prefix=nowhere/", "--name", "a.b"),
        ("ddl", "a.b", "--dialect", "trino"),
        ("apply", "missing.yaml"),
        ("list", "a.b"),
        ("describe", "--tables", str(tmp_path / "none"), "a.b"),
    ):
        done = lake(*args)
        assert done.code == 1, args
        assert done.err.startswith("gazctl: error: "), args
        assert "Traceback" not in done.err


@pytest.fixture
def platform(gazctl, lake_settings, metastore, monkeypatch):
    """A metastore and Trino that commands are told of; no table stays."""
    monkeypatch.setenv("GAZETTE_METASTORE_URI", lake_settings.metastore)
    monkeypatch.setenv("GAZETTE_TRINO_URI", lake_settings.trino)
    yield
    with metastore.connect() as session:
        for name in session.tables(DATABASE):
            session.drop_table(DATABASE, name)


@pytest.mark.hive
@pytest.mark.trino
@pytest.mark.timeout(400)
def test_a_table_is_flushed_listed_checked_repaired_and_read(
    platform, lake, root, tmp_path, broker, append, monkeypatch
):
    journal = f"{root}/region=us"
    lines = [b'{"order id": 1, "x": 1}\n', b'{"order id": 2, "x": 2}\n']
    append(journal, b"".join(lines))
    table = f"{DATABASE}.good"
    text = (
        f"name: {table}\nselector: name={journal}\nformat: json\ncolumns:\n"
        "  - {name: order_id, from: order id, type: bigint}\n"
    )
    (tmp_path / "good.yaml").write_text(text)
    assert lake("apply", "good.yaml").code == 0
    assert "not made yet" in lake("list").err
    assert "is not made yet" in lake("check").out.decode()

    flushed = lake("flush", table)
    assert flushed.code == 0, flushed.err
    assert flushed.out.decode() == f"{table}: 2 row(s) more, in 1 Hive partition(s)\n"
    again = lake("flush", table).out.decode()
    assert again == f"{table}: all is registered already, 2 rows in 1 Hive partition\n"
    row = lake("list").out.decode().splitlines()[1].split()
    assert row == [table, "json", "1", "1", "2", "0"]
    append(journal, lines[0])
    (described,) = orjson.loads(lake("describe", "-o", "json").out)
    assert (described["lag_bytes"], described["problems"]) == (len(lines[0]), [])
    assert [each["rows"] for each in described["hive_partitions"]] == [2]
    green = lake("check")
    assert (green.code, green.out) == (0, b""), green.err
    assert "external_location" in lake("ddl", table, "--dialect", "trino").out.decode()

    # What cannot become of the table is told before the folder changes.
    (tmp_path / "good.yaml").write_text(text.replace("bigint", "int"))
    narrowed = lake("apply", "good.yaml")
    assert narrowed.code == 1
    assert f"good.yaml: columns: table {table} cannot become its spec" in narrowed.err

    # A file that another covers, as a fail-over may leave it.
    (stored,) = broker.fragments.glob(f"{journal}/*/*.gz")
    digest = hashlib.sha1(lines[0], usedforsecurity=False).hexdigest()
    covered = stored.with_name(f"{0:016x}-{len(lines[0]):016x}-{digest}.gz")
    covered.write_bytes(gzip.compress(lines[0]))
    red = lake("check", "--quick", "-o", "json")
    assert red.code == 1
    assert "overlap" in {each["check"] for each in orjson.loads(red.out)}
    assert covered.name.encode() in lake("repair", "--dry-run").out
    assert covered.is_file()
    repaired = lake("repair", table)
    assert (repaired.code, repaired.err) == (0, "")
    assert f"{table}: 1 file(s) moved aside, 0 that overlap stay" in repaired.out.decode()
    assert not covered.exists()
    assert lake("check").code == 0

    well = lake("doctor")
    assert well.code == 0, well.out.decode() + well.err
    told = well.out.decode()
    for each in ("sees all 1 Hive partition(s)", f"{table} can be read at", "a folder of this"):
        assert each in told
    monkeypatch.setenv("GAZETTE_TRINO_URI", "http://127.0.0.1:9")
    ill = lake("doctor", "-o", "json")
    assert ill.code == 1
    (error,) = [each for each in orjson.loads(ill.out) if each["state"] == "error"]
    assert error["advice"] == "set GAZETTE_TRINO_URI to your coordinator's"


@pytest.mark.hive
@pytest.mark.timeout(400)
def test_what_was_deleted_whole_is_forgotten_at_a_word(
    platform, lake, root, tmp_path, broker, append
):
    journal, table = f"{root}/region=us", f"{DATABASE}.pruned"
    append(journal, b'{"x": 1}\n')
    (tmp_path / "pruned.yaml").write_text(
        f"name: {table}\nselector: name={journal}\nformat: json\ncolumns: [{{name: x, type: bigint}}]\n"
    )
    assert lake("apply", "pruned.yaml").code == 0
    assert lake("flush", table).code == 0
    repair = ("repair", "--pruned", table)
    none = lake(*repair)
    assert (none.code, none.err) == (0, "")
    assert none.out.decode() == f"{table}: what was pruned of 0 Hive partition(s) is forgotten\n"

    # As a rule of the store does it, without a word to brokers.
    (stored,) = broker.fragments.glob(f"{journal}/*/*.gz")
    stored.unlink()
    deadline = time.monotonic() + 60
    while b"of 1 Hive partition(s) would be" not in lake(*repair, "--dry-run").out:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (described,) = orjson.loads(lake("describe", table, "-o", "json").out)
    assert [each["rows"] for each in described["hive_partitions"]] == [1]
    done = lake(*repair)
    assert done.code == 0, done.err
    assert b"of 1 Hive partition(s) is forgotten; the sensor drops those" in done.out
    (described,) = orjson.loads(lake("describe", table, "-o", "json").out)
    assert [each["rows"] for each in described["hive_partitions"]] == [0]


@pytest.mark.hive
@pytest.mark.timeout(400)
def test_a_mess_is_red_where_it_does_not_fit(platform, lake, root, tmp_path):
    table = f"{DATABASE}.mess"
    (tmp_path / "mess.yaml").write_text(
        f"name: {table}\nselector: 'name:prefix={root}/'\nformat: json\ncolumns:\n"
        "  - {name: order_id, from: order id, type: bigint}\n"
    )
    assert lake("apply", "mess.yaml").code == 0
    assert b": 4 row(s) more" in lake("flush", table).out
    checked = lake("check", table)
    assert checked.code == 1
    assert '"two"' in checked.out.decode()
    assert lake("check", table, "--quick").code == 0


def test_a_journal_that_cannot_be_looked_at_hides_no_other(
    lake, gazctl, root, tmp_path, monkeypatch
):
    lost = f"name: {root}/region=lost\nreplication: 1\nflags: O_WRONLY\nfragment:\n  length: 1024\n"
    lost += "  compression_codec: GZIP\n  stores: [file:///]\n  refresh_interval: 1s\n"
    assert gazctl("apply", stdin=lost.encode()).code == 0
    (tmp_path / "tables").mkdir()
    for name, selector in (("all", f"name:prefix={root}/"), ("eu", f"name={root}/region=eu")):
        (tmp_path / "tables" / f"{name}.yaml").write_text(
            f"name: s.{name}\nselector: '{selector}'\nformat: json\n"
            "columns: [{name: a, type: string}]\n"
        )
    rollups = tmp_path / "rollups"
    (rollups / "trino").mkdir(parents=True)
    (rollups / "trino" / "bad.sql").write_text("SELECT 1")
    (rollups / "spark").mkdir()
    (rollups / "spark" / "clash.sql").write_text(
        "-- name: s.eu\n-- sources: [s.all]\n--\nSELECT * FROM all"
    )
    monkeypatch.setenv("GAZETTE_ROLLUPS", str(rollups))
    listed = lake("list", "-o", "json")
    assert listed.code == 1, listed.err
    told = orjson.loads(listed.out)
    tables = {each["table"]: each for each in told if "table" in each}
    assert (tables["s.all"]["journals"], tables["s.eu"]["problems"]) == (3, [])
    lost = f"{root}/region=lost cannot be looked at: "
    assert any(lost in text for text in tables["s.all"]["problems"])
    refused = {each["file"]: each["problems"] for each in told if each.get("rollup")}
    assert "has no header" in refused["trino/bad.sql"][0]
    assert "there is a raw or typed table s.eu" in refused["s.eu"][0]
    text = lake("list")
    assert text.code == 1
    assert "rollup refused: trino/bad.sql: has no header" in text.err
    assert "rollup refused: s.eu: there is a raw or typed table s.eu" in text.err
    assert {line.split()[0] for line in text.out.decode().splitlines()} == {
        "Table",
        "s.all",
        "s.eu",
    }
    assert lake("list", "s.eu").code == 0


@pytest.mark.hive
@pytest.mark.timeout(400)
def test_a_table_that_cannot_be_looked_at_hides_no_other(
    platform, lake, root, tmp_path, append, metastore, monkeypatch
):
    for name, region, column in (("a_bad", "eu", "at"), ("b_good", "us", "x")):
        if region == "us":
            append(f"{root}/region=us", b'{"x": 1}\n')
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {DATABASE}.{name}\nselector: name={root}/region={region}\nformat: json\n"
            f"columns: [{{name: {column}, type: string}}, {{name: never, type: string}}]\n"
            "partitions: [{name: region, as: fragment_region}]\n"
        )
        assert lake("apply", f"{name}.yaml").code == 0
        assert lake("flush", f"{DATABASE}.{name}").code == 0
    with metastore.connect() as session:
        table = session.table(DATABASE, "a_bad")
        broken = [
            replace(each, parameters={**each.parameters, "gazette.state": "mine"})
            for each in session.partitions(table)
        ]
        session.alter_partitions(table, broken)
    rollups = tmp_path / "rollups" / "trino"
    rollups.mkdir(parents=True)
    (rollups / "bad.sql").write_text("SELECT 1")
    monkeypatch.setenv("GAZETTE_ROLLUPS", str(rollups.parent))
    done = lake("check", "-o", "json")
    assert done.code == 1, done.err
    told = {(each["table"], each["check"]): each for each in orjson.loads(done.out)}
    assert "was changed by others" in told[f"{DATABASE}.a_bad", "not checked"]["text"]
    assert "no record so far has" in told[f"{DATABASE}.b_good", "fit"]["text"]
    assert told["trino/bad.sql", "rollup"]["severity"] == "error"
    assert f"{DATABASE}.a_bad: red: not checked" in lake("check").out.decode()


@pytest.mark.hive
@pytest.mark.trino
@pytest.mark.timeout(400)
def test_a_typed_table_is_flushed_with_its_raw_one(
    platform, lake, gazctl, root, tmp_path, append, lake_settings, monkeypatch, trino
):
    monkeypatch.setenv("GAZETTE_WAREHOUSE", lake_settings.warehouse)
    journal, table, typed = f"{root}/region=us", f"{DATABASE}.seen", f"{DATABASE}.seen_typed"
    (tmp_path / "seen.yaml").write_text(
        f"name: {table}\nselector: name={journal}\nformat: json\ncolumns: [{{name: x, type: bigint}}]\n"
        f"typed: {{uuid: none, name: {typed}}}\n"
    )
    assert lake("apply", "seen.yaml").code == 0
    for number, named in enumerate((table, typed), 1):
        append(journal, b'{"x": %d}\n' % number)
        before = gazctl(f"SELECT x FROM {typed} ORDER BY x", "-o", "csv", group="sql")
        assert before.out.split()[1:] == [b"1", b"2"][:number], before.err
        done = lake("flush", named)
        assert done.code == 0, done.err
        raw, of_typed = done.out.decode().splitlines()
        assert raw == f"{table}: 1 row(s) more, in 1 Hive partition(s)"
        assert of_typed.startswith(f"{typed}: 1 row(s), 0 quarantined, ")
        assert gazctl(f"SELECT x FROM {typed} ORDER BY x", "-o", "csv", group="sql") == before
        assert trino.query(f"SELECT x FROM iceberg.{typed} ORDER BY x") == [
            (n,) for n in range(1, number + 1)
        ]
    assert "nothing new" in lake("flush", typed).out.decode()


@pytest.mark.hive
@pytest.mark.trino
@pytest.mark.timeout(400)
def test_a_file_is_set_aside_and_taken_back(
    platform, lake, gazctl, root, tmp_path, broker, append, trino
):
    journal, table = f"{root}/region=us", f"{DATABASE}.picky"
    for line in (b'{"x": 1}\n', b'{"x": "two"}\n', b'{"x": 3}\n'):
        append(journal, line)
        assert gazctl("flush", "-l", f"name={journal}").code == 0
    (tmp_path / "picky.yaml").write_text(
        f"name: {table}\nselector: name={journal}\nformat: json\ncolumns: [{{name: x, type: bigint}}]\n"
    )
    assert lake("apply", "picky.yaml").code == 0
    assert b": 3 row(s) more" in lake("flush", table).out
    assert lake("check", table).code == 1

    def seen():
        in_trino = trino.query(f"SELECT count(*) FROM hive.{table}")[0][0]
        in_duckdb = gazctl(f"SELECT count(*) FROM {table}", "-o", "csv", group="sql")
        assert in_duckdb.code == 0, in_duckdb.err
        (described,) = orjson.loads(lake("describe", table, "-o", "json").out)
        return in_trino, int(in_duckdb.out.split()[1]), described["rows"]

    assert seen() == (3, 3, 3)
    quarantine = ("quarantine", table)
    (dry,) = orjson.loads(lake(*quarantine, "--unfit", "--dry-run", "-o", "json").out)
    assert (dry["state"], dry["begin"], dry["end"]) == ("would be set aside", 9, 22)
    assert seen() == (3, 3, 3)
    done = lake(*quarantine, "--unfit", "-o", "json")
    assert (done.code, done.err) == (0, "")
    (aside,) = orjson.loads(done.out)
    assert (aside["state"], aside["rows"], aside["file"]) == ("aside", 1, dry["file"])
    assert '"two"' in aside["why"]
    assert seen() == (2, 2, 2)
    # Readers of the journal miss nothing.
    assert b'{"x": "two"}' in gazctl("read", "-l", f"name={journal}").out
    checked = lake("check", table)
    assert (checked.code, checked.out.decode().count("yellow: gap")) == (0, 1), checked.out
    assert "bytes [9, 22) are aside" in checked.out.decode()
    assert "bytes [9, 22)" in gazctl(f"SELECT count(*) FROM {table}", group="sql").err

    (listed,) = orjson.loads(lake("quarantine", "--list", "-o", "json").out)
    assert (listed["file"], listed["why"], listed["since"]) == (
        aside["file"],
        aside["why"],
        aside["since"],
    )
    assert aside["file"] in lake("quarantine", table, "--list").out.decode()
    name = aside["file"].rpartition("/")[2]
    dry_back = lake(*quarantine, name, "--restore", "--dry-run")
    assert b": would be restored: " in dry_back.out
    back = lake(*quarantine, f"file://{broker.fragments}/{aside['file']}", "--restore")
    assert (back.code, back.err) == (0, "")
    assert b": restored: " in back.out
    assert seen() == (3, 3, 3)
    assert orjson.loads(lake("quarantine", "--list", "-o", "json").out) == []
    again = lake(*quarantine, name, "--why", "a reason")
    assert (again.code, again.err) == (0, "")
    assert "a reason" in lake(*quarantine, "--list").out.decode()


def test_what_quarantine_cannot_mean_is_refused(lake):
    for args, told in (
        ((), "names the table"),
        (("s.t",), "`gazctl lake apply` makes it"),  # no table is there to have files
        (("s.t", "x", "--list"), "goes with no FILE"),
        (("s.t", "--unfit", "--restore"), "does not go with --restore"),
    ):
        done = lake("quarantine", *args)
        assert (done.code, done.out) == (1, b"")
        assert told in done.err
