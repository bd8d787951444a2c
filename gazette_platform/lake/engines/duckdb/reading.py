"""Content of extents, in blocks of whole records: stored fragments past the brokers, tails through them."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from gazette_platform.client.read.store_reader import stream_of
from gazette_platform.client.read_ahead import FragmentStream, ReadAhead
from gazette_platform.errors import DataError, LakeError, ObjectNotFound, StoreError
from gazette_platform.lake.spec.layout import directory_of
from gazette_platform.message.framing import FRAME_BYTES_MAX
from gazette_platform.ops.tasks import Aclosing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.client import AsyncClient, Reader
    from gazette_platform.lake.engines.duckdb.snapshot import TableExtent
    from gazette_platform.lake.reading.rows import RowParser
    from gazette_platform.lake.spec.layout import StoreRoots

_log = logging.getLogger(__name__)

# Of content that is parsed at a time: below that parsers are slower, above it memory grows for nothing.
_BLOCK_BYTES: Final = 4 << 20


@final
@dataclass(slots=True)
class ScanCounts:
    """What a query has read; added to as it goes on."""

    extents: int = 0
    """Pieces of journals that had to be read, of all that were planned."""
    extents_planned: int = 0
    fragments_opened: int = 0
    """Persisted fragments that were fetched from their store."""
    bytes_stored: int = 0
    """Content that came from stores."""
    bytes_served: int = 0
    """Content that came through brokers: the live tail, and fragments of stores out of reach."""
    bytes_planned: int = 0
    """Content of the extents that are read."""
    bytes_missing: int = 0
    """Content that brokers did not have any more when it was read."""


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records of one extent."""

    extent: TableExtent
    begin: int
    """Byte offset of the first one."""
    content: bytes
    """Ends with a newline, added if the extent's end lacked it."""


