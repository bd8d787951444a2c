"""``python -m benchmarks.by_wire``: the figures of both wires beside each other, from a result that was kept."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import figures as results
from benchmarks.figures import WIRES
from benchmarks.report import wire_table
from benchmarks.targets import WIRE_TARGETS, judge
from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["add_wire_option", "show_wires", "use_wire"]

_LATEST = Path(__file__).with_name("results") / "latest.json"
_WIDTH = 130
# All servers of `gazette_platform.testing` follow it, and so do their own processes.
_VARIABLE = "GAZETTE_TEST_WIRE"


def add_wire_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--wire``; see `use_wire`."""
    parser.add_argument(
        "--wire",
        choices=WIRES,
        help="--broker.wire of all brokers; names of figures begin with wire_WIRE_ then",
    )


def use_wire(wire: str | None) -> None:
    """Let all servers that this process starts use a wire; None: their default."""
    if wire is not None:
        os.environ[_VARIABLE] = wire


def show_wires(figures: Mapping[str, float], console: Console) -> bool:
    """Print the table, and a line for each target that was measured. Returns: whether all of these are met."""
    console.print(wire_table(figures))
    verdicts = [each for each in judge(figures, WIRE_TARGETS) if each.value is not None]
    for verdict in verdicts:
        console.print(verdict.line(), highlight=False, soft_wrap=True)
    return all(verdict.is_met for verdict in verdicts)


def main() -> int:
    """Print, and give the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_wire", description=__doc__)
    parser.add_argument("result", type=Path, nargs="?", default=_LATEST)
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    arguments = parser.parse_args()
    try:
        figures = results.load(arguments.result).get("figures", {})
    except GazetteError as err:
        print(f"benchmarks: {err}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    is_met = show_wires(figures, console)
    return 1 if arguments.check and not is_met else 0


if __name__ == "__main__":
    sys.exit(main())
