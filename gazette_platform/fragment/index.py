"""What a broker can serve of a journal: fragments in the stores, which it lists, and its own open ones.

Guarantee: a fragment that this broker holds is served from its local file until the index knows that
stores hold all of it. At every instant one of the two is served.

All methods are called on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

from gazette_platform.errors import GazetteError, StoreError, StoreUnavailable, ValidationError
from gazette_platform.fragment.cover_set import JUMP_AGE_S, CoverSet
from gazette_platform.protocol import Fragment, Status, parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import JournalSpec
    from gazette_platform.stores import StoredObject, StoreRegistry


KEPT_S: Final = 15 * 60
"""Seconds for which a stored fragment may be missing from listings before they are believed: they can be
older than their store, by caches between, but not by this much. Three intervals of refreshes, as specs
have them when they say nothing."""

_FROM_HEAD: Final = -1


class LocalFile(Protocol):
    """An open file with several holders, closed when the last one releases it."""

    @property
    def fd(self) -> int:
        """Its descriptor; valid while held."""
        ...

    def hold(self) -> object:
        """Keep it open until a matching `release`. Raises: ValueError: it is closed already."""
        ...

    def release(self) -> None:
        """Give up one hold."""
        ...


class IndexSummary(NamedTuple):
    """The extent of an index."""

    begin: int
    """Offset of the first known byte."""
    end: int
    """Offset after the last known byte."""
    mod_time: int
    """Unix seconds at which the last fragment was stored; 0 if it is local, or there is none."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Where to read next."""

    status: Status
    """OK, or OFFSET_NOT_YET_AVAILABLE."""
    offset: int
    """Where the read continues: the offset asked for, or after content that is skipped or missing."""
    write_head: int
    fragment: Fragment | None = None
    """If the status is OK, the one that holds the byte at `offset`."""
    file: LocalFile | None = None
    """The fragment's content, if it is local. Hold it before the next ``await``."""
    skips: int | None = None
    """The first missing offset that the read would skip, if it is not missing for long: another broker
    may still store it."""


