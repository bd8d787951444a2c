"""Types of columns as Arrow types, and what is made of what Arrow's reader of JSON gives. Pure.

A type is *hard* if it has a map or `json` somewhere, which Arrow does not read; all others are *easy*. An easy one is read as
itself, or as another type (`read_type`) that `converter` converts: texts to dates, times without zone, bytes and UUIDs, integers
to instants. Arrow lets pass infinities, NaN, digits beyond a decimal's, and years before 1 and after 9999: conversions refuse them.
"""

from __future__ import annotations

import binascii
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.lake.spec.types import TRUNCATED, ColumnType
from gazette_platform.message.uuid import uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UUID_CHARS: Final = 36
_DATE_CHARS: Final = len("2026-01-02")
_ZONE: Final = r"\A.{11,}(Z|[+-][0-9]{2}(:?[0-9]{2})?)\z"
_YEAR_1_S: Final = -62_135_596_800
_YEAR_10000_S: Final = 253_402_300_800
_PER_S: Final = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}
_DAYS: Final = "epoch_days"
_UNSCALED: Final = ("decimal", "base64")
# Forms that are integers.
_INTEGERS: Final = {**dict.fromkeys(_PER_S, pa.int64()), _DAYS: pa.int32()}
_DAY_S: Final = 86_400
_SCALARS_THAT_FIT: Final = frozenset({"string", "boolean", "tinyint", "smallint", "int", "bigint"})
# As many digits as decimals have; Python's own rounds behind 28.
_EXACTLY: Final = Context(prec=38)
_STRING: Final = ColumnType("string")
_PRIMITIVES: Final = {
    "string": pa.string(),
    "json": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
    "uuid": pa.uuid(),
}


class RefusedError(Exception):
    """Some value of many does not fit, or some line is not a record."""


# ------------------------------------------------------------------ types


