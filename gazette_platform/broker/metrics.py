"""The broker's metrics, by Gazette's names."""

from __future__ import annotations

import time
from typing import final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gazette_platform.allocator import AllocatorMetrics
from gazette_platform.stores.metrics import StoreMetrics

__all__ = ["BrokerMetrics", "CallMetrics", "MethodMetrics"]


@final
class CallMetrics:
    """gRPC calls by the names of go-grpc-prometheus, which dashboards of Gazette know."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("grpc_type", "grpc_service", "grpc_method")
        self.started = Counter(
            "grpc_server_started", "Calls that were begun.", labels, registry=registry
        )
        self.handled = Counter(
            "grpc_server_handled",
            "Calls that ended, by their gRPC code.",
            (*labels, "grpc_code"),
            registry=registry,
        )
        self.received = Counter(
            "grpc_server_msg_received",
            "Messages of callers.",
            labels,
            registry=registry,
        )
        self.sent = Counter(
            "grpc_server_msg_sent", "Messages to callers.", labels, registry=registry
        )
        self.seconds = Histogram(
            "grpc_server_handling_seconds",
            "How long calls took, in seconds.",
            labels,
            registry=registry,
        )

    def of(self, kind: str, service: str, method: str) -> MethodMetrics:
        """The metrics of one method; `kind` is ``unary``, ``client_stream`` or the like."""
        return MethodMetrics(self, (kind, service, method))


@final
class MethodMetrics:
    """The metrics of one method, found once: a call costs some microseconds."""

    def __init__(self, calls: CallMetrics, labels: tuple[str, str, str]) -> None:
        self._handled = calls.handled
        self._labels = labels
        self._ended: dict[str, Counter] = {}
        self._started = calls.started.labels(*labels)
        self._seconds = calls.seconds.labels(*labels)
        self.received = calls.received.labels(*labels).inc
        self.sent = calls.sent.labels(*labels).inc

    def begin(self) -> float:
        """A call begins. Returns: what `end` is to be told."""
        self._started.inc()
        return time.perf_counter()

    def end(self, began: float, code: str) -> None:
        """It ended with a gRPC code, by its name in Go, such as ``DeadlineExceeded``."""
        ended = self._ended.get(code)
        if ended is None:
            ended = self._ended[code] = self._handled.labels(*self._labels, code)
        ended.inc()
        self._seconds.observe(time.perf_counter() - began)


@final
class BrokerMetrics:
    """One registry a broker, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.stores = StoreMetrics(self.registry)
        self.allocator = AllocatorMetrics(self.registry)
        self.calls = CallMetrics(self.registry)
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
        self.spool_commits = self._counter("gazette_spool_commits", "Appends committed.")
        self.spool_commit_bytes = self._counter(
            "gazette_spool_commit_bytes", "Bytes committed by appends."
        )
        self.spool_rollbacks = self._counter("gazette_spool_rollbacks", "Appends rolled back.")
        self.spool_completed = self._counter(
            "gazette_spool_completed", "Fragments that were closed."
        )
        self.spool_persisted = self._counter(
            "gazette_spool_persisted", "Fragments that were written to a store."
        )

        self.unforeseen = Counter(
            "gazette_platform_unforeseen_errors",
            "Errors that nobody foresaw, by the kind of thing that each ended.",
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