@final
class Index:
    """The fragments of one journal at one broker.

    Attributes:
        first_refresh: set once the stores were listed for the first time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.first_refresh = asyncio.Event()
        self._all: CoverSet[Fragment] = CoverSet()
        self._local: CoverSet[Fragment] = CoverSet()
        self._remote: CoverSet[Fragment] = CoverSet()
        # Files of local fragments, by where these begin. Each is held once while it is in here.
        self._files: dict[int, LocalFile] = {}
        # Fragments persisted since the last listing began, each with the number of its event.
        self._persisted: list[tuple[int, Fragment]] = []
        self._events = 0
        self._listed = 0  # the event at which the listing in use began
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_closed = False

    @property
    def summary(self) -> IndexSummary:
        """The extent of all fragments."""
        last = self._all.last
        if last is None:
            return IndexSummary(0, 0, 0)
        return IndexSummary(self._all.begin, last.end, last.mod_time)

    @property
    def is_closed(self) -> bool:
        """Whether the replica has stopped."""
        return self._is_closed

    # ---------------------------------------------------------------- reading

    def lookup(self, offset: int, *, begin_mod_time: int = 0) -> QueryResult:
        """Find where to read at `offset`, as of now.

        Args:
            offset: byte of the journal; -1 is the write head.
            begin_mod_time: unix seconds; fragments that were stored before are skipped.
        """
        head = self._all.end
        if offset == _FROM_HEAD:
            offset = head
        skips: int | None = None
        while True:
            index, found = self._all.lookup(offset)
            if not found:
                if not self._may_jump(index):
                    return QueryResult(Status.OFFSET_NOT_YET_AVAILABLE, offset, head, skips=skips)
                if skips is None and not self._is_old(index):
                    skips = offset
                offset = self._all[index].begin
            fragment = self._all[index]
            if not 0 < fragment.mod_time < begin_mod_time:
                file = None if fragment.backing_store else self._files.get(fragment.begin)
                return QueryResult(Status.OK, offset, head, fragment, file, skips)
            offset = fragment.end

    def covers(self, begin: int, end: int) -> bool:
        """Whether all bytes [begin, end) are known to be here or in a store."""
        return self._all.covers(begin, end)

    def is_stored(self, begin: int, end: int) -> bool:
        """Whether stores are known to hold all bytes [begin, end)."""
        return begin >= end or self._remote.covers(begin, end)

    async def wait_change(self) -> bool:
        """Wait until fragments change. Returns: False if the index is closed.

        Cancellation: safe.
        """
        if self._is_closed:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
        return not self._is_closed

    async def wait_persisted(self, end: int) -> bool:
        """Wait until stores hold all local content below `end`, a byte offset.

        Returns: False if the index is closed. Cancellation: safe.
        """
        while any(fragment.begin < end for fragment in self._local):
            if not await self.wait_change():
                return False
        return not self._is_closed

    async def inspect(self) -> CoverSet[Fragment] | None:
        """All fragments, once the stores were listed.

        Returns: the set itself, to be read and not changed before the next ``await``; None if the
            index was closed while waiting.
        Cancellation: safe.
        """
        while not self.first_refresh.is_set():
            if not await self.wait_change():
                return None
        return self._all

    # ---------------------------------------------------------------- changing

    def spool_commit(self, fragment: Fragment, file: LocalFile | None) -> None:
        """Publish content of the open or a closed local fragment, and wake readers.

        Args:
            fragment: replaces the one that was published with the same begin.
            file: its content, from position 0. It is held while the index may serve it.
        """
        if self._is_closed or self._remote.covers(fragment.begin, fragment.end):
            return  # the store serves it; a local fragment of the same span must not replace that
        displaced = self._local.insert(fragment)
        if displaced is None:
            return
        old_file = self._files.get(fragment.begin)
        if file is not old_file:
            if file is not None:
                file.hold()
                self._files[fragment.begin] = file
            if old_file is not None:
                old_file.release()
                if file is None:
                    del self._files[fragment.begin]
        for other in displaced:
            if other.begin != fragment.begin:
                self._drop_file(other)
        self._all.insert(fragment)
        self.wake()

    def listing_began(self) -> int:
        """Note that a listing of the stores begins now.

        Returns: a token for `replace_remote`. It says which fragments were persisted too late for
            the listing to see them, and which of two listings is the newer one.
        """
        self._events += 1
        return self._events

    def lately_stored(
        self, remote: CoverSet[Fragment], stores: Collection[str], *, listing: int
    ) -> list[Fragment]:
        """Known fragments that a new listing lacks, though they were stored a moment ago.

        They were deleted since, or the listing is older than they are. This broker, which may have
        stored them itself, has dropped its local copies.

        Args:
            remote: the listing.
            stores: that were listed.
            listing: the token that `listing_began` gave. What was persisted since is not meant.
        """
        since = self._clock.now().timestamp() - KEPT_S
        newer = [fragment for at, fragment in self._persisted if at > listing]
        return [
            one
            for one in self._remote
            if one.mod_time > since
            and one.backing_store in stores
            and not remote.covers(one.begin, one.end)
            and one not in newer
        ]

    def replace_remote(
        self,
        remote: CoverSet[Fragment],
        *,
        listing: int | None = None,
        kept: Iterable[Fragment] = (),
    ) -> None:
        """Take over a new listing of all stores, and drop the local fragments that it covers.

        Args:
            remote: owned by the index from now on.
            kept: those of `lately_stored` that are not known to be deleted.
            listing: the token that `listing_began` gave; None: the listing saw everything that is
                persisted so far. A listing that began before the one in use is ignored.
        """
        began = self.listing_began() if listing is None else listing
        if began < self._listed:
            return  # two ran side by side, and `_persisted` is only kept for the newer one
        self._listed = began
        self._persisted = [(at, fragment) for at, fragment in self._persisted if at > began]
        for fragment in (*kept, *(fragment for _, fragment in self._persisted)):
            if not remote.covers(fragment.begin, fragment.end):
                remote.add(fragment)
        self._remote = remote
        self._drop_covered()
        self.first_refresh.set()
        self.wake()

    def add_remote(self, fragment: Fragment) -> None:
        """Take over one fragment that was just persisted, without waiting for a listing.

        Args:
            fragment: with store, time and postfix.
        """
        self._events += 1
        self._persisted.append((self._events, fragment))
        if not self._remote.add(fragment):
            return
        self._drop_covered(near=fragment)
        self.wake()

    def close(self) -> None:
        """End all waits for a change, and release all files. Idempotent."""
        self._is_closed = True
        for file in self._files.values():
            file.release()
        self._files.clear()
        self._local = CoverSet()
        self._all = self._remote.copy()
        self.wake()

    def wake(self) -> None:
        """Wake all who wait for a change, so that they look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _may_jump(self, index: int) -> bool:
        """Whether a read at a missing offset may go on at the next member, which has this index.

        Gazette's rule: it may at the beginning of the journal, which is pruned in time, or if the hole
        is old. Local content is never jumped to: what precedes it may be about to be stored.
        """
        if index == len(self._all):
            return False
        if self._all[index].mod_time == 0:
            return False
        return index == 0 or self._is_old(index)

    def _is_old(self, index: int) -> bool:
        """Whether the stored member `index` is so old that what precedes it must have been stored, too."""
        return self._all[index].mod_time < self._clock.now().timestamp() - JUMP_AGE_S

    def _drop_covered(self, *, near: Fragment | None = None) -> None:
        """Drop local fragments that the stores hold.

        Args:
            near: the only remote fragment that is new; None: any may be.
        """
        kept: list[Fragment] = []
        dropped: list[Fragment] = []
        for one in self._local:
            is_covered = self._remote.covers(one.begin, one.end)
            (dropped if is_covered else kept).append(one)
        self._local = CoverSet(kept)
        for one in dropped:
            self._drop_file(one)
        if near is not None and all(
            (one.begin, one.end) == (near.begin, near.end) for one in dropped
        ):
            # The usual case: the remote fragment takes the place of the local one.
            self._all.add(near)
            return
        self._all = self._remote.copy()
        for one in kept:
            self._all.add(one)

    def _drop_file(self, fragment: Fragment) -> None:
        file = self._files.pop(fragment.begin, None)
        if file is not None:
            file.release()


