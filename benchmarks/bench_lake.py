"""``python -m benchmarks.bench_lake``: tables, from an append to an answer in SQL.

Each group starts servers of its own, and ends them: `sql` asks without a server of SQL, `definitions` load
in Dagster, `freshness` and `backlog` are of whole platforms, `ticks` of the sensor over a broker and a
metastore, run here. `typed` makes Iceberg tables by Spark, started here; `typed_freshness` lets a platform do it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import DagsterInstance
from rich.console import Console

from benchmarks import figures as results, machine
from benchmarks.lake_backlog import Backlog, count_pruned, register_backlog
from benchmarks.lake_definitions import measure_definitions
from benchmarks.lake_freshness import FRESHNESS_TABLES, measure_flush, measure_freshness
from benchmarks.lake_platform import lake_platform
from benchmarks.lake_sensor import PlatformTicks, SensorTicks
from benchmarks.lake_sql import measure_local_sql
from benchmarks.lake_ticks import IdleTables, measure_idle_ticks
from benchmarks.lake_typed import (
    TYPED_FRESHNESS_TABLES,
    measure_conversion,
    measure_typed_freshness,
)
from benchmarks.report import lake_table
from benchmarks.targets import LAKE_TARGETS, judge
from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.ops.clock import SystemClock
from gazette_platform.platform import tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["main"]

_LATEST = Path(__file__).with_name("results") / "latest.json"
_WIDTH = 110
_SERVERS = ("broker-1", "metastore")


def _measure_fresh(clock: Clock) -> Figures:
    """All that a whole platform does by itself, or by a command of `gazctl`."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-lake-fresh-") as root,
        lake_platform(Path(root) / "platform", tables=FRESHNESS_TABLES) as platform,
        Client(ClientConfig(address=platform.endpoints.broker)) as client,
    ):
        return {
            **measure_freshness(platform, client, clock),
            **measure_flush(platform, client, clock),
        }


def _measure_ticks(clock: Clock) -> Figures:
    """Idle ticks, and what servers do for them."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-lake-ticks-") as root,
        lake_platform(Path(root) / "platform", without=("trino", "dagster")) as platform,
        Client(ClientConfig(address=platform.endpoints.broker)) as client,
        DagsterInstance.local_temp(str(platform.layout.dagster)) as instance,
    ):
        idle = IdleTables()
        idle.publish(client)
        idle.write_specs(platform.layout.tables)
        ticks = SensorTicks.of(platform.settings, instance, clock)
        pids = {name.partition("-")[0]: platform.endpoints.pids[name] for name in _SERVERS}
        return measure_idle_ticks(idle, ticks, clock, pids=pids)


def _measure_backlog(clock: Clock) -> Figures:
    """A backlog that a whole platform registers, and an hour of it queried."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-lake-backlog-") as root,
        lake_platform(Path(root) / "platform") as platform,
        Client(ClientConfig(address=platform.endpoints.broker)) as client,
        DagsterInstance.from_config(str(platform.layout.dagster)) as instance,
    ):
        layout, backlog = platform.layout, Backlog()
        ends = backlog.store(layout.fragments)
        backlog.publish(client, clock)
        ticks = PlatformTicks(instance, clock)
        trino = TrinoSession(platform.endpoints.trino)
        return {
            **register_backlog(backlog, ends, ticks, layout.tables, clock),
            **count_pruned(backlog, trino, layout.fragments, clock),
        }


def _measure_typed(clock: Clock) -> Figures:
    """Typed tables of some GB, made by a Spark of this process."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-lake-typed-") as root,
        lake_platform(Path(root) / "platform", without=("trino", "dagster")) as platform,
        Client(ClientConfig(address=platform.endpoints.broker)) as client,
        _environment(platform.environment),
    ):
        return measure_conversion(platform, client, clock)


def _measure_typed_freshness(clock: Clock) -> Figures:
    """A typed table that a platform keeps current."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-lake-typed-fresh-") as root,
        lake_platform(
            Path(root) / "platform", without=("dagster",), tables=TYPED_FRESHNESS_TABLES
        ) as platform,
        Client(ClientConfig(address=platform.endpoints.broker)) as client,
    ):
        return measure_typed_freshness(platform, client, clock)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have programs that this process starts find a platform."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_GROUPS: dict[str, Callable[[Clock], Figures]] = {
    "sql": measure_local_sql,
    "definitions": measure_definitions,
    "freshness": _measure_fresh,
    "ticks": _measure_ticks,
    "backlog": _measure_backlog,
    "typed": _measure_typed,
    "typed_freshness": _measure_typed_freshness,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_lake")
    parser.add_argument(
        "--only", nargs="+", choices=_GROUPS, default=list(_GROUPS), help="groups to run"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument(
        "--output", type=Path, default=_LATEST, help="result to add to (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="write no result")
    return parser.parse_args()


def main() -> int:
    """Run, and give the exit status: 0 unless something failed, or --check found a miss."""
    arguments = _arguments()
    clock = SystemClock()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    say = partial(console.print, highlight=False, soft_wrap=True)
    logging.getLogger("dagster").setLevel(logging.WARNING)  # each tick says what it registered
    figures: Figures = {}
    try:
        for group in arguments.only:
            measured = _GROUPS[group](clock)
            found = {name: results.rounded(value) for name, value in measured.items()}
            say(f"{group}: " + "  ".join(f"{name} {value:g}" for name, value in found.items()))
            figures |= found
        say(lake_table(figures))
        verdicts = judge(figures, LAKE_TARGETS)
        for verdict in verdicts:
            say(verdict.line())
        if not arguments.dry_run:
            result = {
                "date": clock.now().isoformat(timespec="seconds"),
                "machine": machine.describe(),
                "versions": machine.versions() | {"etcd": machine.program_version(tools.etcd())},
                "figures": figures,
            }
            results.write(arguments.output, results.merged(results.load(arguments.output), result))
            say(f"written: {arguments.output}")
    except GazetteError as err:
        print(f"bench_lake: {err}", file=sys.stderr)
        return 2
    return 1 if arguments.check and not all(verdict.is_met for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
