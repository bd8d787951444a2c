"""``python -m benchmarks.cluster``: appends to three replicas, and what 10,000 idle journals cost.

Three brokers in three zones and the client share the machine's cores, so every byte is moved, hashed
and written three times by them: figures are of a cluster squeezed into one host.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks import figures as results, machine, procfs
from benchmarks.bench import FULL, QUICK, Scale, journal_spec
from benchmarks.by_wire import add_wire_option, use_wire
from benchmarks.content import SIZES, Payloads, load_content
from benchmarks.figures import medians
from benchmarks.load import closed_loop
from benchmarks.targets import CLUSTER_TARGETS, judge
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.platform import tools
from gazette_platform.protocol import LabelSelector
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import JournalSpec

__all__ = ["main", "measure_appends", "measure_idle", "pids", "serving"]

_LATEST = Path(__file__).with_name("results") / "latest.json"
_SEED = 2013
_ZONES = "abc"
_LEASE_S = 20.0
_WARM_UP_S = 0.3
_READY_TIMEOUT_S = 60.0

_IDLE_JOURNALS = 10_000
_APPLY_JOURNALS = 100
_IDLE_REFRESH_NS = 3600 * 10**9
_IDLE_SPAN_S = 20.0
_ASSIGN_TIMEOUT_S = 300.0

# Size, appends at a time, codec; and the names of their figures.
_CASES = {
    "append_r3_100b_c16": ("100b", 16, "raw"),
    "append_r3_1mib_c8_raw": ("1mib", 8, "raw"),
    "append_r3_1mib_c8_gzip": ("1mib", 8, "gzip"),
}


def _replicated(spec: JournalSpec, replication: int) -> JournalSpec:
    return replace(spec, replication=replication)


def pids(cluster: BrokerCluster) -> list[int]:
    """The process ids of all brokers."""
    return [broker.pid for broker in cluster.brokers.values()]


async def _settle(cluster: BrokerCluster, clock: Clock, *, timeout_s: float = 15.0) -> None:
    for pid in pids(cluster):
        await procfs.idle(pid, clock, timeout_s=timeout_s)


@asynccontextmanager
async def serving(
    folder: Path, etcd: str, prefix: str, *flags: str
) -> AsyncIterator[tuple[BrokerCluster, AsyncClient]]:
    """Three brokers in three zones on the files of `folder`, and a client of them."""
    cluster = BrokerCluster(
        folder,
        etcd=etcd,
        prefix=prefix,
        zones=_ZONES,
        lease_s=_LEASE_S,
        flags=("--log.level=warn", *flags),
    )
    async with cluster:
        first = next(iter(cluster.brokers.values()))
        config = ClientConfig(address=first.address, file_root=cluster.fragments)
        async with AsyncClient(config) as client:
            yield cluster, client


async def measure_appends(
    cluster: BrokerCluster, client: AsyncClient, payloads: Payloads, clock: Clock, scale: Scale
) -> Figures:
    """Appends to journals of three replicas: rate, latency, and CPU of all brokers together."""
    found: Figures = {}
    for figure, (size, concurrency, codec) in _CASES.items():
        journal = f"bench/{figure}"
        await client.apply([Change(_replicated(journal_spec(journal, codec), 3))])
        async with asyncio.timeout(_READY_TIMEOUT_S):
            await client.append(journal, b"first\n")
            await client.append(journal, b"second\n")
        pieces = payloads.of(SIZES[size])

        async def append(journal: str = journal, pieces: object = pieces) -> None:
            await client.append(journal, next(pieces))  # type: ignore[call-overload]

        await closed_loop(append, clock, concurrency=concurrency, window_s=_WARM_UP_S)
        runs: list[Figures] = []
        for _ in range(scale.runs):
            await _settle(cluster, clock)
            before = sum(procfs.cpu_s(pid) for pid in pids(cluster))
            load = await closed_loop(
                append, clock, concurrency=concurrency, window_s=scale.window_s
            )
            await _settle(cluster, clock)
            used = sum(procfs.cpu_s(pid) for pid in pids(cluster)) - before
            runs.append(
                _figures(figure, load.per_s, SIZES[size] / 1e6, used / len(load.latencies_s))
                | {
                    f"{figure}_p50_ms": load.latency_ms(0.5),
                    f"{figure}_p99_ms": load.latency_ms(0.99),
                }
            )
        of_case = medians(runs)
        _say(figure, of_case)
        found |= of_case
    found["cluster_r3_rss_mb_max"] = max(procfs.peak_rss_mb(pid) for pid in pids(cluster))
    return found


def _figures(figure: str, per_s: float, mb: float, cpu_s: float) -> Figures:
    if figure.endswith("c16"):
        return {f"{figure}_per_s": per_s, f"brokers_cpu_us_per_{figure}": cpu_s * 1e6}
    codec = figure.rpartition("_")[2]
    return {
        f"{figure}_mb_per_s": per_s * mb,
        f"brokers_cpu_s_per_gb_append_r3_{codec}": cpu_s / mb * 1e3,
    }


async def measure_idle(
    cluster: BrokerCluster, client: AsyncClient, clock: Clock, *, journals: int
) -> Figures:
    """Memory and CPU of brokers whose journals do nothing, a List of all, and one append."""
    names = [f"idle/part-{number:05}" for number in range(journals)]
    begun = clock.monotonic()
    for at in range(0, journals, _APPLY_JOURNALS):
        specs = [_idle_spec(name) for name in names[at : at + _APPLY_JOURNALS]]
        await client.apply([Change(spec) for spec in specs])
    await _assigned(client, journals)
    found: Figures = {"idle_10k_assigned_s": clock.monotonic() - begun}
    await _settle(cluster, clock, timeout_s=60.0)

    before = [procfs.cpu_s(pid) for pid in pids(cluster)]
    await asyncio.sleep(_IDLE_SPAN_S)
    used = [procfs.cpu_s(pid) - was for pid, was in zip(pids(cluster), before, strict=True)]
    found["idle_10k_cpu_percent_max"] = max(used) / _IDLE_SPAN_S * 100
    found["idle_10k_rss_mb_max"] = max(procfs.rss_mb(pid) for pid in pids(cluster))

    begun = clock.monotonic()
    listed = await client.list(LabelSelector.parse("prefix=idle/"))
    found["idle_10k_list_s"] = clock.monotonic() - begun
    found["idle_10k_listed"] = float(len(listed))

    # One journal without appends yet, on a connection that is open already.
    latencies: list[float] = []
    for name in names[:: journals // 20]:
        begun = clock.monotonic()
        await client.append(name, b"the first record\n")
        latencies.append(clock.monotonic() - begun)
    found["idle_10k_first_append_ms"] = sorted(latencies)[len(latencies) // 2] * 1e3
    found["idle_10k_first_append_max_ms"] = max(latencies) * 1e3
    _say("idle", found)
    return found


def _idle_spec(name: str) -> JournalSpec:
    spec = _replicated(journal_spec(name, "gzip"), 2)
    return replace(spec, fragment=replace(spec.fragment, refresh_interval_ns=_IDLE_REFRESH_NS))


async def _assigned(client: AsyncClient, journals: int) -> None:
    """Wait until each journal has its two replicas and a primary."""
    async with asyncio.timeout(_ASSIGN_TIMEOUT_S):
        while True:
            listed = await client.list(LabelSelector.parse("prefix=idle/"))
            whole = sum(len(j.route.members) == 2 and j.route.primary >= 0 for j in listed)
            if whole == journals:
                return
            await asyncio.sleep(1.0)


async def _measure(arguments: argparse.Namespace, folder: Path, etcd: str, clock: Clock) -> Figures:
    found: Figures = {}
    scale = QUICK if arguments.quick else FULL
    if "appends" in arguments.only:
        payloads = Payloads(load_content(), seed=_SEED)
        gc.collect()
        gc.freeze()
        async with serving(folder / "appends", etcd, "/bench/appends") as (cluster, client):
            found |= await measure_appends(cluster, client, payloads, clock, scale)
    if "idle" in arguments.only:
        flags = (f"--broker.limit={4 * arguments.journals}",)
        async with serving(folder / "idle", etcd, "/bench/idle", *flags) as (cluster, client):
            found |= await measure_idle(cluster, client, clock, journals=arguments.journals)
    return found


def _say(label: str, found: Figures) -> None:
    print(
        f"{label}: " + "  ".join(f"{name}={value:g}" for name, value in found.items()), flush=True
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of each case")
    parser.add_argument(
        "--only", nargs="+", choices=("appends", "idle"), default=("appends", "idle")
    )
    parser.add_argument("--journals", type=int, default=_IDLE_JOURNALS, help="idle ones")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--folder", type=Path, help="where spools and stores go (default: TMPDIR)")
    parser.add_argument(
        "--output", type=Path, help="result to add to (default: results/latest.json)"
    )
    add_wire_option(parser)
    return parser.parse_args()


def main() -> int:
    """Run, and give the exit status: 0 unless something failed, or --check found a miss."""
    arguments = _arguments()
    use_wire(arguments.wire)
    clock = SystemClock()
    output = arguments.output or (None if arguments.quick else _LATEST)
    try:
        binary = tools.etcd()
        with (
            tempfile.TemporaryDirectory(prefix="gazette-bench-", dir=arguments.folder) as folder,
            EtcdServer(binary) as etcd,
        ):
            for name in arguments.only:
                Path(folder, name).mkdir()
            found = uvloop.run(_measure(arguments, Path(folder), etcd.endpoint, clock))
        if output:
            rounded = {name: results.rounded(value) for name, value in found.items()}
            result = {
                "date": clock.now().isoformat(timespec="seconds"),
                "machine": machine.describe(),
                "versions": machine.versions() | {"etcd": machine.program_version(binary)},
                "figures": results.of_wire(rounded, arguments.wire),
            }
            results.write(output, results.merged(results.load(output), result))
            print(f"written: {output}")
    except GazetteError as err:
        print(f"benchmarks: {err}", file=sys.stderr)
        return 1
    verdicts = judge(found, CLUSTER_TARGETS)
    for verdict in verdicts:
        print(verdict.line())
    return 1 if arguments.check and not all(verdict.is_met for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