_log = logging.getLogger(__name__)


# The log names each file that is not a fragment once, and at most so many. A store with more of them is
# plainly used for something else, too, and naming the rest does not help.
_WARNINGS_MAX: Final = 1000

_LIST_TIMEOUT_S: Final = 300.0

# Of asking for all fragments that a listing lacks, one by one. That is rare, and mostly about a few.
_HEADS_TIMEOUT_S: Final = 20.0

# Seconds for which the first listing may fail. Checks of a store's health may fail about as long.
_FAILING_S: Final = 12.0


def fragment_of(journal: str, url: str, item: StoredObject) -> Fragment:
    """The fragment that an object in the folder of a journal is.

    Raises: ValidationError: it is none.
    """
    fragment = parse_fragment_path(journal, item.path)
    if fragment.content_path != f"{journal}/{item.path}":
        # The name can be read, but is not the one that such a fragment gets (its numbers have
        # another width, say), so nothing could fetch it.
        raise ValidationError(f"expected {fragment.content_path}")
    return replace(fragment, backing_store=url, mod_time=item.mod_time)


@final
class FragmentLister:
    """Lists the fragments of journals in all of their stores."""

    def __init__(
        self, registry: StoreRegistry, *, check: Callable[[JournalSpec], None] | None = None
    ) -> None:
        """Keep what is needed to list.

        Args:
            registry: opens stores by their URLs.
            check: raises a `StoreError` if the stores of a journal must not be used.
        """
        self._registry = registry
        self._check = check
        self._warned: set[str] = set()

    def check(self, spec: JournalSpec) -> None:
        """Refuse stores that a journal must not use. Raises: StoreError."""
        if self._check is not None:
            self._check(spec)

    async def list(self, spec: JournalSpec) -> CoverSet[Fragment]:
        """The fragments of a journal in all of its stores; of equal ones, that of the last store.

        Objects that are not fragments are skipped. The log names each of them once.

        Raises: GazetteError: a store could not be opened or listed.
        Cancellation: safe.
        """
        self.check(spec)
        found: CoverSet[Fragment] = CoverSet()
        for url in spec.fragment.stores:
            try:
                async with asyncio.timeout(_LIST_TIMEOUT_S):
                    async for item in self._registry.get(url).list(f"{spec.name}/"):
                        fragment = self._parse(spec.name, url, item)
                        if fragment is not None:
                            found.add(fragment)
            except TimeoutError as err:
                what = f"LIST took over {_LIST_TIMEOUT_S:g} s"
                raise StoreUnavailable(f"fragment store {url} cannot be listed: {what}") from err
            except GazetteError as err:
                kind = type(err) if isinstance(err, StoreError) else StoreError
                raise kind(f"fragment store {url} cannot be listed: {err}") from err
        return found

    async def still_stored(self, fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        """Those of some fragments that stores hold, or for which they do not say so in time.

        Cancellation: safe.
        """
        kept = [*fragments]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEADS_TIMEOUT_S):
                for fragment in fragments:
                    # A failure here says nothing about the fragment.
                    with contextlib.suppress(GazetteError):
                        store = self._registry.get(fragment.backing_store)
                        if not await store.exists(fragment.content_path):
                            kept.remove(fragment)
        return kept

    def _parse(self, journal: str, url: str, item: StoredObject) -> Fragment | None:
        if item.path.endswith("/"):
            return None  # a "folder", as consoles of object stores make it
        try:
            return fragment_of(journal, url, item)
        except ValidationError as err:
            self._warn(f"{url} {journal}/{item.path}", str(err))
            return None

    def _warn(self, name: str, reason: str) -> None:
        if name in self._warned or len(self._warned) >= _WARNINGS_MAX:
            return
        self._warned.add(name)
        _log.warning("object %s is not a fragment, skipped: %s", name, reason)


