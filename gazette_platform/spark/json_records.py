"""Lines of JSON as columns, by Arrow; lines that are not records of the schema are found, and left out.

Arrow refuses a block for one bad line, and takes some things wrongly: values over two lines or two in one, texts
that are not UTF-8, `NaN`, a year 0, digits beyond a decimal's. So a block is checked before and after, and if it is
refused, msgspec looks at each line, and Arrow has the last word. A line is kept alone if and only if it is among others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import json as arrow_json

from gazette_platform.errors import DataError
from gazette_platform.message.arrow_parsers import check_depth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["JsonRecords", "RefusedError", "check_years", "json_uuids"]

_DAY_US: Final = 86_400_000_000
_YEAR_1_DAY: Final = -719_162
_YEAR_10000_DAY: Final = 2_932_897


class RefusedError(Exception):
    """Lines are not good as a whole; says why."""


@final
class JsonRecords:
    """Makes columns of lines. Not for several threads.

    Args:
        schema: of the columns, at least one, by the keys of records.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        parsed = pa.schema([(field.name, _parsed_type(field.type)) for field in schema])
        self._options = arrow_json.ParseOptions(
            explicit_schema=parsed, unexpected_field_behavior="ignore"
        )
        self._may_be_good = _line_check(schema)

    def fit(self, content: bytes) -> pa.Table:
        """All lines of `content`, which ends with a newline, as columns. Raises: RefusedError."""
        _check_plain(content)
        try:
            check_depth(content)
            table = arrow_json.read_json(
                pa.BufferReader(content),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
                parse_options=self._options,
            )
            if table.num_rows != content.count(b"\n"):
                raise RefusedError("it is not one JSON object")
            columns = [
                _typed(table.column(field.name).combine_chunks(), field.type)
                for field in self._schema
            ]
        except (pa.ArrowException, DataError) as err:
            raise RefusedError(str(err)) from err
        return pa.Table.from_arrays(columns, schema=self._schema)

    def may_be_good(self, line: bytes) -> bool:
        """Whether a line is worth being given to Arrow among others."""
        return self._may_be_good(line)


def json_uuids(lines: Sequence[bytes], path: tuple[str, ...]) -> pa.Array:
    """The texts at `path` of each line, for all at once where Arrow takes them; null where there is none."""
    kind: pa.DataType = pa.string()
    for key in reversed(path[1:]):
        kind = pa.struct([(key, kind)])
    try:
        table = JsonRecords(pa.schema([(path[0], kind)])).fit(b"\n".join([*lines, b""]))
    except RefusedError:
        return pa.array([_text_at(line, path) for line in lines], pa.string())
    found = table.column(0).combine_chunks()
    for key in path[1:]:
        found = pc.struct_field(found, key)
    return found


def _text_at(line: bytes, path: tuple[str, ...]) -> str | None:
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    # A lone surrogate, which JSON can name and a column of texts cannot hold, is not a UUID.
    return value if isinstance(value, str) and value.isascii() else None


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader of JSON can make: dates come as texts."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _parsed_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _parsed_type(kind.value_type)))
    return kind


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of its type. Raises: RefusedError, pa.ArrowException: a value is not what JSON or Spark has."""
    _check_values(column, kind)
    return column if column.type == kind else pc.cast(column, kind)


def _check_values(column: pa.Array, kind: pa.DataType) -> None:
    types = pa.types
    if types.is_struct(kind):
        for index, field in enumerate(kind):
            _check_values(column.field(index), field.type)
    elif types.is_list(kind):
        _check_values(column.flatten(), kind.value_type)
    elif types.is_decimal(kind):
        # It compares digits before it scales a number: 1234 becomes 1234.00 of a decimal(5,2).
        column.validate(full=True)
    elif types.is_floating(kind):
        if pc.all(pc.is_finite(column)).as_py() is False:
            raise RefusedError("NaN and infinities are not JSON")
    elif types.is_date(kind):
        if pc.any(pc.starts_with(column, "0000")).as_py():
            raise RefusedError("a year before the first")
    else:
        check_years(column)


def check_years(column: pa.Array) -> None:
    """See that days and instants are of years that Python has. Columns of other types are let pass.

    Raises: RefusedError: one is not: there is no year 0, and a zone may lead to the year 10000.
    """
    if pa.types.is_date32(column.type):
        per_day, numbers = 1, pc.cast(column, pa.int32())
    elif pa.types.is_timestamp(column.type):
        per_day, numbers = _DAY_US, pc.cast(column, pa.int64())
    else:
        return
    least, end = (pa.scalar(day * per_day, numbers.type) for day in (_YEAR_1_DAY, _YEAR_10000_DAY))
    if pc.any(pc.less(numbers, least)).as_py():
        raise RefusedError("a year before the first")
    if pc.any(pc.greater_equal(numbers, end)).as_py():
        raise RefusedError("a year behind 9999")


def _check_plain(content: bytes) -> None:
    """Raises: RefusedError: Arrow might take for records what are none, or other ones.

    It takes values from wherever they stand: an object over two lines, two in one, or none (`null` ends the
    process). Between such ends a row never spans lines.
    """
    ends = pa.array([0, len(content)], pa.int64()).buffers()[1]
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(content)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        raise RefusedError("it is not UTF-8") from None
    is_plain = content.startswith(b"{") and content.endswith(b"}\n")
    if not is_plain or content.count(b"}\n{") != content.count(b"\n") - 1:
        raise RefusedError("it is not one JSON object")


def _line_check(schema: pa.Schema) -> Callable[[bytes], bool]:
    """Whether a line is an object with values of about the right kinds."""
    decode = msgspec.json.Decoder(_struct(schema)).decode

    def may_be_good(line: bytes) -> bool:
        try:
            decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        return True

    return may_be_good


def _struct(fields: Any) -> type[msgspec.Struct]:
    """A struct of msgspec. Its attributes are numbered: keys need not be names."""
    listed = list(fields)
    return msgspec.defstruct(
        "Record",
        [(f"f{at}", _kind(field.type) | None, None) for at, field in enumerate(listed)],
        rename={f"f{at}": field.name for at, field in enumerate(listed)},
    )


def _kind(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_list(kind):
        of: Any = _kind(kind.value_type) | None
        return list[of]
    if types.is_boolean(kind):
        return bool
    if types.is_integer(kind):
        return int
    if types.is_floating(kind):
        return float
    return float | str if types.is_decimal(kind) else str
