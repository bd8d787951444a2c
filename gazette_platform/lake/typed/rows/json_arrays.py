"""Arrow arrays of JSON values, by Arrow's reader, with what it does not heed by itself. Pure.

`columns` says which values fit a type. Here each type is read in one of two ways:

- *easy*: Arrow's reader makes an array of the type, or of another (`read_type`) that is then converted: texts
  to dates, times without zone, bytes and UUIDs, integers to instants. What it lets pass and must not is
  looked for: infinities, NaN, digits that do not fit a decimal, years before 1 and behind 9999.
- *hard*: the type has a map or `json` somewhere, which Arrow does not read. msgspec takes the value apart until
  what is left is easy, or the text of a `json`; the easy parts of all values are read by Arrow at once.

All is refused, or nothing: whoever calls finds out which value it was.
"""

from __future__ import annotations

import binascii
import json
from collections import Counter
from decimal import Context, Decimal, InvalidOperation
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import json as arrow_json
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from gazette_platform.errors import DataError
from gazette_platform.lake.spec.types import TRUNCATED
from gazette_platform.lake.typed.schema.iceberg_types import arrow_schema, iceberg_type
from gazette_platform.message.arrow_parsers import DEPTH_MAX, check_depth, depth_of
from gazette_platform.message.uuid import uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gazette_platform.lake.spec.types import ColumnType

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
_SCALARS_THAT_FIT: Final = frozenset({"string", "boolean", "int", "bigint"})
_NULL: Final = b"null"
# As many digits as decimals have; Python's own rounds behind 28.
_EXACTLY: Final = Context(prec=38)
# Python's own stack is what takes values apart, and how much of it is left depends on who calls.
_DEPTH_MAX: Final = 400


class RefusedError(Exception):
    """Some value of many does not fit, or some line is not a record."""


# ------------------------------------------------------------------ types


def is_hard(kind: ColumnType) -> bool:
    """Whether Arrow cannot read the type, or a part of it."""
    return kind.name in ("json", "map") or any(map(is_hard, kind.arguments))


def plain_type(kind: ColumnType) -> Any:
    """The Arrow type of values in a typed table, without ids of fields."""
    ids = count(1)
    field = NestedField(next(ids), "v", iceberg_type(kind, ids), required=False)
    return _without_ids(arrow_schema(Schema(field)).field(0)).type


def _without_ids(field: Any) -> Any:
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_without_ids(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_without_ids(kind.key_field), _without_ids(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_without_ids(part) for part in kind])
    return pa.field(field.name, kind, nullable=field.nullable)


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
            return pa.string() if (kind.name, form) == _UNSCALED else plain_type(kind)


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
            return _EpochConverter(_PER_S[form], plain_type(kind))
        case "timestamptz" | "timestamp":
            return _TextConverter(kind, form)
        case "decimal" if form == "base64":
            return _UnscaledConverter(plain_type(kind))
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
        self._type = plain_type(kind)
        self._inner = inner

    def __call__(self, array: Any) -> Any:
        return rebuilt(array, self._type, [self._inner(array.values)])


@final
class _StructConverter:
    """Takes those fields of the type, which may be fewer than were read."""

    def __init__(self, kind: ColumnType, form: str) -> None:
        self._type = plain_type(kind)
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
        self._type = plain_type(kind)
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


# ------------------------------------------------------------------ reading


@final
class LineReader:
    """Reads lines that are objects, by Arrow.

    Args:
        schema: types of `read_type`, by key.
        forbids_unknown: whether any other key, at any depth, is refused.
    """

    def __init__(self, schema: pa.Schema, *, forbids_unknown: bool) -> None:
        self._options = arrow_json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="error" if forbids_unknown else "ignore",
        )

    def read(self, content: bytes, rows: int, *, longest: int | None = None) -> pa.Table:
        """Columns of one chunk.

        Args:
            content: plain lines, as `records` looks for.
            rows: how many there are.
            longest: bytes of the longest line; None: unknown.

        Raises: RefusedError: something does not fit, or there are not as many.
        """
        try:
            # A short line cannot go deep.
            if longest is None or longest > DEPTH_MAX:
                check_depth(content)
            table = arrow_json.read_json(
                pa.BufferReader(content),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
                parse_options=self._options,
            )
        except (pa.ArrowException, DataError) as err:
            raise RefusedError from err
        if table.num_rows != rows:
            raise RefusedError
        return table


