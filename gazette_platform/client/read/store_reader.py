"""Content straight from stores: of fragments that a broker has named, or of a journal without any broker.

`StoreReader` needs no broker, as for a journal of another cluster, or after its end.
`DirectRead` joins stored fragments that follow each other and fetches the next ones ahead. Each
fragment is checked against its length and SHA-1, whichever offset the read began at.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, final
from urllib.parse import unquote, urlsplit

from gazette_platform.client.read.extents import POLL_S_MIN, StorePlan, choose_next, next_poll_s
from gazette_platform.client.read_ahead import READ_AHEAD_BYTES_MAX, FragmentStream, ReadAhead
from gazette_platform.client.results import FragmentListing
from gazette_platform.errors import (
    GazetteError,
    JournalReplaced,
    ObjectNotFound,
    OffsetJump,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import parse_fragment_path, strip_meta, validate_journal_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from types import TracebackType

    from gazette_platform.protocol import Fragment
    from gazette_platform.stores import FragmentStore


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


_PLAN_FRAGMENTS = 128
# Failures in a row after which a read that does not wait gives up.
_FAILURES_MAX = 4


def read_store(
    url: str,
    journal: str,
    offset: int = 0,
    *,
    block: bool = False,
    end_offset: int = 0,
    on_jump: Literal["raise", "continue"] = "raise",
    after: str = "",
    file_root: Path | None = None,
    clock: Clock | None = None,
) -> StoreReader:
    """Content of a journal as far as it is stored at `url`; see `StoreReader`.

    Args:
        url: of the fragment store, as in the journal's spec, with its arguments; credentials are found
            as brokers find them.
        journal: its name.
        offset: first byte.
        block: whether to wait for fragments that are stored later, by listing the store again: after
            1 s, and more and more seldom, up to a minute, while there is nothing new.
        end_offset: where to end; 0: nowhere.
        on_jump: what to do about content that is gone: raise `OffsetJump`, or read on after it.
        after: path of the fragment that holds the byte before `offset`, as `fragment.content_path` of the reader said that
            existed before. With it a journal that was deleted and made again since is refused.
        file_root: what ``file`` URLs are rooted at; default: the root of the file system.

    Raises: ValidationError: the URL or name is wrong. StoreError: the scheme cannot be served here.
    """
    validate_journal_name(journal, meta=True)
    from gazette_platform.stores import open_store  # noqa: PLC0415  direct reads need no drivers

    store = open_store(url, file_root=file_root or Path("/"))
    return StoreReader(
        store,
        journal,
        offset,
        block=block,
        end_offset=end_offset,
        on_jump=on_jump,
        after=after,
        clock=clock,
    )


def _fragment_before(journal: str, offset: int, path: str) -> Fragment:
    """Raises: ValidationError: it is not a fragment of the journal, or one that is not in front of the offset."""
    try:
        name = strip_meta(journal)
        found = parse_fragment_path(name, path.removeprefix(f"{name}/"))
    except ValidationError as err:
        raise err.within("after") from err
    if not found.begin < offset <= found.end:
        raise ValidationError(f"{path} does not hold the byte before offset {offset}", path="after")
    return found


@final
class StoreReader:
    """Content of a journal's stored fragments: an async iterator of pieces, as a `Reader` is.

    What brokers have not stored yet is not seen, so it lags by up to a fragment, or the
    journal's flush interval. Fragments are fetched ahead, and checked, as in direct reads. Close it,
    or use it as a context manager.

    A store says nothing of create revisions. So its content decides whether the journal is the one that was read: if the
    fragment that was read last is not listed any more, those that hold its bytes must have the same digest.

    Attributes:
        offset: of the journal, of the next byte to come.
        write_head: end of what was stored when the store was last listed.
        fragment: the one being read, if any.
    """

    def __init__(
        self,
        store: FragmentStore,
        journal: str,
        offset: int,
        *,
        block: bool,
        end_offset: int,
        on_jump: Literal["raise", "continue"],
        after: str = "",
        clock: Clock | None = None,
    ) -> None:
        if offset < 0:
            raise ValidationError(f"must not be negative ({offset})", path="offset")
        self._before = _fragment_before(journal, offset, after) if after else None
        self._replaced: JournalReplaced | None = None
        self.journal = journal
        self.offset = offset
        self.write_head = 0
        self.fragment: Fragment | None = None
        self._store = store
        self._block = block
        self._end_offset = end_offset
        self._on_jump = on_jump
        self._clock = clock or SystemClock()
        self._tasks = TaskGroup("read-store")
        self._pool = ReadAhead(self._tasks, READ_AHEAD_BYTES_MAX)
        self._plan: StorePlan | None = None
        self._read: DirectRead | None = None
        self._poll_s = POLL_S_MIN
        self._list_at = 0.0  # on the loop's clock; 0: not known yet
        self._failures = 0
        self._has_read = False
        self._is_done = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next content.

        Raises: OffsetJump: content is gone; the reader may be used on. JournalReplaced: the journal was deleted with its
            files, and made again; each time. DataError, ChecksumMismatch: a
            fragment is damaged. StoreError: the store does not give what it lists, or nothing.
        Cancellation: safe; no content is lost.
        """
        if self._replaced is not None:
            raise self._replaced
        while not self._is_done and not (self._end_offset and self.offset >= self._end_offset):
            try:
                if self._read is None:
                    await self._begin()
                elif (piece := await self._next(self._read)) is not None:
                    self._failures = 0
                    return piece
            except StoreError as err:
                self._stop()
                self._plan = None  # a fragment that is gone may be part of another by now
                self._failures += 1
                if not (self._block and err.retriable) and self._failures > _FAILURES_MAX:
                    raise
                _log.warning("reading %s from %s: %s", self.journal, self._store.url, err)
                await asyncio.sleep(backoff_s(self._failures))
        raise StopAsyncIteration

    async def read(self) -> bytes:
        """All until the end."""
        return b"".join([piece async for piece in self])

    async def _next(self, read: DirectRead) -> bytes | None:
        piece = await read.next()
        if piece is None:
            self._stop()
            return None
        self.fragment, self._has_read = read.current.fragment, True
        self._before = self.fragment
        if self._end_offset:
            piece = piece[: self._end_offset - self.offset]
        self.offset += len(piece)
        return piece

    async def _begin(self) -> None:
        """Begin to read at the offset, once it is stored; end, if the caller does not wait for that."""
        place = self._plan and self._plan.place(self.offset, self._clock.now().timestamp())
        if place is None:
            is_first, before = self._plan is None, self.write_head
            if not is_first:
                if not self._block:
                    self._is_done = True
                    if self.offset < self.write_head:
                        _log.warning(
                            "%s: what follows offset %d is not stored, or not yet; the read ends there, "
                            "before the %d that are stored",
                            self.journal,
                            self.offset,
                            self.write_head,
                        )
                    return
                # Kept while callers come and go, who may be less patient than the pause is long.
                now = asyncio.get_running_loop().time()
                self._list_at = self._list_at or now + self._poll_s
                await asyncio.sleep(self._list_at - now)
            self._plan = await self._list()
            self._list_at = 0.0
            if is_first and not self._plan.end:
                _log.warning(
                    "%s has no fragments in %s (look at its name, and the path of the URL)",
                    self.journal,
                    self._store.url,
                )
            self.write_head = max(before, self._plan.end)
            if not is_first:
                self._poll_s = next_poll_s(self._poll_s, is_new=self.write_head > before)
            return
        if place.offset != self.offset:
            at, self.offset = self.offset, place.offset
            if self._on_jump == "raise":
                raise OffsetJump(self.journal, at, place.offset)
            _log.warning("%s: content from offset %d to %d is gone", self.journal, at, self.offset)
        self._read = DirectRead(
            self._pool,
            place.listing,
            offset=self.offset,
            end_offset=self._end_offset,
            open_stream=self._open_stream,
            list_from=self._list_from,
        )

    async def _list(self) -> StorePlan:
        found: list[FragmentListing] = []
        end, is_known = 0, False
        is_beginning = not self._has_read
        name = strip_meta(self.journal)
        async for stored in self._store.list(f"{name}/"):
            try:
                fragment = parse_fragment_path(name, stored.path)
            except ValidationError as err:
                _log.warning("%s in %s is not a fragment: %s", stored.path, self._store.url, err)
                continue
            end = max(end, fragment.end)
            is_known = is_known or fragment.content_name == (
                self._before and self._before.content_name
            )
            if fragment.end <= self.offset:
                is_beginning = False
            else:
                placed = replace(fragment, backing_store=self._store.url, mod_time=stored.mod_time)
                found.append(FragmentListing(placed))
        if self._before is not None and end and not is_known:
            await self._require_same(self._before, end)
        return StorePlan(found, is_beginning=is_beginning)

    async def _require_same(self, before: Fragment, end: int) -> None:
        """Look whether what is stored now has what was read before.

        Where nothing of it is stored any more, it was pruned: the end of a journal stays.

        Raises: JournalReplaced.
        """
        is_same = end >= self.offset
        if is_same:
            again = StoreReader(
                self._store,
                self.journal,
                before.begin,
                block=False,
                end_offset=before.end,
                on_jump="raise",
            )
            with contextlib.suppress(OffsetJump):
                async with again:
                    content = await again.read()
                # A part says nothing: the rest was pruned, or is about to be stored.
                is_whole = len(content) == before.content_length
                is_same = not is_whole or hashlib.sha1(content).digest() == before.sum  # noqa: S324  Gazette's
        if is_same:
            return
        self._replaced = JournalReplaced(
            self.journal,
            self.offset,
            f"the journal of fragment {before.content_name}, and {self._store.url} holds other content up to {end}",
            "begin at an offset of this one, such as 0",
        )
        raise self._replaced

    async def _list_from(self, offset: int) -> Sequence[FragmentListing]:
        return self._plan.begins_from(offset, _PLAN_FRAGMENTS) if self._plan else ()

    def _open_stream(self, listing: FragmentListing, offset: int, is_first: bool) -> FragmentStream:  # noqa: FBT001  as it is called back
        path = listing.fragment.content_path
        return FragmentStream(
            self._pool,
            listing.fragment,
            f"{path} in {self._store.url}",
            self._store.local_path(path) or self._store.get(path),
            offset=offset,
            is_first=is_first,
        )

    def _stop(self) -> None:
        read, self._read = self._read, None
        if read is not None:
            read.close()

    def end(self) -> None:
        """End the read, and all that was fetched ahead."""
        self._is_done = True
        self._stop()
        self._pool.close()

    async def aclose(self) -> None:
        """As `end`, and wait until connections are closed."""
        self.end()
        await self._tasks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
