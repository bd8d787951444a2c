"""What a tick of the sensor costs while nothing arrives: a hundred tables of ten journals."""

from __future__ import annotations

import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from benchmarks import procfs
from benchmarks.lake_platform import lake_journal
from gazette_platform.client import Change
from gazette_platform.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.figures import Figures
    from benchmarks.lake_sensor import SensorTicks
    from gazette_platform.client import Client
    from gazette_platform.ops.clock import Clock

__all__ = ["IdleTables", "measure_idle_ticks"]

_COLUMNS = [f"c{n}" for n in range(30)]
_LINE = json.dumps({name: number for number, name in enumerate(_COLUMNS)}).encode() + b"\n"
_APPLY_JOURNALS = 100
_APPENDS_AT_A_TIME = 16
_FLUSH_TIMEOUT_S = 120.0
_SETTLE_TIMEOUT_S = 600.0
# Quiet ticks in a row after which nothing is left to report.
_QUIET = 3
_TICKS = 10
_FLUSH_INTERVAL_S = 3600


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTables:
    """Tables whose journals hold one fragment each, and get no more."""

    tables: int = 100
    journals: int = 10
    """Of a table."""

    def names(self) -> list[str]:
        """Of the tables."""
        return [f"bench.idle{n:03}" for n in range(self.tables)]

    def journals_of(self, table: str) -> list[str]:
        """Names of a table's journals."""
        prefix = table.rpartition(".")[2]
        return [f"{prefix}/part={n:02}" for n in range(self.journals)]

    def write_specs(self, folder: Path) -> None:
        """A table spec each, of thirty columns."""
        columns = "".join(f"  - {{name: {name}, type: bigint}}\n" for name in _COLUMNS)
        for table in self.names():
            prefix = table.rpartition(".")[2]
            (folder / f"{prefix}.yaml").write_text(
                f"name: {table}\nselector: name:prefix={prefix}/\nformat: json\ncolumns:\n{columns}"
            )

    def publish(self, client: Client) -> None:
        """Apply the journals, and have a fragment of each stored."""
        journals = [journal for table in self.names() for journal in self.journals_of(table)]
        for at in range(0, len(journals), _APPLY_JOURNALS):
            names = journals[at : at + _APPLY_JOURNALS]
            specs = [lake_journal(name, flush_interval_s=_FLUSH_INTERVAL_S) for name in names]
            client.apply([Change(spec) for spec in specs])
        with ThreadPoolExecutor(_APPENDS_AT_A_TIME) as pool:
            for _ in pool.map(lambda journal: client.append(journal, _LINE), journals):
                pass
        client.flush("name:prefix=idle", timeout_s=_FLUSH_TIMEOUT_S)

    def are_registered(self, ticks: SensorTicks) -> bool:
        """Whether all that was published is."""
        return all(
            [cursor.complete_to for cursor in ticks.registered(table).values()]
            == [len(_LINE)] * self.journals
            for table in self.names()
        )


def measure_idle_ticks(
    idle: IdleTables, ticks: SensorTicks, clock: Clock, *, pids: Mapping[str, int]
) -> Figures:
    """CPU of a tick that finds nothing new, the dearest of ten; and what servers have to do for it.

    Args:
        idle: what is published.
        ticks: over them; those that register them come first, and do not count.
        clock: gives the time.
        pids: of servers that lead sessions, by the name that their CPU has in figures.

    Raises: LakeError: tables are not registered in time, or a tick had something to report.
    """
    _settle(idle, ticks, clock)
    before = {name: procfs.session_cpu_s(pid) for name, pid in pids.items()}
    found = [ticks.tick() for _ in range(_TICKS)]
    told = sum(tick.events for tick in found)
    if told:
        raise LakeError(f"{_TICKS} ticks that should have been idle returned {told} events")
    servers = {
        name: (procfs.session_cpu_s(pid) - before[name]) / _TICKS for name, pid in pids.items()
    }
    return {
        "lake_tick_idle_100_tables_s": max(tick.cpu_s for tick in found),
        "lake_tick_idle_100_tables_p50_s": statistics.median(tick.cpu_s for tick in found),
        "lake_tick_idle_100_tables_elapsed_s": max(tick.elapsed_s for tick in found),
        **{f"lake_tick_idle_{name}_cpu_s": value for name, value in servers.items()},
    }


def _settle(idle: IdleTables, ticks: SensorTicks, clock: Clock) -> None:
    """Tick until all is registered and reported."""
    deadline = clock.monotonic() + _SETTLE_TIMEOUT_S
    quiet = 0
    while quiet < _QUIET:
        if clock.monotonic() > deadline:
            raise LakeError(f"the tables are not registered within {_SETTLE_TIMEOUT_S:g} s")
        events = ticks.tick().events
        quiet = quiet + 1 if not events and idle.are_registered(ticks) else 0
