"""Blocks of a journal as typed rows, with the place of each bad record. Pure.

A block is read at once (`RecordsReader`), which takes all of it or nothing; of one that is refused, `sifting` finds the good lines, and
`Reasons` say of each bad one what is wrong. An ACK of a transaction is not a row, and not bad, whatever else it holds.

A line that is longer than any record may be is cut short (`CutLines`): whoever may append to a journal may append such a line. If
it were an error, nothing after it would ever be read.

What `RecordsReader` takes is what a typed table keeps. `Reasons` are asked for lines that were refused only; what they say decides
nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import DataError
from gazette_platform.lake.reading.arrow_types import RefusedError, arrow_type, with_uuid
from gazette_platform.lake.reading.json_columns import (
    Field,
    JsonReader,
    LineReader,
    is_too_deep,
    repeated_keys,
)
from gazette_platform.lake.reading.sifting import BLANKS, Sifter, guess, line_ends
from gazette_platform.lake.spec.types import FORMATS, TRUNCATED, text_of
from gazette_platform.message.framing import FRAME_BYTES_MAX, JsonUuids
from gazette_platform.message.uuid import Flags, parse_uuid, parse_uuid_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gazette_platform.lake.reading.extent_content import LineBlocks, Piece
    from gazette_platform.lake.reading.json_columns import ValueReader
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.spec.typed.columns import TypedColumn


_ACK: Final = int(Flags.ACK_TXN)


class Records(NamedTuple):
    """What lines hold."""

    rows: pa.Table
    """By name of the column, in the types of the table."""
    parts: pa.StructArray
    """Of their UUIDs."""


def record_columns(spec: TypedSpec) -> tuple[TypedColumn, ...]:
    """Those that are made of keys of records."""
    return tuple(column for column in spec.written_columns if column.key)


def record_fields(spec: TypedSpec) -> dict[str, Field]:
    """What is made of the values of each key."""
    return {column.key: Field(column.parsed, column.form) for column in record_columns(spec)}


def acks_of(parts: pa.StructArray) -> pa.BooleanArray:
    """Which messages are ACKs of transactions."""
    clock, flags = parts.field("clock"), parts.field("flags")
    has_clock = pc.not_equal(clock, pa.scalar(0, pa.uint64()))
    return pc.and_(pc.equal(flags, pa.scalar(_ACK, pa.uint16())), has_clock)


@final
class RecordsReader:
    """Reads lines.

    Attributes:
        values: readers of single values, by key, with the message's UUID in them if it lies there.
        schema: of the rows.
        empty: no rows.
    """

    def __init__(self, spec: TypedSpec) -> None:
        columns = record_columns(spec)
        self._keys = [column.key for column in columns]
        self._required = [column.name for column in columns if column.required]
        self._reader = JsonReader(
            record_fields(spec), uuid=spec.uuid, forbids_unknown=spec.unknown == "quarantine"
        )
        self.values = self._reader.values
        self.schema = pa.schema([(c.name, arrow_type(c.parsed)) for c in columns])
        # Arrow's own way to make an empty table knows no UUIDs within lists.
        nothing = [pa.nulls(0, kind) for kind in self.schema.types]
        self.empty = pa.Table.from_arrays(nothing, schema=self.schema)

    def read(self, content: bytes) -> Records:
        """Records of one line or more.

        Raises: RefusedError: one of them is not a record of the table, or the last one has not ended.
        """
        found = self._reader.read(content)
        try:
            parts = parse_uuid_column(found.uuids)
        except DataError as err:
            raise RefusedError from err
        rows = pa.Table.from_arrays([found.arrays[key] for key in self._keys], schema=self.schema)
        self._check_required(rows, parts)
        return Records(rows, parts)

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


# ------------------------------------------------------------------ reasons

REASON_CHARACTERS_MAX: Final = 300
_VALUE_CHARACTERS_MAX: Final = 60
_TYPE_CHARACTERS_MAX: Final = 80
_PATH_CHARACTERS_MAX: Final = 120
_NULL: Final = b"null"
_LONG_FRACTION: Final = re.compile(rb"\.[0-9]{7}")
_CUT: Final = "ends within a record"
# Longer lines get no place: parsed they are up to forty times as large.
_APART_BYTES_MAX: Final = 4 << 20


class _Object(msgspec.Struct):
    """Whatever it has, nothing of it is kept."""


@final
class Reasons:
    """Says of refused lines what is wrong with them.

    Args:
        values: readers of the columns' values, by key.
    """

    def __init__(self, spec: TypedSpec, values: Mapping[str, ValueReader]) -> None:
        self._values = values
        self._uuid = spec.uuid
        self._required = [column.key for column in record_columns(spec) if column.required]
        self._forbids_unknown = spec.unknown == "quarantine"
        self._objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._shape = msgspec.json.Decoder(_Object)
        self._lists = msgspec.json.Decoder(list[msgspec.Raw])
        self._texts = msgspec.json.Decoder(str)
        self._anything = LineReader(pa.schema([("\0", pa.string())]), forbids_unknown=False)

    def why(self, line: bytes) -> str:
        """What is wrong with a line that was refused.

        Args:
            line: without blanks around it, and without its newline.

        Returns: at most `REASON_CHARACTERS_MAX` characters.
        """
        return _shortened(self._why(line), REASON_CHARACTERS_MAX)

    def _why(self, line: bytes) -> str:
        if not line:
            return "is blank, so not a record"
        try:
            line.decode()
        except UnicodeDecodeError as err:
            return f"is not UTF-8, {err.start} bytes after its begin"
        if is_too_deep(line):
            return "is not JSON, or has values too deep within each other"
        try:
            if len(line) > _APART_BYTES_MAX:
                self._shape.decode(line)
                return f"does not fit, and is too long to say where: {len(line)} bytes"
            found = self._objects.decode(line)
        except msgspec.DecodeError as err:
            return _why_no_object(line, err)
        return next(self._faults(line, found), "cannot be read")

    def _faults(self, line: bytes, found: dict[str, msgspec.Raw]) -> Iterator[str]:
        yield from self._uuid_faults(found)
        if self._forbids_unknown:
            known = {*self._values, *self._uuid[:1]}
            yield from (f"{_path(key)}: is not a column" for key in found if key not in known)
        repeated = repeated_keys(line, found)
        for key in {**self._values, **dict.fromkeys(self._uuid[:1])}:
            if key in repeated:
                yield f"{_path(key)}: occurs twice"
        for key, reader in self._values.items():
            if key in found:
                yield from self._value_faults(_path(key), bytes(found[key]), reader)
        for key in self._required:
            raw = found.get(key)
            is_json = self._values[key].kind.name == "json"
            if raw is None or (bytes(raw) == _NULL and not is_json):
                yield f"{_path(key)}: is required, and there is none"
        # In keys that are not columns, or values of `json`, Arrow refuses numbers such as 1e400 and lone surrogates.
        raws = list(found.values())
        if (at := _first_refused(self._read_anything, raws)) is not None:
            yield f"{_path(list(found)[at])}: {_value(bytes(raws[at]))} cannot be read"

    def _read_anything(self, raws: Sequence[bytes]) -> None:
        self._anything.read(b"".join(b'{"v":%b}\n' % raw for raw in raws), len(raws))

    def _uuid_faults(self, found: dict[str, msgspec.Raw]) -> Iterator[str]:
        if not self._uuid:
            return
        told = f"no UUID at {_path('.'.join(self._uuid))}"
        at: Any = found
        for depth, key in enumerate(self._uuid):
            if key not in at or bytes(at[key]) == _NULL:
                return
            raw = bytes(at[key])
            is_last = depth == len(self._uuid) - 1
            try:
                at = (self._texts if is_last else self._objects).decode(raw)
                if is_last:
                    parse_uuid(at)
            except (msgspec.DecodeError, DataError):
                yield f"{told}: {_value(raw)}"
                return
            if self._forbids_unknown and not depth and not is_last and key not in self._values:
                beside = (name for name in at if name != self._uuid[1])
                yield from (f"{_path(f'{key}.{name}')}: is not a column" for name in beside)

    def _value_faults(self, path: str, raw: bytes, reader: ValueReader) -> Iterator[str]:
        try:
            reader.read([raw])
        except RefusedError:
            yield from self._parts_faults(path, raw, reader)
            form = reader.form
            said = f" ({form})" if form in FORMATS.get(reader.kind.name, ())[1:] else ""
            kind = _shortened(text_of(reader.kind), _TYPE_CHARACTERS_MAX)
            yield f"{path}: {_value(raw)} is no {kind}{said}{_advice(raw, reader)}"

    def _parts_faults(self, path: str, raw: bytes, reader: ValueReader) -> Iterator[str]:
        """What is wrong within an array, map or struct, if it is one."""
        name = reader.kind.name
        if name not in ("array", "map", "struct"):
            return
        try:
            if name == "array":
                items = self._lists.decode(raw)
                if (at := _first_refused(reader.parts[0].read, items)) is not None:
                    yield from self._value_faults(
                        f"{path}[{at}]", bytes(items[at]), reader.parts[0]
                    )
                return
            found = self._objects.decode(raw)
        except msgspec.DecodeError:
            return
        fields = list(found) if name == "map" else list(reader.kind.field_names)
        repeated = repeated_keys(raw, found)
        yield from (f"{path}.{_path(key)}: occurs twice" for key in fields if key in repeated)
        if name == "map":
            items = list(found.values())
            if (at := _first_refused(reader.parts[1].read, items)) is not None:
                key = fields[at]
                yield from self._value_faults(
                    f"{path}.{_path(key)}", bytes(items[at]), reader.parts[1]
                )
            return
        if self._forbids_unknown:
            beside = (key for key in found if key not in fields)
            yield from (f"{path}.{_path(key)}: is not a column" for key in beside)
        for key, part in zip(fields, reader.parts, strict=True):
            if key in found:
                yield from self._value_faults(f"{path}.{_path(key)}", bytes(found[key]), part)


def _first_refused(
    read: Callable[[Sequence[bytes]], object], raws: Sequence[msgspec.Raw]
) -> int | None:
    """Which of many values is the first that a reader refuses; None: none.

    All are read twice at most: a record may have as many as it likes.
    """

    def is_refused(first: int, last: int) -> bool:
        try:
            read([bytes(raw) for raw in raws[first:last]])
        except RefusedError:
            return True
        return False

    first, last = 0, len(raws)
    if not is_refused(first, last):
        return None
    while last - first > 1:
        middle = (first + last) // 2
        if is_refused(first, middle):
            last = middle
        else:
            first = middle
    return first


def _advice(raw: bytes, reader: ValueReader) -> str:
    """What a spec can say so that a value fits; most often nothing."""
    if not reader.kind.name.startswith("timestamp") or _LONG_FRACTION.search(raw) is None:
        return ""
    return f", has more than six digits of a second (`{TRUNCATED}: true` cuts them)"


def _path(key: str) -> str:
    return _shortened("".join(c if c.isprintable() else "?" for c in key), _PATH_CHARACTERS_MAX)


def _value(raw: bytes) -> str:
    # Of a value of megabytes, too, only what is shown is made a text.
    head = raw[: 4 * _VALUE_CHARACTERS_MAX + 4].decode(errors="ignore")
    text = "".join(c if c.isprintable() else " " for c in head)
    return _shortened(text, _VALUE_CHARACTERS_MAX)


def _shortened(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _why_no_object(line: bytes, error: msgspec.DecodeError) -> str:
    if isinstance(error, msgspec.ValidationError):
        return "is not an object"
    if "truncated" in str(error) and not line.endswith((b"}", b"]")):
        return _CUT
    return f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}"


class BadRecord(NamedTuple):
    """A message that is not a row of the table."""

    number: int
    """Which message of the block, from 0."""
    reason: str
    """For people, with the path of the value where it is known."""


class LookedBlock(NamedTuple):
    """Which messages there are in a block. Fields: as of `ParsedBlock`."""

    parts: pa.StructArray
    begins: pa.Int64Array
    ends: pa.Int64Array


class ParsedBlock(NamedTuple):
    """What became of the messages of a block."""

    parts: pa.StructArray
    """`producer`, `clock` and `flags` of every message in order; zeros: it has no UUID that can be read."""
    begins: pa.Int64Array
    """Offset of each message's first byte in the journal."""
    ends: pa.Int64Array
    """After its last one, newline included."""
    rows: pa.Table
    """Of the good messages in order: columns of the spec that have a key, by name, in their order and types."""
    good: pa.Int64Array | None
    """Index of the message that each row is; None: all are good."""
    bad: tuple[BadRecord, ...]
    """The rest, without ACKs."""
    rowless: pa.Int64Array | None = None
    """Messages about no row, which are neither; None: there are none, as in tables without `change_data`."""
    doubled: pa.Int64Array | None = None
    """Messages that are two rows, of two keys; likewise."""


