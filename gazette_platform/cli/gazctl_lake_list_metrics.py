"""`gazctl lake list -o prometheus`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

__all__ = ["prometheus_text"]

_GAUGES = {
    "rows": "Rows of a table.",
    "unfit_records": "Records of a raw table that do not fit its spec.",
    "blocked": "1 while rollups wait for a raw table, because too many records do not fit its spec.",
    "quarantined": "Records of a typed table's quarantine.",
    "lag_bytes": "Bytes that journals have, and the table does not.",
    "problems": "What is wrong with a table.",
}


class _Tables:
    """A collector over what `gazctl lake list` knows of tables."""

    def __init__(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        self._summaries = summaries

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics; what is not known of a table is left out."""
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"gazette_lake_{name}", text, labels=["table"])
            for summary in self._summaries:
                value = summary.get(name)
                if value is not None:
                    count = len(value) if isinstance(value, list) else value
                    gauge.add_metric([str(summary["table"])], count)
            yield gauge


def prometheus_text(summaries: Sequence[Mapping[str, Any]]) -> str:
    """What is known of tables, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Tables(summaries))
    return generate_latest(registry).decode()
