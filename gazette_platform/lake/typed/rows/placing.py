"""Rows of a typed table, and of its bad records, out of parsed blocks: with where each came from. Pure.

`RowParter` parts them by what the table's partition spec makes of them. Where PyIceberg's own functions take a step of Python for each row, and its vectorised ones a library more, Arrow
takes a few for all. Hashes, and decimals cut short, are PyIceberg's, for each value that differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable  # noqa: TC003  of a constant
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import BinaryType, IntegerType, LongType, StringType
from pyiceberg.utils.decimal import decimal_to_bytes

from gazette_platform.errors import LakeError
from gazette_platform.lake.reading.arrow_types import rebuilt
from gazette_platform.message.uuid import uuid_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.spec.typed.columns import TypedColumn
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


_HOUR_US: Final = 3_600_000_000
_UNIX_YEAR: Final = 1970
_INT_MAX: Final = 2**31 - 1


class Part(NamedTuple):
    """Rows of one partition."""

    value: tuple[Any, ...]
    """Of each field of the spec, as `WrittenFile.partition` has it."""
    rows: pa.Table


@final
class RowParter:
    """Parts rows by a partition spec.

    Args:
        schema: of the table.
        spec: of it.

    Raises: LakeError: it has a transform that specs of typed tables do not have.
    """

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self._values: list[tuple[str, Callable[[Any], Any]]] = []
        for field in spec.fields:
            source = schema.find_field(field.source_id)
            values_of = _values_of(field.transform, source.field_type)
            if values_of is None or source not in schema.fields:
                raise LakeError(
                    f"partition field {field.name} is {field.transform} of "
                    f"{schema.find_column_name(field.source_id)}, which typed tables are not written by: "
                    "run again, and the table is parted by its spec; who changed it should change the spec"
                )
            self._values.append((source.name, values_of))

    def parts(self, rows: pa.Table) -> list[Part]:
        """The rows by partition, the largest part first; within one they are in the order that they had."""
        if not rows.num_rows:
            return []
        if not self._values:
            return [Part((), rows)]
        values = [values_of(_plain(rows.column(name))) for name, values_of in self._values]
        codes = _codes(values)
        firsts = _firsts(codes)
        if len(firsts) > pc.count_distinct(codes).as_py():
            order = pc.array_sort_indices(codes)  # stable
            rows, codes = rows.take(order), codes.take(order)
            values = [each.take(order) for each in values]
            firsts = _firsts(codes)
        of_parts = zip(*(each.take(firsts).to_pylist() for each in values), strict=True)
        begins = firsts.to_pylist()
        ends = [*begins[1:], rows.num_rows]
        parts = [
            Part(value, rows.slice(begin, end - begin))
            for value, begin, end in zip(of_parts, begins, ends, strict=True)
        ]
        return sorted(parts, key=lambda part: -part.rows.num_rows)


def _plain(column: pa.ChunkedArray) -> Any:
    """Values as PyIceberg's functions take them: instants and dates as numbers, UUIDs as bytes."""
    array = column.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    return array.cast(pa.int32()) if pa.types.is_date32(array.type) else array


def _codes(values: Sequence[Any]) -> Any:
    """A number for each row, the same where all values are."""
    codes = None
    for each in values:
        encoded = pc.dictionary_encode(each, null_encoding="encode")
        codes_of_each = encoded.indices.cast(pa.int64())
        if codes is not None:
            # Both are less than there are rows, so that the product fits; then it is less again.
            both = pc.add(pc.multiply(codes, len(encoded.dictionary)), codes_of_each)
            codes_of_each = pc.dictionary_encode(both).indices.cast(pa.int64())
        codes = codes_of_each
    return codes


def _firsts(codes: Any) -> Any:
    """Where another code begins."""
    differs = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
    return pc.indices_nonzero(pa.concat_arrays([pa.array([True]), differs]))


def _values_of(transform: Any, kind: IcebergType) -> Callable[[Any], Any] | None:
    """What makes the values of a partition out of those of a column; None: no such transform."""
    if isinstance(transform, TruncateTransform):
        return _truncation(transform, kind)
    if isinstance(transform, BucketTransform):
        # Of numbers and texts, PyIceberg hashes the bytes that these come to.
        hash_of: Any = transform.transform(BinaryType(), bucket=False)
        return partial(_each, function=partial(_buckets, hash_of, transform.num_buckets))
    return _OF_COLUMNS.get(type(transform))


def _dates(values: Any) -> Any:
    """Days, or microseconds, as dates."""
    if pa.types.is_int64(values.type):
        values = values.cast(pa.timestamp("us"))
    return values.cast(pa.date32())


def _years(dates: Any) -> Any:
    return pc.subtract(pc.year(dates), _UNIX_YEAR).cast(pa.int32())


def _months(dates: Any) -> Any:
    return pc.subtract(pc.add(pc.multiply(_years(dates), 12), pc.month(dates)), 1).cast(pa.int32())


def _days(values: Any) -> Any:
    return _dates(values).cast(pa.int32())


def _hours(values: Any) -> Any:
    hour = pa.scalar(_HOUR_US, pa.int64())
    return pc.divide(_floored(values, _HOUR_US), hour).cast(pa.int32())


_OF_COLUMNS: Final[dict[type, Callable[[Any], Any]]] = {
    IdentityTransform: lambda values: values,
    YearTransform: lambda values: _years(_dates(values)),
    MonthTransform: lambda values: _months(_dates(values)),
    DayTransform: _days,
    HourTransform: _hours,
}


def _truncation(transform: TruncateTransform[Any], kind: IcebergType) -> Callable[[Any], Any]:
    width = transform.width
    match kind:
        case StringType():
            return lambda values: pc.utf8_slice_codeunits(values, 0, width)
        case BinaryType():
            return lambda values: pc.binary_slice(values, 0, width)
        case IntegerType() | LongType():
            return lambda values: _floored(values, width)
        case _:
            return partial(_each, function=partial(_truncated, transform.transform(kind)))


def _floored(values: Any, width: int) -> Any:
    """The next multiple of `width` below each value. Arrow's division rounds to zero."""
    unit = pa.scalar(width, values.type)
    zero = pa.scalar(0, values.type)
    rest = _remainder(values, unit)
    rest = pc.if_else(pc.less(rest, zero), pc.add(rest, unit), rest)
    return pc.subtract(values, rest)


def _remainder(values: Any, unit: Any) -> Any:
    return pc.subtract(values, pc.multiply(pc.divide(values, unit), unit))


def _each(values: Any, *, function: Callable[[Any], Any]) -> Any:
    """What `function` makes of an array, which is given those values that differ, and no null."""
    encoded = pc.dictionary_encode(values)
    return function(encoded.dictionary).take(encoded.indices)


def _truncated(function: Callable[[Any], Any], values: Any) -> Any:
    return pa.array(map(function, values.to_pylist()), values.type)


def _buckets(hash_of: Callable[[bytes], int], count: int, values: Any) -> Any:
    hashes = pa.array(map(hash_of, _bytes_of(values)), pa.int32())
    positive = pc.bit_wise_and(hashes, pa.scalar(_INT_MAX, pa.int32()))
    return _remainder(positive, pa.scalar(count, pa.int32()))


def _bytes_of(values: Any) -> Iterable[bytes]:
    """What is hashed of values: the same of equal numbers, whether they are 32 bits or 64."""
    if pa.types.is_decimal(values.type):
        return map(decimal_to_bytes, values.to_pylist())
    if pa.types.is_integer(values.type):
        values = values.cast(pa.int64()).view(pa.binary(8))
    return values.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
