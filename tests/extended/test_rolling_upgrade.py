"""A cluster goes from the former version to the present one and back, process by process, under load and kills.

Which version is the former one: `tests/upgrade_from`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from former_version import PRESENT, install_former
from journal_specs import journal_spec

from examples.stream_sum import messages
from examples.stream_sum.chunker import Chunker
from examples.stream_sum.messages import SUMS
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.protocol import ShardChange, parse_shard_changes
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec, JournalChange, parse_fragment_path
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer, ConsumerServer
from gazette_platform.testing.waiting import eventually, pass_time, patient
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree
from tests.checker import check_history
from tests.checker.history import Payload, Recorder, load_history
from tests.checker.recording import RecordingClient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

PARTITIONS = 2  # of stream-sum: one shard on RocksDB, one on SQLite
# Of the last one, appends wait for each broker that is away.
REPLICATION = {"upgrade/a": 2, "upgrade/b": 2, "upgrade/c": 2, "upgrade/whole": 3}
STALL_S_MAX = 30.0
FOLDER = Path(messages.__file__).parent


@pytest.fixture(scope="module")
def former(tmp_path_factory):
    return install_former(tmp_path_factory.mktemp("former"), "rocksdb", "sqlite")


def spec_of(name, replication):
    return journal_spec(
        name, replication, length=1 << 16, codec=CompressionCodec.GZIP, refresh_s=10, flush_s=60
    )


@dataclass
class Cluster:
    """An etcd, three brokers in three zones with one store, and two consumers."""

    folder: Path
    etcd: EtcdServer
    brokers: list[BrokerServer] = field(default_factory=list)
    consumers: list[ConsumerServer] = field(default_factory=list)

    def add_brokers(self, version):
        for zone in "abc":
            broker = BrokerServer(
                self.folder / f"broker-{zone}",
                etcd=self.etcd.endpoint,
                prefix="/gazette/upgrade",
                broker_id=f"broker-{zone}",
                zone=zone,
                fragments=self.folder / "fragments",
                program=version.gazette,
                flags=("--broker.append-wait=20s",),
            )
            self.brokers.append(broker)
            broker.start()

    def add_consumers(self, version):
        for number in (1, 2):
            consumer = ConsumerServer(
                self.folder / f"consumer-{number}",
                program=version.summer,
                etcd=self.etcd.endpoint,
                prefix="/gazette/upgrade-sums",
                broker=self.address,
                consumer_id=f"consumer-{number}",
                flags=("--consumer.hints-interval=1s",),
            )
            self.consumers.append(consumer)
            consumer.start()

    @property
    def address(self):
        return ",".join(broker.address for broker in self.brokers)

    async def replace(self, server, program, *, by_kill):
        """Stop or kill a process, and start a program in its place, on its files."""
        if by_kill:
            await asyncio.to_thread(server.kill)
        else:
            assert await asyncio.to_thread(server.stop) == 0, server.log_tail()
        server.program = program
        await asyncio.to_thread(server.start)

    def end(self):
        for server in (*self.consumers, *self.brokers):
            server.kill()
        self.etcd.stop()


@pytest.fixture
def cluster(etcd_binary, tmp_path):
    etcd = EtcdServer(etcd_binary)
    etcd.start()
    made = Cluster(tmp_path, etcd)
    yield made
    made.end()


@dataclass
class Load:
    """Recorded appends and tails of journals, and streams of chunks with a check of each sum."""

    client: AsyncClient
    recorder: Recorder
    acknowledged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REPLICATION, 0))
    ends: dict[str, int] = field(default_factory=dict)
    tailed: dict[str, int] = field(default_factory=dict)
    stalls_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REPLICATION, 0.0))
    sums: int = 0
    latest_sum_s: float = 0.0
    is_over: bool = False

    async def write(self, journal):
        """Append until it is over; an append that fails ends the test."""
        recording = RecordingClient(self.client, self.recorder, f"writer of {journal}")
        dice = random.Random(journal)
        last = time.monotonic()
        for number in itertools.count():
            if self.is_over:
                return
            payload = Payload(f"{journal[-1]}{number:06d}", dice.choice((80, 300, 3000)))
            result = await recording.append(journal, payload)
            now = time.monotonic()
            self.stalls_s[journal] = max(self.stalls_s[journal], now - last)
            last = now
            self.acknowledged[journal] += 1
            self.ends[journal] = result.end
            await pass_time(0.02)

    async def tail(self, journal):
        """Read from the begin, for ever."""
        recording = RecordingClient(self.client, self.recorder, f"tail of {journal}")
        async with recording.read(journal, block=True) as reader:
            async for _ in reader:
                self.tailed[journal] = reader.reader.offset

    async def sum_streams(self, number):
        async with Chunker(
            self.client,
            chunks=20,
            dice=random.Random(number),
            pause_s=0.05,
            fatal_s=patient(60),
            say=lambda text: None,
        ) as chunker:
            while not self.is_over:
                async for done in chunker.work(1):
                    self.sums += 1
                    self.latest_sum_s = max(self.latest_sum_s, done.late_s)

    async def goes_on(self):
        """Wait until each journal has taken more appends, and a sum came."""
        before, sums = dict(self.acknowledged), self.sums
        await eventually(
            lambda: all(self.acknowledged[name] >= before[name] + 20 for name in before),
            timeout_s=60,
            what=f"appends to all of {before} go on",
        )
        await eventually(lambda: self.sums > sums, timeout_s=90, what="a sum comes")

    @contextlib.asynccontextmanager
    async def running(self):
        """All of it, until tails have what was acknowledged last. An append or a sum that fails cancels the body."""
        async with asyncio.TaskGroup() as tails:
            tailing = [tails.create_task(self.tail(journal)) for journal in REPLICATION]
            async with asyncio.TaskGroup() as tasks:
                for journal in REPLICATION:
                    tasks.create_task(self.write(journal))
                for number in range(PARTITIONS):
                    tasks.create_task(self.sum_streams(number))
                await self.goes_on()
                yield
                await self.goes_on()
                self.is_over = True
            await eventually(
                lambda: all(self.tailed.get(name, 0) >= end for name, end in self.ends.items()),
                timeout_s=60,
                what="tails have all that was acknowledged",
            )
            for task in tailing:
                task.cancel()


async def add_journals_and_shards(client, cluster, version):
    await client.apply([JournalChange(spec_of(*each)) for each in REPLICATION.items()])
    parts = {f"part-{number:03}" for number in range(PARTITIONS)}
    changes = parse_journal_tree((FOLDER / "journals.yaml").read_text())
    chosen = [c.spec for c in changes if c.name == SUMS or c.name[-8:] in parts]
    await client.apply([JournalChange(replace(spec, replication=2)) for spec in chosen])
    await asyncio.to_thread(cluster.add_consumers, version)
    specs = [each.spec for each in parse_shard_changes((FOLDER / "shards.yaml").read_text())]
    async with ShardClient(ClientConfig(address=cluster.consumers[0].address)) as shards:
        await shards.apply([ShardChange(spec) for spec in specs[:PARTITIONS]])


async def check_all(client, recorder):
    """Compare what journals hold with all that was acknowledged and read."""
    for journal in REPLICATION:
        content = b"".join([bytes(piece) async for piece in client.read(journal, 0, block=False)])
        recorder.final(journal, content)
    recorder.close()
    history = load_history(recorder.path)
    report = check_history(history)
    assert report.is_valid, str(report.shortest)
    assert {op.outcome.value for op in history.appends} == {"ok"}
    return history


async def test_cluster_is_upgraded_and_taken_back_under_load(former, cluster, tmp_path):
    cluster.add_brokers(former)
    config = ClientConfig(address=cluster.address, retry_timeout_s=patient(60))
    recorder = Recorder(tmp_path / "history.jsonl", SystemClock(), seed=7)
    async with AsyncClient(config) as client:
        await add_journals_and_shards(client, cluster, former)
        load = Load(client, recorder)
        async with load.running():
            # Forth: brokers, then consumers; back: the other way round. The second of each is killed.
            for version, kinds in ((PRESENT, "bc"), (former, "cb")):
                for kind in kinds:
                    servers = cluster.brokers if kind == "b" else cluster.consumers
                    program = version.gazette if kind == "b" else version.summer
                    for number, server in enumerate(servers):
                        await cluster.replace(server, program, by_kill=number == 1)
                        recorder.note(f"{server.what} has the {version.name} version")
                        await load.goes_on()
                        if kind == "b" and number == 1:
                            # One of the mixed cluster dies, and comes back as it was.
                            await cluster.replace(servers[2], servers[2].program, by_kill=True)
                            await load.goes_on()
        history = await check_all(client, recorder)
    stalls = ", ".join(f"{name} {stall:.1f} s" for name, stall in load.stalls_s.items())
    print(
        f"upgrade: ok appends={len(history.appends)} failed=0 lost=0 sums={load.sums} latest_sum_s={load.latest_sum_s:.1f} "
        f"longest stalls: {stalls}"
    )
    assert max(load.stalls_s.values()) < patient(STALL_S_MAX), stalls
    for server in (*cluster.brokers, *cluster.consumers):
        assert "Traceback" not in server.log.read_text(), server.log


def stored_end(cluster, journal):
    """Where the content of a journal that is in the store ends."""
    folder = cluster.folder / "fragments" / journal
    names = [path.name for path in folder.rglob("*.gz")]
    return max((parse_fragment_path(journal, name).end for name in names), default=0)


async def test_spools_of_killed_brokers_are_taken_over_by_the_other_version(
    former, cluster, tmp_path
):
    """What was appended last is in no store when all brokers die."""
    cluster.add_brokers(former)
    config = ClientConfig(address=cluster.address, retry_timeout_s=patient(60))
    recorder = Recorder(tmp_path / "history.jsonl", SystemClock(), seed=11)
    numbers = itertools.count()
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(spec_of(*each)) for each in REPLICATION.items()])
        recording = RecordingClient(client, recorder, "writer")
        for version in (PRESENT, former, PRESENT):
            for journal in REPLICATION:
                made = [Payload(f"s{next(numbers):06d}", 300) for _ in range(10)]
                ends = [(await recording.append(journal, each)).end for each in made]
                assert stored_end(cluster, journal) < ends[-1]
            for broker in cluster.brokers:
                broker.strike()
            for broker in cluster.brokers:
                broker.kill()
                broker.program = version.gazette
            await asyncio.gather(*[asyncio.to_thread(b.start) for b in cluster.brokers])
        await check_all(client, recorder)
