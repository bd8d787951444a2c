"""Brings closed fragments into their stores.

The primary persists at once. Replicas hold on to their copies for two to three minutes; by then the
object is usually there, and they only look. Whoever fails tries again, for ever: the content is
acknowledged, and lives nowhere else.

Source: Gazette broker/fragment/persister.go. Departs: an invalid path postfix is a failure (it is
tried again once the spec is mended) instead of an object that no listing would take; replicas list
the store before they write, so that the same bytes do not land in two partitions.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from gazette_platform.codecs import compressor
from gazette_platform.errors import GazetteError, StoreError, StoreUnavailable, ValidationError
from gazette_platform.fragment.spool import COMPRESS_BATCH_BYTES, SpoolFile
from gazette_platform.ops.retry import backoff_s
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.path_postfix import PathPostfixTemplate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.fragment.completed import CompletedSpool
    from gazette_platform.fragment.refresh import FragmentLister
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Fragment, JournalSpec
    from gazette_platform.stores import ActiveStore, StoreRegistry

__all__ = ["Persister"]

_log = logging.getLogger(__name__)

_CONCURRENT_MAX: Final = 32
_TICK_S: Final = 60.0
_PUT_TIMEOUT_S: Final = 300.0


@final
class Persister:
    """Persists the completed spools of all journals of a broker."""

    def __init__(
        self,
        *,
        registry: StoreRegistry,
        lister: FragmentLister,
        spec_of: Callable[[str], JournalSpec | None],
        on_persisted: Callable[[Fragment], None],
        clock: Clock,
        tasks: TaskGroup,
        executor: Executor,
        directory: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with nothing to do.

        Args: spec_of: the current spec of a journal; None if it is deleted.
              on_persisted: told of each fragment that is in a store now, with `backing_store`,
                  `mod_time` and `path_postfix` set.
              tasks: owns the work in the background.
              executor: threads for compression.
              directory: for compressed files; need not survive the process.
              sleep: waits a number of seconds.
        """
        self._registry = registry
        self._lister = lister
        self._spec_of = spec_of
        self._on_persisted = on_persisted
        self._clock = clock
        self._tasks = tasks
        self._executor = executor
        self._directory = directory
        self._sleep = sleep
        self._slots = asyncio.Semaphore(_CONCURRENT_MAX)
        self._is_exiting = False
        # What waits, by ticks to go: queues[0] is due at the next one.
        self._queues: list[list[CompletedSpool]] = [[], [], []]
        self._in_work: set[CompletedSpool] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Fragments that are not persisted yet."""
        return len(self._in_work) + sum(map(len, self._queues))

    def add(self, spool: CompletedSpool) -> None:
        """Take over a completed spool; it is closed when persisted, or when nobody wants it."""
        if spool.fragment.content_length == 0:
            spool.close()
        elif spool.is_primary or self._is_exiting:
            self._start(spool)
        else:
            self._queues[-1].append(spool)

    async def run(self) -> None:
        """Persist what is due, each minute; to be run as a task of the owner.

        Cancellation: safe; nothing is lost from the queues.
        """
        while True:
            await self._sleep(_TICK_S)
            self.tick()

    def tick(self) -> None:
        """Start on the queue that is due, and move the others up."""
        due = self._queues.pop(0)
        self._queues.append([])
        for spool in due:
            self._start(spool)

    async def drain(self, *, timeout_s: float) -> list[Fragment]:
        """Persist everything now, trying again what fails, and any store if one refuses us.

        Later `add`s are persisted at once, too.

        Args: timeout_s: seconds after which it gives up.
        Returns: the fragments that are not persisted; their content is lost with the process.
        Cancellation: safe; the work goes on in the background.
        """
        self._is_exiting = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._drain()
        except TimeoutError:
            _log.warning("fragments are still not persisted after %g s", timeout_s)
        lost = [spool.fragment for spool in self._waiting()]
        for fragment in lost:
            _log.error("fragment %s was not persisted", fragment.content_path)
        return lost

    async def _drain(self) -> None:
        attempt = 0
        while len(self):
            for _ in range(len(self._queues)):
                self.tick()
            await self._settle()
            if len(self):
                await self._sleep(backoff_s(attempt))
            attempt += 1

    async def flush(self, journal: str) -> None:
        """Persist what waits of one journal now, trying again what fails, until none is left.

        Cancellation: safe; the work goes on in the background.
        """
        attempt = 0
        while any(spool.fragment.journal == journal for spool in self._waiting()):
            for queue in self._queues:
                due = [spool for spool in queue if spool.fragment.journal == journal]
                for spool in due:
                    queue.remove(spool)
                    self._start(spool)
            while any(spool.fragment.journal == journal for spool in self._in_work):
                self._changed.clear()
                await self._changed.wait()
            if any(spool.fragment.journal == journal for spool in self._waiting()):
                await self._sleep(backoff_s(attempt))
            attempt += 1

    async def settle(self, *, timeout_s: float) -> bool:
        """Wait until no attempt is under way; what failed waits in a queue.

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

    async def _attempt(self, spool: CompletedSpool) -> None:
        is_done = False
        try:
            async with self._slots:
                await self._persist(spool)
            is_done = True
        except (GazetteError, OSError) as err:
            _log.error(
                "persisting fragment %s failed, trying again later: %s",
                spool.fragment.content_path,
                err,
            )
        finally:
            # A cancelled attempt stays in the queue, too: the process may still drain.
            self._in_work.discard(spool)
            if is_done:
                spool.close()
            else:
                self._queues[-1].append(spool)
            self._changed.set()

    async def _persist(self, spool: CompletedSpool) -> None:
        journal = spool.fragment.journal
        spec = self._spec_of(journal)
        if spec is None:
            _log.info("fragment %s dropped: no such journal", spool.fragment.content_path)
            return
        if not spec.fragment.stores:
            return  # the journal keeps content in brokers only
        self._lister.check(spec)
        fragment = replace(spool.fragment, path_postfix=self._postfix(spool, spec))
        if not spool.is_primary and await self._is_covered(spec, fragment):
            return
        for url in spec.fragment.stores:
            store: ActiveStore | None = None
            try:
                store = self._registry.get(url)
                await self._put(store, spool, fragment)
            except StoreError as err:
                is_last = url == spec.fragment.stores[-1]
                may_move_on = self._is_exiting and store is not None and store.is_auth_error(err)
                if is_last or not may_move_on:
                    raise
                _log.warning("store %s refuses %s: %s", url, fragment.content_path, err)
                continue
            stored_at = int(self._clock.now().timestamp())
            self._on_persisted(replace(fragment, backing_store=url, mod_time=stored_at))
            return

    def _postfix(self, spool: CompletedSpool, spec: JournalSpec) -> str:
        """The postfix by the current spec. Raises: ValidationError: it is not a valid path."""
        try:
            postfix = _template(spec.fragment.path_postfix_template).evaluate(
                spool.fragment, spool.first_append_time, spool.registers, spec
            )
            replace(spool.fragment, path_postfix=postfix).validate()
        except ValidationError as err:
            if not self._is_exiting:
                raise
            # Better in the wrong directory than lost: its name still says what it holds.
            _log.warning("%s persists without postfix: %s", spool.fragment.content_path, err)
            return ""
        return postfix

    async def _is_covered(self, spec: JournalSpec, fragment: Fragment) -> bool:
        """Whether stores hold these bytes, maybe under another postfix or in other cuts."""
        try:
            remote = await self._lister.list(spec)
        except StoreError:
            if not self._is_exiting:
                raise
            return False  # this may be the last copy: rather twice than never
        return remote.covers(fragment.begin, fragment.end)

    async def _put(self, store: ActiveStore, spool: CompletedSpool, fragment: Fragment) -> None:
        path = fragment.content_path
        try:
            async with asyncio.timeout(_PUT_TIMEOUT_S):
                if await store.exists(path):
                    return
                fd, length = await self._stored_form(spool)
                is_offload = fragment.codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
                await store.put(path, fd, length, content_encoding="gzip" if is_offload else "")
        except TimeoutError as err:
            raise StoreUnavailable(f"{store.url}: PUT took over {_PUT_TIMEOUT_S:g} s") from err

    async def _stored_form(self, spool: CompletedSpool) -> tuple[int, int]:
        """Descriptor and length of the bytes to store; compresses once, and keeps the result."""
        if spool.fragment.codec is CompressionCodec.NONE:
            return spool.content.fd, spool.fragment.content_length
        if spool.compressed is None:
            file = SpoolFile(self._directory, spool.fragment.begin)
            loop = asyncio.get_running_loop()
            # Both files stay open while the thread works, even if the wait for it is cancelled.
            spool.content.hold()
            work = loop.run_in_executor(
                self._executor,
                _compress,
                spool.fragment.codec,
                spool.content.fd,
                spool.fragment.content_length,
                file.fd,
            )
            work.add_done_callback(lambda _: spool.content.release())
            try:
                spool.compressed_length = await asyncio.shield(work)
            except BaseException:
                work.add_done_callback(lambda _: file.release())
                raise
            spool.compressed = file
        return spool.compressed.fd, spool.compressed_length


@functools.lru_cache(256)
def _template(text: str) -> PathPostfixTemplate:
    return PathPostfixTemplate(text)


def _compress(codec: CompressionCodec, content_fd: int, length: int, stored_fd: int) -> int:
    """Compress a file into another. Returns: the bytes written. Raises: OSError."""
    writer = compressor(codec)
    buffer = memoryview(bytearray(COMPRESS_BATCH_BYTES))
    done = stored = 0
    while done < length:
        count = os.preadv(content_fd, [buffer[: min(length - done, len(buffer))]], done)
        if count == 0:
            raise OSError(f"spool file ends at byte {done}, before its {length} bytes of content")
        stored += _write(stored_fd, writer.compress(buffer[:count]), stored)
        done += count
    return stored + _write(stored_fd, writer.finish(), stored)


def _write(fd: int, data: bytes, at: int) -> int:
    view = memoryview(data)
    while view:  # the kernel may take less than asked, near a full disk
        written = os.pwrite(fd, view, at)
        at += written
        view = view[written:]
    return len(data)
