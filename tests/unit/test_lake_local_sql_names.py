"""Tables of a session by all names that they may be called, whatever their schemas are called."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.local_sql.session import LocalSql, connect
from gazette_platform.lake.local_sql.snapshot import TableSnapshot
from gazette_platform.lake.table_spec import parse_table_spec

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
            snapshot = TableSnapshot(spec=spec, columns=(), journals=(), segments=(), taken_at=now)
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
