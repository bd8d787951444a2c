"""Appends of one journal, in order, many in one step.

Each append brings its own `AppendFSM`. The appender walks the queue's head through its machine; an
append whose content is here joins a batch, and the next one is walked on top of the state that the
batch will leave behind. The batch ends at the first append that needs something slow (a roll, etcd,
a store, content still to come). It is then written by one call, committed and answered, before the
slow thing is done. So concurrent small appends cost one write and one index update together, while
every one of them passed the same checks as if it had come alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.broker import append_fsm as fsm
from gazette_platform.broker.digester import DISK_RETRY_S, Digester
from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import GazetteError
from gazette_platform.fragment.spool import Spool
from gazette_platform.protocol import ZERO_SUM, Fragment, LabelSet, Status

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.fragment.completed import CompletedSpool
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import JournalSpec, SuspendSpec

__all__ = ["Appender", "Journal", "Outcome", "Pending", "content_sum"]

_log = logging.getLogger(__name__)

# Written on the event loop up to this size: a hop to a thread costs more than the write.
_INLINE_BYTES_MAX = 64 << 10

# A batch is bounded so that the first append in it does not wait for long.
_BATCH_BYTES_MAX = 8 << 20
_BATCH_APPENDS_MAX = 512

# Appends waiting at one journal; more are refused, since their clients would time out anyway.
_QUEUE_MAX = 10_000


class Journal(Protocol):
    """What an appender asks of the replica that it belongs to."""

    name: str

    @property
    def spec(self) -> JournalSpec | None:
        """The spec as of now; None once the journal is deleted."""
        ...

    def resolve(self, min_revision: int) -> fsm.Resolved | None:
        """Look the journal up; None if the key space is not at `min_revision` yet."""
        ...

    async def wait_revision(self, revision: int) -> None:
        """Wait for the key space to reach `revision`."""
        ...

    @property
    def is_consistent(self) -> bool:
        """Whether every assignment carries the current route."""
        ...

    def count_replicas(self) -> fsm.Replicas:
        """Brokers that serve the journal, and how many should."""
        ...

    async def update_assignments(self) -> int:
        """Write the route into the assignments. Returns: the revision to look at."""
        ...

    async def write_suspend(self, suspend: SuspendSpec) -> int:
        """Store the spec with this suspension. Returns: the revision to look at."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether the store was listed and is healthy."""
        ...

    async def wait_ready(self) -> str:
        """Wait until `is_ready`. Returns: "", or why the store stays unhealthy."""
        ...

    def view(self, *, begin: int, end: int, registers: LabelSet) -> fsm.ReplicaView:
        """The state as preconditions see it, with a spool of [begin, end)."""
        ...

    def on_commit(self, spool: Spool, *, appends: int, length: int) -> None:
        """The spool holds `length` more bytes, of so many appends: publish it to readers."""
        ...

    def on_rollback(self) -> None:
        """An append ended without a commit after its content had come."""
        ...

    def on_complete(self, completed: CompletedSpool) -> None:
        """A fragment closed: publish its sum, and persist it."""
        ...


class _Stream(Protocol):
    """Content that is still to come."""

    async def next(self) -> bytes | memoryview:
        """The next chunk; empty to commit. Raises: RpcFailed: the caller has gone or failed."""
        ...


@dataclass(slots=True)
class Outcome:
    """How an append ended."""

    status: Status
    commit: Fragment | None = None
    registers: LabelSet | None = None
    store_health_error: str = ""
    total_chunks: int = 0
    is_remote: bool = False
    """This replica does not serve the journal any more, and nothing was written: look it up again."""


@dataclass(slots=True, eq=False)
class Pending:
    """An append that waits for its turn."""

    machine: fsm.AppendFSM
    done: asyncio.Future[Outcome]
    chunks: list[bytes | memoryview] = field(default_factory=list)
    length: int = 0
    total_chunks: int = 0
    sum: asyncio.Future[bytes] | bytes = b""
    """SHA-1 of the content, or where it will be."""
    stream: _Stream | None = None
    """Where content beyond `chunks` comes from; None: all of it is here."""
    next_effect: fsm.Effect | None = None
    begin: int = 0
    registers: LabelSet | None = None

    def finish(self, outcome: Outcome) -> None:
        """Answer, unless the caller has gone."""
        if not self.done.done():
            outcome.total_chunks = self.total_chunks
            self.done.set_result(outcome)

    def fail(self, error: GazetteError) -> None:
        """End the RPC without an answer, unless the caller has gone."""
        if not self.done.done():
            self.done.set_exception(error)


