"""Brings closed fragments into their stores.

The primary persists at once. Replicas keep their copies for two to three minutes, and then look. By
then the object is usually there, and they have nothing to do. What fails is tried again, for ever: the
content was acknowledged, and may be nowhere else.

A store that fails is tried with one or two fragments, after pauses that grow to half a minute. Once it has
taken one it gets all the others. So what waits for it reaches it soon after it is back, and it is not
asked for each of them while it is away.

Source: Gazette broker/fragment/persister.go. Departs: there, a primary, too, tries again after two to
three minutes only. An invalid path postfix is a failure, which is
tried again until the spec is mended, instead of giving an object that no listing would take. Replicas
list the store before they write, so that the same bytes do not end up in two partitions.

Long because queues, tries and the drain act on the same fragments.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import random
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from gazette_platform.broker.spool.disk import CompressedForm
from gazette_platform.errors import (
    AccessDenied,
    GazetteError,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.ops import tracing
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.tasks import run_in
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.path_postfix import PathPostfixTemplate
from gazette_platform.stores import version_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.broker.spool.disk import CompletedSpool
    from gazette_platform.fragment.index import FragmentLister, Index
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Fragment, JournalSpec
    from gazette_platform.stores import ActiveStore, StoreRegistry

_log = logging.getLogger(__name__)

_CONCURRENT_MAX: Final = 32  # fragments on their way into one store
_TICK_S: Final = 60.0
_STORE_TIMEOUT_S: Final = 300.0
# Seconds that etcd is waited for as we leave. The next process takes up what is held, and asks etcd as well.
_ENDS_S: Final = 30.0

# Pauses between tries of a store that fails, spread so that brokers do not come all at once.
_RETRY_STEPS_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
_RETRY_JITTER: Final = 0.2
# Fragments that a try begins with, unless so many of former tries hang still.
_PROBES_MAX: Final = 2

# Bytes that are compressed in memory when the disk of spools is full: a fragment of the usual size.
_MEMORY_BYTES_MAX: Final = 512 << 20
_SEGMENT_BYTES_MAX: Final = 255


class _StoreFailed(StoreError):
    """A store that is tried again soon; the cause is its error."""

    def __init__(self, url: str, error: StoreError) -> None:
        super().__init__(str(error))
        self.url = url


@final
class Persister:
    """Persists the completed spools of all journals of a broker."""

    def __init__(
        self,
        *,
        registry: StoreRegistry,
        lister: FragmentLister,
        spec_of: Callable[[str, int], JournalSpec | None],
        on_persisted: Callable[[Fragment], None],
        clock: Clock,
        tasks: TaskGroup,
        faults: Faults,
        executor: Executor,
        directory: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
        is_member: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start with nothing to do.

        Args:
            registry: opens stores by their URLs.
            lister: lists what stores hold of a journal.
            spec_of: the current spec of the journal with this name and revision of creation; None:
                it is deleted, even if another journal has its name by now.
            on_persisted: called with each fragment that is in a store now, with `backing_store`,
                `mod_time` and `path_postfix` set.
            clock: gives the time of storing.
            tasks: owns the work in the background.
            faults: counts unforeseen errors; each concerns one fragment only.
            executor: threads for compression.
            directory: that of spools, for compressed files. These need not survive the process.
            sleep: waits a number of seconds.
            rng: spreads the tries of many brokers.
            is_member: whether this broker speaks for its journals. Else others may have gone on without what replicas
                have, and nothing becomes due.
        """
        self._registry = registry
        self._lister = lister
        self._spec_of = spec_of
        self._on_persisted = on_persisted
        self._clock = clock
        self._tasks = tasks
        self._faults = faults
        self._executor = executor
        self._directory = directory
        self._sleep = sleep
        self._is_member = is_member
        self._rng = rng or random.Random()  # noqa: S311  not for secrets
        # Each store has its own: one that hangs must not keep fragments from the others.
        # Bounded: thousands of journals may close a fragment in the same moment.
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_CONCURRENT_MAX)
        )
        # Each store has its own, held while a fragment for it is in memory: there is one at a time.
        self._in_memory: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_exiting = False
        # Waiting spools by the ticks that they still wait: queues[0] is due at the next one.
        self._queues: list[list[CompletedSpool]] = [[], [], []]
        self._in_work: set[CompletedSpool] = set()
        self._changed = asyncio.Event()
        # Of a primary, and failed by their store, which is tried again by a task. They wait in a queue, too.
        self._failed: dict[CompletedSpool, str] = {}
        # Stores that are tried again, and whether they took something since the last try.
        self._retried: dict[str, bool] = {}
        self._valid_to: dict[str, int] = {}  # by tenure: where others have gone on without it
        # By tenure: says where it ends. Nothing is stored before; or nothing is tried again before.
        self._held: dict[str, Callable[[], Awaitable[None]]] = {}
        self._asked: dict[str, Callable[[], Awaitable[None]]] = {}
        self._asking: dict[str, asyncio.Task[GazetteError | None]] = {}
        self._refused: set[str] = (
            set()
        )  # of those that are held: etcd answered, and will not change its mind
        self._rounds = 0  # of the drain

    def __len__(self) -> int:
        """The number of fragments that are not persisted yet."""
        return len(self._in_work) + sum(map(len, self._queues))

    @property
    def unpersisted_bytes(self) -> int:
        """Their content."""
        return sum(spool.fragment.content_length for spool in self._waiting())

    @property
    def journals(self) -> set[str]:
        """The journals with fragments that are not persisted yet."""
        return {spool.fragment.journal for spool in self._waiting()}

    def add(self, spool: CompletedSpool, index: Index | None = None) -> None:
        """Take over a completed spool. It is closed once it is persisted, or no longer wanted.

        Args:
            index: that of its journal; None: there is none that listings are taken into.
        """
        if index is not None:
            spool.is_stored = index.is_stored
        if spool.fragment.content_length == 0:
            spool.close()
        # A replica that leaves stores at once as well: no broker may be left to do it.
        elif spool.is_primary or self._is_exiting:
            self._start(spool)
        else:
            self._queues[-1].append(spool)

    def supersede(self, tenure: str, valid_to: int) -> None:
        """Leave fragments of a tenure to the next process that end after `valid_to`, where others have gone on."""
        self._valid_to[tenure] = valid_to

    def hold(self, tenure: str, say_end: Callable[[], Awaitable[None]]) -> None:
        """Store nothing of a tenure before `say_end`, which is tried again, has said where it ends."""
        self._held[tenure] = say_end
        self._refused.discard(tenure)

    def ask_again(self, tenure: str, say_end: Callable[[], Awaitable[None]]) -> None:
        """Call `say_end` whenever what a tenure has could not be stored: an operator may have given it up meanwhile."""
        self._asked[tenure] = say_end

    def trust(self, tenure: str) -> None:
        """Store all that a tenure has: etcd names it as a holder of its journal, beside others that have the same."""
        for said in (self._held, self._asked, self._valid_to):
            said.pop(tenure, None)

    async def run(self) -> None:
        """Start what is due each minute, until cancelled. The owner runs this as a task.

        Cancellation: safe; the queues keep what they have.
        """
        while True:
            await self._sleep(_TICK_S)
            if self._is_member():
                self.tick()

    def tick(self) -> None:
        """Start all of the queue that is due, and move the others up.

        What replicas wait to look for, and a listing has meanwhile, is done.
        """
        for queue in self._queues:
            # Listings are made anyway. What one of them shows needs no request of its own.
            for spool in [each for each in queue if not each.is_primary and each.is_listed]:
                queue.remove(spool)
                spool.close()
                self._changed.set()
        due = self._queues.pop(0)
        self._queues.append([])
        for spool in due:
            self._start(spool)

    async def drain(self, *, timeout_s: float, ends_s: float | None = None) -> list[Fragment]:
        """Persist everything now. What fails is tried again, in the next store if one refuses us.

        What is added later is persisted at once, too.

        Args:
            timeout_s: seconds after which this gives up.
            ends_s: seconds after which it gives up what `hold` was called for, if that is less than half a minute.

        Returns: the fragments that are not persisted; no store has their content.
        Cancellation: safe; the work goes on in the background.
        """
        self._is_exiting = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._drain(_ENDS_S if ends_s is None else min(ends_s, _ENDS_S))
        except TimeoutError:
            _log.warning("fragments are still not persisted after %g s", timeout_s)
        lost = [spool.fragment for spool in self._waiting()]
        for fragment in lost:
            _log.error("fragment %s was not persisted", fragment.content_path)
        return lost

    async def _drain(self, ends_s: float) -> None:
        self._rounds, over_at = 0, self._clock.monotonic() + ends_s
        while tenures := {spool.tenure for spool in self._waiting()}:
            is_over = self._clock.monotonic() >= over_at or tenures <= self._refused
            if is_over and tenures <= self._held.keys():
                return
            for _ in range(len(self._queues)):
                self.tick()
            await self._settle()
            if len(self):
                await self._sleep(backoff_s(self._rounds))
            self._rounds += 1

    async def listed(self, journal: str, create_revision: int) -> CoverSet[Fragment]:
        """List what the stores of a journal hold. Raises: GazetteError. Cancellation: safe."""
        spec = self._spec_of(journal, create_revision)
        return await self._lister.list(spec) if spec is not None else CoverSet()

    async def flush(self, journal: str) -> None:
        """Persist now all that one journal has waiting, and try again what fails, until it is done.

        This does not wait for what is added meanwhile: a busy journal always has more.

        Cancellation: safe; the work goes on in the background.
        """
        attempt = 0
        left = {spool for spool in self._waiting() if spool.fragment.journal == journal}
        while left:
            for queue in self._queues:
                due = [spool for spool in queue if spool in left]
                for spool in due:
                    queue.remove(spool)
                    self._start(spool)
            while left & self._in_work:
                self._changed.clear()
                await self._changed.wait()
            left.intersection_update(self._waiting())
            if left:
                await self._sleep(backoff_s(attempt))
            attempt += 1

    async def settle(self, *, timeout_s: float) -> bool:
        """Wait until no attempt is under way. What failed waits in a queue.

        Returns: False if attempts are still under way after `timeout_s` seconds.
        Cancellation: safe.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._settle()
        except TimeoutError:
            return False
        return True

    async def _settle(self) -> None:
        while self._in_work:
            self._changed.clear()
            await self._changed.wait()

    def _waiting(self) -> list[CompletedSpool]:
        return [*self._in_work, *(spool for queue in self._queues for spool in queue)]

    def _start(self, spool: CompletedSpool) -> None:
        self._in_work.add(spool)
        name = f"persist {spool.fragment.content_path}"
        self._tasks.spawn(self._attempt(spool), name=name)

    async def _retry(self, url: str) -> None:
        """Try a store again that failed, until it has what waits for it."""
        tries = 0
        try:
            while url in self._failed.values() and not self._is_exiting:
                pause_s = backoff_s(tries, _RETRY_STEPS_S)
                await self._sleep(pause_s * self._rng.uniform(1 - _RETRY_JITTER, 1 + _RETRY_JITTER))
                # One or two: a store that is away is not asked for each of the thousands that may
                # wait.
                tries += 1
                waiting = self._failed_by(url)
                under_way = list(self._failed.values()).count(url) - len(waiting)
                # Tries that hang still count, or each pause would add two more of them.
                probes = waiting[: max(0, _PROBES_MAX - under_way)]
                self._start_queued(probes)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_STEPS_S[-1]):
                        while self._in_work.intersection(probes) and not self._retried[url]:
                            self._changed.clear()
                            await self._changed.wait()
                if self._retried[url]:
                    self._retried[url] = False
                    self._start_queued(self._failed_by(url))
        finally:
            del self._retried[url]

    def _failed_by(self, url: str) -> list[CompletedSpool]:
        """What waits in queues since a store failed, that of the longest wait first."""
        return [
            spool for queue in self._queues for spool in queue if self._failed.get(spool) == url
        ]

    def _start_queued(self, spools: Collection[CompletedSpool]) -> None:
        chosen = set(spools)
        for number, queue in enumerate(self._queues):
            self._queues[number] = [spool for spool in queue if spool not in chosen]
        for spool in spools:
            self._start(spool)

    async def _attempt(self, spool: CompletedSpool) -> None:
        is_done, failed_by = False, ""
        try:
            await self._persist(spool)
            is_done = True
        except (GazetteError, OSError) as err:
            failed_by = err.url if isinstance(err, _StoreFailed) else ""
            _log.error(
                "persisting fragment %s failed, trying again later: %s",
                spool.fragment.content_path,
                err,
            )
        except Exception as err:  # noqa: BLE001  reported
            path = spool.fragment.content_path
            self._faults.report("fragment", f"persisting {path}, trying again later", err)
        finally:
            # The spool of a cancelled attempt goes back, too: the process may still drain.
            self._in_work.discard(spool)
            # `_retry` takes what is in here and in no queue for under way; this attempt is over.
            self._failed.pop(spool, None)
            if is_done:
                spool.close()
            else:
                self._queues[-1].append(spool)
            # Replicas are slow on purpose: they would store what the primary is about to store again.
            if failed_by and spool.is_primary:
                self._failed[spool] = failed_by
                self._retry_soon(failed_by)
            self._changed.set()

    def _retry_soon(self, url: str) -> None:
        if not (url in self._retried or self._is_exiting or self._tasks.is_closed):
            self._retried[url] = False
            self._tasks.spawn(self._retry(url), name=f"retry {url}")

    async def _persist(self, spool: CompletedSpool) -> None:
        if (say_end := self._held.get(spool.tenure)) is not None:
            await self._ask(spool.tenure, say_end)
            self._held.pop(spool.tenure, None)
        elif self._rounds and (say_end := self._asked.get(spool.tenure)) is not None:
            with contextlib.suppress(GazetteError):  # then no operator has given anything up
                await self._ask(spool.tenure, say_end)
        if spool.fragment.end > self._valid_to.get(spool.tenure, spool.fragment.end):
            spool.content.keep_names()
            return
        spec = self._spec_for(spool)
        if spec is None:
            return
        # By the first store, since the others are tried only on the way out.
        async with self._slots[spec.fragment.stores[0]]:
            spec = self._spec_for(spool)  # the spec may have changed in a long wait
            if spec is not None:
                fragment = spool.fragment
                with tracing.span(
                    "gazette persist",
                    journal=fragment.journal,
                    begin=fragment.begin,
                    end=fragment.end,
                ):
                    await self._persist_by(spec, spool)

    async def _ask(self, tenure: str, say_end: Callable[[], Awaitable[None]]) -> None:
        """Have `say_end` called once for all fragments of a tenure that wait for it now. Raises: GazetteError."""
        asking = self._asking.get(tenure)
        if asking is None:
            asking = self._tasks.spawn(_error_of(say_end), name=f"say end of {tenure}")
            self._asking[tenure] = asking
            asking.add_done_callback(lambda _: self._asking.pop(tenure))
        error = await asyncio.shield(asking)
        if error is None:
            return
        if not error.retriable:
            self._refused.add(tenure)
        raise error

    def _spec_for(self, spool: CompletedSpool) -> JournalSpec | None:
        """The spec to persist by; None: the fragment is not wanted."""
        spec = self._spec_of(spool.fragment.journal, spool.create_revision)
        if spec is None:
            _log.info("fragment %s dropped: no such journal", spool.fragment.content_path)
        elif not spec.fragment.stores:
            return None  # the journal is kept in brokers only
        return spec

    async def _persist_by(self, spec: JournalSpec, spool: CompletedSpool) -> None:
        # Specs also get into etcd without Apply, which refuses a store that is the folder of
        # another journal.
        self._lister.check(spec)
        fragment = replace(spool.fragment, path_postfix=self._postfix(spool, spec))
        # A replica lists first: the primary, by its own clock, may have stored the same bytes under another postfix.
        if not spool.is_primary and await self._is_covered(spec, fragment):
            return
        for url in spec.fragment.stores:
            store: ActiveStore | None = None
            try:
                store = self._registry.get(url)
                await self._put(store, spool, fragment)
            except StoreError as err:
                is_last = url == spec.fragment.stores[-1]
                # While the broker serves, another store would only hide the wrong rights: they can
                # be mended, and nothing is lost meanwhile. On the way out it is the last chance.
                is_refused = store is not None and isinstance(err, AccessDenied)
                if is_last or not (self._is_exiting and is_refused):
                    raise _StoreFailed(url, err) from err
                _log.warning("store %s refuses %s: %s", url, fragment.content_path, err)
                continue
            if url in self._retried:
                self._retried[url] = True
            stored_at = int(self._clock.now().timestamp())
            self._on_persisted(replace(fragment, backing_store=url, mod_time=stored_at))
            return

    def _postfix(self, spool: CompletedSpool, spec: JournalSpec) -> str:
        """The postfix that the current spec gives. Raises: ValidationError: it is not a valid path."""
        try:
            postfix = _template(spec.fragment.path_postfix_template).evaluate(
                spool.fragment, spool.first_append_time, spool.registers, spec
            )
            replace(spool.fragment, path_postfix=postfix).validate()
            _check_segments(postfix)
        except ValidationError as err:
            if not self._is_exiting:
                raise
            # Better in the wrong directory than lost. The name still says what it holds.
            _log.warning("%s persists without postfix: %s", spool.fragment.content_path, err)
            return ""
        return postfix

    async def _is_covered(self, spec: JournalSpec, fragment: Fragment) -> bool:
        """Whether stores hold these bytes, maybe under another postfix, or divided in other fragments."""
        try:
            remote = await self._lister.list(spec)
        except StoreError:
            if not self._is_exiting:
                raise
            return False  # this may be the last copy: better stored twice than never
        return remote.covers(fragment.begin, fragment.end)

    async def _put(self, store: ActiveStore, spool: CompletedSpool, fragment: Fragment) -> None:
        path = fragment.content_path
        # The name has the SHA-1 of the content, so an object of this name is this content: nothing is to be compared,
        # and several brokers may store one fragment at once.
        async with _deadline(store, "HEAD"):
            if await store.exists(path):
                return
        is_offload = fragment.codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
        encoding = "gzip" if is_offload else ""
        async with (
            self._stored_form(store, spool, path) as (fd, length),
            _deadline(store, "PUT"),
        ):
            await store.put(path, fd, length, content_encoding=encoding)
        file = store.local_path(path)
        if file is not None and fragment.codec is CompressionCodec.NONE:
            # It is the spool, or a copy of it: reads need not hash again what was served before.
            with contextlib.suppress(OSError):
                store.prove(path, await run_in(self._executor, version_of, file))

    @contextlib.asynccontextmanager
    async def _stored_form(
        self, store: ActiveStore, spool: CompletedSpool, path: str
    ) -> AsyncGenerator[tuple[int, int]]:
        """Gives: descriptor and length of the bytes to store. They are compressed once, and kept.

        The compressed form lies beside the spools. If their disk has no room, it lies beside the
        store's objects, if these are files, or else in memory, where it is not kept. Storing must work
        even then: nothing else makes room on a disk full of spools.
        """
        if spool.fragment.codec is CompressionCodec.NONE:
            yield spool.content.fd, spool.fragment.content_length
            return
        form = spool.compressed
        if form is None or not form.is_whole:
            try:
                form = await self._compressed(spool, self._directory, needs_room=True)
            except OSError as err:
                form, target = None, store.local_path(path)
                where = "in memory" if target is None else "beside its place in the store"
                _log.info("%s is compressed %s, since: %s", path, where, err)
                if target is not None:
                    form = await self._compressed(spool, target, needs_room=False)
        if form is not None:
            yield form.file.fd, form.length
            return
        # One at a time for each store: a full disk must not be paid for with all memory.
        async with self._in_memory[store.url]:
            try:
                form = await self._compressed(spool, None, needs_room=False)
                yield form.file.fd, form.length
            finally:
                spool.drop_compressed()

    async def _compressed(
        self, spool: CompletedSpool, directory: Path | None, *, needs_room: bool
    ) -> CompressedForm:
        """The whole compressed form, made a batch at a time, so that journals take turns.

        Args:
            directory: where to begin a form, or in the nearest folder above that exists; None: in
                memory.
            needs_room: whether the disk must have room for all that is still to be compressed.

        Raises: OSError: there is no room; what was made is dropped.
        Cancellation: what was made is kept.
        """
        content, length = spool.content, spool.fragment.content_length
        try:
            # Checked first, and not met on the way: appends need the same disk, and would fail by
            # our half-made file.
            if needs_room and directory is not None:
                done = spool.compressed.content_length if spool.compressed is not None else 0
                _check_room(directory, length - done)
            form = spool.compressed
            if form is None:
                form = await run_in(self._executor, _begin, spool.fragment.codec, directory)
                spool.compressed = form
            while not form.is_whole:
                await run_in(self._executor, form.step, content.fd, length, is_last=True)
                if directory is None:
                    _check_memory(form.length)
        except OSError:
            spool.drop_compressed()
            raise
        return form


async def _error_of(say_end: Callable[[], Awaitable[None]]) -> GazetteError | None:
    try:
        await say_end()
    except GazetteError as err:
        return err
    return None


def _check_segments(postfix: str) -> None:
    """Refuse a postfix under which stores would not take the fragment, or listings not find it."""
    for segment in postfix.split("/"):
        if segment.startswith("."):
            raise ValidationError(f"PathPostfix: listings hide names with a dot ({segment})")
        if len(segment.encode()) > _SEGMENT_BYTES_MAX:
            raise ValidationError(f"PathPostfix: {segment[:20]}... is too long for a file system")


@functools.lru_cache(256)
def _template(text: str) -> PathPostfixTemplate:
    return PathPostfixTemplate(text)


@contextlib.asynccontextmanager
async def _deadline(store: ActiveStore, operation: str) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_STORE_TIMEOUT_S):
            yield
    except TimeoutError as err:
        raise StoreUnavailable(
            f"{store.url}: {operation} took over {_STORE_TIMEOUT_S:g} s"
        ) from err


def _check_room(directory: Path, length: int) -> None:
    """Refuse to fill a disk that appends need. Raises: OSError."""
    found = os.statvfs(directory)
    if found.f_bavail * found.f_frsize < length:
        raise OSError(errno.ENOSPC, f"less than {length} bytes are free", str(directory))


def _check_memory(length: int) -> None:
    """Refuse to hold much in memory. Raises: OSError."""
    if length > _MEMORY_BYTES_MAX:
        raise OSError(
            errno.ENOSPC, f"it is more than {_MEMORY_BYTES_MAX} bytes, and the disk is full"
        )


def _begin(codec: CompressionCodec, directory: Path | None) -> CompressedForm:
    """Begin a form in a directory, or in the nearest one above it that exists; None: in memory.

    Raises: OSError.
    """
    while directory is not None and not directory.is_dir():
        directory = directory.parent
    return CompressedForm(codec, directory)
