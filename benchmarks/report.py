"""The tables of a run, beside what other servers did."""

from __future__ import annotations

import itertools
import re
import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.bench import FULL
from benchmarks.content import SIZES
from benchmarks.figures import WIRES
from benchmarks.matrix import matrix_cases, service_figure
from benchmarks.targets import BOUNDS, LAKE_TARGETS, WIRE_TARGETS
from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

__all__ = [
    "BASELINE",
    "Baseline",
    "appends_table",
    "lake_table",
    "load_baseline",
    "matrix_table",
    "others_table",
    "quantity",
    "ratio",
    "wire_table",
]

BASELINE = Path(__file__).with_name("go_baseline.toml")

_SERVERS = {"go": "Go", "go_r3": "Go R=3", "nats": "NATS", "kafka": "Kafka"}

_RATE = re.compile(r"(append_(100b|16kib|1mib)_c\d+(?:_[a-z]+)?)_((?:mb_)?per_s)")
_OF_APPEND = re.compile(
    r"((broker|client)_cpu_(us|s)_per_(gb_)?)?append_(service_)?(100b|16kib|1mib)_c\d+.*"
)


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


def matrix_table(figures: Mapping[str, float], baseline: Baseline) -> Table:
    """Each case of appends both ways, with the CPU of broker and client, beside Go's of its way.

    Go's are times the speed of this machine, CPU divided by it; both as stated if it is not known.
    """
    table = _table("Appends of 100 B, 16 KiB and 1 MiB, 1, 8 and 64 at a time", "case")
    table.caption = (
        "broker, client, Go CPU: seconds per GB of 10^9 bytes. Go: one broker, as it would do at "
        "the speed of this machine; ÷ Go: ours divided by that"
    )
    headings = ("way", "rate", "p50 ms", "p99 ms", "broker", "client", "Go", "÷ Go", "Go CPU")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.columns[0].no_wrap = True
    for row in _matrix_rows():
        if (rate := figures.get(row.rate)) is None:
            continue
        speed = figures.get("machine_speed_ratio", 1.0)
        go = _of_go(baseline, row.rate, speed)
        cpu = [figures.get(name) for name in (row.broker_cpu, row.client_cpu)]
        table.add_row(
            row.case,
            row.way,
            f"{quantity(rate)} {'MB/s' if 'mb_per_s' in row.rate else '/s'}",
            *(quantity(figures.get(f"{row.name}_{share}_ms")) for share in ("p50", "p99")),
            *(quantity(None if used is None else used * row.cpu_factor) for used in cpu),
            quantity(go),
            ratio(rate, go),
            quantity(_of_go(baseline, row.broker_cpu, 1 / speed)),
            end_section=row.is_last,
        )
    return table


@dataclass(frozen=True, slots=True)
class _MatrixRow:
    """One way of one case: which figures are its."""

    case: str
    way: str
    name: str
    rate: str
    broker_cpu: str
    client_cpu: str
    cpu_factor: float = 1.0
    """Makes seconds per GB of the figures of CPU."""
    is_last: bool = False
    """Of its section."""


def _matrix_rows() -> Iterator[_MatrixRow]:
    for case in matrix_cases(FULL):
        size = {"100b": "100 B", "16kib": "16 KiB", "1mib": "1 MiB"}[case.size]
        for way, name in (("RPC each", case.figure), ("service", service_figure(case))):
            yield _MatrixRow(
                f"{size} x {case.concurrency}",
                way,
                name,
                rate=f"{name}_{'per_s' if case.size == '100b' else 'mb_per_s'}",
                broker_cpu=f"broker_cpu_s_per_gb_{name}",
                client_cpu=f"client_cpu_s_per_gb_{name}",
                is_last=way == "service",
            )
    for label, way, what in (("100 B x 1000", "service", "await"), ("100 B", "writer", "writer")):
        name = f"append_service_{what}"
        yield _MatrixRow(
            label,
            way,
            name,
            rate=f"{name}_msgs_per_s",
            broker_cpu=f"{name}_broker_cpu_us_per_msg",
            client_cpu=f"{name}_client_cpu_us_per_msg",
            cpu_factor=1e3 / SIZES["100b"],
        )


