"""Header rows of CSV are not rows, wherever they stand: for the parser, counts, and the views of engines."""

import base64
import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
import sqlglot
from hypothesis import given, strategies as st
from lake_bench import MemoryMetastore

from gazette_platform.errors import ValidationError
from gazette_platform.hive import CSV_STORAGE, HiveColumn, HiveTable
from gazette_platform.lake import ensure_views, parse_table_spec
from gazette_platform.lake.engines.ddl import MountedTable, create_statement
from gazette_platform.lake.raw.applying_specs import SpecFile, problems_among
from gazette_platform.lake.raw.audits.fit import value_scanner
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.tables import evolved_table, table_definition
from gazette_platform.lake.raw.views import VIEW_OF, exact_view, plain_view
from gazette_platform.lake.rollups.running import read_sources
from gazette_platform.lake.rollups.spec import parse_rollup
from gazette_platform.lake.spec.folder import names_made
from gazette_platform.lake.spec.formats import header_pattern, header_places
from gazette_platform.lake.spec.layout import Layout

SPEC = """
name: shop.prices
selector: name=j
format: csv
delimiter: ";"
header: true
columns:
  - {name: id, type: string}
  - {name: unit, from: "Größe \\"'\\\\", type: string}
  - {name: note, type: string}
"""
KEY = "Größe \"'\\"


def spec_of(text=SPEC):
    return parse_table_spec(text)


CONTENT = (
    '\ufeffid;"Größe ""\'\\";note\r\n'  # as a spreadsheet writes it
    "1;2,50;id\n"
    'id;"Größe ""\'\\";note\n'
    'id;"Größe ""\'\\"\n'  # of a time with fewer columns
    'id;"Größe ""\'\\";other\n'
    "2;;\n"
    "\n"
).encode()
ROWS = [
    ("\ufeffid", KEY, "note"),
    ("1", "2,50", "id"),
    ("id", KEY, "note"),
    ("id", KEY, None),
    ("id", KEY, "other"),
    ("2", "", ""),
    (None, None, None),
]
KEPT = [ROWS[at] for at in (1, 4, 5, 6)]
QUOTED = ('\ufeff"id"', KEY, "note")


def test_header_lines_are_found_anywhere():
    pattern = header_pattern(spec_of())
    assert header_places(CONTENT, pattern) == [0, 2, 3]
    assert (
        header_pattern(
            spec_of(SPEC.replace("header: true\n", "").replace('from: "Größe', 'comment: "G'))
        )
        is None
    )


def test_header_of_a_thousand_columns_is_found():
    names = [f"c{n}" for n in range(1000)]
    columns = ", ".join(f"{{name: {name}, type: string}}" for name in names)
    text = f"name: a.b\nselector: name=x\nformat: csv\nheader: true\ncolumns: [{columns}]"
    pattern = header_pattern(parse_table_spec(text))
    lines = [",".join(each) for each in (names, names[:500], [*names, "more"], [*names[:-1], "x"])]
    assert header_places("\r\n".join([*lines, ""]).encode(), pattern) == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_scanner_counts_headers_and_finds_them_fit(size):
    scanner = value_scanner(spec_of())
    for at in range(0, len(CONTENT), size):
        scanner.feed(CONTENT[at : at + size])
    found = scanner.report()
    assert scanner.headers == 3
    assert {what: (unfit.count, unfit.offset) for what, unfit in found.lines.items()} == {
        "a blank line": (1, len(CONTENT) - 1)
    }


def test_header_in_another_order_is_counted_as_a_bad_line():
    scanner = value_scanner(spec_of())
    scanner.feed("ID;Größe \"'\\;NOTE\n1;2;3\n".encode())
    assert scanner.headers == 0
    assert len(scanner.report().lines) == 1


STORED = HiveTable(
    database="shop",
    name="prices_lines",
    location="file:///j",
    columns=tuple(HiveColumn(name=n, type="string") for n in ("id", "unit", "note")),
    partition_columns=(),
    storage=CSV_STORAGE,
)


def trino_sql(view):
    return json.loads(base64.b64decode(view.view_original.split()[3]))["originalSql"]


def test_views_leave_headers_out_and_no_other_row():
    spec = spec_of()
    with duckdb.connect() as engine:
        engine.execute("CREATE SCHEMA shop")
        engine.execute("CREATE TABLE shop.prices_lines(id varchar, unit varchar, note varchar)")
        engine.executemany("INSERT INTO shop.prices_lines VALUES (?, ?, ?)", [*ROWS, QUOTED])
        for view in (plain_view(spec, STORED), exact_view(spec, STORED, {})):
            assert engine.execute(trino_sql(view)).fetchall() == KEPT
            spark = sqlglot.transpile(view.view_expanded, read="spark", write="duckdb")[0]
            assert engine.execute(spark).fetchall() == KEPT
            assert view.view_expanded.isascii()


