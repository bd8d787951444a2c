"""Drives a spool's digest and compression in worker threads, after its commits.

Both work in slices of a few milliseconds, and each has a pool of threads of its own: proposals and
readers wait for a digest, and none for compression. So a slice of a digest never queues
behind compression, journals take turns, and no lock is held for longer than a slice takes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, final

from gazette_platform.broker.spool.disk import COMPRESS_BATCH_BYTES
from gazette_platform.broker.spool.spool import LAG_BYTES_MAX
from gazette_platform.ops.tasks import run_in
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from concurrent.futures import Executor

    from gazette_platform.broker.spool.disk import CompletedSpool
    from gazette_platform.broker.spool.port import JournalPort
    from gazette_platform.broker.spool.recovery import RecoveredFragment
    from gazette_platform.broker.spool.spool import Spool
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Fragment

_log = logging.getLogger(__name__)

# Less than this is hashed on the event loop, because a hop to a thread would cost more.
_INLINE_BYTES_MAX = 64 << 10

# Bytes that are hashed in one go, in about 2 ms.
_SLICE_BYTES = 4 << 20

# Seconds between attempts at a full or broken disk. They go on for ever: the content is acknowledged
# and must not be dropped.
DISK_RETRY_S = 5.0


@final
class Digester:
    """Keeps one spool's digest and compressed form near its end.

    Call `kick` after each commit, and `below` to hold back appends while the digest cannot keep up.
    """

    __slots__ = (
        "_compressing",
        "_compressors",
        "_executor",
        "_is_closing",
        "_is_digesting",
        "_is_failing",
        "_is_short_of_disk",
        "_lock",
        "_moved",
        "_tasks",
        "spool",
    )

    def __init__(
        self, spool: Spool, tasks: TaskGroup, *, executor: Executor, compressors: Executor
    ) -> None:
        """Start with nothing to do.

        Args:
            spool: whose digest and compressed form are made.
            tasks: group of the background rounds.
            executor: threads for the digest.
            compressors: threads for compression.
        """
        self.spool = spool
        self._tasks = tasks
        self._executor = executor
        self._compressors = compressors
        self._is_digesting = False
        self._is_failing = False  # whether the latest slice of the digest failed
        self._compressing: asyncio.Task[None] | None = None
        self._is_short_of_disk = False
        self._is_closing = False
        self._lock = asyncio.Lock()  # held while a slice of the digest is made
        self._moved = asyncio.Event()

    def take(self, chunks: Sequence[bytes | memoryview], length: int) -> None:
        """Hash what was committed last, unless the digest trails already."""
        spool = self.spool
        # If a slice is under way, or the digest trails, content would be hashed out of order.
        if spool.digest_lag == length and not self._lock.locked():
            spool.digest_last(chunks)

    def kick(self) -> None:
        """Start background rounds for slices that are full and not being worked on."""
        spool = self.spool
        if not self._is_digesting and spool.digest_lag >= COMPRESS_BATCH_BYTES:
            self._is_digesting = True
            self._tasks.spawn(self._digest(), name=f"digest {spool.journal}")
        if self._compressing is None and not self._is_closing and spool.compress_lag:
            name = f"compress {spool.journal}"
            self._compressing = self._tasks.spawn(self._compress(), name=name)

    # -------------------------------------------------------------------------------- digest
    async def _digest(self) -> None:
        try:
            while self.spool.digest_lag >= COMPRESS_BATCH_BYTES:
                try:
                    await self._digest_slice(self.spool.end)
                except OSError as err:
                    _log.error("%s; retrying in %s s", self._says(err), DISK_RETRY_S)
                    self._is_failing = True
                    self._wake()
                    await asyncio.sleep(DISK_RETRY_S)
                else:
                    self._is_failing = False
                    self._wake()
        finally:
            self._is_digesting = False
            self._wake()

    async def _digest_slice(self, to: int) -> None:
        async with self._lock:
            spool = self.spool
            begin = spool.end - spool.digest_lag
            to = min(to, begin + _SLICE_BYTES)
            if to - begin <= _INLINE_BYTES_MAX:
                spool.digest_step(to)
            else:
                await run_in(self._executor, spool.digest_step, to)

    def _wake(self) -> None:
        # All that wait now, and none that wait later: they look at the digest first.
        self._moved.set()
        self._moved.clear()

    def _says(self, err: OSError) -> str:
        return f"{self.spool.journal}: spool: {err} (check the disk of --broker.spool-dir)"

    async def below(self, lag_bytes: int = LAG_BYTES_MAX) -> None:
        """Wait until the digest trails by less than `lag_bytes`. Cancellation: safe.

        While the disk cannot be read no append is held back, since waiting would not help.
        """
        while self.spool.digest_lag >= lag_bytes and not self._is_failing:
            self.kick()
            await self._moved.wait()

    async def digested(self) -> Fragment:
        """The spool's content with its sum, as of this call or a little later.

        Raises: RpcFailed: the content cannot be read back; ask again.
        Cancellation: safe.
        """
        spool = self.spool
        to = spool.end
        try:
            while spool.end - spool.digest_lag < to:
                await self._digest_slice(to)
        except OSError as err:
            raise RpcFailed(Code.UNAVAILABLE, self._says(err)) from err
        return spool.digested_fragment()

    # --------------------------------------------------------------------------- compression
    async def _compress(self) -> None:
        spool = self.spool
        try:
            while spool.compress_lag and not (self._is_closing or self._is_short_of_disk):
                await run_in(self._compressors, spool.compress_step, spool.end)
        except OSError as err:
            _log.warning("%s; the fragment is compressed once it is closed", self._says(err))
            self._is_short_of_disk = True
        finally:
            self._compressing = None
            # Here, and not where the disk is found full: a slice may still write to that form in
            # its thread.
            if self._is_short_of_disk:
                spool.stop_compressing()

    async def spare_disk(self) -> bool:
        """Give up the compressed form to make room for content; it can be made again.

        Returns: whether there was one.
        Cancellation: safe; the form is given up.
        """
        had_one = self.spool.is_compressing
        self._is_short_of_disk = True
        if self._compressing is not None:
            await asyncio.wait([self._compressing])
        self.spool.stop_compressing()
        return had_one

    # ------------------------------------------------------------------------------- the end
    async def complete(self) -> CompletedSpool | None:
        """Close the fragment once slices under way are done. The spool is not used afterwards.

        Returns: None if it is empty.
        Raises: OSError: its content cannot be read back; call again.
        Cancellation: safe; call again.
        """
        # A slice that is under way ends first. Two threads would write to one form, or to a file
        # that is gone.
        self._is_closing = True
        if self._compressing is not None:
            await asyncio.wait([self._compressing])
        spool = self.spool
        while spool.digest_lag > _INLINE_BYTES_MAX:
            await self._digest_slice(spool.end)
        async with self._lock:
            return await run_in(self._executor, spool.complete)


# How often a closed fragment that cannot be read back is tried, once the journal leaves this broker.
_LEAVING_ATTEMPTS = 3


@final
class Closing:
    """The closed fragments of one journal, until each is complete.

    Attributes:
        adopted: fragments of a former process that are not known to be the journal's yet.
        held: fragments that wait until all that etcd names as holders have what is in them.
        is_leaving: whether the journal leaves this broker; fragments that fail are given up then.
    """

    def __init__(self, journal: JournalPort, tasks: TaskGroup, faults: Faults) -> None:
        self.adopted: dict[Digester, RecoveredFragment] = {}
        self.held: set[Digester] = set()
        self.is_leaving = False
        self._journal = journal
        self._tasks = tasks
        self._faults = faults
        # Whether to persist a fragment at once, by its digester.
        self._urgent: dict[Digester, bool] = {}
        self._completing: set[asyncio.Task[None]] = set()

    @property
    def digesters(self) -> tuple[Digester, ...]:
        """The digesters of the fragments, oldest first."""
        return tuple(self._urgent)

    def add(self, old: Digester, *, is_urgent: bool) -> None:
        """A fragment has closed.

        Args:
            old: its digester.
            is_urgent: whether to persist it at once, even if we are not the primary.
        """
        self._urgent[old] = is_urgent

    def finish(self, *, but: Collection[Digester]) -> None:
        """Complete the fragments whose content is all settled, and drop those that are empty.

        Args:
            but: fragments with content that is not settled yet.
        """
        waiting = {*but, *self.adopted, *self.held}
        for old in [one for one in self._urgent if one not in waiting]:
            # In a task of its own: to read the content back may take a broken disk minutes, and
            # appends go on in the next fragment.
            if old.spool.content_length:
                task = self._tasks.spawn(self._complete(old), name=f"roll {self._journal.name}")
                self._completing.add(task)
                task.add_done_callback(self._completing.discard)
            else:
                old.spool.discard()
                del self._urgent[old]

    def adopt(self, old: Digester, fragment: RecoveredFragment) -> None:
        """Take over a fragment that a former process left, which `finish` leaves alone while `adopted`.

        Args:
            old: its digester.
            fragment: as it was found.
        """
        self._urgent[old] = True
        self.adopted[old] = fragment

    def give_back(self) -> list[RecoveredFragment]:
        """Let go of fragments that are `adopted` still. Returns: these, as they were found."""
        fragments = list(self.adopted.values())
        for old in self.adopted:
            del self._urgent[old]
        self.adopted.clear()
        return fragments

    async def completed(self) -> None:
        """Wait until the fragments being completed are handed over. Cancellation: safe."""
        while self._completing:
            await asyncio.wait(set(self._completing))

    async def _complete(self, old: Digester) -> None:
        try:
            completed = await self._read_back(old)
        finally:
            is_urgent = self._urgent.pop(old, False)
        if completed is not None:
            # Content that the primary lacks: replicas wait for minutes before they look, and
            # readers elsewhere would meet a gap until then.
            completed.is_primary = completed.is_primary or is_urgent
            self._journal.on_complete(completed)

    async def _read_back(self, old: Digester) -> CompletedSpool | None:
        """Complete a closed fragment, however long its disk needs.

        When the journal leaves this broker the fragment is given up after some attempts, because a
        disk that cannot be read must not keep the process from ending. Its file stays, and another
        broker may have the content.
        """
        attempts_left = _LEAVING_ATTEMPTS
        while True:
            try:
                return await old.complete()
            except Exception as err:  # noqa: BLE001  reported; acknowledged content is not let go
                attempts_left -= self.is_leaving
                name = old.spool.fragment().content_path
                if not isinstance(err, OSError):
                    self._faults.report("journal", f"closing fragment {name}", err)
                if attempts_left == 0:
                    _log.error("fragment %s is not persisted by this process: %s", name, err)
                    old.spool.leave_behind()
                    return None
                _log.error(
                    "fragment %s: %s; retrying in %s s (check the disk of --broker.spool-dir)",
                    name,
                    err,
                    DISK_RETRY_S,
                )
                await asyncio.sleep(DISK_RETRY_S)
