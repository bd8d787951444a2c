"""From an event to the rows: queries that engines take, and pages of a table."""

import duckdb
import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings, parse_table_spec, partition_key
from gazette_platform.lake.engines.trino import partition_query
from gazette_platform.lake.settings import check_table_url, table_link
from gazette_platform.lake.spec.layout import Layout, partition_columns

SPEC = parse_table_spec(
    "{name: shop.orders, selector: 'name:prefix=a/', format: json, "
    "columns: [{name: id, type: int}], "
    "partitions: [{name: hour, type: int}, {name: day, type: date, as: on_day}]}"
)


@pytest.mark.parametrize(
    ("directory", "count"),
    [("a/host=x/day=2026-01-02/hour=05", 1), ("a/host=it's 100%, a|b/day=2026-01-02/hour=5", 2)],
)
def test_a_query_finds_the_rows_of_its_partition(directory, count):
    columns = partition_columns(SPEC, Layout.of_directory(directory))
    texts = dict(part.split("=", 1) for part in directory.split("/")[1:])
    values = tuple(column.value(texts[column.key]) for column in columns)
    query = partition_query(SPEC, partition_key(columns, values), values)
    with duckdb.connect() as database:
        database.execute("ATTACH ':memory:' AS hive; CREATE SCHEMA hive.shop")
        database.execute(
            "CREATE TABLE hive.shop.orders (id INT, host TEXT, on_day DATE, hour INT);"
            "INSERT INTO hive.shop.orders VALUES (1, 'x', DATE '2026-01-02', 5), "
            "(2, 'it''s 100%, a|b', DATE '2026-01-02', 5), (3, 'x', DATE '2026-01-03', 5)"
        )
        assert [row[0] for row in database.execute(query).fetchall()] == [count]


def test_a_query_has_a_line_a_column_since_pages_cut_off_what_is_long():
    query = partition_query(SPEC, "on_day=2026-01-02/hour=5", ("2026-01-02", "5"))
    assert query.splitlines() == [
        'SELECT * FROM hive."shop"."orders"',
        """WHERE "on_day" = DATE '2026-01-02'""",
        '  AND "hour" = 5',
    ]


def test_a_table_without_partitions_is_queried_whole():
    assert partition_query(SPEC, "all", ()) == 'SELECT * FROM hive."shop"."orders"'
    other = partition_query(SPEC, "all", (), "raw-lake")
    assert other == 'SELECT * FROM "raw-lake"."shop"."orders"'


def test_pages_of_tables():
    assert table_link("http://a/{catalog}?{schema}&{table}", "hive.s.t") == "http://a/hive?s&t"
    url = "https://sql/{schema}.{table}"
    assert LakeSettings.from_environment({"GAZETTE_TABLE_URL": url}).table_url == url


@pytest.mark.parametrize(
    "url", ["http://a/", "http://a/{database}", "http://a/{table", "a/{table}"]
)
def test_an_address_that_opens_no_table_is_refused(url):
    with pytest.raises(ValidationError, match="GAZETTE_TABLE_URL"):
        check_table_url(url)
    with pytest.raises(ValidationError, match=r"\{schema\} and \{table\}"):
        LakeSettings.from_environment({"GAZETTE_TABLE_URL": url})
