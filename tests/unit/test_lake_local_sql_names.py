"""Tables of a session by all names that they may be called, whatever their schemas are called."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from gazette_platform.errors import LakeError, SetupError, ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.engines.duckdb.session import LocalSql, connect
from gazette_platform.lake.engines.duckdb.snapshot import TableSnapshot
from gazette_platform.lake.spec.table_spec import parse_table_spec

CLIENT = SimpleNamespace(config=SimpleNamespace(read_ahead_bytes_max=1 << 20), asynchronous=None)

ORDERS = parse_table_spec(
    "{name: shop.orders, selector: name=x, format: json, columns: [{name: v, type: int}]}"
)


def session_of(*names):
    """Of empty tables, as a query of all of them leaves it."""
    specs = {
        name: parse_table_spec(
            f"{{name: {name}, selector: name=x, format: json, columns: [{{name: v, type: int}}]}}"
        )
        for name in names
    }
    sql = LocalSql(specs, client=CLIENT, roots={})
    register(sql, specs.values())
    return sql


def register(sql, specs):
    for spec in specs:
        if spec.name in sql.tables:
            now = datetime(2026, 1, 2, tzinfo=UTC)
            snapshot = TableSnapshot(spec=spec, columns=(), journals=(), extents=(), taken_at=now)
            sql._register(snapshot)


def columns(sql, table):
    return [row[0] for row in sql.duckdb.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()]


@pytest.mark.parametrize("schema", ["shop", "main", "temp", "system", "memory", "default"])
def test_schemas_may_be_called_like_databases_of_duckdb(schema):
    sql = session_of(f"{schema}.orders", "other.customers")
    for table in ("orders", f'memory."{schema}".orders', "customers", "other.customers"):
        assert columns(sql, table) == ["v"]
    assert columns(sql, f'memory."{schema}"."orders$offsets"') == columns(sql, '"orders$offsets"')
    sql._unregister(f"{schema}.orders")
    assert columns(sql, "customers") == ["v"]


def test_tables_of_one_name_have_their_offsets_by_schema():
    sql = session_of("shop.orders", "web.orders")
    for schema in ("shop", "web"):
        assert columns(sql, f'{schema}."orders$offsets"')[-1] == "v"


def test_another_database_in_use_is_left_alone():
    sql = session_of("shop.orders")
    sql.duckdb.execute("ATTACH ':memory:' AS mine; USE mine")
    register(sql, list(sql._specs.values()))
    assert columns(sql, "orders") == columns(sql, "memory.shop.orders") == ["v"]


def test_schemas_of_duckdb_itself_are_refused_and_hide_no_other():
    sql = session_of("information_schema.orders", "shop.orders")
    assert sql.tables == ("shop.orders",)
    assert "give the table another one" in str(sql.refused["information_schema.orders"])


@pytest.mark.parametrize("query", ["", "  \n", ";", "-- nothing"])
def test_an_empty_query_is_refused(query):
    with pytest.raises(ValidationError, match="is empty: it takes a statement of SQL"):
        session_of("shop.orders").execute(query)


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("SELECT 1; SELECT 2", 1),
        ("SET threads = 1; FROM range(3); CREATE TABLE t AS SELECT 1", 2),
        ("DESCRIBE SELECT 1; SELECT 2;", 1),
    ],
)
def test_rows_that_no_query_would_see_are_refused(query, number):
    with pytest.raises(ValidationError, match=rf"statement {number} gives rows, too"):
        session_of("shop.orders").execute(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 2;",
        "SET threads = 1; SELECT 2",
        "CREATE TABLE mine AS SELECT 2; INSERT INTO mine VALUES (3); SELECT min(column0) FROM (SELECT 2 AS column0)",
        # DuckDB makes two statements of it.
        "PIVOT (SELECT 'a' AS k) ON k USING sum(2)",
    ],
)
def test_statements_before_the_rows_are_run(query):
    sql = LocalSql({}, client=CLIENT, roots={})
    sql._refresh_for = lambda _query: None
    assert sql.execute(query).fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("FROM order", 'goes in double quotes: "order"'),
        ("SELECT * FROM order WHERE v = 1", 'goes in double quotes: "order"'),
        ('SELECT order.v FROM "order"', 'goes in double quotes: "order"'),
        ("SELECT group FROM shop.orders", 'goes in double quotes: "group"'),
        ("FROM table", 'near "table"$'),
        ("FROM orderz", r"no table orderz \(known: .*\); did you mean shop.order or shop.orders\?"),
        ("FROM web.orders", r"no table web.orders \(known: .*\); did you mean shop.orders\?"),
        ("FROM invoices", r"makes another one\)$"),
        ('FROM "shop.orders"', 'quotes go around each part, as in "shop"."orders"$'),
        ("FROM hive.shop.orders", "schema.table here, or just table, without a catalog"),
        # It is not a variable of ours.
        ("FROM query", r"there is no table query \(known: "),
        ("SELECT foo.v FROM orders", 'Referenced table "foo" not found! Candidate tables: "orders"'),
        ("SELECT w FROM orders", 'column "w" not found in FROM clause! Candidate bindings: "v"'),
        ("INSERT INTO shop.orders VALUES (1)", "orders is not a table of its own .*only read here"),
        ("DELETE FROM orders", r"only read here.*journals append.*CREATE TABLE mine"),
        ("UPDATE orders SET v = 1", "only read here"),
        ("DROP TABLE orders", "only read here"),
        ("ALTER TABLE orders ADD COLUMN w int", "only read here"),
    ],
)  # fmt: skip
def test_errors_of_queries_say_what_to_write(query, says):
    spec = "{name: shop.NAME, selector: name=x, format: json, columns: [{name: C, type: int}]}"
    specs = [
        parse_table_spec(spec.replace("NAME", table).replace("C,", f"{column},"))
        for table, column in (("orders", "v"), ("order", "group"))
    ]
    sql = LocalSql({each.name: each for each in specs}, client=CLIENT, roots={})
    sql._refresh_for = lambda _query: None
    register(sql, specs)
    with pytest.raises(LakeError, match=says) as told:
        sql.execute(query)
    assert "\n" not in str(told.value)


def test_connect_knows_brokers_and_tokens_as_gazctl_does(monkeypatch):
    for variable in ("GAZETTE_ENDPOINTS", "GAZETTE_BROKER_ADDRESS", "BROKER_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("BROKER_AUTH_TOKEN", "a-token")
    with connect([ORDERS], settings=LakeSettings(broker="http://127.0.0.1:1")) as sql:
        config = sql._client.config
        assert (config.address, config.auth_token) == ("http://127.0.0.1:1", "a-token")
    with pytest.raises(SetupError, match="set GAZETTE_BROKER_ADDRESS"):
        connect([ORDERS])
    monkeypatch.setenv("BROKER_ADDRESS", "http://127.0.0.1:2")
    with connect([ORDERS]) as sql:
        assert sql._client.config.address == "http://127.0.0.1:2"


def test_no_variable_of_ours_is_taken_for_a_table():
    """DuckDB looks for the tables that it does not know among the variables of who calls it."""
    sql = session_of("shop.orders")
    sql.refresh = lambda _: None  # no broker is here
    for name in ("dataset", "query", "parameters", "self", "name"):
        with pytest.raises(LakeError, match=f"there is no table {name} "):
            sql.execute(f"SELECT * FROM {name}")
