"""Raw tables in the real engines: both see the same rows, and prune.

Long because all tests share one Spark, which takes its time to begin.
"""

import re
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from lake_bench import FragmentFiles
from value_cases import (
    LINES,
    RECORDS,
    SHAPES,
    VALUES,
    WHOLE_SHAPES,
    Difference,
    Shape,
    are_alike,
    line_table,
    shape_table,
    shown,
    spec_of,
    value_table,
)

from gazette_platform.lake import (
    Auditor,
    Registrar,
    StoreRoots,
    ensure_views,
    excluded_files,
    parse_table_spec,
)
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
            for finding in auditor.audit(session, report.definition, journal).findings
        ]
        excluded = excluded_files(findings)
        assert [len(names) for names in excluded.values()] == [1]
        ensure_views(session, spec, report.definition, excluded)
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


def test_keys_that_are_not_names_are_read_by_both_engines(
    registrar, files, metastore, trino, spark
):
    """`from` of a spec: by its name in Trino and in the view; by the key in Spark's table."""
    files.append("odd/part=0", ODD_LINES, postfix="date=2026-01-02")
    spec = parse_table_spec(ODD_KEYS)
    report = registrar.tick(spec, {})
    assert (report.errors, report.misfits) == ([], [])
    with metastore.connect() as session:
        assert ensure_views(session, spec, report.definition, {})
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

    # A column that comes later is read of Hive partitions that existed before, too.
    wider = parse_table_spec(ODD_KEYS + "  - {name: second, from: 2nd, type: bigint}\n")
    report = registrar.tick(wider, {})
    with metastore.connect() as session:
        assert ensure_views(session, wider, report.definition, {})
    rows = [(1, None), (2, 7)]
    assert trino.query("SELECT orderid, second FROM hive.engines.odd ORDER BY 1") == rows
    spark.catalog.refreshTable("engines.odd")
    assert in_spark(spark, "SELECT orderId, second FROM engines.odd_exact ORDER BY 1") == rows


# --------------------------------------------------------------------------- overlaps


# --------------------------------------------------------------------------- values


PARTITIONS = ", partitions: [{name: hour, type: int}]"
JSON_LINES = "{name: n, type: bigint}, {name: Text, type: string}"
CSV_LINES = "{name: a, type: string}, {name: b, type: string}"


def lines_of(cases):
    return "".join(f'{{"n":"{i}","{c.column}":{c.raw}}}\n' for i, c in enumerate(cases)).encode()


@pytest.fixture
def read_values(registrar, files, trino, spark):
    """Registers cases as a row each of one fragment, and reads them in both engines."""

    def read(cases, name):
        spec = spec_of(cases, name, partitions=PARTITIONS)
        files.append(f"{name}/part=1", lines_of(cases), postfix="hour=05")
        assert registrar.tick(spec, {}).errors == []
        columns = list(dict.fromkeys(c.column for c in cases))
        dates = {c.column for c in cases if c.type == "date"}  # Python has no year 0
        listed = ", ".join(f"CAST({c} AS {{1}})" if c in dates else c for c in columns)
        query = f"SELECT n, {listed} FROM {{0}}engines.{name}"
        by_engine = []
        for rows in (
            trino.query(query.format("hive.", "varchar")),
            in_spark(spark, query.format("", "string")),
        ):
            by_row = {int(n): dict(zip(columns, values, strict=True)) for n, *values in rows}
            by_engine.append([shown(by_row[i][c.column], c.type) for i, c in enumerate(cases)])
        return [
            Difference(case, in_trino, spark_, case.is_fit)
            for case, in_trino, spark_ in zip(cases, *by_engine, strict=True)
        ]

    return read


@pytest.fixture
def lined(registrar, files):
    """Registers cases as a fragment each, with the number of each as its hour. Returns: the spec."""

    def make(cases, name, format_, columns):
        spec = parse_table_spec(
            f"{{name: engines.{name}, selector: 'name:prefix={name}/', format: {format_}, "
            f"columns: [{columns}]{PARTITIONS}}}"
        )
        for index, case in enumerate(cases):
            files.append(f"{name}/part=1", case.line + b"\n", postfix=f"hour={index:02}")
        assert registrar.tick(spec, {}).errors == []
        return spec

    return make


@pytest.fixture
def read_lines(lined, trino, spark):
    """Registers cases as a fragment each, and reads them in both engines."""

    def read(cases, name, format_, columns):
        spec = lined(cases, name, format_, columns)
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


