"""Typed tables: each committed message once, in real types, and nothing that cannot be read is lost."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal

import pytest
from debezium import Database, mysql_source, postgres_source
from sales import APPENDED, CLOCK, COMMITTED, PRODUCER, REASONS, json_lines, payments

from gazette_platform import Flags, build_uuid
from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.spark.typed_workers import SparkWorkers

ROWS = [(region, n) for region, numbers in COMMITTED.items() for n in numbers]


def snapshots(platform, table):
    metadata = typed_catalog(platform.settings).handle(table).load().token.metadata
    return metadata.snapshots


@pytest.fixture
def lake(gazctl, own):
    """`gazctl lake` on the specs of the test."""
    return lambda *args: gazctl("lake", *args, "--tables", own.tables)


def record(n, flags=Flags.OUTSIDE_TXN, **more):
    return {"_meta": {"uuid": str(build_uuid(PRODUCER, CLOCK + n * 160, flags))}, "n": n} | more


def test_each_committed_message_is_one_row(typed_payments, trino, spark, duckdb):
    report = typed_payments
    counts = report.counts
    assert (counts.committed, counts.quarantined) == (len(ROWS) + 2, 2)
    query = "SELECT region, id FROM {}typed.payments ORDER BY region, id"
    assert trino(query.format("iceberg.")) == ROWS
    assert spark(query.format("iceberg.")) == ROWS
    assert duckdb(query.format("")) == [(region, str(n)) for region, n in ROWS]


def test_raw_table_keeps_every_line(typed_payments, gazctl, trino):
    assert gazctl("lake", "flush", "sales.payments").code == 0
    query = "SELECT region, count(*) FROM hive.sales.payments GROUP BY region ORDER BY region"
    assert [(region, n >= APPENDED[region]) for region, n in trino(query)] == [
        ("eu", True),
        ("us", True),
    ]


def test_types_are_real_in_both_engines(typed_payments, trino, spark):
    described = {row[0]: row[1] for row in trino("DESCRIBE iceberg.typed.payments")}
    assert {name: described[name] for name in ("id", "amount", "paid_at", "region", "_uuid")} == {
        "id": "integer",
        "amount": "decimal(10,2)",
        "paid_at": "timestamp(6) with time zone",
        "region": "varchar",
        "_uuid": "uuid",
    }
    query = (
        "SELECT id, amount, date(paid_at), extract(HOUR FROM paid_at), extract(MINUTE FROM paid_at) "
        "FROM iceberg.typed.payments WHERE region = 'us' ORDER BY id"
    )
    # 03:11 and 03:12, an hour east of Greenwich.
    expected = [(n, Decimal(f"{n}.50"), date(2026, 1, 2), 2, n) for n in COMMITTED["us"]]
    assert trino(query) == expected
    assert spark(query) == expected


def test_bad_records_are_in_quarantine_with_reasons(typed_payments, gazctl, trino, client):
    shown = gazctl("lake", "quarantine", "typed.payments", "-o", "json")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    records = found if isinstance(found, list) else found["records"]
    content = client.read("sales/payments/region=eu").read()
    reasons = set()
    for each in records:
        reasons.add(each["reason"])
        assert each["journal"] == "sales/payments/region=eu"
        assert content[each["begin"] : each["end"]].strip()
    assert len(reasons) == len(REASONS["eu"])
    kept = trino("SELECT count(*), count(raw) FROM iceberg.typed.payments_quarantine")
    assert kept == [(2, 2)]


def test_second_run_adds_nothing(typed_payments, platform, gazctl, trino):
    before = [each.snapshot_id for each in snapshots(platform, "typed.payments")]
    done = gazctl("lake", "run", "typed.payments", "--engine", "local")
    assert done.code == 0, done.err
    assert "typed.payments: nothing new" in done.out
    assert [each.snapshot_id for each in snapshots(platform, "typed.payments")] == before


def test_messages_appended_again_add_no_row(typed_payments, client, gazctl, trino):
    again = b"".join(payments("eu").splitlines(keepends=True)[:2])
    client.append("sales/payments/region=eu", again)
    done = gazctl("lake", "run", "typed.payments", "--engine", "local", "-o", "json")
    (told,) = json.loads(done.out)
    assert (told["rows"], told["duplicates"]) == (0, 2)
    assert trino("SELECT count(*) FROM iceberg.typed.payments") == [(len(ROWS),)]
    assert gazctl("lake", "check", "typed.payments").code == 0


def test_snapshots_say_offsets(typed_payments, client, gazctl, trino):
    assert gazctl("lake", "run", "typed.payments", "--engine", "local").code == 0
    rows = trino(
        "SELECT summary['gazette.offsets'] FROM iceberg.typed.\"payments$snapshots\" "
        "ORDER BY committed_at DESC LIMIT 1"
    )
    journals = [f"sales/payments/region={region}" for region in ("eu", "us")]
    told = dict(each.rsplit(" ", 1) for each in rows[0][0].split("; "))
    assert told == {journal: str(client.write_head(journal)) for journal in journals}


def test_transaction_is_rows_once_committed(own, client, lake, trino):
    journal = own.journal("region=eu")
    within = Flags.CONTINUE_TXN
    client.append(journal, json_lines(record(1), record(2, within), record(3, within)))
    table = own.spec(
        "t", "[{name: n, type: bigint}]", f"typed: {{uuid: _meta.uuid, name: {own.schema}.rows}}\n"
    )
    assert lake("run", table, "--engine", "local").code == 0
    query = f"SELECT n FROM iceberg.{own.schema}.rows ORDER BY n"
    assert trino(query) == [(1,)]
    client.append(journal, json_lines(record(4, Flags.ACK_TXN)))
    assert lake("run", table, "--engine", "local").code == 0
    assert trino(query) == [(1,), (2,), (3,)]
    # A message of another transaction that is rolled back by an ACK before it is never a row.
    client.append(journal, json_lines(record(5, within), record(4, Flags.ACK_TXN), record(6)))
    assert lake("run", table, "--engine", "local").code == 0
    assert trino(query) == [(1,), (2,), (3,), (6,)]


def test_quarantined_record_is_read_again(own, client, lake, trino, spark):
    client.append(own.journal("region=eu"), json_lines(record(1, q=2), record(2, q=3_000_000_000)))
    typed = f"typed: {{uuid: _meta.uuid, name: {own.schema}.rows}}\n"
    columns = "[{name: n, type: bigint}, {name: q, type: int}]"
    table = own.spec("t", columns, typed)
    assert "1 row(s), 1 quarantined" in lake("run", table, "--engine", "local").out
    shown = lake("quarantine", f"{own.schema}.rows")
    assert "3000000000 is no int" in shown.out, shown.err
    own.spec("t", columns.replace("type: int}", "type: bigint}"), typed)
    done = lake("reprocess", f"{own.schema}.rows")
    assert "of 1 quarantined record(s) 1 are rows now" in done.out, done.err
    query = f"SELECT n, q FROM iceberg.{own.schema}.rows ORDER BY n"
    assert trino(query) == [(1, 2), (2, 3_000_000_000)]
    assert spark(query) == [(1, 2), (2, 3_000_000_000)]


def test_query_of_typed_table_includes_live_tail(own, client, lake, gazctl):
    journal = own.journal("region=eu")
    client.append(journal, json_lines(record(1)))
    table = own.spec(
        "t", "[{name: n, type: bigint}]", f"typed: {{uuid: _meta.uuid, name: {own.schema}.rows}}\n"
    )
    assert lake("run", table, "--engine", "local").code == 0
    client.append(journal, json_lines(record(1), record(2)))
    query = f"SELECT n FROM {own.schema}.rows ORDER BY n"
    seen = gazctl("sql", query, "-o", "csv", "--tables", own.tables)
    assert seen.out.split() == ["n", "1", "2"], seen.err


# ------------------------------------------------------------------ changes of a database


@pytest.fixture
def run_by_spark(platform, client, spark_session):
    """Run a typed table with a key, which Spark merges."""

    def run(path):
        raw = parse_table_spec(path.read_text())
        workers = SparkWorkers(spark_session)
        return TypedRunner(typed_catalog(platform.settings), workers, client).run(raw.typed, raw)

    return run


ENVELOPE = (
    '[{name: before, type: "struct<id:bigint,name:string>"}, {name: after, type: "struct<id:bigint,name:string>"}, '
    "{name: op, type: string}]"
)


@pytest.mark.parametrize("source", [postgres_source, mysql_source])
def test_changes_become_the_rows_of_their_source(
    source, own, client, lake, trino, spark, gazctl, run_by_spark
):
    journal = own.journal("part=0")
    typed = f"typed: {{change_data: debezium, key: [id], name: {own.schema}.rows}}\n"
    own.spec("t", ENVELOPE, typed)
    database = Database(source, wraps=source is mysql_source)
    rows_of = f"SELECT id, name FROM {{}}{own.schema}.rows ORDER BY id"

    def every_engine_has(told):
        """Before a run by its tail, and after it in all engines."""
        client.append(journal, b"".join(told))
        expected = sorted((key, row["name"]) for key, row in database.rows.items())
        as_texts = [[str(key), name] for key, name in expected]
        for _ in range(2):
            seen = gazctl("sql", rows_of.format(""), "-o", "csv", "--tables", own.tables)
            assert [line.split(",") for line in seen.out.splitlines()[1:]] == as_texts, seen.err
            report = run_by_spark(own.tables / "t.yaml")
        assert report.counts.quarantined == 0
        assert trino(rows_of.format("iceberg.")) == expected
        assert spark(rows_of.format("iceberg.")) == expected

    for key in range(1, 7):
        database.upsert(key, f"name {key}")
    database.snapshot()
    first = database.lines()
    every_engine_has(first)
    database.upsert(1, "Ann")
    database.delete(2)
    database.move(3, 30)
    database.rename_key(4, 40)
    database.message()
    second = database.lines()[len(first) :]
    # Backwards: updates come before inserts, and deletions before what they delete.
    every_engine_has([*second[::-1], *first])
    # The connector restarted: it sends all again, and then what is new.
    database.truncate()
    database.upsert(5, "back")
    database.upsert(2, "again")
    every_engine_has(database.lines())
    database.delete(2)
    third = database.lines()
    every_engine_has([third[-2], *third[:-2]])
    checked = lake("check", f"{own.schema}.rows")
    assert checked.code == 0, checked.out + checked.err
    # Rows that were deleted by hand are noticed.
    table = f"iceberg.{own.schema}.rows"
    spark(f"DELETE FROM {table} WHERE id = 5")
    checked = lake("check", f"{own.schema}.rows")
    assert checked.code == 1
    assert "has no row of the last message of 1 key (5)" in checked.out + checked.err


def test_column_that_says_deleted_deletes_rows(own, client, trino, spark, gazctl, run_by_spark):
    journal = own.journal("part=0")
    typed = f"typed: {{uuid: none, key: [id], deleted: __deleted, name: {own.schema}.rows}}\n"
    own.spec("t", "[{name: id, type: bigint}, {name: __deleted, type: string}]", typed)
    rows_of = f"SELECT id FROM {{}}{own.schema}.rows ORDER BY id"
    # As Debezium's ExtractNewRecordState writes them.
    for told, expected in (
        ([(1, "false"), (2, "false"), (3, "false"), (2, "true")], [1, 3]),
        ([(3, "true"), (4, "true"), (2, "false")], [1, 2]),
    ):
        client.append(journal, json_lines(*({"id": n, "__deleted": gone} for n, gone in told)))
        seen = gazctl("sql", rows_of.format(""), "-o", "csv", "--tables", own.tables)
        assert seen.out.split()[1:] == [str(n) for n in expected], seen.err
        run_by_spark(own.tables / "t.yaml")
        assert trino(rows_of.format("iceberg.")) == [(n,) for n in expected]
        assert spark(rows_of.format("iceberg.")) == [(n,) for n in expected]


def test_created_table_is_typed_too_until_it_is_dropped(readme_commands, gazctl, trino, platform):
    assert readme_commands.returncode == 0, readme_commands.stderr
    query = "SELECT visitor, count(*), max(ms) FROM iceberg.typed.clicks GROUP BY 1 ORDER BY 1"
    assert trino(query) == [
        ("ada", 3, 88), ("barbara", 1, 9), ("grace", 2, 95), ("linus", 1, 120)
    ]  # fmt: skip
    described = {row[0]: row[1] for row in trino("DESCRIBE iceberg.typed.clicks")}
    assert described["at"] == "timestamp(6) with time zone"
    refused = gazctl("lake", "drop", "typed.clicks")
    assert refused.code == 1
    assert "typed.clicks: 7 rows; its files stay in " in refused.err
    assert "repeat the command with --yes" in refused.err
    assert trino(query)
    assert gazctl("lake", "drop", "typed.clicks", "--yes").code == 0
    tables = [row[0] for row in trino("SHOW TABLES FROM iceberg.typed")]
    assert not [name for name in tables if name.startswith("clicks")]
    assert "typed:" not in (platform.layout.tables / "shop.clicks.yaml").read_text()
    assert trino("SELECT count(*) FROM hive.shop.clicks") == [(7,)]