@final
class Refresher:
    """Keeps the index of one journal up to date with its stores."""

    def __init__(self, index: Index, lister: FragmentLister, clock: Clock) -> None:
        self._index = index
        self._lister = lister
        self._clock = clock
        self._failures = 0
        self._failing_since = 0.0
        self._problem = ""

    async def refresh(self, spec: JournalSpec) -> bool:
        """List all stores once. If that fails, the index keeps what it knows.

        A listing may be older than what was stored a moment ago. Fragments that it lacks are asked for,
        and kept if they exist, or if the store does not answer; see `Index.lately_stored`.

        Returns: whether it succeeded.
        Cancellation: safe.
        """
        listing = self._index.listing_began()
        try:
            remote = await self._lister.list(spec)
            lacking = self._index.lately_stored(remote, spec.fragment.stores, listing=listing)
            kept = await self._lister.still_stored(lacking) if lacking else []
        except GazetteError as err:
            self._on_failure(str(err))
            if self._failures.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …: thousands fail at once
                _log.warning(
                    "listing the fragments of %s failed %d times: %s",
                    spec.name,
                    self._failures,
                    err,
                )
            return False
        except Exception as err:
            self._on_failure(f"fragment stores cannot be listed: {err!r}")
            raise
        if self._failures:
            _log.info("fragments of %s are listed again", spec.name)
        self._failures = 0
        if kept:
            _log.info(
                "a listing of %s is older than %d fragments that its stores hold, such as %s",
                spec.name,
                len(kept),
                kept[0].content_path,
            )
        self._index.replace_remote(remote, listing=listing, kept=kept)
        return True

    def _on_failure(self, problem: str) -> None:
        if not self._failures:
            self._failing_since = self._clock.monotonic()
        self._failures += 1
        self._problem = problem
        if not self._index.first_refresh.is_set():
            self._index.wake()  # `wait_first` looks how long it has been failing

    async def wait_first(self) -> str:
        """Wait until the stores were listed. A slow listing is waited for, but not one that fails.

        Returns: "", or what has been failing for too long, and what to do about it.
        Cancellation: safe.
        """
        index = self._index
        while not index.first_refresh.is_set():
            if self._failures and self._clock.monotonic() - self._failing_since > _FAILING_S:
                return f"{self._problem} (mend it, or take it out of the journal's stores)"
            if not await index.wait_change():
                break
        return ""
