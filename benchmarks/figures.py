"""Figures: how runs become one number each, and how results are kept."""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any

from gazette_platform.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "WIRES",
    "Figures",
    "load",
    "medians",
    "merged",
    "of_wire",
    "percentile",
    "rounded",
    "wire_ratios",
    "write",
]

Figures = dict[str, float]
"""Values by name; the name ends with the unit."""

WIRES = ("grpc", "h2")
"""Values of --broker.wire, in the order of their turns: the second is compared with the first."""

_DIGITS = 4


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed (nearest rank).

    Args:
        values: in any order, at least one.
        share: 0 < share <= 1, for example 0.99.

    >>> percentile([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    if not values:
        raise ValueError("there are no values to take a percentile of")
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def medians(runs: Iterable[Mapping[str, float]]) -> Figures:
    """Each figure's median over the runs that have it, in order of first appearance."""
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.median(of_name) for name, of_name in values.items()}


def rounded(value: float) -> float:
    """`value` with four significant digits; more would claim what no run repeats.

    >>> rounded(123456.0), rounded(0.0123456)
    (123500.0, 0.01235)
    """
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))


def of_wire(figures: Mapping[str, float], wire: str | None) -> Figures:
    """Return figures by the names that they have if brokers used `wire`; None: the brokers' default.

    Figures of the machine, and those that name a wire, keep their names.

    >>> of_wire({"tail_p50_ms": 0.5, "machine_sha1_mb_per_s": 900.0}, "h2")
    {'wire_h2_tail_p50_ms': 0.5, 'machine_sha1_mb_per_s': 900.0}
    """
    if wire is None:
        return dict(figures)
    return {
        name if name.startswith(("machine_", "wire_")) else f"wire_{wire}_{name}": value
        for name, value in figures.items()
    }


def wire_ratios(figures: Mapping[str, float]) -> Figures:
    """Return ``wire_ratio_NAME`` for each figure NAME of both wires: that of `h2` divided by that of `grpc`.

    >>> wire_ratios(
    ...     {"wire_grpc_tail_p50_ms": 2.0, "wire_h2_tail_p50_ms": 0.5, "wire_h2_other_s": 1.0}
    ... )
    {'wire_ratio_tail_p50_ms': 0.25}
    """
    base, new = (f"wire_{wire}_" for wire in WIRES)
    return {
        f"wire_ratio_{name.removeprefix(base)}": figures[other] / value
        for name, value in figures.items()
        if name.startswith(base) and value and (other := name.replace(base, new, 1)) in figures
    }


def merged(previous: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """`result`, with those figures of `previous` that it does not have, and the ratios of the wires.

    Several benchmarks share a file, each with figures of its own; all else is of the last one.
    """
    figures = {**previous.get("figures", {}), **result["figures"]}
    figures |= {name: rounded(value) for name, value in wire_ratios(figures).items()}
    return {**previous, **result, "figures": dict(sorted(figures.items()))}


def load(path: Path) -> dict[str, Any]:
    """A result as written before; empty if there is none.

    Raises: DataError: the file is something else.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as err:
        raise DataError(f"{path}: not JSON: {err} (remove the file)") from err
    if not isinstance(found, dict) or not isinstance(found.get("figures", {}), dict):
        raise DataError(f"{path}: not the result of a benchmark (remove the file)")
    return found


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Replace the file at once, so that a crash leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    partial.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    partial.replace(path)
