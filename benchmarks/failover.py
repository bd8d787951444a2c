"""``python -m benchmarks.failover``: how long appends fail when a broker dies, or wait when it leaves.

Four brokers in three zones, three replicas. Small appends are begun at a steady pace, whatever
becomes of those before, half of them by a client that knows the route and half by one that asks
another broker; so each moment has an append that shows how long it took.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import uvloop

from benchmarks import figures as results, machine
from benchmarks.bench import journal_spec
from benchmarks.targets import FAILOVER_TARGETS, judge
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.platform import tools
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["Load", "main"]

_LATEST = Path(__file__).with_name("results") / "latest.json"
_ZONES = "aabc"
_JOURNAL = "bench/failover"
_REPLICATION = 3
_PACE_S = 0.02
_UNDER_WAY_MAX = 1000
_CONTENT = b"x" * 100
_READY_TIMEOUT_S = 60.0
# Brokers have looked at each other, and the load has filled its caches.
_SETTLE_S = 2.0
_AFTER_S = 1.0
_BASELINE_S = 3.0


@final
class Load:
    """Appends begun at a steady pace, and when each began and ended."""

    def __init__(self, clients: list[AsyncClient], clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self._tasks = TaskGroup("load")
        self._under_way = 0
        self.done: list[tuple[float, float]] = []
        """Begin and end of those that were acknowledged, by end."""
        self.failures: list[str] = []

    async def run(self) -> None:
        """Begin appends until cancelled, which ends those under way."""
        number = 0
        try:
            while True:
                if self._under_way < _UNDER_WAY_MAX:
                    client = self._clients[number % len(self._clients)]
                    self._tasks.spawn(self._append(client))
                number += 1
                await asyncio.sleep(_PACE_S)
        finally:
            await self._tasks.close()

    async def _append(self, client: AsyncClient) -> None:
        begun = self._clock.monotonic()
        self._under_way += 1
        try:
            await client.append(_JOURNAL, _CONTENT)
        except GazetteError as err:
            self.failures.append(str(err))
        else:
            self.done.append((begun, self._clock.monotonic()))
        finally:
            self._under_way -= 1

    async def first_since(self, since: float, *, timeout_s: float) -> float:
        """Seconds from `since` until an append that was begun later is acknowledged.

        Raises: SetupError: none was.
        """
        while self._clock.monotonic() - since < timeout_s:
            for begun, ended in self.done:
                if begun >= since:
                    return ended - since
            await asyncio.sleep(_PACE_S / 4)
        last = self.failures[-1] if self.failures else "none failed"
        raise SetupError(f"no append succeeded within {timeout_s} s; the last failure: {last}")

    def longest_ms(self, since: float) -> float:
        """The longest that an append took of those that ended after `since`, in milliseconds."""
        return 1000 * max(ended - begun for begun, ended in self.done if ended >= since)


@asynccontextmanager
async def _cluster(
    folder: Path, etcd: str, prefix: str, *, lease_s: float, flags: tuple[str, ...] = ()
) -> AsyncIterator[BrokerCluster]:
    await asyncio.to_thread(folder.mkdir)
    flags = ("--log.level=warn", "--broker.drain-timeout=30s", *flags)
    async with BrokerCluster(
        folder, etcd=etcd, prefix=prefix, zones=_ZONES, lease_s=lease_s, flags=flags
    ) as cluster:
        async with AsyncClient(ClientConfig(address=cluster.address)) as client:
            spec = replace(journal_spec(_JOURNAL, "raw"), replication=_REPLICATION)
            await client.apply([Change(spec)])
        yield cluster


async def _primary(cluster: BrokerCluster, clock: Clock) -> str:
    """The name of the primary, once all replicas are in place."""
    deadline = clock.monotonic() + _READY_TIMEOUT_S
    async with AsyncClient(ClientConfig(address=cluster.address)) as client:
        while clock.monotonic() < deadline:
            route = (await client.get(_JOURNAL)).route
            if len(route.members) == _REPLICATION and route.primary >= 0:
                return route.members[route.primary].suffix
            await asyncio.sleep(0.1)
    raise SetupError(f"{_JOURNAL} has no {_REPLICATION} replicas after {_READY_TIMEOUT_S} s")


@asynccontextmanager
async def _loaded(cluster: BrokerCluster, clock: Clock) -> AsyncIterator[tuple[Load, str]]:
    """A load that goes on for the block, and the primary's name."""
    primary = await _primary(cluster, clock)
    # Of a broker that stays, so that no balancer has to notice anything.
    address = next(b.address for name, b in cluster.brokers.items() if name != primary)
    async with (
        AsyncClient(ClientConfig(address=address)) as proxied,
        AsyncClient(ClientConfig(address=address, route_cache_size=16)) as routed,
    ):
        load, tasks = Load([proxied, routed], clock), TaskGroup("bench")
        try:
            tasks.spawn(load.run())
            await load.first_since(clock.monotonic(), timeout_s=_READY_TIMEOUT_S)
            await asyncio.sleep(_SETTLE_S)
            yield load, primary
        finally:
            await tasks.close()


