"""Commands of typed tables, against a real broker and etcd, and Iceberg's catalog in a file of SQLite.

Long because each command is tried on the same platform, which takes seconds to start.
"""

import json
import os
import re
import signal
import threading

import pyarrow as pa
import pytest
import yaml
from gazctl_runner import gazctl_runner
from pyiceberg.catalog.sql import SqlCatalog
from spark_journals import make_again

from gazette_platform import Client, ClientConfig
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.message.uuid import Flags, build_uuid, clock_of
from gazette_platform.testing.waiting import block_for, wait_until

pytestmark = pytest.mark.etcd

JOURNALS = """
name: {root}/
replication: 1
fragment:
  length: 1048576
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1s
children:
- name: {root}/part=one
- name: {root}/part=two
"""
SPEC = """name: shop.{table}
selector: name:prefix={root}/
format: json
columns:
  - {{name: n, type: bigint}}
  - {{name: at, type: string}}
typed:
  uuid: _meta.uuid
  columns: [{{name: at, type: timestamptz}}]
  every: 5s
"""
PRODUCER = bytes.fromhex("070203040506")
CLOCK = clock_of(1_760_000_000_000_000_000)


@pytest.fixture
def root(names, gazctl):
    """Journals of this test's own."""
    assert gazctl("apply", stdin=JOURNALS.format(root=names.prefix).encode()).code == 0
    return names.prefix


