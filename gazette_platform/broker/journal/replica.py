"""A journal that is assigned to this broker: its index, its appends, its timers."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, final

from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.appender import Appender
from gazette_platform.broker.append.batch import Outcome, view_of
from gazette_platform.broker.append.content import RateBalance
from gazette_platform.broker.epochs import GoOn
from gazette_platform.broker.journal.claims import (
    HoldersAway,
    Noting,
    adopt,
    claim_journal,
    forget_holders,
    released_registers,
    say_end,
    wait_healthy,
    write_suspend,
)
from gazette_platform.broker.journal.gaps import KNOWN_WAIT_S, Gaps, Hole, settle_holders
from gazette_platform.broker.journal.pulses import FlushTimer, Pulses, RefreshTimer, barrier
from gazette_platform.broker.peers import open_replicate
from gazette_platform.broker.replicate.replicator import Replicator
from gazette_platform.broker.spool.journal_spool import JournalSpool
from gazette_platform.errors import GazetteError
from gazette_platform.fragment.index import Index, Refresher
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    ZERO_SUM,
    AppendSuspend,
    Fragment,
    JournalSpec,
    Status,
    SuspendLevel,
    SuspendSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.epochs import Holder
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.broker.peers import PeerStream
    from gazette_platform.broker.spool.disk import CompletedSpool
    from gazette_platform.broker.spool.spool import Spool
    from gazette_platform.protocol import EtcdHeader, LabelSet, ProcessId, Route
    from gazette_platform.stores import ActiveStore


_log = logging.getLogger(__name__)

# Seconds for storing what we had of a journal before. If it takes longer, the caller asks again.
_FORMER_TIMEOUT_S = 10.0

_REFRESH_JITTER = 0.1

# Seconds without appends after which --broker.auto-suspend considers suspending a journal.
_SUSPEND_S = 15 * 60.0


@final
class Replica:
    """The local state of one journal."""

    last_append_at = -math.inf
    awaiting = ""
    """Why appends wait until a broker comes back, by the latest check; else empty."""

    def __init__(
        self,
        name: str,
        create_revision: int,
        *,
        is_primary: bool,
        context: BrokerContext,
        resolver: Resolver[Any],
    ) -> None:
        self.name = name
        self.create_revision = create_revision
        self.is_primary = is_primary
        self._context = context
        self._resolver = resolver
        self._state = context.space.state
        self.is_closed = False
        self.watchers: set[Callable[[], None]] = set()
        """Called at each change of the journal's spec or assignments, and when this replica closes."""
        self._pulses = Pulses(self, context)
        self.on_held = self._pulses.look
        self._flush_timer = FlushTimer(
            self._flush,
            interval_ns=self.spec.fragment.flush_interval_ns if self.spec else 0,
            clock=context.clock,
            rng=context.rng,
        )
        self._refresh_timer = RefreshTimer(name, self._refresh, tasks=context.tasks)
        self._stores = self.spec.fragment.stores if self.spec else ()
        self._store: ActiveStore | None = None  # the first, as looked up at a revision of etcd
        self._store_at = -1
        self.index = Index(context.clock)
        self.hole = Hole(self.index, context.clock)
        self.gaps = Gaps(
            name,
            self.index,
            wait_s=context.config.append_wait_s or KNOWN_WAIT_S,
            clock=context.clock,
            tasks=context.tasks,
            refresh=self.refresh,
            may_come=self._may_come,
            ask=self.settle_others,
        )
        self._refresher = Refresher(self.index, context.lister, context.clock)
        self._refresh_failures = 0
        self.balance = RateBalance.start(self._max_rate(), context.clock.monotonic())
        self._throttled_route = self.route
        self.spool = JournalSpool(
            self,
            executor=context.executor,
            compressors=context.compressors,
            tasks=context.tasks,
            clock=context.clock,
            directory=context.config.spool_dir,
            tenure=context.spools.tenure(name, create_revision),
            fsync=context.config.fsync,
            pace=context.pace,
            faults=context.faults,
        )
        if context.leftovers.has(name):
            # Adoption takes the spool's lock before anything that is begun later can.
            context.tasks.spawn(adopt(self, context), name=f"adopt {name}")
        self.replicator = Replicator(self, self.spool, tasks=context.tasks, clock=context.clock)
        self.appender = Appender(
            self,
            spool=self.spool,
            replicator=self.replicator,
            tasks=context.tasks,
            clock=context.clock,
            faults=context.faults,
        )
        context.metrics.write_head.labels(name).set_function(lambda: self.head)
        self._created_at = context.clock.monotonic()
        self._claimed: frozenset[Holder] | None = frozenset()  # whom our latest claim named
        self._is_released = False  # as of our latest claim, or note
        self._is_in_doubt = False  # etcd may still take a note that it did not answer for
        self.flushed_end = 0
        """A flush found that content below this offset is in a store, wherever it was held."""
        self._refresh_timer.soon()
        self._pulses.look()

    # -------------------------------------------------------------- what the appender asks for
    @property
    def spec(self) -> JournalSpec | None:
        """The spec as of now; None once the journal is deleted."""
        item = self._state.items.get(self.name)
        return item.spec if item is not None else None

    @property
    def is_consistent(self) -> bool:
        """Whether every assignment carries the current route."""
        return self._state.is_consistent(self.name)

    @property
    def is_synced(self) -> bool:
        """Whether a primary has synced with us, so that all that is acknowledged comes here, too."""
        own = self._state.assignment_of(self.name, self._context.process_id)
        return own is not None and own.route.members != ()  # an assignment has no route before

    @property
    def refusal(self) -> str:
        """Why we may not speak for the journal, as others may have taken over; empty while we may."""
        return self._context.membership.problem

    # ------------------------------------------------------------ what the replicator asks for
    @property
    def route(self) -> Route:
        """The journal's route, as of now."""
        return self._state.route_of(self.name)

    @property
    def etcd_header(self) -> EtcdHeader:
        """The state of etcd that `route` comes from."""
        return self._context.space.header

    @property
    def process_id(self) -> ProcessId:
        """This broker."""
        return self._context.process_id

    def open_stream(self, peer: ProcessId, endpoint: str) -> PeerStream:
        """Begin a Replicate stream to a peer. Raises: RpcFailed: it has no endpoint."""
        return open_replicate(self._context.peers, self.name, peer, endpoint, self.spool.tenure)

    @property
    def revision(self) -> int:
        """Of the key space."""
        return self._context.space.revision

    def locate(self) -> tuple[Status, bool]:
        """Look the journal up. Returns: OK if a broker serves it, and whether we are its primary."""
        if self._resolver.replicas.get(self.name) is not self:
            # Unassigned, demoted or recreated. Even if we are primary again by now, this spool no
            # longer belongs to the journal.
            return Status.OK, False
        found = self._resolver.resolve_now(self.name, may_proxy=True, require_primary=True)
        return found.status, found.is_local

    async def wait_revision(self, revision: int) -> None:
        """Wait for the key space to reach `revision`."""
        await self._context.space.wait_for_revision(revision)

    @property
    def replica_counts(self) -> tuple[int, int]:
        """How many brokers serve the journal, and how many should."""
        spec = self.spec
        desired = spec.desired_replication(self._context.config.max_replication) if spec else 0
        return len(self._state.assignments_of(self.name)), desired

    async def claim(
        self, holders: frozenset[Holder] | None, *, end: int, is_reset: bool
    ) -> GoOn | int:
        """Write into etcd the route, and who holds what is acknowledged; see `claim_journal`.

        A consistent route shows the allocator that every broker in it is in step.
        """
        self.awaiting = ""
        try:
            found = await claim_journal(
                self._context,
                self.name,
                self.create_revision,
                holders,
                end=end,
                registers=self.spool.registers,
                is_reset=is_reset,
            )
        except HoldersAway as err:
            self.awaiting = err.why
            raise
        if isinstance(found, GoOn):
            return found
        if found.is_done:
            self.spool.date()
            self.spool.share()
            self._context.persister.trust(self.spool.tenure)
            self._claimed, self._is_released = holders, found.is_released
        return found.revision

    async def released_registers(self, head: int) -> LabelSet | None:
        """As `claims.released_registers`, of this journal. Raises: GazetteError."""
        return await released_registers(self._context, self.name, self.create_revision, head)

    @property
    def is_released(self) -> bool:
        """Whether etcd says, or may say, where the journal goes on if its holders are lost."""
        return self._is_released or self._is_in_doubt

    def is_claimed(self, holders: frozenset[Holder] | None) -> bool:
        """Whether etcd has the current route, and these as holders, by a claim of ours."""
        return self.is_consistent and self._claimed == holders

    @property
    def noted_head(self) -> int:
        """Where the journal goes on, as its spec says; 0: it does not say."""
        spec = self.spec
        return spec.suspend.offset if spec is not None and spec.suspend is not None else 0

    async def write_suspend(self, suspend: SuspendSpec) -> int:
        """Store the spec with this suspension, and the record with what that means for its holders.

        Returns: the revision to look at.
        """
        noting = Noting(self.spool.tenure, self.spool.registers, self.create_revision)
        # A transaction that was given up may be carried out later. No content may follow before another
        # one has changed what it compares.
        self._is_in_doubt = True
        written = await write_suspend(self._context, self.name, suspend, noting)
        if written.is_done:
            self._is_in_doubt = False
            self._is_released = suspend != SuspendSpec(SuspendLevel.NONE, 0)
        else:
            self._claimed = frozenset()  # the record may have changed: claim it again
        return written.revision

    @property
    def is_ready(self) -> bool:
        """Whether the stores were listed and the first one is healthy."""
        if not self.index.first_refresh.is_set():
            return False
        store, revision = self._store, self._context.space.revision
        if revision == self._store_at and store is not None and store.health.error is None:
            store.is_marked = True
            return True
        try:
            store = self._store = self._first_store()
        except GazetteError:
            return False
        self._store_at = revision
        return store is None or store.health.error is None

    async def wait_ready(self) -> str:
        """Wait until `is_ready`. Returns: "", or why a store stays unhealthy, or is not listed."""
        url = ""
        try:
            store = self._first_store()
            if store is not None:
                url = store.url
                problem = await wait_healthy(store, self._context.clock)
                if problem:
                    return problem
        except GazetteError as err:  # the store cannot even be opened
            url = self._stores[0] if self._stores else url
            return f"fragment store {url} unhealthy: {err}"
        return await self._refresher.wait_first()

    def _first_store(self) -> ActiveStore | None:
        spec = self.spec
        if spec is None or not spec.fragment.stores:
            return None
        self._context.guard.check(spec)
        return self._context.stores.get(spec.fragment.stores[0])

    def on_commit(self, spool: Spool, *, appends: int, length: int) -> None:
        """The spool has more content: publish it to readers, and set the timer of its window."""
        metrics = self._context.metrics
        metrics.spool_commits.count += appends
        metrics.spool_commit_bytes.count += length
        self.index.spool_commit(spool.fragment(), spool.file)
        if self.gaps.others_end > spool.begin:
            self.gaps.on_commit(spool.begin)
        self.last_append_at = self._context.clock.monotonic()
        timer = self._flush_timer
        if not timer.is_set and timer.interval_ns > 0 and not self.is_closed:
            timer.set(spool.first_append_at)

    def on_recovered(self, spool: Spool) -> None:
        """The spool has a fragment that an earlier process left: publish it to readers."""
        self.index.spool_commit(spool.fragment(), spool.file)

    def on_rollback(self) -> None:
        """An append whose content had come ended without a commit."""
        self._context.metrics.spool_rollbacks.inc()

    def on_complete(self, completed: CompletedSpool) -> None:
        """A fragment has closed: publish its sum, and persist it."""
        self._context.metrics.spool_completed.inc()
        completed.create_revision = self.create_revision
        self.index.spool_commit(completed.fragment, completed.content)
        self._context.persister.add(completed, self.index)

    def on_persisted(self, fragment: Fragment) -> None:
        """A fragment of ours is in its store: show that to readers and lists at once."""
        self.index.add_remote(fragment)
        self.hole.look()

    async def summed(self, fragment: Fragment) -> Fragment | None:
        """A fragment of the index, with its sum, which open and closing fragments lack.

        Returns: the same fragment, maybe with content that was added since; None if this replica
            closed meanwhile.
        Cancellation: safe.
        """
        if fragment.sum != ZERO_SUM:
            return fragment
        digested = await self.spool.digested(fragment.begin)
        if digested is not None:
            return digested
        # It has closed since it was looked up, and the index knows its sum by now.
        return self.index.lookup(fragment.begin).fragment

    # ---------------------------------------------------------------------------------- timers
    def _flush(self) -> bool:
        """The window of the open fragment has ended. Returns: whether nothing more is to be done."""
        if self.is_closed or not self.is_primary:
            return True  # a replica's fragments close with its primary's
        if not self.replicator.owns_spool or len(self.route.members) > 1:
            # Replicas close their fragments with ours. The barrier syncs them first if it has to.
            self._pulses.start()
        elif not self.appender.roll_if_due():
            return False
        if self.spool.content_length:  # an append rolled it first, and a new window has begun
            self._flush_timer.set(self.spool.spool.first_append_at)
        return True

    def refresh(self, *, is_missed: bool = False) -> None:
        """List the stores now. `is_missed`: for a read of a fragment that is not there; not all the time."""
        self._refresh_timer.missed() if is_missed else self._refresh_timer.soon()

    async def _refresh(self) -> float | None:
        """List the stores. Returns: seconds until the next listing; None: we do none any more."""
        spec = self.spec
        if spec is None:
            return None
        is_done = False
        with self._context.faults.contained("journal", f"{self.name}: listing, tried again"):
            is_done = await self._list(spec)
        delay_s = spec.fragment.refresh_interval_ns / SECOND_NS
        delay_s *= self._context.rng.uniform(1 - _REFRESH_JITTER, 1)
        if not is_done and not self.index.first_refresh.is_set():
            # Appends wait for the first listing, so it is tried again soon.
            self._refresh_failures += 1
            return min(delay_s, backoff_s(self._refresh_failures - 1))
        if self.is_filling:
            return min(delay_s, self.hole.refresh_s())
        return delay_s

    async def _list(self, spec: JournalSpec) -> bool:
        """List the stores into the index. Returns: whether that succeeded. Cancellation: safe."""
        async with self._context.refresh_slots[spec.fragment.stores]:
            is_done = await self._refresher.refresh(spec)
        self.hole.look()
        return is_done

    @property
    def is_filling(self) -> bool:
        """Whether content before our spool is neither here nor known to be in a store yet.

        Other replicas had it when our spool began, and persist it; see `Hole`.
        """
        return bool(self._stores) and self.hole.is_filling

    @property
    def missing_at(self) -> int:
        """The last offset before our spool, if content there is neither here nor listed; else -1."""
        is_missing = self.hole.is_open and self.hole.end > self.noted_head
        return self.hole.end - 1 if is_missing and self._stores else -1

    def _may_come(self, offset: int) -> bool:
        # Content before a noted head is stored, or was pruned: none of it is still to come.
        end = self.hole.end
        return offset < end > self.noted_head and self.is_filling

    @property
    def head(self) -> int:
        """The write head: the end of all that was acknowledged, even if others still have to store it."""
        return max(self.index.summary.end, self.spool.settled_end, self.noted_head)

    async def wait_gap(self, offset: int) -> bool:
        """As `Gaps.wait`, for as long as appends wait; False at once if the journal has no stores."""
        return bool(self._stores) and await self.gaps.wait(offset, noted_head=self.noted_head)

    async def wait_filled(self) -> None:
        """Wait until nothing is `missing_at`, or no other broker has it.

        Raises: RpcFailed: UNAVAILABLE: another broker still has it: ask again.
        Cancellation: safe.
        """
        at = self.missing_at
        if at >= 0:
            await self.gaps.wait_listed(at, lost_at=-math.inf)

    async def settle_others(self, *, gives_up: bool = False) -> bool:
        """Have others store what they hold of the journal, then list it. Returns: whether that is done.

        We store what we hold from before, too, as it is in no index of ours.

        Args:
            gives_up: whether an operator lets the journal continue without what no holder can prove.

        Cancellation: safe.
        """
        spec = self.spec
        if spec is None:
            return False
        return await settle_holders(
            self._context, self.name, self._settle_own, lambda: self._list(spec), gives_up=gives_up
        )

    async def _settle_own(self, gives_up: bool) -> bool:  # noqa: FBT001
        try:
            async with asyncio.timeout(_FORMER_TIMEOUT_S):
                await self._resolver.closed(self.name)
                if gives_up:
                    self.spool.release()
                    await self.spool.completed()
                await self._context.leftovers.settle(self.name, is_given_up=gives_up)
                await self._context.persister.flush(self.name)
        except TimeoutError:
            return False
        return not self._context.leftovers.has_content(self.name)

    def on_roll(self, *, is_elsewhere: bool) -> None:
        """The spool was restarted, maybe at another offset."""
        begin = self.spool.spool.begin
        if is_elsewhere:
            self.gaps.on_leap(begin)
        if not self.spool.is_settled or begin <= self.index.summary.end:
            return  # all content before it is here, or being persisted
        self.hole.begin(begin)
        if self.is_filling and not self.is_closed:
            self._refresh_timer.soon(self.hole.refresh_s())

    # ----------------------------------------------------------------------------------- life
    def on_change(self, *, is_primary: bool) -> None:
        """The journal's spec or assignments changed."""
        spec = self.spec
        if spec is None or self.is_closed:
            return
        if is_primary and not self.is_primary:
            self._refresh_timer.soon()  # the former primary has persisted what it had
            self._flush_timer.set(self.spool.spool.first_append_at)
        self.is_primary = is_primary
        self.balance.rate = self._max_rate()
        if not self.route.equivalent(self._throttled_route):
            self._throttled_route = self.route
            self.balance.release()
        if spec.fragment.flush_interval_ns != self._flush_timer.interval_ns:
            self._flush_timer.interval_ns = spec.fragment.flush_interval_ns
            self._flush_timer.set(self.spool.spool.first_append_at)
        if spec.fragment.stores != self._stores:
            self._stores = spec.fragment.stores
            self._refresh_timer.soon()
        self.replicator.on_change()
        if not is_primary and self.is_consistent:
            self.spool.release()  # a primary with which we are in step has claimed the journal
            self._context.persister.trust(self.spool.tenure)
        for watcher in tuple(self.watchers):
            watcher()
        self._pulses.look()

    def _max_rate(self) -> float:
        """Bytes per second; 0: unlimited. The flag caps only journals that have a rate."""
        spec = self.spec
        rate = spec.max_append_rate if spec is not None else 0
        cap = self._context.config.max_append_rate
        return float(min(rate, cap) if rate and cap else rate)

    async def close_fragment(self) -> Outcome:
        """Close the open fragment behind the appends under way, and hand it to the persister.

        Returns: with the write head as its `commit`, or the status that says why not.
        Raises: RpcFailed: as an append.
        Cancellation: the fragment is closed all the same, now or later.
        """
        mode = AppendSuspend.SUSPEND_NO_RESUME
        request = events.AppendRequest(self.name, suspend=mode, closes_fragment=True)
        return await barrier(self.appender, request)

    def on_tick(self) -> None:
        """A minute has passed: see whether the journal should be suspended.

        What else Gazette does each minute has timers of its own here, which idle journals do without.
        """
        spec = self.spec
        quiet_s = self._context.clock.monotonic() - max(self._created_at, self.last_append_at)
        if not self.is_primary or spec is None or self.is_closed or quiet_s < _SUSPEND_S:
            return
        if not self.index.first_refresh.is_set():
            return
        # A journal that is suspended partly is suspended fully once all its fragments were pruned.
        request = events.AppendRequest(self.name, suspend=AppendSuspend.SUSPEND_IF_FLUSHED)
        spool, now_s = self.spool, self._context.clock.now().timestamp()
        view = view_of(self, spool.spool.begin, spool.end, spool.registers, now_s)
        if view is not None and isinstance(fsm.preconditions(request, view), events.WriteSuspend):
            self._pulses.start(AppendSuspend.SUSPEND_IF_FLUSHED)

    def renounce(self) -> None:
        """A broker of Gazette leads the journal, and does not record who holds what it acknowledges."""
        if not self.spool.tenure:
            return
        self.spool.renounce()
        as_of = self._context.space.revision
        forget = forget_holders(self._context, self.name, self.create_revision, as_of=as_of)
        self._context.tasks.spawn(forget, name=f"renounce {self.name}")

    def stop(self) -> None:
        """Start nothing more of our own accord. Idempotent."""
        self.is_closed = self.spool.is_leaving = True
        self.balance.release()
        self._pulses.stop()
        self._flush_timer.stop()
        self._refresh_timer.stop()
        for watcher in tuple(self.watchers):
            watcher()

    async def _say_end(self) -> None:
        # While we have a lease and serve, others go on only after a sync with us. A broker that leaves is not asked any
        # more, though what it could not hand over is assigned to it still.
        is_leaving = self._resolver.replicas.get(self.name) is self
        if is_leaving or self._context.membership.problem or self.spool.is_held:
            await say_end(self._context, self.name, self.create_revision, self.spool)

    async def close(self) -> None:
        """Finish appends under way, hand the open fragment to the persister, end reads."""
        self.stop()
        try:
            left = await self.appender.close(self._say_end)
            if left is not None:
                self._context.leftovers.add(left)
        finally:
            self.index.close()
            if self._resolver.replicas.get(self.name, self) is self:
                self._context.metrics.write_head.remove(self.name)
