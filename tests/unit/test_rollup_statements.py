"""Statements that make slices: read by a SQL parser, and run by an engine on real rows."""

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.engines import (
    SourceTable,
    StagingTable,
    create_staging,
    insert_staging,
    select_slices,
)

SQL = """\
WITH late AS (SELECT * FROM flights WHERE delay > 15)
SELECT origin, day, count(*) AS late FROM late GROUP BY origin, day -- the end"""
SPEC = RollupSpec(
    name="rollups.late",
    engine="trino",
    sql=SQL,
    sources={"flights": "flights.flights"},
    slices=("origin", "day"),
)
RAW = SourceTable(
    schema="flights",
    table="flights_exact",
    is_iceberg=False,
    types={"origin": "string", "day": "date", "hour": "int"},
)
STAGING = StagingTable(name="late_1", location="file:///w/it's", slices=("origin", "day"))
SLICES = [("JFK", "2026-01-02"), ("O'H\\A\"R`E", "2026-01-03")]
DIALECTS = pytest.mark.parametrize("dialect", ["trino", "spark"])


def read(sql, dialect):
    (statement,) = sqlglot.parse(sql, read=dialect)
    return statement


@DIALECTS
def test_staging_table_is_made_of_the_slices_alone(dialect):
    made = read(create_staging(dialect, STAGING, SPEC, {"flights": RAW}, SLICES), dialect)
    assert isinstance(made, exp.Create)
    table = made.find(exp.Table)
    assert (table.catalog, table.db, table.name) == ("iceberg", "gazette_staging", "late_1")
    (source,) = [t for t in made.find_all(exp.Table) if t.name == "flights_exact"]
    catalog = {"trino": "hive", "spark": "spark_catalog"}[dialect]
    assert (source.catalog, source.db) == (catalog, "flights")
    texts = {literal.this for literal in made.find_all(exp.Literal) if literal.is_string}
    assert {"JFK", "O'H\\A\"R`E", "2026-01-02", "2026-01-03", "file:///w/it's"} <= texts


@DIALECTS
def test_more_slices_are_inserted(dialect):
    made = read(insert_staging(dialect, STAGING, SPEC, {"flights": RAW}, SLICES[:1]), dialect)
    assert isinstance(made, exp.Insert)
    assert made.find(exp.Table).name == "late_1"


@DIALECTS
def test_rollup_without_slices_reads_all(dialect):
    spec = RollupSpec(
        name="r.a", engine="spark", sql="SELECT * FROM l", sources={"l": "rollups.late"}
    )
    late = SourceTable(schema="rollups", table="late", is_iceberg=True, types={})
    staging = StagingTable(name="a_1", location="s3://b/w", slices=())
    made = read(create_staging(dialect, staging, spec, {"l": late}, [()]), dialect)
    assert made.find(exp.Where) is None
    (source,) = [t for t in made.find_all(exp.Table) if t.name == "late"]
    assert (source.catalog, source.db) == ("iceberg", "rollups")
    assert "PARTITIONED BY" not in create_staging("spark", staging, spec, {"l": late}, [()])


def test_a_source_that_has_some_of_the_columns_only_is_read_whole():
    """As one rollup beside a raw table: its slices do not say which of its rows belong to others."""
    spec = RollupSpec(
        name="r.a",
        engine="trino",
        sql="SELECT * FROM flights JOIN l USING (origin)",
        sources={"flights": "flights.flights", "l": "rollups.late"},
        slices=("origin", "day"),
    )
    late = SourceTable(schema="rollups", table="late", is_iceberg=True, types={"origin": "string"})
    made = select_slices("trino", spec, {"flights": RAW, "l": late}, SLICES)
    assert '"l" AS (SELECT * FROM "iceberg"."rollups"."late")\n' in made
    assert made.count(" WHERE ") == 1


def test_numbers_are_written_as_numbers():
    spec = RollupSpec(
        name="r.a", engine="trino", sql="SELECT * FROM f", sources={"f": "t.f"}, slices=("hour",)
    )
    assert '"hour" IN (10, 5)' in select_slices("trino", spec, {"f": RAW}, [("5",), ("10",)])
    other = SourceTable(schema="t", table="f", is_iceberg=True, types={"hour": "timestamp"})
    with pytest.raises(LakeError, match="hour is timestamp, which cannot choose slices"):
        select_slices("trino", spec, {"f": other}, [("5",)])


@pytest.fixture
def engine():
    """DuckDB, which reads double quotes as Trino does."""
    with duckdb.connect() as connection:
        connection.execute("ATTACH ':memory:' AS hive; CREATE SCHEMA hive.flights")
        connection.execute(
            "CREATE TABLE hive.flights.flights_exact(origin varchar, day date, delay int)"
        )
        yield connection


def test_rows_of_other_slices_are_left_out(engine):
    rows = [
        ("JFK", "2026-01-02", 20),
        ("JFK", "2026-01-02", 30),
        ("JFK", "2026-01-02", 1),
        ("JFK", "2026-01-03", 20),  # each value is asked for, but not together
        (SLICES[1][0], "2026-01-03", 99),
        (SLICES[1][0], "2026-01-02", 99),
        ("LGA", "2026-01-02", 99),
    ]
    engine.executemany("INSERT INTO hive.flights.flights_exact VALUES (?, ?, ?)", rows)
    sql = select_slices("trino", SPEC, {"flights": RAW}, SLICES)
    found = [(origin, str(day), late) for origin, day, late in engine.execute(sql).fetchall()]
    assert sorted(found) == [(*SLICES[0], 2), (*SLICES[1], 1)]
