"""Journals as raw tables: the same files, asked by Trino, Spark and DuckDB."""

from __future__ import annotations

import gzip
import hashlib
import json
from datetime import date

import pytest
from sales import FRESH, NOTES, ORDERS, json_lines

from gazette_platform import Change, Flags, build_uuid, clock_of, read_committed
from gazette_platform.lake import (
    BrokerSource,
    Registrar,
    StoreRoots,
    ensure_views,
    parse_table_spec,
)
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.waiting import wait_until

BY_REGION = "SELECT region, count(*), sum(id), sum(amount) FROM {}sales.purchases GROUP BY region ORDER BY region"
SENSOR_S = 60.0
"""For sensors to register what a store has."""


def count(query, sql):
    return query(sql)[0][0]


@pytest.fixture
def visible(trino, sales):
    """Wait until the sensor has made a shared table, and Trino sees so many rows. No request is needed."""

    def wait(table, rows):
        def is_there():
            names = [row[0] for row in trino("SHOW SCHEMAS FROM hive")]
            if "sales" not in names or (table,) not in trino("SHOW TABLES FROM hive.sales"):
                return False
            return count(trino, f"SELECT count(*) FROM hive.sales.{table}") >= rows

        wait_until(is_there, timeout_s=SENSOR_S, poll_s=0.5)

    return wait


@pytest.fixture
def flushed(own, gazctl):
    """Have a table of the test's own hold all that was appended, by `gazctl lake flush`."""

    def flush(table):
        done = gazctl("lake", "flush", table, "--tables", own.tables)
        assert done.code == 0, done.err
        return done.out

    return flush


def test_all_engines_and_the_tail_agree(visible, sales, trino, spark, duckdb, client):
    visible("purchases", 2 * ORDERS)
    expected = sales.by_region()
    assert trino(BY_REGION.format("hive.")) == expected
    assert spark(BY_REGION.format("")) == expected
    assert duckdb(BY_REGION.format("")) == [tuple(map(str, row)) for row in expected]
    for region, orders in sales.purchases.items():
        journal = f"sales/purchases/region={region}"
        with client.tail(journal, offset=0) as reader:
            tailed = []
            for batch in reader.json_lines():
                tailed += batch
                if len(tailed) >= len(orders):
                    break
        assert tailed == orders


def test_sensor_registers_after_the_flush_interval(visible, sales, duckdb, client):
    # Nothing but time stores this journal. `gazctl sql` does not wait for it.
    assert duckdb("SELECT count(*) FROM sales.fresh") == [(str(FRESH),)]
    journal = "sales/fresh/region=eu"
    wait_until(lambda: client.fragment_page(journal).fragments, timeout_s=70, poll_s=0.5)
    visible("fresh", FRESH)


@pytest.fixture
def views(readme_commands, trino):
    """Rows of the table that was created without a flush; None while it is not made."""
    assert readme_commands.returncode == 0, readme_commands.stderr

    def ask():
        schemas = [row[0] for row in trino("SHOW SCHEMAS FROM hive")]
        if "shop" not in schemas or ["views"] not in [
            [*r] for r in trino("SHOW TABLES FROM hive.shop")
        ]:
            return None
        return trino("SELECT count(*), sum(ms), max(visitor) FROM hive.shop.views")

    return ask


def test_applied_spec_makes_a_table_by_itself(views):
    # What was appended before there was a spec; no request is made. At the end of the flush interval, and some
    # seconds more.
    wait_until(lambda: views() == [(6, 360, "linus")], timeout_s=120, poll_s=1.0)


def test_dropped_table_leaves_its_files(views, gazctl, platform, client):
    wait_until(views, timeout_s=120, poll_s=1.0)
    spec = platform.layout.tables / "shop.views.yaml"
    text = spec.read_text()
    done = gazctl("lake", "drop", "shop.views")
    assert (done.code, done.out) == (0, text), done.err
    assert "shop.views: dropped; its journals and files stay" in done.err
    assert not spec.exists()
    assert views() is None
    assert client.write_head("events/views")
    assert [*(platform.layout.fragments / "events/views").rglob("*.gz")]


def test_partitions_are_typed_and_leave_out_files(visible, sales, trino, spark, platform):
    visible("purchases", 2 * ORDERS)
    folders = {
        path.parent.relative_to(platform.layout.fragments)
        for path in (platform.layout.fragments / "sales" / "purchases").rglob("*-*-*")
        if path.is_file()
    }
    expected = sorted(
        (
            region.partition("=")[2],
            date.fromisoformat(day.partition("=")[2]),
            int(hour.partition("=")[2]),
        )
        for *_, region, day, hour in (folder.parts for folder in folders)
    )
    query = "SELECT DISTINCT region, date, hour FROM {}sales.purchases ORDER BY 1, 2, 3"
    assert trino(query.format("hive.")) == expected
    assert spark(query.format("")) == expected
    paths = trino("SELECT DISTINCT \"$path\" FROM hive.sales.purchases WHERE region = 'us'")
    assert paths
    assert all("/region=us/" in path for (path,) in paths)


