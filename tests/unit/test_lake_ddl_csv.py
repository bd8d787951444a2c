"""A view of DuckDB over CSV files gives what Trino gives, and what SQL in this process gives."""

import ast
import re
from pathlib import Path

import duckdb
import pytest
from lake_bench import FragmentFiles

from gazette_platform.hive import CSV_ESCAPE
from gazette_platform.lake.engines.ddl import MountedTable, create_statement
from gazette_platform.lake.reading import raw_rows
from gazette_platform.lake.spec.layout import Layout, partition_columns
from gazette_platform.lake.spec.table_spec import parse_table_spec

SPEC = parse_table_spec(
    "{name: a.b, selector: name:prefix=files/, format: csv, columns: [{name: a, type: string}, "
    "{name: b, type: string}], partitions: [{name: n, type: int}]}"
)
PAGE = Path(__file__).parents[2] / "docs/reference/table-spec.md"
# Beside those of the page: Trino was not asked about them.
MORE = [
    '1,"a, b",5" pipe, 2', '"open, x', '"",""', '"a",', 'a,"b"c"d"', '"""",x', 'a,""b', "é,\"ü\"",
    '5" x 6" pipe,2', "back\\slash,\\\"q\"", "x,5\" pipe", " \t\"a\",\t\"b\" ", "a,b,c,d", "a b",
]  # fmt: skip


def told_by_trino():
    """Lines, and the rows that Trino makes of them, as the page has them from the engine."""
    text = PAGE.read_text("utf-8").partition("<!-- records: ")[2].partition("<!-- end -->")[0]
    found = re.findall(r"^\| `(.*?)` \| `(\(.*?\))` \|", text, re.MULTILINE)
    assert len(found) > 10
    plain = {"(empty)": ""}
    return [
        (
            plain.get(line, line.replace("\\r", "\r").replace("\\x01", "\x01")),
            ast.literal_eval(row.replace("NULL", "None")),
        )
        for line, row in found
    ]


def viewed(tmp_path):
    layout = Layout.parse("files/{n}")
    table = MountedTable(
        spec=SPEC,
        layout=layout,
        partitions=partition_columns(SPEC, layout),
        location=f"file://{tmp_path}/files",
    )
    with duckdb.connect() as engine:
        engine.execute(create_statement(table, "duckdb"))
        return engine.execute("SELECT n, a, b FROM a.b").fetchall()


def ours(content):
    return list(zip(*map(list, map_to_lists(content)), strict=True))


def map_to_lists(content):
    return (column.to_pylist() for column in raw_rows.row_parser(SPEC).columns(content, ["a", "b"]))


def test_each_line_is_the_row_that_trino_makes_of_it(tmp_path):
    files = FragmentFiles(tmp_path)
    told = told_by_trino()
    for n, (line, _) in enumerate(told):
        files.append(f"files/n={n}", f"{line}\n".encode())
    found = {n: (a, b) for n, a, b in viewed(tmp_path)}
    for n, (line, row) in enumerate(told):
        assert (line, found[n]) == (line, row)
        assert (line, ours(f"{line}\n".encode())) == (line, [row])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_of_all_lines_is_the_same_rows_in_both(tmp_path, end):
    lines = [line.removesuffix("\r") for line, _ in told_by_trino()] + MORE
    content = "".join(f"{line}{end}" for line in lines).encode()
    FragmentFiles(tmp_path).append("files/n=0", content)
    found = [(a, b) for _, a, b in viewed(tmp_path)]
    assert len(found) == len(lines)
    assert sorted(map(repr, found)) == sorted(map(repr, ours(content)))


def test_the_escape_that_engines_drop_is_that_of_the_table():
    assert raw_rows._ESCAPE == CSV_ESCAPE