@pytest.fixture
def gazctl(shared, monkeypatch, tmp_path, capfdbinary):
    for name in ("GAZETTE_ENDPOINTS", "GAZETTE_METASTORE_URI", "GAZETTE_ICEBERG_JAR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tables").mkdir()
    monkeypatch.setenv("GAZETTE_TABLES", str(tmp_path / "tables"))
    monkeypatch.setenv("GAZETTE_WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setenv("GAZETTE_ICEBERG_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    roots = {"file:///": f"file://{shared.fragments}/"}
    monkeypatch.setenv("GAZETTE_LAKE_STORE_ROOTS", json.dumps(roots))
    return gazctl_runner(shared.address, monkeypatch, tmp_path, capfdbinary)


@pytest.fixture
def lake(gazctl):
    return lambda *args, stdin=b"": gazctl(*args, group="lake", stdin=stdin)


@pytest.fixture
def append(gazctl, tmp_path):
    def run(journal, *lines):
        (tmp_path / "input").write_text("".join(f"{line}\n" for line in lines))
        done = gazctl("append", "-l", f"name={journal}", "-i", "input")
        assert done.code == 0, done.err

    return run


@pytest.fixture
def apply(root, tmp_path):
    def run(table="orders", change=lambda text: text):
        text = change(SPEC.format(table=table, root=root))
        (tmp_path / "tables" / f"{table}.yaml").write_text(text)

    return run


@pytest.fixture
def rows(tmp_path):
    """Rows of a typed table; empty while there is none."""

    def read(name="typed.orders"):
        catalog = SqlCatalog("lakehouse", uri=f"sqlite:///{tmp_path}/catalog.db")
        if not catalog.table_exists(name):
            return []
        found = catalog.load_table(name).scan().to_arrow().sort_by("n").to_pylist()
        return [(row["n"], row["_journal"]) for row in found]

    return read


def message(number, at="2026-01-02T03:04:05Z", **more):
    uuid = str(build_uuid(PRODUCER, CLOCK + number * 160, Flags.OUTSIDE_TXN))
    return json.dumps({"_meta": {"uuid": uuid}, "n": number, "at": at, **more})


def test_tables_are_brought_up_to_date(lake, root, apply, append, rows):
    apply()
    append(f"{root}/part=one", message(1), message(2), message(2), message(3, at="soon"))
    append(f"{root}/part=two", message(4))
    done = lake("run", "--engine", "local")
    assert done.code == 0, done.err
    assert done.out.decode().startswith("typed.orders: 3 row(s), 1 quarantined, 474 bytes in ")
    assert done.out.decode().endswith(f"offsets {root}/part=one 376, {root}/part=two 98\n")
    assert rows() == [(1, f"{root}/part=one"), (2, f"{root}/part=one"), (4, f"{root}/part=two")]
    # By the raw table's name, too; and there is nothing to be done.
    again = lake("run", "shop.orders")
    assert again.code == 0, again.err
    assert again.out.decode().startswith("typed.orders: nothing new; offsets ")
    append(f"{root}/part=two", message(5))
    (told,) = json.loads(lake("run", "typed.orders", "-o", "json").out)
    assert (told["table"], told["rows"], told["quarantined"], told["files"]) == (
        "typed.orders",
        1,
        0,
        1,
    )
    assert set(told["offsets"]) == {f"{root}/part=one", f"{root}/part=two"}
    assert told["complete_at"]
    assert yaml.safe_load(lake("run", "-o", "yaml").out)[0]["run"] is None


def test_query_sees_what_no_run_has_read_and_says_so(lake, gazctl, root, apply, append):
    apply()
    append(f"{root}/part=one", message(1))
    assert lake("run", "--engine", "local").code == 0
    append(f"{root}/part=two", message(2), message(3, at="soon"))
    query = "SELECT n, _journal FROM typed.orders ORDER BY n"
    done = gazctl(query, "-o", "csv", "--explain", group="sql")
    assert done.code == 0, done.err
    assert done.out.decode() == f"n,_journal\n1,{root}/part=one\n2,{root}/part=two\n"
    told = done.err.splitlines()
    assert told[0] == (
        "typed.orders: 1 record that no run has read yet will be no row, but quarantined"
    )
    assert re.fullmatch(r"typed\.orders as of 2.*Z: snapshot \d+", told[1])
    one, two = (len(message(1)) + 1, len(message(2) + message(3, at="soon")) + 2)
    assert told[2:] == [
        f"  {root}/part=one: rows up to {one}, live to {one}",
        f"  {root}/part=two: rows up to 0, live to {two}",
        "  scan: 1 file of the table opened",
    ]


def test_nan_is_greater_than_all_numbers(gazctl, root, apply, append):
    """As DuckDB has it, with offsets and without."""
    apply(change=lambda text: text.replace("columns:", "columns:\n  - {name: x, type: double}", 1))
    append(f"{root}/part=one", message(1, x="NaN"), message(2, x=4), message(3, x=6), message(4))
    append(f"{root}/part=two", message(5, x="NaN"), message(6, x=7))
    for table in ("shop.orders", 'shop."orders$offsets"', '"orders$offsets"'):
        for condition, expected in (
            ("x > 5", "1,3,5,6"),
            ("x >= 'Infinity'", "1,5"),
            ("x > 5 AND x <> 'NaN'", "3,6"),
            ("x <= 'NaN'", "1,2,3,5,6"),
        ):
            query = f"SELECT string_agg(n, ',' ORDER BY n) AS found FROM {table} WHERE {condition}"
            done = gazctl(query, "-o", "json", group="sql")
            assert done.code == 0, done.err
            assert json.loads(done.out) == {"found": expected}, (table, condition)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("typed.nope",), "no spec in .* is of a typed table typed.nope"),
        (("typed.order",), "typed.order; .* did you mean typed.orders"),
        (("shop.raw",), "the spec of shop.raw .*raw.yaml. has no section `typed:`"),
        (("shop.bad",), "the spec of shop.bad is refused: bad.yaml: "),
        (("--give-up", "a=b=1"), "--give-up: is about one table: name it"),
        (("typed.orders", "--give-up", "a"), "--give-up: 'a' is not JOURNAL=OFFSET"),
        (("typed.orders", "--give-up", "a=-1"), "--give-up: 'a=-1' is not JOURNAL=OFFSET"),
        (("typed.orders", "--give-up", "a=1", "--continuous"), "leave out --continuous"),
        (("--begin-anew", "a"), "--begin-anew: is about one table: name it"),
        (("typed.orders", "--begin-anew", "a=1"), "'a=1' is neither a journal of shop.orders nor"),
        (("typed.orders", "--begin-anew", "a", "--continuous"), "leave out --continuous"),
        (("typed.slow", "--continuous"), "typed.slow says no `every`"),
    ],
)
def test_mistakes_are_reported(lake, apply, args, why, tmp_path):
    apply()
    apply("raw", lambda text: text.partition("typed:")[0])
    apply("slow", lambda text: text.replace("  every: 5s\n", ""))
    (tmp_path / "tables" / "bad.yaml").write_text("name: shop.bad\n")
    done = lake("run", *args)
    assert (done.code, done.out) == (1, b"")
    assert len(done.err.strip().splitlines()) == 1
    assert re.search(why, done.err), done.err


