"""Blocks of a journal as typed rows, with the place of each bad record. Pure.

A block is read at once (`records`), which takes all of it or nothing; of one that is refused, `sifting` finds the good lines, and
`records` says of each bad one what is wrong. An ACK of a transaction is not a row, and not bad, whatever else it holds.

A line that is longer than any record may be is cut short (`CutLines`): whoever may append to a journal may append such a line. If
it were an error, nothing after it would ever be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.lake.reading.arrow_types import RefusedError, with_uuid
from gazette_platform.lake.reading.json_columns import Field
from gazette_platform.lake.reading.sifting import BLANKS, Sifter, guess, line_ends
from gazette_platform.lake.typed.rows.records import (
    Reasons,
    RecordsReader,
    acks_of,
    record_columns,
    record_fields,
)
from gazette_platform.message.framing import FRAME_BYTES_MAX, JsonUuids
from gazette_platform.message.uuid import parse_uuid_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gazette_platform.lake.reading.extent_content import LineBlocks, Piece
    from gazette_platform.lake.spec.typed.spec import TypedSpec
    from gazette_platform.lake.typed.rows.records import Records


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
