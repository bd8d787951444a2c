"""Lines of JSON as Arrow columns, all or none: the parser of raw tables, typed tables and Spark's source. Pure.

Arrow's reader makes the columns of easy types, and those of hard ones are taken apart by msgspec until what is left is easy, or the
text of a `json`; Arrow reads the easy parts of all values at once. What Arrow does not check by itself is checked here and in
`arrow_types`: depth, UTF-8, that each line is one object, that keys do not repeat.

Nothing here looks at two lines together, so a line is taken alone if and only if it is taken among others. What happens to a
line that is refused is the policy of the caller: raw tables give NULL for the values that do not fit (`raw_rows`), typed tables
quarantine the record with a reason, and Spark's source makes a row of NULLs, drops the record or fails. `sifting` finds the line.

`ScalarReader` makes columns of texts, numbers and dates by msgspec alone: of a few of many keys with half the work of Arrow's
reader, and of many keys with as much. Raw tables use it: it takes the last of two values of a key, as engines do, where
`JsonReader` refuses the line. Arrow's own way from Python values to arrays, `pa.array`, imports pandas where that is installed: half a second of a query.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections import Counter
from datetime import date
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import json as arrow_json

from gazette_platform.errors import DataError
from gazette_platform.lake.reading.arrow_types import (
    RefusedError,
    arrow_type,
    converter,
    is_hard,
    narrowed,
    read_type,
    with_uuid,
)
from gazette_platform.message.arrow_parsers import check_depth, depth_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_platform.lake.spec.types import ColumnType


_NULL: Final = b"null"
# Python's own stack is what takes values apart, and how much of it is left depends on who calls.
_DEPTH_MAX: Final = 400
# Arrow is asked for it where nothing else is asked for, and gives a row for each line then.
_NO_KEY: Final = "\0"


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

    def read(self, content: bytes, rows: int) -> pa.Table:
        """Columns of one chunk.

        Args:
            content: lines that `check_plain` lets pass.
            rows: how many there are.

        Raises: RefusedError: something does not fit, or there are not as many.
        """
        try:
            check_depth(content)
            table = arrow_json.read_json(
                pa.BufferReader(content),
                # A block as large as all: a line may not lie in two.
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
                parse_options=self._options,
            )
        except (pa.ArrowException, DataError) as err:
            raise RefusedError(str(err)) from err
        if table.num_rows != rows:
            raise RefusedError("it is not one JSON object")
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
        self._type = arrow_type(kind)
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


# ------------------------------------------------------------------ records


class Field(NamedTuple):
    """What is made of the values of a key."""

    kind: ColumnType
    form: str = ""
    """How values are written, of `FORMATS`."""


class Columns(NamedTuple):
    """What lines hold."""

    arrays: dict[str, pa.Array]
    """By key, each of its type."""
    uuids: pa.Array
    """Texts at the path of UUIDs; null where there is none."""


@final
class JsonReader:
    """Reads lines that are objects as columns: all of them, or none.

    Args:
        fields: by key.
        uuid: path of a text that is read besides, within a field or not; empty: there is none.
        forbids_unknown: whether keys that are neither fields nor on the path are refused.

    Attributes:
        values: readers of single values, by key, with the text of the path in them if it lies there.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        *,
        uuid: Sequence[str] = (),
        forbids_unknown: bool = False,
    ) -> None:
        self._fields = dict(fields)
        self._uuid = uuid
        kinds = {key: field.kind for key, field in fields.items()}
        if uuid and uuid[0] in kinds:
            kinds[uuid[0]] = with_uuid(kinds[uuid[0]], uuid[1:])
        self.values = {
            key: ValueReader(kinds[key], field.form, forbids_unknown=forbids_unknown)
            for key, field in fields.items()
        }
        hard = [key for key, field in fields.items() if is_hard(field.kind)]
        easy = [key for key in fields if key not in hard]
        schema = {key: read_type(kinds[key], fields[key].form) for key in easy}
        if uuid and uuid[0] not in schema:
            schema[uuid[0]] = read_type(with_uuid(None, uuid[1:]), "")
        self._lines = LineReader(
            pa.schema(list((schema or {_NO_KEY: pa.string()}).items())),
            forbids_unknown=forbids_unknown and not hard,
        )
        self._converters = {key: converter(fields[key].kind, fields[key].form) for key in easy}
        self._taker = None
        if hard:
            if uuid and uuid[0] not in kinds:
                kinds[uuid[0]] = with_uuid(None, uuid[1:])
            taken = kinds if forbids_unknown else {key: kinds[key] for key in hard}
            self._taker = _Taker(taken, hard, forbids_unknown=forbids_unknown)

    def read(self, content: bytes) -> Columns:
        """Columns of one line or more, each with its newline. Raises: RefusedError: one does not fit."""
        count = check_plain(content)
        table = self._lines.read(content, count)
        try:
            raws = self._taker.take(content) if self._taker is not None else {}
            arrays = {
                key: self._array(key, field, table, raws) for key, field in self._fields.items()
            }
            return Columns(arrays, self._uuids(table, count))
        except (pa.ArrowException, DataError) as err:
            raise RefusedError(str(err)) from err

    def _array(
        self, key: str, field: Field, table: pa.Table, raws: dict[str, list[bytes | None]]
    ) -> pa.Array:
        if key in raws:
            return narrowed(self.values[key].read(raws[key]), arrow_type(field.kind))
        array, convert = table.column(key).chunk(0), self._converters[key]
        return array if convert is None else convert(array)

    def _uuids(self, table: pa.Table, count: int) -> pa.Array:
        if not self._uuid:
            return pa.nulls(count, pa.string())
        first, *rest = self._uuid
        column = table.column(first).chunk(0)
        return pc.struct_field(column, rest) if rest else column


