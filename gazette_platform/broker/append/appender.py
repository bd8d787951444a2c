"""Appends of one journal, in order, many in one step.

Each append brings its own `AppendFSM`. The planner takes the append at the head of the queue through
its machine. If all content of the append is here, it joins a batch, and the next append is checked on
top of the state that the batch will leave behind. The batch ends at the first append that needs
something slow (a roll, etcd, a store, content that has not come yet). The batch is then written by
one call, committed and answered, before the slow thing is done. So concurrent small appends share the
cost of one write and one index update, and yet each has passed the same checks as if it had come alone.

If there are other replicas, a batch is also one message of content, one proposal, and one answer from
each replica. It is answered, and shown to readers, when all replicas have it. Meanwhile the next batch
is planned on top of what was proposed, written and sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, final

from gazette_platform.broker.append import events
from gazette_platform.broker.append.batch import (
    BATCH_APPENDS_MAX,
    BATCH_BYTES_MAX,
    Answers,
    Planner,
    not_ours,
    refuse,
)
from gazette_platform.broker.spool.disk import DiskFull
from gazette_platform.errors import GazetteError
from gazette_platform.ops import tracing
from gazette_platform.ops.faults import Faults, backoff_s
from gazette_platform.serving.interface import ASK_ANOTHER, Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.broker.append.batch import Pending
    from gazette_platform.broker.replicate.replicator import Replicator
    from gazette_platform.broker.spool.journal_spool import Draft, JournalSpool
    from gazette_platform.broker.spool.port import JournalPort
    from gazette_platform.broker.spool.recovery import RecoveredTenure
    from gazette_platform.broker.spool.spool import Digest, Spool
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import LabelSet


_log = logging.getLogger(__name__)

# Appends that may wait at one journal. More are refused: their clients would time out anyway.
_QUEUE_MAX = 10_000


_NO_TRACE: Final = contextlib.nullcontext()


@final
class Appender:
    """The queue and the spool of one journal whose primary we are."""

    def __init__(
        self,
        journal: JournalPort,
        *,
        spool: JournalSpool,
        replicator: Replicator,
        tasks: TaskGroup,
        clock: Clock,
        faults: Faults | None = None,
    ) -> None:
        self._journal = journal
        self._tasks = tasks
        self._clock = clock
        self._faults = faults or Faults()
        self._spool = spool
        self._replicator = replicator
        self._queue: deque[Pending] = deque()
        self._running = False
        self._closed = False
        self._patience: asyncio.Timeout | None = None
        self._idle = asyncio.Event()  # set once closed and idle
        # Appends that have left the queue, or are about to, and are not answered yet.
        self._in_hand: list[Pending] = []
        self._planner = Planner(
            journal, spool=spool, replicator=replicator, clock=clock, stream=self._stream
        )

    @property
    def spool(self) -> Spool:
        """The open fragment."""
        return self._spool.spool

    def submit(self, pending: Pending) -> None:
        """Queue an append. Its `done` is resolved later, or at once if the replica was closed.

        Raises: RpcFailed: too many appends wait already.
        """
        if self._closed:
            pending.finish(not_ours())
            return
        if len(self._queue) >= _QUEUE_MAX:
            raise RpcFailed(
                Code.UNAVAILABLE, f"{self._journal.name}: {_QUEUE_MAX} appends are waiting already"
            )
        self._queue.append(pending)
        if not self._running:
            self._running = True
            # In the next turn of the loop: all appends that the same read brought are in the queue
            # by then, and one batch takes them.
            asyncio.get_running_loop().call_soon(self._start)

    async def close(
        self, say_end: Callable[[], Awaitable[None]] | None = None
    ) -> RecoveredTenure | None:
        """Close the open fragment and hand it to the persister, after the appends in the queue.

        Appends that are ready, or stream already, are written. Those that wait for etcd or a store,
        and those that come later, are sent to another broker.

        Args:
            say_end: called once the spool has its last content, before that is handed over.

        Returns: where the spool's tenure ended; None: there was none.
        """
        self._closed = True
        self._planner.forget()
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())
        # A replica that hangs would otherwise keep the journal at a broker that leaves.
        self._replicator.retire()
        if self._running:
            await self._idle.wait()
        with self._faults.contained("journal", f"{self._journal.name}: leaving its replicas"):
            await self._replicator.close()
        if say_end is not None:
            with self._faults.contained("journal", f"{self._journal.name}: saying where it ends"):
                await say_end()
        return await self._spool.close()

    def roll_if_due(self) -> bool:
        """Close the open fragment if its flush window has ended.

        Returns: whether no more is to be done; False: appends are under way, ask again shortly.
        """
        if not self.is_idle:
            return False
        # While appends are under way the planner rolls before the next one. A roll here would cut
        # through a batch.
        spool = self._spool
        if spool.content_length and self._planner.is_due:
            self._planner.roll(spool.end)
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no append is queued or under way."""
        return not self._running and self._replicator.is_idle

    # ------------------------------------------------------------------------------ the loop
    def _start(self) -> None:
        """Take one step at once if nothing has to be waited for, and start a task for the rest.

        So small appends do not pay for a task. While replicas have enough to do, the step waits for their
        next answer.
        """
        batch: list[Pending] = []
        replicator, is_waiting = self._replicator, False
        try:
            if self._tasks.is_closed:
                self._refuse_all("this broker has stopped")
            # A callback in place of a task: under load nearly every step waits here, and tasks with
            # their turns of the loop made most of the system calls of a replicated append.
            elif replicator.has_peers and replicator.holds_back(self._waiting_bytes()):
                replicator.once_answered(self._start)
                is_waiting = True
            elif not replicator.has_peers or replicator.takes_at_once:
                batch = self._plan()
                if batch and self._commit_at_once(batch):
                    batch = []
        except Exception as err:  # noqa: BLE001  reported, and passed to callers
            batch = []
            self._fail_step(err, 0.0)
        finally:
            if is_waiting:
                pass
            elif batch or self._queue:
                self._tasks.spawn(self._run(batch), name=f"append {self._journal.name}")
            else:
                self._rest()

    def _refuse_all(self, why: str) -> None:
        failure = NotNow(f"{self._journal.name}: {why}", ASK_ANOTHER)
        refuse(list(self._queue), failure)
        self._queue.clear()

    def _rest(self) -> None:
        self._running = False
        # All of them are answered, or their answer holds them: what a journal was sent last must not stay in
        # memory until its next append.
        self._in_hand = []
        self._planner.rest()
        if self._closed:
            self._idle.set()

    async def _run(self, batch: list[Pending]) -> None:
        """Commit a batch that was planned already, then take steps until the queue is empty."""
        failures = 0
        try:
            while batch or self._queue:
                planned, batch = batch, []
                try:
                    await self._step(planned)
                except Exception as err:  # noqa: BLE001  reported, and passed to callers
                    # An error that every append meets, as of a broken disk, must not make this loop
                    # spin.
                    pause_s = backoff_s(failures)
                    self._fail_step(err, pause_s)
                    await asyncio.sleep(pause_s)
                    failures += 1
                else:
                    failures = 0
        finally:
            self._rest()

    async def _step(self, batch: list[Pending]) -> None:
        """Commit a batch, or plan one from the queue, or do what the queue's head waits for."""
        if not batch:
            if self._replicator.has_peers:
                await self._hold_back()
            batch = self._plan()
        if batch:
            await self._commit(batch)
        elif self._queue:
            await self._advance(self._queue[0])

    def _fail_step(self, error: Exception, pause_s: float) -> None:
        """Fail the appends that met `error`, and go on with the next ones.

        A disk that takes no record of what is appended was foreseen, any other error was not.
        Replicas drop what they were sent, and are synced again.
        """
        journal = self._journal.name
        # The head of the queue may be what raised. If it stayed, every step would fail by it again.
        if self._queue and self._queue[0] not in self._in_hand:
            self._in_hand.append(self._queue[0])
        if isinstance(error, RpcFailed):
            failure = error
            _log.error("%s", error)
        else:
            self._faults.report("journal", f"{journal}: appends go on in {pause_s:g} s", error)
            kind = type(error).__name__
            text = f"{journal}: unforeseen {kind}: {error}; whether it was appended is unknown"
            failure = RpcFailed(Code.INTERNAL, text)
        for pending in self._in_hand:
            pending.fail(failure)
        self._in_hand = []
        while self._queue and self._queue[0].done.done():
            self._queue.popleft()
        self._replicator.reset("an append failed")
        self._spool.forget_drafts()

    async def _hold_back(self) -> None:
        """Let appends wait for each other while replicas have enough to do: they go together then."""
        # Here nothing is open at the replicas, so their streams can be replaced before their tokens
        # expire.
        if self._replicator.is_old:
            await self._replicator.renew()
        while self._replicator.holds_back(self._waiting_bytes()):
            await self._replicator.answered()
        with contextlib.suppress(RpcFailed):  # the next append meets the failure, and syncs
            await self._replicator.room()

    def _waiting_bytes(self) -> int:
        """Bytes of the waiting appends that would go together."""
        length = 0
        for pending in itertools.islice(self._queue, BATCH_APPENDS_MAX):
            length += BATCH_BYTES_MAX if pending.stream is not None else pending.length
            if length >= BATCH_BYTES_MAX:
                break
        return length

    def _plan(self) -> list[Pending]:
        self._in_hand = []
        self._planner.plan(self._queue, self._in_hand)
        return self._in_hand

    async def _advance(self, pending: Pending) -> None:
        """Wait for what the queue's head waits for, unless this appender is closing."""
        # It refers back to its append: a cycle, which would keep the content until a garbage collection.
        wait, pending.wait = pending.wait, None
        assert wait is not None
        if wait.is_content:
            # It leaves the queue first: from now on it has the journal to itself, and ends by its
            # own outcome.
            self._in_hand.append(self._queue.popleft())
            await wait.work()
        # What waits for etcd or a store may wait for ever. The next primary decides about it, by
        # newer state.
        elif self._closed:
            self._queue.popleft()
            pending.finish(not_ours())
        else:
            try:
                # The time-out has no deadline yet. `close` sets one, since the event may never come.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None) as self._patience:
                        event = await wait.work()
                        if event is not None:
                            pending.next_effect = pending.machine.step(event)
            except GazetteError as err:
                self._queue.popleft()
                pending.fail(err)
            finally:
                self._patience = None

    # ------------------------------------------------------------------------------- content
    def _commit_at_once(self, batch: list[Pending]) -> bool:
        """Commit a batch if that is quick and waits for nothing. Returns: whether it was done."""
        length = appends = 0
        chunks: list[bytes | memoryview] = []
        sums: list[bytes] = []
        for pending in batch:
            if not isinstance(pending.sum, bytes):
                return False
            sums.append(pending.sum)
            if pending.length:
                length += pending.length
                appends += 1
                chunks += pending.chunks
        spool, replicator = self._spool, self._replicator
        has_peers = replicator.has_peers
        # Durable content waits for the disk itself, for milliseconds: never on the event loop.
        if spool.is_durable or not spool.takes_at_once(length, with_digest=has_peers):
            return False
        if has_peers and self._refusal() is not None:
            return False
        draft = spool.draft(with_digest=has_peers)
        registers = batch[-1].registers
        assert registers is not None
        if length:
            # If that fails, `_commit` writes again: it knows how to make room on a full disk.
            if not draft.write_at_once(chunks, length):
                return False
            try:
                spool.keep_at_once(draft, registers)
            except RpcFailed as err:
                if not has_peers:
                    raise
                self._refuse(batch, err)  # replicas have heard nothing of it
                return True
            if has_peers:
                replicator.send(chunks, 0)
        answer = Answers(self._journal.name, batch, sums, spool.digester.spool.codec)
        end = self._propose if has_peers else self._settle
        end(draft, registers, answer, appends=appends)
        return True

    async def _commit(self, batch: list[Pending]) -> None:
        chunks = [chunk for pending in batch for chunk in pending.chunks]
        length = sum(pending.length for pending in batch)
        registers = batch[-1].registers
        assert registers is not None
        spool, replicator = self._spool, self._replicator
        has_peers = replicator.has_peers
        # With replicas this comes first, since they would have to drop what they were sent. With
        # one replica it comes last, after the write.
        refusal = self._refusal()
        if has_peers and refusal is not None:
            self._refuse(batch, refusal)
            return
        draft = spool.draft(with_digest=has_peers)
        if length:
            await spool.digester.below()
            # Sent before it is written here, so that network and disk work at the same time.
            # Neither copy counts before the proposal.
            if has_peers:
                replicator.send(chunks, 0)
            try:
                await draft.write(chunks, length)
            except RpcFailed as err:
                # Replicas drop the content when their streams end, which happens at the next sync.
                self._refuse(batch, err)
                replicator.is_synced = False
                if isinstance(err, DiskFull):
                    self._make_room(has_peers=has_peers)
                return
            try:
                await spool.keep(draft, registers)
            except RpcFailed as err:
                self._refuse(batch, err)
                replicator.is_synced = False
                return
        sums = [p.sum if isinstance(p.sum, bytes) else await p.sum for p in batch]
        answer = Answers(self._journal.name, batch, sums, spool.spool.codec)
        appends = sum(1 for pending in batch if pending.length)
        if has_peers:
            self._propose(draft, registers, answer, appends=appends)
        else:
            self._settle(draft, registers, answer, appends=appends)

    def _settle(self, draft: Draft, registers: LabelSet, answer: Answers, *, appends: int) -> None:
        """Commit a draft that no other replica has to have."""
        # No wait between this check and the commit. A lease that ran out during the write ends
        # here: with one replica no other broker is asked, so none could refuse.
        refusal = self._refusal()
        if refusal is None:
            self._spool.commit(draft, registers, appends=appends)
        else:
            self._spool.forget_drafts()
            self._start_over()
        answer(refusal)

    def _refuse(self, batch: list[Pending], failure: RpcFailed) -> None:
        self._spool.forget_drafts()
        self._start_over()
        refuse(batch, failure)

    def _start_over(self) -> None:
        """Have the queue's head begin again: the batch that it was checked on top of does not count."""
        head = self._queue[0] if self._queue else None
        if head is not None and head.next_effect is not None:
            head.next_effect = head.machine.start_over()

    def _refusal(self) -> RpcFailed | None:
        """Why nothing uncommitted may count now: another broker may have taken over. None: it may."""
        problem = self._journal.refusal
        if not problem:
            return None
        return NotNow(f"{self._journal.name}: {problem}", ASK_ANOTHER)

    def _propose(self, draft: Draft, registers: LabelSet, answer: Answers, *, appends: int) -> None:
        """Propose a draft; its appends are answered once all replicas have it."""
        refusal = self._refusal()
        if refusal is not None:
            self._forget()  # or replicas that have not heard of the change would agree
            self._spool.forget_drafts()
            self._start_over()
            answer(refusal)
            return
        try:
            with tracing.below(answer.headers) if answer.headers else _NO_TRACE:
                self._replicator.propose(draft, registers, answer, appends=appends)
        except RpcFailed as err:
            self._spool.forget_drafts()
            self._start_over()
            answer(err)

    def _forget(self) -> None:
        """Have replicas drop content that they were sent and that will not be proposed."""
        spool = self._spool
        empty = spool.draft(with_digest=True)
        with contextlib.suppress(RpcFailed):  # their streams broke, so they have dropped it
            self._replicator.propose(empty, spool.registers, lambda _: None, appends=0)

    async def _stream(self, pending: Pending) -> None:
        """Take an append whose content is still coming. It has the journal to itself meanwhile."""
        spool, replicator = self._spool, self._replicator
        draft = spool.draft(with_digest=replicator.has_peers)
        # The replicas that content is sent to wait for a decision about it, even if the
        # pipeline breaks meanwhile.
        has_peers = replicator.has_peers
        digest = hashlib.sha1(usedforsecurity=False)
        try:
            effect = await self._receive(pending, draft, digest, has_peers=has_peers)
            # Without content it is a barrier, and the record says already what counts.
            if isinstance(effect, events.Commit) and draft.length:
                await spool.keep(draft, effect.registers)
        except RpcFailed as err:
            effect = None
            pending.fail(err)
            spool.forget_drafts()
            if isinstance(err, DiskFull):
                self._make_room(has_peers=has_peers)
                self._journal.on_rollback()
                return
        if isinstance(effect, events.Commit):
            pending.begin, pending.length = spool.end, draft.length
            pending.registers = effect.registers
            await spool.digester.below()
            answer = Answers(self._journal.name, [pending], [digest.digest()], spool.spool.codec)
            end = self._propose if has_peers else self._settle
            end(draft, effect.registers, answer, appends=1)
            return
        if has_peers and draft.length:
            self._forget()
        if effect is None:
            self._journal.on_rollback()
        else:
            assert isinstance(effect, events.Fail | events.Rollback)
            self._planner.refuse(pending, effect)

    def _make_room(self, *, has_peers: bool) -> None:
        """Close the open fragment so that it is persisted, because our disk is full.

        Later appends are refused until it is persisted. If they were not, they would hold open the
        very fragment that takes up the room.
        """
        if has_peers:
            self._forget()
        self._planner.roll(self._spool.end)
        # What was planned on top of the failed appends starts over.
        self._replicator.is_synced = False

    async def _receive(
        self, pending: Pending, draft: Draft, digest: Digest, *, has_peers: bool
    ) -> events.Effect | None:
        """Write content as it comes.

        Returns: how the append goes on; None: its caller has gone, or failed.
        Raises: RpcFailed: the client's stream broke, or a stream to a replica did.
        """
        machine, stream = pending.machine, pending.stream
        assert stream is not None
        # What was gathered before its turn precedes what is still to come.
        backlog = deque(pending.chunks)
        pending.chunks.clear()
        while True:
            try:
                chunk = backlog.popleft() if backlog else await stream.next()
            except RpcFailed as err:
                machine.step(events.ContentBroken(err.text))
                raise
            if pending.done.done():  # the caller has gone or failed: nothing is committed
                return None
            effect = machine.step(events.Content(len(chunk)) if chunk else events.ContentEnd())
            if effect is not None:
                return effect
            if has_peers:
                # A stream has no end that we know of: it must not pile up in memory for one slow
                # replica.
                await self._replicator.room()
                self._replicator.send([chunk], draft.length)
            await draft.write([chunk], len(chunk))
            digest.update(chunk)
