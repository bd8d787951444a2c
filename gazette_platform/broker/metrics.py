"""The broker's metrics, by Gazette's names."""

from __future__ import annotations

from typing import final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from gazette_platform.allocator import AllocatorMetrics
from gazette_platform.serving.call_metrics import CallMetrics, Tallies
from gazette_platform.stores.metrics import StoreMetrics


@final
class BrokerMetrics:
    """One registry a broker, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.tallies = Tallies(self.registry)
        self.stores = StoreMetrics(self.registry)
        self.allocator = AllocatorMetrics(self.registry)
        self.calls = CallMetrics(self.registry, self.tallies)
        self.started = Counter(
            "gazette_journal_server_started_totals",
            "RPCs that were begun.",
            ("operation",),
            registry=self.registry,
        )
        self.completed = Counter(
            "gazette_journal_server_completed_totals",
            "RPCs that ended, by the status that they answered.",
            ("operation", "status"),
            registry=self.registry,
        )
        self.write_head = Gauge(
            "gazette_write_head",
            "Offset of the next append, in bytes.",
            ("journal",),
            registry=self.registry,
        )
        self.spool_commits = self.tallies.of(
            self._counter("gazette_spool_commits", "Appends committed.")
        )
        self.spool_commit_bytes = self.tallies.of(
            self._counter("gazette_spool_commit_bytes", "Bytes committed by appends.")
        )
        self.spool_rollbacks = self._counter("gazette_spool_rollbacks", "Appends rolled back.")
        self.spool_completed = self._counter(
            "gazette_spool_completed", "Fragments that were closed."
        )
        self.spool_persisted = self._counter(
            "gazette_spool_persisted", "Fragments that were written to a store."
        )
        self.unpersisted_bytes = Gauge(
            "gazette_platform_unpersisted_bytes",
            "Content of closed fragments that no store has taken from this broker yet.",
            registry=self.registry,
        )
        self.spools_set_aside = self._counter(
            "gazette_platform_spools_set_aside",
            "Files of former processes' spools whose content was set aside: others went on without it.",
        )

        self.unforeseen = Counter(
            "gazette_platform_unforeseen_errors",
            "Unforeseen errors, by the kind of thing that each ended.",
            ("kind",),
            registry=self.registry,
        )
        self.brokers_evicted = self._counter(
            "gazette_platform_brokers_evicted", "Crashed brokers that this one had evicted."
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes.

        The library ends names of counters in ``_total``; two of Gazette's end in ``_totals``.
        """
        return generate_latest(self.registry).replace(b"_totals_total", b"_totals")