@final
class ValueReader:
    """Reads values of one type, each a text of JSON.

    Args:
        form: how values are written, of `FORMATS`.
        forbids_unknown: whether structs with keys that are not fields are refused.

    Attributes:
        kind, form: as given.
        parts: readers of what arrays, maps and structs hold.
    """

    def __init__(self, kind: ColumnType, form: str, *, forbids_unknown: bool) -> None:
        self.kind = kind
        self.form = form
        self._type = plain_type(kind)
        self._forbids_unknown = forbids_unknown
        self.parts = [
            ValueReader(part, form, forbids_unknown=forbids_unknown) for part in kind.arguments
        ]
        if is_hard(kind):
            hard = {"json": self._texts, "array": self._lists, "map": self._maps}
            self._read = hard.get(kind.name, self._structs)
            is_array = kind.name == "array"
            shape = list[msgspec.Raw] if is_array else dict[str, msgspec.Raw]
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shape)
        else:
            self._read = self._by_arrow
            self._convert = converter(kind, form)
            schema = pa.schema([("v", read_type(kind, form))])
            self._lines = LineReader(schema, forbids_unknown=forbids_unknown)

    def read(self, values: Sequence[bytes | None]) -> pa.Array:
        """An array of as many rows. `None` is a value that is not there, which is null.

        Args:
            values: each one JSON value on one line, in UTF-8, that was found in a line that is not
            `is_too_deep`, and that Arrow has read.

        Raises: RefusedError: one of them does not fit.
        """
        try:
            return self._read(values)
        except (pa.ArrowException, DataError, msgspec.DecodeError, ValueError) as err:
            raise RefusedError from err

    def _by_arrow(self, values: Sequence[bytes | None]) -> pa.Array:
        if not values:
            return pa.nulls(0, self._type)
        content = b"".join(b'{"v":%b}\n' % (value or _NULL) for value in values)
        array = self._lines.read(content, len(values)).column(0).chunk(0)
        return array if self._convert is None else self._convert(array)

    def _texts(self, values: Sequence[bytes | None]) -> pa.Array:
        # As they were written; what is in them was looked at by whoever took them out of their line.
        return pa.array(values, pa.binary()).cast(pa.string())

    def _lists(self, values: Sequence[bytes | None]) -> pa.Array:
        decoded = [self._decoded(value) for value in values]
        items = [bytes(item) for each in decoded if each is not None for item in each]
        return pa.ListArray.from_arrays(_offsets(decoded), self.parts[0].read(items), self._type)

    def _maps(self, values: Sequence[bytes | None]) -> pa.Array:
        decoded = [self._decoded(value) for value in values]
        there = [each for each in decoded if each is not None]
        keys = pa.array([key for each in there for key in each], pa.string())
        items = [bytes(item) for each in there for item in each.values()]
        found = self.parts[1].read(items)
        return pa.MapArray.from_arrays(_offsets(decoded), keys, found, self._type)

    def _structs(self, values: Sequence[bytes | None]) -> pa.Array:
        decoded = [self._decoded(value) for value in values]
        names = self.kind.field_names
        if self._forbids_unknown:
            known = frozenset(names)
            if any(each is not None and not each.keys() <= known for each in decoded):
                raise RefusedError
        children = []
        for name, part in zip(names, self.parts, strict=True):
            found = [each.get(name) if each is not None else None for each in decoded]
            children.append(part.read([None if raw is None else bytes(raw) for raw in found]))
        is_null = pa.array([each is None for each in decoded], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(self._type), mask=is_null)

    def _decoded(self, value: bytes | None) -> Any:
        if value is None or value == _NULL:
            return None
        found = self._decoder.decode(value)
        if isinstance(found, dict):
            known = None if self.kind.name == "map" else self.kind.field_names
            if has_repeated_key(value, found, known):
                raise RefusedError
        return found


def _offsets(decoded: Iterable[Any]) -> pa.Array:
    """Where each one begins among the items of all; a null says that it is null itself."""
    listed = list(decoded)
    ends = list(accumulate((len(each) if each is not None else 0 for each in listed), initial=0))
    starts = [None if each is None else at for each, at in zip(listed, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())


def is_too_deep(text: bytes) -> bool:
    """Whether values may lie deeper within each other than msgspec is asked to go."""
    return depth_of(text, _DEPTH_MAX) > _DEPTH_MAX


def has_repeated_key(text: bytes, found: dict[str, Any], keys: Sequence[str] | None) -> bool:
    """Whether an object has one of `keys` twice.

    Args:
        keys: those that matter; None: all.
    """
    repeated = repeated_keys(text, found)
    return bool(repeated) if keys is None else not repeated.isdisjoint(keys)


def repeated_keys(text: bytes, found: dict[str, Any]) -> frozenset[str]:
    """Which keys an object has twice; msgspec takes the last one in silence.

    Args:
        text: the object, not deep.
        found: what msgspec made of it.
    """
    # Never longer than what it was made of, and shorter if a key was dropped.
    if len(msgspec.json.encode(found)) == len(text):
        return frozenset()
    last: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        last[:] = pairs  # of the outermost object in the end

    # Digits without end are numbers as well, which Python's integers refuse.
    json.loads(text, object_pairs_hook=keep, parse_int=str, parse_float=str)
    return frozenset(name for name, times in Counter(name for name, _ in last).items() if times > 1)
