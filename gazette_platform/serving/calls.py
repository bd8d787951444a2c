"""What all calls have in common: how each ends, and how calls are counted.

A call ends with its answer, when its caller's token expires, or with an error and its code. Counts have the
names of go-grpc-prometheus. Counting costs an addition a call: counters learn of it when they are read.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeVar, final

from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from typing_extensions import override

from gazette_platform.errors import EtcdError, GazetteError
from gazette_platform.protocol.auth import Forbidden, Unauthenticated
from gazette_platform.serving.interface import Code, Denied, NotNow, RpcFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterable, Sequence

    from prometheus_client import Metric

    from gazette_platform.ops.faults import Faults

T = TypeVar("T")


async def before_expiry(limit: asyncio.Timeout, work: Awaitable[T]) -> T:
    """Await `work` until the claims of its caller expire.

    Args:
        limit: of `Authenticator.limit`.

    Raises: RpcFailed: DEADLINE_EXCEEDED: they have expired. Clients then get a new token.
    Cancellation: cancels `work`.
    """
    try:
        async with limit:
            return await work
    except TimeoutError as err:
        if not limit.expired():
            raise
        raise RpcFailed(Code.DEADLINE_EXCEEDED, "the call's authorization has expired") from err


def failure_of(operation: str, err: Exception, faults: Faults) -> RpcFailed:
    """The error for a caller. One that is not ours is a fault; it ends only this call.

    Args:
        operation: name of the call.
        err: not an RpcFailed, which is sent as it is.
    """
    if isinstance(err, Forbidden):
        return Denied(str(err))
    if isinstance(err, Unauthenticated):
        return RpcFailed(Code.UNAUTHENTICATED, str(err))
    if isinstance(err, DecodeError):
        return RpcFailed(Code.INTERNAL, f"{operation}: malformed message: {err}")
    if not isinstance(err, GazetteError):
        faults.report("call", operation, err)
        kind = type(err).__name__
        return RpcFailed(
            Code.INTERNAL,
            f"{operation}: unforeseen {kind}: {err} (the log of this process has more)",
        )
    # Most troubles of etcd pass by themselves, and clients retry what cannot be answered now.
    if isinstance(err, EtcdError) and err.retriable:
        return NotNow(err.told)
    return RpcFailed(Code.UNKNOWN, err.told if isinstance(err, EtcdError) else str(err))


_BOUNDS_S: Final = Histogram.DEFAULT_BUCKETS


@final
class Tally:
    """A count that a counter learns only when the counter is read.

    The library's counters take a lock for each increment, which is most of what counting costs.

    Attributes:
        count: the total so far; only the event loop's thread adds to it.
    """

    __slots__ = ("_counter", "_exported", "count")

    def __init__(self, counter: Counter) -> None:
        self.count = 0
        self._counter = counter
        self._exported = 0

    def export(self) -> None:
        """Bring the counter up to date."""
        count = self.count
        self._counter.inc(count - self._exported)
        self._exported = count


@final
class Tallies(Collector):
    """Brings counters up to date when their registry is read. Registered before the counters are."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all: list[Tally] = []
        registry.register(self)

    def of(self, counter: Counter) -> Tally:
        """A tally for `counter`, which no other code increments."""
        tally = Tally(counter)
        self._all.append(tally)
        return tally

    @override
    def collect(self) -> Iterable[Metric]:
        """Bring all counters up to date; there are no metrics of our own."""
        for tally in self._all:
            tally.export()
        return ()


@final
class Duration:
    """How long things of one kind took. As with a `Tally`, only the event loop's thread adds to it."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS_S)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Show all so far."""
        buckets = zip(map(floatToGoString, _BOUNDS_S), accumulate(self._counts), strict=True)
        family.add_metric(labels, list(buckets), self._sum_s)


@final
class Durations(Collector):
    """A histogram, for which the library takes several locks for each observation."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._all: dict[tuple[str, ...], Duration] = {}

    def of(self, labels: tuple[str, ...]) -> Duration:
        """The durations of what has these labels."""
        return self._all.setdefault(labels, Duration())

    @override
    def collect(self) -> Iterable[Metric]:
        """Give the histogram."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, duration in self._all.items():
            duration.add_to(family, labels)
        return (family,)


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
        self.seconds = Durations(
            "grpc_server_handling_seconds", "How long calls took, in seconds.", labels
        )
        registry.register(self.seconds)

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
        self._seconds = calls.seconds.of(labels)
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