def test_csv_and_plain_files_are_tables_too(visible, sales, trino, spark, duckdb, own):
    visible("notes", NOTES)
    query = "SELECT count(*), max(note) FROM {}sales.notes"
    last = f'note {max(map(str, range(NOTES)))}, "quoted"'
    assert trino(query.format("hive.")) == [(NOTES, last)]
    assert spark(query.format("")) == [(NOTES, last)]
    assert duckdb("SELECT count(*), count(DISTINCT note) FROM sales.notes") == [("300", "300")]
    # Of the two regions of orders one is stored with gzip, the other one as it is.
    journals = {region: f"sales/purchases/region={region}" for region in ("eu", "us")}
    endings = {r: {path.suffix for path in own.files(j)} for r, j in journals.items()}
    assert endings == {"eu": {".gz"}, "us": {".raw"}}


def test_header_is_not_a_row_in_any_engine(own, flushed, client, gazctl, metastore, trino, spark):
    journal = own.journal("region=eu")
    header = 'id;Größe;"it\'s"\r\n'.encode()
    # A fragment that begins with a header and has more in the middle, one of fewer columns; and a fragment without any.
    client.append(journal, b"\xef\xbb\xbf" + header + b"1;x;a\r\n")
    client.append(journal, b'\xef\xbb\xbf"id";' + header[3:])
    client.append(journal, header + b'2;"y;z";\n3;id;b\n')
    client.append(journal, b'id;"Gr\xc3\xb6\xc3\x9fe"\nid;y\n')
    client.append(own.journal("region=us"), b"4;w;c\n")
    table = own.spec(
        "sizes",
        "[{name: id, type: string}, {name: size, from: Größe, type: string}, {name: note, from: it's, type: string}]",
        data_format="csv",
        more="delimiter: ';'\nheader: true\n",
    )
    assert "5 row(s) more" in flushed(table)
    with metastore.connect() as session:  # as the sensor does, which does not know this folder
        spec = parse_table_spec((own.tables / "sizes.yaml").read_text())
        ensure_views(session, spec, session.table(own.schema, spec.stored_table), {})
    rows = [("1", "x", "a"), ("2", "y;z", ""), ("3", "id", "b"), ("4", "w", "c"), ("id", "y", None)]
    query = "SELECT id, size, note FROM {} ORDER BY id"
    for each in (table, f"{table}_exact"):
        assert trino(query.format(f"hive.{each}")) == rows
        assert spark(query.format(each)) == rows
    assert trino(f"SELECT count(*) FROM hive.{table} WHERE region = 'eu'") == [(4,)]
    assert trino(f"SELECT count(*) FROM hive.{table}_lines") == [(9,)]
    seen = gazctl("sql", query.format(table), "-o", "json", "--tables", own.tables)
    assert [tuple(json.loads(line).values()) for line in seen.out.splitlines()] == rows, seen.err
    checked = gazctl("lake", "check", table, "--tables", own.tables)
    # The line of two fields, where it is; and no header.
    assert "2 fields, not 3: 1, such as 'id;y' at offset 101." in checked.out + checked.err
    assert "which the engines show as a row" not in checked.out + checked.err
    described = json.loads(
        gazctl("lake", "describe", table, "-o", "json", "--tables", own.tables).out
    )
    assert sum(each["rows"] for each in described[0]["hive_partitions"]) == 5


