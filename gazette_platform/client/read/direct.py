"""Read fragments from their store, without a broker in between.

`DirectRead` joins stored fragments that follow each other and fetches the next ones ahead. Each
fragment is checked against its length and SHA-1, whichever offset the read began at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, final
from urllib.parse import unquote, urlsplit

from gazette_platform.client.read.extents import choose_next
from gazette_platform.client.read_ahead import FragmentStream, ReadAhead
from gazette_platform.errors import GazetteError, ObjectNotFound, StoreError, StoreUnavailable
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from gazette_platform.client.results import FragmentListing
    from gazette_platform.protocol import Fragment

_PIECE_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 10.0
_STALL_TIMEOUT_S = 60.0


def fragment_file(url: str, file_root: Path | None) -> Path | None:
    """The local file of a ``file://`` fragment URL; None for other schemes.

    Raises: StoreError: it would not lie below the root, or is not a URL.

    >>> fragment_file("file:///a/b%20c", Path("/data"))
    PosixPath('/data/a/b c')
    """
    try:
        parts = urlsplit(url)
    except ValueError as err:
        raise StoreError(f"fragment URL {url!r}: {err}") from err
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    # A malicious broker must not be able to make its clients read other files of this machine.
    if ".." in path.split("/") or "\0" in path:
        raise StoreError(f"fragment URL {url!r} does not lie below the root of its store")
    return (file_root or Path("/")) / path.lstrip("/")


async def read_fragment(
    fragment: Fragment, url: str, *, offset: int, file_root: Path | None = None
) -> AsyncGenerator[bytes, None]:
    """Content of `fragment` from `offset` to its end, out of the store behind `url`.

    The whole fragment is fetched, decompressed and checked against its length and SHA-1, whatever
    `offset` is; threads do that, ahead of whoever iterates. The check comes after the last piece.

    Args:
        url: signed URL, ``file``, ``http`` or ``https``.
        offset: of the journal, in the fragment.
        file_root: directory that ``file`` URLs are rooted at.

    Raises: ObjectNotFound, StoreError: nothing was read. StoreUnavailable: the store broke off.
        DataError: the stored bytes do not decompress, or to a wrong length.
        ChecksumMismatch: they are not the content that the fragment is named for.
    Cancellation: safe; closes the file or connection.
    """
    tasks = TaskGroup("read-fragment")
    pool = ReadAhead(tasks)
    stream: FragmentStream | None = None
    try:
        stream = stream_of(pool, fragment, url, offset=offset, file_root=file_root)
        while (piece := await stream.next()) is not None:
            yield piece
    finally:
        if stream is not None:
            stream.close()
        pool.close()
        await tasks.close()


def stream_of(
    pool: ReadAhead,
    fragment: Fragment,
    url: str,
    *,
    offset: int,
    file_root: Path | None,
    is_first: bool = True,
) -> FragmentStream:
    """The content of a fragment behind a URL; see `FragmentStream`. Raises: StoreError: no such URL."""
    source = fragment_file(url, file_root) or _http_pieces(url)
    return FragmentStream(pool, fragment, _shown(url), source, offset=offset, is_first=is_first)


def _shown(url: str) -> str:
    """A URL for people, without the part after `?`, which lets anyone fetch the object for as long as it is signed."""
    return url.partition("?")[0]


async def _http_pieces(url: str) -> AsyncGenerator[bytes, None]:
    """Stored bytes by HTTP; the library must not decompress them."""
    import aiohttp  # noqa: PLC0415  slow to import, and only stores behind HTTP need it

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_STALL_TIMEOUT_S
    )
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.get(
                url, headers={"Accept-Encoding": "gzip"}, read_bufsize=_PIECE_BYTES
            ) as response,
        ):
            if response.status == 404:
                raise ObjectNotFound(f'!OK fetching (404, "{_shown(url)}")')
            if response.status != 200:
                raise StoreError(f'!OK fetching ({response.status}, "{_shown(url)}")')
            async for piece in response.content.iter_chunked(_PIECE_BYTES):
                yield piece
    except (aiohttp.ClientError, TimeoutError) as err:
        raise StoreUnavailable(f"fetching {_shown(url)}: {str(err) or type(err).__name__}") from err


_log = logging.getLogger(__name__)

URL_TTL_S: Final = 3600.0
"""Seconds that URLs are asked to be good for. A listing that is half as old is not used any more."""


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