@final
class BlockParser:
    """Parses blocks of journals of one table. Not for several threads."""

    def __init__(self, spec: TypedSpec) -> None:
        self._records = RecordsReader(spec)
        self._sifter: Sifter[Records] = Sifter(self._records.read, _guess(spec))
        self._reasons = Reasons(spec, self._records.values)
        self._uuids = JsonUuids(spec.uuid)

    def parse(self, begin: int, content: bytes) -> ParsedBlock:
        """The messages of a block.

        Args:
            begin: offset of its first byte.
            content: whole lines; if the last one lacks its newline, it is a bad record.
        """
        begins, ends = _bounds(begin, content)
        if not len(begins):
            rows = self._records.empty
            return ParsedBlock(self._parts_of([]), begins, ends, rows, None, ())
        try:
            found = self._records.read(content)
        except RefusedError:
            return self._sifted(content, begins, ends)
        return _without_acks(
            ParsedBlock(found.parts, begins, ends, found.rows, None, ()), acks_of(found.parts)
        )

    def look(self, begin: int, content: bytes) -> LookedBlock:
        """What `parse` says of where messages are, and whose, several times as fast.

        Args:
            begin: as of `parse`.
            content: likewise.
        """
        parts = self._uuids.parts(content) if content.endswith(b"\n") else None
        if parts is None:
            parsed = self.parse(begin, content)
            return LookedBlock(parsed.parts, parsed.begins, parsed.ends)
        return LookedBlock(parts, *_bounds(begin, content))

    def _sifted(self, content: bytes, begins: Any, ends: Any) -> ParsedBlock:
        """The same, where a line or more are bad."""
        texts, pieces, bad = found = self._sifter.sift(content)
        good = found.good
        tables = [self._records.empty, *(records.rows for _, records in pieces)]
        # Tables of many chunks are slow to write.
        rows = pa.concat_tables(tables).combine_chunks() if pieces else self._records.empty
        is_cut = len(texts) < len(begins)
        if is_cut:
            bad.append(len(texts))
            texts.append(content[content.rfind(b"\n") + 1 :].strip(BLANKS))
        if good != sorted(good):  # an odd one was good
            order = pc.array_sort_indices(pa.array(good, pa.int64()))
            rows = rows.take(order)
        bad_parts = self._parts_of([self._uuids.text_of(texts[index]) for index in bad])
        both = pa.concat_arrays([*(records.parts for _, records in pieces), bad_parts])
        parts = both.take(pc.array_sort_indices(pa.array([*good, *bad], pa.int64())))
        acks = acks_of(parts)
        told = tuple(
            BadRecord(index, self._reason(texts[index], is_cut and index == len(texts) - 1))
            for index in bad
            if not acks[index].as_py()
        )
        indices = pa.array(sorted(good), pa.int64()) if bad else None
        return _without_acks(ParsedBlock(parts, begins, ends, rows, indices, told), acks)

    def _reason(self, line: bytes, is_cut: bool) -> str:  # noqa: FBT001
        return "ends within a record: there is no newline" if is_cut else self._reasons.why(line)

    @staticmethod
    def _parts_of(texts: Sequence[str | None]) -> pa.StructArray:
        return parse_uuid_column(pa.array(texts, pa.string()))


