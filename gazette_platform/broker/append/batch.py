"""Batches of appends of one journal: what waits, what is planned together, and what is answered.

Each append is taken through its machine for as long as it need not wait. If all of its content is
here it joins a batch, and is checked on top of the state that the appends before it leave behind.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, assert_never, final

from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.epochs import GoOn
from gazette_platform.broker.replicate.fsm import Invalidated, Synced, SyncMismatch
from gazette_platform.ops import tracing
from gazette_platform.protocol import ZERO_SUM, Fragment, LabelSet, Status, SuspendLevel
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Awaitable, Callable

    from gazette_platform.broker.replicate.replicator import Replicator
    from gazette_platform.broker.spool.journal_spool import JournalSpool
    from gazette_platform.broker.spool.port import JournalPort
    from gazette_platform.errors import GazetteError
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import CompressionCodec, JournalSpec, SuspendSpec


# A batch is bounded so that the first append in it does not wait for long.
BATCH_BYTES_MAX = 8 << 20

# With replicas several batches are on their way at once, and smaller ones keep all of them busy.
_REPLICATED_BATCH_BYTES_MAX = 4 << 20

BATCH_APPENDS_MAX = 512

# A broker that restarts, or is about to be replaced by another, is tried again at this pace.
_SYNC_RETRY_S = 0.1

_ACKNOWLEDGED = events.Acknowledged()
_CONTENT_END = events.ContentEnd()


class ContentStream(Protocol):
    """Content of an append that has not come yet."""

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
    is_remote: bool = False
    """This replica no longer serves the journal, and nothing was written: look the journal up again."""


class Caller(Protocol):
    """The receiver of an append's outcome: a future, or what answers without one."""

    def done(self) -> bool:
        """Whether it has the outcome, or has gone."""
        ...

    def set_result(self, result: Outcome, /) -> None:
        """Pass the result to it."""
        ...

    def set_exception(self, exception: GazetteError, /) -> None:
        """Pass the error of the append to it."""
        ...


@dataclass(slots=True, eq=False)
class Pending:
    """An append in the queue of its journal."""

    machine: fsm.AppendFSM
    done: Caller
    chunks: list[bytes | memoryview] = field(default_factory=list)
    length: int = 0
    sum: asyncio.Future[bytes] | bytes = b""
    """SHA-1 of the content, or a future of it."""
    stream: ContentStream | None = None
    """Where content after `chunks` comes from; None: all of it is here."""
    next_effect: events.Effect | None = None
    wait: Wait | None = None
    """What must be waited for before `next_effect` can go on."""
    begin: int = 0
    registers: LabelSet | None = None
    wait_until: float = 0.0
    """Monotonic seconds until which the append waits for replicas that are missing or away."""
    is_short: bool = False
    """Whether it waits for more replicas to be assigned."""
    went_on: GoOn | None = None
    """Where its latest claim makes it begin first."""
    headers: tracing.Headers = field(default_factory=tracing.headers)
    """Names the span of its call, if that is traced."""

    def finish(self, outcome: Outcome) -> None:
        """Answer, unless the caller has gone."""
        if not self.done.done():
            self.done.set_result(outcome)

    def fail(self, error: GazetteError) -> None:
        """End the RPC without an answer, unless the caller has gone."""
        if not self.done.done():
            self.done.set_exception(error)


def view_of(
    journal: JournalPort, begin: int, end: int, registers: LabelSet, now_s: float
) -> events.ReplicaView | None:
    """A journal as preconditions see it, with a spool of [begin, end); None: it is deleted."""
    spec = journal.spec
    if spec is None:
        return None
    index = journal.index.summary
    return events.ReplicaView(
        spec,
        begin,
        end,
        index.begin,
        index.end,
        index.mod_time,
        registers,
        now_s,
        journal.is_released,
    )


