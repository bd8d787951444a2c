"""Write heads that leaving brokers note in etcd, for whoever goes on: when, of what, and by whom."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.broker import serve
from gazette_platform.broker.journal_spool import Draft
from gazette_platform.broker.side_keys import own_member_key
from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.etcd import Delete, EtcdClient, Put
from gazette_platform.keyspace import encode_broker_spec, member_key
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
    SuspendLevel,
)
from gazette_platform.testing.local_broker import LocalBrokers, append, eventually, read_all

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"
ZONES = ("zone-a", "zone-b", "zone-c")


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        yield brokers


@pytest.fixture
async def etcd(etcd_server):
    client = EtcdClient([etcd_server.endpoint])
    await client.connect()
    yield client
    await client.close()


@pytest.fixture
async def tasks():
    group = TaskGroup("test")
    yield group
    await group.close()


def spec(*, replication=1, length=1 << 20):
    fragment = FragmentSpec(
        length=length,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=10**9,
    )
    return JournalSpec(JOURNAL, replication, fragment=fragment)


def noted(broker):
    """The head that is noted, as a broker's mirror has it; 0: none."""
    suspend = broker._context.space.state.items[JOURNAL].spec.suspend
    if suspend is None:
        return 0
    assert suspend.level is SuspendLevel.NONE
    return suspend.offset


async def test_the_head_is_noted_by_whoever_holds_the_journal(cluster):
    broker, observer = await cluster.start(), await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    await broker.drain()
    await eventually(lambda: noted(observer) == 7)


@pytest.mark.parametrize("is_back", [False, True], ids=["moved", "moved and back again"])
async def test_who_lost_the_journal_while_it_left_notes_nothing(cluster, etcd, is_back):
    """Others may have appended since: its head would have the next broker begin at offsets of theirs."""
    first = await cluster.start(zone="zone-a")
    stub = cluster.stub(first)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    observer = await cluster.start(zone="zone-b", journal_limit=0)
    persist, space = first._persist, first._context.space

    async def persist_while_it_moves():
        left = await persist()
        own = space.state.assignment_of(JOURNAL, first._context.process_id)
        gone = await etcd.txn([], [Delete(own.key)])
        revision = gone.header.revision
        if is_back:
            put = await etcd.txn([], [Put(own.key, own.value, lease=own.lease)])
            revision = put.header.revision
        await space.wait_for_revision(revision)
        return left

    first._persist = persist_while_it_moves
    await first.drain()
    await eventually(lambda: not observer._context.space.state.assignments_of(JOURNAL))
    assert noted(observer) == 0


async def test_beside_a_broker_of_gazette_no_head_is_noted(cluster, etcd, etcd_prefix, caplog):
    """It would heed the note, append behind it, and never take it back."""
    broker, observer = await cluster.start(), await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    foreign = BrokerSpec(
        id=ProcessId("zone", "of-gazette"), endpoint="http://127.0.0.1:1", journal_limit=0
    )
    lease = await etcd.grant_lease(30)
    key = member_key(etcd_prefix, foreign.id)
    await etcd.txn([], [Put(key, encode_broker_spec(foreign), lease=lease.id)])
    await eventually(lambda: foreign.id in broker._context.space.state.members)
    await broker.drain()
    assert noted(observer) == 0
    assert 'zone:"zone" suffix:"of-gazette" is a broker of Gazette' in caplog.text
    await lease.revoke()


async def test_a_broker_that_has_just_left_is_not_taken_for_one_of_gazette(
    cluster, etcd, etcd_prefix, monkeypatch
):
    """Of brokers that leave at once, one sees the other in its mirror, and not in etcd."""
    broker, other = await cluster.start(), await cluster.start(journal_limit=0)
    observer = await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    member = other._context.process_id
    read = broker._context.etcd.range

    async def read_once_it_has_left(prefix, **options):
        # From here on its mirror is late.
        monkeypatch.setattr(broker._context.space, "apply_batches", lambda batches: None)
        keys = [own_member_key(etcd_prefix, member), member_key(etcd_prefix, member)]
        await etcd.txn([], [Delete(key) for key in keys])
        return await read(prefix, **options)

    monkeypatch.setattr(broker._context.etcd, "range", read_once_it_has_left)
    await broker.drain()
    assert noted(observer) == len(b"content")


async def test_a_head_is_that_of_settled_content_even_if_more_crossed_a_roll(
    cluster, tasks, monkeypatch
):
    """What was under way was never acknowledged: no broker has it, so nothing is left out."""
    monkeypatch.setattr(serve, "_GRACE_S", 0.5)
    brokers = [await cluster.start(zone=zone) for zone in ZONES]
    await cluster.apply(cluster.stub(brokers[0]), spec(replication=3, length=1024))
    state = brokers[0]._context.space.state
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 3)
    await eventually(lambda: state.is_consistent(JOURNAL))
    replicas = {broker: broker._resolver.replicas[JOURNAL] for broker in brokers}
    primary = next(broker for broker, replica in replicas.items() if replica.is_primary)
    spool = replicas[primary].spool
    async with AsyncClient(ClientConfig(address=primary.endpoint)) as client:
        await client.append(JOURNAL, b"settled ")
        write = Draft.write

        async def write_unless_full(draft, chunks, length):
            while draft._owner is not spool:  # as one whose disk is full
                if draft._owner.is_leaving:
                    raise RpcFailed(Code.UNAVAILABLE, "the broker leaves it")
                await asyncio.sleep(0.01)
            await write(draft, chunks, length)

        monkeypatch.setattr(Draft, "write", write_unless_full)
        under_way = [tasks.spawn(client.append(JOURNAL, b"x" * 300_000)) for _ in "12"]
        await eventually(lambda: spool.spool.begin == 300_008)
        await asyncio.gather(*(broker.drain() for broker in brokers))
        for one in under_way:  # they would wait for others
            one.cancel()
    monkeypatch.setattr(Draft, "write", write)
    after = await cluster.start()
    assert noted(after) == 8
    for zone in ZONES[1:]:
        await cluster.start(zone=zone)
    stub = cluster.stub(after)
    assert (await append(stub, JOURNAL, b"after")).commit.begin == 8
    assert await read_all(stub, JOURNAL) == b"settled after"