def test_journal_made_again_is_read_once_confirmed(lake, shared, root, apply, append, rows):
    apply()
    one = f"{root}/part=one"
    append(one, message(1), message(2))
    assert lake("run", "--engine", "local").code == 0
    with Client(ClientConfig(address=shared.address)) as client:
        make_again(client, shared, one)
    append(one, message(3))
    assert (
        f"{one} is not the journal that was read" in lake("describe", "typed.orders").out.decode()
    )
    refused = lake("run", "typed.orders")
    assert refused.code == 1
    command = f"gazctl lake run typed.orders --begin-anew {one}"
    assert (
        f"deleted and made again, or lost its end. It stands still until you decide: `{command}`"
        in refused.err
    )
    done = lake("run", "typed.orders", "--begin-anew", one)
    assert done.code == 0, done.err
    assert f"typed.orders: {one} is read from offset 0 on" in done.err
    assert [n for n, _ in rows()] == [1, 2, 3]
    again = lake("run", "typed.orders", "--begin-anew", f"{one}=7")
    assert "is the journal that was read, so nothing was restarted" in again.err


@pytest.fixture
def rolled_back(lake, root, apply, append, tmp_path):
    """A table of three runs, rolled back to its first one."""
    apply()
    one = f"{root}/part=one"
    for number in (1, 2, 3):
        append(one, message(number))
        assert lake("run", "--engine", "local").code == 0
    table = SqlCatalog("lakehouse", uri=f"sqlite:///{tmp_path}/catalog.db").load_table(
        "typed.orders"
    )
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    return one, len(message(1)) + 1


def test_rollback_is_shown_and_accepted(lake, gazctl, shared, rolled_back, rows):
    one, size = rolled_back
    refused = lake("run", "typed.orders")
    assert refused.code == 1
    assert (
        "`gazctl lake run typed.orders --accept-rollback` shows what would be read again"
        in refused.err
    )
    # Without a terminal no one can be asked.
    shown = lake("run", "typed.orders", "--accept-rollback")
    assert shown.code == 1
    assert (
        f"typed.orders: {one} would be read again from offset {size} to {3 * size}, and nothing of it is lost"
        in shown.err
    )
    assert "nothing was changed" in shown.err
    assert "repeat with --yes" in shown.err
    assert lake("run", "typed.orders").code == 1
    done = lake("run", "typed.orders", "--accept-rollback", "--yes")
    assert done.code == 0, done.err
    assert [n for n, _ in rows()] == [1, 2, 3]
    again = lake("run", "typed.orders", "--accept-rollback", "--yes")
    assert (again.code, [n for n, _ in rows()]) == (0, [1, 2, 3])
    assert "was not rolled back" in again.err


def test_rollback_says_what_is_lost(lake, gazctl, shared, rolled_back, rows):
    one, size = rolled_back
    assert gazctl("flush", "-l", f"name={one}").code == 0
    for file in (shared.fragments / one).glob("*"):
        file.unlink()

    def shown():
        return lake("run", "typed.orders", "--accept-rollback").err

    lost = f"{one} would be read again from offset {size} to {3 * size}, and {2 * size} bytes of it are gone"
    wait_until(lambda: lost in shown(), timeout_s=60)


def test_tag_that_was_moved_back_is_moved_to_what_the_table_has(
    lake, tmp_path, root, apply, append, rows
):
    apply()
    for number in (1, 2):
        append(f"{root}/part=one", message(number))
        assert lake("run", "--engine", "local").code == 0
    table = SqlCatalog("lakehouse", uri=f"sqlite:///{tmp_path}/catalog.db").load_table(
        "typed.orders"
    )
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "gazette-progress").commit()
    assert lake("run", "typed.orders").code == 1
    done = lake("run", "typed.orders", "--accept-rollback", "--yes")
    assert done.code == 0, done.err
    assert "nothing is read again" in done.err
    assert [n for n, _ in rows()] == [1, 2]


