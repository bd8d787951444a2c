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

__all__ = ["Figures", "load", "medians", "merged", "percentile", "rounded", "write"]

Figures = dict[str, float]
"""Values by name; the name ends with the unit."""

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


def merged(previous: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """`result`, with those figures of `previous` that it does not have.

    Several benchmarks share a file, each with figures of its own; all else is of the last one.
    """
    figures = {**previous.get("figures", {}), **result["figures"]}
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