async def _measure_kills(cluster: BrokerCluster, clock: Clock, *, runs: int) -> list[float]:
    """Seconds from SIGKILL of the primary until appends succeed again, for each run."""
    found = []
    for _ in range(runs):
        async with _loaded(cluster, clock) as (load, primary):
            killed_at = clock.monotonic()
            cluster.kill(primary)
            found.append(await load.first_since(killed_at, timeout_s=40.0))
        await cluster.start(primary)
    return found


async def _measure_drains(cluster: BrokerCluster, clock: Clock, *, runs: int) -> list[Figures]:
    """The longest append while a primary leaves, and before that, for each run."""
    found: list[Figures] = []
    for _ in range(runs):
        async with _loaded(cluster, clock) as (load, primary):
            await asyncio.sleep(_BASELINE_S)
            stopped_at = clock.monotonic()
            before_ms = load.longest_ms(stopped_at - _BASELINE_S)
            await cluster.drain(primary)
            left_s = clock.monotonic() - stopped_at
            await asyncio.sleep(_AFTER_S)
            found.append(
                {
                    "drain_stall_ms_max": load.longest_ms(stopped_at),
                    "drain_before_ms_max": before_ms,
                    "drain_s": left_s,
                    "drain_failed_appends": float(len(load.failures)),
                }
            )
        await cluster.start(primary)
    return found


async def _measure(folder: Path, etcd: str, clock: Clock, *, runs: int) -> Figures:
    figures: Figures = {}

    def say(found: Figures) -> None:
        figures.update(found)
        print("  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)

    is_off = ("--broker.evict-after=0s",)
    async with _cluster(folder / "5", etcd, "/bench/5", lease_s=5, flags=is_off) as cluster:
        seconds = await _measure_kills(cluster, clock, runs=runs)
        say({"failover_kill_lease5_s": statistics.median(seconds)})
        say({"failover_kill_lease5_s_max": max(seconds)})
    async with _cluster(folder / "20", etcd, "/bench/20", lease_s=20) as cluster:
        seconds = await _measure_kills(cluster, clock, runs=runs)
        say({"failover_kill_detected_s": statistics.median(seconds)})
        say({"failover_kill_detected_s_max": max(seconds)})
        drains = await _measure_drains(cluster, clock, runs=runs)
        say({name: max(drain[name] for drain in drains) for name in drains[0]})
    return figures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each case (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument(
        "--output", type=Path, default=_LATEST, help="result to add to (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="write no result")
    return parser.parse_args()


def main() -> int:
    """Run, and give the exit status."""
    arguments = _arguments()
    clock = SystemClock()
    try:
        binary = tools.etcd()
        gc.collect()
        gc.freeze()  # a full pass over all modules would show as a stall
        with (
            tempfile.TemporaryDirectory(prefix="gazette-failover-") as folder,
            EtcdServer(binary) as etcd,
        ):
            found = uvloop.run(_measure(Path(folder), etcd.endpoint, clock, runs=arguments.runs))
        verdicts = judge(found, FAILOVER_TARGETS)
        for verdict in verdicts:
            print(verdict.line())
        if not arguments.dry_run:
            result = {
                "date": clock.now().isoformat(timespec="seconds"),
                "machine": machine.describe(),
                "versions": machine.versions() | {"etcd": machine.program_version(binary)},
                "figures": {name: results.rounded(value) for name, value in found.items()},
            }
            results.write(arguments.output, results.merged(results.load(arguments.output), result))
            print(f"written: {arguments.output}")
    except GazetteError as err:
        print(f"failover: {err}", file=sys.stderr)
        return 2
    return 1 if arguments.check and not all(verdict.is_met for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
