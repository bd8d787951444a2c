"""Blocks of a journal as typed rows, with the place of each bad record. Pure.

A block is read at once (`records`), which takes all of it or nothing. One that is refused is read without the lines that can
be seen to be odd, and if that is not it, in parts, unless many were bad in the one before. Of what is refused then, and of
odd lines, msgspec looks at each, as fast as the lines are many and however many are bad. It is a guess: what it lets pass is read
at once again, in halves if that is refused too, and what it does not is read alone. So `records` has the last word on
each line.

    content ── records ── all good
                  │
               refused: the others, parts ── records ── all good
                                       │
                                    refused ── each line, trimmed: msgspec ── good ── records, at once ── refused: in halves
                                                                      └─ no ── records, alone ── refused: bad (`reasons`)

An ACK of a transaction is not a row, and not bad, whatever else it holds.

Blocks of whole lines of a task, in which a line that is longer than any record may be is cut short.

Whoever may append to a journal may append such a line. If it were an error, nothing after it would ever be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.lake.typed.rows.json_arrays import RefusedError
from gazette_platform.lake.typed.rows.reasons import Reasons
from gazette_platform.lake.typed.rows.records import (
    RecordsReader,
    acks_of,
    lines_of,
    odd_lines,
    record_columns,
    with_uuid,
)
from gazette_platform.message.framing import FRAME_BYTES_MAX
from gazette_platform.message.json_lines import JsonUuids
from gazette_platform.message.uuid import parse_uuid_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gazette_platform.lake.reading.extent_content import LineBlocks, Piece
    from gazette_platform.lake.spec.typed.spec import TypedSpec
    from gazette_platform.lake.spec.types import ColumnType
    from gazette_platform.lake.typed.rows.records import Lines, Records

_BLANKS: Final = b" \t\r"
# Of a refused block, so many parts are read at once before lines are looked at; smaller ones cost as much as their lines.
_PARTS: Final = 8
_PART_LINES: Final = 128


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
        self._is_likely = _guess(spec)
        self._reasons = Reasons(spec, self._records.values)
        self._uuids = JsonUuids(spec.uuid)
        self._is_seldom_bad = True

    def parse(self, begin: int, content: bytes) -> ParsedBlock:
        """The messages of a block.

        Args:
            begin: offset of its first byte.
            content: whole lines; if the last one lacks its newline, it is a bad record.
        """
        lines = lines_of(content)
        begins, ends = _bounds(begin, lines)
        if not len(begins):
            rows = self._records.empty
            return ParsedBlock(self._parts_of([]), begins, ends, rows, None, ())
        try:
            found = self._records.read(lines)
        except RefusedError:
            return self._sifted(lines, begins, ends)
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
        return LookedBlock(parts, *_bounds(begin, lines_of(content)))

    def _sifted(self, lines: Lines, begins: Any, ends: Any) -> ParsedBlock:
        """The same, where a line or more are bad."""
        content = lines.content
        *texts, cut = content.split(b"\n")
        odd = odd_lines(lines)
        others = sorted(set(range(len(texts))).difference(odd))
        pieces = [*self._parts(texts, others, is_refused=not odd), *self._by_line(texts, odd)]
        good = [index for indices, _ in pieces for index in indices]
        tables = [self._records.empty, *(records.rows for _, records in pieces)]
        # Tables of many chunks are slow to write.
        rows = pa.concat_tables(tables).combine_chunks() if pieces else self._records.empty
        if len(texts) < len(begins):
            texts.append(cut.strip(_BLANKS))
        if good != sorted(good):  # an odd one was good
            order = pc.array_sort_indices(pa.array(good, pa.int64()))
            rows = rows.take(order)
        is_good = set(good)
        bad = [index for index in range(len(texts)) if index not in is_good]
        self._is_seldom_bad = len(bad) < _PARTS
        bad_parts = self._parts_of([self._uuids.text_of(texts[index]) for index in bad])
        both = pa.concat_arrays([*(records.parts for _, records in pieces), bad_parts])
        parts = both.take(pc.array_sort_indices(pa.array([*good, *bad], pa.int64())))
        acks = acks_of(parts)
        is_cut = not content.endswith(b"\n")
        told = tuple(
            BadRecord(index, self._reason(texts[index], is_cut and index == len(texts) - 1))
            for index in bad
            if not acks[index].as_py()
        )
        indices = pa.array(sorted(good), pa.int64()) if bad else None
        return _without_acks(ParsedBlock(parts, begins, ends, rows, indices, told), acks)

    def _reason(self, line: bytes, is_cut: bool) -> str:  # noqa: FBT001
        return "ends within a record: there is no newline" if is_cut else self._reasons.why(line)

    def _parts(
        self, lines: list[bytes], indices: list[int], *, is_refused: bool
    ) -> Iterator[tuple[list[int], Records]]:
        """Good ones of some lines, in their order: read at once, in parts, or line by line.

        Args:
            is_refused: whether they were read at once, and refused.
        """
        if not is_refused and (records := self._at_once(lines, indices)) is not None:
            yield indices, records
            return
        # Most often it is one line, and what is far from it is good.
        step = max(len(indices) // _PARTS, _PART_LINES) if self._is_seldom_bad else len(indices)
        for first in range(0, len(indices), step or 1):
            part = indices[first : first + step]
            records = self._at_once(lines, part) if len(part) < len(indices) else None
            if records is None:
                yield from self._by_line(lines, part)
            else:
                yield part, records

    def _at_once(self, lines: Sequence[bytes], indices: Sequence[int]) -> Records | None:
        if not indices:
            return None
        content = b"\n".join([*(lines[index] for index in indices), b""])
        try:
            return self._records.read(lines_of(content))
        except RefusedError:
            return None

    def _by_line(
        self, lines: list[bytes], indices: Sequence[int]
    ) -> Iterator[tuple[list[int], Records]]:
        """Good ones of some lines, which are trimmed, in their order."""
        for index in indices:
            lines[index] = lines[index].strip(_BLANKS)
        likely = [
            index for index in indices if self._is_likely(lines[index]) or self._fits(lines[index])
        ]
        return self._pieces(lines, likely)

    def _fits(self, line: bytes) -> bool:
        # The answer for what is not an object is known, and asking takes a hundred times as long.
        is_object = line.startswith(b"{") and line.endswith(b"}")
        return is_object and self._at_once([line], [0]) is not None

    def _pieces(
        self, lines: Sequence[bytes], likely: list[int]
    ) -> Iterator[tuple[list[int], Records]]:
        """Good ones among `likely`, in their order, as few pieces as may be."""
        waiting = [likely]
        while waiting:
            indices = waiting.pop()
            records = self._at_once(lines, indices)
            if records is not None:
                yield indices, records
            elif middle := len(indices) // 2:
                waiting += [indices[middle:], indices[:middle]]

    @staticmethod
    def _parts_of(texts: Sequence[str | None]) -> pa.StructArray:
        return parse_uuid_column(pa.array(texts, pa.string()))


def _bounds(begin: int, lines: Lines) -> tuple[Any, Any]:
    """Where messages begin, and where they end."""
    ends, end = pc.add(lines.ends, pa.scalar(begin, pa.int64())), begin + len(lines.content)
    if lines.content and not lines.content.endswith(b"\n"):
        ends = pa.concat_arrays([ends, pa.array([end], pa.int64())])
    first = pa.array([begin] if len(ends) else [], pa.int64())
    return pa.concat_arrays([first, ends.slice(0, max(len(ends) - 1, 0))]), ends


def _without_acks(parsed: ParsedBlock, acks: pa.BooleanArray) -> ParsedBlock:
    if not pc.any(acks).as_py():
        return parsed
    good = parsed.good
    if good is None:
        good = pa.array(range(len(acks)), pa.int64())
    is_row = pc.invert(acks.take(good))
    return parsed._replace(rows=parsed.rows.filter(is_row), good=good.filter(is_row))


# ------------------------------------------------------------------ guesses by msgspec


_INT: Final = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_BIGINT: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_DATE: Final = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
_UUID: Final = Annotated[str, msgspec.Meta(min_length=36, max_length=36)]
_GUESSES: Final[dict[str, Any]] = {
    "boolean": bool,
    "int": _INT,
    "bigint": _BIGINT,
    "float": float,
    "double": float,
    "decimal": float | str,
    "date": _DATE,
    "uuid": _UUID,
}


def _guess(spec: TypedSpec) -> Callable[[bytes], bool]:
    """Whether a line is likely a record of the table. Quick, and wrong at times, either way."""
    forbids_unknown = spec.unknown == "quarantine"
    columns = record_columns(spec)
    kinds = {column.key: (column.parsed, column.form) for column in columns}
    if spec.uuid:
        kind, form = kinds.get(spec.uuid[0], (None, ""))
        kinds[spec.uuid[0]] = (with_uuid(kind, spec.uuid[1:]), form)
    shapes = [(key, _guessed(*of, forbids_unknown=forbids_unknown)) for key, of in kinds.items()]
    decode = msgspec.json.Decoder(_guessed_struct(shapes, forbids_unknown=forbids_unknown)).decode
    required = {column.key for column in columns if column.required}
    attributes = [f"f{index}" for index, (key, _) in enumerate(shapes) if key in required]

    def is_likely(line: bytes) -> bool:
        try:
            record = decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        return not any(getattr(record, attribute) is None for attribute in attributes)

    return is_likely


def _guessed_struct(shapes: Sequence[tuple[str, Any]], *, forbids_unknown: bool) -> Any:
    names = {f"f{index}": key for index, (key, _) in enumerate(shapes)}
    return msgspec.defstruct(
        "Guess",
        [
            (f"f{index}", shape, msgspec.Raw() if shape is msgspec.Raw else None)
            for index, (_, shape) in enumerate(shapes)
        ],
        rename=names,
        forbid_unknown_fields=forbids_unknown,
        gc=False,
    )


def _guessed(kind: ColumnType, form: str, *, forbids_unknown: bool) -> Any:
    match kind.name:
        case "json" | "map":
            return msgspec.Raw
        case "array":
            item: Any = _guessed(kind.arguments[0], form, forbids_unknown=forbids_unknown)
            return list[item] | None
        case "struct":
            parts = [_guessed(p, form, forbids_unknown=forbids_unknown) for p in kind.arguments]
            shapes = list(zip(kind.field_names, parts, strict=True))
            return _guessed_struct(shapes, forbids_unknown=forbids_unknown) | None
        case "timestamptz" | "timestamp" | "date" if form.startswith("epoch"):
            return _BIGINT | None
        case name:
            return _GUESSES.get(name, str) | None


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
