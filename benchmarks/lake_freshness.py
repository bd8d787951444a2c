"""How soon an append is seen in Trino: on a whole platform, by its own sensor, and by `gazctl lake flush`.

Each append is to a journal that is new, and so makes a Hive partition: Trino sees files of one that it
knows without anybody registering them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, final

from benchmarks.lake_platform import lake_journal
from gazette_platform.client import Change
from gazette_platform.errors import LakeError
from gazette_platform.lake.engines.trino import TrinoSession

if TYPE_CHECKING:
    from benchmarks.figures import Figures
    from benchmarks.lake_platform import LakePlatform
    from gazette_platform.client import Client
    from gazette_platform.ops.clock import Clock

__all__ = ["FLUSH_INTERVAL_S", "FRESHNESS_TABLES", "measure_flush", "measure_freshness"]

FLUSH_INTERVAL_S: Final = 60
"""Of the journals whose freshness is measured: the least that brokers allow."""
_FLUSHED_S: Final = 3600
_WINDOWS: Final = 3
_FLUSHES: Final = 5
_POLL_S: Final = 0.05
_SEEN_TIMEOUT_S: Final = 120.0
# Flush windows end at multiples of the interval. An append right behind waits for all of the next one.
_BEHIND_S: Final = 0.1


def _spec(table: str) -> str:
    return (
        f"name: bench.{table}\nselector: name:prefix={table}/\nformat: json\n"
        "columns: [{name: id, type: bigint}]\n"
    )


FRESHNESS_TABLES: Final = {f"{table}.yaml": _spec(table) for table in ("fresh", "flushed")}
"""Specs of the tables, by file name; they must exist when the platform starts."""


@final
class _Watched:
    """A table whose journals hold a record each.

    Args:
        platform: has its spec.
        client: of its brokers.
        clock: gives the time.
        table: name, without schema.
        flush_interval_s: of its journals.
    """

    def __init__(
        self,
        platform: LakePlatform,
        client: Client,
        clock: Clock,
        table: str,
        flush_interval_s: int,
    ) -> None:
        self._platform = platform
        self._client = client
        self._clock = clock
        self._trino = TrinoSession(platform.settings.trino)
        self._table = table
        self._flush_interval_s = flush_interval_s
        self._journals: list[str] = []

    def create(self) -> None:
        """One more journal."""
        journal = f"{self._table}/part={len(self._journals):02}"
        self._client.apply([Change(lake_journal(journal, flush_interval_s=self._flush_interval_s))])
        self._client.write_head(journal)  # once it has a primary
        self._journals.append(journal)

    def append(self) -> None:
        """The record of the newest journal."""
        self._client.append(self._journals[-1], b'{"id":%d}\n' % len(self._journals))

    def flush(self) -> None:
        """Have the table hold what was appended."""
        _gazctl(self._platform, "lake", "flush", f"bench.{self._table}")

    def wait_seen(self, rows: int) -> None:
        """Wait until Trino gives so many rows.

        Raises: LakeError: it does not in time, or gives more.
        """
        deadline = self._clock.monotonic() + _SEEN_TIMEOUT_S
        query = f"SELECT count(*) FROM hive.bench.{self._table}"
        while (found := self._trino.query(query)) != [(rows,)]:
            if found > [(rows,)] or self._clock.monotonic() > deadline:
                raise LakeError(f"{query}: {found}, expected {rows}")
            time.sleep(_POLL_S)


def measure_freshness(platform: LakePlatform, client: Client, clock: Clock) -> Figures:
    """Seconds from the begin of an append until Trino gives it, without any command for that.

    Each append comes right after the end of a flush window, so that it waits as long as one can.

    Raises: LakeError: what was appended is not seen in time.
    """
    table = _Watched(platform, client, clock, "fresh", FLUSH_INTERVAL_S)
    table.create()
    table.append()
    table.flush()  # which makes the table
    table.wait_seen(1)
    begun: list[float] = []
    found: list[float] = []
    for window in range(_WINDOWS + 1):
        table.create()
        time.sleep(FLUSH_INTERVAL_S - clock.unix_s() % FLUSH_INTERVAL_S + _BEHIND_S)
        begun.append(clock.monotonic())
        table.append()
        if window:  # what was appended in the one before is closed now
            table.wait_seen(window + 1)
            found.append(clock.monotonic() - begun[-2])
    return {
        "lake_freshness_s": max(found),
        "lake_freshness_p50_s": statistics.median(found),
        "lake_freshness_flush_interval_s": float(FLUSH_INTERVAL_S),
    }


def measure_flush(platform: LakePlatform, client: Client, clock: Clock) -> Figures:
    """Seconds from the start of `gazctl lake flush` until Trino gives what was appended before.

    Raises: LakeError: the command failed, or what was appended is not seen in time.
    """
    table = _Watched(platform, client, clock, "flushed", _FLUSHED_S)
    found: list[float] = []
    for rows in range(1, _FLUSHES + 2):
        table.create()
        table.append()
        begun = clock.monotonic()
        table.flush()
        table.wait_seen(rows)
        found.append(clock.monotonic() - begun)
    del found[0]  # which made the table
    return {"lake_flush_s": max(found), "lake_flush_p50_s": statistics.median(found)}


def _gazctl(platform: LakePlatform, *argv: str) -> None:
    command = [sys.executable, "-m", "gazette_platform.cli.gazctl", *argv]
    done = subprocess.run(
        command,
        env={**os.environ, **platform.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SEEN_TIMEOUT_S,
    )
    if done.returncode:
        raise LakeError(f"gazctl {' '.join(argv)} ended with {done.returncode}: {done.stderr}")
