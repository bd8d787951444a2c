"""The tables of a run, beside what other servers did."""

from __future__ import annotations

import re
import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.targets import BOUNDS
from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

__all__ = [
    "BASELINE",
    "Baseline",
    "appends_table",
    "load_baseline",
    "others_table",
    "quantity",
    "ratio",
]

BASELINE = Path(__file__).with_name("go_baseline.toml")

_SERVERS = {"go": "Go", "go_r3": "Go R=3", "nats": "NATS", "kafka": "Kafka"}

_RATE = re.compile(r"(append_(100b|16kib|1mib)_c\d+(?:_[a-z]+)?)_((?:mb_)?per_s)")
_OF_APPEND = re.compile(r"(broker_cpu_us_per_)?append_(100b|16kib|1mib)_c\d+.*")


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was measured elsewhere."""

    figures: Mapping[str, Mapping[str, float]]
    """Of other servers: by our name of the figure, then by server."""
    machine: Mapping[str, float]
    """Of the machine that they, and the targets, were stated for."""

    def speed(self, figures: Mapping[str, float]) -> float | None:
        """How fast this machine is in terms of that one: the median of the ratios, if any."""
        ratios = [
            figures[name] / reference for name, reference in self.machine.items() if name in figures
        ]
        return statistics.median(ratios) if ratios else None


def load_baseline(path: Path = BASELINE) -> Baseline:
    """The figures that ours are compared with.

    Raises: DataError: not TOML, or a server that is not known.
    """
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text())
        figures: dict[str, dict[str, float]] = found["figures"]
        machine: dict[str, float] = found["machine"]
    except (tomllib.TOMLDecodeError, KeyError) as err:
        raise DataError(f"{path}: not a table of figures: {err!r}") from err
    for name, values in figures.items():
        if unknown := values.keys() - _SERVERS.keys():
            raise DataError(f"{path}: {name}: unknown server {min(unknown)!r}")
    return Baseline(figures, machine)


def quantity(value: float | None) -> str:
    """A number for people: three significant digits or whole; a dash if there is none.

    >>> quantity(48123.4), quantity(213.25), quantity(0.7031), quantity(None)
    ('48,123', '213', '0.703', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float, reference: float | None) -> str:
    """How often `reference` goes into `value`; a dash if there is none."""
    return f"{value / reference:.2f}" if reference else "-"


def appends_table(figures: Mapping[str, float], baseline: Baseline) -> Table:
    """A row for each case of appends: its rate beside others', its latencies and its cost."""
    table = _table("Appends to one journal", "case")
    for heading in ("rate", "unit", "p50 ms", "p99 ms", "CPU µs", "Go", "÷ Go", "of bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    size = ""
    for name, value in figures.items():
        if (match := _RATE.fullmatch(name)) is None:
            continue
        case, size_now, unit = match.groups()
        if size not in ("", size_now):
            table.add_section()
        size = size_now
        go = baseline.figures.get(name, {}).get("go")
        table.add_row(
            case,
            quantity(value),
            {"per_s": "/s", "mb_per_s": "MB/s"}[unit],
            *(quantity(figures.get(f"{case}_{share}_ms")) for share in ("p50", "p99")),
            quantity(figures.get(f"broker_cpu_us_per_{case}")),
            quantity(go),
            ratio(value, go),
            ratio(value, figures.get(BOUNDS.get(name, ""))),
        )
    return table


def others_table(figures: Mapping[str, float], baseline: Baseline) -> Table:
    """All other figures, by the first word of their names, beside each server's."""
    table = _table("Other figures", "figure")
    for heading in ("ours", "Go", "÷ Go", "NATS", "Kafka", "of bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    groups: dict[str, list[str]] = {}
    for name in figures:
        if not _OF_APPEND.fullmatch(name):
            groups.setdefault(name.split("_")[0], []).append(name)
    for names in groups.values():
        for name in names:
            value, others = figures[name], baseline.figures.get(name, {})
            bound = figures.get(BOUNDS.get(name, ""))
            table.add_row(name, *_beside(value, others), ratio(value, bound))
        table.add_section()
    return table


def _beside(value: float, others: Mapping[str, float]) -> Iterator[RenderableType]:
    go = others.get("go")
    yield from (quantity(value), quantity(go), ratio(value, go))
    yield from (quantity(others.get(server)) for server in ("nats", "kafka"))


def _table(title: str, first: str) -> Table:
    table = Table(title=title, caption="÷ Go: ours divided by Go's with one broker", box=SIMPLE)
    table.add_column(first, overflow="fold")
    return table
