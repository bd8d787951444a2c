"""Brokers with Kafka gateways, topics, and programs that use them; for tests that kill all of these."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.platform.component import choose_ports
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalChange,
    JournalSpec,
    LabelSet,
)
from gazette_platform.testing.servers import ServerProcess

SECOND_NS = 1_000_000_000
# A JVM beside a broker keeps it waiting for longer than most tests do.
LEASE_S = 30.0


def gateway_flags(port):
    """The flags of a broker that serves clients of Kafka at a port."""
    return (f"--kafka.port={port}", "--kafka.host=127.0.0.1")


def topic_specs(topic, *, partitions, replication=1, **labels):
    """The journals of a topic."""
    return [
        JournalSpec(
            name=f"topic/{topic}/part={number:03}",
            replication=replication,
            labels=LabelSet.of(
                {
                    "kafka.topic": topic,
                    "kafka.partition": str(number),
                    "content-type": "application/x-ndjson",
                    **labels,
                }
            ),
            fragment=FragmentSpec(
                length=1 << 24,
                codec=CompressionCodec.NONE,
                stores=("file:///",),
                refresh_interval_ns=SECOND_NS,
            ),
        )
        for number in range(partitions)
    ]


class Gateways:
    """Broker processes with gateways, in zones a, b, …

    Args:
        start_servers: the fixture.
        options: of the processes.
    """

    def __init__(self, start_servers, *zones, **options):
        self.ports = dict(zip(zones, choose_ports(list(zones)).values(), strict=True))
        self.brokers = {
            zone: start_servers(zone, flags=gateway_flags(port), **options)[0]
            for zone, port in self.ports.items()
        }

    @property
    def servers(self):
        """What clients are configured with."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def client_config(self):
        """Of a client of the brokers that run."""
        up = [broker.address for broker in self.brokers.values() if not broker.has_ended]
        return ClientConfig(address=",".join(up))

    def zone_of(self, port):
        """The broker whose gateway has a port."""
        return next(zone for zone, known in self.ports.items() if known == port)

    async def make_topic(self, topic, *, partitions, replication=1, **labels):
        """Create the journals of a topic."""
        specs = topic_specs(topic, partitions=partitions, replication=replication, **labels)
        async with AsyncClient(self.client_config) as client:
            await client.apply([JournalChange(spec) for spec in specs])
            for spec in specs:
                await client.append(spec.name, b"")
        return [spec.name for spec in specs]


class GatewayServer(ServerProcess):
    """A gateway in a process of its own, from `start` to `stop`.

    Args:
        folder: for its log.
        flags: more flags.
    """

    def __init__(self, folder, *, broker, etcd, prefix, flags=()):
        folder.mkdir()
        super().__init__(f"gateway {folder.name}", log=folder / "gateway.log", temporary=folder)
        self.server = f"127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-m", "gazette_platform.cli.gazette", "serve-kafka"),
            *gateway_flags(self.port),
            f"--kafka.http-port={self.http_port}",
            "--kafka.store=file:///kafka/",
            f"--broker.address={broker}",
            f"--etcd.address={etcd}",
            f"--etcd.prefix={prefix}",
            "--etcd.lease=2s",
            "--log.level=info",
            *flags,
        ]

    def start(self, *, timeout_s=30.0):
        """Start, and wait until it is ready."""
        self.run(self._command, timeout_s=timeout_s)


class Program:
    """A program of this folder that a test runs and kills, and the lines that it wrote."""

    def __init__(self, name, file, *arguments):
        self.file = Path(file)
        self._errors = self.file.with_suffix(".err").open("ab")
        script = Path(__file__).with_name(name)
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=self._errors,
            stderr=self._errors,
            stdin=subprocess.DEVNULL,
        )

    @property
    def lines(self):
        """What it wrote, all runs of its file together."""
        if not self.file.exists():
            return []
        text = self.file.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def of(self, what):
        """Lines of one kind."""
        return [line for line in self.lines if line["what"] == what]

    @property
    def partitions(self):
        """Those that it has now, as far as it wrote."""
        held = set()
        for line in self.lines:
            if line["what"] == "started":
                held = set()
            elif line["what"] == "assigned":
                held = set(line["partitions"])
            elif line["what"] in ("revoked", "lost", "left"):
                held -= set(line.get("partitions", held))
        return held

    def kill(self):
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self, *, timeout_s=30.0):
        """SIGTERM: it leaves its group."""
        self._end(signal.SIGTERM, timeout_s)

    def _end(self, number, timeout_s=10.0):
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(timeout_s)
        self._errors.close()

    @property
    def errors(self):
        """What it wrote to stderr."""
        return self.file.with_suffix(".err").read_text()


@contextlib.contextmanager
def members(folder):
    """Starts members of groups, and kills those that are left."""
    started = []

    def start(name, client, servers, group, topic, instance=""):
        file = folder / f"{name}.log"
        member = Program(
            "kafka_member.py", file, client, servers, group, topic, str(file), instance
        )
        started.append(member)
        return member

    try:
        yield start
    finally:
        for member in started:
            member.kill()
