"""CREATE statements: each is SQL of its dialect, and names what it should."""

import re
from datetime import date
from decimal import Decimal

import duckdb
import pytest
import sqlglot
from lake_bench import FragmentFiles
from sqlglot import exp

from gazette_platform.errors import ValidationError
from gazette_platform.lake.engines.ddl import DIALECTS, MountedTable, create_statement
from gazette_platform.lake.spec.layout import Layout, partition_columns
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.protocol import CompressionCodec

SPEC = """
name: shop.orders
selector: name:prefix=orders/
format: json
comment: It's "all"
columns:
  - {name: orderId, from: "it's `odd` id", type: bigint, comment: "the order's"}
  - {name: hour, type: "decimal(10,2)"}
  - {name: nested, type: "struct<order:string,m:map<string,array<double>>,date:date>"}
  - {name: lists, type: "array<array<int>>"}
  - {name: ok, type: boolean}
  - {name: x, type: float}
partitions:
  - {name: hour, as: fragment_hour, type: int}
  - {name: date, type: date}
"""
CSV = """
name: shop.files
selector: name:prefix=files/
format: csv
columns:
  - {name: a, type: string}
  - {name: b, type: string}
"""


def mounted(text, layout, location="file:///f/orders"):
    spec, layout = parse_table_spec(text), Layout.parse(layout)
    return MountedTable(
        spec=spec, layout=layout, partitions=partition_columns(spec, layout), location=location
    )


TABLES = [
    mounted(SPEC, "orders/{part}/{date}/{hour}"),
    mounted(SPEC.partition("partitions:")[0], "orders", "gs://bucket/orders"),
    mounted(CSV, "files/{date}"),
    mounted(CSV, "files"),
]
# The parser knows no list of partition columns; what is in the list is parsed like other columns.
_WITH_PARTITIONS = re.compile(r"WITH PARTITION COLUMNS (\(\n.*?\n\))\n", re.DOTALL)


def parsed(sql, dialect):
    texts = [sql]
    if dialect == "bigquery" and (found := _WITH_PARTITIONS.search(sql)):
        texts = [sql.replace(found[0], ""), f"CREATE TABLE p {found[1]}"]
    trees = [tree for text in texts for tree in sqlglot.parse(text, dialect=dialect)]
    return [tree for tree in trees if isinstance(tree, exp.Create | exp.Command)]


@pytest.mark.parametrize("table", TABLES, ids=["keys", "whole", "csv-keys", "csv"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_statement_is_sql_of_the_dialect(dialect, table):
    trees = parsed(create_statement(table, dialect), dialect)
    # A command is what the parser gave up on.
    assert all(isinstance(tree, exp.Create) for tree in trees)
    kinds = [tree.kind for tree in trees]
    schema = "DATABASE" if dialect == "hive" else "SCHEMA"
    made = "VIEW" if dialect == "duckdb" else "TABLE"
    assert kinds[:2] == [schema, made]
    name = trees[1].find(exp.Table)
    assert (name.db.lower(), name.name.lower()) == (table.spec.schema, table.spec.table)
    # Any of them may be a word of SQL.
    assert all(each.args["quoted"] for each in (name.this, name.args["db"]))


def names_of(dialect, table):
    trees = parsed(create_statement(table, dialect), dialect)
    if dialect == "duckdb":
        return [each.alias_or_name for each in trees[1].expression.selects]
    return [
        each.name
        for tree in trees[1:]
        for each in tree.this.expressions + list(tree.find_all(exp.PartitionedByProperty))
        if isinstance(each, exp.ColumnDef)
    ]


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("trino", "orderid hour nested lists ok x part date fragment_hour"),
        ("spark", """it's`odd`id hour nested lists ok x part date fragment_hour"""),
        ("hive", "orderid hour nested lists ok x"),
        ("bigquery", "orderId nested lists ok x part date hour"),
        ("snowflake", "ORDERID HOUR NESTED LISTS OK X PART DATE FRAGMENT_HOUR"),
        ("duckdb", "orderId hour nested lists ok x part date fragment_hour"),
    ],
)
def test_columns_are_named(dialect, expected):
    names = [name.replace(" ", "") for name in names_of(dialect, TABLES[0])]
    assert names == expected.split()