def test_tables_are_kept_up_to_date_until_a_signal(lake, root, apply, append, rows):
    apply()
    apply("slow", lambda text: text.replace("  every: 5s\n", ""))
    append(f"{root}/part=one", message(1))
    assert rows() == []  # makes the catalog, which two cannot do at once

    def stop():
        try:
            wait_until(lambda: rows("typed.orders"), timeout_s=60)
            # Specs are read as it goes on.
            apply("late")
            wait_until(lambda: rows("typed.late"), timeout_s=60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop)
    thread.start()
    done = lake("run", "--continuous", "--engine", "local", "-o", "json")
    thread.join()
    assert done.code == 0, done.err
    told = [json.loads(line) for line in done.out.splitlines()]
    assert [(each["table"], each["rows"]) for each in told] == [
        ("typed.orders", 1),
        ("typed.late", 1),
    ]
    assert "the current run is the last one" in done.err
    assert "stopped: each table is as its last run left it" in done.err
    assert rows() == [(1, f"{root}/part=one")]
    assert rows("typed.slow") == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_drops_the_run(lake, root, apply, append, rows, monkeypatch):
    def run(*_, **__):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        block_for(60)

    apply()
    append(f"{root}/part=one", message(1))
    monkeypatch.setattr(TypedRunner, "run", run)
    done = lake("run", "--continuous", "--engine", "local")
    assert (done.code, done.out) == (130, b"")
    assert rows() == []


def test_quarantined_records_are_listed(lake, gazctl, root, apply, tmp_path):
    apply()
    none = lake("quarantine", "typed.orders")
    assert (none.code, none.out) == (1, b"")
    assert "there is no table typed.orders_quarantine" in none.err
    one, two = f"{root}/part=one", f"{root}/part=two"
    lines = [message(1), message(2, at="\x1b[2J"), message(3, at="x" * 200)]
    # As bytes that a terminal would heed, as JSON would not have them.
    content = "".join(f"{line}\n" for line in lines).encode() + b'{"n": "\x1b[2J"}\n\xff\x9b2J\n'
    (tmp_path / "input").write_bytes(content)
    assert gazctl("append", "-l", f"name={one}", "-i", "input").code == 0
    (tmp_path / "input").write_text(message(4, at="soon") + "\n")
    assert gazctl("append", "-l", f"name={two}", "-i", "input").code == 0
    assert lake("run").code == 0

    def listed(*args):
        done = lake("quarantine", "typed.orders", "-o", "json", *args)
        assert done.code == 0, done.err
        return json.loads(done.out)

    found = listed()
    assert [each["journal"] for each in found] == [one] * 4 + [two]
    assert [each["end"] for each in found[:3]] == [each["begin"] for each in found[1:4]]
    assert found[0]["raw"].startswith('{"_meta"')
    assert found[0]["uuid"] == json.loads(lines[1])["_meta"]["uuid"]
    assert [each["uuid"] is None for each in found] == [False, False, True, True, False]
    assert found[3]["raw_base64"]
    assert "is no timestamptz" in found[0]["reason"]
    assert listed("--journal", one) == found[:4]
    assert listed("--journal", one, "--begin", found[1]["begin"]) == found[1:4]
    assert listed("--reason", "UTF-8") == found[3:4]
    assert listed("--reason", "timestamptz", "--limit", "3") == [found[0], found[1], found[4]]
    assert yaml.safe_load(lake("quarantine", "typed.orders", "-o", "yaml").out) == found

    shown = lake("quarantine", "typed.orders", "--limit", "4")
    assert "there are more than these 4" in shown.err
    text = shown.out.decode()
    assert len(text.splitlines()) == 5
    assert not set(text) - {"\n"} - {chr(c) for c in range(0x20, 0x7F)} - set("…\ufffd")
    assert r"\x1b[2J" in text
    assert "x…" in text
    assert "more than" not in lake("quarantine", "typed.orders", "--limit", "5").err
    none = lake("quarantine", "typed.orders", "--journal", "nope")
    assert (none.code, none.err) == (0, "note: typed.orders has no such record in quarantine\n")


