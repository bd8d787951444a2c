"""Blocks of whole lines of a task, in which a line that is longer than any record may be is cut short.

Whoever may append to a journal may append such a line. If it were an error, nothing after it would ever be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.message.framing import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.lake.segment_content import LineBlocks, Piece

__all__ = ["CutLines", "LineBlock"]

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
