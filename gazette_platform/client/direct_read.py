"""Stored fragments of a journal, one after the other, as one read; the next ones are fetched ahead."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from gazette_platform.client.read_ahead import FragmentStream, ReadAhead
    from gazette_platform.client.results import FragmentListing

__all__ = ["URL_TTL_S", "DirectRead", "choose_next"]

_log = logging.getLogger(__name__)

URL_TTL_S: Final = 3600.0
"""Seconds that URLs are asked to be good for. A listing that is half as old is not used any more."""


def choose_next(listed: Iterable[FragmentListing], offset: int) -> FragmentListing | None:
    """The stored fragment to read at `offset`: of those that hold it, the one that ends last.

    Args:
        listed: in any order; they may overlap, as after a fail-over.
    """
    best: FragmentListing | None = None
    for listing in listed:
        fragment = listing.fragment
        if not (listing.is_persisted and fragment.begin <= offset < fragment.end):
            continue
        if best is None or fragment.end > best.fragment.end:
            best = listing
    return best


@final
class DirectRead:
    """Content from an offset on, as far as stored fragments follow each other without a gap.

    Args:
        first: holds the byte at `offset`.
        end_offset: nothing that begins there or behind is fetched; 0: no end.
        open_stream: begins to fetch a fragment from an offset on, as the first or ahead.
        list_from: fragments that begin at an offset or behind; None: only `first` is read.
    """

    def __init__(
        self,
        pool: ReadAhead,
        first: FragmentListing,
        *,
        offset: int,
        end_offset: int,
        open_stream: Callable[[FragmentListing, int, bool], FragmentStream],
        list_from: Callable[[int], Awaitable[Sequence[FragmentListing]]] | None,
    ) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._end_offset = end_offset
        self._open_stream = open_stream
        self._list_from = list_from
        self._streams: deque[tuple[FragmentListing, FragmentStream]] = deque()
        self._planned: Sequence[FragmentListing] = ()
        self._last = first
        self._listing: asyncio.Task[None] | None = None
        self._listed_at = 0.0
        self._is_closed = False
        self.whole = 0
        """Fragments that were read to their ends."""
        self._open(first, offset)

    @property
    def current(self) -> FragmentListing:
        """The fragment that is being read, or was last."""
        return self._streams[0][0] if self._streams else self._last

    async def next(self) -> bytes | None:
        """The next content; None where no stored fragment follows.

        Raises: ObjectNotFound, StoreError, DataError, ChecksumMismatch, of the `current` fragment.
        Cancellation: safe; no content is lost.
        """
        while self._streams:
            self._fill()
            stream = self._streams[0][1]
            piece = await stream.next()
            if piece is not None:
                return piece
            if self._is_closed:
                break
            if len(self._streams) == 1 and self._listing is not None:
                await asyncio.wait({self._listing})
            stream.close()
            self._streams.popleft()
            self.whole += 1
            if self._streams:
                self._streams[0][1].promote()
        return None

    def close(self) -> None:
        """End all fetching, at once."""
        self._is_closed = True
        if self._listing is not None:
            self._listing.cancel()
        for _, stream in self._streams:
            stream.close()

    def __del__(self) -> None:
        # A reader that was left without being closed must not keep what it fetched.
        if not self._is_closed and self._streams:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                for _, stream in self._streams:
                    self._loop.call_soon_threadsafe(stream.close)

    def _open(self, listing: FragmentListing, offset: int) -> None:
        stream = self._open_stream(listing, offset, not self._streams)
        self._streams.append((listing, stream))
        self._last = listing

    def _fill(self) -> None:
        """Begin to fetch what follows, and to list what follows that."""
        while len(self._streams) < self._pool.streams_max and not self._is_closed:
            offset = self._last.fragment.end
            if self._list_from is None or (self._end_offset and offset >= self._end_offset):
                return
            if self._planned and self._loop.time() > self._listed_at + URL_TTL_S / 2:
                self._planned = ()
            following = choose_next(self._planned, offset)
            if following is not None:
                try:
                    self._open(following, offset)
                except GazetteError as err:
                    _log.debug("not fetched ahead: %s", err)
                    self._list_from = None
            elif self._listing is None:
                self._listing = self._pool.tasks.spawn(
                    self._list(self._last.fragment.begin + 1, offset), name="list-fragments"
                )
                return
            else:
                return

    async def _list(self, begin: int, offset: int) -> None:
        assert self._list_from is not None  # the caller has seen to it
        try:
            # Those that overlap the last one begin within it.
            self._planned = await self._list_from(begin)
            self._listed_at = self._loop.time()
        except GazetteError as err:
            _log.debug("fragments behind %d are not fetched ahead: %s", offset, err)
            self._planned = ()
        if choose_next(self._planned, offset) is None:
            self._list_from = None  # nothing follows that is stored
        self._listing = None
        self._fill()
