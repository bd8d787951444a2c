"""The spool of a journal at one broker: who writes to it, and what of it is settled.

A primary proposes content to its replicas before the content belongs to the journal. So a spool has
two ends. Up to the first, content is *settled*: every replica has it, readers see it, and stores may
have it. From there to the second it is *staged*: written here and proposed, but not yet acknowledged
by all. Staged content is settled in order. If replicas fail, it stays staged until they agree again,
because some of them may have shown it to their readers. If the journal leaves this broker before
that, it is dropped, because the next primary then knows which of it counts.

A fragment closes ("rolls") at the staged end, and is completed once all of it is settled.

What closes before etcd names us, and all that are in step with us, as the journal's holders is *held* until then:
a former holder that has less could else go on below what is stored.

With one replica nothing is ever staged, and each commit passes through here only once.

Before content is settled or proposed it is *kept*: a record beside the spool says that it counts, so
that it survives this process. Content that was kept, and then neither settled nor staged, is taken
back: the record is corrected.

Long because what is written, kept, staged and settled is one state: each step moves one of its ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.spool.digester import DISK_RETRY_S, Closing, Digester
from gazette_platform.broker.spool.disk import FULL, SLOW_S, DiskFull, DiskPace, not_kept
from gazette_platform.broker.spool.recovery import RecoveredTenure
from gazette_platform.broker.spool.spool import LAG_BYTES_MAX, Spool
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import run_in
from gazette_platform.protocol import ZERO_SUM, CompressionCodec, Fragment, LabelSet
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.broker.spool.port import JournalPort
    from gazette_platform.broker.spool.spool import Digest
    from gazette_platform.broker.spool.tenure import Tenure
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup


_log = logging.getLogger(__name__)

# Up to this size content is written and hashed on the event loop: a hop to a thread would cost more.
_INLINE_BYTES_MAX = 128 << 10

# The same of content that is only written, which takes a fifth of the time.
_INLINE_WRITE_BYTES_MAX = 256 << 10

# Up to this size content is hashed as it is committed, while it is at hand: readers, who are sent a sum with
# each piece, would otherwise read it back for that.
_HASHED_BYTES_MAX = 16 << 10

# Chunks of less than this, in the mean, are written together, up to so many bytes at a time. To copy them costs
# less than a call for each, in which the kernel allots less memory at a time: half of 12 us for 16 KiB.
_SMALL_CHUNK_BYTES = 64 << 10
_TOGETHER_BYTES_MAX = 256 << 10


@final
class Draft:
    """Content that is being written after a spool's staged end.

    It does not count until it is committed or staged. To roll it back is to drop the draft.
    """

    __slots__ = ("_digest", "_executor", "_owner", "_small", "at", "digester", "length")

    def __init__(
        self,
        owner: JournalSpool,
        digester: Digester,
        at: int,
        digest: Digest | None,
        executor: Executor,
    ) -> None:
        self._owner = owner
        self.digester = digester
        self.at = at
        self.length = 0
        self._digest = digest
        self._executor = executor
        # All of the content, if it is small and was written by one call.
        self._small: list[bytes | memoryview] | None = None

    @property
    def small(self) -> list[bytes | memoryview] | None:
        """All of the content, if there is so little of it that it is hashed when it is committed."""
        return self._small if self._digest is None else None

    @property
    def digest(self) -> Digest | None:
        """SHA-1 of the fragment with this content; None if it was not asked for."""
        return self._digest

    def fragment(self) -> Fragment:
        """The fragment with this content; its sum is zero if it was not asked for."""
        spool, digest = self.digester.spool, self._digest
        total = digest.digest() if digest is not None and self.at > spool.begin else ZERO_SUM
        return Fragment(spool.journal, spool.begin, self.at, total, spool.codec)

    async def write(self, chunks: list[bytes | memoryview], length: int) -> None:
        """Write chunks of `length` bytes together, however long the disk needs.

        Raises:
            DiskFull: what the open fragment holds should be persisted, to make room.
            RpcFailed: the disk is full or broken, and the journal leaves this broker. An append that
                waits for the disk must not hold up what was acknowledged. Or the folder of spools is gone.

        Cancellation: safe; when it returns, no thread writes any more.
        """
        while True:
            try:
                if self._is_small(length) and self._owner.is_quick:
                    self._write(chunks, length)
                else:
                    await run_in(self._executor, self._write, chunks, length)
            except OSError as err:
                if err.errno in FULL:
                    # The compressed form can be made again, so it goes first: then no append has to
                    # fail.
                    if await self.digester.spare_disk():
                        continue
                    if self._owner.may_make_room:
                        full = DiskFull(self._owner.name, err)
                        _log.error("%s", full)
                        raise full from err
                # Retrying would not bring the folder back, and appends would hang without a word.
                if err.errno == errno.ENOENT:  # the folder is gone
                    raise not_kept(self.digester.spool.journal, err) from err
                # What waits for the disk has not been acknowledged. What was acknowledged must not
                # wait for it while the broker leaves.
                if self._owner.is_leaving:
                    raise RpcFailed(
                        Code.UNAVAILABLE,
                        f"{self.digester.spool.journal}: the broker leaves it, and could not write: "
                        f"{err}",
                    ) from err
                _log.error(
                    "%s: spool: %s; retrying in %s s (check the disk of --broker.spool-dir)",
                    self.digester.spool.journal,
                    err,
                    DISK_RETRY_S,
                )
                await asyncio.sleep(DISK_RETRY_S)
            else:
                self.at += length
                self.length += length
                return

    def _is_small(self, length: int) -> bool:
        return length <= (_INLINE_WRITE_BYTES_MAX if self._digest is None else _INLINE_BYTES_MAX)

    def write_at_once(self, chunks: list[bytes | memoryview], length: int) -> bool:
        """Write chunks without waiting. Returns: whether that went well; if not, call `write`."""
        try:
            self._write(chunks, length)
        except OSError:
            return False
        self.at += length
        self.length += length
        return True

    def _write(self, chunks: list[bytes | memoryview], length: int) -> None:
        owner = self._owner
        began = owner.clock.monotonic()
        if len(chunks) > 1 and length < _SMALL_CHUNK_BYTES * len(chunks):
            chunks = _together(chunks, length)
        self.digester.spool.write(chunks, self.at)
        # Only content of one write: of several, the earlier chunks are not at hand any more.
        self._small = chunks if length <= _HASHED_BYTES_MAX and not self.length else None
        if self._is_small(length):
            owner.time(began)
        digest = self._digest
        # A proposal needs its sum at once. Without replicas no peer waits for it, and it trails in
        # threads.
        if digest is not None:
            for chunk in chunks:
                digest.update(chunk)


def _together(chunks: list[bytes | memoryview], length: int) -> list[bytes | memoryview]:
    """Chunks of `length` bytes in as few pieces as are not too large."""
    if length <= _TOGETHER_BYTES_MAX:
        return [b"".join(chunks)]
    pieces: list[bytes | memoryview] = []
    begin = size = 0
    for end, chunk in enumerate(chunks):
        if size and size + len(chunk) > _TOGETHER_BYTES_MAX:
            pieces.append(b"".join(chunks[begin:end]))
            begin, size = end, 0
        size += len(chunk)
    return [*pieces, b"".join(chunks[begin:])]


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """Content that was proposed to replicas."""

    digester: Digester
    end: int
    registers: LabelSet
    digest: Digest | None
    appends: int
    length: int


@final
class JournalSpool:
    """The open fragment of one journal, those that are closing, and who owns them.

    Attributes:
        lock: held by whoever writes, which is our appender or another broker's stream.
        digester: of the open fragment.
        end: offset after what is staged; the settled end if nothing is.
        registers: as of `end`.
        is_durable: whether content is brought to the disk itself before it counts; only `keep` does so.
        is_shared: whether all that etcd names as holders have all that is settled here. A primary knows that.
    """

    def __init__(
        self,
        journal: JournalPort,
        *,
        executor: Executor,
        compressors: Executor,
        tasks: TaskGroup,
        clock: Clock,
        directory: Path,
        tenure: Tenure | None = None,
        fsync: FsyncMode = FsyncMode.NEVER,
        pace: DiskPace | None = None,
        faults: Faults | None = None,
    ) -> None:
        """Begin at offset 0.

        Args:
            executor: threads for writing and hashing.
            compressors: threads for compression.
            directory: for files that end with the process.
            tenure: names files that survive the process; None: nothing survives it.
            fsync: when content is brought to the disk itself.
            pace: of the disk, which other journals share.
        """
        self._journal = journal
        self._executor = executor
        self._compressors = compressors
        self._tasks = tasks
        self.clock = clock
        self._pace = pace or DiskPace()
        self._directory = directory
        self._tenure = tenure
        self._next_tenure: Tenure | None = None
        self.is_durable = fsync is FsyncMode.COMMIT
        self.is_shared = False
        self._syncs = fsync is not FsyncMode.NEVER
        # The last record: where the journal ends, and with which registers.
        # They may be ahead of `end`: content is recorded before it counts.
        self._kept, self._kept_registers = 0, LabelSet()
        self._noting = asyncio.Lock()  # held while a thread records
        self._faults = faults or Faults()
        self.lock = asyncio.Lock()
        self._is_primary = False
        self._staged: deque[_Staged] = deque()
        self._closing = Closing(journal, tasks, self._faults)
        self.end = 0
        self.registers = LabelSet()
        self.digester = self._open(0, self.registers, None)

    @property
    def spool(self) -> Spool:
        """The open fragment. Its `end` is the settled one."""
        return self.digester.spool

    @property
    def is_settled(self) -> bool:
        """Whether nothing is staged."""
        return not self._staged

    @property
    def settled_end(self) -> int:
        """Offset after all that is settled."""
        return self._staged[0].end - self._staged[0].length if self._staged else self.spool.end

    @property
    def is_leaving(self) -> bool:
        """Whether the journal leaves this broker, so that fragments which fail are given up."""
        return self._closing.is_leaving

    @is_leaving.setter
    def is_leaving(self, value: bool) -> None:
        self._closing.is_leaving = value

    @property
    def name(self) -> str:
        """The journal's."""
        return self._journal.name

    @property
    def may_make_room(self) -> bool:
        """Whether we may close the open fragment to free its disk: it has content, and is our own.

        Replicas close fragments only when their primary does.
        """
        # An empty fragment frees nothing, and a replica that rolled alone would be out of step.
        return self._is_primary and self.content_length > 0 and not self.is_leaving

    @property
    def content_length(self) -> int:
        """Bytes of the open fragment, with staged ones."""
        return self.end - self.digester.spool.begin

    def serve_as_primary(self) -> None:
        """From now on persist fragments at once, and compress them as they grow."""
        self._is_primary = self.spool.is_primary = True

    # ------------------------------------------------------------------------------- writing
    async def catch_up(self) -> None:
        """Bring digests to the end, so that proposals can be made. Cancellation: safe."""
        # Staged content may have begun in fragments that have closed since; their sums are
        # proposed, too.
        for digester in (self.digester, *(staged.digester for staged in self._staged)):
            if digester.spool.digest_lag:
                await digester.digested()

    @property
    def is_quick(self) -> bool:
        """Whether the event loop may wait for the disk."""
        return self.clock.monotonic() >= self._pace.slow_until

    def time(self, began: float) -> None:
        """See how long a small write took that began at monotonic `began`."""
        now = self.clock.monotonic()
        if now - began > SLOW_S:
            self._pace.on_slow(now)

    def takes_at_once(self, length: int, *, with_digest: bool) -> bool:
        """Whether so many bytes may be written, and hashed if asked for, without waiting for a thread."""
        bytes_max = _INLINE_BYTES_MAX if with_digest else _INLINE_WRITE_BYTES_MAX
        is_small = length <= bytes_max and self.digester.spool.digest_lag < LAG_BYTES_MAX
        return is_small and self.is_quick

    def draft(self, *, with_digest: bool) -> Draft:
        """Begin to write behind the staged end.

        Args:
            with_digest: whether it is to be proposed, which needs `catch_up` before.
        """
        digest = self._digest_copy() if with_digest else None
        return Draft(self, self.digester, self.end, digest, self._executor)

    def _digest_copy(self) -> Digest:
        for staged in reversed(self._staged):
            if staged.digester is self.digester and staged.digest is not None:
                return staged.digest.copy()
        return self.spool.digest_copy()

    def proposal(self) -> Fragment:
        """The open fragment with what is staged, and its sum. Needs `catch_up` before."""
        spool = self.spool
        total = self._digest_copy().digest() if self.end > spool.begin else ZERO_SUM
        return Fragment(spool.journal, spool.begin, self.end, total, spool.codec)

    def settled_proposal(self) -> tuple[Fragment, LabelSet]:
        """The fragment in which the settled content ends, as of that end, and its registers.

        It may have closed with content that is staged. Needs `catch_up` before.
        """
        spool = self._staged[0].digester.spool if self._staged else self.spool
        total = spool.digest_copy().digest() if spool.content_length else ZERO_SUM
        return Fragment(spool.journal, spool.begin, spool.end, total, spool.codec), spool.registers

    # ------------------------------------------------------------------------------- keeping
    @property
    def tenure(self) -> str:
        """Id of this broker's tenure of the journal; empty: what it holds ends with the process."""
        return self._tenure.id if self._tenure is not None and self._tenure.is_begun else ""

    async def begin_tenure(self) -> str:
        """Make what is held from now on survive the process. Idempotent.

        Returns: as `tenure`.
        Raises: RpcFailed: the disk is full or broken. Cancellation: safe.
        """
        if self._next_tenure is not None:
            # What is here until now ends with the process, and is persisted.
            self._tenure, self._next_tenure = self._next_tenure, None
            self.roll(self.end)
        tenure = self._tenure
        if tenure is not None and not tenure.is_begun and not self.content_length:
            # Not on the event loop: thousands of journals may be synced at once, by a slow disk.
            await self._note_in_thread(tenure, self.spool, self.end, self.registers)
        if self.is_durable and tenure is not None and not tenure.is_synced:
            try:
                await run_in(self._executor, tenure.sync)
            except OSError as err:
                raise not_kept(self.name, err) from err
        return self.tenure

    def renounce(self) -> None:
        """From now on let nothing survive the process, until `begin_tenure` is called.

        For journals that are also held by brokers that know nothing of tenures.
        """
        tenure, self._tenure = self._tenure, None
        if tenure is None:
            return
        self._next_tenure = tenure.successor()
        if not tenure.is_begun:
            return
        # What has a name under this tenure is closed first, and reaches the store. The next tenure
        # begins with nothing.
        self.roll(self.end)
        with contextlib.suppress(OSError):  # a later process finds it then, and does not adopt it
            tenure.leave()

    def keep_at_once(self, draft: Draft, registers: LabelSet) -> None:
        """Record that a draft counts, so that it survives the process from now on.

        Raises: RpcFailed: the disk is full or broken; it would not survive.
        """
        if self._tenure is not None:
            self._note(self._tenure, draft.digester.spool, draft.at, registers)

    async def keep(self, draft: Draft, registers: LabelSet) -> None:
        """As `keep_at_once`; if spools are durable, the draft survives a power failure too.

        Cancellation: safe; no thread works on it any more.
        """
        tenure, spool = self._tenure, draft.digester.spool
        if tenure is None:
            return
        if not self.is_durable:
            # On a disk that takes 80 ms for a small write, the records of some twenty journals once
            # held up the renewal of the lease.
            if self.is_quick:
                self._note(tenure, spool, draft.at, registers)
            else:
                await self._note_in_thread(tenure, spool, draft.at, registers)
            return

        def sync() -> None:
            # The content goes to disk first, because whoever recovers believes the record.
            spool.sync(draft.at)
            if not tenure.is_synced:
                tenure.sync()  # else the next record would have to wait for that

        try:
            await run_in(self._executor, sync)
            self._note(tenure, spool, draft.at, registers)
            await run_in(self._executor, tenure.sync)
        except OSError as err:
            raise not_kept(self.name, err) from err

    async def sync(self) -> None:
        """Bring what is settled to the disk itself, and record that. Call `Tenure.sync` afterwards.

        Content that is kept and not settled is left out: it may be taken back, and rewritten.

        Raises: RpcFailed: the disk is broken.
        Cancellation: safe; no thread works on it any more.
        """
        tenure, spool = self._tenure, self.spool
        file, end = spool.file, spool.end
        if tenure is None or file is None or spool.synced_to >= end or spool.is_doubtful:
            return
        # No task waits for this sync: the fragment may close, and its file with it, before the
        # thread is done.
        file.hold()
        try:
            await run_in(self._executor, spool.sync, end)
        except OSError as err:
            raise not_kept(self.name, err) from err
        finally:
            file.release()
        async with self._noting:  # the lock of the spool is not ours
            if self.spool is spool and self._tenure is tenure:
                # More may have been kept during the sync: record that end, not the former one.
                self._note(tenure, spool, self._kept, self._kept_registers)

    def _note(self, tenure: Tenure, spool: Spool, end: int, registers: LabelSet) -> None:
        """Record where the journal ends. Raises: RpcFailed: the record before this one still holds."""
        now = spool.first_append_at or self.clock.now()  # the clock is read for the first only
        began = self.clock.monotonic()
        try:
            spool.note(tenure, end, registers, now, is_durable=self.is_durable)
        except OSError as err:
            raise not_kept(self.name, err) from err
        self.time(began)
        self._kept, self._kept_registers = end, registers

    async def _note_in_thread(
        self, tenure: Tenure, spool: Spool, end: int, registers: LabelSet
    ) -> None:
        """As `_note`. The caller holds the spool's lock. Cancellation: safe; no thread records any more."""
        async with self._noting:
            await run_in(self._executor, self._note, tenure, spool, end, registers)

    def _take_back(self) -> None:
        """Correct the record, if it says that more counts than does by now."""
        tenure = self._tenure
        # Most drafts that are dropped were never recorded, so there is nothing to write for them.
        if tenure is None or self._kept <= self.end:
            return
        try:
            self._note(tenure, self.spool, self.end, self.registers)
            if self.is_durable:
                # The record on disk covers content that is about to be rewritten. This is rare.
                tenure.sync()
        except (RpcFailed, OSError) as err:
            # Nothing can be appended either while the disk fails. After a crash the content would
            # count, which is allowed: its outcome was reported as unknown.
            _log.error("%s", err)

    async def adopt(self, found: RecoveredTenure) -> None:
        """Go on where an earlier process ended with a tenure of ours.

        The spool must be new, and the caller holds its lock. The content is persisted once confirmed.

        Cancellation: safe; no thread works on it any more.
        """
        tenure = self._tenure = found.tenure
        self.end, self.registers = found.end, found.registers
        self.digester = self._open(self.end, self.registers, None)
        for fragment in found.fragments:
            # Each becomes a fragment that takes no more content. Ours begins after them, in a file
            # of its own: the old one may be in a store already, or set aside.
            file, state, sha = fragment.file, fragment.state, fragment.sha
            spool = Spool.recovered(
                self.name, file, state, sha, directory=self._directory, tenure_id=tenure.id
            )
            self._closing.adopt(self._digester(spool), fragment)
            self._journal.on_recovered(spool)
        with contextlib.suppress(RpcFailed):  # then the record stays as it is, and says the same
            await self._note_in_thread(tenure, self.spool, self.end, self.registers)
        self._journal.on_roll(is_elsewhere=True)

    @property
    def is_unconfirmed(self) -> bool:
        """Whether it has content of a former process that `confirm` has not been called for."""
        return bool(self._closing.adopted)

    def date(self) -> None:
        """Have our tenure belong to etcd's data, which names it as a holder, or is about to."""
        if self._tenure is not None:
            with contextlib.suppress(OSError):  # then it passes for older than that data still
                self._tenure.date()

    def confirm(self) -> None:
        """What was adopted is the journal's, since all of its brokers are in step with us.

        Before, others may go on without it. It is held still, until etcd says that we are its holders.
        """
        if not self._is_primary:
            self.date()  # a primary does so once it has claimed the journal
        self._hold(self._closing.adopted)
        self._closing.adopted.clear()
        # Etcd may say so already, and then nothing would show it to us again.
        if self.is_held and not self._is_primary and self._journal.is_consistent:
            self.release()

    def _hold(self, digesters: Iterable[Digester]) -> None:
        self._closing.held.update(digesters)
        if self._is_primary and self.is_held:
            self._journal.on_held()

    @property
    def is_held(self) -> bool:
        """Whether closed fragments wait for `release`."""
        return bool(self._closing.held)

    def share(self) -> None:
        """As the primary: all that etcd names as holders are in step with us."""
        self.is_shared = True
        self.release()

    def release(self) -> None:
        """Persist what was held, as no holder is left that may lack it."""
        if self._closing.held:
            self._closing.held.clear()
            self._finish_settled()

    def supersede(self, valid_to: int) -> None:
        """Others have gone on at offset `valid_to`: what is here after it is left to the next process.

        That process cuts the content there, and compares the rest with what the journal has. The persister is to know,
        too.
        """
        if self.settled_end > valid_to:
            self._tenure = (
                None  # its record stays as it is: else the next process would not find the content
            )

    # ------------------------------------------------------------------------------ settling
    def commit(self, draft: Draft, registers: LabelSet, *, appends: int = 1) -> None:
        """Settle a draft at once. It must be kept, and nothing may be staged before it."""
        digester, length = draft.digester, draft.length
        if self._staged or digester is not self.digester or draft.at != self.end + length:
            raise RuntimeError(f"{self._journal.name}: a draft of another place")
        # No wait from here to the end: what readers are shown and what is counted moves in one
        # step.
        spool = digester.spool
        self.end, self.registers = draft.at, registers
        now = spool.first_append_at or self.clock.now()  # the clock is read for the first only
        spool.commit(draft.at, registers=registers, now=now, digest=draft.digest)
        if draft.small is not None:
            digester.take(draft.small, length)
        if length:
            self._journal.on_commit(spool, appends=appends, length=length)
            if spool.is_behind:
                digester.kick()

    def stage(self, draft: Draft, registers: LabelSet, *, appends: int = 1) -> None:
        """Take a draft that is kept as content that counts once `settle` is called for it."""
        if draft.digester is not self.digester or draft.at != self.end + draft.length:
            raise RuntimeError(f"{self._journal.name}: a draft of another place")
        staged = _Staged(self.digester, draft.at, registers, draft.digest, appends, draft.length)
        # The end moves, so that the next append goes after it, but readers see nothing yet: if
        # replicas fail, this content may turn out not to exist.
        self._staged.append(staged)
        self.end, self.registers = draft.at, registers

    def settle(self) -> None:
        """Publish the oldest staged content."""
        staged = self._staged.popleft()
        spool = staged.digester.spool
        spool.commit(
            staged.end, registers=staged.registers, now=self.clock.now(), digest=staged.digest
        )
        if staged.length:
            self._journal.on_commit(spool, appends=staged.appends, length=staged.length)
            if spool.is_behind:
                staged.digester.kick()
        # It closed while some of it was staged, and may have waited for just this.
        if staged.digester is not self.digester:
            self._finish_settled()

    def settle_all(self) -> None:
        """Publish all staged content, because every replica agrees with our end."""
        if self._staged:
            self.is_shared = False  # holders that have left the route may lack it
            if self._tenure is not None:
                self._hold({one.digester for one in self._staged} - {self.digester})
        while self._staged:
            self.settle()

    def forget_drafts(self) -> None:
        """Go back to what is settled or staged, dropping any draft after it."""
        if not self._staged:
            self.end, self.registers = self.spool.end, self.spool.registers
        self._take_back()

    def drop_staged(self) -> None:
        """Forget staged content, because it is no longer for this broker to say what counts."""
        if not self._staged:
            return
        oldest = self._staged[0].digester
        crossed = {staged.digester: None for staged in self._staged} | {self.digester: None}
        self._staged.clear()
        self.end, self.registers = self.spool.end, self.spool.registers
        if oldest is self.digester:
            self._take_back()
            self._finish_settled()
        else:
            # The staged content began in a fragment that has closed since. What is settled ends in
            # that fragment, and so does the journal as far as we know.
            if self._tenure is not None:
                # The records of all fragments that the staged content crossed say too much. A
                # process that finds them would let the journal go on after content that no other
                # broker has.
                with self._faults.contained("journal", f"{self.name}: recording what counts"):
                    for digester in crossed:
                        if digester is not self.digester:
                            digester.spool.note_less(self._tenure)
                    self._note(self._tenure, self.spool, self.spool.begin, oldest.spool.registers)
            self.end, self.registers = oldest.spool.end, oldest.spool.registers
            self.roll(self.end)

    # ---------------------------------------------------------------------------------- roll
    def roll(
        self,
        to: int,
        *,
        registers: LabelSet | None = None,
        codec: CompressionCodec | None = None,
        is_urgent: bool = False,
    ) -> None:
        """Close the open fragment, and begin another at journal offset `to`.

        Args:
            to: journal offset, the staged end or beyond.
            registers: of the new one; None: as they are.
            codec: of the new one; None: the spec's.
            is_urgent: persist the closed one at once, even if we are not the primary.

        Raises: RpcFailed: the disk is full or broken; nothing has changed.
        """
        old, is_elsewhere = self.digester, to != self.end
        registers = self.registers if registers is None else registers
        # The new fragment and its record come first. If the disk refuses either, the old one is
        # still open and nothing has changed.
        fresh = self._open(to, registers, codec)
        if (tenure := self._tenure) is not None and tenure.is_begun:
            try:
                self._note(tenure, fresh.spool, to, registers)
            except RpcFailed as err:
                # Only then does the record before this one say something else: it would send
                # whoever finds it to another end, or to other registers.
                if is_elsewhere or registers != self.registers or self._staged:
                    raise
                _log.error("%s", err)  # what was recorded before says the same of the journal
        has_content = self.end > old.spool.begin
        self.end, self.registers = to, registers
        self.digester = fresh
        self._closing.add(old, is_urgent=is_urgent)
        is_early = is_urgent or (self._is_primary and not self.is_shared)
        if tenure is not None and is_early and has_content:
            self._hold([old])
        self._finish_settled()
        self._journal.on_roll(is_elsewhere=is_elsewhere)

    def _open(self, begin: int, registers: LabelSet, codec: CompressionCodec | None) -> Digester:
        spec = self._journal.spec
        if codec is None:
            codec = spec.fragment.codec if spec is not None else CompressionCodec.NONE
        spool = Spool(
            self._journal.name,
            directory=self._directory,
            begin=begin,
            codec=codec,
            registers=registers,
            is_primary=self._is_primary,
            tenure=self._tenure,
            syncs=self._syncs,
        )
        return self._digester(spool)

    def _digester(self, spool: Spool) -> Digester:
        return Digester(spool, self._tasks, executor=self._executor, compressors=self._compressors)

    def _finish_settled(self) -> None:
        """Complete closed fragments that have no staged content."""
        self._closing.finish(but={staged.digester for staged in self._staged})

    async def completed(self) -> None:
        """Wait until the closed fragments that are settled were handed over."""
        await self._closing.completed()

    async def digested(self, begin: int) -> Fragment | None:
        """The fragment that begins at `begin`, with its sum, if it is open or closing.

        Returns: at least what was settled at the call; None: there is no such fragment, or its sum
            was reported when it was completed.
        Cancellation: safe.
        """
        for digester in (self.digester, *self._closing.digesters):
            if digester.spool.begin == begin:
                return await digester.digested()
        return None

    def unfinished(self) -> list[Fragment]:
        """Settled content that is not handed over to be persisted yet; the sums are not known."""
        digesters = (*self._closing.digesters, self.digester)
        return [d.spool.fragment() for d in digesters if d.spool.content_length]

    async def close(self) -> RecoveredTenure | None:
        """Close the open fragment and hand over what is settled. The caller holds the lock.

        Returns: where the tenure ended; None: there was none.
        """
        # Whether staged content counts is for the next primary to say: it asks all replicas.
        self.drop_staged()
        try:
            self.roll(self.end)
        except RpcFailed as err:
            _log.error("%s", err)
            self._tenure = None  # its record stays as it is
            self.roll(self.end)
        self.release()
        await self.completed()
        tenure = self._tenure
        if tenure is None or not tenure.is_begun:
            return None
        left = self._closing.give_back()
        return RecoveredTenure(tenure, tenure.process, self.end, self.registers, True, left)
