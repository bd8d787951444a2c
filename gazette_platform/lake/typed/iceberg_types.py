"""Schemas and partitions of typed tables as PyIceberg and Arrow have them. Pure.

Field ids are what data files are read by: a column keeps its own for ever, so those of an existing
table come from the table (`evolution`), and those made here are for a new one.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from gazette_platform.lake.reading.arrow_types import arrow_type
from gazette_platform.lake.spec.types import ColumnType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.lake.spec.typed import TypedSpec

_SCALARS: Final[dict[str, IcebergType]] = {
    "string": StringType(),
    "json": StringType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "binary": BinaryType(),
    "uuid": UUIDType(),
}
_ARROW: Final = {kind: arrow_type(ColumnType(name)) for name, kind in _SCALARS.items()}
# Two types of specs are strings; it is those that people know.
_NAMES: Final = {kind: name for name, kind in reversed(_SCALARS.items())}
# Arrow writes the ids of fields into Parquet files under it, and PyIceberg reads them there.
_FIELD_ID: Final = b"PARQUET:field_id"


def iceberg_type(kind: ColumnType, ids: Iterator[int]) -> IcebergType:
    """The type in Iceberg; all that is below a column may be null, except keys of maps.

    Args:
        kind: as `parse_typed` gives it.
        ids: for the fields, elements, keys and values below.
    """
    match kind.name:
        case "decimal":
            return DecimalType(kind.precision, kind.scale)
        case "array":
            of = kind.arguments[0]
            return ListType(
                element_id=next(ids), element=iceberg_type(of, ids), element_required=False
            )
        case "map":
            key, value = kind.arguments
            return MapType(
                key_id=next(ids),
                key_type=iceberg_type(key, ids),
                value_id=next(ids),
                value_type=iceberg_type(value, ids),
                value_required=False,
            )
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            return StructType(
                *(
                    NestedField(next(ids), name, iceberg_type(part, ids), required=False)
                    for name, part in fields
                )
            )
        case name:
            return _SCALARS[name]


def spec_type(kind: IcebergType) -> ColumnType:
    """The type as specs have it; of a type that they do not have, Iceberg's name."""
    match kind:
        case DecimalType():
            return ColumnType("decimal", precision=kind.precision, scale=kind.scale)
        case ListType():
            return ColumnType("array", (spec_type(kind.element_type),))
        case MapType():
            return ColumnType("map", (spec_type(kind.key_type), spec_type(kind.value_type)))
        case StructType():
            return ColumnType(
                "struct",
                tuple(spec_type(field.field_type) for field in kind.fields),
                tuple(field.name for field in kind.fields),
            )
        case _:
            return ColumnType(_NAMES.get(kind, str(kind)))


def wanted_fields(spec: TypedSpec) -> tuple[NestedField, ...]:
    """The columns that the spec asks for, those of the system last, with ids counted from 1."""
    ids = count(1)
    return tuple(
        NestedField(
            field_id=next(ids),
            name=column.name,
            field_type=iceberg_type(column.parsed, ids),
            # Other columns may become required, or not, as the spec changes; Iceberg could only relax them.
            required=(column.is_system and column.required) or column.name in spec.key,
            doc=column.comment or None,
        )
        for column in spec.all_columns
    )


def new_schema(spec: TypedSpec) -> Schema:
    """The schema of a table that is made of the spec; the key's columns are its identifier fields."""
    fields = wanted_fields(spec)
    return Schema(*fields, identifier_field_ids=[f.field_id for f in fields if f.name in spec.key])


def new_partition_spec(spec: TypedSpec, schema: Schema) -> PartitionSpec:
    """How a table of that schema is partitioned, which is made of the spec."""
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(partition.column).field_id,
                field_id=PARTITION_FIELD_ID_START + index,
                transform=parse_transform(partition.iceberg),
                name=partition.name,
            )
            for index, partition in enumerate(spec.partitions)
        )
    )


def arrow_schema(schema: Schema) -> pa.Schema:
    """What rows of the table are in Arrow, with the ids that Parquet files are read by.

    Raises: ValueError: it has a type that specs do not have.
    """
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: NestedField) -> pa.Field:
    return pa.field(
        field.name,
        _arrow_type(field.field_type),
        nullable=field.optional,
        metadata={_FIELD_ID: str(field.field_id)},
    )


def _arrow_type(kind: IcebergType) -> Any:
    match kind:
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case ListType():
            return pa.list_(_arrow_field(kind.element_field))
        case MapType():
            return pa.map_(_arrow_field(kind.key_field), _arrow_field(kind.value_field))
        case StructType():
            return pa.struct([_arrow_field(field) for field in kind.fields])
        case _:
            if kind not in _ARROW:
                raise ValueError(f"{kind} is not a type of typed tables")
            return _ARROW[kind]
