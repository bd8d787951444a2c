"""Several broker processes under one supervisor: they serve, end and count as one broker does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from journal_specs import journal_spec
from typing_extensions import override

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import SetupError
from gazette_platform.platform.component import choose_ports, is_free
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.servers import ServerProcess, wire_flags
from gazette_platform.testing.waiting import eventually, patient

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers, pytest.mark.timeout(patient(120))]

NAMES = [f"processes/{n}" for n in range(6)]
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def side_by_side() -> int:
    """The first of two free ports that are chosen for this test."""
    for _ in range(100):
        first = choose_ports(["grpc"])["grpc"]
        if is_free(first + 1):
            choose_ports([], fixed={"next": first + 1})
            return first
    raise AssertionError("no two free ports")


class Brokers(ServerProcess):
    """`gazette serve` with two processes; its HTTP address is that of the debug port."""

    def __init__(self, folder: Path, etcd: str, prefix: str, *, flags: Sequence[str] = ()) -> None:
        self.spool, self.fragments = folder / "spool", folder / "fragments"
        for made in (self.spool, self.fragments):
            made.mkdir(parents=True, exist_ok=True)
        super().__init__("brokers", log=folder / "brokers.log", temporary=self.spool)
        self.port = side_by_side()
        self.etcd, self.prefix = etcd, prefix
        self.flags = flags

    @override
    def start(self, *, timeout_s: float = 60.0) -> None:
        self.run(self.command("2"), timeout_s=timeout_s)

    def command(self, processes: str) -> list[str]:
        return [
            *(sys.executable, "-m", "gazette_platform.cli.gazette", "serve"),
            *(f"--broker.processes={processes}", "--broker.id=host"),
            *(f"--broker.port={self.port}", "--broker.http-port=0"),
            f"--debug.port={self.http_port}",
            *(f"--broker.file-root={self.fragments}", f"--broker.spool-dir={self.spool}"),
            *(f"--etcd.address={self.etcd}", f"--etcd.prefix={self.prefix}"),
            *("--etcd.lease=20s", "--log.level=info"),
            *wire_flags("broker"),
            *self.flags,
        ]

    def members(self) -> list[int]:
        """Pids of the processes that the supervisor started, the oldest first."""
        found = Path(f"/proc/{self.pid}/task")
        children = [(task / "children").read_text().split() for task in found.iterdir()]
        return sorted(int(pid) for pid in itertools.chain(*children))

    def metrics(self) -> dict[str, float]:
        with HTTP.open(f"{self.http_address}/debug/metrics", timeout=patient(10)) as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and line[0] != "#")
        return {sample: float(value) for sample, _, value in pairs}

    def is_ready(self) -> bool:
        return self._is_ready()


@pytest.fixture
def brokers(tmp_path, etcd_server, etcd_prefix):
    with Brokers(tmp_path, etcd_server.endpoint, etcd_prefix) as running:
        yield running


def spec(name, replication=1):
    return journal_spec(name, replication, codec=CompressionCodec.GZIP, refresh_s=3600)


def client_of(brokers, *, zone="local"):
    return AsyncClient(ClientConfig(address=brokers.address, zone=zone))


async def content_of(client, name):
    return await client.read(name).read()


async def append_to_all(client, content):
    """Append to each journal, however long it takes until one may."""
    for name in NAMES:
        await eventually(lambda n=name: _appended(client, n, content), timeout_s=30.0)


async def _appended(client, name, content):
    await client.append(name, content)
    return True


async def test_two_processes_serve_end_and_count_as_one_broker(brokers):
    async with client_of(brokers) as client:
        await client.apply([Change(spec(name)) for name in NAMES])
        await append_to_all(client, b"one ")
        listed = await client.list()
        primaries = {found.route.endpoints[found.route.primary] for found in listed}
        assert primaries == {f"http://127.0.0.1:{brokers.port + n}" for n in (0, 1)}

        before = brokers.metrics()
        assert before["gazette_spool_commits_total"] == len(NAMES)
        assert before['gazette_platform_unpersisted_bytes{process="host-0"}'] == 0.0
        assert before['gazette_platform_unpersisted_bytes{process="host-1"}'] == 0.0
        heads = [s for s in before if s.startswith("gazette_write_head{")]
        assert len(heads) == len(NAMES)

        first, second = brokers.members()
        os.kill(second, signal.SIGKILL)
        await eventually(lambda: second not in brokers.members())
        await eventually(brokers.is_ready, timeout_s=60.0)
        assert len(brokers.members()) == 2
        assert first in brokers.members()
        await append_to_all(client, b"two ")
        for name in NAMES:
            assert await content_of(client, name) == b"one two "
        # What the killed process had counted is still in the sum.
        assert brokers.metrics()["gazette_spool_commits_total"] == 2 * len(NAMES)

    log = brokers.log_of_run()
    assert "host-1 was killed by SIGKILL: starting it again in 0 s, for the 1. time" in log
    assert re.search(r"^host-0: \S+ \S+ INFO .* serves at", log, re.MULTILINE)
    assert brokers.stop(timeout_s=60.0) == 0
    assert "asked to leave again" not in brokers.log_of_run()

    # One process takes over what two have left.
    brokers.run(brokers.command("1"), timeout_s=60.0)
    async with client_of(brokers) as client:
        for name in NAMES:
            assert await content_of(client, name) == b"one two "
    assert brokers.stop() == 0


async def test_processes_that_are_all_signalled_leave_in_peace(tmp_path, etcd_server, etcd_prefix):
    """A service manager signals the supervisor and its processes."""
    flags = ("--log.format=json",)
    with Brokers(tmp_path, etcd_server.endpoint, etcd_prefix, flags=flags) as brokers:
        async with client_of(brokers) as client:
            await client.apply([Change(spec(name)) for name in NAMES])
            await append_to_all(client, b"once")
        for pid in brokers.members():
            os.kill(pid, signal.SIGTERM)
        assert brokers.stop(timeout_s=60.0) == 0
        log = brokers.log_of_run()
        lines = [json.loads(line) for line in log.splitlines()]
        assert {line.get("process") for line in lines} == {None, "host-0", "host-1"}
        assert "asked to leave again" not in log
        stored = {path.parent.name for path in brokers.fragments.rglob("*.gz")}
        assert stored == {name.rpartition("/")[2] for name in NAMES}


async def test_replicas_are_on_two_hosts_and_one_may_leave(tmp_path, etcd_server, etcd_prefix):
    """Both hosts are in one zone, so only their endpoints tell them apart."""
    stores = f"--broker.file-root={tmp_path}"
    with contextlib.ExitStack() as stack:
        hosts = [
            stack.enter_context(
                Brokers(tmp_path / host, etcd_server.endpoint, etcd_prefix, flags=flags)
            )
            for host, flags in (
                ("127.0.0.1", (stores,)),
                ("127.0.0.2", (stores, "--broker.host=127.0.0.2", "--broker.id=other")),
            )
        ]
        async with client_of(hosts[0]) as client:
            await client.apply([Change(spec(name, replication=2)) for name in NAMES])
            await append_to_all(client, b"one ")
            for found in await client.list():
                at = {urlsplit(endpoint).hostname for endpoint in found.route.endpoints}
                assert at == {"127.0.0.1", "127.0.0.2"}, found.name
            # No timeout: the processes of the other host wait until these have everything.
            assert await asyncio.to_thread(hosts[1].stop, timeout_s=60.0) == 0
            await append_to_all(client, b"two ")
            for name in NAMES:
                assert await content_of(client, name) == b"one two "
            for found in await client.list():
                assert len(found.route.members) == 2, found.name
        # And these wait for no other, though each journal wants two replicas.
        assert await asyncio.to_thread(hosts[0].stop, timeout_s=60.0) == 0


def test_a_process_that_cannot_start_ends_the_others(tmp_path, etcd_server, etcd_prefix):
    brokers = Brokers(tmp_path, etcd_server.endpoint, etcd_prefix)
    with (
        socket.create_server(("127.0.0.1", brokers.port + 1)),
        pytest.raises(SetupError, match="exited with 1") as caught,
    ):
        brokers.start()
    log = str(caught.value)
    assert f"host-1: gazette: error: cannot listen on 127.0.0.1:{brokers.port + 1}" in log
    assert "process host-1 exited with code 1 before all served" in " ".join(log.split())
    assert is_free(brokers.port)


def test_processes_leave_when_their_supervisor_is_killed(brokers):
    members = brokers.members()
    assert len(members) == 2
    brokers.kill()
    for pid in members:
        _wait_ended(pid)
    log = brokers.log_of_run()
    assert log.count("the supervisor is gone") <= 2  # no process may be left to write it down


def _wait_ended(pid: int) -> None:
    """Wait for a process that is not a child of ours."""
    descriptor = None
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(patient(30) * 1000), f"process {pid} did not leave"
    finally:
        os.close(descriptor)


def test_several_processes_need_a_port_for_their_pages(tmp_path, etcd_server, etcd_prefix):
    brokers = Brokers(tmp_path, etcd_server.endpoint, etcd_prefix)
    command = [flag for flag in brokers.command("2") if not flag.startswith("--debug.port")]
    with pytest.raises(SetupError, match=r"several processes need --debug\.port"):
        brokers.run(command, timeout_s=60.0)