@final
class ExtentReader(Aclosing):
    """Reads extents one after the other; the next ones are fetched ahead.

    All methods are called on the client's event loop.
    """

    def __init__(
        self,
        client: AsyncClient,
        pool: ReadAhead,
        extents: Sequence[TableExtent],
        *,
        roots: StoreRoots,
        parser: RowParser,
        counts: ScanCounts,
    ) -> None:
        self._client = client
        self._pool = pool
        self._roots = roots
        self._parser = parser
        self._counts = counts
        self._waiting = deque(extents)
        self._open: deque[tuple[TableExtent, FragmentStream | None]] = deque()
        self._reader: Reader | None = None
        self._at = -1
        self._held = b""

    async def next_block(self) -> list[Piece]:
        """Pieces of up to some megabytes, of one extent or several; none at the end.

        Raises: GazetteError: content cannot be had, or is damaged. Cancellation: the read has to end.
        """
        pieces: list[Piece] = []
        size = 0
        while size < _BLOCK_BYTES:
            self._fill()
            if not self._open:
                break
            piece = await self._next_piece(_BLOCK_BYTES - size)
            if piece is not None:
                pieces.append(piece)
                size += len(piece.content)
        return pieces

    async def aclose(self) -> None:
        """End all fetching."""
        self._waiting.clear()
        for _, stream in self._open:
            if stream is not None:
                stream.close()
        self._open.clear()
        await self._close_reader()

    def _fill(self) -> None:
        while self._waiting and len(self._open) < self._pool.streams_max:
            extent = self._waiting.popleft()
            self._open.append((extent, self._stream(extent, is_first=not self._open)))

    def _stream(self, extent: TableExtent, *, is_first: bool) -> FragmentStream | None:
        """Begin to fetch a stored fragment; None if brokers have to be asked."""
        if extent.listing is None:
            return None
        fragment, url = extent.listing.fragment, extent.listing.signed_url
        try:
            if fragment.backing_store.startswith("file:"):
                location = self._roots.location(fragment.backing_store, directory_of(fragment))
                # Locations hold paths as they are: brokers do not percent-encode them.
                path = Path(location.removeprefix("file://")) / fragment.content_name
                return FragmentStream(
                    self._pool,
                    fragment,
                    str(path),
                    path,
                    offset=extent.begin,
                    is_first=is_first,
                )
            if url:
                return stream_of(
                    self._pool,
                    fragment,
                    url,
                    offset=extent.begin,
                    file_root=None,
                    is_first=is_first,
                )
        except (LakeError, StoreError) as err:
            _log.debug("%s is read through brokers: %s", fragment.content_path, err)
        return None

    async def _next_piece(self, wanted: int) -> Piece | None:
        """Whole records of the first extent; None when it has ended without more."""
        extent, _ = self._open[0]
        if self._at < 0:
            self._at = extent.begin
            self._counts.fragments_opened += self._open[0][1] is not None
        begin, held, size = self._at - len(self._held), [self._held], len(self._held)
        while True:
            content = await self._content()
            if content is None:
                rest = b"".join(held)
                await self._end_extent()
                if not rest:
                    return None
                return Piece(extent, begin, rest if rest.endswith(b"\n") else rest + b"\n")
            start = self._at - len(content)
            if start != begin + size:  # what lies between was pruned since it was listed
                if size:
                    raise DataError(
                        f"{extent.journal}: content after offset {begin} was pruned while it was read: "
                        "run the query again"
                    )
                begin = start
            held.append(bytes(content))
            size += len(content)
            if size < wanted and size < extent.end - begin:
                continue
            # Most often a record ends in the last content, and all is copied once.
            last = held[-1]
            if cut := self._parser.cut(last):
                self._held = last[cut:]
                return Piece(extent, begin, b"".join([*held[:-1], memoryview(last)[:cut]]))
            whole = b"".join(held)
            cut = self._parser.cut(whole)
            if cut:
                self._held = whole[cut:]
                return Piece(extent, begin, whole[:cut])
            if size > FRAME_BYTES_MAX + _BLOCK_BYTES:
                raise DataError(
                    f"{extent.journal}: no record ends within {size} bytes after offset {begin} (is "
                    "the table's `format` that of its journals?)"
                )
            # A record longer than a block is looked at again when there is twice as much of it: to join all at each
            # piece would take the square of its length.
            held, wanted = [whole], min(2 * size, FRAME_BYTES_MAX + _BLOCK_BYTES + 1)

    async def _content(self) -> bytes | memoryview | None:
        """The next content of the first extent, cut at its end."""
        extent, stream = self._open[0]
        if self._at >= extent.end:
            return None
        if stream is not None:
            try:
                piece = await stream.next()
            except (ObjectNotFound, StoreError) as err:
                # Pruned since it was listed, or a store that only brokers reach: they may have it.
                _log.debug("%s is read through brokers: %s", stream.name, err)
                stream.close()
                self._open[0] = (extent, None)
                return await self._served(extent)
            if piece is None:
                return None
            piece = piece[: extent.end - self._at]
            self._counts.bytes_stored += len(piece)
            self._at += len(piece)
            if self._at == stream.fragment.end:
                await stream.next()  # which checks the digest of all
            return piece
        return await self._served(extent)

    async def _served(self, extent: TableExtent) -> bytes | memoryview | None:
        if self._reader is None:
            self._reader = self._client.read(
                extent.journal, self._at, end_offset=extent.end, on_jump="continue"
            )
        piece = await anext(self._reader, None)
        if piece is None:
            self._counts.bytes_missing += extent.end - self._at
            return None
        begin = self._reader.offset - len(piece)
        self._counts.bytes_missing += begin - self._at
        self._counts.bytes_served += len(piece)
        self._at = self._reader.offset
        return piece

    async def _end_extent(self) -> None:
        _, stream = self._open.popleft()
        if stream is not None:
            stream.close()
        await self._close_reader()
        self._at, self._held = -1, b""
        if self._open and self._open[0][1] is not None:
            self._open[0][1].promote()

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.aclose()
