"""Three replicas, and what they rest on fails: all of them at once, etcd, the store, a local disk."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil

import pytest
from away_store import hold_back
from grpc import StatusCode, aio
from journal_specs import journal_spec

from gazette_platform.broker.spool import digester, journal_spool
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import LeaseLost, TransportError
from gazette_platform.protocol import AppendSuspend
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.local import LocalBrokers, read_all
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"
ZONES = ("zone-a", "zone-b", "zone-c")


async def start(cluster):
    return [await cluster.start(zone=zone) for zone in ZONES]


def spec(*, length=1 << 20, replication=3):
    return journal_spec(JOURNAL, replication, length=length, refresh_s=3600)


async def apply(cluster, broker, *, length=1 << 20, replication=3):
    await cluster.apply(cluster.stub(broker), spec(length=length, replication=replication))
    state = broker._context.space.state
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == replication)
    await eventually(lambda: state.is_consistent(JOURNAL))


def client(broker, **options):
    return AsyncClient(ClientConfig(address=broker.endpoint, **options))


def replica(broker):
    return broker._resolver.replicas[JOURNAL]


async def is_everywhere(cluster, brokers, content):
    for stub in map(cluster.stub, brokers):

        async def has_all(stub=stub):
            return await read_all(stub, JOURNAL) == content

        await eventually(has_all)


def stored(cluster):
    paths = sorted((cluster.fragments / JOURNAL).glob("*.raw"))
    return b"".join(path.read_bytes() for path in paths)


async def crash(brokers):
    """As by SIGKILL, except what these processes share with the test."""
    for broker in brokers:
        await broker._server.stop(grace_s=0.0)
    for broker in brokers:
        await broker._lease.revoke()
        await broker.abandon()


async def test_all_replicas_die_with_their_disks_and_the_head_is_reset(cluster):
    """Stored content can be read; appends wait for an operator who knows that no more exists anywhere."""
    former = await start(cluster)
    await apply(cluster, former[0])
    async with client(former[0]) as one:
        await one.append(JOURNAL, b"persisted ")
        await one.append(JOURNAL, b"lost")
    await eventually(lambda: stored(cluster) == b"persisted ")
    await crash(former)
    shutil.rmtree(former[0].config.spool_dir / "spools")
    brokers = await start(cluster)
    async with client(brokers[1], retry_timeout_s=1.0) as one:
        for _ in range(2):
            with pytest.raises(TransportError, match="only spools of zone-"):
                await one.append(JOURNAL, b"refused")
        # As Gazette's reset-head does: it cannot say that it knows what is given up.
        with pytest.raises(TransportError, match="only spools of zone-"):
            await one.append(JOURNAL, b"", offset=10, suspend=AppendSuspend.SUSPEND_KEEP)
        with pytest.raises(TransportError, match="reset-head"):
            await one.write_head(JOURNAL)
        assert await one.reset_head(JOURNAL, give_up=True) == 10
        assert (await one.append(JOURNAL, b"new")).begin == 10
    await is_everywhere(cluster, brokers, b"persisted new")
    assert [replica(broker).spool.spool.end for broker in brokers] == [13] * 3


@pytest.mark.parametrize("is_primary", [True, False], ids=["of the primary", "of a replica"])
async def test_nothing_is_acknowledged_while_a_local_disk_is_full(
    cluster, tasks, monkeypatch, caplog, is_primary
):
    brokers = await start(cluster)
    await apply(cluster, brokers[0])
    for module in (digester, journal_spool):
        monkeypatch.setattr(module, "DISK_RETRY_S", 0.05)
    full = next(broker for broker in brokers if replica(broker).is_primary is is_primary)
    async with client(full) as one:
        await one.append(JOURNAL, b"before ")
        await one.append(JOURNAL, b"that ")
        write, is_full = Spool.write, True

        def write_unless_full(self, *args):
            if self is replica(full).spool.spool and is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(self, *args)

        monkeypatch.setattr(Spool, "write", write_unless_full)
        appending = tasks.spawn(one.append(JOURNAL, b"after"), name="append")
        await eventually(lambda: "No space left on device; retrying" in caplog.text)
        # The primary first has what it holds persisted, to make room.
        held = b"before that " if is_primary else b"before "
        await eventually(lambda: stored(cluster) == held)
        assert f"{JOURNAL}: spool" in caplog.text
        assert "--broker.spool-dir" in caplog.text
        # A replica that has it may show it already, as one does whose primary is about to.
        primary = next(broker for broker in brokers if replica(broker).is_primary)
        await is_everywhere(cluster, {primary, full}, b"before that ")
        assert not appending.done()
        is_full = False
        assert (await asyncio.wait_for(appending, patient(10))).begin == 12
    await is_everywhere(cluster, brokers, b"before that after")


async def test_a_disk_that_cannot_be_read_holds_neither_readers_nor_the_process(
    cluster, monkeypatch, caplog
):
    monkeypatch.setattr(journal_spool, "DISK_RETRY_S", 0.05)
    monkeypatch.setattr(digester, "DISK_RETRY_S", 0.05)
    broker = await cluster.start(drain_timeout_s=0.5)
    await apply(cluster, broker, replication=1)
    stub = cluster.stub(broker)
    async with client(broker) as one:
        await one.append(JOURNAL, b"persisted ")
        await one.append(JOURNAL, b"lost" * (64 << 10))  # too much to be summed as it is committed
    await eventually(lambda: stored(cluster) == b"persisted ")

    def read(*_):
        raise OSError(errno.EIO, "Input/output error")

    for failing in ("preadv", "pread"):  # what sums it, and what serves it
        with monkeypatch.context() as patch:
            patch.setattr(os, failing, read)
            call = stub.Read(pb.ReadRequest(journal=JOURNAL, offset=10), timeout=10)
            with pytest.raises(aio.AioRpcError, match="check the disk") as caught:
                async for _ in call:
                    pass
            assert caught.value.code() is StatusCode.UNAVAILABLE
    async with client(broker) as one:
        await one.append(JOURNAL, b"lost, too" * (64 << 10))  # and not summed yet
    monkeypatch.setattr(os, "preadv", read)
    assert await asyncio.wait_for(broker.drain(), patient(25)) == []
    assert "is not persisted by this process: [Errno 5]" in caplog.text
    assert stored(cluster) == b"persisted "


@pytest.mark.parametrize("keeps_data", [True, False], ids=["away for a lease", "lost its data"])
async def test_etcd_fails(etcd_binary, tmp_path, keeps_data):
    """Brokers persist what they hold and end; the next ones go on from the end of the store."""
    with EtcdServer(etcd_binary) as etcd:
        async with LocalBrokers(tmp_path, etcd=etcd.endpoint, prefix="/lost") as cluster:
            former = await start(cluster)
            await apply(cluster, former[0])
            async with client(former[0]) as one:
                await one.append(JOURNAL, b"before ")
                await one.append(JOURNAL, b"that ")
            etcd.kill()
            if not keeps_data:
                shutil.rmtree(etcd.log_path.with_name("data"))
                await asyncio.to_thread(etcd.start)
            for broker in former:
                await asyncio.wait_for(broker.failed.wait(), patient(10))
                assert isinstance(broker.failure, LeaseLost)
            await asyncio.wait_for(
                asyncio.gather(*(broker.fail() for broker in former)), patient(20)
            )
            assert stored(cluster) == b"before that "
            if keeps_data:
                await asyncio.to_thread(etcd.start)
            brokers = await start(cluster)
            request = pb.ApplyRequest()
            change = request.changes.add(expect_mod_revision=-1)
            change.upsert.CopyFrom(spec().to_pb())
            assert (await cluster.stub(brokers[0]).Apply(request)).status == pb.OK
            async with client(brokers[2]) as one:
                # If etcd knows nothing, what former processes left of their spools ends where the store does.
                assert (await one.append(JOURNAL, b"after")).begin == 12
            await is_everywhere(cluster, brokers, b"before that after")


@pytest.mark.parametrize("replication", [1, 3])
async def test_a_head_that_was_noted_counts_once(cluster, replication):
    """Appends that follow make it a thing of the past; their offsets are not given out again."""
    former = await start(cluster)
    await apply(cluster, former[0], replication=replication)
    async with client(former[0]) as one:
        await one.append(JOURNAL, b"persisted ")
    await asyncio.gather(*(broker.drain() for broker in former))
    second = await start(cluster)
    async with client(second[0]) as one:
        assert (await one.append(JOURNAL, b"lost")).begin == 10
    await crash(second)
    shutil.rmtree(second[0].config.spool_dir / "spools")
    third = await start(cluster)
    async with client(third[0], retry_timeout_s=1.0) as one:
        with pytest.raises(TransportError, match="only spools of zone-"):
            await one.append(JOURNAL, b"refused")


async def test_all_brokers_of_a_zone_leave_at_once(cluster):
    leaving = [await cluster.start(zone="zone-a", drain_timeout_s=None) for _ in range(2)]
    staying = [await cluster.start(zone=zone, drain_timeout_s=None) for zone in ZONES[1:]]
    await apply(cluster, leaving[0], replication=2)
    content, has_left = b"", False

    async def leave():
        nonlocal has_left
        assert await asyncio.gather(*(broker.drain() for broker in leaving)) == [[], []]
        has_left = True

    async def write():
        nonlocal content
        async with client(staying[0]) as one:
            while not has_left:
                result = await one.append(JOURNAL, b"append %04d " % len(content))
                content += b"append %04d " % len(content)
                assert result.end == len(content)

    async with asyncio.timeout(patient(30)):
        await asyncio.gather(leave(), write())
    state = staying[0]._context.space.state
    assert {member.zone for member in state.route_of(JOURNAL).members} == {"zone-b", "zone-c"}
    await is_everywhere(cluster, staying, content)


async def test_a_journal_made_again_gets_nothing_of_its_former_self(cluster):
    """What of that one waited for its store is deleted with it, and not put among new content."""
    broker = await cluster.start()
    await apply(cluster, broker, replication=1)
    back = hold_back(broker)
    async with client(broker) as one:
        await one.append(JOURNAL, b"of the former one ")
        await replica(broker).close_fragment()
        await eventually(lambda: len(broker._persister) == 1)
        former = await one.get(JOURNAL)
        await one.apply([Change(None, delete=JOURNAL, revision=former.mod_revision)])
        await eventually(lambda: JOURNAL not in broker._resolver.replicas)
        await apply(cluster, broker, replication=1)
        back.set()
        for _ in range(3):
            broker._persister.tick()
        await eventually(lambda: not len(broker._persister))
        assert (await one.append(JOURNAL, b"new")).begin == 0
        await replica(broker).close_fragment()
        await eventually(lambda: stored(cluster) == b"new")
    await is_everywhere(cluster, [broker], b"new")