def test_engines_agree_on_all_values_that_fit(request, read_values, read_lines):
    values = read_values(VALUES, "semantic")
    lines = read_lines(LINES, "lined", "json", JSON_LINES)
    records = read_lines(RECORDS, "recorded", "csv", CSV_LINES)
    for found in (*values, *lines, *records):
        assert found.are_alike or not found.is_fit, found
    rewritten(request, "values", value_table(values))
    rewritten(request, "lines", line_table(lines))
    rewritten(request, "records", line_table(records))


def rewritten(request, mark, table):
    """Compare a table of the page with what the engines answered, or put it there (`--rewrite`)."""
    page = request.config.rootpath / "docs/reference/table-spec.md"
    text = page.read_text("utf-8")
    begin, end = f"<!-- {mark}: as read by the engines -->\n", "\n<!-- end -->"
    former = re.findall(f"{begin}.*?{end}", text, re.DOTALL)
    assert len(former) == 1
    text = text.replace(former[0], f"{begin}{table}{end}")
    if request.config.getoption("--rewrite"):
        page.write_text(text, "utf-8")
    assert text == page.read_text("utf-8"), "if the engines are right, run pytest with --rewrite"


@pytest.fixture
def read_shapes(registrar, files, metastore, trino, spark):
    """Registers good values, then those of other shapes beside them, and reads the table and its view."""

    def read(cases, name, *, is_partitioned=True):
        spec = spec_of(cases, name, partitions=PARTITIONS if is_partitioned else "")
        journal, postfix = (f"{name}/part=1", "hour=05") if is_partitioned else (f"{name}/log", "")
        good = [case if case.is_fit else replace(case, raw="null") for case in cases]
        files.append(journal, lines_of(good), postfix=postfix and "hour=04")
        report = registrar.tick(spec, {})
        content = lines_of(cases).replace(b'"n":"', b'"n":"bad ')
        files.append(journal, content, postfix=postfix)
        for _ in range(2):
            report = registrar.tick(spec, report.cursors)
        assert (report.errors, report.has_more) == ([], False)
        with metastore.connect() as session:
            ensure_views(session, spec, report.definition, {})
        columns = list(dict.fromkeys(c.column for c in cases))
        query = f"SELECT n, {', '.join(columns)} FROM {{}}engines.{name}"
        by_engine = []
        for rows in (
            trino.query(query.format("hive.")),
            trino.query(query.format("hive.") + "_exact"),
            in_spark(spark, query.format("") + "_exact"),
        ):
            by_row = {n: dict(zip(columns, values, strict=True)) for n, *values in rows}
            assert len(by_row) == 2 * len(cases)
            by_engine.append(
                [
                    [by_row[f"{mark}{i}"][c.column] for i, c in enumerate(cases)]
                    for mark in ("", "bad ")
                ]
            )
        for index, case in enumerate(cases):
            if case.is_fit:  # what stood in another Hive partition is shown as before
                _, in_view, in_spark_ = (before[index] for before, _ in by_engine)
                assert are_alike(in_view, in_spark_), case
        return [
            Shape(case, *values)
            for case, *values in zip(cases, *(after for _, after in by_engine), strict=True)
        ]

    return read


def test_value_of_another_shape_hides_no_good_value(request, read_shapes):
    found = read_shapes(SHAPES, "shaped")
    for one in (*found, *read_shapes(WHOLE_SHAPES, "whole", is_partitioned=False)):
        if one.case.is_fit:
            assert are_alike(one.view, one.spark), one
            assert one.view is not None or one.case.raw == "null", one
        # The table has the text, whatever the value.
        assert one.trino is not None or one.case.raw == "null", one
    rewritten(request, "shapes", shape_table(found))


def test_answers_do_not_depend_on_the_columns_asked(lined, trino, spark):
    """Engines that stop at what they need would not see what is wrong with the rest of a line."""
    lined(LINES, "asked", "json", JSON_LINES)
    for ask, table in (
        (trino.query, "hive.engines.asked"),
        (partial(in_spark, spark), "engines.asked"),
    ):
        rows = ask(f"SELECT hour, n, Text FROM {table}")
        for names in ("n", "Text"):
            place = 1 + ("n", "Text").index(names)
            alone = ask(f"SELECT hour, {names} FROM {table}")
            assert Counter(alone) == Counter((row[0], row[place]) for row in rows), (table, names)
            for condition, has in (
                ("IS NULL", lambda value: value is None),
                ("IS NOT NULL", lambda value: value is not None),
            ):
                query = (
                    f"SELECT hour, count(*) FROM {table} WHERE {names} {condition} GROUP BY hour"
                )
                expected = Counter(row[0] for row in rows if has(row[place]))
                assert dict(ask(query)) == expected, query
        whole = ask(f"SELECT hour, count(*) FROM {table} GROUP BY hour")
        assert dict(whole) == Counter(row[0] for row in rows), table
