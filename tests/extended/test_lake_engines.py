"""Raw tables in the real engines: both see the same rows, and prune.

Long because all tests share one Spark, which takes its time to begin.
"""

import json
import re
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from lake_bench import FragmentFiles
from value_cases import (
    HIDING,
    LINES,
    RECORDS,
    VALUES,
    Difference,
    line_table,
    shown,
    spec_of,
    value_table,
)

from gazette_platform.errors import LakeError
from gazette_platform.lake import (
    Auditor,
    Registrar,
    StoreRoots,
    ensure_exact_view,
    excluded_files,
    parse_table_spec,
)
from gazette_platform.lake.tables import DIGEST
from gazette_platform.protocol import CompressionCodec

# The first test pays for the start of three servers.
pytestmark = [
    pytest.mark.hive,
    pytest.mark.trino,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

EVENTS = """
name: engines.events
selector: name:prefix=events/
format: json
columns:
  - {name: id, type: bigint}
  - {name: userName, type: string}
  - {name: amount, type: "decimal(10,2)"}
  - {name: day, type: date}
  - {name: tags, type: array<string>}
  - {name: place, type: "struct<lat:double,cityName:string>"}
  - {name: ok, type: boolean}
partitions:
  - {name: hour, as: append_hour, type: int}
  - {name: date, type: date}
"""


def event(n):
    record = {
        "id": n,
        "userName": f"u{n}",
        "amount": 1.25,
        "day": "2026-01-02",
        "tags": ["a", "b"],
        "place": {"lat": 0.5, "cityName": "Köln"},
        "ok": True,
        "extra": n * 2,
    }
    return json.dumps(record).encode() + b"\n"


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def registrar(files, metastore):
    return Registrar(files, metastore, StoreRoots(files.roots))


@pytest.fixture(autouse=True)
def no_tables_left(metastore):
    yield
    with metastore.connect() as session:
        for database in ("engines", "flights"):
            for table in session.tables(database):
                session.drop_table(database, table)


def in_spark(spark, sql):
    return [tuple(row) for row in spark.sql(sql).collect()]


def test_both_engines_read_the_same_rows(registrar, files, trino, spark):
    for part in ("0", "a%3Db+c"):
        for hour in ("05", "06"):
            content = b"".join(event(n) for n in range(10))
            files.append(f"events/part={part}", content, postfix=f"date=2026-01-02/hour={hour}")
    spec = parse_table_spec(EVENTS)
    report = registrar.tick(spec, {})
    assert report.errors == []
    assert sum(u.rows_added for u in report.updates) == 40
    expected = [
        (
            hour,
            date(2026, 1, 2),
            part,
            10,
            45,
            "u9",
            Decimal("12.50"),
            date(2026, 1, 2),
            "Köln",
            "a",
        )
        for hour in (5, 6)
        for part in ("0", "a%3Db+c")
    ]
    in_trino = trino.query(
        "SELECT append_hour, date, part, count(*), sum(id), max(username), sum(amount), max(day),"
        " max(place.cityname), max(tags[1]) FROM hive.engines.events GROUP BY 1, 2, 3 ORDER BY 1, 3"
    )
    assert in_trino == expected
    assert (
        in_spark(
            spark,
            "SELECT append_hour, date, part, count(*), sum(id), max(userName), sum(amount), "
            "max(day), max(place.cityName), max(tags[0]) FROM engines.events "
            "GROUP BY 1, 2, 3 ORDER BY 1, 3",
        )
        == expected
    )

    # A new fragment of a known Hive partition is seen without any registration.
    files.append("events/part=0", event(99), postfix="date=2026-01-02/hour=06")
    assert trino.query("SELECT count(*) FROM hive.engines.events") == [(41,)]
    assert in_spark(spark, "SELECT count(*) FROM engines.events") == [(41,)]
    again = registrar.tick(spec, report.cursors)
    assert [(u.is_new, u.state.rows) for u in again.updates] == [(False, 11)]

    # And twice the same tick changes nothing.
    assert registrar.tick(spec, {}).updates == []
    assert trino.query("SELECT count(*) FROM hive.engines.events") == [(41,)]


CODECS = """
name: engines.codecs
selector: name:prefix=codecs/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""


def test_a_journal_whose_codec_changes_is_right_in_the_view_of_both_engines(
    registrar, files, metastore, trino, spark
):
    """From GZIP to none, which both read beside each other, to SNAPPY, which both take for text, and back."""
    spec = parse_table_spec(CODECS)
    journals = ["codecs/part=0", "codecs/part=1"]
    count, cursors = 0, {}
    for codec in (
        CompressionCodec.GZIP,
        CompressionCodec.NONE,
        CompressionCodec.SNAPPY,
        CompressionCodec.GZIP,
    ):
        # The other journal stays as it was.
        for journal, its in zip(journals, (codec, CompressionCodec.GZIP), strict=True):
            files.create(journal, codec=its)
            content = b"".join(b'{"id":%d}\n' % n for n in range(count, count + 10))
            files.append(journal, content, postfix="hour=05", codec=its)
            count += 10
        report = registrar.tick(spec, cursors)
        cursors = report.cursors
    auditor = Auditor(files, StoreRoots(files.roots))
    with metastore.connect() as session:
        findings = [
            finding
            for journal in journals
            for finding in auditor.audit(session, spec, report.definition, journal).findings
        ]
        excluded = excluded_files(findings)
        assert [len(names) for names in excluded.values()] == [1]
        ensure_exact_view(session, spec, report.definition, excluded)
    held = [n for n in range(count) if not 40 <= n < 50]
    expected = [(len(held), len(held), sum(held))]
    query = "SELECT count(*), count(id), sum(id) FROM"
    assert trino.query(f"{query} hive.engines.codecs_exact") == expected
    assert in_spark(spark, f"{query} engines.codecs_exact") == expected
    # What the check is for: rows of NULLs, and no error.
    assert trino.query(f"{query} hive.engines.codecs") != expected


ODD_KEYS = """
name: engines.odd
selector: name:prefix=odd/
format: json
columns:
  - {name: orderId, from: order id, type: bigint}
  - {name: unit_price, from: unit.price, type: double}
  - {name: ship_to, from: ship-to, type: "struct<city:string>"}
  - {name: tick, from: "a`b", type: string}
  - {name: plain, type: string}
"""
ODD_LINES = (
    b'{"order id": 1, "unit.price": 2.5, "ship-to": {"city": "Oslo"}, "a`b": "x", "plain": "p"}\n'
    b'{"order id": 2, "2nd": 7}\n'
)


def test_keys_that_are_no_names_are_read_by_both_engines(registrar, files, metastore, trino, spark):
    """`from` of a spec: by its name in Trino and in the view; by the key in Spark's table."""
    files.append("odd/part=0", ODD_LINES, postfix="date=2026-01-02")
    spec = parse_table_spec(ODD_KEYS)
    report = registrar.tick(spec, {})
    assert (report.errors, report.misfits) == ([], [])
    with metastore.connect() as session:
        assert ensure_exact_view(session, spec, report.definition, {})
    expected = [(1, 2.5, "Oslo", "x", "p"), (2, None, None, None, None)]
    names = "orderid, unit_price, ship_to.city, tick, plain"
    for table in ("odd", "odd_exact"):
        found = trino.query(f"SELECT {names} FROM hive.engines.{table} ORDER BY 1")
        assert found == expected, table
    in_view = in_spark(spark, f"SELECT {names} FROM engines.odd_exact ORDER BY 1")
    assert in_view == expected
    keys = "`order id`, `unit.price`, `ship-to`.city, `a``b`, plain"
    assert in_spark(spark, f"SELECT {keys} FROM engines.odd ORDER BY 1") == expected
    assert spark.table("engines.odd_exact").columns[:2] == ["orderId", "unit_price"]

    # A column that comes later is read of Hive partitions that were there before, too.
    wider = parse_table_spec(ODD_KEYS + "  - {name: second, from: 2nd, type: bigint}\n")
    report = registrar.tick(wider, {})
    with metastore.connect() as session:
        assert ensure_exact_view(session, wider, report.definition, {})
    rows = [(1, None), (2, 7)]
    assert trino.query("SELECT orderid, second FROM hive.engines.odd ORDER BY 1") == rows
    spark.catalog.refreshTable("engines.odd")
    assert in_spark(spark, "SELECT orderId, second FROM engines.odd_exact ORDER BY 1") == rows


def test_engines_read_only_the_partitions_asked_for(registrar, files, trino, spark):
    good = files.append("events/part=0", event(1), postfix="date=2026-01-02/hour=05")
    bad = files.append("events/part=0", event(2) * 50, postfix="date=2026-01-02/hour=06")
    (files.root / bad.content_path).write_bytes(b"\x1f\x8b\x08\x00 not gzip at all")
    report = registrar.tick(parse_table_spec(EVENTS), {})
    assert len(report.updates) == 2
    assert "is damaged" in report.misfits[0].text
    where = "WHERE append_hour = 5 AND date = DATE '2026-01-02'"
    (row,) = trino.query(f'SELECT count(*), max("$path") FROM hive.engines.events {where}')
    assert row[0] == 1
    assert row[1].endswith(good.content_path)
    (row,) = in_spark(
        spark, f"SELECT count(*), max(_metadata.file_path) FROM engines.events {where}"
    )
    assert row[0] == 1
    assert row[1].endswith(good.content_path)


def test_bad_lines_are_rows_of_nulls_in_both(registrar, files, trino, spark):
    files.append("events/part=0", event(1) + b"not json\n", postfix="date=2026-01-02/hour=05")
    (update,) = registrar.tick(parse_table_spec(EVENTS), {}).updates
    assert update.rows_added == 2
    query = "SELECT count(*), count(id), count(place) FROM {}engines.events"
    assert trino.query(query.format("hive.")) == [(2, 1, 1)]
    assert in_spark(spark, query.format("")) == [(2, 1, 1)]


def test_new_column_shows_in_old_partitions_of_both(registrar, files, trino, spark):
    files.append("events/part=0", event(21), postfix="date=2026-01-02/hour=05")
    report = registrar.tick(parse_table_spec(EVENTS), {})
    wider = EVENTS.replace("  - {name: id,", "  - {name: extra, type: int}\n  - {name: id,")
    registrar.tick(parse_table_spec(wider), report.cursors)
    query = "SELECT extra, id FROM {}engines.events"
    assert trino.query(query.format("hive.")) == [(42, 21)]
    assert in_spark(spark, query.format("")) == [(42, 21)]


def test_unpartitioned_csv_table(registrar, files, trino, spark):
    spec = parse_table_spec(
        "{name: engines.plain, selector: name=plain/log, format: csv, "
        "columns: [{name: a, type: string}, {name: b, type: string}]}"
    )
    files.append("plain/log", b'1,"x, y"\n2,"say ""hi"""\n')
    report = registrar.tick(spec, {})
    files.append("plain/log", b"3,z\n")
    report = registrar.tick(spec, report.cursors)
    assert report.updates[0].state.rows == 3
    query = "SELECT a, b FROM {}engines.plain ORDER BY a"
    expected = [("1", "x, y"), ("2", 'say "hi"'), ("3", "z")]
    assert trino.query(query.format("hive.")) == expected
    assert in_spark(spark, query.format("")) == expected


def test_unpartitioned_json_table_sees_new_fragments(registrar, files, trino, spark):
    spec = parse_table_spec(
        "{name: engines.flat, selector: name=flat/log, format: json, "
        "columns: [{name: id, type: bigint}]}"
    )
    files.append("flat/log", event(1))
    report = registrar.tick(spec, {})
    query = "SELECT count(*), sum(id) FROM {}engines.flat"
    assert trino.query(query.format("hive.")) == [(1, 1)]
    assert in_spark(spark, query.format("")) == [(1, 1)]
    files.append("flat/log", event(2))
    registrar.tick(spec, report.cursors)
    assert trino.query(query.format("hive.")) == [(2, 3)]
    assert in_spark(spark, query.format("")) == [(2, 3)]


# --------------------------------------------------------------------------- overlaps


EXACT = """
name: engines.exact
selector: name:prefix=exact/
format: {format}
columns: {columns}
partitions: [{{name: hour, as: append_hour, type: int}}]
"""


@pytest.mark.parametrize(
    ("format_", "columns", "line"),
    [
        (
            "json",
            "[{name: userName, type: string}, {name: place, type: 'struct<cityName:string>'}]",
            '{{"userName":"u{0}","place":{{"cityName":"c{0}"}}}}\n',
        ),
        ("csv", "[{name: userName, type: string}, {name: place, type: string}]", "u{0},c{0}\n"),
    ],
)
def test_exact_view_leaves_out_planted_overlaps(
    files, registrar, metastore, trino, spark, format_, columns, line
):
    def rows(begin, end):
        return "".join(line.format(n) for n in range(begin, end)).encode()

    size = len(rows(0, 1))
    journals = ["exact/part=a%3Db+c", "exact/part=1"]
    for journal in journals:
        files.append(journal, rows(0, 4), postfix="hour=05")
        # Covered by the first, in its directory; brokers have forgotten it.
        files.forget(files.append(journal, rows(1, 3), postfix="hour=05", begin=size))
        files.append(journal, rows(4, 6), postfix="hour=06")
    # Two brokers' chains, cut differently: 0-4, 4-6 and 2-5 overlap in part.
    files.append(journals[0], rows(2, 5), postfix="hour=06", begin=2 * size)
    spec = parse_table_spec(EXACT.format(format=format_, columns=columns))
    report = registrar.tick(spec, {})
    auditor = Auditor(files, StoreRoots(files.roots))
    with metastore.connect() as session:
        table = session.table("engines", "exact")
        for is_new in (True, False):
            found = [f for j in journals for f in auditor.audit(session, spec, table, j).findings]
            assert {f.kind for f in found} == {"overlap"}
            assert ensure_exact_view(session, spec, table, excluded_files(found)) is is_new
    raw = "SELECT count(*), count(DISTINCT concat(part, username)) FROM {}engines.exact"
    assert trino.query(raw.format("hive.")) == [(19, 12)]
    assert in_spark(spark, raw.format("")) == [(19, 12)]
    assert len(report.updates) == 4

    place = "place.cityname" if format_ == "json" else "place"
    query = (
        f"SELECT part, append_hour, count(*), min(username), max({place}) "
        "FROM {}engines.exact_exact GROUP BY 1, 2 ORDER BY 1, 2"
    )
    expected = [
        ("1", 5, 4, "u0", "c3"),
        ("1", 6, 2, "u4", "c5"),
        ("a%3Db+c", 5, 4, "u0", "c3"),
        ("a%3Db+c", 6, 2, "u4", "c5"),
    ]
    assert trino.query(query.format("hive.")) == expected
    assert in_spark(spark, query.format("")) == expected
    # Spark keeps the case of keys in the view, too.
    if format_ == "json":
        assert spark.table("engines.exact_exact").columns[0] == "userName"

    # Without overlaps, the view is the table.
    with metastore.connect() as session:
        assert ensure_exact_view(session, spec, table, {})
    count = "SELECT count(*) FROM {}engines.exact_exact"
    assert trino.query(count.format("hive.")) == [(19,)]
    spark.catalog.refreshTable("engines.exact_exact")
    assert in_spark(spark, count.format("")) == [(19,)]


def test_values_of_another_type_are_no_values_of_the_table(registrar, files, trino, spark):
    spec = parse_table_spec(
        "{name: engines.typed, selector: name=typed/log, format: json, "
        "columns: [{name: id, type: bigint}, {name: gone, type: string}]}"
    )
    files.append("typed/log", event(1))
    report = registrar.tick(spec, {})
    assert report.misfits == []
    assert report.columns == {"id"}
    bad = files.append("typed/log", b'{"id":"many"}\n' * 2)
    report = registrar.tick(spec, report.cursors)
    assert f"column id is bigint, but fragment {bad.content_path}" in report.misfits[0].text
    query = "SELECT count(*), count(id), count(gone) FROM {}engines.typed"
    assert trino.query(query.format("hive.")) == [(3, 1, 0)]
    assert in_spark(spark, query.format("")) == [(3, 1, 0)]


# --------------------------------------------------------------------------- values


PARTITIONS = ", partitions: [{name: hour, type: int}]"
JSON_LINES = "{name: n, type: bigint}, {name: Text, type: string}"
CSV_LINES = "{name: a, type: string}, {name: b, type: string}"


@pytest.fixture
def read_values(registrar, files, trino, spark):
    """Registers cases as a row each of one fragment, and reads them in both engines."""

    def read(cases, name, *, is_partitioned=True):
        spec = spec_of(cases, name, partitions=PARTITIONS if is_partitioned else "")
        content = "".join(f'{{"n":"{i}","{c.column}":{c.raw}}}\n' for i, c in enumerate(cases))
        journal, postfix = (f"{name}/part=1", "hour=05") if is_partitioned else (f"{name}/log", "")
        files.append(journal, content.encode(), postfix=postfix)
        assert registrar.tick(spec, {}).errors == []
        columns = list(dict.fromkeys(c.column for c in cases))
        query = f"SELECT n, {', '.join(columns)} FROM {{}}engines.{name}"
        by_engine = []
        for rows in (trino.query(query.format("hive.")), in_spark(spark, query.format(""))):
            by_row = {int(n): dict(zip(columns, values, strict=True)) for n, *values in rows}
            by_engine.append([shown(by_row[i][c.column], c.type) for i, c in enumerate(cases)])
        return [
            Difference(case, in_trino, spark_, case.is_fit)
            for case, in_trino, spark_ in zip(cases, *by_engine, strict=True)
        ]

    return read


@pytest.fixture
def read_lines(registrar, files, trino, spark):
    """Registers cases as a fragment each, and reads them in both engines."""

    def read(cases, name, format_, columns):
        spec = parse_table_spec(
            f"{{name: engines.{name}, selector: 'name:prefix={name}/', format: {format_}, "
            f"columns: [{columns}]{PARTITIONS}}}"
        )
        for index, case in enumerate(cases):
            files.append(f"{name}/part=1", case.line + b"\n", postfix=f"hour={index:02}")
        assert registrar.tick(spec, {}).errors == []
        names = ", ".join(c.name for c in spec.columns)
        query = f"SELECT hour, {names} FROM {{}}engines.{name}"
        in_trino, spark_ = trino.query(query.format("hive.")), in_spark(spark, query.format(""))
        return [
            Difference(
                case,
                *(
                    ", ".join(shown(tuple(row[1:])) for row in rows if row[0] == index) or "none"
                    for rows in (in_trino, spark_)
                ),
                case.is_fit(spec),
            )
            for index, case in enumerate(cases)
        ]

    return read


def test_engines_agree_on_all_that_fits_and_the_page_tells_the_rest(
    request, read_values, read_lines
):
    values = read_values(VALUES, "semantic")
    lines = read_lines(LINES, "lined", "json", JSON_LINES)
    records = read_lines(RECORDS, "recorded", "csv", CSV_LINES)
    for found in (*values, *lines, *records):
        assert found.trino == found.spark or not found.is_fit, found
    page = request.config.rootpath / "docs/reference/table-spec.md"
    text = page.read_text("utf-8")
    for mark, table in (
        ("values", value_table(values)),
        ("lines", line_table(lines)),
        ("records", line_table(records)),
    ):
        begin, end = f"<!-- {mark}: as read by the engines -->\n", "\n<!-- end -->"
        former = re.findall(f"{begin}.*?{end}", text, re.DOTALL)
        assert len(former) == 1
        text = text.replace(former[0], f"{begin}{table}{end}")
    if request.config.getoption("--rewrite"):
        page.write_text(text, "utf-8")
    assert text == page.read_text("utf-8"), "if the engines are right, run pytest with --rewrite"


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_values_at_which_trino_fails_leave_all_columns_readable(read_values, is_partitioned):
    # Without Hive partitions, there are more such types.
    others = [case for case in VALUES if case.is_fit or case.raw[0] in "[{"]
    cases = HIDING if is_partitioned else [*HIDING, *others]
    found = read_values(cases, "hiding", is_partitioned=is_partitioned)
    assert all(one.spark != "NULL" for one in found if one.is_fit)
    hidden = {one.case.column for one in found if one.is_fit and one.trino != one.spark}
    assert len(hidden) == (6 if is_partitioned else 11)
    for one in found:
        if one.case.column in hidden:
            assert one.trino == "NULL"


def test_a_table_of_an_older_release_answers_after_a_tick(
    registrar, files, metastore, trino, spark
):
    spec = parse_table_spec(
        "{name: engines.older, selector: 'name:prefix=older/', format: json, columns: "
        "[{name: userAge, type: int}, {name: day, type: date}], partitions: [{name: hour, type: int}]}"
    )
    good = b'{"userAge":7,"day":"2026-01-02"}\n'
    files.append("older/part=1", good, postfix="hour=05")
    files.append("older/part=1", good + b'{"day":[]}\n', postfix="hour=06")
    report = registrar.tick(spec, {})
    with metastore.connect() as session:
        table = session.table("engines", "older")
        # As it was made: all as the table has it, without a word on keys.
        plain = replace(table.storage, serde_parameters={"ignore.malformed.json": "true"})
        old = replace(table, storage=plain, parameters={**table.parameters, DIGEST: "0123456789"})
        session.alter_table(old, is_cascading=False)
        raw = [p.to_thrift(old) for p in session.partitions(old)]
        for partition in raw:
            partition.sd.cols = old.to_thrift().sd.cols
        session._client.alter_partitions("engines", "older", raw)
    files.append("older/part=1", b'{"USERAGE":1,"userAge":{}}\n', postfix="hour=05")
    query = (
        "SELECT hour, count(*), sum(userage), max(day) FROM {}engines.older GROUP BY 1 ORDER BY 1"
    )
    with pytest.raises(LakeError, match="HIVE_CURSOR_ERROR"):
        trino.query(query.format("hive."))
    assert registrar.tick(spec, report.cursors).is_changed
    day = date(2026, 1, 2)
    assert in_spark(spark, query.format("")) == [(5, 2, 7, day), (6, 2, 7, day)]
    assert trino.query(query.format("hive.")) == [(5, 2, 7, day), (6, 2, 7, None)]
    assert not registrar.tick(spec, report.cursors).is_changed
