"""A read of a journal as a file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from gazette_platform.client.loop_thread import LoopThread, next_or_none
from gazette_platform.client.reader import Reader
from gazette_platform.client.records import LINE_BYTES_MAX, JsonReader, LineReader
from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

    from gazette_platform.client.store_reader import StoreReader

__all__ = ["SyncReader"]


@final
class SyncReader(io.RawIOBase):
    """Content of a journal, as a raw binary file, as pieces, or as batches of records.

    As a file it ends where `Reader` does; wrap it in `io.BufferedReader` for `readline`.
    Use one of the ways at a time, from one thread; `close` may come from another one, and ends
    the read that waits.
    """

    def __init__(self, loop: LoopThread, reader: Reader | StoreReader) -> None:
        super().__init__()
        self._loop = loop
        self._reader = reader
        self._rest: memoryview | bytes = b""

    @property
    def reader(self) -> Reader | StoreReader:
        """The reader that is driven: see it for offset, write head and fragment."""
        return self._reader

    @property
    def offset(self) -> int:
        """Offset in the journal of the next byte that `read` returns."""
        return self._reader.offset - len(self._rest)

    @property
    def write_head(self) -> int:
        """End of the journal, by a broker's latest answer."""
        return self._reader.write_head

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = self._next() or b""
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def pieces(self) -> Iterator[memoryview | bytes]:
        """Content in pieces of any size, as it arrives."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield rest
        while (piece := self._next()) is not None:
            yield piece

    def lines(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[list[bytes]]:
        """Batches of whole lines, without newlines; raises as `LineReader` does."""
        yield from self._batches(LineReader(self._reader, line_bytes_max=line_bytes_max))

    def json_lines(self, *, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[list[Any]]:
        """Batches of JSON values, one a line; raises as `JsonReader` does."""
        yield from self._batches(JsonReader(self._reader, line_bytes_max=line_bytes_max))

    def _batches(self, source: LineReader | JsonReader) -> Iterator[list[Any]]:
        while True:
            batch = self._loop.run(next_or_none(source))
            if batch is None:
                return
            yield batch

    def _next(self) -> memoryview | bytes | None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        piece: memoryview | bytes | None = self._loop.run(next_or_none(self._reader))
        return piece

    def go_to(self, offset: int) -> None:
        """Go on at another offset of the journal; see `Reader.seek`.

        No `seek`, because wrappers such as `io.BufferedReader` would then go back and forth by it.

        Raises: ValidationError: as `Reader.seek`; or it is a read of a store: begin another one.
        """
        reader, rest = self._reader, self._rest
        if not isinstance(reader, Reader):
            raise ValidationError("a read of a store goes to no other offset: begin another one")
        skipped = offset - (reader.offset - len(rest))
        if rest and 0 <= skipped <= len(rest):
            self._rest = rest[skipped:]
            return
        self._rest = b""
        self._loop.run(_seek(reader, offset))

    @override
    def close(self) -> None:
        """End the read. Does not wait, because collection of garbage closes files too."""
        if not self.closed:
            self._loop.post(self._reader.end)
        super().close()


async def _seek(reader: Reader, offset: int) -> None:
    reader.seek(offset)
