"""``python -m benchmarks``: run all cases, print them beside other servers', keep the result."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from rich.console import Console

from benchmarks import figures as results, grpc_bound, machine, procfs
from benchmarks.append_service import measure_append_service
from benchmarks.appends import measure_appends, measure_writer
from benchmarks.bench import FULL, QUICK, Bench, Scale, serving
from benchmarks.by_wire import add_wire_option, show_wires, use_wire
from benchmarks.cli import measure_cli
from benchmarks.codecs import measure_codecs
from benchmarks.content import Payloads, load_content
from benchmarks.core import measure_core
from benchmarks.fsync import measure_fsync
from benchmarks.matrix import matrix_cases, measure_matrix
from benchmarks.memory import measure_memory
from benchmarks.persist import measure_persist
from benchmarks.reads import measure_reads, measure_s3_reads
from benchmarks.report import appends_table, load_baseline, matrix_table, others_table, quantity
from benchmarks.tail import measure_tail
from benchmarks.targets import judge
from benchmarks.wire import measure_wire
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.platform import tools
from gazette_platform.testing.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

    Cases = Callable[[Bench], AsyncGenerator[tuple[str, Figures], None]]

_LATEST = Path(__file__).with_name("results") / "latest.json"
_DISK_BYTES_MIN = 12 << 30
_SEED = 2013
_WIDTH = 110  # of the tables, if no terminal says otherwise

_GROUPS = (
    *("tail", "persist", "matrix", "appends", "writer", "append_service", "reads", "reads_s3"),
    *("cli", "memory", "core", "fsync", "codecs"),
)
# Takes minutes of its own, so it runs only when it is named.
_WIRE = "wire"


class Run:
    """One run: what it has measured so far."""

    def __init__(
        self, scale: Scale, groups: tuple[str, ...], *, seed: int, clock: Clock, console: Console
    ) -> None:
        self._scale = scale
        self._groups = groups
        self._clock = clock
        self._console = console
        self._payloads = Payloads(load_content(), seed=seed)
        self._machine: list[Figures] = []
        self.figures: Figures = {}

    @property
    def is_whole(self) -> bool:
        """Whether all groups run but those that run only when they are named."""
        return set(_GROUPS) <= set(self._groups)

    async def measure(self, folder: Path, etcd_server: EtcdServer) -> None:
        """Measure every group. What is written is in `folder`, which the caller removes."""
        gc.collect()
        gc.freeze()  # content and modules live as long as we do: collections need not look at them
        etcd = etcd_server.endpoint
        begun, others = self._clock.monotonic(), _others_s(etcd_server)
        await self._measure_machine(folder)
        if chosen := self._cases():
            served = serving(folder / "broker", etcd=etcd, prefix="/bench/load")
            async with served as (broker, client):
                bench = Bench(client, broker, self._payloads, self._clock, self._scale)
                for cases in chosen:
                    await self._collect(cases(bench))
                self.figures["broker_rss_mb_peak_of_run"] = procfs.peak_rss_mb(broker.pid)
        await self._measure_machine(folder)
        if "memory" in self._groups:
            async with serving(folder / "memory", etcd=etcd, prefix="/bench/memory") as servers:
                broker, client = servers
                bench = Bench(client, broker, self._payloads, self._clock, self._scale)
                await self._collect(measure_memory(bench))
        if "core" in self._groups:
            found = await measure_core(folder / "core", etcd=etcd, scale=self._scale)
            self.figures |= found
            self._say("append of 100 B without gRPC", found)
        if "codecs" in self._groups:
            scale, content = self._scale, self._payloads.content
            for label, found in measure_codecs(
                content, self._clock, window_s=scale.machine_s, runs=scale.runs
            ):
                self.figures |= found
                self._say(label, found)
        for group, measure in _APART.items():
            if group in self._groups:
                payloads, clock, scale = self._payloads, self._clock, self._scale
                await self._collect(
                    measure(folder / group, etcd=etcd, payloads=payloads, clock=clock, scale=scale)
                )
        await self._measure_machine(folder)
        self.figures |= results.medians(self._machine)
        elapsed_s = self._clock.monotonic() - begun
        # Cores that something else was using: what the figures are too low by.
        self.figures["machine_other_cores"] = (_others_s(etcd_server) - others) / elapsed_s
        if self.is_whole:
            self.figures["bench_s"] = elapsed_s

    def _cases(self) -> list[Cases]:
        """What one broker is measured with, in turn; no case twice."""
        chosen = {group: cases for group, cases in _CASES.items() if group in self._groups}
        if {"matrix", "appends"} <= chosen.keys():
            chosen["appends"] = partial(measure_appends, but=matrix_cases(self._scale))
        return list(chosen.values())

    async def _measure_machine(self, folder: Path) -> None:
        window_s = self._scale.machine_s
        found = machine.measure(self._payloads.content, folder, self._clock, window_s=window_s)
        found |= await grpc_bound.measure(self._clock, window_s=window_s)
        self._machine.append(found)
        self._say("machine", found)

    async def _collect(self, cases: AsyncGenerator[tuple[str, Figures], None]) -> None:
        async with aclosing(cases):
            async for label, found in cases:
                self.figures |= found
                self._say(label, found)

    def _say(self, label: str, found: Figures) -> None:
        text = "  ".join(f"{name} [b]{quantity(value)}[/b]" for name, value in found.items())
        self._console.print(f"{label}: {text}", highlight=False, soft_wrap=True)


def _others_s(etcd: EtcdServer) -> float:
    """CPU seconds that went to anything but us, our brokers (once they ended) and etcd."""
    return procfs.busy_s() - sum(os.times()[:4]) - procfs.cpu_s(etcd.pid)


_CASES: dict[str, Cases] = {
    "tail": measure_tail,
    "persist": measure_persist,
    "matrix": measure_matrix,
    "appends": measure_appends,
    "writer": measure_writer,
    "append_service": measure_append_service,
    "reads": measure_reads,
    "cli": measure_cli,
}

# Groups that start brokers of their own.
_APART: dict[str, Callable[..., AsyncGenerator[tuple[str, Figures], None]]] = {
    "reads_s3": measure_s3_reads,
    "fsync": measure_fsync,
    _WIRE: measure_wire,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of the main cases")
    parser.add_argument(
        "--only", nargs="+", choices=(*_GROUPS, _WIRE), default=_GROUPS, help="groups to run"
    )
    add_wire_option(parser)
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--seed", type=int, default=_SEED, help="decides what content is appended")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where spools and stores go (default: TMPDIR)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        help="result to write or add to (default: results/latest.json; with --quick, none)",
    )
    return parser.parse_args()


def _result(figures: Figures, *, seed: int, etcd: Path, clock: Clock) -> dict[str, Any]:
    return {
        "date": clock.now().isoformat(timespec="seconds"),
        "seed": seed,
        "machine": machine.describe(),
        "versions": machine.versions() | {"etcd": machine.program_version(etcd)},
        "figures": figures,
    }


def _benchmark(arguments: argparse.Namespace, console: Console) -> int:
    output = arguments.output or (None if arguments.quick else _LATEST)
    previous, baseline = results.load(output) if output else {}, load_baseline()
    clock = SystemClock()
    etcd_binary = tools.etcd()
    run = Run(
        QUICK if arguments.quick else FULL,
        tuple(arguments.only),
        seed=arguments.seed,
        clock=clock,
        console=console,
    )
    with (
        tempfile.TemporaryDirectory(prefix="gazette-bench-", dir=arguments.folder) as folder,
        EtcdServer(etcd_binary) as etcd,
    ):
        free = shutil.disk_usage(folder).free
        if free < _DISK_BYTES_MIN:
            raise SetupError(
                f"only {free >> 30} GiB are free where the benchmark writes, it needs "
                f"{_DISK_BYTES_MIN >> 30} (name another folder with --folder)"
            )
        gc.collect()
        gc.freeze()  # a full pass over all modules would show as latency of the broker
        uvloop.run(run.measure(Path(folder), etcd))
    speed = baseline.speed(run.figures)
    if speed is not None:
        run.figures["machine_speed_ratio"] = speed
    figures = {name: results.rounded(value) for name, value in run.figures.items()}
    result = _result(
        results.of_wire(figures, arguments.wire),
        seed=arguments.seed,
        etcd=etcd_binary,
        clock=clock,
    )
    kept = results.merged(previous, result)
    if output:
        results.write(output, kept)
    for make in (appends_table, others_table, matrix_table):
        if (table := make(figures, baseline)).row_count:
            console.print(table)
    if speed is not None:
        console.print(
            f"machine: {speed:.2f} times as fast as the one that targets and Go's figures are of; "
            f"other programs used {run.figures['machine_other_cores']:.2f} cores meanwhile",
            highlight=False,
            soft_wrap=True,
        )
    verdicts = [each for each in judge(figures) if run.is_whole or each.value is not None]
    for verdict in verdicts:
        console.print(verdict.line(), highlight=False, soft_wrap=True)
    is_met = all(verdict.is_met for verdict in verdicts)
    if arguments.wire or _WIRE in arguments.only:
        is_met = show_wires(kept["figures"], console) and is_met
    if output:
        console.print(f"written: {output}", highlight=False, soft_wrap=True)
    return 1 if arguments.check and not is_met else 0


def main() -> int:
    """Run, and give the exit status: 0 unless something failed, or --check found a miss."""
    arguments = _arguments()
    use_wire(arguments.wire)
    try:
        return _benchmark(arguments, Console(width=None if sys.stdout.isatty() else _WIDTH))
    except GazetteError as err:
        print(f"benchmarks: {err}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