def is_hard(kind: ColumnType) -> bool:
    """Whether Arrow cannot read the type, or a part of it."""
    return kind.name in ("json", "map") or any(map(is_hard, kind.arguments))


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Arrow's type of a column.

    >>> from gazette_platform.lake.spec.types import parse_type
    >>> str(arrow_type(parse_type("array<decimal(5,2)>")))
    'list<element: decimal128(5, 2)>'
    """
    match kind.name:
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case "array":
            return pa.list_(pa.field("element", arrow_type(kind.arguments[0])))
        case "map":
            return pa.map_(*map(arrow_type, kind.arguments))
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            return pa.struct([(name, arrow_type(of)) for name, of in fields])
        case _:
            return _PRIMITIVES[kind.name]


def with_uuid(kind: ColumnType | None, path: Sequence[str]) -> ColumnType:
    """A type with a text at `path`, unless there is one; None: nothing but that text."""
    if not path:
        return _STRING if kind is None else kind
    names, parts = (kind.field_names, kind.arguments) if kind is not None else ((), ())
    first, *rest = path
    if first not in names:
        return ColumnType("struct", (*parts, with_uuid(None, rest)), (*names, first))
    found = (
        with_uuid(part, rest) if name == first else part
        for name, part in zip(names, parts, strict=True)
    )
    return ColumnType("struct", tuple(found), tuple(names))


def read_type(kind: ColumnType, form: str) -> Any:
    """What Arrow's reader is asked for, of an easy type.

    Args:
        form: how values are written, of `FORMATS`.
    """
    match kind.name:
        case "array":
            return pa.list_(pa.field("element", read_type(kind.arguments[0], form)))
        case "struct":
            parts = zip(kind.field_names, kind.arguments, strict=True)
            return pa.struct([(name, read_type(part, form)) for name, part in parts])
        case _ if form in _INTEGERS:
            return _INTEGERS[form]
        case "date" | "timestamp" | "timestamptz" | "binary" | "uuid":
            return pa.string()
        case _:
            return pa.string() if (kind.name, form) == _UNSCALED else arrow_type(kind)


# ------------------------------------------------------------------ conversions


def converter(kind: ColumnType, form: str) -> Callable[[pa.Array], pa.Array] | None:
    """From an array as it was read to one of the type, with all that Arrow lets pass looked for.

    Returns: a function that raises RefusedError, or an error of Arrow; None: nothing is to be done.
    """
    match kind.name:
        case "array":
            inner = converter(kind.arguments[0], form)
            return None if inner is None else _ListConverter(kind, inner)
        case "struct":
            return _StructConverter(kind, form)
        case name if name in _SCALARS_THAT_FIT:
            return None
        case _:
            return _scalar_converter(kind, form)


def _scalar_converter(kind: ColumnType, form: str) -> Callable[[pa.Array], pa.Array]:
    match kind.name:
        case "timestamptz" | "timestamp" if form in _PER_S:
            return _EpochConverter(_PER_S[form], arrow_type(kind))
        case "timestamptz" | "timestamp":
            return _TextConverter(kind, form)
        case "decimal" if form == "base64":
            return _UnscaledConverter(arrow_type(kind))
        case "binary":
            decode = binascii.unhexlify if form == "hex" else _from_base64
            return _BytesConverter(decode)
        case name:
            return _days if form == _DAYS else _CONVERTERS[name]


def rebuilt(array: Any, kind: Any, children: Sequence[Any]) -> Any:
    """A list, map or struct of the same places and nulls with other children.

    Args:
        array: without an offset of its own.
    """
    buffers = array.buffers()[: 1 if pa.types.is_struct(kind) else 2]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, 0, children=list(children)
    )


def narrowed(array: Any, kind: Any) -> Any:
    """An array of structs with those fields that `kind` has, at any depth of structs."""
    if not pa.types.is_struct(kind):
        return array
    children = [narrowed(array.field(field.name), field.type) for field in kind]
    return rebuilt(array, kind, children)


@final
class _ListConverter:
    def __init__(self, kind: ColumnType, inner: Callable[[pa.Array], pa.Array]) -> None:
        self._type = arrow_type(kind)
        self._inner = inner

    def __call__(self, array: Any) -> Any:
        return rebuilt(array, self._type, [self._inner(array.values)])


@final
class _StructConverter:
    """Takes those fields of the type, which may be fewer than were read."""

    def __init__(self, kind: ColumnType, form: str) -> None:
        self._type = arrow_type(kind)
        parts = zip(kind.field_names, kind.arguments, strict=True)
        self._parts = [(name, converter(part, form)) for name, part in parts]

    def __call__(self, array: Any) -> Any:
        children = []
        for name, convert in self._parts:
            child = array.field(name)
            children.append(child if convert is None else convert(child))
        return rebuilt(array, self._type, children)


@final
class _EpochConverter:
    def __init__(self, per_s: int, kind: pa.DataType) -> None:
        self._least, self._end = _YEAR_1_S * per_s, _YEAR_10000_S * per_s
        self._factor = 1_000_000 // per_s
        self._type = kind

    def __call__(self, array: Any) -> Any:
        _refuse(_lies_outside(array, self._least, self._end))
        micros = pc.multiply(array, pa.scalar(self._factor, pa.int64()))
        return micros.cast(self._type)


@final
class _TextConverter:
    """Of times that are texts of ISO 8601, most often as they stand."""

    def __init__(self, kind: ColumnType, form: str) -> None:
        self._type = arrow_type(kind)
        truncates = form.endswith(TRUNCATED)
        self._excess = r"(\.[0-9]{6})[0-9]+" if truncates else r"(\.[0-9]{6})0+"

    def __call__(self, array: Any) -> Any:
        try:
            found = pc.cast(array, self._type)
        except pa.ArrowInvalid:
            found = pc.cast(self._plain(array), self._type)
        # Arrow reads a year 0; and a zone leads out of the years that Python and engines have.
        numbers = found.view(pa.int64())
        _refuse(_lies_outside(numbers, _YEAR_1_S * 1_000_000, _YEAR_10000_S * 1_000_000))
        return found

    def _plain(self, array: Any) -> Any:
        """As Arrow takes it: six digits of a second at most, and a zone if and only if the type has one."""
        texts = pc.replace_substring_regex(pc.ascii_upper(array), self._excess, r"\1")
        if self._type.tz is None:
            return texts
        is_date = pc.equal(pc.binary_length(texts), _DATE_CHARS)
        utc = pc.if_else(is_date, "T00:00:00Z", "Z")
        has_zone = pc.match_substring_regex(texts, _ZONE)
        return pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, utc, ""))


@final
class _BytesConverter:
    """Of texts, each by itself: Arrow has no such function."""

    def __init__(self, decode: Callable[[str], bytes]) -> None:
        self._decode = decode

    def __call__(self, array: Any) -> Any:
        decode = self._decode
        try:
            found = [None if text is None else decode(text) for text in array.to_pylist()]
        except ValueError as err:
            raise RefusedError from err
        return pa.array(found, pa.binary())


@final
class _UnscaledConverter:
    """Of decimals that are the bytes of their unscaled number, as texts."""

    def __init__(self, kind: pa.DataType) -> None:
        self._type = kind

    def __call__(self, array: Any) -> Any:
        try:
            found = [None if text is None else self._value(text) for text in array.to_pylist()]
        except (ValueError, InvalidOperation) as err:
            raise RefusedError from err
        return pa.array(found, self._type)

    def _value(self, text: str) -> Decimal:
        unscaled = int.from_bytes(_from_base64(text), "big", signed=True)
        if abs(unscaled) >= 10**self._type.precision:
            raise ValueError(text)
        return Decimal(unscaled).scaleb(-self._type.scale, _EXACTLY)


def _days(array: Any) -> Any:
    _refuse(_lies_outside(array, _YEAR_1_S // _DAY_S, _YEAR_10000_S // _DAY_S))
    return array.cast(pa.date32())


def _from_base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _refuse(condition: Any) -> None:
    """Raises: RefusedError: the condition is true anywhere."""
    if pc.any(condition).as_py() is True:
        raise RefusedError


def _lies_outside(numbers: Any, least: int, end: int) -> Any:
    low, high = (pa.scalar(number, numbers.type) for number in (least, end))
    return pc.or_(pc.less(numbers, low), pc.greater_equal(numbers, high))


def _finite(array: Any) -> Any:
    # `NaN` and `Infinity` are not JSON; and 1e39 does not fit 32 bits.
    if pc.all(pc.is_finite(array)).as_py() is False:
        raise RefusedError
    return array


def _decimal(array: Any) -> Any:
    # The reader compares digits before it scales a number: 1234 becomes 1234.00 of a decimal(5,2).
    array.validate(full=True)
    return array


def _date(array: Any) -> Any:
    _refuse(pc.starts_with(array, "0000"))
    return pc.cast(array, pa.date32())


def _uuid(array: Any) -> Any:
    if pc.any(pc.not_equal(pc.binary_length(array), _UUID_CHARS)).as_py() is True:
        raise RefusedError
    texts = pc.fill_null(array, "0" * 8 + "-0000-0000-0000-" + "0" * 12).to_pylist()
    raw = pa.py_buffer(uuid_bytes(texts))
    found = pa.Array.from_buffers(pa.binary(16), len(array), [None, raw])
    if array.null_count:
        found = pc.if_else(array.is_null(), pa.scalar(None, pa.binary(16)), found)
    return pa.ExtensionArray.from_storage(pa.uuid(), found)


_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": _finite,
    "double": _finite,
    "decimal": _decimal,
    "date": _date,
    "uuid": _uuid,
}
