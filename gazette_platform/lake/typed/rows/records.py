"""Lines of a journal as columns of a typed table: all of them, or none. Pure.

What this takes is what a typed table keeps. Nothing in it looks at two lines together, so that a line is
taken alone if and only if it is taken among others that are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError
from gazette_platform.lake.spec.types import ColumnType
from gazette_platform.lake.typed.rows.json_arrays import (
    LineReader,
    RefusedError,
    ValueReader,
    converter,
    has_repeated_key,
    is_hard,
    is_too_deep,
    narrowed,
    plain_type,
    read_type,
)
from gazette_platform.message.uuid import Flags, parse_uuid_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gazette_platform.lake.spec.typed.columns import TypedColumn
    from gazette_platform.lake.spec.typed.spec import TypedSpec

_ACK: Final = int(Flags.ACK_TXN)
_STRING: Final = ColumnType("string")
# Arrow is asked for it where nothing else is asked for, and gives a row for each line then.
_NO_KEY: Final = "\0"
# Each costs a look at all that is behind it.
_ODD_TEXTS_MAX: Final = 8


class Lines(NamedTuple):
    """Content, and where its lines are."""

    content: bytes
    texts: pa.LargeBinaryArray
    """Without newlines. What follows the last newline is not among them."""
    ends: pa.Int64Array
    """Of each the byte after its newline, from the first one of the content."""


def lines_of(content: bytes) -> Lines:
    """The lines of content: looked for once, as all that is done with them needs it."""
    parts = pc.split_pattern(_as_text(content, pa.large_binary()), "\n").flatten()
    texts = parts.slice(0, len(parts) - 1)
    return Lines(content, texts, pc.cumulative_sum(pc.add(pc.binary_length(texts), 1)))


class Records(NamedTuple):
    """What lines hold."""

    rows: pa.Table
    """By name of the column, in the types of the table."""
    parts: pa.StructArray
    """Of their UUIDs."""


def record_columns(spec: TypedSpec) -> tuple[TypedColumn, ...]:
    """Those that are made of keys of records."""
    return tuple(column for column in spec.written_columns if column.key)


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


def acks_of(parts: pa.StructArray) -> pa.BooleanArray:
    """Which messages are ACKs of transactions."""
    clock, flags = parts.field("clock"), parts.field("flags")
    has_clock = pc.not_equal(clock, pa.scalar(0, pa.uint64()))
    return pc.and_(pc.equal(flags, pa.scalar(_ACK, pa.uint16())), has_clock)


@final
class RecordsReader:
    """Reads lines. Not for several threads.

    Attributes:
        values: readers of single values, by key, with the message's UUID in them if it lies there.
        schema: of the rows.
        empty: no rows.
    """

    def __init__(self, spec: TypedSpec) -> None:
        self._columns = record_columns(spec)
        self._uuid = spec.uuid
        forbids_unknown = spec.unknown == "quarantine"
        kinds = {column.key: column.parsed for column in self._columns}
        if spec.uuid and spec.uuid[0] in kinds:
            kinds[spec.uuid[0]] = with_uuid(kinds[spec.uuid[0]], spec.uuid[1:])
        self.values = {
            c.key: ValueReader(kinds[c.key], c.form, forbids_unknown=forbids_unknown)
            for c in self._columns
        }
        easy = [column for column in self._columns if not is_hard(column.parsed)]
        self._hard = [column for column in self._columns if is_hard(column.parsed)]
        schema = {c.key: read_type(kinds[c.key], c.form) for c in easy}
        if spec.uuid and spec.uuid[0] not in schema:
            schema[spec.uuid[0]] = read_type(with_uuid(None, spec.uuid[1:]), "")
        self._lines = LineReader(
            pa.schema(list((schema or {_NO_KEY: pa.string()}).items())),
            forbids_unknown=forbids_unknown and not self._hard,
        )
        self._converters = {c.key: converter(c.parsed, c.form) for c in easy}
        self._types = {c.key: plain_type(c.parsed) for c in self._columns}
        self._required = [c.name for c in self._columns if c.required]
        self._taker = None
        if self._hard:
            if spec.uuid and spec.uuid[0] not in kinds:
                kinds[spec.uuid[0]] = with_uuid(None, spec.uuid[1:])
            taken = kinds if forbids_unknown else {c.key: kinds[c.key] for c in self._hard}
            self._taker = _Taker(
                taken, [c.key for c in self._hard], forbids_unknown=forbids_unknown
            )
        self.schema = pa.schema([(c.name, self._types[c.key]) for c in self._columns])
        # Arrow's own way to make an empty table knows no UUIDs within lists.
        nothing = [pa.nulls(0, kind) for kind in self.schema.types]
        self.empty = pa.Table.from_arrays(nothing, schema=self.schema)

    def read(self, lines: Lines) -> Records:
        """Records of one line or more.

        Raises: RefusedError: one of them is not a record of the table, or the last one has not ended.
        """
        _check_plain(lines)
        content, count = lines.content, len(lines.texts)
        longest = pc.max(pc.binary_length(lines.texts)).as_py()
        table = self._lines.read(content, count, longest=longest)
        try:
            parts = parse_uuid_column(self._uuids(table, count))
            raws = self._taker.take(content) if self._taker is not None else {}
            rows = self._rows(table, raws)
        except (pa.ArrowException, DataError) as err:
            raise RefusedError from err
        self._check_required(rows, parts)
        return Records(rows, parts)

    def _uuids(self, table: pa.Table, count: int) -> pa.Array:
        if not self._uuid:
            return pa.nulls(count, pa.string())
        first, *rest = self._uuid
        column = table.column(first).chunk(0)
        return pc.struct_field(column, rest) if rest else column

    def _rows(self, table: pa.Table, raws: dict[str, Any]) -> pa.Table:
        found = []
        for column in self._columns:
            key = column.key
            if key in raws:
                array = narrowed(self.values[key].read(raws[key]), self._types[key])
            else:
                array, convert = table.column(key).chunk(0), self._converters[key]
                array = array if convert is None else convert(array)
            found.append(array)
        return pa.Table.from_arrays(found, schema=self.schema)

    def _check_required(self, rows: pa.Table, parts: pa.StructArray) -> None:
        missing = [name for name in self._required if rows.column(name).null_count]
        if not missing:
            return
        # ACKs hold only a UUID, and are not rows.
        is_record = pc.invert(acks_of(parts))
        for name in missing:
            is_missing = rows.column(name).is_null().combine_chunks()
            if pc.any(pc.and_(is_missing, is_record)).as_py():
                raise RefusedError


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
        fields = []
        for index, (key, kind) in enumerate(kinds.items()):
            # What lies within hard values is looked at when they are read.
            shape = msgspec.Raw if key in keys else _shape_of(kind)
            fields.append((f"f{index}", key, shape))
        self._keys = list(keys)
        self._attributes = [name for name, key, _ in fields if key in keys]
        self._marks = [b'"%b"' % key.encode() for key in keys]
        record = _struct_of(fields, forbids_unknown=forbids_unknown)
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


def _struct_of(fields: Sequence[tuple[str, str, Any]], *, forbids_unknown: bool) -> Any:
    return msgspec.defstruct(
        "Record",
        [
            (name, shape, msgspec.Raw() if shape is msgspec.Raw else None)
            for name, _, shape in fields
        ],
        rename={name: key for name, key, _ in fields},
        forbid_unknown_fields=forbids_unknown,
        gc=False,
    )


def _shape_of(kind: ColumnType) -> Any:
    """Where structs lie, and what keys they have; of all else nothing."""
    if kind.name == "array":
        inner: Any = _shape_of(kind.arguments[0])
        return inner if inner is msgspec.Raw else list[inner] | None
    if kind.name == "struct":
        return _struct_of(list(_parts_of(kind)), forbids_unknown=True) | None
    return msgspec.Raw


def _parts_of(kind: ColumnType) -> Iterator[tuple[str, str, Any]]:
    for index, (name, part) in enumerate(zip(kind.field_names, kind.arguments, strict=True)):
        yield f"f{index}", name, _shape_of(part)


def _check_plain(lines: Lines) -> None:
    """Raises: RefusedError: Arrow might take for records what are none, or other ones.

    It takes values from wherever they stand: an object over two lines, two in one, or none (`null` ends the
    process). Between such ends a row never spans lines. It takes texts that are not UTF-8, too, which its own
    check finds ten times as fast as decoding.
    """
    if not lines.content.endswith(b"\n"):
        raise RefusedError
    try:
        _as_text(lines.content, pa.large_string()).validate(full=True)
    except pa.ArrowInvalid as err:
        raise RefusedError from err
    if not pc.all(_are_objects(lines)).as_py():
        raise RefusedError


def _are_objects(lines: Lines) -> pa.BooleanArray:
    return pc.and_(pc.starts_with(lines.texts, "{"), pc.ends_with(lines.texts, "}"))


def odd_lines(lines: Lines) -> list[int]:
    """Which lines are not records as they stand, as can be seen without reading them, in order.

    It is for speed, and need not find all: of those that are not UTF-8 it finds a few.
    """
    odd = set(pc.indices_nonzero(pc.invert(_are_objects(lines))).to_pylist())
    content, at = memoryview(lines.content), 0
    for _ in range(_ODD_TEXTS_MAX):
        try:
            str(content[at:], "utf-8")
        except UnicodeDecodeError as err:
            index = pc.sum(pc.less_equal(lines.ends, at + err.start)).as_py() or 0
            if index == len(lines.texts):  # after the last newline
                break
            odd.add(index)
            at = lines.ends[index].as_py()
        else:
            break
    return sorted(odd)


def _as_text(content: bytes, kind: Any) -> Any:
    """All of it as the one value of an array, which is not copied."""
    ends = pa.array([0, len(content)], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(content)])
