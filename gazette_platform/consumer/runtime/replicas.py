"""Keep one replica for each assignment of this process, restart those that failed, and count what they did.

A shard that failed restarts if its failure may pass, or if the group asks for restarts of all shards.
The pause doubles each time, so that two groups which share a log by mistake fence each other less and less often.
Metrics have Gazette's names; a counter includes former replicas, because it must not go back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from gazette_platform.allocator import AllocatorMetrics
from gazette_platform.consumer.assignments import ReplicaStep, replica_step
from gazette_platform.consumer.protocol import ReplicaCode
from gazette_platform.errors import EtcdError
from gazette_platform.etcd import Compare, Delete
from gazette_platform.message import SequencerCounts
from gazette_platform.ops.faults import backoff_s
from gazette_platform.serving.calls import CallMetrics, Tallies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gazette_platform.consumer.assignments import ConsumerState, ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.consumer.runtime.replica import ShardReplica
    from gazette_platform.consumer.runtime.status import ShardCounts
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.keyspace import KeySpace
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import ProcessId

R = TypeVar("R", bound="ShardReplica[Any, Any]")

_log = logging.getLogger(__name__)


@final
class ShardReplicas(Generic[R]):
    """Replicas by shard. It observes the key space: replicas exist as soon as assignments do.

    A replica that is stopped goes on being torn down beside what takes its place; its files are its own.

    Args:
        space: of the group.
        process_id: ours.
        make: builds a replica, which is started here.
        tasks: owns the stopping of replicas.
        faults: counts shards that cannot be followed.

    Attributes:
        held: replicas by shard. Live: do not keep it over an await.
        on_stopped: called with each that is no longer held.
    """

    def __init__(
        self,
        space: KeySpace[ConsumerState],
        process_id: ProcessId,
        *,
        make: Callable[[ShardSpec, ShardAssignment], R],
        tasks: TaskGroup,
        faults: Faults,
    ) -> None:
        self.held: dict[str, R] = {}
        self.on_stopped: Callable[[R], None] | None = None
        self._state = space.state
        self._id = process_id
        self._make = make
        self._tasks = tasks
        self._faults = faults
        self._stopping: set[asyncio.Task[None]] = set()
        self._is_closed = False
        space.observe(self._on_change)

    def get(self, shard: str) -> R | None:
        """Our replica of a shard."""
        return self.held.get(shard)

    def may_pass(self, assignment: ShardAssignment) -> bool:
        """Whether our replica under that assignment has failed with what may pass if it starts again."""
        replica = self.held.get(assignment.shard)
        if replica is None or replica.held.create_revision != assignment.create_revision:
            return False
        return replica.may_pass

    async def close(self) -> None:
        """Stop all replicas, and follow assignments no more. Cancellation: they may go on."""
        self._is_closed = True
        for shard in list(self.held):
            self._stop(shard)
        while self._stopping:
            await asyncio.wait(set(self._stopping))

    def _on_change(self) -> None:
        if self._is_closed:
            return
        for shard in self._state.changes.items:
            with self._faults.contained("shard", f"{shard}: following its assignment"):
                self._follow(shard)

    def _follow(self, shard: str) -> None:
        item = self._state.items.get(shard)
        assignment = self._state.assignment_of(shard, self._id)
        replica = self.held.get(shard)
        held = None if replica is None else replica.held
        step = replica_step(held, assignment, has_spec=item is not None)
        if step is ReplicaStep.STOP or item is None or assignment is None:
            self._stop(shard)
            return
        match step:
            case ReplicaStep.KEEP if replica is not None:
                replica.update(item.spec, assignment)
            case ReplicaStep.PROMOTE if replica is not None:
                replica.promote(item.spec, assignment)
            case _:  # START, RESTART
                self._stop(shard)
                self.held[shard] = self._make(item.spec, assignment)
                self.held[shard].start()

    def _stop(self, shard: str) -> None:
        replica = self.held.pop(shard, None)
        if replica is None:
            return
        if self.on_stopped is not None:
            self.on_stopped(replica)
        task = self._tasks.spawn(replica.stop(), name=f"stop {shard}")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


# ------------------------------------------------------------------ restarts

# How often the pause is doubled, of a shard that fails again and again.
_DOUBLINGS_MAX: Final = 6

PASSING_PAUSE_S: Final = 1.0
"""Seconds before a shard whose failure may pass starts again for the first time, at most."""


@final
class Restarts:
    """Removes our assignments that have failed, after a pause, so that they are assigned again.

    A shard whose failure may pass starts again whether others do or not. If its database was away, or broke a
    deadlock, the next attempt may succeed. If it was fenced while it is assigned to us, it is ours all the
    same: a former owner came late.

    The pause doubles each time, up to 64 times the first one, and restarts for a shard that did well
    for twice its last pause: processes of two groups which share a log by mistake fence each other ever
    more seldom. An assignment that is gone meanwhile, or has another status, is left alone. That etcd does
    not answer is waited out.

    Args:
        pause_s: seconds before the first attempt; None: only shards whose failure may pass start again.
        may_pass: whether that is so of our replica under an assignment.
        tasks: owns the waiting.
    """

    def __init__(
        self,
        etcd: EtcdClient,
        space: KeySpace[ConsumerState],
        process_id: ProcessId,
        *,
        pause_s: float | None,
        may_pass: Callable[[ShardAssignment], bool],
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        self._etcd = etcd
        self._state = space.state
        self._id = process_id
        self._pause_s = pause_s
        self._may_pass = may_pass
        self._clock = clock
        self._tasks = tasks
        # Keys of assignments that are waited for; of each shard, how often, until when, and how long.
        self._waiting: set[tuple[str, int]] = set()
        self._former: dict[str, tuple[int, float, float]] = {}
        space.observe(self._on_change)

    def _on_change(self) -> None:
        for shard in self._state.changes.items:
            assignment = self._state.assignment_of(shard, self._id)
            if assignment is None or assignment.status.code is not ReplicaCode.FAILED:
                continue
            pause_s = self._first_pause_s(assignment)
            which = (assignment.key, assignment.create_revision)
            if pause_s is None or which in self._waiting or self._tasks.is_closed:
                continue
            self._waiting.add(which)
            self._tasks.spawn(self._restart(assignment, pause_s), name=f"restart {shard}")

    def _first_pause_s(self, failed: ShardAssignment) -> float | None:
        if not self._may_pass(failed):
            return self._pause_s
        return PASSING_PAUSE_S if self._pause_s is None else min(self._pause_s, PASSING_PAUSE_S)

    async def _restart(self, assignment: ShardAssignment, first_pause_s: float) -> None:
        pause_s = self._next_pause_s(assignment.shard, first_pause_s)
        _log.warning(
            "shard %s has failed, and starts again in %g s: %s",
            assignment.shard,
            pause_s,
            "; ".join(assignment.status.errors),
        )
        try:
            await asyncio.sleep(pause_s)
            await self._remove(assignment)
        finally:
            self._waiting.discard((assignment.key, assignment.create_revision))

    async def _remove(self, failed: ShardAssignment) -> None:
        """Remove it, if it still exists, and still has failed."""
        failures = 0
        while True:
            current = self._state.assignment_of(failed.shard, self._id)
            if current is None or current.create_revision != failed.create_revision:
                return
            if current.status.code is not ReplicaCode.FAILED:
                return
            guard = Compare.mod(current.key, current.mod_revision)
            try:
                if (await self._etcd.txn([guard], [Delete(current.key)])).succeeded:
                    return
            except EtcdError as err:
                _log.warning("shard %s is not started again yet: %s", failed.shard, err)
                if not err.retriable:
                    return
            await asyncio.sleep(backoff_s(failures))
            failures += 1

    def _next_pause_s(self, shard: str, first_s: float) -> float:
        now_s = self._clock.monotonic()
        times, until_s, last_s = self._former.get(shard, (0, now_s, 0.0))
        if now_s > until_s + 2 * last_s:
            times = 0
        pause_s = first_s * float(1 << min(times, _DOUBLINGS_MAX))
        self._former[shard] = (times + 1, now_s + pause_s, pause_s)
        return pause_s


@final
class ConsumerMetrics:
    """One registry a process, so that several may live in one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.tallies = Tallies(self.registry)
        self.allocator = AllocatorMetrics(self.registry)
        self.calls = CallMetrics(self.registry, self.tallies)
        self.sequencers = SequencerCounts()
        self.registry.register(self.sequencers)
        self.unforeseen = Counter(
            "gazette_platform_unforeseen_errors",
            "Unforeseen errors, by the kind of thing that each ended.",
            ("kind",),
            registry=self.registry,
        )

    def watch(self, replicas: Mapping[str, ShardReplica[Any, Any]]) -> ShardMetrics:
        """Report these replicas from now on. Returns: where to take leave of one."""
        metrics = ShardMetrics(replicas)
        self.registry.register(metrics)
        return metrics

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