def content_sum(chunks: list[bytes | memoryview]) -> bytes:
    """SHA-1 of the concatenation of chunks; all zero if there are none."""
    if not chunks:
        return ZERO_SUM
    digest = hashlib.sha1(usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()


@final
class Appender:
    """The queue and the spool of one journal whose primary we are."""

    def __init__(
        self,
        journal: Journal,
        *,
        executor: Executor,
        tasks: TaskGroup,
        clock: Clock,
        spool_dir: Path,
    ) -> None:
        self._journal = journal
        self._executor = executor
        self._tasks = tasks
        self._clock = clock
        self._spool_dir = spool_dir
        self._queue: deque[Pending] = deque()
        self._running = False
        self._closed = False
        self._completing: set[asyncio.Task[None]] = set()
        self._rolled: set[Digester] = set()
        self._patience: asyncio.Timeout | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.digester = self._open(0, LabelSet())
        # State that the batch being planned will leave behind.
        self._end = 0
        self._registers = LabelSet()

    @property
    def spool(self) -> Spool:
        """The open fragment."""
        return self.digester.spool

    def submit(self, pending: Pending) -> None:
        """Queue an append. Its `done` is resolved later; at once if the replica was closed.

        Raises: RpcFailed: too many appends wait already.
        """
        if self._closed:
            pending.finish(_not_ours())
            return
        if len(self._queue) >= _QUEUE_MAX:
            raise RpcFailed(
                Code.UNAVAILABLE, f"{self._journal.name}: {_QUEUE_MAX} appends are waiting already"
            )
        self._queue.append(pending)
        if not self._running:
            self._running = True
            self._idle.clear()
            self._tasks.spawn(self._run(), name=f"append {self._journal.name}")

    async def close(self) -> None:
        """Close the open fragment and hand it to the persister, after queued appends.

        Those that are ready, or stream already, are written. Those that wait for etcd or a store,
        and those that come later, are not ours any more.
        """
        self._closed = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())
        await self._idle.wait()
        self._roll(self.spool.end)
        await self._settle()

    def roll_if_due(self) -> bool:
        """Close the open fragment if its window ended.

        Returns: whether that is settled; False: appends are under way, ask again shortly.
        """
        if self._running:
            return False
        if self.spool.content_length and self._must_roll(self.spool.end, 0):
            self._roll(self.spool.end)
        return True

    async def flush(self) -> None:
        """Close the open fragment, and hand it to the persister.

        Only for the journal's answers to this appender, which asks while it writes nothing.
        """
        self._roll(self.spool.end)
        await self._settle()

    async def _settle(self) -> None:
        while self._completing:
            await asyncio.wait(set(self._completing))

    @property
    def is_idle(self) -> bool:
        """Whether no append is queued or under way."""
        return not self._running

    async def digested(self, begin: int) -> Fragment | None:
        """The fragment at `begin` with its sum, if it is the open one, or one that is closing.

        Returns: at least what was committed when asked; None: there is no such fragment, or the
            journal was told of its sum already.
        Cancellation: safe.
        """
        for digester in (self.digester, *self._rolled):
            if digester.spool.begin == begin:
                return await digester.digested()
        return None

    # ------------------------------------------------------------------------------ the loop
    async def _run(self) -> None:
        try:
            while self._queue:
                self._end = self.spool.end
                self._registers = self.spool.registers
                batch = self._plan()
                if batch:
                    await self._commit(batch)
                elif self._queue:
                    await self._advance(self._queue[0])
        finally:
            self._running = False
            self._idle.set()

    def _plan(self) -> list[Pending]:
        """Walk appends from the queue's head; those ready to be written leave the queue."""
        batch: list[Pending] = []
        planned = 0
        while self._queue and len(batch) < _BATCH_APPENDS_MAX and planned < _BATCH_BYTES_MAX:
            pending = self._queue[0]
            if pending.done.done():  # the caller has gone before its turn
                self._queue.popleft()
                continue
            effect = pending.next_effect or pending.machine.start()
            effect = self._walk(pending, effect, batch)
            pending.next_effect = effect
            if isinstance(effect, fsm.Commit):
                pending.begin = self._end
                pending.registers = effect.registers
                self._end += pending.length
                self._registers = effect.registers
                planned += pending.length
                batch.append(pending)
            elif not self._is_terminal(pending, effect):
                break
            self._queue.popleft()
        return batch

    def _walk(self, pending: Pending, effect: fsm.Effect, batch: list[Pending]) -> fsm.Effect:
        """Carry out effects for as long as none of them has to wait."""
        machine = pending.machine
        step = machine.step
        while True:
            event = self._immediate(pending, effect, batch)
            if event is None:
                return effect
            following = step(event)
            if following is None:
                following = step(fsm.ContentEnd())
            assert following is not None
            effect = following

    def _immediate(  # noqa: PLR0911  one per effect
        self, pending: Pending, effect: fsm.Effect, batch: list[Pending]
    ) -> fsm.Event | None:
        """The event that answers `effect`, or None if it needs waiting or ends the append."""
        journal = self._journal
        match effect:
            case fsm.Resolve():
                return journal.resolve(effect.min_revision)
            case fsm.Acquire():
                return fsm.Acquired()
            case fsm.Sync(roll_to):
                if roll_to == 0:
                    return fsm.Synced()
                if batch:
                    return None
                self._roll(roll_to)
                return fsm.Synced()
            case fsm.CheckAssignments():
                return fsm.AssignmentsFresh() if journal.is_consistent else None
            case fsm.CountReplicas():
                return journal.count_replicas()
            case fsm.AwaitReady():
                if not journal.is_ready:
                    return None
                view = journal.view(
                    begin=self.spool.begin, end=self._end, registers=self._registers
                )
                return fsm.Ready(view)
            case fsm.Stream(roll_to):
                return self._begin_stream(pending, roll_to, batch)
            case _:
                return None

    def _begin_stream(
        self, pending: Pending, roll_to: int, batch: list[Pending]
    ) -> fsm.Event | None:
        if self._must_roll(self._end, roll_to):
            if batch:
                return None
            self._roll(self._end)
        if pending.stream is not None:
            return None
        return fsm.Content(pending.length) if pending.length else fsm.ContentEnd()

    def _must_roll(self, end: int, roll_to: int) -> bool:
        spec = self._journal.spec
        spool = self.spool
        if spec is None:
            return False
        if spool.begin == end:
            # An empty spool takes on the spec's codec; anything else of it is as it would be anew.
            return spool.codec is not spec.fragment.codec
        return fsm.must_roll(
            spec,
            begin=spool.begin,
            end=end,
            first_append_at=spool.first_append_at,
            now=self._clock.now(),
            roll_to=roll_to,
        )

    def _is_terminal(self, pending: Pending, effect: fsm.Effect) -> bool:
        """Answer an append that ended without content. Returns: whether it did."""
        match effect:
            case fsm.Fail(status, text):
                pending.finish(Outcome(status, registers=self._registers, store_health_error=text))
            case fsm.Rollback(text, status):
                self._journal.on_rollback()
                if text:
                    pending.fail(RpcFailed(Code.UNKNOWN, text))
                else:
                    pending.finish(Outcome(status, registers=self._registers))
            case fsm.Proxy():
                pending.finish(_not_ours())
            case _:
                return False
        return True

    async def _advance(self, pending: Pending) -> None:
        """Do the slow thing that the queue's head waits for, unless we are to close."""
        if isinstance(pending.next_effect, fsm.Stream):
            self._queue.popleft()
            await self._stream(pending)
        elif self._closed:
            self._queue.popleft()
            pending.finish(_not_ours())
        else:
            try:
                # Timeout without a deadline: `close` sets one, since what is waited for may never
                # come.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None) as self._patience:
                        await self._unblock(pending)
            except GazetteError as err:
                self._queue.popleft()
                pending.fail(err)
            finally:
                self._patience = None

    async def _unblock(self, pending: Pending) -> None:
        """Wait for what the queue's head waits for. Raises: GazetteError: this append failed."""
        journal, machine = self._journal, pending.machine
        match pending.next_effect:
            case fsm.Resolve(min_revision):
                await journal.wait_revision(min_revision)
            case fsm.CheckAssignments():
                revision = await journal.update_assignments()
                pending.next_effect = machine.step(fsm.Written(revision))
            case fsm.WriteSuspend(suspend):
                revision = await journal.write_suspend(suspend)
                pending.next_effect = machine.step(fsm.Written(revision))
            case fsm.AwaitReady():
                problem = await journal.wait_ready()
                # Much may have changed while it waited: it starts over, and finds it ready.
                pending.next_effect = machine.step(
                    fsm.Unhealthy(problem) if problem else fsm.Invalidated()
                )
            case effect:
                raise RuntimeError(f"{journal.name}: append is stuck at {effect}")

    # ------------------------------------------------------------------------------- content
    async def _commit(self, batch: list[Pending]) -> None:
        chunks = [chunk for pending in batch for chunk in pending.chunks]
        length = sum(pending.length for pending in batch)
        if length:
            await self.digester.below()
            await self._write(chunks, self.spool.end, length)
        registers = batch[-1].registers
        assert registers is not None
        self._publish(self._end, registers, appends=sum(1 for p in batch if p.length))
        for pending in batch:
            total = pending.sum if isinstance(pending.sum, bytes) else await pending.sum
            self._acknowledge(pending, total)

    async def _write(self, chunks: list[bytes | memoryview], at: int, length: int) -> None:
        """Write to the spool, for as long as it takes."""
        spool = self.spool
        while True:
            try:
                if length <= _INLINE_BYTES_MAX:
                    spool.write(chunks, at)
                else:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._executor, spool.write, chunks, at)
            except OSError as err:
                _log.error(
                    "%s: spool: %s; retrying in %s s (check the disk of --broker.spool-dir)",
                    self._journal.name,
                    err,
                    DISK_RETRY_S,
                )
                await asyncio.sleep(DISK_RETRY_S)
            else:
                return

    def _publish(self, end: int, registers: LabelSet, *, appends: int) -> None:
        spool = self.spool
        length = end - spool.end
        spool.commit(end, registers=registers, now=self._clock.now())
        if length:
            self._journal.on_commit(spool, appends=appends, length=length)
            self.digester.kick()

    def _acknowledge(self, pending: Pending, total: bytes) -> None:
        finish = pending.machine.step(fsm.Acknowledged())
        assert isinstance(finish, fsm.Finish)
        commit = Fragment(
            self._journal.name,
            pending.begin,
            pending.begin + pending.length,
            total if pending.length else ZERO_SUM,
            self.spool.codec,
        )
        pending.finish(Outcome(finish.status, commit, pending.registers))

    async def _stream(self, pending: Pending) -> None:
        """Take an append whose content still comes, alone: it owns the journal meanwhile."""
        machine = pending.machine
        assert pending.stream is not None
        digest = hashlib.sha1(usedforsecurity=False)
        begin = at = self.spool.end
        chunk: bytes | memoryview | None = None
        backlog = deque(pending.chunks)
        pending.chunks.clear()
        effect: fsm.Effect | None = None
        while effect is None:
            try:
                chunk = backlog.popleft() if backlog else await pending.stream.next()
            except RpcFailed as err:
                machine.step(fsm.ContentBroken(err.text))
                self._journal.on_rollback()
                pending.fail(err)
                return
            if pending.done.done():  # the caller has gone or failed: nothing is committed
                self._journal.on_rollback()
                return
            if not chunk:
                effect = machine.step(fsm.ContentEnd())
                break
            effect = machine.step(fsm.Content(len(chunk)))
            if effect is None:
                await self._write([chunk], at, len(chunk))
                digest.update(chunk)
                at += len(chunk)
        if isinstance(effect, fsm.Commit):
            pending.begin, pending.length = begin, at - begin
            pending.registers = effect.registers
            await self.digester.below()
            self._publish(at, effect.registers, appends=1)
            self._acknowledge(pending, digest.digest())
        elif effect is not None:
            self._is_terminal(pending, effect)

    # ---------------------------------------------------------------------------------- roll
    def _open(self, begin: int, registers: LabelSet) -> Digester:
        spec = self._journal.spec
        spool = Spool(
            self._journal.name,
            directory=self._spool_dir,
            begin=begin,
            registers=registers,
            is_primary=True,
        )
        if spec is not None:
            spool.codec = spec.fragment.codec
        return Digester(spool, self._executor, self._tasks)

    def _roll(self, to: int) -> None:
        """Close the open fragment and begin another at journal offset `to`."""
        old = self.digester
        self.digester = self._open(to, old.spool.registers)
        self._end = to
        if old.spool.content_length:
            self._rolled.add(old)
            task = self._tasks.spawn(self._complete(old), name=f"roll {self._journal.name}")
            self._completing.add(task)
            task.add_done_callback(self._completing.discard)
        else:
            old.spool.discard()

    async def _complete(self, old: Digester) -> None:
        completed = await old.complete()
        if completed is not None:
            self._journal.on_complete(completed)
        self._rolled.discard(old)


def _not_ours() -> Outcome:
    return Outcome(Status.NOT_JOURNAL_PRIMARY_BROKER, is_remote=True)
