"""The wires of brokers, in turn: the same load on a broker with `--broker.wire=grpc`, and on one with `h2`.

Beside each broker a server of the same wire, with handlers that do nothing, takes the load too: what the wire
alone allows.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import cluster, grpc_bound, procfs
from benchmarks.appends import AppendCase
from benchmarks.bench import Bench, create, delete, journal_spec, serving
from benchmarks.content import SIZES
from benchmarks.figures import WIRES, medians
from benchmarks.wire_load import Report
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from benchmarks.bench import Scale
    from benchmarks.content import Payloads
    from benchmarks.figures import Figures
    from gazette_platform.client import AsyncClient
    from gazette_platform.ops.clock import Clock
    from gazette_platform.testing.servers import BrokerServer

    Found = AsyncGenerator[tuple[str, Figures], None]
    Served = tuple[BrokerServer, AsyncClient]

__all__ = ["append_figures", "in_turn", "measure_wire", "run_load"]

_JOURNAL = "bench/wire"
_CASES = (
    AppendCase("raw", "100b", 1),
    AppendCase("raw", "100b", 16),
    AppendCase("raw", "100b", 64),
    AppendCase("raw", "16kib", 8),
    AppendCase("raw", "1mib", 8),
)
_REPLICATED = AppendCase("raw", "100b", 16)
# One process of load and a broker that answers it in batches wait for each other in turn, and both cores are
# half idle: the load would be the bound of what is measured.
_LOAD_PROCESSES = 2
_FROM_CONCURRENCY = 16
_TAIL_SHARE = 0.5  # of the seconds of the other benchmark of tails, since there are four sides
_IDLE_S = 30.0
# A broker at rest looks every five seconds whether it has memory to give back.
_GIVE_BACK_S = 12.0
_LEASE_S = 20  # brokers that rest while others are loaded must not lose theirs
_LOAD_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Side:
    """Servers that take their turn."""

    address: str
    pids: tuple[int, ...]
    clock: Clock

    async def load(self, *arguments: str, processes: int = 1) -> tuple[Report, float]:
        """Run the load generator in as many processes at once.

        Returns: its report, and the CPU seconds of the servers until they rested: hashing and persisting
            trail the appends.
        """
        before = sum(map(procfs.cpu_s, self.pids))
        loads = [run_load(self.address, _JOURNAL, *arguments) for _ in range(processes)]
        report = _together(await asyncio.gather(*loads))
        for pid in self.pids:
            await procfs.idle(pid, self.clock)
        return report, sum(map(procfs.cpu_s, self.pids)) - before

    async def appends(self, case: AppendCase, name: str, window_s: float) -> Figures:
        """The figures of a case, which begin with `name`."""
        processes = _LOAD_PROCESSES if case.concurrency >= _FROM_CONCURRENCY else 1
        report, server_s = await self.load(
            f"--size={SIZES[case.size]}",
            f"--concurrency={case.concurrency // processes}",
            f"--seconds={window_s:g}",
            processes=processes,
        )
        return append_figures(case, name, report, server_s=server_s)

    async def tail(self, window_s: float) -> Figures:
        """How soon a blocking read returns what is appended."""
        report, _ = await self.load("--tail", f"--seconds={window_s:g}")
        return {"tail_p50_ms": report.p50_ms, "tail_p99_ms": report.p99_ms}


def _together(reports: Sequence[Report]) -> Report:
    """One report of loads that ran at once; their percentiles are averaged."""
    count = len(reports)
    return Report(
        calls=sum(each.calls for each in reports),
        elapsed_s=max(each.elapsed_s for each in reports),
        p50_ms=sum(each.p50_ms for each in reports) / count,
        p99_ms=sum(each.p99_ms for each in reports) / count,
        cpu_s=sum(each.cpu_s for each in reports),
    )


async def in_turn(
    measures: Mapping[str, Callable[[], Awaitable[Figures]]], *, rounds: int
) -> Figures:
    """Measure each side once in each round, in both orders, so that all meet the same moods of the machine.

    Args:
        measures: how to measure a side, by what names of its figures begin with.

    Returns: the medians of each side.
    """
    found: dict[str, list[Figures]] = {prefix: [] for prefix in measures}
    order = list(measures.items())
    for _ in range(rounds):
        for prefix, measure in order:
            found[prefix].append(await measure())
        order.reverse()
    return {
        f"{prefix}{name}": value
        for prefix, runs in found.items()
        for name, value in medians(runs).items()
    }


async def run_load(address: str, journal: str, *arguments: str) -> Report:
    """Run the load generator. Raises: SetupError: it failed, or took too long."""
    command = (sys.executable, "-m", "benchmarks.wire_load", address, journal, *arguments)
    try:
        # Not by uvloop, which forks: gRPC's threads do not like that.
        ended = await asyncio.to_thread(
            subprocess.run,
            command,
            stdout=subprocess.PIPE,
            check=True,
            timeout=_LOAD_TIMEOUT_S,
            cwd=Path(__file__).parents[1],
        )
    except subprocess.TimeoutExpired as err:
        raise SetupError(f"the load on {address} did not end in {_LOAD_TIMEOUT_S:g} s") from err
    except subprocess.CalledProcessError as err:
        raise SetupError("the load generator failed; its error is above") from err
    return Report(**json.loads(ended.stdout))


def append_figures(case: AppendCase, name: str, report: Report, *, server_s: float) -> Figures:
    """Rate, latency, and CPU of the servers and of the load, in the units that suit the size."""
    per_s, size = report.calls / report.elapsed_s, SIZES[case.size]
    is_small = case.size == "100b"
    rate = {f"{name}_per_s": per_s} if is_small else {f"{name}_mb_per_s": per_s * size / 1e6}
    return rate | {
        f"{name}_p50_ms": report.p50_ms,
        f"{name}_p99_ms": report.p99_ms,
        f"broker_cpu_us_per_{name}": server_s / report.calls * 1e6,
        f"load_cpu_us_per_{name}": report.cpu_s / report.calls * 1e6,
    }


async def measure_wire(
    folder: Path, *, etcd: str, payloads: Payloads, clock: Clock, scale: Scale
) -> Found:
    """Yields what was measured, and the figures of all sides."""
    starts = {
        f"wire_{wire}_": partial(_measure_start, folder / f"start-{wire}", etcd, wire, clock)
        for wire in WIRES
    }
    yield "start of a broker", await in_turn(starts, rounds=scale.runs)
    async with AsyncExitStack() as stack:
        benches: dict[str, Bench] = {}
        for wire in WIRES:
            served = _serving(folder / f"broker-{wire}", etcd, wire)
            broker, client = await stack.enter_async_context(served)
            benches[wire] = Bench(client, broker, payloads, clock, scale)
        yield "brokers at rest", await _measure_idle(benches)
        sides: dict[str, _Side] = {}
        for wire, bench in benches.items():
            sides[f"wire_{wire}_"] = _Side(bench.broker.address, (bench.broker.pid,), clock)
            toy = grpc_bound.running("benchmarks.wire_bound", wire)
            pid, port = stack.enter_context(toy)
            sides[f"machine_wire_{wire}_"] = _Side(f"http://127.0.0.1:{port}", (pid,), clock)
        async for label, found in _measure_loads(sides, benches, scale):
            yield label, found
        await asyncio.sleep(_GIVE_BACK_S)
        yield (
            "brokers after the load",
            {
                f"wire_{wire}_broker_rss_mb_loaded": procfs.rss_mb(bench.broker.pid)
                for wire, bench in benches.items()
            },
        )
    yield (
        "append 100b x 16, raw, three replicas",
        await _measure_replicated(folder, etcd, clock, scale),
    )


def _serving(folder: Path, etcd: str, wire: str) -> AbstractAsyncContextManager[Served]:
    flags = (f"--broker.wire={wire}", f"--etcd.lease={_LEASE_S}s")
    return serving(folder, etcd=etcd, prefix=f"/bench/wire/{folder.name}", flags=flags)


async def _measure_start(folder: Path, etcd: str, wire: str, clock: Clock) -> Figures:
    begun = clock.monotonic()
    async with _serving(folder, etcd, wire) as (broker, _):
        start_s = clock.monotonic() - begun
        await procfs.idle(broker.pid, clock)
        return {"broker_start_s": start_s, "broker_rss_mb_start": procfs.rss_mb(broker.pid)}


async def _measure_idle(benches: Mapping[str, Bench]) -> Figures:
    """CPU of all brokers over the same seconds, in which nothing happens."""
    for bench in benches.values():
        await bench.settle()
    before = {wire: procfs.threads_cpu_s(bench.broker.pid) for wire, bench in benches.items()}
    await asyncio.sleep(_IDLE_S)
    used = {
        wire: procfs.threads_cpu_s(bench.broker.pid) - before[wire]
        for wire, bench in benches.items()
    }
    return {
        f"wire_{wire}_broker_idle_cpu_percent": used_s / _IDLE_S * 100
        for wire, used_s in used.items()
    }


async def _measure_loads(
    sides: Mapping[str, _Side], benches: Mapping[str, Bench], scale: Scale
) -> Found:
    """Yields each case.

    The journal is deleted after each turn. A virtual machine gets the memory of its file cache from the host, a
    page at a time, which is slower than the appends: all turns write to the same pages.
    """
    for case in _CASES:

        async def turn(prefix: str, case: AppendCase = case) -> Figures:
            bench = benches.get(prefix.removeprefix("wire_").removesuffix("_"))
            if bench is not None:
                await create(bench.client, journal_spec(_JOURNAL, case.codec))
            found = await sides[prefix].appends(case, case.figure, scale.window_s)
            if bench is not None:
                await delete(bench, _JOURNAL)
            return found

        turns = {prefix: partial(turn, prefix) for prefix in sides}
        yield case.label, await in_turn(turns, rounds=scale.runs)
    for bench in benches.values():
        await create(bench.client, journal_spec(_JOURNAL, "raw"))
    tails = {
        prefix: partial(side.tail, scale.tail_s * _TAIL_SHARE) for prefix, side in sides.items()
    }
    yield "tail", await in_turn(tails, rounds=scale.runs)


async def _measure_replicated(folder: Path, etcd: str, clock: Clock, scale: Scale) -> Figures:
    """Small appends to three replicas. CPU is that of all three brokers."""
    sides: dict[str, _Side] = {}
    async with AsyncExitStack() as stack:
        for wire in WIRES:
            home = folder / f"three-{wire}"
            await asyncio.to_thread(home.mkdir)
            prefix = f"/bench/wire/three-{wire}"
            served = cluster.serving(home, etcd, prefix, f"--broker.wire={wire}")
            brokers, client = await stack.enter_async_context(served)
            await create(client, replace(journal_spec(_JOURNAL, "raw"), replication=3))
            primary = await _primary_of(client)
            sides[f"wire_{wire}_"] = _Side(primary, tuple(cluster.pids(brokers)), clock)
        name = _REPLICATED.figure.replace("append_", "append_r3_", 1)
        turns = {
            prefix: partial(side.appends, _REPLICATED, name, scale.window_s)
            for prefix, side in sides.items()
        }
        return await in_turn(turns, rounds=scale.runs)


async def _primary_of(client: AsyncClient) -> str:
    """The endpoint of the primary of the journal. Raises: SetupError: it has none."""
    for listed in await client.list(f"name={_JOURNAL}"):
        primary = listed.route.primary_id
        if primary is not None and (endpoint := listed.route.endpoint_of(primary)):
            return endpoint
    raise SetupError(f"journal {_JOURNAL} has no primary")
