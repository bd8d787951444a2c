"""``python -m benchmarks.scale``: small and large appends by the number of broker processes of one host.

It needs this package as installed, an etcd (``GAZETTE_ETCD``, or on ``PATH``) and nothing else: run it beside the
folder ``benchmarks``. Brokers and clients share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks import machine, procfs
from benchmarks.figures import Figures, rounded
from benchmarks.scale_client import Order, Report, latency_ms
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.process import usable_cores
from gazette_platform.platform import tools
from gazette_platform.platform.component import answers_http, is_free
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from gazette_platform.testing.waiting import eventually, patient, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SMALL, _LARGE = 100, 1 << 20
_JOURNALS_PER_PROCESS = 4
_START_S = 60.0
_DRAIN_S = 300.0
# Of large appends in each step: spool and store take twice as much of the disk.
_LARGE_BYTES_MAX = 4 << 30
_WIDTH = 110  # of the table, if no terminal says otherwise


@dataclass(frozen=True, slots=True)
class Hosts:
    """Broker processes under load."""

    supervisor: subprocess.Popen[bytes]
    address: str
    count: int

    def pids(self) -> list[int]:
        """All of its processes, the supervisor included."""
        tasks = Path(f"/proc/{self.supervisor.pid}/task").iterdir()
        found = [(task / "children").read_text().split() for task in tasks]
        return [self.supervisor.pid, *(int(pid) for children in found for pid in children)]

    def cpu_s(self) -> float:
        """CPU seconds that they have used."""
        return sum(map(procfs.cpu_s, self.pids()))


def free_ports(count: int) -> int:
    """Return the first of so many free ports in a row. Raises: SetupError: there are none."""
    for _ in range(200):
        first = random.randrange(20_000, 30_000 - count)
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise SetupError(f"no {count} free ports in a row between 20000 and 30000")


@contextmanager
def serving(count: int, folder: Path, *, etcd: str, wire: str) -> Iterator[Hosts]:
    """Run so many broker processes in `folder`, which is removed. Raises: SetupError: they fail."""
    for name in ("spool", "fragments"):
        (folder / name).mkdir(parents=True)
    port = free_ports(2 * count + 1)
    debug = port + 2 * count
    command = [
        *(sys.executable, "-m", "gazette_platform.cli.gazette", "serve"),
        *(f"--broker.processes={count}", f"--broker.wire={wire}", "--broker.id=scale"),
        *(f"--broker.port={port}", f"--broker.http-port={port + count}", f"--debug.port={debug}"),
        *(f"--broker.spool-dir={folder}/spool", f"--broker.file-root={folder}/fragments"),
        *(f"--etcd.address={etcd}", f"--etcd.prefix=/scale/{count}-{port}"),
        "--broker.drain-timeout=60s",
    ]
    supervisor = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: (
                answers_http(f"http://127.0.0.1:{debug}/debug/ready")
                or supervisor.poll() is not None
            ),
            timeout_s=_START_S,
            what=f"{count} broker processes",
        )
        if supervisor.poll() is not None:
            raise SetupError(f"the brokers exited with {supervisor.returncode}")
        yield Hosts(supervisor, f"http://127.0.0.1:{port}", count)
        supervisor.send_signal(signal.SIGTERM)
        if code := supervisor.wait(patient(_DRAIN_S)):
            raise SetupError(f"the brokers exited with {code}")
    finally:
        if supervisor.poll() is None:
            supervisor.terminate()
            supervisor.wait(patient(_DRAIN_S))
        shutil.rmtree(folder, ignore_errors=True)


async def create(hosts: Hosts) -> list[str]:
    """Create journals of one replica until each process is the primary of several. Returns: their names."""
    names = [f"scale/{number:03}" for number in range(_JOURNALS_PER_PROCESS * hosts.count)]
    fragment = FragmentSpec(
        length=256 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=60 * 10**9,
    )
    specs = [JournalSpec(name=name, replication=1, fragment=fragment) for name in names]
    async with AsyncClient(ClientConfig(address=hosts.address)) as client:
        await client.apply([Change(spec) for spec in specs])
        for name in names:
            await eventually(lambda n=name: _appended(client, n), timeout_s=30.0)
    return names


async def _appended(client: AsyncClient, name: str) -> bool:
    await client.append(name, b"first\n")
    return True


async def load(hosts: Hosts, orders: Sequence[Order]) -> tuple[list[Report], float]:
    """Run a client process for each order, all at the same time.

    Returns: their reports, and the CPU seconds of the brokers meanwhile.
    Raises: SetupError: a client failed.
    """
    clients = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.scale_client"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in orders
    ]
    try:
        for client, order in zip(clients, orders, strict=True):
            client.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        for client in clients:
            if await client.stdout.readline() != b"ready\n":
                raise SetupError("a client process failed; its error is above")
        before = hosts.cpu_s()
        for client in clients:
            client.stdin.write(b"go\n")
        lines = [await client.stdout.read() for client in clients]
        used_s = hosts.cpu_s() - before
    finally:
        for client in clients:
            if client.returncode is None and not client.stdout.at_eof():
                client.terminate()
            await client.wait()
    if not all(lines):
        raise SetupError("a client process failed; its error is above")
    found = [json.loads(line) for line in lines]
    return [
        Report(**{**f, "latencies": {int(b): n for b, n in f["latencies"].items()}}) for f in found
    ], used_s


def figures_of(reports: Sequence[Report], broker_s: float, size: int) -> Figures:
    """What a load came to, all client processes together."""
    count = sum(report.count for report in reports)
    latencies: Counter[int] = Counter()
    for report in reports:
        latencies.update(report.latencies)
    per_s = sum(report.count / report.elapsed_s for report in reports)
    return {
        "per_s": per_s,
        "mb_per_s": per_s * size / 1e6,
        "p50_ms": latency_ms(latencies, 0.5),
        "p99_ms": latency_ms(latencies, 0.99),
        "broker_cpu_us": broker_s / count * 1e6,
        "client_cpu_us": sum(report.cpu_s for report in reports) / count * 1e6,
    }


def clients_of(count: int, arguments: argparse.Namespace) -> int:
    """How many client processes load so many broker processes: as many as there are cores left for."""
    return arguments.clients or max(count, min(2 * count, usable_cores() - count))


async def _measure(hosts: Hosts, arguments: argparse.Namespace) -> dict[str, Figures]:
    journals = await create(hosts)
    clients = clients_of(hosts.count, arguments)
    found: dict[str, Figures] = {}
    for size, concurrency, window_s, bytes_max in (
        (_SMALL, arguments.concurrency, arguments.seconds, 1 << 60),
        (_LARGE, 4, arguments.large_seconds, _LARGE_BYTES_MAX // clients),
    ):
        orders = [
            Order(
                hosts.address,
                journals[number::clients] or journals,
                size,
                concurrency,
                window_s,
                bytes_max,
            )
            for number in range(clients)
        ]
        if window_s > 0:
            reports, broker_s = await load(hosts, orders)
            found["100b" if size == _SMALL else "1mib"] = figures_of(reports, broker_s, size)
    return found


def _table(found: dict[int, dict[str, Figures]], arguments: argparse.Namespace) -> Table:
    table = Table(title="appends by broker processes")
    for column in (
        "processes",
        "clients",
        "appends/s",
        "p50 ms",
        "p99 ms",
        "broker µs",
        "client µs",
    ):
        table.add_column(column, justify="right")
    table.add_column("1 MiB: MB/s", justify="right")
    table.add_column("p99 ms", justify="right")
    for count, cases in found.items():
        small, large = cases.get("100b"), cases.get("1mib")
        cells = [str(count), str(clients_of(count, arguments))]
        names = ("per_s", "p50_ms", "p99_ms", "broker_cpu_us", "client_cpu_us")
        digits = (0, 2, 2, 0, 0)
        for name, places in zip(names, digits, strict=True):
            cells.append(f"{small[name]:,.{places}f}" if small else "")
        cells += [f"{large['mb_per_s']:,.0f}", f"{large['p99_ms']:.1f}"] if large else ["", ""]
        table.add_row(*cells)
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--processes", default="1,2", help="numbers of broker processes to measure, as 1,2,4,8"
    )
    parser.add_argument(
        "--clients",
        type=int,
        default=0,
        help="client processes (default: up to two a broker process)",
    )
    parser.add_argument(
        "--concurrency", type=int, default=16, help="small appends under way in each client process"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of small appends; 0: none")
    parser.add_argument(
        "--large-seconds", type=float, default=3.0, help="of 1 MiB appends; 0: none"
    )
    parser.add_argument("--wire", default="h2", choices=("h2", "grpc"), help="--broker.wire")
    parser.add_argument("--folder", type=Path, help="where spools and stores go (default: TMPDIR)")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args()


def main() -> int:
    """Run, and give the exit status."""
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    found: dict[int, dict[str, Figures]] = {}
    try:
        binary = find_etcd() or tools.etcd()
        with (
            tempfile.TemporaryDirectory(prefix="gazette-scale-", dir=arguments.folder) as folder,
            EtcdServer(binary) as etcd,
        ):
            for count in map(int, arguments.processes.split(",")):
                at = Path(folder, str(count))
                with serving(count, at, etcd=etcd.endpoint, wire=arguments.wire) as hosts:
                    found[count] = asyncio.run(_measure(hosts, arguments))
                console.print(f"{count} of {arguments.processes} measured", highlight=False)
    except (GazetteError, OSError) as err:
        print(f"benchmarks: {err}", file=sys.stderr)
        return 1
    console.print(_table(found, arguments))
    if arguments.output:
        result = {
            "date": SystemClock().now().isoformat(timespec="seconds"),
            "machine": machine.describe(),
            "versions": machine.versions(),
            "wire": arguments.wire,
            "load_average": os.getloadavg()[0],
            "processes": {
                str(count): {
                    case: {name: rounded(value) for name, value in figures.items()}
                    for case, figures in cases.items()
                }
                for count, cases in found.items()
            },
        }
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