def test_keys_reach_the_engines_that_can_have_them():
    trino, hive = (create_statement(TABLES[0], each) for each in ("trino", "hive"))
    assert """'mapping.orderid'], ARRAY['true', 'false', 'false', 'it''s `odd` id'])""" in trino
    assert """'mapping.orderid' = 'it\\'s `odd` id'""" in hive
    assert """VALUE:"it's `odd` id"::BIGINT""" in create_statement(TABLES[0], "snowflake")
    assert '''"it's `odd` id" AS "orderId"''' in create_statement(TABLES[0], "duckdb")


def test_backslash_is_not_an_escape_in_csv():
    assert "csv_escape = U&'\\0001'" in create_statement(TABLES[2], "trino")
    assert """USING csv OPTIONS (escape '"')""" in create_statement(TABLES[2], "spark")


def test_what_a_dialect_cannot_do_is_said():
    told = create_statement(TABLES[0], "bigquery")
    assert "-- BigQuery reads gs:// only" in told
    assert "-- hour of the records is left out" in told
    assert "these are NULL: orderId" in told
    assert "-- fragment_hour is called hour here" in told
    assert "reads gs:// only" not in create_statement(TABLES[1], "bigquery")
    assert "calls columns by their keys" in create_statement(TABLES[0], "spark")


def test_files_are_looked_for_as_deep_as_they_lie():
    assert [table.folders_below for table in TABLES] == [3, 0, 1, 0]
    assert "'/f/orders/*/*/*/*'" in create_statement(TABLES[0], "duckdb")
    assert "'gs://bucket/orders/*'" in create_statement(TABLES[1], "duckdb")


def test_unknown_dialect_names_those_there_are():
    with pytest.raises(ValidationError, match="use one of trino, spark"):
        create_statement(TABLES[0], "oracle")


LINES = (
    b'{"it\'s `odd` id": 7, "hour": 1.5, "nested": {"order": "x", "m": {"k y": [1.5]}, "date":'
    b' "2026-01-02"}, "lists": [[1], []], "ok": true, "x": 0.5, "more": 1}\n{"ok": false}\n'
)


@pytest.mark.parametrize("codec", [CompressionCodec.GZIP, CompressionCodec.NONE])
def test_duckdb_reads_the_files(tmp_path, codec):
    files = FragmentFiles(tmp_path)
    for part in "01":
        files.append(f"orders/part={part}", LINES, postfix="date=2026-01-02/hour=05", codec=codec)
    table = mounted(SPEC, "orders/{part}/{date}/{hour}", f"file://{tmp_path}/orders")
    with duckdb.connect() as engine:
        engine.execute(create_statement(table, "duckdb"))
        # Twice, for the view is one to be replaced.
        rows = (
            engine.execute(create_statement(table, "duckdb"))
            and engine.execute(
                """SELECT "part", "date", fragment_hour, orderid, "hour", nested."order",
            nested.m['k y'], lists, ok FROM shop.orders ORDER BY "part", ok DESC"""
            ).fetchall()
        )
    day = date(2026, 1, 2)
    full = (7, Decimal("1.50"), "x", [1.5], [[1], []], True)
    empty = (None, None, None, None, None, False)
    assert rows == [(part, day, 5, *each) for part in "01" for each in (full, empty)]


def test_duckdb_prunes_by_partition_columns_where_no_key_is_a_column_too(tmp_path):
    files = FragmentFiles(tmp_path)
    spec = SPEC.replace("- {name: hour, type", "- {name: other, type")
    for hour in ("05", "06"):
        files.append("orders/part=0", LINES, postfix=f"date=2026-01-02/hour={hour}")
    table = mounted(spec, "orders/{part}/{date}/{hour}", f"file://{tmp_path}/orders")
    with duckdb.connect() as engine:
        engine.execute(create_statement(table, "duckdb"))
        found = engine.execute(
            """SELECT typeof("date"), fragment_hour, count(*) FROM shop.orders
            WHERE fragment_hour = 6 GROUP BY ALL"""
        ).fetchall()
        plan = engine.execute(
            "EXPLAIN SELECT * FROM shop.orders WHERE fragment_hour = 6"
        ).fetchall()
    assert found == [("DATE", 6, 2)]
    assert "1/2" in str(plan)


def test_duckdb_reads_csv_as_text(tmp_path):
    FragmentFiles(tmp_path).append("files", b'1,"x, ""y"""\n2,\n')
    table = mounted(CSV, "files", f"file://{tmp_path}/files")
    with duckdb.connect() as engine:
        engine.execute(create_statement(table, "duckdb"))
        assert engine.execute("SELECT a, b FROM shop.files ORDER BY a").fetchall() == [
            ("1", 'x, "y"'),
            ("2", ""),
        ]
