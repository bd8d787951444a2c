"""Records of a journal: whole lines, and JSON values, out of content in pieces of any size."""

from __future__ import annotations

from typing import Any, Protocol, Self, final

import orjson

from gazette_platform.errors import DataError, Desynchronized, OffsetJump

LINE_BYTES_MAX = 64 << 20


class PieceReader(Protocol):
    """What records and messages are read from: a `Reader`, a `StoreReader`, or one of your own.

    Attributes:
        journal: the name that it was asked for by.
        offset: of the journal, behind the piece that came last.
    """

    journal: str
    offset: int

    async def __anext__(self) -> memoryview | bytes:
        """The next piece of content."""
        ...

    async def aclose(self) -> None:
        """End the read."""
        ...


def split_lines(content: bytes) -> tuple[list[bytes], bytes]:
    r"""Whole lines of `content` without their newlines, and the rest after the last newline.

    >>> split_lines(b"a\nbc\nd")
    ([b'a', b'bc'], b'd')
    """
    cut = content.rfind(b"\n")
    if cut < 0:
        return [], content
    return content[:cut].split(b"\n"), content[cut + 1 :]


@final
class LineReader:
    """Batches of whole lines: an async iterator of non-empty lists, without newlines.

    Costs no Python step per byte or per line: a batch is what one piece of content completes.

    Attributes:
        offset: of the journal, behind the newline of the last line returned: a place to resume at.
    """

    def __init__(self, reader: PieceReader, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._reader = reader
        self._line_bytes_max = line_bytes_max
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self.offset = reader.offset

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        """The next batch.

        Raises: DataError: the content ends within a line. Desynchronized: a line is longer than
            allowed, which is likely not lines at all. Besides what the reader raises.
        Cancellation: safe; no line is lost.
        """
        while True:
            try:
                piece = bytes(await anext(self._reader))
            except OffsetJump as jump:
                self._restart(jump.to_offset)
                raise
            except StopAsyncIteration:
                if not self._pieces_bytes:
                    raise
                raise DataError(
                    f"{self._reader.journal}: unexpected EOF: the content ends within a line, "
                    f"{self._pieces_bytes} bytes after offset {self.offset}"
                ) from None
            begin = self._reader.offset - len(piece)
            if begin != self.offset + self._pieces_bytes:
                # The first piece of a read from the head, or one behind a jump read over.
                self._restart(begin)
            if b"\n" not in piece:
                self._hold(piece)
                continue
            batch, rest = split_lines(b"".join((*self._pieces, piece)) if self._pieces else piece)
            self._pieces, self._pieces_bytes = [], 0
            self._hold(rest)
            self.offset = self._reader.offset - len(rest)
            return batch

    def _restart(self, offset: int) -> None:
        self._pieces, self._pieces_bytes = [], 0
        self.offset = offset

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        if self._pieces_bytes > self._line_bytes_max:
            raise Desynchronized(
                f"{self._reader.journal}: no newline within {self._pieces_bytes} bytes after offset "
                f"{self.offset} (is the journal made of lines?)"
            )


@final
class JsonReader:
    """Batches of JSON values, one value a line.

    Attributes:
        offset: as of `LineReader`.
    """

    def __init__(self, reader: PieceReader, *, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._journal = reader.journal
        self._lines = LineReader(reader, line_bytes_max=line_bytes_max)

    @property
    def offset(self) -> int:
        """Offset after the last value returned."""
        return self._lines.offset

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Any]:
        """The next batch of values.

        Raises: DataError: a line is not JSON; its batch is consumed. Besides what `LineReader` does.
        """
        batch = await anext(self._lines)
        return parse_json_lines(batch, self._journal, self._lines.offset)


def parse_json_lines(batch: list[bytes], journal: str, end: int) -> list[Any]:
    """Values of `batch`; `end` is the offset after its last line, for the error's text."""
    # Line by line, which is as fast as all at once: no two lines make up a value together.
    values: list[Any] = []
    try:
        for line in batch:
            values.append(orjson.loads(line))  # noqa: PERF401  their number identifies the one that failed
    except orjson.JSONDecodeError as err:
        index = len(values)
        at = end - sum(len(rest) + 1 for rest in batch[index:])
        raise DataError(
            f"{journal}: the line at offset {at} is not JSON: {err} ({batch[index][:80]!r})"
        ) from err
    return values


def lines(reader: PieceReader, *, line_bytes_max: int = LINE_BYTES_MAX) -> LineReader:
    """Batches of whole lines; see `LineReader`."""
    return LineReader(reader, line_bytes_max=line_bytes_max)


def json_lines(reader: PieceReader, *, line_bytes_max: int = LINE_BYTES_MAX) -> JsonReader:
    """Batches of JSON values; see `JsonReader`."""
    return JsonReader(reader, line_bytes_max=line_bytes_max)
