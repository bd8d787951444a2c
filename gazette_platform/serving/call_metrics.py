"""Counts of calls, by the names of go-grpc-prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

__all__ = ["CallMetrics", "MethodMetrics", "Tallies", "Tally"]


@final
class Tally:
    """A count that a counter learns only when somebody reads the counter.

    The library's counters take a lock for each increment, which is most of what counting costs.

    Attributes:
        count: the total so far; only the event loop's thread adds to it.
    """

    __slots__ = ("_counter", "_told", "count")

    def __init__(self, counter: Counter) -> None:
        self.count = 0
        self._counter = counter
        self._told = 0

    def tell(self) -> None:
        """Bring the counter up to date."""
        count = self.count
        self._counter.inc(count - self._told)
        self._told = count


@final
class Tallies(Collector):
    """Brings counters up to date when their registry is read. Registered before the counters are."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all: list[Tally] = []
        registry.register(self)

    def of(self, counter: Counter) -> Tally:
        """A tally for `counter`, which nobody else increments."""
        tally = Tally(counter)
        self._all.append(tally)
        return tally

    @override
    def collect(self) -> Iterable[Metric]:
        """Bring all counters up to date; there are no metrics of our own."""
        for tally in self._all:
            tally.tell()
        return ()


@final
class CallMetrics:
    """gRPC calls by the names of go-grpc-prometheus, which dashboards of Gazette know."""

    def __init__(self, registry: CollectorRegistry, tallies: Tallies) -> None:
        self.tallies = tallies
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
    """The metrics of one method. They are looked up once, because each call costs some microseconds."""

    def __init__(self, calls: CallMetrics, labels: tuple[str, str, str]) -> None:
        self._handled = calls.handled
        self._labels = labels
        self._tallies = tallies = calls.tallies
        self._ended: dict[str, Tally] = {}
        self._started = tallies.of(calls.started.labels(*labels))
        self._seconds = calls.seconds.labels(*labels)
        self.received = tallies.of(calls.received.labels(*labels))
        self.sent = tallies.of(calls.sent.labels(*labels))

    def begin(self) -> float:
        """A call begins. Returns: what to pass to `end`."""
        self._started.count += 1
        return time.perf_counter()

    def end(self, began: float, code: str) -> None:
        """The call ended with a gRPC code, by its name in Go, such as ``DeadlineExceeded``."""
        ended = self._ended.get(code)
        if ended is None:
            counter = self._handled.labels(*self._labels, code)
            ended = self._ended[code] = self._tallies.of(counter)
        ended.count += 1
        self._seconds.observe(time.perf_counter() - began)
