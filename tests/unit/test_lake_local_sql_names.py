"""Tables of a session by all names that they may be called, whatever their schemas are called."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from gazette_platform.lake.local_sql.session import LocalSql
from gazette_platform.lake.local_sql.snapshot import TableSnapshot
from gazette_platform.lake.table_spec import parse_table_spec

CLIENT = SimpleNamespace(config=SimpleNamespace(read_ahead_bytes_max=1 << 20), asynchronous=None)


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
