"""Keeps the replicas of one journal at the end of its primary's spool.

The appender asks for a `sync` before an append, sends content and proposals, and learns of each
proposal that all replicas have. The first sync builds a pipeline to the replicas. It serves all
appends under the same route, and is closed after some idle time, so that ten thousand idle journals
hold no streams. A journal of one replica has no pipeline, and its syncs only look at a flag.

If a replica fails, the outcome of what was proposed is unknown. The content stays staged in the
spool, since some replicas may have it. The next sync that succeeds makes it part of the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, final

from gazette_platform.broker.epochs import Holder
from gazette_platform.broker.replicate.fsm import (
    Invalidated,
    Synced,
    SyncMismatch,
    WrongRoute,
)
from gazette_platform.broker.replicate.pipeline import Pipeline, encode_proposal
from gazette_platform.ops.tasks import Interrupt, Interrupted
from gazette_platform.protocol import ZERO_SUM, Fragment
from gazette_platform.protocol.content import encode_replicate_content
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.broker.replicate.fsm import SyncOutcome, SyncResult
    from gazette_platform.broker.spool.journal_spool import Draft, JournalSpool
    from gazette_platform.broker.spool.port import JournalPort
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import LabelSet, ProcessId, Route


# Proposals that may be under way at once. While there is one, small appends wait and go together with
# the next, which costs less than it takes. Larger appends do not wait, and keep all replicas busy.
_UNSETTLED_MAX = 3
_SMALL_BYTES_MAX = 256 << 10

# Seconds without an append after which the streams to replicas are closed.
_IDLE_S = 30.0

# Seconds that a peer has to answer a sync. It may have to wait for its disk, or until the stream of
# a former primary ends.
_SYNC_TIMEOUT_S = 20.0

# Seconds that proposals under way, and replicas that take nothing, still have once a broker that they
# wait for has left the route. If it was drained in order it answers at once; otherwise it is dead.
_LEFT_S = 1.0

# Seconds after which replicas are given up that do not answer, or take nothing while there is no room
# for more. Their disks may be full, and which replica is to blame is unknown.
_STALL_S = 60.0

# Age in seconds at which streams are reopened, between two batches. It is far below the time after
# which the tokens expire that they were opened with.
_AGE_S_MAX = 600.0

# Content that goes into one message; a receiver takes no more than 4 MiB.
_MESSAGE_BYTES_MAX = 1 << 20


@final
class Replicator:
    """The primary's view of its replicas.

    Attributes:
        is_synced: whether every replica of the present route is where our spool is.
        has_peers: whether there is a pipeline, so that content must be proposed.
    """

    def __init__(
        self, journal: JournalPort, spool: JournalSpool, *, tasks: TaskGroup, clock: Clock
    ) -> None:
        self._journal = journal
        self._spool = spool
        self._tasks = tasks
        self._clock = clock
        self.is_synced = False
        self.has_peers = False
        self._owns_spool = False
        self._pipeline: Pipeline | None = None
        self._failure: RpcFailed | None = None  # of the last pipeline, if there is none now
        self._settled = 0
        # Who was proposed the staged content, while its outcome is unknown.
        self._doubtful: frozenset[ProcessId] = frozenset()
        # Whether replicas were sent content without a decision about it yet.
        self._is_open = False
        # For each proposal under way, the receiver of its outcome.
        self._under_way: deque[Callable[[RpcFailed | None], None]] = deque()
        self._moved = asyncio.Event()
        self._once_moved: Callable[[], None] | None = None
        self._interrupt: Interrupt | None = None
        self._syncing: Route | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._used_at = 0.0
        self._moved_at = 0.0
        self._opened_at = 0.0

    @property
    def is_old(self) -> bool:
        """Whether the streams to replicas should be reopened; see `renew`."""
        return self.has_peers and self._clock.monotonic() - self._opened_at > _AGE_S_MAX

    @property
    def is_idle(self) -> bool:
        """Whether no proposal is under way."""
        return not self._under_way

    def holds_back(self, length: int) -> bool:
        """Whether waiting appends of `length` bytes together should wait for more; see `answered`."""
        count = len(self._under_way)
        return count >= _UNSETTLED_MAX or (count > 0 and length < _SMALL_BYTES_MAX)

    @property
    def holders(self) -> frozenset[Holder] | None:
        """Who has all that is acknowledged, once replicas are synced.

        Returns: None if one of them does not keep it beyond its process, as brokers of
            Gazette do not.
        """
        pipeline = self._pipeline
        peers = [] if pipeline is None else zip(pipeline.peers, pipeline.tenures, strict=True)
        found = [(self._journal.process_id, self._spool.tenure), *peers]
        # All or none. Etcd may name as holder whoever has all that was acknowledged; with one
        # broker that forgets, the record would promise more than its holders can prove.
        holders = frozenset(Holder(tenure, process) for process, tenure in found if tenure)
        return holders if len(holders) == len(found) else None

    @property
    def owns_spool(self) -> bool:
        """Whether we may write to the spool. Once we may, that does not change."""
        return self._owns_spool

    # ------------------------------------------------------------------------------------ sync
    async def sync(
        self, roll_to: int, registers: LabelSet | None, *, must_roll: Callable[[], bool]
    ) -> SyncResult:
        """Bring all replicas to the same fragment.

        Args:
            roll_to: journal offset to begin a fragment at; 0: where the spool ends.
            registers: to adopt with `roll_to`; None: keep ours.
            must_roll: whether the open fragment is due to close.

        Returns: Synced, SyncMismatch, WrongRoute or Invalidated.
        Raises: RpcFailed: a replica failed, or never accepts our registers.
        Cancellation: safe; the pipeline is closed.
        """
        interrupt = self._interrupt = Interrupt()
        self._syncing = route = self._journal.route
        try:
            return await interrupt.wait(self._sync(route, roll_to, registers, must_roll))
        except Interrupted:
            self._drop_pipeline()
            return Invalidated()
        # Also if it is cancelled: an answer may be on its way, and the next sync would take it for
        # its own.
        except BaseException:
            self._drop_pipeline()
            raise
        finally:
            self._interrupt = self._syncing = None

    async def _sync(
        self,
        route: Route,
        roll_to: int,
        registers: LabelSet | None,
        must_roll: Callable[[], bool],
    ) -> SyncResult:
        journal, spool = self._journal, self._spool
        # What is under way is answered by those that it was proposed to, before streams are closed
        # for another route.
        await self.settled()
        if route.primary_id != journal.process_id:
            return Invalidated()
        pipeline = self._pipeline
        if pipeline is not None and not (pipeline.is_usable and pipeline.route.equivalent(route)):
            await self._close_pipeline()
        if not self._owns_spool:
            # Until its stream ends the former primary writes to this spool. What it commits last is
            # acknowledged, so it has to be here before we say where we are.
            await spool.lock.acquire()
            self._owns_spool = True
            spool.serve_as_primary()
        # Before replicas are asked: a claim may name us as a holder only if what we hold survives
        # this process.
        await spool.begin_tenure()
        has_peers = len(route.members) > 1
        if has_peers and not spool.is_settled:
            event = await self._ask_of_staged(route)
            if event is not None:
                return event
        if roll_to or registers is not None or must_roll():
            spool.roll(roll_to or spool.end, registers=registers)
        if has_peers:
            event = await self._propose_to_all(route)
            if event is not None:
                return event
        spool.settle_all()
        spool.confirm()
        self._doubtful = frozenset()
        self.is_synced = True
        self._touch()
        return Synced()

    async def _ask_of_staged(self, route: Route) -> SyncResult | None:
        """Ask all replicas how much they have, because content is staged whose outcome is unknown.

        If it were proposed as it is, replicas that lack it would move to its end. If another one then
        failed, and we left, no broker would have the content, and appends would continue after it. So
        replicas are moved only once all have answered. If it turns out that none of them has it, it
        is forgotten. Where one has it, or is not there to be asked and may have it, the content keeps
        its offsets: readers of that replica may have seen it.

        Returns: None: the content is to be proposed. Invalidated: it is forgotten, and whatever the sync
            was asked for rested on it.
        """
        spool = self._spool
        await spool.catch_up()
        settled, registers = spool.settled_proposal()
        outcome = await self._answers(route, settled, registers)
        if outcome.read_revision:
            return WrongRoute(outcome.read_revision)
        if outcome.roll_to > settled.end or not self._doubtful <= set(route.members):
            return None
        spool.drop_staged()
        self._doubtful = frozenset()
        return Invalidated()

    async def _propose_to_all(self, route: Route) -> SyncResult | None:
        """Propose the open fragment to all. Returns: what is wrong with it; None: all have it."""
        spool = self._spool
        await spool.catch_up()
        proposal = spool.proposal()
        outcome = await self._answers(route, proposal, spool.registers)
        if outcome.read_revision:
            return WrongRoute(outcome.read_revision)
        if outcome.unlike and outcome.roll_to == proposal.end == proposal.begin:
            # Both fragments are empty and begin at one offset, so registers are all that can differ. Another roll
            # changes nothing, and the append would sync for ever.
            who = ", ".join(peer.name for peer in outcome.unlike)
            raise NotNow(
                f"{self._journal.name}: replica {who} has other registers than the primary at {proposal.end}, where both "
                "begin a fragment (drain that broker, so that another replica takes its place; restart it if it is "
                "Gazette's)"
            )
        if outcome.roll_to:
            return SyncMismatch(outcome.roll_to, outcome.registers)
        return None

    async def _answers(self, route: Route, proposal: Fragment, registers: LabelSet) -> SyncOutcome:
        """What all replicas answer to a proposal. If one knows another route, the pipeline is closed."""
        pipeline = self._pipeline
        if pipeline is None:
            pipeline = self._pipeline = self._open(route)
        outcome = await pipeline.sync(proposal, registers, timeout_s=_SYNC_TIMEOUT_S)
        if outcome.read_revision:
            await self._close_pipeline()
        return outcome

    def _open(self, route: Route) -> Pipeline:
        pipeline = Pipeline(
            route,
            self._journal.process_id,
            self._journal.etcd_header,
            open_stream=self._journal.open_stream,
            tasks=self._tasks,
            stall_s=_STALL_S,
            # A pipeline that is being closed may still call, and is not its successor.
            on_settled=lambda count: self._on_settled(pipeline, count),
            on_broken=lambda failure: self._on_broken(pipeline, failure),
        )
        self._settled = 0
        self._failure = None
        self._is_open = False
        self._opened_at = self._clock.monotonic()
        self.has_peers = True
        return pipeline

    # --------------------------------------------------------------------------------- content
    async def answered(self) -> None:
        """Wait until a proposal is answered, or replicas failed. Cancellation: safe."""
        self._moved.clear()
        await self._moved.wait()

    def once_answered(self, call: Callable[[], None]) -> None:
        """Call `call` once, soon after a proposal under way is answered, or replicas failed."""
        self._once_moved = call

    @property
    def takes_at_once(self) -> bool:
        """Whether content may be sent and proposed without a wait."""
        pipeline = self._pipeline
        return pipeline is not None and pipeline.has_room and not self.is_old

    async def room(self) -> None:
        """Wait while much content waits for one of the replicas, which is taking some of it.

        Raises: RpcFailed: the pipeline broke, now or before. Cancellation: safe.
        """
        if self._pipeline is not None:
            await self._pipeline.room()
        elif self._failure is not None:
            raise self._failure  # at once: the content of a stream may never end

    def send(self, chunks: Sequence[bytes | memoryview], delta: int) -> None:
        """Send content to all replicas.

        Args:
            chunks: the content.
            delta: bytes sent before it since the last commit.
        """
        pipeline = self._pipeline
        if pipeline is None:
            return  # the pipeline broke, and the proposal will meet the failure
        self._is_open = True
        pieces: list[bytes | memoryview] = []
        length = 0
        for chunk in chunks:
            for at in range(0, len(chunk), _MESSAGE_BYTES_MAX):
                # Small chunks of a batch share a message; large ones are cut by views, without a
                # copy.
                piece = chunk
                if len(chunk) > _MESSAGE_BYTES_MAX:
                    piece = memoryview(chunk)[at : at + _MESSAGE_BYTES_MAX]
                if length and length + len(piece) > _MESSAGE_BYTES_MAX:
                    pipeline.send(encode_replicate_content(pieces, delta))
                    delta += length
                    pieces, length = [], 0
                pieces.append(piece)
                length += len(piece)
        if length:
            pipeline.send(encode_replicate_content(pieces, delta))

    def propose(
        self,
        draft: Draft,
        registers: LabelSet,
        done: Callable[[RpcFailed | None], None],
        *,
        appends: int,
    ) -> None:
        """Propose a draft whose content was sent; it is staged until all replicas have it.

        Args:
            draft: the content, written to our spool.
            registers: of the journal with it.
            done: called with None once it is settled, or with why its outcome is unknown.
            appends: number of appends in it.

        Raises: RpcFailed: the pipeline is broken; nothing was proposed.
        """
        pipeline = self._pipeline
        if pipeline is None:
            raise RpcFailed(Code.UNAVAILABLE, f"{self._journal.name}: its replicas have changed")
        raw = encode_proposal(draft.fragment(), registers, acknowledge=True)
        # Before anything is staged: if the pipeline is broken this raises, and the draft can still
        # be dropped.
        pipeline.ask(raw)
        self._is_open = False
        self._spool.stage(draft, registers, appends=appends)
        self._used_at = self._clock.monotonic()
        if not self._under_way:
            self._moved_at = self._used_at
        self._under_way.append(done)

    def roll(self, to: int) -> None:
        """Close the open fragment here and at all replicas, and begin another at `to`."""
        spool = self._spool
        spool.roll(to)
        pipeline = self._pipeline
        if pipeline is not None and pipeline.is_usable:
            empty = Fragment(self._journal.name, to, to, ZERO_SUM, spool.spool.codec)
            pipeline.send(encode_proposal(empty, spool.registers, acknowledge=False))

    def _on_settled(self, pipeline: Pipeline, count: int) -> None:
        if self._pipeline is not pipeline:
            return
        while self._settled < count:
            self._settled += 1
            # Readers first: a client that has its answer may read what it appended.
            self._spool.settle()
            self._under_way.popleft()(None)
        self._moved_at = self._clock.monotonic()
        self._has_moved()

    def _on_broken(self, pipeline: Pipeline, failure: RpcFailed) -> None:
        if self._pipeline is pipeline:
            self._pipeline = None
            self._doubt(pipeline)
            self._fail(failure)

    def _doubt(self, pipeline: Pipeline) -> None:
        if not self._spool.is_settled:
            # They add up over streams that break one after the other. A broker that has left the
            # route since may have shown the content to its readers.
            self._doubtful |= set(pipeline.route.members)

    def _fail(self, failure: RpcFailed) -> None:
        self._failure = failure
        self.is_synced = self.has_peers = False
        under_way, self._under_way = self._under_way, deque()
        for done in under_way:
            done(failure)
        self._has_moved()

    def _has_moved(self) -> None:
        self._moved.set()
        call, self._once_moved = self._once_moved, None
        if call is not None:
            asyncio.get_running_loop().call_soon(call)

    async def settled(self) -> None:
        """Wait until nothing is under way. Cancellation: safe."""
        while self._under_way:
            self._moved.clear()
            await self._moved.wait()

    # ------------------------------------------------------------------------------------ life
    def on_change(self) -> None:
        """The journal's route may have changed."""
        route = self._journal.route
        if self._syncing is not None and not route.equivalent(self._syncing):
            assert self._interrupt is not None
            self._interrupt.fire()
        pipeline = self._pipeline
        if pipeline is None:
            self.is_synced = self.is_synced and len(route.members) == 1
            self.is_synced = self.is_synced and route.primary_id == self._journal.process_id
            return
        if pipeline.route.equivalent(route):
            return
        self.is_synced = False
        is_led = route.primary_id == self._journal.process_id
        # Only others came. What is under way settles with those that it was proposed to; the next
        # append syncs with all.
        if is_led and set(pipeline.route.members) <= set(route.members):
            return
        pipeline.hurry(_LEFT_S)
        if self._under_way:
            asyncio.get_running_loop().call_later(_LEFT_S, self._give_up, pipeline)

    def _give_up(self, pipeline: Pipeline) -> None:
        if self._pipeline is pipeline and self._under_way:
            self._drop_pipeline()

    def _touch(self) -> None:
        self._used_at = self._clock.monotonic()
        if self._pipeline is not None and self._idle_timer is None:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(_IDLE_S, self._on_idle_timer)

    def _on_idle_timer(self) -> None:
        self._idle_timer = None
        if self._pipeline is None:
            return
        now = self._clock.monotonic()
        left_s = self._used_at + _IDLE_S - now
        if self._under_way and now - self._moved_at > _STALL_S:
            self._drop_pipeline(f"replicas have not answered for {_STALL_S:g} s")
        # A client may pause within a streamed append for longer than that: its content is at the
        # replicas, and a new stream would not have it.
        elif self._under_way or self._is_open or self._syncing is not None or left_s > 0:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(max(left_s, 1.0), self._on_idle_timer)
        else:
            self.rest()

    def rest(self) -> None:
        """Close the streams to replicas unless something is under way; the next append syncs again."""
        pipeline = self._pipeline
        if pipeline is None or self._under_way or self._syncing is not None:
            return
        self._pipeline = None
        self.is_synced = self.has_peers = False
        self._tasks.spawn(pipeline.close(), name=f"close pipeline {self._journal.name}")

    async def renew(self) -> None:
        """Close the streams, so that the next append syncs over new ones. Cancellation: safe."""
        await self.settled()
        self.rest()

    async def _close_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        self.is_synced = self.has_peers = False
        if pipeline is not None:
            await pipeline.close()

    def _drop_pipeline(self, why: str = "replicas changed while the append was under way") -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            self._doubt(pipeline)
            pipeline.abandon()
        self._fail(RpcFailed(Code.UNAVAILABLE, f"{self._journal.name}: {why}"))

    def reset(self, why: str) -> None:
        """Give up what is under way, and the streams; the next append syncs again."""
        self._drop_pipeline(why)

    def retire(self) -> None:
        """Bound the time that what is under way still has, because this replica is to close."""
        if self._pipeline is not None:
            self._pipeline.hurry(_LEFT_S)
            asyncio.get_running_loop().call_later(_LEFT_S, self._give_up, self._pipeline)

    async def close(self) -> None:
        """End all streams, once what is under way is settled or has failed."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEFT_S):
                await self.settled()
        if self._under_way:
            self._drop_pipeline()
        await self._close_pipeline()
        self._spool.drop_staged()
        # We were never primary: a stream of the primary may have the spool. What it commits last is
        # acknowledged, and has to be persisted like all else.
        if not self._owns_spool:
            await self._spool.lock.acquire()
            self._owns_spool = True
