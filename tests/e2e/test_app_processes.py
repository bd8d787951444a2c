"""The program of an application as processes: served, handed over, hurried, and refused in one line."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.protocol import ReplicaCode, ShardChange, ShardSource, ShardSpec
from gazette_platform.consumer.recoverylog import CONTENT_TYPE
from gazette_platform.message import Flags, Mapped, Publisher, read_committed
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.platform.component import choose_ports
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.waiting import eventually, pass_time, patient, stays, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(180)]

NDJSON = "application/x-ndjson"
IN, OUT, LOG, SHARD = "numbers", "sums", "recovery/sums", "sums"
# The longest that a message may wait for its answer while a shard is handed over. A planned hand-over takes
# well below a second on a machine that is not busy.
PAUSE_S = 3.0

PROGRAM = textwrap.dedent("""
    from gazette_platform.app import Application, Flags, JSONFileStore, run

    class Sums(Application):
        '''Adds numbers up, and publishes each sum.'''

        def new_store(self, shard, recorder):
            return JSONFileStore(recorder, {"sum": 0})

        async def consume(self, txn, envelope):
            if envelope.uuid.flags == Flags.ACK_TXN:
                return
            txn.store.state["sum"] += envelope.message["n"]
            answer = {"n": envelope.message["n"], "sum": txn.store.state["sum"]}
            await txn.publisher.publish("sums", answer)

    if __name__ == "__main__":
        run(Sums())