def check_plain(content: bytes) -> int:
    """Refuse lines of which Arrow might make other records than there are.

    It takes values from wherever they stand: an object over two lines, two in one, or none (`null` ends the
    process). Between such ends a row never spans lines: after ``}`` a ``{`` begins another value. So with as many rows
    as lines, each line is one. It takes texts that are not UTF-8, too.

    Returns: how many lines there are.
    Raises: RefusedError: a line does not begin with ``{`` or end with ``}``, or is not UTF-8.
    """
    count = content.count(b"\n")
    end = b"}\r\n" if content.endswith(b"\r\n") else b"}\n"
    is_plain = content.startswith(b"{") and content.endswith(end)
    if not is_plain or content.count(end + b"{") != count - 1:
        raise RefusedError("it is not one JSON object")
    if not content.isascii():
        try:
            as_text(content, pa.large_string()).validate(full=True)
        except pa.ArrowInvalid as err:
            raise RefusedError("it is not UTF-8") from err
    return count


def as_text(content: bytes, kind: Any) -> Any:
    """All of it as the one value of an array, which is not copied."""
    ends = pa.py_buffer(struct.pack("<2q", 0, len(content)))
    return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(content)])


@final
class _Taker:
    """Takes values of hard types out of lines, as they are written.

    Args:
        kinds: by key, of all that a line is looked at for.
        keys: those to take.
        forbids_unknown: whether other keys are refused.
    """

    def __init__(
        self, kinds: dict[str, ColumnType], keys: Sequence[str], *, forbids_unknown: bool
    ) -> None:
        # What lies within hard values is looked at when they are read.
        shapes = [
            (key, msgspec.Raw if key in keys else _shape_of(kind)) for key, kind in kinds.items()
        ]
        self._keys = list(keys)
        self._attributes = [f"f{at}" for at, key in enumerate(kinds) if key in keys]
        self._marks = [b'"%b"' % key.encode() for key in keys]
        record = record_of(shapes, forbids_unknown=forbids_unknown)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(record)
        self._pairs = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def take(self, content: bytes) -> dict[str, list[bytes | None]]:
        """The values of each line, by key; None: it has none.

        Raises: RefusedError: a line is not JSON, lies too deep, has one of the keys twice or one that is unknown.
        """
        lines = content.split(b"\n")[:-1]
        if any(map(is_too_deep, lines)):
            raise RefusedError
        try:
            records = self._decoder.decode_lines(content)
            is_repeated = any(map(self._is_repeated, lines))
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise RefusedError from err
        if is_repeated or len(records) != len(lines):
            raise RefusedError
        return {
            key: [bytes(raw) or None for raw in map(_getter(attribute), records)]
            for key, attribute in zip(self._keys, self._attributes, strict=True)
        }

    def _is_repeated(self, line: bytes) -> bool:
        # A key may be written with escapes, too: of such a line all keys are looked at.
        if not (
            b"\\u" in line or b"\\/" in line or any(line.count(mark) > 1 for mark in self._marks)
        ):
            return False
        return has_repeated_key(line, self._pairs.decode(line), self._keys)


def _getter(attribute: str) -> Callable[[Any], msgspec.Raw]:
    def get(record: Any) -> msgspec.Raw:
        return getattr(record, attribute)  # type: ignore[no-any-return]

    return get


