"""Appends of one journal, in order, many in one step.

Each append brings its own `AppendFSM`. The appender walks the queue's head through its machine; an
append whose content is here joins a batch, and the next one is walked on top of the state that the
batch will leave behind. The batch ends at the first append that needs something slow (a roll, etcd,
a store, content still to come). It is then written by one call, committed and answered, before the
slow thing is done. So concurrent small appends cost one write and one index update together, while
every one of them passed the same checks as if it had come alone.

With replicas a batch is also one message of content, one proposal and one answer of each. It is
answered, and shown to readers, when all replicas have it; the next batch is planned, written and sent
meanwhile, on top of what was proposed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
from collections import deque
from typing import TYPE_CHECKING, final

from gazette_platform.broker.append import events, rules
from gazette_platform.broker.append.answers import Answers, refuse
from gazette_platform.broker.append.pending import Journal, Outcome, Pending, content_sum
from gazette_platform.broker.replicate import synced
from gazette_platform.broker.spool.journal_spool import DiskFull
from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import GazetteError
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.retry import backoff_s
from gazette_platform.protocol import LabelSet, Status

if TYPE_CHECKING:
    from gazette_platform.broker.replicate.replicator import Replicator
    from gazette_platform.broker.spool.journal_spool import Draft, JournalSpool
    from gazette_platform.fragment.spool import Digest, Spool
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup

__all__ = ["Appender", "Journal", "Outcome", "Pending", "content_sum"]

# A batch is bounded so that the first append in it does not wait for long.
_BATCH_BYTES_MAX = 8 << 20

# With replicas several batches are on their way at once, and smaller ones keep all of them busy.
_REPLICATED_BATCH_BYTES_MAX = 4 << 20

_BATCH_APPENDS_MAX = 512

# A broker that restarts, or whose place another one takes, is tried again at this pace.
_SYNC_RETRY_S = 0.1

# Appends waiting at one journal; more are refused, since their clients would time out anyway.
_QUEUE_MAX = 10_000


@final
class Appender:
    """The queue and the spool of one journal whose primary we are."""

    def __init__(
        self,
        journal: Journal,
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
        self._store = spool
        self._replicator = replicator
        self._queue: deque[Pending] = deque()
        self._running = False
        self._closed = False
        self._patience: asyncio.Timeout | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        # Appends that left the queue, or are about to, and are not answered yet.
        self._in_hand: list[Pending] = []
        # State that the batch being planned will leave behind.
        self._end = 0
        self._registers = LabelSet()

    @property
    def spool(self) -> Spool:
        """The open fragment."""
        return self._store.spool

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
        self._replicator.retire()
        await self._idle.wait()
        with self._faults.contained("journal", f"{self._journal.name}: leaving its replicas"):
            await self._replicator.close()
        await self._store.close()

    def roll_if_due(self) -> bool:
        """Close the open fragment if its window ended.

        Returns: whether that is settled; False: appends are under way, ask again shortly.
        """
        if not self.is_idle:
            return False
        store = self._store
        if store.content_length and self._must_roll(store.end, 0):
            self._roll(store.end)
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no append is queued or under way."""
        return not self._running and self._replicator.is_idle

    # ------------------------------------------------------------------------------ the loop
    async def _run(self) -> None:
        failures = 0
        try:
            while self._queue:
                try:
                    await self._step()
                except Exception as err:  # noqa: BLE001  reported, and told to callers
                    pause_s = backoff_s(failures)
                    self._fail_step(err, pause_s)
                    await asyncio.sleep(pause_s)
                    failures += 1
                else:
                    failures = 0
        finally:
            self._running = False
            self._idle.set()

    async def _step(self) -> None:
        """Take what is ready of the queue, or do what its head waits for."""
        store = self._store
        if self._replicator.has_peers:
            await self._gather()
        self._end = store.end
        self._registers = store.registers
        self._in_hand = []
        batch = self._plan()
        if batch:
            await self._commit(batch)
        elif self._queue:
            await self._advance(self._queue[0])

    def _fail_step(self, error: Exception, pause_s: float) -> None:
        """Nobody foresaw `error`: end the appends that met it, and go on with the next ones.

        Replicas forget what they were sent, and are synced anew.
        """
        journal = self._journal.name
        if self._queue and self._queue[0] not in self._in_hand:
            self._in_hand.append(self._queue[0])
        self._faults.report("journal", f"{journal}: appends go on in {pause_s:g} s", error)
        kind = type(error).__name__
        text = f"{journal}: unforeseen {kind}: {error}; whether it was appended is unknown"
        for pending in self._in_hand:
            pending.fail(RpcFailed(Code.INTERNAL, text))
        self._in_hand = []
        while self._queue and self._queue[0].done.done():
            self._queue.popleft()
        self._replicator.reset("an append failed")
        self._store.forget_drafts()

    async def _gather(self) -> None:
        """Let appends gather while replicas have enough to do."""
        if self._replicator.is_old:
            await self._replicator.renew()
        while self._replicator.holds_back(self._waiting_bytes()):
            await self._replicator.gather()
        with contextlib.suppress(RpcFailed):  # then the next append finds out, and syncs
            await self._replicator.room()

    def _waiting_bytes(self) -> int:
        """Of appends that would go together."""
        length = 0
        for pending in itertools.islice(self._queue, _BATCH_APPENDS_MAX):
            length += _BATCH_BYTES_MAX if pending.stream is not None else pending.length
            if length >= _BATCH_BYTES_MAX:
                break
        return length

    def _plan(self) -> list[Pending]:
        """Walk appends from the queue's head; those ready to be written leave the queue."""
        batch = self._in_hand
        planned = 0
        has_peers = self._replicator.has_peers
        bytes_max = _REPLICATED_BATCH_BYTES_MAX if has_peers else _BATCH_BYTES_MAX
        while self._queue and len(batch) < _BATCH_APPENDS_MAX and planned < bytes_max:
            pending = self._queue[0]
            if pending.done.done():  # the caller has gone before its turn
                self._queue.popleft()
                continue
            effect = pending.next_effect or pending.machine.start()
            effect = self._walk(pending, effect, batch)
            pending.next_effect = effect
            if isinstance(effect, events.Commit):
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

    def _walk(self, pending: Pending, effect: events.Effect, batch: list[Pending]) -> events.Effect:
        """Carry out effects for as long as none of them has to wait."""
        machine = pending.machine
        step = machine.step
        while True:
            event = self._immediate(pending, effect, batch)
            if event is None:
                return effect
            following = step(event)
            if following is None:
                following = step(events.ContentEnd())
            assert following is not None
            effect = following

    def _immediate(  # noqa: PLR0911  one per effect
        self, pending: Pending, effect: events.Effect, batch: list[Pending]
    ) -> events.Event | None:
        """The event that answers `effect`, or None if it needs waiting or ends the append."""
        journal = self._journal
        match effect:
            case events.Resolve():
                return journal.resolve(effect.min_revision)
            case events.Acquire():
                return events.Acquired()
            case events.Sync(roll_to):
                # Anything else takes time, even if it is only to wait for who had the spool before.
                return synced.Synced() if roll_to == 0 and self._replicator.is_synced else None
            case events.CheckAssignments():
                return events.AssignmentsFresh() if journal.is_consistent else None
            case events.CountReplicas():
                replicas = journal.count_replicas()
                if replicas.current < replicas.desired:
                    pending.is_short = self._clock.monotonic() < pending.wait_until
                    return dataclasses.replace(replicas, may_wait=pending.is_short)
                return replicas
            case events.AwaitReady():
                if not journal.is_ready:
                    return None
                begin = self._store.digester.spool.begin
                view = journal.view(begin=begin, end=self._end, registers=self._registers)
                # It may have been deleted while those before it were written.
                return events.Ready(view) if view is not None else synced.Invalidated()
            case events.Stream(roll_to):
                return self._begin_stream(pending, roll_to, batch)
            case _:
                return None

    def _begin_stream(
        self, pending: Pending, roll_to: int, batch: list[Pending]
    ) -> events.Event | None:
        if not self._replicator.is_synced:
            # While those before it were written, replicas failed or changed. Nothing may go on as
            # if they had not, least of all as if there were none.
            return synced.Invalidated()
        if self._must_roll(self._end, roll_to):
            if batch:
                return None
            self._roll(self._end)
        if pending.stream is not None:
            return None
        return events.Content(pending.length) if pending.length else events.ContentEnd()

    def _must_roll(self, end: int, roll_to: int) -> bool:
        spec = self._journal.spec
        spool = self._store.digester.spool
        if spec is None:
            return False
        if spool.begin == end:
            # An empty spool takes on the spec's codec; anything else of it is as it would be anew.
            return spool.codec is not spec.fragment.codec
        return rules.must_roll(
            spec,
            begin=spool.begin,
            end=end,
            first_append_at=spool.first_append_at,  # none while all of it is under way
            now=self._clock.now(),
            roll_to=roll_to,
        )

    def _is_terminal(self, pending: Pending, effect: events.Effect) -> bool:
        """Answer an append that ended without content. Returns: whether it did."""
        match effect:
            case events.Fail(status, text):
                pending.finish(Outcome(status, registers=self._registers, store_health_error=text))
            case events.Rollback(text, status):
                self._journal.on_rollback()
                if text:
                    pending.fail(RpcFailed(Code.UNKNOWN, text))
                else:
                    pending.finish(Outcome(status, registers=self._registers))
            case events.Proxy():
                pending.finish(_not_ours())
            case _:
                return False
        return True

    async def _advance(self, pending: Pending) -> None:
        """Do the slow thing that the queue's head waits for, unless we are to close."""
        if isinstance(pending.next_effect, events.Stream):
            self._in_hand.append(self._queue.popleft())
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
            case events.Resolve(min_revision):
                if pending.is_short:
                    await self._wait_for_more(pending, min_revision)
                else:
                    await journal.wait_revision(min_revision)
            case events.Sync(roll_to, registers):
                pending.next_effect = machine.step(await self._sync(pending, roll_to, registers))
            case events.CheckAssignments():
                revision = await journal.update_assignments()
                pending.next_effect = machine.step(events.Written(revision))
            case events.WriteSuspend(suspend):
                revision = await journal.write_suspend(suspend)
                pending.next_effect = machine.step(events.Written(revision))
            case events.AwaitReady():
                problem = await journal.wait_ready()
                # Much may have changed while it waited: it starts over, and finds it ready.
                pending.next_effect = machine.step(
                    events.Unhealthy(problem) if problem else synced.Invalidated()
                )
            case effect:
                raise RuntimeError(f"{journal.name}: append is stuck at {effect}")

    async def _wait_for_more(self, pending: Pending, revision: int) -> None:
        """Wait a bounded time for the allocator to assign more brokers."""
        pending.is_short = False
        try:
            async with asyncio.timeout(max(0.0, pending.wait_until - self._clock.monotonic())):
                await self._journal.wait_revision(revision)
        except TimeoutError:
            pending.next_effect = events.Resolve(0)

    async def _sync(
        self, pending: Pending, roll_to: int, registers: LabelSet | None
    ) -> events.Event:
        """Sync replicas; those that are away come back, or are replaced, within some time."""
        try:
            return await self._replicator.sync(
                roll_to, registers, must_roll=lambda: self._must_roll(self._store.end, 0)
            )
        except RpcFailed as err:
            left_s = pending.wait_until - self._clock.monotonic()
            if err.code is not Code.UNAVAILABLE or left_s <= 0 or pending.done.done():
                raise
            await asyncio.sleep(min(left_s, _SYNC_RETRY_S))
            return synced.Invalidated()

    # ------------------------------------------------------------------------------- content
    async def _commit(self, batch: list[Pending]) -> None:
        chunks = [chunk for pending in batch for chunk in pending.chunks]
        length = sum(pending.length for pending in batch)
        registers = batch[-1].registers
        assert registers is not None
        store, replicator = self._store, self._replicator
        has_peers = replicator.has_peers
        refusal = self._refusal()
        if has_peers and refusal is not None:
            refuse(batch, refusal)
            return
        draft = store.draft(with_digest=has_peers)
        if length:
            await store.digester.below()
            if has_peers:
                replicator.send(chunks, 0)
            try:
                await draft.write(chunks, length)
            except RpcFailed as err:
                refuse(batch, err)  # replicas forget it when their streams end, which is next
                replicator.is_synced = False  # what was planned on top of it starts over
                if isinstance(err, DiskFull):
                    self._make_room(has_peers=has_peers)
                return
        sums = [p.sum if isinstance(p.sum, bytes) else await p.sum for p in batch]
        answer = Answers(self._journal.name, batch, sums, store.spool.codec)
        appends = sum(1 for pending in batch if pending.length)
        if has_peers:
            self._propose(draft, registers, answer, appends=appends)
        else:
            self._settle(draft, registers, answer, appends=appends)

    def _settle(self, draft: Draft, registers: LabelSet, answer: Answers, *, appends: int) -> None:
        """Commit a draft that nobody else has to have."""
        refusal = self._refusal()
        if refusal is None:
            self._store.commit(draft, registers, appends=appends)
        answer(refusal)

    def _refusal(self) -> RpcFailed | None:
        """Why nothing may count that is not committed yet: others may have taken over."""
        problem = self._journal.refusal
        if not problem:
            return None
        return RpcFailed(Code.UNAVAILABLE, f"{self._journal.name}: {problem}; ask another one")

    def _propose(self, draft: Draft, registers: LabelSet, answer: Answers, *, appends: int) -> None:
        """Propose a draft; its appends are answered once all replicas have it."""
        refusal = self._refusal()
        if refusal is not None:
            self._forget()  # replicas that do not know yet would agree
            answer(refusal)
            return
        try:
            self._replicator.propose(draft, registers, answer, appends=appends)
        except RpcFailed as err:
            answer(err)

    def _forget(self) -> None:
        """Have replicas forget content that they were sent and nobody will propose."""
        store = self._store
        empty = store.draft(with_digest=True)
        with contextlib.suppress(RpcFailed):  # they have forgotten it, then
            self._replicator.propose(empty, store.registers, lambda _: None, appends=0)

    async def _stream(self, pending: Pending) -> None:
        """Take an append whose content still comes, alone: it owns the journal meanwhile."""
        store, replicator = self._store, self._replicator
        draft = store.draft(with_digest=replicator.has_peers)
        # Content was sent to these replicas, and they wait for what becomes of it.
        has_peers = replicator.has_peers
        digest = hashlib.sha1(usedforsecurity=False)
        try:
            effect = await self._receive(pending, draft, digest, has_peers=has_peers)
        except RpcFailed as err:
            effect = None
            pending.fail(err)
            if isinstance(err, DiskFull):
                self._make_room(has_peers=has_peers)
                self._journal.on_rollback()
                return
        if isinstance(effect, events.Commit):
            pending.begin, pending.length = store.end, draft.length
            pending.registers = effect.registers
            await store.digester.below()
            answer = Answers(self._journal.name, [pending], [digest.digest()], store.spool.codec)
            end = self._propose if has_peers else self._settle
            end(draft, effect.registers, answer, appends=1)
            return
        if has_peers and draft.length:
            self._forget()
        if effect is None:
            self._journal.on_rollback()
        else:
            self._is_terminal(pending, effect)

    def _make_room(self, *, has_peers: bool) -> None:
        """Close the open fragment, so that it is persisted: our disk is full.

        Appends that come later are refused until that is done, rather than to hold the fragment
        open that takes up the room.
        """
        if has_peers:
            self._forget()
        self._roll(self._store.end)
        # What was planned on top of the appends that failed starts over.
        self._replicator.is_synced = False

    async def _receive(
        self, pending: Pending, draft: Draft, digest: Digest, *, has_peers: bool
    ) -> events.Effect | None:
        """Write content as it comes.

        Returns: how the append goes on; None: its caller has gone, or failed.
        Raises: RpcFailed: the client's stream broke, or that to a replica.
        """
        machine, stream = pending.machine, pending.stream
        assert stream is not None
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
                await self._replicator.room()
                self._replicator.send([chunk], draft.length)
            await draft.write([chunk], len(chunk))
            digest.update(chunk)

    # ---------------------------------------------------------------------------------- roll
    def _roll(self, to: int) -> None:
        """Close the open fragment, here and at all replicas, and begin another at `to`."""
        self._replicator.roll(to)
        self._end = to


def _not_ours() -> Outcome:
    return Outcome(Status.NOT_JOURNAL_PRIMARY_BROKER, is_remote=True)