""")


class Program:
    """One process of `PROGRAM`."""

    def __init__(self, folder, name, *flags):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sums.py").write_text(PROGRAM)
        self.port, self.http_port = choose_ports(["grpc", "http"]).values()
        self.log = folder / f"{name}.log"
        directory = folder / name
        directory.mkdir(exist_ok=True)
        command = [
            *(sys.executable, str(folder / "sums.py"), "serve", f"--consumer.id={name}"),
            *(f"--consumer.port={self.port}", f"--consumer.http-port={self.http_port}"),
            *(f"--consumer.directory={directory}", "--etcd.lease=5s", "--log.level=info"),
            *flags,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_ready(self, timeout_s=30.0):
        url = f"http://127.0.0.1:{self.http_port}/debug/ready"

        def is_ready():
            assert self.process.poll() is None, self.text()
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status == 200

        wait_until(is_ready, timeout_s=timeout_s)
        return self

    def wait_says(self, line, timeout_s=30.0):
        def is_said():
            is_over, found = self.process.poll() is not None, line in self.text()
            assert found or not is_over, self.text()
            return found

        wait_until(is_said, timeout_s=timeout_s)

    def wait_takes_signals(self, timeout_s=30.0):
        """Wait until the process handles SIGTERM, instead of being ended by it."""
        status = Path(f"/proc/{self.process.pid}/status")

        def is_blocked():
            (blocked,) = [
                line for line in status.read_text().splitlines() if line.startswith("SigBlk:")
            ]
            return int(blocked.split()[1], 16) & 1 << (signal.SIGTERM - 1)

        wait_until(is_blocked, timeout_s=timeout_s)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def ends(self, code, timeout_s=30.0):
        assert self.process.wait(patient(timeout_s)) == code, self.text()
        assert "Traceback" not in self.text(), self.text()
        return self.text()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def start(broker, etcd_server, etcd_prefix, tmp_path):
    started = []

    def run(name, *flags):
        defaults = (
            f"--etcd.address={etcd_server.endpoint}",
            f"--etcd.prefix={etcd_prefix}-sums",
            f"--broker.address={broker.address}",
        )
        program = Program(tmp_path / "programs", name, *defaults, *flags)
        started.append(program)
        return program

    yield run
    for program in started:
        program.kill()


def journal(name, content_type=NDJSON):
    return journal_spec(name, codec=CompressionCodec.SNAPPY, labels={"content-type": content_type})


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.address)) as client:
        specs = (journal(IN), journal(OUT), journal(LOG, CONTENT_TYPE))
        await client.apply([Change(spec) for spec in specs])
        yield client


def shard(prefix):
    return ShardSpec(
        SHARD,
        (ShardSource(IN),),
        recovery_log_prefix="recovery",
        hint_prefix=f"{prefix}-hints",
        hint_backups=1,
        max_txn_duration_ns=SECOND_NS,
    )


async def create_shard(program, prefix):
    async with ShardClient(ClientConfig(address=program.address)) as shards:
        await shards.apply([ShardChange(shard(prefix))])
        await primary_at(shards)


async def primary_at(shards, timeout_s=30.0):
    """The process that has the shard, once it consumes."""

    async def found():
        for listing in await shards.list():
            at = listing.route.primary
            if at >= 0 and listing.statuses[at].code is ReplicaCode.PRIMARY:
                return listing.route.members[at].suffix
        return None

    return await eventually(found, timeout_s=timeout_s)


class Traffic:
    """Publishes a number each 20 ms, and notes when its answer is read, committed."""

    def __init__(self, client):
        self.client = client
        self.sent = {}
        self.answered = {}
        self.sums = []

    async def publish(self, seconds):
        service = self.client.append_service()
        publisher = Publisher(service, lambda _: Mapped(IN, NDJSON), SystemClock())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            n = len(self.sent) + 1
            self.sent[n] = time.monotonic()
            await publisher.publish_committed({"n": n})
            await pass_time(0.02)
        await service.flush()
        await service.close()

    async def read(self):
        async with await read_committed(self.client, OUT, block=True) as reader:
            async for batch in reader:
                for each in batch:
                    if each.uuid.flags != Flags.ACK_TXN:
                        self.answered.setdefault(each.message["n"], time.monotonic())
                        self.sums.append((each.message["n"], each.message["sum"]))

    async def check(self):
        """Each number was answered once, by the sum of all until it."""

        def are_answered():
            return len(self.sums) >= len(self.sent)

        await eventually(are_answered, timeout_s=20)
        assert self.sums == [(n, n * (n + 1) // 2) for n in self.sent]

    @property
    def pause_s(self):
        """The longest that a number waited for its answer."""
        return max(self.answered[n] - at for n, at in self.sent.items())


async def test_sigterm_hands_over_without_a_standby_and_without_a_pause(start, client, etcd_prefix):
    first = start("first-process").wait_ready()
    await create_shard(first, etcd_prefix)
    second = start("second-process").wait_ready()
    traffic = Traffic(client)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(traffic.read())
        publishing = group.create_task(traffic.publish(8))
        await eventually(lambda: len(traffic.answered) >= 20)
        async with ShardClient(ClientConfig(address=second.address)) as shards:
            assert await primary_at(shards) == "first-process"
            first.terminate()
            log = await asyncio.to_thread(first.ends, 0)
            assert await primary_at(shards) == "second-process"
        await publishing
        await traffic.check()
        reading.cancel()
    assert traffic.pause_s < PAUSE_S, f"{traffic.pause_s:.1f} s\n{log}\n{second.text()}"
    # No process is left to take over from the last one, which does not wait.
    second.terminate()
    second.ends(0)


async def test_a_second_sigterm_hurries(start, client, etcd_prefix):
    first = start("first-process").wait_ready()
    await create_shard(first, etcd_prefix)
    start("full-process", "--consumer.limit=0").wait_ready()  # it runs, and takes nothing over
    first.terminate()
    first.wait_says("asked to leave")
    # It waits: no other process would consume.
    await stays(lambda: first.process.poll() is None, for_s=1)
    first.terminate()
    assert "asked to leave again" in first.ends(0, timeout_s=15)


def test_sigterm_before_it_is_ready_ends_it(start, own_etcd_server):
    own_etcd_server.pause()
    waiting = start("first-process", f"--etcd.address={own_etcd_server.endpoint}")
    waiting.wait_takes_signals()
    waiting.terminate()
    waiting.ends(0, timeout_s=15)


async def test_a_process_whose_etcd_is_gone_stops_and_says_so(start, own_etcd_server):
    program = start("first-process", f"--etcd.address={own_etcd_server.endpoint}").wait_ready()
    own_etcd_server.kill()
    log = await asyncio.to_thread(program.ends, 1, 60)
    assert log.splitlines()[-1].startswith("Sums: error: ")
    assert "lease" in log.splitlines()[-1]


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--consumer.port={taken}"], "choose another port with --consumer.port"),
        (["--consumer.http-port={taken}"], "--consumer.http-port"),
        (["--etcd.address=http://127.0.0.1:1"], "cannot reach etcd at http://127.0.0.1:1"),
        (["--etcd.prefix=no/slash"], "etcd.prefix: "),
        (["--consumer.directory=/nonexistent"], "/nonexistent is not a directory"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(start, taken, flags, message):
    program = start("some-process", *(flag.format(taken=taken) for flag in flags))
    last = program.ends(1).splitlines()[-1]
    assert last.startswith("Sums: error: ")
    assert message in last