def test_spec_applied_wrongly_is_replaced(own, flushed, client, gazctl, trino, spark, tmp_path):
    journal = own.journal("region=eu")
    client.append(journal, b"id;size\n1;x\n2;y\n")

    def apply(columns, more="", *options):
        text = f"name: {own.schema}.sizes\nselector: 'name:prefix={own.name}/'\nformat: csv\n{more}columns: {columns}\n"
        (tmp_path / "sizes.yaml").write_text(text)
        return gazctl("lake", "apply", "sizes.yaml", "--tables", own.tables, *options)

    assert apply("[{name: line, type: string}]").code == 0
    table = f"{own.schema}.sizes"
    flushed(table)
    assert trino(f"SELECT count(*) FROM hive.{table}") == [(3,)]
    right = (
        "[{name: id, type: string}, {name: size, type: string}]",
        "delimiter: ';'\nheader: true\n",
    )
    refused = apply(*right)
    assert refused.code == 1
    assert "column line is gone" in refused.err
    assert "`gazctl lake apply --recreate`" in refused.err
    assert "would make" in apply(*right, "--recreate", "--dry-run").err
    assert trino(f"SELECT count(*) FROM hive.{table}") == [(3,)]
    done = apply(*right, "--recreate")
    assert done.code == 0, done.err
    assert "3 rows" in done.err
    assert "2 row(s) more" in flushed(table)
    rows = [("1", "x"), ("2", "y")]
    assert trino(f"SELECT id, size FROM hive.{table} ORDER BY 1") == rows
    assert spark(f"SELECT id, size FROM {table} ORDER BY 1") == rows
    # Rows of a journal that is gone would not come back.
    client.apply([Change(None, delete=journal, revision=-1)])
    own.journal("region=us")
    kept = apply("[{name: line, type: string}]", "", "--recreate")
    assert kept.code == 1
    assert "because that journal is" in kept.err
    assert trino(f"SELECT count(*) FROM hive.{table}") == [(2,)]


def test_new_column_shows_in_old_data(own, flushed, client, gazctl, trino, spark):
    client.append(own.journal("region=eu"), json_lines({"id": 1, "more": 7}, {"id": 2, "more": 8}))
    table = own.spec("wide", "[{name: id, type: bigint}]")
    assert "2 row(s) more" in flushed(table)
    own.spec("wide", "[{name: id, type: bigint}, {name: more, type: int}]")
    # `gazctl sql` reads the YAML file with each query; the metastore follows at the next registration.
    query = "SELECT id, more FROM {} ORDER BY id"
    seen = gazctl("sql", query.format(table), "-o", "csv", "--tables", own.tables)
    assert seen.out.split() == ["id,more", "1,7", "2,8"], seen.err
    flushed(table)
    assert trino(query.format(f"hive.{table}")) == [(1, 7), (2, 8)]
    assert spark(query.format(table)) == [(1, 7), (2, 8)]


def test_bad_records_stay_as_null(visible, trino, spark, gazctl):
    visible("picky", 4)
    query = "SELECT count(*), count(id), count(word), sum(id) FROM {}sales.picky"
    assert trino(query.format("hive.")) == [(4, 2, 3, 4)]
    assert spark(query.format("")) == [(4, 2, 3, 4)]
    checked = gazctl("lake", "check", "sales.picky", "-o", "json")
    assert checked.code == 1
    of_file, of_table = [each for each in json.loads(checked.out) if each["check"] == "fit"]
    assert '"two"' in of_file["text"]
    assert (of_file["severity"], of_table["severity"]) == ("warning", "error")
    assert of_table["text"].startswith("rollups wait: 2 of 4 records (50 %) in region=eu/")
    assert gazctl("lake", "check", "sales.purchases").code == 0


def test_registration_twice_adds_no_row(own, flushed, client, platform, metastore, trino):
    journal = own.journal("region=eu", path_postfix_template="hour=05")
    client.append(journal, json_lines(*({"id": n} for n in range(10))))
    table = own.spec("once", "[{name: id, type: bigint}]")
    assert "10 row(s) more" in flushed(table)
    assert "all is registered already, 10 rows" in flushed(table)
    # A registrar that knows nothing, as one whose cursor was lost or that was killed before it noted one.
    spec = parse_table_spec((own.tables / "once.yaml").read_text())
    source, roots = BrokerSource(client), StoreRoots(platform.settings.store_roots)
    for _ in range(2):
        report = Registrar(source, metastore, roots).tick(spec, {})
        assert (report.updates, report.errors) == ([], [])
    client.append(journal, json_lines({"id": 10}))
    client.flush(f"name={journal}")
    report = Registrar(source, metastore, roots).tick(spec, {})
    assert [(update.rows_added, update.state.rows) for update in report.updates] == [(1, 11)]
    assert trino(f"SELECT count(*), count(DISTINCT id) FROM hive.{table}") == [(11, 11)]


def test_flush_makes_appends_visible_at_once(own, flushed, client, trino, spark):
    journal = own.journal("region=eu")
    table = own.spec("soon", "[{name: id, type: bigint}]")
    for n in (1, 2):
        client.append(journal, json_lines({"id": n}))
        assert f"{table}: 1 row(s) more" in flushed(table)
        assert trino(f"SELECT count(*), max(id) FROM hive.{table}") == [(n, n)]
        assert spark(f"SELECT count(*), max(id) FROM {table}") == [(n, n)]