def content_sum(chunks: list[bytes | memoryview]) -> bytes:
    """SHA-1 of the concatenation of chunks; all zero if there are none."""
    if not chunks:
        return ZERO_SUM
    digest = hashlib.sha1(chunks[0], usedforsecurity=False)
    for chunk in chunks[1:]:
        digest.update(chunk)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that an effect has to wait for.

    Args:
        work: waits, and returns the effect's event; None: look at `next_effect` again.
    """

    work: Callable[[], Awaitable[events.Event | None]]
    is_content: bool = False
    """Whether it takes content of a stream. That is finished even if the journal leaves this broker."""


@final
class Planner:
    """Plans batches of one journal: appends that are to be written by one call.

    Each append is checked on top of the state that those before it will leave behind. A batch ends at
    the first append that needs something slow: a roll, etcd, a store, content that has not come yet.

    Args:
        journal: what the appends need of the journal's replica.
        spool: takes their content.
        replicator: keeps the other replicas in step.
        clock: for windows and time-outs.
        stream: takes the content of an append as it comes, and commits it.
    """

    def __init__(
        self,
        journal: JournalPort,
        *,
        spool: JournalSpool,
        replicator: Replicator,
        clock: Clock,
        stream: Callable[[Pending], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._spool = spool
        self._replicator = replicator
        self._clock = clock
        self._stream = stream
        # The batch being planned, and the state that it will leave behind.
        self._batch: list[Pending] = []
        self._planned = 0  # bytes
        self._end = 0
        self._registers = LabelSet()
        # Revision of etcd at which an append went all the way from looking the journal up to finding
        # it ready. As long as etcd is at that revision, the appends after it need not look again.
        self._known_at = -1
        self._resolved_at = -1  # the revision at which this plan looked the journal up
        # The journal as this plan found it; None: it was not looked at yet, or has changed since.
        self._found: events.ReplicaView | None = None

    def plan(self, queue: deque[Pending], batch: list[Pending]) -> None:
        """Take appends from the head of `queue`; those that are ready to be written join `batch`."""
        # From the staged end: appends that were proposed and not yet acknowledged come before these.
        self._end, self._registers = self._spool.end, self._spool.registers
        self._found = None
        self._resolved_at = -1
        self._planned = 0
        self._batch = batch
        bytes_max = _REPLICATED_BATCH_BYTES_MAX if self._replicator.has_peers else BATCH_BYTES_MAX
        while queue and len(batch) < BATCH_APPENDS_MAX and self._planned < bytes_max:
            pending = queue[0]
            # A caller may have gone before its turn.
            if not (pending.done.done() or self._repeats(pending) or self._walk(pending)):
                break
            queue.popleft()

    def rest(self) -> None:
        """Let go of the batch that was planned last."""
        self._batch = []

    def forget(self) -> None:
        """Check everything again: the journal is about to leave this broker."""
        self._known_at = -1
        self._found = None

    def _first_effect(self, pending: Pending) -> events.Effect:
        machine, found, journal = pending.machine, self._found, self._journal
        # A caller that has seen a later revision than we have may know of a route in which we are not primary.
        if machine.request.min_revision > journal.revision:
            return machine.start()
        if found is not None:
            found = self._found = self._on_top(found)
            return machine.join(found)
        # All that the way to READY looks at changes only with etcd's revision, except replicas that
        # fail, and the store's listing and health. Those are asked for each plan.
        is_known = journal.revision == self._known_at and self._replicator.is_synced
        if is_known and journal.is_ready:
            found = self._found = self._view()
        return machine.join(found) if found is not None else machine.start()

    def _view(self) -> events.ReplicaView | None:
        begin, now_s = self._spool.digester.spool.begin, self._clock.unix_s()
        return view_of(self._journal, begin, self._end, self._registers, now_s)

    def _on_top(self, found: events.ReplicaView) -> events.ReplicaView:
        """The journal as it was found, with what is planned so far."""
        return events.ReplicaView(
            found.spec,
            found.spool_begin,
            self._end,
            found.index_begin,
            found.index_end,
            found.index_mod_time,
            self._registers,
            found.now_s,
            found.is_released,
        )

    def _repeats(self, pending: Pending) -> bool:
        """Let an append join the batch if it asks for what the one before it did, and so goes the same way.

        What the checks of `fsm.preconditions` rest on is the same for both, except the end, which such a
        request does not name. Whether the fragment is to close first is asked for each.

        Returns: whether it has joined.
        """
        found, batch = self._found, self._batch
        if found is None or not batch or pending.next_effect is not None:
            return False
        # The first fragment of a journal closes before its second append (see `preconditions`):
        # there the end decides, and a repeat does not look at it.
        if pending.stream is not None or found.spool_begin == found.index_begin:
            return False
        if self._must_roll(found.spec, self._end, now_s=found.now_s):
            return False
        if not pending.machine.repeat(batch[-1].machine, pending.length):
            return False
        self._join(pending, self._registers)
        return True

    def _join(self, pending: Pending, registers: LabelSet) -> None:
        """Add an append to the batch."""
        pending.begin, pending.registers = self._end, registers
        self._end += pending.length
        self._registers = registers
        self._planned += pending.length
        self._batch.append(pending)

    def _walk(self, pending: Pending) -> bool:
        """Perform effects until the append joins the batch, is answered, or has to wait.

        Returns: whether it has left the queue; False: it waits for `pending.wait`.
        """
        step = pending.machine.step
        effect = pending.next_effect or self._first_effect(pending)
        while True:
            event = self.perform(pending, effect)
            if event is None:
                pending.next_effect = None
                return True
            if isinstance(event, Wait):
                pending.next_effect, pending.wait = effect, event
                return False
            following = step(event) or step(_CONTENT_END)
            assert following is not None
            effect = following

    def perform(  # noqa: C901, PLR0911, PLR0912  one per effect
        self, pending: Pending, effect: events.Effect
    ) -> events.Event | Wait | None:
        """Carry out an effect. Returns: its event; None: the append has joined the batch, or ended."""
        journal, replicator = self._journal, self._replicator
        match effect:
            case events.TakeContent(roll_to):
                return self._begin_stream(pending, roll_to)
            case events.Commit(registers):
                self._join(pending, registers)
            case events.Resolve(min_revision):
                if min_revision > journal.revision:
                    return Wait(lambda: self._wait_revision(pending, min_revision))
                self._resolved_at = journal.revision
                status, is_local = journal.locate()
                return events.Resolved(status, is_local, journal.spec)
            case events.Sync(roll_to, registers):
                if roll_to == 0 and registers is None and replicator.is_synced:
                    return Synced()
                # Others may hold the journal once it is synced, so no later append may skip that check.
                self._known_at = -1
                # Also if the only wait is for whoever had the spool before.
                return Wait(lambda: self._sync(pending, roll_to, registers))
            case events.CheckAssignments():
                if journal.is_claimed(replicator.holders):
                    if not self._spool.is_shared:
                        self._spool.share()
                    return events.AssignmentsFresh()
                return Wait(lambda: self._claim(pending))
            case events.CountReplicas():
                current, desired = journal.replica_counts
                if current < desired:
                    pending.is_short = self._clock.monotonic() < pending.wait_until
                return events.Replicas(current, desired, journal.revision, pending.is_short)
            case events.AwaitReady():
                return self._found_ready() if journal.is_ready else Wait(self._wait_ready)
            case events.WriteSuspend(suspend):
                return Wait(lambda: self._suspend(pending, suspend))
            case events.Fail() | events.Rollback():
                # Not before the appends have ended that it was checked on top of: they may still
                # fail, and then this one has to be checked again.
                if self._batch:
                    return _AFTER_BATCH
                if not replicator.is_idle:
                    return Wait(lambda: self._settled(pending))
                self.refuse(pending, effect)
            case events.Forward():
                pending.finish(not_ours())
            case events.Finish():
                raise RuntimeError(f"{journal.name}: an append ended without a commit")
            case _:
                assert_never(effect)
        return None

    def refuse(self, pending: Pending, effect: events.Fail | events.Rollback) -> None:
        """Answer an append without appending.

        The appends that it was checked on top of are committed by then, because a client may act on
        the registers that it gets.
        """
        registers = self._registers
        match effect:
            case events.Fail(status, text):
                pending.finish(Outcome(status, registers=registers, store_health_error=text))
            case events.Rollback("", status):
                self._journal.on_rollback()
                pending.finish(Outcome(status, registers=registers))
            case events.Rollback(text):
                self._journal.on_rollback()
                pending.fail(RpcFailed(Code.UNKNOWN, text))

    def _found_ready(self) -> events.Event:
        view = self._view()
        # Only if nothing changed in etcd on the way here may the appends after this one skip it.
        if self._resolved_at == self._journal.revision:
            self._known_at, self._found = self._resolved_at, view
        # The journal may have been deleted while the appends before it were written.
        return events.Ready(view) if view is not None else Invalidated()

    def _begin_stream(self, pending: Pending, roll_to: int) -> events.Event | Wait:
        if not self._replicator.is_synced:
            # Replicas failed or changed while the appends before it were written. To go on would
            # be wrong, most of all if the journal seems to have no other replicas now.
            return Invalidated()
        view = self._found or self._view()
        if view is not None and self._must_roll(
            view.spec, self._end, now_s=view.now_s, roll_to=roll_to
        ):
            if self._batch:
                return _AFTER_BATCH
            self.roll(self._end)
        if pending.stream is not None:
            return Wait(lambda: self._take(pending), is_content=True)
        return events.Content(pending.length) if pending.length else _CONTENT_END

    async def _take(self, pending: Pending) -> None:
        await self._stream(pending)

    @property
    def is_due(self) -> bool:
        """Whether the open fragment is to close before the next append, whatever that brings."""
        return self._must_roll(self._journal.spec, self._spool.end, now_s=self._clock.unix_s())

    def _must_roll(
        self, spec: JournalSpec | None, end: int, *, now_s: float, roll_to: int = 0
    ) -> bool:
        """Whether the open fragment closes before an append at `end`, which may ask for `roll_to`."""
        opened = self._spool.digester.spool
        if spec is None:
            return False
        if opened.begin == end:
            # Rolling an empty spool serves to take up the spec's codec; nothing else would change.
            return opened.codec is not spec.fragment.codec
        return fsm.must_roll(
            spec,
            begin=opened.begin,
            end=end,
            first_append_at=opened.first_append_at,  # None while all of the content is under way
            now_s=now_s,
            roll_to=roll_to,
        )

    def roll(self, to: int) -> None:
        """Close the open fragment, here and at all replicas, and begin another at `to`."""
        self._replicator.roll(to)
        self._end = to
        self._found = None

    # --------------------------------------------------------------------- what takes time
    async def _wait_revision(self, pending: Pending, revision: int) -> None:
        """Wait for a newer revision of etcd; for a bounded time if more brokers must be assigned."""
        if not pending.is_short:
            await self._journal.wait_revision(revision)
            return
        pending.is_short = False
        try:
            async with asyncio.timeout(max(0.0, pending.wait_until - self._clock.monotonic())):
                await self._journal.wait_revision(revision)
        except TimeoutError:
            # One more look, without a wait: it answers with the status of what is missing still.
            pending.next_effect = events.Resolve(0)

    async def _sync(
        self, pending: Pending, roll_to: int, registers: LabelSet | None
    ) -> events.Event:
        """Sync replicas. Those that are away have some time to come back or to be replaced."""
        try:
            return await self._replicator.sync(roll_to, registers, must_roll=lambda: self.is_due)
        except RpcFailed as err:
            await self._wait_unless_late(pending, err)
            return Invalidated()

    async def _settled(self, pending: Pending) -> None:
        """Wait until the appends that a refusal rests on are settled; check again if they failed."""
        await self._replicator.settled()
        if not self._replicator.is_synced:
            pending.next_effect = pending.machine.start_over()

    async def _claim(self, pending: Pending) -> events.Event:
        """Record in etcd who holds the journal. Holders that are away have some time to come back."""
        is_reset, spool = pending.machine.request.resets_head, self._spool
        # A reset continues after all that is stored, so the store has to be listed first.
        if is_reset:
            problem = await self._journal.wait_ready()
            if problem:
                return events.Unhealthy(problem)
            head = self._known_head()
            if spool.end < head:
                # Roll there before the claim, so that no content which is given up counts as the
                # journal's after it.
                return SyncMismatch(head, await self._journal.released_registers(head))
        # A replica failed, or the route changed, while the store or etcd was waited for. Holders
        # must be the brokers that are in step now, and no others.
        if not self._replicator.is_synced:
            return Invalidated()
        try:
            found = await self._journal.claim(
                self._replicator.holders, end=spool.end, is_reset=is_reset
            )
            # We were sent there before, and have arrived: another roll changes nothing. Replicas whose
            # registers differ at that offset made an append sync for ever.
            if isinstance(found, GoOn) and found == pending.went_on and found.head == spool.end:
                raise NotNow(
                    f"{self._journal.name}: a replica has other registers at {found.head} than etcd names"
                )
        except RpcFailed as err:
            await self._wait_unless_late(pending, err)
            return Invalidated()
        if isinstance(found, GoOn):
            pending.went_on = found
            return SyncMismatch(found.head, found.registers)
        return events.Written(found)

    def _known_head(self) -> int:
        """The end of all that is stored, or the head that the spec notes if that is greater."""
        spec = self._journal.spec
        noted = spec.suspend.offset if spec is not None and spec.suspend is not None else 0
        return max(self._journal.index.summary.end, noted)

    async def _wait_unless_late(self, pending: Pending, err: RpcFailed) -> None:
        """Wait a moment for what may pass. Raises: RpcFailed: `err`: the append has waited enough."""
        left_s = pending.wait_until - self._clock.monotonic()
        # Other codes do not pass by themselves: their reason helps the client more than a wait.
        if err.code is not Code.UNAVAILABLE or left_s <= 0 or pending.done.done():
            raise err
        await asyncio.sleep(min(left_s, _SYNC_RETRY_S))

    async def _wait_ready(self) -> events.Event:
        problem = await self._journal.wait_ready()
        # Much may have changed during the wait: the append starts over, and finds the journal ready.
        return events.Unhealthy(problem) if problem else Invalidated()

    async def _suspend(self, pending: Pending, suspend: SuspendSpec) -> events.Event | None:
        await self._replicator.settled()
        is_own = suspend.level is not SuspendLevel.NONE  # suspended at the end of our spool
        # Appends that were under way have failed, so no content ends at that offset. Whoever
        # resumed the journal there would leave a hole.
        if is_own and suspend.offset > self._spool.settled_end:
            pending.next_effect = pending.machine.start_over()
            return None
        return events.Written(await self._journal.write_suspend(suspend))


async def _nothing() -> None:
    """Wait for nothing: the append goes on once the batch before it is written."""


_AFTER_BATCH = Wait(_nothing)


@final
class Answers:
    """Answers a batch when it is called.

    Args:
        journal: its name.
        batch: the appends.
        sums: SHA-1 of each append.
        codec: of the fragment that they are in.
    """

    __slots__ = ("_batch", "_codec", "_journal", "_sums")

    def __init__(
        self, journal: str, batch: list[Pending], sums: list[bytes], codec: CompressionCodec
    ) -> None:
        self._journal = journal
        self._batch = batch
        self._sums = sums
        self._codec = codec

    @property
    def headers(self) -> tracing.Headers:
        """Names the span of the first append that has one."""
        if not tracing.is_on():
            return ()
        return next((pending.headers for pending in self._batch if pending.headers), ())

    def __call__(self, failure: RpcFailed | None) -> None:
        """All replicas have the batch; or its outcome is unknown, and `failure` says why."""
        if failure is not None:
            refuse(self._batch, failure)
            return
        for pending, total in zip(self._batch, self._sums, strict=True):
            finish = pending.machine.step(_ACKNOWLEDGED)
            assert isinstance(finish, events.Finish)
            begin, length = pending.begin, pending.length
            digest = total if length else ZERO_SUM
            commit = Fragment(self._journal, begin, begin + length, digest, self._codec)
            pending.finish(Outcome(finish.status, commit, pending.registers))


def refuse(batch: list[Pending], failure: RpcFailed) -> None:
    """Fail every append of a batch."""
    for pending in batch:
        pending.fail(failure)


def not_ours() -> Outcome:
    """The outcome of an append to a journal whose primary this broker is not, or no longer."""
    return Outcome(Status.NOT_JOURNAL_PRIMARY_BROKER, is_remote=True)