def _of_go(baseline: Baseline, name: str, factor: float) -> float | None:
    go = baseline.figures.get(name, {}).get("go")
    return None if go is None else go * factor


def others_table(figures: Mapping[str, float], baseline: Baseline) -> Table:
    """All other figures, by the first word of their names, beside each server's."""
    table = _table("Other figures", "figure")
    for heading in ("ours", "Go", "÷ Go", "NATS", "Kafka", "of bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    groups: dict[str, list[str]] = {}
    for name in figures:
        if not _OF_APPEND.fullmatch(name) and not name.startswith(("wire_", "machine_wire_")):
            groups.setdefault(name.split("_")[0], []).append(name)
    for names in groups.values():
        for name in names:
            value, others = figures[name], baseline.figures.get(name, {})
            bound = figures.get(BOUNDS.get(name, ""))
            table.add_row(name, *_beside(value, others), ratio(value, bound))
        table.add_section()
    return table


def lake_table(figures: Mapping[str, float]) -> Table:
    """A row for each figure of tables, by what it is about, beside its target."""
    table = Table(title="Tables", box=SIMPLE)
    table.add_column("figure", overflow="fold")
    for heading in ("measured", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    limits = {each.name: f"{each.sign} {each.limit:g}" for each in LAKE_TARGETS}
    names = sorted(name for name in figures if name.startswith(("lake_", "typed_")))
    for _, of_group in itertools.groupby(names, _subject):
        for name in of_group:
            table.add_row(name, quantity(figures[name]), limits.get(name, ""))
        table.add_section()
    return table


def wire_table(figures: Mapping[str, float]) -> Table:
    """A row for each figure of both wires, those with a target first: their ratio, and what each wire alone allows."""
    table = Table(title="Both wires", box=SIMPLE)
    table.caption = (
        "ratio: h2 divided by grpc. Bare: a server of that wire that answers at once. ÷ bare: h2 divided by its bare "
        "server. Three replicas are beside the bare server of one"
    )
    table.add_column("figure", overflow="fold")
    for heading in (*WIRES, "ratio", "target", *(f"bare {wire}" for wire in WIRES), "÷ bare"):
        table.add_column(heading, justify="right", no_wrap=True)
    limits = {each.name: f"{each.sign} {each.limit:g}" for each in WIRE_TARGETS}
    ratios = {name for name in figures if name.startswith("wire_ratio_")}
    for of_both in (
        *(name for name in limits if name in ratios),
        *sorted(ratios - limits.keys()),
    ):
        name = of_both.removeprefix("wire_ratio_")
        served = [figures.get(f"wire_{wire}_{name}") for wire in WIRES]
        of_one = name.replace("append_r3_", "append_")
        bare = [figures.get(f"machine_wire_{wire}_{of_one}") for wire in WIRES]
        table.add_row(
            name,
            *map(quantity, served),
            f"{figures[of_both]:.2f}",
            limits.get(of_both, ""),
            *map(quantity, bare),
            ratio(served[-1] or 0.0, bare[-1]),
        )
    return table


def _subject(name: str) -> str:
    """Of a figure of tables: typed ones, or the second word of its name."""
    first, second, *_ = name.split("_")
    return first if first == "typed" else second


def _beside(value: float, others: Mapping[str, float]) -> Iterator[RenderableType]:
    go = others.get("go")
    yield from (quantity(value), quantity(go), ratio(value, go))
    yield from (quantity(others.get(server)) for server in ("nats", "kafka"))


def _table(title: str, first: str) -> Table:
    table = Table(title=title, caption="÷ Go: ours divided by Go's with one broker", box=SIMPLE)
    table.add_column(first, overflow="fold")
    return table