def test_one_query_sees_history_and_live_tail(own, flushed, client, gazctl, trino):
    journal = own.journal("region=eu")
    table = own.spec("live", "[{name: id, type: bigint}]")
    client.append(journal, json_lines({"id": 1}, {"id": 2}))
    flushed(table)
    client.append(journal, json_lines({"id": 3}))
    query = 'SELECT id, _fragment IS NULL AS live FROM "live$offsets" ORDER BY id'
    seen = gazctl("sql", query, "-o", "csv", "--tables", own.tables)
    assert seen.out.split()[1:] == ["1,false", "2,false", "3,true"], seen.err
    # Trino sees files only.
    assert trino(f"SELECT count(*) FROM hive.{table}") == [(2,)]


def test_codec_that_engines_cannot_read_is_refused(own, gazctl, tmp_path):
    own.journal(codec=CompressionCodec.SNAPPY)
    text = f"name: {own.schema}.t\nselector: 'name:prefix={own.name}/'\nformat: json\n"
    (tmp_path / "t.yaml").write_text(text + "columns: [{name: id, type: bigint}]\n")
    done = gazctl("lake", "apply", "t.yaml", "--tables", own.tables)
    assert done.code == 1
    assert "SNAPPY" in done.err
    assert "GZIP" in done.err
    assert "Traceback" not in done.err


def test_overlapping_file_is_left_out_of_exact_view(own, flushed, client, gazctl, trino, spark):
    journal = own.journal("region=eu")
    content = json_lines({"id": 1}, {"id": 2})
    client.append(journal, content)
    table = own.spec("twice", "[{name: id, type: bigint}]")
    flushed(table)
    # A file as a broker leaves it that was cut off: the other one holds its bytes, too.
    (stored,) = own.files(journal)
    part = json_lines({"id": 1})
    digest = hashlib.sha1(part, usedforsecurity=False).hexdigest()
    covered = stored.with_name(f"{0:016x}-{len(part):016x}-{digest}.gz")
    covered.write_bytes(gzip.compress(part))
    assert trino(f"SELECT count(*) FROM hive.{table}") == [(3,)]
    checked = gazctl("lake", "check", table, "--quick", "-o", "json", "--tables", own.tables)
    assert "overlap" in {each["check"] for each in json.loads(checked.out)}
    repaired = gazctl("lake", "repair", table, "--tables", own.tables)
    assert "1 file(s) moved aside" in repaired.out, repaired.err
    assert not covered.exists()
    for query in (trino, spark):
        prefix = "hive." if query is trino else ""
        assert count(query, f"SELECT count(*) FROM {prefix}{table}") == 2


def test_engines_see_uncommitted_records_readers_do_not(own, flushed, client, trino, spark):
    journal = own.journal("region=eu")
    producer, clock = bytes.fromhex("070203040506"), clock_of(1_760_000_000_000_000_000)
    flags = [Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN]  # the second one is never committed
    records = [
        {"UUID": str(build_uuid(producer, clock + n * 16, flag)), "id": n}
        for n, flag in enumerate(flags)
    ]
    client.append(journal, json_lines(*records))
    table = own.spec("all", "[{name: UUID, type: string}, {name: id, type: bigint}]")
    flushed(table)
    assert trino(f"SELECT count(*), max(id) FROM hive.{table}") == [(2, 1)]
    assert spark(f"SELECT count(*), max(id) FROM {table}") == [(2, 1)]

    async def committed():
        async with await read_committed(client.asynchronous, journal) as reader:
            return [each.message["id"] async for batch in reader for each in batch]

    assert client.run(committed()) == [0]


def test_pruned_fragments_leave_the_table(own, flushed, client, gazctl, platform, trino):
    journal = own.journal("region=eu")
    table = own.spec("pruned", "[{name: id, type: bigint}]")
    spans = []
    for n in (1, 2):
        spans.append(client.append(journal, json_lines({"id": n})))
        flushed(table)
    pruned = gazctl(
        *("journals", "prune", "-l", f"name={journal}", "--before-offset", spans[0].end),
        *("--file-root", platform.layout.fragments),
    )
    assert pruned.code == 0, pruned.err
    assert trino(f"SELECT count(*), max(id) FROM hive.{table}") == [(1, 2)]
    repair = ("lake", "repair", "--pruned", table, "--tables", own.tables)
    wait_until(lambda: "of 1 Hive partition(s) would be" in gazctl(*repair, "--dry-run").out)
    assert "is forgotten" in gazctl(*repair).out
    described = gazctl("lake", "describe", table, "-o", "json", "--tables", own.tables)
    (found,) = json.loads(described.out)
    assert [each["rows"] for each in found["hive_partitions"]] == [1]
