"""Content of extents, in blocks of whole lines: out of their stores, and where these fail, through brokers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Literal, final

from gazette_platform.client.read.store_reader import read_fragment
from gazette_platform.errors import DataError, Desynchronized, StoreError
from gazette_platform.message.framing import FRAME_BYTES_MAX
from gazette_platform.ops.tasks import next_or_none

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from gazette_platform.client import AsyncClient, Client
    from gazette_platform.client.read.extents import Extent

BLOCK_BYTES: Final = 1 << 20
"""Where Arrow is fastest: smaller ones cost more calls, larger ones are refused for one bad record."""

Piece = tuple[int, bytes]
"""Content, and the offset of its first byte."""

_log = logging.getLogger(__name__)


def pieces_of(
    client: Client,
    extent: Extent,
    *,
    on_jump: Literal["raise", "continue"] = "raise",
    created: int = 0,
) -> Generator[Piece, None, None]:
    """Content, in order, in pieces of any size.

    A stored fragment is fetched as a whole, and its digest is compared after its last piece: what was
    made of it counts only once the iteration has ended.

    Args:
        client: of brokers; its config says where ``file`` stores are rooted.
        extent: what is read.
        on_jump: what to do about content that is gone, as of `Client.read`.
        created: which journal brokers are asked for, as of `Client.read`.

    Returns: a generator, to be closed before the client is.
    Raises: OffsetJump: content is gone. DataError: what is stored is damaged. StatusError, TransportError: it
        is not stored, or its store fails, and brokers do not give it either.
    """
    source = _content(client.asynchronous, extent, on_jump, created)
    try:
        while (piece := client.run(next_or_none(source))) is not None:
            yield piece
    finally:
        client.run(source.aclose())


async def _content(
    client: AsyncClient, extent: Extent, on_jump: Literal["raise", "continue"], created: int
) -> AsyncGenerator[Piece, None]:
    at = extent.begin
    if extent.listing is not None and extent.listing.signed_url:
        pieces = read_fragment(
            extent.listing.fragment,
            extent.listing.signed_url,
            offset=extent.begin,
            file_root=client.config.file_root,
        )
        try:
            async for piece in pieces:
                # Read to its end, though what is wanted may end before: the digest of all is checked there.
                if cut := bytes(piece[: extent.end - at]):
                    yield at, cut
                    at += len(cut)
        except StoreError as err:
            # Pruned since it was listed, or a store that only brokers reach.
            _log.debug("%s from %d on is read through brokers: %s", extent.journal, at, err)
        except DataError as err:
            raise type(err)(
                f"{extent.journal}: its fragment {extent.listing.fragment.content_path} is damaged: {err} (put back what "
                "the store held, from a backup or a copy)"
            ) from err
        finally:
            await pieces.aclose()
    if at >= extent.end:
        return
    reader = client.read(
        extent.journal, at, end_offset=extent.end, on_jump=on_jump, created=created
    )
    try:
        async for served in reader:
            yield reader.offset - len(served), bytes(served)
    finally:
        await reader.aclose()


@final
class LineBlocks:
    """Makes blocks of whole lines out of pieces. Memory: a block, or the longest line.

    Args:
        journal: for errors.
        block_bytes: once so many are held, and a line has ended, they are a block.
    """

    def __init__(self, journal: str, block_bytes: int = BLOCK_BYTES) -> None:
        self._journal = journal
        self._block_bytes = block_bytes
        self._held: list[bytes] = []
        self._begin = self._size = 0
        self._unended = 0

    @property
    def end(self) -> int:
        """Offset after all that was fed."""
        return self._begin + self._size

    @property
    def unended_bytes(self) -> int:
        """Of a line that has begun and not ended; 0: there is none."""
        return self._unended

    @property
    def is_within_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._unended)

    def feed(self, piece: Piece) -> Piece | None:
        """Take in what follows; if nothing is held, it may begin anywhere.

        Returns: a block, if there is enough for one.
        Raises: Desynchronized: a line does not end within 64 MiB.
        """
        at, content = piece
        if not self._size:
            self._begin = at
        cut = content.rfind(b"\n") + 1
        self._unended = len(content) - cut + (0 if cut else self._unended)
        if self._unended > FRAME_BYTES_MAX:
            raise Desynchronized(
                f"{self._journal}: no line ends within {self._unended} bytes after offset "
                f"{at + len(content) - self._unended} (is its content-type right?)"
            )
        self._held.append(content)
        self._size += len(content)
        return self.whole_lines() if self._size >= self._block_bytes else None

    def whole_lines(self) -> Piece | None:
        """The lines that are held and have ended; None: none. One that has not is held on."""
        begin, size = self._begin, self._size - self._unended
        if not size:
            return None
        if self._unended > len(self._held[-1]):
            self._held = [b"".join(self._held)]
        # Most often it is the last piece in which a line has begun, so that all is copied once.
        last = self._held.pop()
        cut = len(last) - self._unended
        content = b"".join([*self._held, memoryview(last)[:cut]])
        self._begin, self._held, self._size = begin + size, [last[cut:]], self._unended
        return begin, content

    def rest(self) -> Piece | None:
        """All that is held; the last line may not have ended. None: nothing."""
        found = self._begin, b"".join(self._held)
        self._begin, self._held, self._size, self._unended = self.end, [], 0, 0
        return found if found[1] else None