def _bounds(begin: int, content: bytes) -> tuple[Any, Any]:
    """Where messages begin, and where they end."""
    ends = pc.add(line_ends(content), pa.scalar(begin, pa.int64()))
    if content and not content.endswith(b"\n"):
        ends = pa.concat_arrays([ends, pa.array([begin + len(content)], pa.int64())])
    first = pa.array([begin] if len(ends) else [], pa.int64())
    return pa.concat_arrays([first, ends.slice(0, max(len(ends) - 1, 0))]), ends


def _guess(spec: TypedSpec) -> Callable[[bytes], bool]:
    """Whether a line is likely a record of the table."""
    fields = record_fields(spec)
    if spec.uuid:
        field = fields.get(spec.uuid[0])
        kind = with_uuid(field.kind if field is not None else None, spec.uuid[1:])
        fields[spec.uuid[0]] = Field(kind, field.form if field is not None else "")
    return guess(
        fields,
        required=[column.key for column in record_columns(spec) if column.required],
        forbids_unknown=spec.unknown == "quarantine",
    )


def _without_acks(parsed: ParsedBlock, acks: pa.BooleanArray) -> ParsedBlock:
    if not pc.any(acks).as_py():
        return parsed
    good = parsed.good
    if good is None:
        good = pa.array(range(len(acks)), pa.int64())
    is_row = pc.invert(acks.take(good))
    return parsed._replace(rows=parsed.rows.filter(is_row), good=good.filter(is_row))


