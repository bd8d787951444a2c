"""The table that the ways of parsing make: its columns, for Arrow, Spark and DuckDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

__all__ = ["COLUMNS", "UUID_FIELD", "Column", "ddl", "json_ddl", "parsed_schema", "typed_schema"]

UUID_FIELD: Final = "_meta"
"""Of a record, an object whose `uuid` is that of the message."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the key of the records, and its type in each system."""

    name: str
    key: str
    arrow: pa.DataType
    spark: str
    duckdb: str
    parsed: pa.DataType | None = None
    """What Arrow's reader of JSON can make of it, where that is another type."""


COLUMNS: Final = (
    Column("order_id", "order_id", pa.int64(), "bigint", "BIGINT"),
    Column("placed_at", "placed_at", pa.timestamp("us", "UTC"), "timestamp", "TIMESTAMPTZ"),
    Column("day", "day", pa.date32(), "date", "DATE", parsed=pa.string()),
    Column("customer_no", "customer no.", pa.string(), "string", "VARCHAR"),
    Column("country", "country", pa.string(), "string", "VARCHAR"),
    Column("status", "status", pa.string(), "string", "VARCHAR"),
    Column("quantity", "quantity", pa.int32(), "int", "INTEGER"),
    Column("amount", "amount", pa.decimal128(10, 2), "decimal(10,2)", "DECIMAL(10,2)"),
    Column("weight", "weight", pa.float64(), "double", "DOUBLE"),
    Column("gift", "gift", pa.bool_(), "boolean", "BOOLEAN"),
    Column(
        "tags",
        "tags",
        pa.list_(pa.field("element", pa.string())),
        "array<string>",
        "VARCHAR[]",
    ),
    Column(
        "address",
        "address",
        pa.struct([("street", pa.string()), ("city", pa.string()), ("zip", pa.int32())]),
        "struct<street:string,city:string,zip:int>",
        "STRUCT(street VARCHAR, city VARCHAR, zip INTEGER)",
    ),
    Column("note", "note", pa.string(), "string", "VARCHAR"),
)


def parsed_schema(columns: tuple[Column, ...] = COLUMNS) -> pa.Schema:
    """What Arrow's reader of JSON is asked for: records' keys, and the UUID."""
    fields = [(each.key, each.parsed or each.arrow) for each in columns]
    return pa.schema([(UUID_FIELD, pa.struct([("uuid", pa.string())])), *fields])


def typed_schema(columns: tuple[Column, ...] = COLUMNS) -> pa.Schema:
    """The table's."""
    return pa.schema([(each.name, each.arrow) for each in columns])


def ddl(columns: tuple[Column, ...] = COLUMNS) -> str:
    """The table's columns for Spark."""
    return ", ".join(f"{each.name} {each.spark}" for each in columns)


def json_ddl(columns: tuple[Column, ...] = COLUMNS, *, bad: str = "_bad") -> str:
    """The records' keys for Spark's reader of JSON, with a column for what it cannot parse."""
    fields = ", ".join(f"`{each.key}` {each.spark}" for each in columns)
    return f"{UUID_FIELD} struct<uuid:string>, {fields}, {bad} string"
