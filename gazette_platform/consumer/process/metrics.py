"""A consumer process's metrics, by Gazette's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from gazette_platform.allocator import AllocatorMetrics
from gazette_platform.message import SequencerCounts
from gazette_platform.serving.calls import CallMetrics, Tallies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gazette_platform.consumer.runtime.replica import ShardReplica
    from gazette_platform.consumer.runtime.status import ShardCounts


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
