"""The SQL of the exact view: which rows are left of a table, and that names of any kind are given as they are."""

import base64
import json

import duckdb
import pytest
import sqlglot
from lake_bench import MemoryMetastore
from sqlglot import exp

from gazette_platform.hive import JSON_STORAGE, HiveColumn, HiveTable
from gazette_platform.lake import ensure_views, parse_table_spec
from gazette_platform.lake.raw.views import exact_view, excluded_digests

ODD = "O'H\\A\"R`E"
HOUR_5, HOUR_6 = (ODD, "5"), (ODD, "6")


def spec_of(format_="json"):
    source = ", from: 'the `id`'" if format_ == "json" else ""
    return parse_table_spec(
        f"{{name: s.t, selector: name=j, format: {format_}, columns: [{{name: id, type: string{source}}}]}}"
    )


TABLE = HiveTable(
    database="s",
    name="t",
    location="file:///t",
    columns=(HiveColumn(name="id", type="string"),),
    partition_columns=(
        HiveColumn(name="part", type="string"),
        HiveColumn(name="hour", type="int"),
    ),
    storage=JSON_STORAGE,
    parameters={},
)


def trino_sql(view):
    return json.loads(base64.b64decode(view.view_original.split()[3]))["originalSql"]


@pytest.fixture
def engine():
    """DuckDB, which reads quotes as Trino does, with a table whose rows name their file."""
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA s")
        connection.execute('CREATE TABLE s.t(id varchar, part varchar, hour int, "$path" varchar)')
        rows = [
            (f"{part[:1]}{hour}{name}", part, hour, f"s3://b/{name}/d=1/{name}")
            for part in (ODD, "P")
            for hour in (5, 6)
            for name in ("a", "b", "it's")
        ]
        connection.executemany("INSERT INTO s.t VALUES (?, ?, ?, ?)", rows)
        yield connection


def test_rows_of_the_files_that_are_named_are_left_out_and_no_others(engine):
    def left(excluded):
        sql = trino_sql(exact_view(spec_of(), TABLE, excluded))
        return {row[0] for row in engine.execute(sql).fetchall()}

    every = left({})
    assert len(every) == 12
    assert every - left({HOUR_5: ["a"]}) == {"O5a"}
    assert every - left({HOUR_5: ["a", "it's"], HOUR_6: ["b"]}) == {"O5a", "O5it's", "O6b"}
    assert left({("other", "5"): ["a"], HOUR_5: ["c"]}) == every


@pytest.mark.parametrize("dialect", ["trino", "spark"])
@pytest.mark.parametrize("format_", ["json", "csv"])
def test_values_and_files_are_reported_as_they_are(dialect, format_):
    view = exact_view(spec_of(format_), TABLE, {HOUR_5: ["a", "it's"]})
    sql = trino_sql(view) if dialect == "trino" else view.view_expanded
    (read,) = sqlglot.parse(sql, read=dialect)
    (condition,) = [n.this.unnest() for n in read.find(exp.Where).find_all(exp.Not)]
    texts = {literal.this for literal in condition.find_all(exp.Literal)}
    assert {ODD, "5", "a", "it's"} <= texts
    assert not list(condition.find_all(exp.Or))


def test_spark_calls_columns_by_the_keys_and_knows_files_of_its_own_sources_only():
    excluded = {HOUR_5: ["a"]}
    json_sql = exact_view(spec_of(), TABLE, excluded).view_expanded
    assert json_sql.startswith("SELECT `the ``id``` AS `id`, `part`, `hour` FROM `s`.`t` WHERE ")
    assert "_metadata.file_name IN ('a')" in json_sql
    csv_sql = exact_view(spec_of("csv"), TABLE, excluded).view_expanded
    assert "_metadata" not in csv_sql
    assert "FROM (SELECT *, input_file_name() AS `_file` FROM `s`.`t`) WHERE " in csv_sql
    assert "input_file_name" not in exact_view(spec_of("csv"), TABLE, {}).view_expanded


def test_what_is_read_changes_with_the_names_of_files_and_not_with_their_number_alone():
    def digests(excluded):
        return excluded_digests(exact_view(spec_of(), TABLE, excluded))

    one, other = digests({HOUR_5: ["a"]}), digests({HOUR_5: ["b"]})
    assert list(one) == list(other) == ["part=O%27H%5CA%22R`E/hour=5"]
    assert one != other
    assert digests({}) == {}
    many = [{("p", f"{n:040}"): [name] for n in range(99)} for name in "ab"]
    views = [exact_view(spec_of(), TABLE, excluded) for excluded in many]
    assert all(len(value) < 4000 for view in views for value in view.parameters.values())
    first, second = map(excluded_digests, views)
    assert list(first) == list(second) == ["*"]
    assert first != second


def test_a_view_keeps_its_owner():
    metastore = MemoryMetastore()
    with metastore.connect() as session:
        session.ensure_database("s")
        session.create_table(TABLE)
        assert ensure_views(session, spec_of(), TABLE, {})
        metastore.thrift._tables["s", "t_exact"].owner = "ada"
        assert ensure_views(session, spec_of(), TABLE, {HOUR_5: ["a"]})
        assert session.table("s", "t_exact").owner == "ada"