def test_how_typed_tables_stand_is_listed_and_described(lake, root, apply, append, tmp_path):
    apply()
    append(f"{root}/part=one", message(1), message(2, at="soon"))
    before = lake("list", "typed.orders")
    assert before.code == 0, before.err
    assert before.out.decode().splitlines()[1].split() == [
        "typed.orders",
        "typed",
        "2",
        "0",
        "0",
        "180",
        "1",
    ]
    assert "typed.orders: the table is not made yet" in before.err
    assert lake("run").code == 0
    append(f"{root}/part=two", message(3))
    done = lake("list")
    assert done.code == 0, done.err
    head, raw, typed = (line.split() for line in done.out.decode().splitlines())
    assert "Quarantined" in head
    assert raw[:2] == ["shop.orders", "json"]
    assert typed == ["typed.orders", "typed", "2", "1", "1", "98"]
    raw, typed = json.loads(lake("list", "-o", "json").out)
    assert (raw["table"], typed["table"], typed["of"]) == (
        "shop.orders",
        "typed.orders",
        "shop.orders",
    )
    assert (typed["rows"], typed["quarantined"], typed["lag_bytes"], typed["problems"]) == (
        1,
        1,
        98,
        [],
    )
    assert typed["complete_at"]
    assert "Quarantined" not in lake("list", "shop.orders").out.decode()

    (full,) = yaml.safe_load(lake("describe", "typed.orders", "-o", "yaml").out)
    assert full["quarantine"] == "typed.orders_quarantine"
    assert full["messages"]["committed"] == 2
    assert {"journal": f"{root}/part=two", "read": 0, "head": 98} in full["journal_offsets"]
    assert [c["name"] for c in full["columns"]] == [
        "n",
        "at",
        "_journal",
        "_begin",
        "_end",
        "_uuid",
    ]
    text = lake("describe", "typed.orders", "shop.orders").out.decode()
    assert "typed.orders: typed, of shop.orders" in text
    assert "  Typed:      typed.orders" in text
    assert "Messages:   2 read: 1 rows, 1 in quarantine, 0 there before" in text
    assert f"{root}/part=two  head 98  read 0" in text

    (tmp_path / "catalog.db").write_bytes(b"no database")
    broken = lake("list", "typed.orders", "-o", "json")
    assert broken.code == 1
    (typed,) = json.loads(broken.out)
    assert (typed["rows"], typed["lag_bytes"], typed["is_made"]) == (None, None, None)
    assert typed["problems"]


def test_a_typed_table_is_mounted_elsewhere_by_its_metadata(lake, root, apply, append):
    apply()
    none = lake("ddl", "typed.orders", "--dialect", "spark")
    assert (none.code, none.out) == (1, b"")
    assert "`gazctl lake run typed.orders` makes it" in none.err
    append(f"{root}/part=one", message(1))
    assert lake("run").code == 0
    for dialect in ("trino", "spark", "hive", "bigquery", "snowflake", "duckdb"):
        done = lake("ddl", "typed.orders", "--dialect", dialect)
        assert done.code == 0, done.err
        text = done.out.decode()
        assert "This is the table as it is now" in text
        assert re.search(r"[\w-]+\.metadata\.json", text)
    moved = lake("ddl", "typed.orders", "--dialect", "spark", "--location", "s3://elsewhere/")
    assert (moved.code, "they cannot be elsewhere" in moved.err) == (1, True)


def test_a_typed_table_is_proposed_out_of_records(lake, root, append, rows, tmp_path):
    append(f"{root}/part=one", message(1), message(2, at="2026-01-02"))
    done = lake("infer", "-l", f"name:prefix={root}/", "--name", "shop.orders", "--typed")
    assert done.code == 0, done.err
    assert "uuid: _meta.uuid" in done.out.decode()
    assert "{name: at, type: timestamptz}" in done.out.decode()
    assert lake("apply", "-", stdin=done.out).code == 0
    assert lake("run").code == 0
    assert rows() == [(1, f"{root}/part=one"), (2, f"{root}/part=one")]


def test_typed_tables_are_checked_for_what_is_lost_or_there_twice(
    lake, root, apply, append, tmp_path
):
    apply()
    before = lake("check", "typed.orders")
    assert before.code == 0, before.err
    assert "typed.orders: yellow: complete: is not made yet" in before.out.decode()
    journal = f"{root}/part=one"
    append(journal, message(1), message(2), message(3, at="soon"))
    assert lake("run").code == 0
    good = lake("check", "typed.orders")
    assert (good.code, good.out) == (0, b""), good.err
    assert "1 table(s): 0 error(s), 0 warning(s)" in good.err

    # As many rows as there should be, and the wrong ones: only reading shows it.
    table = SqlCatalog("lakehouse", uri=f"sqlite:///{tmp_path}/catalog.db").load_table(
        "typed.orders"
    )
    rows = table.scan().to_arrow()
    table.overwrite(pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1)]))
    quick = lake("check", "typed.orders", "--quick")
    assert quick.code == 0, quick.out
    found = lake("check", "typed.orders", "-o", "json")
    assert found.code == 1
    told = json.loads(found.out)
    assert {each["check"] for each in told if each["severity"] == "error"} == {"offsets"}
    assert all(each["text"].startswith(f"{journal}: ") for each in told)
    table.overwrite(rows.slice(0, 1))
    lost = lake("check", "typed.orders", "--quick")
    assert lost.code == 1
    assert (
        f"typed.orders: red: complete: {journal}: typed.orders has 1 of 2, 1 row lost"
        in lost.out.decode()
    )
    SqlCatalog("lakehouse", uri=f"sqlite:///{tmp_path}/catalog.db").drop_table("typed.orders")
    why = "typed.orders_quarantine has records of a table that was dropped since: drop it, too"
    assert why in lake("run").err
    dropped = lake("check", "typed.orders")
    assert dropped.code == 1
    assert f"typed.orders: red: complete: {why}" in dropped.out.decode()
    assert len(dropped.out.splitlines()) == 1
    (tmp_path / "catalog.db").write_bytes(b"no database")
    broken = lake("check", "typed.orders", "--quick")
    assert broken.code == 1
    assert "typed.orders: red: not checked: cannot be looked at" in broken.out.decode()


