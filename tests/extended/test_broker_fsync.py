"""What each mode of --broker.fsync has on disk when it answers, and what is left after a power failure."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from journal_specs import journal_spec
from power_disk import PowerDisk
from spool_files import say_made_here

from gazette_platform.broker import serve
from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.spool import head_records, home as spool_home
from gazette_platform.broker.spool.head_records import SLOT_BYTES
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.etcd import EtcdClient
from gazette_platform.testing.local import LocalBrokers
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"
IN_ORDER = [
    ("pwrite", "content"),
    ("fdatasync done", "content"),
    ("pwrite", "heads"),
    ("fdatasync done", "heads"),
]


def spec(replication):
    return journal_spec(JOURNAL, replication, refresh_s=3600)


def client(broker, **options):
    return AsyncClient(ClientConfig(address=broker.endpoint, **options))


@pytest.fixture
def boot(tmp_path, monkeypatch):
    """Names this start of the machine."""
    path = tmp_path / "boot_id"
    path.write_text("before")
    monkeypatch.setattr(spool_home, "_BOOT_ID", path)
    return path


class Machines:
    """Brokers whose spools are on one disk; all of them lose their power together."""

    def __init__(self, brokers, folder, boot, mode, etcd):
        self.folder, self.boot, self.mode = folder, boot, mode
        self.running, self.names = [], []
        self._brokers, self.etcd = brokers, etcd
        self.disk = None

    async def start(self, *names):
        self.names = names
        for name in names:
            path = self.folder / name
            path.mkdir(exist_ok=True)
        self.disk = PowerDisk(self.folder, keeps_snapshots=False)
        self.disk.__enter__()
        await self._start()

    async def _start(self):
        self.running = [
            await self._brokers.start(
                id=f"broker-{name}", zone=name, spool_dir=self.folder / name, fsync=self.mode
            )
            for name in self.names
        ]

    async def fail(self, target, left=None):
        """Have the power fail, and start again with `left`, or what is on disk now."""
        left = left or self.disk.snapshot()
        self.disk.__exit__()
        for broker in self.running:
            lease = broker._lease.id
            await broker.abandon()
            await self.etcd.revoke_lease(lease)
        left.restore(target)
        for place in target.glob("*/spools/*/place"):
            if place.read_bytes():
                say_made_here(place.parent)  # it stands for the same disk
        self.folder = target
        for name in self.names:
            (target / name).mkdir(exist_ok=True)
        self.boot.write_text("after")
        await self._start()


@pytest.fixture
async def machines(etcd_server, etcd_prefix, tmp_path, boot, mode):
    disk = tmp_path / "disk"
    disk.mkdir()
    async with (
        LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers,
        EtcdClient([etcd_server.endpoint]) as etcd,
    ):
        found = Machines(brokers, disk, boot, mode, etcd)
        found.apply = lambda broker, spec: brokers.apply(brokers.stub(broker), spec)
        yield found
        found.disk.__exit__()


async def append(broker, count, *, size=100, **options):
    """Returns: what was appended, in the order of its offsets."""
    async with client(broker, **options) as one:
        contents = [b"%06d".ljust(size - 2, b".") % number for number in range(count)]
        done = await asyncio.gather(*(one.append(JOURNAL, content) for content in contents))
    return b"".join(c for _, c in sorted(zip((d.begin for d in done), contents, strict=True)))


async def content_of(broker):
    async with client(broker) as one, asyncio.timeout(patient(20)):
        return b"".join([piece async for piece in one.read(JOURNAL)])


@pytest.mark.parametrize("mode", [FsyncMode.COMMIT])
@pytest.mark.parametrize("replication", [1, 2])
async def test_content_and_then_its_record_are_on_disk_before_an_answer(machines, replication):
    await machines.start(*("za", "zb")[:replication])
    await machines.apply(machines.running[0], spec(replication))
    await append(machines.running[0], 3)  # the first fragment is closed by its second append
    async with client(machines.running[0]) as one:
        for _ in range(5):
            machines.disk.calls.clear()
            await one.append(JOURNAL, b"content")
            seen = defaultdict(list)
            for call, path in list(machines.disk.calls):
                seen[path.parent].append((call, path.name.rpartition(".")[2]))
            assert len(seen) == replication
            for calls in seen.values():
                left = iter(calls)
                assert all(call in left for call in IN_ORDER), calls


@pytest.mark.parametrize("mode", [FsyncMode.COMMIT])
@pytest.mark.parametrize("replication", [1, 2])
async def test_commit_loses_nothing_when_all_machines_lose_their_power(
    machines, replication, tmp_path
):
    await machines.start(*("za", "zb")[:replication])
    await machines.apply(machines.running[0], spec(replication))
    expected = await append(machines.running[0], 40) + await append(
        machines.running[0], 3, size=300_000
    )
    await machines.fail(tmp_path / "after")
    more = await append(machines.running[-1], 5)
    assert await content_of(machines.running[0]) == expected + more


def synced_to(disk):
    """The offset below which a record on the disk says that content exists."""
    [heads] = disk.on_disk("heads")
    records = [
        head_records.decode_record(heads[at : at + SLOT_BYTES])
        for n in (0, 1)
        for at in (head_records.slot_at(n),)
    ]
    return max((record.state.synced_to for record in records if record is not None), default=-1)


@pytest.mark.parametrize("mode", [FsyncMode.INTERVAL])
async def test_interval_loses_what_came_since_and_an_operator_says_where_to_go_on(
    machines, tmp_path, monkeypatch
):
    monkeypatch.setattr(serve, "_SYNC_S", 0.02)
    await machines.start("za")
    await machines.apply(machines.running[0], spec(1))
    expected = await append(machines.running[0], 40)
    await eventually(lambda: synced_to(machines.disk) == len(expected))
    left = machines.disk.snapshot()
    await append(machines.running[0], 5)
    await machines.fail(tmp_path / "after", left)
    await waits_for_an_operator(machines.running[0], expected)


@pytest.mark.parametrize("mode", [FsyncMode.NEVER])
async def test_never_believes_nothing_after_a_power_failure(machines, tmp_path):
    await machines.start("za")
    await machines.apply(machines.running[0], spec(1))
    stored = await append(machines.running[0], 10)
    async with client(machines.running[0]) as one:
        await one.flush(f"name={JOURNAL}")
    await append(machines.running[0], 40)
    await machines.fail(tmp_path / "after")
    await waits_for_an_operator(machines.running[0], stored)


async def waits_for_an_operator(broker, expected):
    """So much exists, and appends are refused until an operator says that they go on after it."""
    async with client(broker, retry_timeout_s=0.5) as one:
        with pytest.raises(GazetteError, match="reset-head"):
            await one.append(JOURNAL, b"refused")
    index = broker._resolver.replicas[JOURNAL].index
    await eventually(lambda: index.summary.end == len(expected))
    begin, content = 0, b""
    while begin < len(expected):
        found = index.lookup(begin)
        path = broker.config.file_root / found.fragment.content_path
        content += path.read_bytes()[begin - found.fragment.begin :]
        begin = found.fragment.end
    assert content == expected
