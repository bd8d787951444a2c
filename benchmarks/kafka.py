"""``python -m benchmarks.kafka``: our Kafka gateway beside a real Kafka, under the same client in turn.

One broker of ours with its etcd, and one node of Kafka, both with the settings that they come with. Whichever does not have its turn
is at rest. Each round measures both, so compare the ratios: they are medians of the rounds' own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, libversion
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks import figures as results, machine, procfs
from benchmarks.figures import Figures, medians
from benchmarks.kafka_client import Order, Report
from benchmarks.kafka_node import KafkaNode
from benchmarks.targets import KAFKA_TARGETS, judge
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.platform import tools
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.ops.clock import Clock

__all__ = ["main"]

_ROOT: Final = Path(__file__).resolve().parents[1]
_LATEST: Final = Path(__file__).with_name("results") / "kafka.json"
_SERVERS: Final = ("ours", "kafka")
_PARTITIONS: Final = 4
_LINGER_MS: Final = 5.0
# Bytes and records, by their name in figures.
_SIZES: Final = {"100b": (100, 400_000), "1kib": (1 << 10, 150_000), "1mib": (1 << 20, 300)}
_ONE_BYTES: Final = 1 << 10
_ONE_RECORDS: Final = 1000
_PER_S: Final = 200.0
_ROUNDS: Final = 5
_WARM_UPS: Final = 2
_CALL_S: Final = 60.0
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class _Server:
    """A server under load."""

    name: str
    address: str
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        return sum(map(procfs.cpu_s, self.pids))


class _Client:
    """The process that produces and fetches."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, order: Order) -> Report:
        """Raises: SetupError: it has ended."""
        to, of = self._process.stdin, self._process.stdout
        assert to is not None
        assert of is not None
        to.write(json.dumps(asdict(order)) + "\n")
        to.flush()
        line = of.readline()
        if not line:
            raise SetupError(f"the client has ended at {order}; its error is above")
        return Report(**json.loads(line))


@contextmanager
def _client() -> Iterator[_Client]:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.kafka_client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    ) as process:
        try:
            yield _Client(process)
        finally:
            process.kill()


class _Bench:
    """One run."""

    def __init__(
        self, client: _Client, servers: list[_Server], clock: Clock, *, scale: float
    ) -> None:
        self._client = client
        self._servers = servers
        self._clock = clock
        self._scale = scale
        self._topics = 0

    def round(self, number: int, scale: float = 1.0) -> Figures:
        """Measure both servers, the other one first the next time. Returns: figures of each, and their ratios."""
        found: Figures = {}
        for server in self._servers[:: 1 if number % 2 else -1]:
            of_server = self._measure(server, scale * self._scale)
            found |= {f"{server.name}_{name}": value for name, value in of_server.items()}
        ours, kafka = (f"{name}_" for name in _SERVERS)
        ratios = {
            f"ratio_{name}": value / found[kafka + name]
            for each, value in found.items()
            if each.startswith(ours) and found.get(kafka + (name := each.removeprefix(ours)))
        }
        return found | ratios

    def _measure(self, server: _Server, scale: float) -> Figures:
        found: Figures = {}
        for size, (bytes_each, count) in _SIZES.items():
            order = self._order("produce", server, bytes_each, max(1, int(count * scale)))
            with self._topic(server, order.topic):
                for what in ("produce", "fetch"):
                    found |= self._throughput(server, replace(order, what=what), f"{what}_{size}")
        for what, name in (("one_by_one", "produce_one"), ("end_to_end", "end_to_end")):
            order = self._order(what, server, _ONE_BYTES, max(100, int(_ONE_RECORDS * scale)))
            order = replace(order, partitions=1, linger_ms=0.0)
            with self._topic(server, order.topic, partitions=1):
                self._settle(server)
                before = server.cpu_s()
                report = self._client.run(order)
                found |= {f"{name}_{at}_ms": value for at, value in report.latencies_ms.items()}
                found[f"{name}_cpu_us_per_record"] = (server.cpu_s() - before) / order.count * 1e6
        return found

    def _throughput(self, server: _Server, order: Order, name: str) -> Figures:
        self._settle(server)
        before = server.cpu_s()
        report = self._client.run(order)
        self._settle(server)
        mb = order.count * order.size / 1e6
        return {
            f"{name}_mb_per_s": mb / report.elapsed_s,
            f"{name}_cpu_s_per_gb": (server.cpu_s() - before) / mb * 1e3,
            f"{name}_client_cpu_s_per_gb": report.cpu_s / mb * 1e3,
        }

    def _order(self, what: str, server: _Server, size: int, count: int) -> Order:
        self._topics += 1
        topic = f"bench-{self._topics}"
        return Order(
            what, server.address, topic, _PARTITIONS, size, count, _LINGER_MS, per_s=_PER_S
        )

    @contextmanager
    def _topic(
        self, server: _Server, name: str, *, partitions: int = _PARTITIONS
    ) -> Iterator[None]:
        admin = AdminClient({"bootstrap.servers": server.address})
        try:
            topics = [NewTopic(name, num_partitions=partitions, replication_factor=1)]
            admin.create_topics(topics)[name].result(_CALL_S)
            yield
            admin.delete_topics([name])[name].result(_CALL_S)
        except KafkaException as err:
            raise SetupError(f"{server.name}: topic {name}: {err}") from err

    def _settle(self, server: _Server) -> None:
        for pid in server.pids:
            asyncio.run(procfs.idle(pid, self._clock))


