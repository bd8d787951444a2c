"""Which columns Spark asks for: those of where messages lie, and those that are keys of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DEFAULT_SCHEMA: Final = "value binary, _journal string, _begin bigint, _end bigint, _uuid string"
"""Of a read without a schema, as Spark writes it: a row a message."""

_META: Final = {
    "_journal": (pa.string(),),
    "_begin": (pa.int64(),),
    "_end": (pa.int64(),),
    "_uuid": (pa.string(),),
    "_corrupt": (pa.string(), pa.binary()),
}


@final
@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a read, and what each is made of. Can be pickled."""

    schema: pa.Schema
    """All, in Spark's order."""
    data: pa.Schema
    """Those that are keys of records, or fields of CSV by their places."""
    has_value: bool
    """Whether `value`, the bytes of a message, is asked for."""

    def asks_for(self, name: str) -> bool:
        """Whether a column of `_journal`, `_begin`, `_end`, `_uuid`, `_corrupt` is asked for."""
        return name in self.schema.names and name not in self.data.names


def columns_of(schema: StructType) -> Columns:
    """The columns of a schema of Spark's.

    Raises: ValidationError: all columns that cannot be read.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  slow to import

    found = to_arrow_schema(schema)
    data: list[pa.Field] = []
    errors: list[str] = []
    has_value = False
    for field in found:
        kinds = _META.get(field.name)
        if kinds is not None:
            if field.type not in kinds:
                shown = " or ".join(map(_shown, kinds))
                errors.append(f"column {field.name} is {shown}, and not {_shown(field.type)}")
        elif field.name == "value" and field.type == pa.binary():
            has_value = True
        else:
            why = _why_not(field.type)
            if why:
                errors.append(f"column {field.name}: {why}")
            data.append(field)
    if errors:
        raise ValidationError("; ".join(errors))
    return Columns(found, pa.schema(data), has_value)


def _shown(kind: pa.DataType) -> str:
    return {"int64": "bigint", "int32": "int"}.get(str(kind), str(kind))


def _why_not(kind: pa.DataType) -> str:
    """Why values of a type are not read of records; empty: they are."""
    types = pa.types
    if types.is_struct(kind):
        return next(filter(None, (_why_not(field.type) for field in kind)), "")
    if types.is_list(kind):
        return _why_not(kind.value_type)
    if types.is_binary(kind):
        return "binary is of the column `value` alone, the bytes of a message"
    is_plain = (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )
    return "" if is_plain else f"{kind} is not read (ask for `value`, and use from_json)"
