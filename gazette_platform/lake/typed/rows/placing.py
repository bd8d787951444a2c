"""Rows of a typed table, and of its bad records, out of parsed blocks: with where each came from. Pure."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError
from gazette_platform.lake.reading.arrow_types import rebuilt
from gazette_platform.message.uuid import uuid_column

if TYPE_CHECKING:
    from gazette_platform.lake.spec.typed.columns import TypedColumn
    from gazette_platform.lake.spec.typed.spec import TypedSpec
    from gazette_platform.lake.typed.rows.parsing import ParsedBlock

BAD_ROWS_SCHEMA: Final = pa.schema(
    [
        ("_journal", pa.string()),
        ("_begin", pa.int64()),
        ("_end", pa.int64()),
        ("_uuid", pa.uuid()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
    ]
)
"""Of `bad_rows`."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}\Z")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_BITS: Final = {"int": 32, "bigint": 64}


def placed_rows(
    spec: TypedSpec,
    schema: pa.Schema,
    journal: str,
    parsed: ParsedBlock,
    keep: pa.BooleanArray | None,
) -> pa.Table:
    """Rows of the table: the good messages that are kept, with their segments and places.

    Args:
        schema: the table's own, as `arrow_schema` has it. Columns that the spec does not write are null.
        keep: which messages of the block; None: all.

    Raises: LakeError: the journal's name has no value for a column that is a segment, or none of its type.
    """
    indices, rows = parsed.good, parsed.rows
    if keep is not None:
        is_kept = keep if indices is None else keep.take(indices)
        rows = rows.filter(is_kept)
        indices = pc.indices_nonzero(is_kept) if indices is None else indices.filter(is_kept)
    begins, ends, parts = (
        array if indices is None else array.take(indices)
        for array in (parsed.begins, parsed.ends, parsed.parts)
    )
    given = {"_begin": begins, "_end": ends, "_uuid": uuid_column(parts)}
    constants = {"_journal": pa.scalar(journal, pa.string())}
    for column in spec.written_columns:
        if column.segment:
            constants[column.name] = _segment_value(column, journal)
        else:
            given[column.name] = _one_array(rows.column(column.name))
    found = []
    for field in schema:
        if field.name in constants:
            array = pa.repeat(constants[field.name].cast(field.type), len(begins))
        elif field.name in given:
            array = _as_type(given[field.name], field.type)
        else:
            array = pa.nulls(len(begins), field.type)
        found.append(array)
    return pa.Table.from_arrays(found, schema=schema)


def bad_rows(
    journal: str, parsed: ParsedBlock, content: bytes, begin: int, keep: pa.BooleanArray | None
) -> pa.Table:
    """Rows of `BAD_ROWS_SCHEMA`: the bad messages that are kept, as they lie.

    Args:
        content, begin: the block that was parsed.
        keep: which messages of the block; None: all.
    """
    bad = [one for one in parsed.bad if keep is None or keep[one.number].as_py()]
    indices = pa.array([one.number for one in bad], pa.int64())
    begins, ends = parsed.begins.take(indices), parsed.ends.take(indices)
    spans = zip(begins.to_pylist(), ends.to_pylist(), strict=True)
    arrays = [
        pa.array([journal] * len(bad), pa.string()),
        begins,
        ends,
        uuid_column(parsed.parts.take(indices)),
        pa.array([one.reason for one in bad], pa.string()),
        pa.array([content[first - begin : end - begin] for first, end in spans], pa.binary()),
    ]
    return pa.Table.from_arrays(arrays, schema=BAD_ROWS_SCHEMA)


def in_schema(bad: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bad rows in the columns of a quarantine table, whose types are theirs; others are null.

    Args:
        schema: of the table.
    """
    arrays: list[Any] = [
        bad.column(field.name)
        if field.name in bad.column_names
        else pa.nulls(bad.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _segment_value(column: TypedColumn, journal: str) -> pa.Scalar:
    found = [
        value
        for key, equals, value in (part.partition("=") for part in journal.split("/"))
        if equals and key == column.segment
    ]
    told = f"{journal}: column {column.name} is segment {column.segment!r} of the journal's name"
    remedy = f"correct `segment` of {column.name} in the table spec, or have the selector leave the journal out"
    if len(found) != 1 or not found[0]:
        missing = "occurs more than once" if len(found) > 1 else "has no value there"
        raise LakeError(f"{told}, which {missing}: {remedy}")
    kind, text = column.parsed.name, found[0]
    try:
        value = _typed(text, kind)
    except ValueError as err:
        raise LakeError(
            f"{told}, and {text[:80]!r} is no {kind}: correct its `type`, or {remedy}"
        ) from err
    return pa.scalar(value, {"string": pa.string(), "date": pa.date32()}.get(kind, pa.int64()))


def _typed(text: str, kind: str) -> Any:
    """A segment's value. Raises: ValueError."""
    if kind == "string":
        return text
    if kind == "date":
        if not _DATE.match(text):
            raise ValueError(text)
        return date.fromisoformat(text)
    bound = 1 << _BITS[kind] - 1
    if not _INTEGER.match(text) or not -bound <= int(text) < bound:
        raise ValueError(text)
    return int(text)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """Without an offset of its own, so that what is below can be taken apart."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return array if not array.offset else pa.concat_arrays([array])


def _as_type(array: Any, kind: Any) -> Any:
    """The same values in a type of the table, whose structs may have other fields, in another order."""
    if array.type.equals(kind, check_metadata=True):
        return array
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    if pa.types.is_struct(kind):
        return rebuilt(array, kind, [_field_as_type(array, field) for field in kind])
    if pa.types.is_list(kind):
        return rebuilt(array, kind, [_as_type(array.values, kind.value_type)])
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [_as_type(array.keys, kind.key_type), _as_type(array.items, kind.item_type)],
            fields=[kind.key_field, kind.item_field],
        )
        return rebuilt(array, kind, [entries])
    return array.cast(kind)


def _field_as_type(array: Any, field: Any) -> Any:
    if array.type.get_field_index(field.name) < 0:
        return pa.nulls(len(array), field.type)
    return _as_type(array.field(field.name), field.type)