_TOTALS: Final = (
    ("gazette_shard_transactions", "Transactions that are committed and acknowledged."),
    ("gazette_shard_read_messages", "Messages that they consumed."),
    ("gazette_shard_read_bytes", "Bytes of messages that were consumed."),
)


def _totals_of(counts: ShardCounts) -> tuple[int, ...]:
    return counts.transactions, counts.read_messages, counts.read_bytes


@final
class ShardMetrics(Collector):
    """What the replicas of a process did, the former ones included: a counter must not go back."""

    def __init__(self, replicas: Mapping[str, ShardReplica[Any, Any]]) -> None:
        self._replicas = replicas
        self._former: dict[str, tuple[int, ...]] = {}
        self._former_phases: dict[tuple[str, str, str], float] = {}

    def leave(self, replica: ShardReplica[Any, Any]) -> None:
        """Keep what a replica counted, which is stopped."""
        known = self._former.get(replica.fqn, (0,) * len(_TOTALS))
        own = _totals_of(replica.counts)
        self._former[replica.fqn] = tuple(a + b for a, b in zip(known, own, strict=True))
        for (kind, phase), seconds in replica.counts.phases_s.items():
            key = (replica.fqn, phase, kind)
            self._former_phases[key] = self._former_phases.get(key, 0.0) + seconds

    @override
    def collect(self) -> Iterator[Metric]:
        """The metrics, as of now."""
        replicas = list(self._replicas.values())
        up = GaugeMetricFamily(
            "gazette_shard_up", "Shards of this process.", labels=("shard", "status")
        )
        heads = GaugeMetricFamily(
            "gazette_shard_read_head",
            "Offset up to which a source is reflected in the state.",
            labels=("shard", "journal"),
        )
        totals = dict(self._former)
        phases = dict(self._former_phases)
        for replica in replicas:
            up.add_metric((replica.id, replica.assignment.status.code.name.lower()), 1)
            for journal, offset in list(replica.progress.read_through.items()):
                heads.add_metric((replica.fqn, journal), offset)
            known = totals.get(replica.fqn, (0,) * len(_TOTALS))
            own = _totals_of(replica.counts)
            totals[replica.fqn] = tuple(a + b for a, b in zip(known, own, strict=True))
            for (kind, phase), seconds in list(replica.counts.phases_s.items()):
                key = (replica.fqn, phase, kind)
                phases[key] = phases.get(key, 0.0) + seconds
        yield up
        yield heads
        for at, (name, text) in enumerate(_TOTALS):
            family = CounterMetricFamily(name, text, labels=("shard",))
            for fqn, counted in totals.items():
                family.add_metric((fqn,), counted[at])
            yield family
        spent = CounterMetricFamily(
            "gazette_shard_phase_seconds",
            "Seconds by phase of transactions.",
            labels=("shard", "phase", "type"),
        )
        for (fqn, phase, kind), seconds in phases.items():
            spent.add_metric((fqn, phase, kind), seconds)
        yield spent