def test_table_with_headers_is_a_view_of_its_lines():
    metastore = MemoryMetastore()
    spec = spec_of()
    with metastore.connect() as session:
        session.ensure_database("shop")
        session.create_table(STORED)
        assert ensure_views(session, spec, STORED, {})
        assert not ensure_views(session, spec, STORED, {})
        for name in ("prices", "prices_exact"):
            assert session.table("shop", name).parameters[VIEW_OF] == "shop.prices_lines"
    assert "shop.prices_lines" in names_made(spec)
    plain = spec_of(SPEC.replace("header: true", "").replace("from", "comment"))
    assert plain_view(plain, replace(STORED, name="prices")) is None


def test_delimiter_is_a_change_that_a_table_follows():
    layout, text = Layout.parse("j"), SPEC.replace('delimiter: ";"\n', "")
    before = table_definition(spec_of(text), layout, "file:///x/j")
    after = table_definition(spec_of(), layout, "file:///x/j")
    assert before.storage.serde_parameters["separatorChar"] == ","
    evolved = evolved_table(before, after)
    assert evolved.storage.serde_parameters["separatorChar"] == ";"
    assert evolved.name == "prices_lines"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (("format: csv", "format: json"), "header"),
        (('delimiter: ";"', 'delimiter: "x"'), "delimiter"),
        (("header: true", "header: false"), "columns[1].from"),
    ],
)
def test_keys_of_csv_that_make_no_sense_are_refused(change, path):
    with pytest.raises(ValidationError) as raised:
        spec_of(SPEC.replace(*change))
    assert path in str(raised.value)


CELLS = st.text(alphabet="ab,;\"' ", min_size=1, max_size=4)


@given(st.lists(CELLS, min_size=2, max_size=4, unique_by=str.lower), st.data())
def test_header_written_by_any_csv_writer_is_found(cells, data):
    delimiter = data.draw(st.sampled_from([",", ";"]))
    quoting = data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    columns = [{"name": f"c{n}", "from": cell, "type": "string"} for n, cell in enumerate(cells)]
    given_ = {"name": "a.b", "selector": "name=j", "format": "csv", "header": True}
    spec = parse_table_spec(json.dumps({**given_, "delimiter": delimiter, "columns": columns}))
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n")
    writer.writerows([["x"] * len(cells), cells, ["y"] * len(cells)])
    assert header_places(out.getvalue().encode(), header_pattern(spec)) == [1]


def test_another_table_may_not_take_the_name_of_the_lines():
    other = SPEC.replace("shop.prices", "shop.prices_lines").replace("header: true", "")
    files = [
        SpecFile.of(f"{name}.yaml", text.encode(), Path("/nowhere"))
        for name, text in (("a", SPEC), ("b", other.replace("from", "comment")))
    ]
    (problem,) = problems_among(files, {})
    assert "shop.prices_lines is the name of the table of all lines" in str(problem)


@pytest.mark.parametrize("dialect", ["trino", "spark", "hive", "bigquery", "snowflake", "duckdb"])
def test_statements_for_other_engines_leave_headers_out(dialect):
    layout = Layout.parse("files")
    table = MountedTable(
        spec=spec_of(), layout=layout, partitions=(), location="file:///nowhere/files"
    )
    statements = sqlglot.parse(create_statement(table, dialect), read=dialect)
    (view,) = [each for each in statements if each is not None and each.kind == "VIEW"]
    assert view.this.name.lower() == "prices"
    assert KEY in {literal.this for literal in view.find_all(sqlglot.exp.Literal)}


def test_view_of_duckdb_cuts_by_the_delimiter_and_leaves_headers_out(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.raw").write_bytes(CONTENT.removesuffix(b"\n") + b'"3;4"; "5";"6\n')
    table = MountedTable(
        spec=spec_of(),
        layout=Layout.parse("files"),
        partitions=(),
        location=f"file://{tmp_path}/files",
    )
    with duckdb.connect() as engine:
        engine.execute(create_statement(table, "duckdb"))
        rows = engine.execute("FROM shop.prices").fetchall()
    assert rows == [*KEPT[:-1], ("3;4", "5", None)]


def test_rollup_reads_a_table_with_headers_by_its_exact_view():
    metastore = MemoryMetastore()
    state = PartitionState(journal="j").adding(
        "j", 0, 9, rows=2, stored_bytes=9, stamp="", created=0
    )
    table = table_definition(spec_of(), Layout.parse("j"), "file:///x/j")
    table = replace(table, parameters=state.within(table.parameters))
    rollup = parse_rollup(
        "-- name: shop.sums\n-- sources: {p: shop.prices}\n\nSELECT id FROM p", engine="trino"
    )
    with metastore.connect() as session:
        session.ensure_database("shop")
        session.create_table(table)
        ensure_views(session, spec_of(), table, {})
        source = read_sources(session, None, rollup)["p"]
    assert source.state.table == "shop.prices"
    assert source.table.table == "prices_exact"
    assert source.columns == ("id", "unit", "note")
    assert list(source.state.parts) == [""]