def test_records_that_can_be_read_by_now_become_rows(lake, root, apply, append, rows):
    apply()
    one, two = f"{root}/part=one", f"{root}/part=two"
    append(one, message(1), message(2, at="2026"), message(3, at=4))
    append(two, message(4, at="2026"))
    assert lake("run").code == 0
    assert rows() == [(1, one)]
    nothing = lake("reprocess", "typed.orders")
    assert nothing.code == 0, nothing.err
    assert nothing.out.decode() == (
        "typed.orders: of 3 quarantined record(s) 0 are rows now; 3 stay, 0 of them for another reason\n"
    )
    apply(change=lambda text: text.replace(
        "columns: [{name: at, type: timestamptz}]",
        "columns: [{name: at_text, from: at, type: string}]\n  retired: [at]",
    ))  # fmt: skip
    some = lake("reprocess", "typed.orders", "--journal", one, "-o", "json")
    assert some.code == 0, some.err
    (told,) = json.loads(some.out)
    assert (told["records"], told["rows"], told["stay"], told["told_anew"]) == (2, 1, 1, 1)
    assert rows() == [(1, one), (2, one)]
    assert lake("reprocess", "shop.orders", "--reason", "timestamptz").code == 0
    assert rows() == [(1, one), (2, one), (4, two)]
    listed = json.loads(lake("quarantine", "typed.orders", "-o", "json").out)
    assert [(each["begin"], each["reason"]) for each in listed] == [(180, "at: 4 is no string")]
    assert lake("check", "typed.orders").code == 0


def test_rows_are_made_again_of_offsets_and_hive_partitions(
    lake, gazctl, root, apply, append, rows, tmp_path
):
    apply()
    one, two = f"{root}/part=one", f"{root}/part=two"
    append(one, message(1), message(2))
    append(two, message(3), message(4))
    for journal in (one, two):
        assert gazctl("flush", "-l", f"name={journal}").code == 0
    assert lake("run").code == 0
    every = [(1, one), (2, one), (3, two), (4, two)]
    assert rows() == every
    table = SqlCatalog("lakehouse", uri=f"sqlite:///{tmp_path}/catalog.db").load_table(
        "typed.orders"
    )

    def spoil():
        table.refresh()
        table.delete("n == 1")
        table.refresh()
        table.delete("n == 4")
        assert len(rows()) == 2

    spoil()
    done = lake("backfill", "typed.orders", "--partition", "part=one")
    assert done.code == 0, done.err
    assert done.out.decode().startswith(
        "typed.orders: 2 row(s) and 0 quarantined in place of 1 and 0; 196 bytes, 1 range(s) of 1 journal(s)"
    )
    assert rows() == every[:3]
    (told,) = json.loads(lake("backfill", "shop.orders", "--journal", two, "-o", "json").out)
    assert (told["rows"], told["rows_before"], told["ranges"]) == (2, 1, {two: [[0, 196]]})
    assert rows() == every
    spoil()
    assert lake("backfill", "typed.orders", "--journal", one, "--from", "0", "--to", "1").code == 0
    assert rows() == every[:3]
    none = lake("backfill", "typed.orders", "--partition", "part=three")
    assert none.code == 0, none.err
    assert "no rows are made: no stored fragment" in none.out.decode()
    assert "`gazctl lake describe shop.orders`" in none.out.decode()
    for given in ("--from", "196"), ("--from", "9", "--to", "5"):
        empty = lake("backfill", "typed.orders", "--journal", one, *given)
        assert empty.code == 1
        assert f"the table has come to 196 of {one}" in empty.err