def _table(found: Figures) -> Table:
    table = Table(box=SIMPLE)
    for heading in ("figure", "ours", "Kafka", "ours ÷ Kafka", "wanted"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    wanted = {target.name: f"{target.sign} {target.limit:g}" for target in KAFKA_TARGETS}
    for each in found:
        if each.startswith("ratio_"):
            name = each.removeprefix("ratio_")
            values = [found[f"{server}_{name}"] for server in _SERVERS] + [found[each]]
            table.add_row(
                name, *(f"{results.rounded(value):g}" for value in values), wanted.get(each, "")
            )
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--scale", type=float, default=1.0, help="of the records of each case")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--folder", type=Path, help="where servers keep files (default: TMPDIR)")
    parser.add_argument(
        "--output", type=Path, default=_LATEST, help="result to write (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="write no result")
    return parser.parse_args()


def _run(arguments: argparse.Namespace, clock: Clock) -> tuple[Figures, dict[str, str]]:
    """Returns: figures, and versions of the servers."""
    binary = tools.etcd()
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gazette-bench-", dir=arguments.folder)
            )
        )
        etcd = stack.enter_context(EtcdServer(binary))
        port = choose_ports(["kafka"])["kafka"]
        flags = (f"--kafka.port={port}", "--kafka.store=file:///", "--log.level=warn")
        (folder / "ours").mkdir()
        broker = stack.enter_context(
            BrokerServer(
                folder / "ours", etcd=etcd.endpoint, prefix="/bench", flags=flags, lease_s=20.0
            )
        )
        node = stack.enter_context(KafkaNode(folder / "kafka"))
        servers = [
            _Server("ours", f"127.0.0.1:{port}", (broker.pid, etcd.pid)),
            _Server("kafka", node.server, (node.pid,)),
        ]
        bench = _Bench(stack.enter_context(_client()), servers, clock, scale=arguments.scale)
        for number in range(_WARM_UPS):
            bench.round(number, scale=0.25)  # a JVM compiles meanwhile
        rounds, loads = [], []
        for number in range(arguments.rounds):
            loads.append(os.getloadavg()[0])
            rounds.append(bench.round(number))
            print(f"round {number + 1}: load {loads[-1]:.1f}", flush=True)
        versions = {"kafka": node.version, "etcd": machine.program_version(binary)}
        more = {
            "rounds": float(len(rounds)),
            "load_max": max(loads),
            "ours_rss_mb_max": procfs.peak_rss_mb(broker.pid),
            "kafka_rss_mb_max": procfs.peak_rss_mb(node.pid),
        }
        return medians(rounds) | more, versions


def main() -> int:
    """Run, and give the exit status: 0 unless something failed, or --check found a miss."""
    arguments, clock = _arguments(), SystemClock()
    try:
        found, versions = _run(arguments, clock)
        versions |= {name: metadata.version(name) for name in ("aiokafka", "kio")}
        versions |= {"librdkafka": libversion()[0]}
        if not arguments.dry_run:
            rounded = {name: results.rounded(value) for name, value in found.items()}
            result = {
                "date": clock.now().isoformat(timespec="seconds"),
                "machine": machine.describe(),
                "versions": machine.versions() | versions,
                "figures": rounded,
            }
            results.write(arguments.output, result)
            print(f"written: {arguments.output}")
    except GazetteError as err:
        print(f"benchmarks: {err}", file=sys.stderr)
        return 1
    Console(width=_WIDTH).print(_table(found))
    verdicts = judge(found, KAFKA_TARGETS)
    for verdict in verdicts:
        print(verdict.line())
    return 1 if arguments.check and not all(verdict.is_met for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
