"""A broker that cannot go on: others take over at once, and it persists what it has."""

from __future__ import annotations

import asyncio

import pytest
from grpc import aio

from gazette_platform.broker import serve
from gazette_platform.broker.side_keys import storing_prefix
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import StoreUnavailable
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, Status
from gazette_platform.testing.local_broker import LocalBrokers, append, eventually, read_all

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"


def spec():
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=10**9,
    )
    return JournalSpec(JOURNAL, 1, fragment=fragment)


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        yield brokers


@pytest.fixture
async def tasks():
    group = TaskGroup("test")
    yield group
    await group.close()


async def pause(_):
    await asyncio.sleep(0.01)


async def failing(cluster, tasks, monkeypatch, *, drain_timeout_s, ends_lease):
    """A broker that failed while its store is away, with content in its spool.

    Returns: the broker, its `fail` under way, and what brings the store back.
    """
    monkeypatch.setattr(serve, "_GRACE_S", 0.2)
    broker = await cluster.start(drain_timeout_s=drain_timeout_s)
    persister, back, put = broker._persister, asyncio.Event(), broker._persister._put

    async def put_when_back(*args):
        if not back.is_set():
            raise StoreUnavailable("the store is away")
        await put(*args)

    persister._put, persister._sleep = put_when_back, pause
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"one ")
    await append(stub, JOURNAL, b"two ")
    if ends_lease:
        await broker._lease.revoke()
        async with asyncio.timeout(10):
            await broker.failed.wait()
    return broker, tasks.spawn(broker.fail(), name="fail"), back


async def test_content_is_persisted_however_long_the_store_is_away(cluster, tasks, monkeypatch):
    broker, failing_, back = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=None, ends_lease=True
    )
    await eventually(lambda: broker._persister._is_exiting)
    await asyncio.sleep(0.5)
    assert not failing_.done()
    assert len(broker._persister) == 2
    back.set()
    async with asyncio.timeout(10):
        await failing_
    stored = sorted(path.read_bytes() for path in (cluster.fragments / JOURNAL).iterdir())
    assert stored == [b"one ", b"two "]


async def test_a_drain_timeout_bounds_it(cluster, tasks, monkeypatch, caplog):
    _, failing_, _ = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=0.1, ends_lease=True
    )
    async with asyncio.timeout(10):
        await failing_
    assert f"fragment {JOURNAL}/" in caplog.text
    assert "was not persisted" in caplog.text


async def test_others_take_over_while_it_persists(cluster, tasks, monkeypatch):
    _, failing_, back = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=None, ends_lease=False
    )
    second = cluster.stub(await cluster.start(etcd_lease_s=30.0))
    response = await append(second, JOURNAL, b"three")
    # The head was noted in time: what the other still persists keeps its offsets.
    assert (response.status, response.commit.begin) == (Status.OK, 8)
    assert not failing_.done()
    back.set()
    async with asyncio.timeout(10):
        await failing_

    async def is_whole():
        return await read_all(second, JOURNAL) == b"one two three"

    await eventually(is_whole)


async def test_a_flush_waits_for_a_broker_that_failed_and_persists_still(
    cluster, tasks, monkeypatch
):
    _, failing_, back = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=None, ends_lease=False
    )
    second = await cluster.start(etcd_lease_s=30.0)
    stub = cluster.stub(second)
    await append(stub, JOURNAL, b"three")
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        flushing = tasks.spawn(client.flush(f"name={JOURNAL}"), name="flush")
        index = second._resolver.replicas[JOURNAL].index
        await eventually(lambda: index.is_stored(8, 13))
        with pytest.raises(aio.AioRpcError) as caught:
            await read_all(stub, JOURNAL)
        assert not flushing.done()
        assert "content at 0 that is not stored yet" in caught.value.details()
        back.set()
        async with asyncio.timeout(10):
            await failing_
            assert await flushing == {JOURNAL: 13}
    stored = sorted(path.read_bytes() for path in (cluster.fragments / JOURNAL).iterdir())
    assert stored == [b"one ", b"three", b"two "]
    assert await read_all(stub, JOURNAL) == b"one two three"
    etcd = second._context.etcd
    assert (await etcd.range(storing_prefix(second.config.etcd_prefix))).kvs == ()


async def test_who_gave_up_commits_nothing_that_others_could_read(cluster):
    """Etcd may not know yet why, and its port may be open for some moments more."""
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"before")
    broker._context.fence.give_up("this broker has failed")
    with pytest.raises(aio.AioRpcError, match="this broker has failed"):
        await append(stub, JOURNAL, b"never")
    assert await read_all(stub, JOURNAL) == b"before"
    assert broker._resolver.replicas[JOURNAL].spool.spool.end == 6