_KEPT_BYTES: Final = 1 << 20


class LineBlock(NamedTuple):
    """Whole lines, or one line that is cut short."""

    begin: int
    """Offset of its first byte."""
    content: bytes
    end: int
    """Offset after its last byte, and so after more than `content` if that is cut short."""

    @property
    def is_cut(self) -> bool:
        """Whether it is the begin of one line."""
        return len(self.content) < self.end - self.begin


@final
class CutLines:
    """Makes blocks out of pieces that follow each other. Memory: a block, or the longest line, up to 64 MiB."""

    def __init__(self, lines: LineBlocks) -> None:
        self._lines = lines
        # Begin of a line that is too long, and has not ended.
        self._head: Piece | None = None
        self._end = 0

    @property
    def is_within_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._head is not None or self._lines.is_within_line

    def feed(self, piece: Piece) -> Iterator[LineBlock]:
        """Take in what follows. Yields: blocks, if there is enough for some."""
        at, content = piece
        # So that no line within one is too long: which are cut must not go by where pieces begin.
        for first in range(0, len(content), FRAME_BYTES_MAX):
            yield from self._fed(at + first, content[first : first + FRAME_BYTES_MAX])

    def _fed(self, at: int, content: bytes) -> Iterator[LineBlock]:
        cut = content.find(b"\n") + 1 or len(content)
        if self._head is None and self._lines.unended_bytes + cut > FRAME_BYTES_MAX:
            yield from self.whole_lines()
            begin, held = self._lines.rest() or (at, b"")
            self._head = begin, (held + content[:cut])[:_KEPT_BYTES]
        if self._head is not None:
            self._end = at + cut
            if not content.endswith(b"\n", 0, cut):
                return
            yield from self.rest()
            at, content = self._end, content[cut:]
        if content:
            yield from _blocks_of(self._lines.feed((at, content)))

    def whole_lines(self) -> Iterator[LineBlock]:
        """The lines that are held and have ended, if there are any."""
        yield from _blocks_of(self._lines.whole_lines())

    def rest(self) -> Iterator[LineBlock]:
        """All that is held, if there is anything; the last line may not have ended."""
        if self._head is not None:
            begin, content = self._head
            self._head = None
            yield LineBlock(begin, content, self._end)
        else:
            yield from _blocks_of(self._lines.rest())


def _blocks_of(piece: Piece | None) -> Iterator[LineBlock]:
    if piece is not None:
        yield LineBlock(*piece, piece[0] + len(piece[1]))
