"""The disk of spools is full, really: a small file system of its own."""

from __future__ import annotations

import asyncio
import gzip
import os

import pytest

from gazette_platform.broker.spool import digester, journal_spool
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.stores import MeasuredStore
from gazette_platform.testing.local import LocalBrokers, read_all
from gazette_platform.testing.waiting import eventually, patient
from tests.chaos.disks import SmallDisk

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"
MIB = 1 << 20
DISK_BYTES = 16 * MIB


@pytest.fixture
def disk(tmp_path):
    with SmallDisk(tmp_path / "small", size_bytes=DISK_BYTES) as found:
        if not found.is_mounted:
            pytest.skip("needs to mount a small file system (run as root)")
        yield found


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path, monkeypatch):
    for module in (digester, journal_spool):
        monkeypatch.setattr(module, "DISK_RETRY_S", 0.05)
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        yield brokers


@pytest.fixture
async def broker(cluster, disk):
    return await cluster.start(spool_dir=disk.folder, drain_timeout_s=0.0)


def spec(codec=CompressionCodec.GZIP, **fields):
    fragment = FragmentSpec(
        length=1 << 30,
        codec=codec,
        stores=("file:///",),
        refresh_interval_ns=3600 * 10**9,
        **fields,
    )
    return JournalSpec(JOURNAL, 1, fragment=fragment)


def replica(broker):
    return broker._resolver.replicas[JOURNAL]


def stored(cluster):
    files = sorted((cluster.fragments / JOURNAL).glob("[!.]*"))
    return b"".join(
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in files
    )


def pieces(count):
    """Content that no codec makes smaller."""
    return [os.urandom(MIB) for _ in range(count)]


async def test_content_and_its_compressed_form_do_not_fit(cluster, disk, broker):
    """Content goes first: what is compressed of it is given up, and made again in the store."""
    await cluster.apply(cluster.stub(broker), spec())
    content = pieces(12)
    async with (
        asyncio.timeout(patient(30)),
        AsyncClient(ClientConfig(address=broker.endpoint)) as client,
    ):
        for piece in content:
            await client.append(JOURNAL, piece)
        assert await read_all(cluster.stub(broker), JOURNAL) == b"".join(content)
        await replica(broker).close_fragment()
        await eventually(lambda: stored(cluster) == b"".join(content))
        assert await broker.drain() == []


@pytest.mark.parametrize("codec", [CompressionCodec.GZIP, CompressionCodec.NONE])
async def test_a_disk_that_others_fill_makes_room_for_appends(cluster, disk, broker, codec):
    """By what can be made again, and by what the store can have."""
    await cluster.apply(cluster.stub(broker), spec(codec))
    content = pieces(8)
    async with (
        asyncio.timeout(patient(30)),
        AsyncClient(ClientConfig(address=broker.endpoint)) as client,
    ):
        for piece in content[:4]:
            await client.append(JOURNAL, piece)
        disk.fill()
        for piece in content[4:]:
            await client.append(JOURNAL, piece)
        assert await read_all(cluster.stub(broker), JOURNAL) == b"".join(content)
        assert await broker.drain() == []
    assert stored(cluster) == b"".join(content)


async def test_a_broker_with_no_room_at_all_leaves_with_what_it_acknowledged(
    cluster, disk, broker, tasks, caplog
):
    """Its store is on another disk: nothing of what it has to do needs the full one."""
    await cluster.apply(cluster.stub(broker), spec())
    content = pieces(3)
    async with (
        asyncio.timeout(patient(30)),
        AsyncClient(ClientConfig(address=broker.endpoint)) as client,
    ):
        for piece in content:
            await client.append(JOURNAL, piece)
        await eventually(lambda: replica(broker).spool.spool.compress_lag == 0)
        while await replica(broker).spool.digester.spare_disk():
            pass
        disk.fill()
        await replica(broker).close_fragment()
        await eventually(lambda: stored(cluster) == b"".join(content))
        too_much = os.urandom(DISK_BYTES + MIB)
        appending = tasks.spawn(client.append(JOURNAL, too_much), name="append")
        await eventually(lambda: "No space left on device" in caplog.text)
        assert await read_all(cluster.stub(broker), JOURNAL) == b"".join(content)
        assert await broker.drain() == []
        appending.cancel()
    assert stored(cluster) == b"".join(content)


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.GZIP])
async def test_a_disk_that_one_fragment_fills_is_emptied(cluster, disk, broker, codec):
    """An append that waits for room must not keep the fragment open that takes it up."""
    await cluster.apply(cluster.stub(broker), spec(codec))
    content = pieces(40)
    async with (
        asyncio.timeout(patient(60)),
        AsyncClient(ClientConfig(address=broker.endpoint)) as client,
    ):
        for piece in content:
            await client.append(JOURNAL, piece)
        assert await read_all(cluster.stub(broker), JOURNAL) == b"".join(content)
        assert await broker.drain() == []
    assert stored(cluster) == b"".join(content)


@pytest.mark.parametrize("count", [12, 40])
async def test_a_full_disk_is_emptied_into_a_store_elsewhere(
    cluster, disk, broker, monkeypatch, count
):
    """Which has no place for the compressed form before it is whole."""
    monkeypatch.setattr(MeasuredStore, "local_path", lambda *_: None)
    await cluster.apply(cluster.stub(broker), spec())
    content = pieces(count)
    async with (
        asyncio.timeout(patient(60)),
        AsyncClient(ClientConfig(address=broker.endpoint)) as client,
    ):
        for piece in content:
            await client.append(JOURNAL, piece)
        disk.fill()
        assert await read_all(cluster.stub(broker), JOURNAL) == b"".join(content)
        await replica(broker).close_fragment()
        assert await broker.drain() == []
    assert stored(cluster) == b"".join(content)
