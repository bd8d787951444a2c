"""What a gateway counts, as metrics: an addition for a request, none for a record."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

_GAUGES: Final = {
    "connections": "Connections of clients of Kafka that are open.",
    "groups": "Consumer groups that this broker coordinates and has in memory.",
    "group_members": "Members of these groups.",
    "open_transactions": "Transactions that this broker coordinates and that are not complete.",
}


@final
class KafkaMetrics(Collector):
    """Counts and gauges of one gateway.

    Attributes:
        requests: by API, and by outcome: ``ok``, ``error``, ``unanswered`` (none was asked for) or ``closed``.
        records: by direction, ``in`` or ``out``.
        record_bytes: of batches as clients send and get them, likewise.
        throttled_s: that clients were made to wait by quotas, likewise.
        gauges: what gives the value of each.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.records: Counter[str] = Counter({"in": 0, "out": 0})
        self.record_bytes: Counter[str] = Counter({"in": 0, "out": 0})
        self.throttled_s: dict[str, float] = {"in": 0.0, "out": 0.0}
        self.gauges: dict[str, Callable[[], float]] = {}

    def answered(self, api: str, answer: Any) -> None:
        """Count a request by what is answered; None: nothing is."""
        outcome = "error" if has_error(answer) else "ok"
        self.requests[api, "unanswered" if answer is None else outcome] += 1

    def closed(self, api: str) -> None:
        """Count a request whose connection is closed instead of an answer."""
        self.requests[api, "closed"] += 1

    def took(self, direction: str, records: int, size: int) -> None:
        """Count a batch."""
        self.records[direction] += records
        self.record_bytes[direction] += size

    @override
    def collect(self) -> Iterable[Metric]:
        """Give all."""
        requests = CounterMetricFamily(
            "gazette_platform_kafka_requests",
            "Requests of clients of Kafka, by API and outcome.",
            labels=("api", "outcome"),
        )
        for labels, count in [*self.requests.items()]:
            requests.add_metric(labels, count)
        yield requests
        for name, text, counts in (
            ("records", "Records that clients of Kafka produced and consumed.", self.records),
            ("record_bytes", "Bytes of their batches, as sent.", self.record_bytes),
            ("throttled_seconds", "Time that quotas made clients wait.", self.throttled_s),
        ):
            family = CounterMetricFamily(
                f"gazette_platform_kafka_{name}", text, labels=("direction",)
            )
            for direction, amount in counts.items():
                family.add_metric((direction,), amount)
            yield family
        for name, text in _GAUGES.items():
            value = self.gauges[name]() if name in self.gauges else 0
            yield GaugeMetricFamily(f"gazette_platform_kafka_{name}", text, value=value)


def has_error(answer: Any) -> bool:
    """Whether an answer, or a part of it, has a code of an error."""
    if not hasattr(answer, "__dataclass_fields__"):
        return False
    kind: Any = type(answer)
    has_code, parts = _shape(kind)
    if has_code and answer.error_code is not ErrorCode.none:
        return True
    return any(any(map(has_error, getattr(answer, name) or ())) for name in parts)


@cache
def _shape(kind: Any) -> tuple[bool, tuple[str, ...]]:
    """Whether a class has a code, and the fields that may have entities."""
    names = {field.name: str(field.type) for field in fields(kind)}
    parts = tuple(name for name, type_text in names.items() if type_text.startswith("tuple"))
    return "error_code" in names, parts
