"""`gazctl lake` against a real broker and etcd, and a real metastore where one is asked."""

import gzip
import hashlib
import json

import orjson
import pytest
import yaml
from gazctl_runner import gazctl_runner

from gazette_platform.lake import parse_table_spec
from gazette_platform.testing.servers import BrokerServer

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
        "Unfit",
        "Lag",
        "bytes",
        "Problems",
    ]
    assert lines[1].split() == ["s.t", "json", "2", *["<none>"] * 4]
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
    """A metastore and Trino for commands; no table stays."""
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
    assert row == [table, "json", "1", "1", "2", "0", "0"]
    append(journal, lines[0])
    (described,) = orjson.loads(lake("describe", "-o", "json").out)
    assert (described["lag_bytes"], described["problems"]) == (len(lines[0]), [])
    assert [each["rows"] for each in described["hive_partitions"]] == [2]
    green = lake("check")
    assert (green.code, green.out) == (0, b""), green.err
    assert "external_location" in lake("ddl", table, "--dialect", "trino").out.decode()

    # A change that the table cannot follow is reported before the folder changes.
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
@pytest.mark.trino
@pytest.mark.timeout(400)
def test_stored_fragments_are_registered_without_dagster(
    platform, lake, gazctl, root, tmp_path, append, metastore
):
    journal, table = f"{root}/region=us", f"{DATABASE}.stored"
    text = f"name: {table}\nselector: name={journal}\nformat: json\ncolumns: [{{name: x, type: bigint}}]\n"
    (tmp_path / "stored.yaml").write_text(text)
    append(journal, b'{"x": 1}\n')
    assert lake("apply", "stored.yaml").code == 0
    # The open fragment stays open: that is for `flush`.
    before = lake("register", table)
    assert (before.code, before.out.decode().partition(" (")[0]) == (
        0,
        f"{table}: nothing to register",
    )
    assert gazctl("flush", "-l", f"name={journal}").code == 0
    done = lake("register")
    assert (done.code, done.out.decode()) == (
        0,
        f"{table}: 1 row(s) more, in 1 Hive partition(s)\n",
    )
    again = lake("register").out.decode()
    assert again == f"{table}: all is registered already, 1 row in 1 Hive partition\n"
    # A metastore that lost the table gets it again.
    with metastore.connect() as session:
        session.drop_table(*table.split("."))
    done = lake("register", table)
    assert (done.code, done.out.decode()) == (
        0,
        f"{table}: 1 row(s) more, in 1 Hive partition(s)\n",
    )
    # One table with an error keeps no other one from being registered.
    (tmp_path / "tables" / "a.yaml").write_text(text.replace(journal, "none").replace(table, "a.a"))
    append(journal, b'{"x": 2}\n')
    assert gazctl("flush", "-l", f"name={journal}").code == 0
    failed = lake("register")
    assert (failed.code, "matches no journal" in failed.err) == (1, True)
    assert f"{table}: 1 row(s) more, in 1 Hive partition(s)\n" in failed.out.decode()


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
    aside_of = ("set-aside", table)
    (dry,) = orjson.loads(lake(*aside_of, "--unfit", "--dry-run", "-o", "json").out)
    assert (dry["state"], dry["begin"], dry["end"]) == ("would be set aside", 9, 22)
    assert seen() == (3, 3, 3)
    done = lake(*aside_of, "--unfit", "-o", "json")
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

    (listed,) = orjson.loads(lake("set-aside", "--list", "-o", "json").out)
    assert (listed["file"], listed["why"], listed["since"]) == (
        aside["file"],
        aside["why"],
        aside["since"],
    )
    assert aside["file"] in lake("set-aside", table, "--list").out.decode()
    name = aside["file"].rpartition("/")[2]
    dry_back = lake(*aside_of, name, "--restore", "--dry-run")
    assert b": would be restored: " in dry_back.out
    back = lake(*aside_of, f"file://{broker.fragments}/{aside['file']}", "--restore")
    assert (back.code, back.err) == (0, "")
    assert b": restored: " in back.out
    assert seen() == (3, 3, 3)
    assert orjson.loads(lake("set-aside", "--list", "-o", "json").out) == []
    again = lake(*aside_of, name, "--why", "a reason")
    assert (again.code, again.err) == (0, "")
    assert "a reason" in lake(*aside_of, "--list").out.decode()