def record_of(shapes: Iterable[tuple[str, Any]], *, forbids_unknown: bool = False) -> Any:
    """Return a class of msgspec for objects with these keys, whose attributes are ``f0``, ``f1`` and so on: keys need not be names.

    Args:
        shapes: keys, and types of their values. One that lacks is None, or an empty `Raw`.
        forbids_unknown: whether other keys are refused.
    """
    listed = list(shapes)
    return msgspec.defstruct(
        "Record",
        [
            (f"f{at}", shape, msgspec.Raw() if shape is msgspec.Raw else None)
            for at, (_, shape) in enumerate(listed)
        ],
        rename={f"f{at}": key for at, (key, _) in enumerate(listed)},
        forbid_unknown_fields=forbids_unknown,
        gc=False,
    )


def _shape_of(kind: ColumnType) -> Any:
    """Where structs lie, and what keys they have; of all else nothing."""
    if kind.name == "array":
        inner: Any = _shape_of(kind.arguments[0])
        return inner if inner is msgspec.Raw else list[inner] | None
    if kind.name == "struct":
        parts = zip(kind.field_names, map(_shape_of, kind.arguments), strict=True)
        return record_of(parts, forbids_unknown=True) | None
    return msgspec.Raw


_EPOCH: Final = date(1970, 1, 1)
_NOTHING: Final[dict[str, Any]] = {"string": "", "boolean": False, "date": _EPOCH}
# Types of Python's arrays, which have the layout of Arrow's buffers.
_CODES: Final = {
    "tinyint": "b",
    "smallint": "h",
    "int": "i",
    "bigint": "q",
    "float": "f",
    "double": "d",
}
_SHAPES: Final[dict[str, Any]] = {
    "string": str,
    "boolean": bool,
    "date": date,
    "float": float,
    "double": float,
    **{
        name: Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]
        for name, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
    },
}


def is_scalar(kind: ColumnType) -> bool:
    """Whether `ScalarReader` reads columns of the type."""
    return kind.name in _SHAPES


@final
class ScalarReader:
    """Reads lines that are objects as columns: all of them, or none.

    Args:
        kinds: by key; all of them `is_scalar`.
    """

    def __init__(self, kinds: Mapping[str, ColumnType]) -> None:
        self._kinds = list(kinds.values())
        shapes = [(key, _SHAPES[kind.name] | None) for key, kind in kinds.items()]
        self._values = [attrgetter(f"f{at}") for at in range(len(shapes))]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(record_of(shapes))

    def read(self, content: bytes) -> list[pa.Array]:
        """Columns of one line or more, each with its newline. Raises: RefusedError: one does not fit."""
        count = check_plain(content)
        try:
            records = self._decoder.decode_lines(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise RefusedError(str(err)) from err
        if len(records) != count:
            raise RefusedError("it is not one JSON object")
        return [
            array_of(list(map(value_of, records)), kind)
            for value_of, kind in zip(self._values, self._kinds, strict=True)
        ]


def array_of(values: Sequence[Any], kind: ColumnType) -> pa.Array:
    """An array of a scalar type; None is null. Raises: RefusedError: a text has a lone surrogate."""
    nulls = values.count(None)
    validity = None
    if nulls:
        validity = _bits([value is not None for value in values])
        nothing = _NOTHING.get(kind.name, 0)
        values = [nothing if value is None else value for value in values]
    match kind.name:
        case "string":
            buffers = [validity, *_text_buffers(values)]
        case "boolean":
            buffers = [validity, _bits(values)]
        case "date":
            days = array("i", [(value - _EPOCH).days for value in values])
            buffers = [validity, pa.py_buffer(days)]
        case name:
            buffers = [validity, pa.py_buffer(array(_CODES[name], values))]
    return pa.Array.from_buffers(arrow_type(kind), len(values), buffers, nulls)


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    buffers = [None, pa.py_buffer(bytes(flags))]
    return pa.Array.from_buffers(pa.uint8(), len(flags), buffers).cast(pa.bool_()).buffers()[1]


def _text_buffers(texts: Sequence[str]) -> tuple[pa.Buffer, pa.Buffer]:
    whole = "".join(texts)
    parts: Sequence[str] | Sequence[bytes] = texts
    try:
        if not whole.isascii():
            parts = [text.encode() for text in texts]
        content = whole.encode()
    except UnicodeEncodeError as err:
        raise RefusedError(str(err)) from err
    ends = array("i", accumulate(map(len, parts), initial=0))
    return pa.py_buffer(ends), pa.py_buffer(content)
