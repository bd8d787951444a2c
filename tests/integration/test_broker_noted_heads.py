"""Write heads that leaving brokers note in etcd, for whoever goes on: when, of what, and by whom.

Long because all cases have brokers leave in one way or another, and then look at the one note.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from grpc import StatusCode, aio
from noted_heads import JOURNAL, noted, noted_by_now, spec

from gazette_platform.broker import serve
from gazette_platform.broker.crash import handover
from gazette_platform.broker.crash.handover import note_heads
from gazette_platform.broker.etcd_records import read_record
from gazette_platform.broker.journal.claims import Noting, write_head, write_suspend
from gazette_platform.broker.spool.journal_spool import Draft
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.etcd import Delete, EtcdClient, Put
from gazette_platform.keyspace import assignment_key, encode_broker_spec, item_key, member_key
from gazette_platform.protocol import (
    BrokerSpec,
    JournalSpec,
    LabelSet,
    ProcessId,
    Status,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.local import AppendCall, append, read_all
from gazette_platform.testing.waiting import eventually, pass_time, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

ZONES = ("zone-a", "zone-b", "zone-c")


@pytest.fixture
async def etcd(etcd_server):
    client = EtcdClient([etcd_server.endpoint])
    await client.connect()
    yield client
    await client.close()


async def test_the_head_is_noted_by_whoever_holds_the_journal(cluster):
    broker, observer = await cluster.start(), await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    await broker.drain()
    await eventually(lambda: noted(observer) == 7)


@pytest.mark.parametrize("is_back", [False, True], ids=["moved", "moved and back again"])
async def test_who_lost_the_journal_while_it_left_notes_nothing(cluster, etcd, caplog, is_back):
    """Others may have appended since: its head would have the next broker begin at offsets of theirs."""
    first = await cluster.start(zone="zone-a")
    stub = cluster.stub(first)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    observer = await cluster.start(zone="zone-b", journal_limit=0)

    async def move(own):
        gone = await etcd.txn([], [Delete(own.key)])
        if not is_back:
            return gone
        # As allocators assign: the primary has not reported yet that all are in step.
        return await etcd.txn([], [Put(own.key, b"", lease=own.lease)])

    await drain_while(first, move)
    await eventually(lambda: not observer._context.space.state.assignments_of(JOURNAL))
    assert await noted_by_now(observer) == 0
    assert "a/journal: its write head 7 is not noted in etcd" in caplog.text


async def test_all_that_leave_at_once_note_the_heads_of_what_they_hand_to_one_another(
    cluster, etcd
):
    """The last one left at once, and others handed over to it: no broker noted where those end."""
    brokers = [await cluster.start(zone=zone, drain_timeout_s=30.0) for zone in (*ZONES, *ZONES)]
    names = [f"a/journal-{number:02d}" for number in range(24)]
    stub = cluster.stub(brokers[0])
    await cluster.apply(stub, *[replace(spec(), name=name) for name in names])
    for name in names:
        await append(stub, name, b"content")
    state = brokers[0]._context.space.state
    await eventually(lambda: all(state.is_consistent(name) for name in names))
    began = time.monotonic()
    lefts = await asyncio.gather(*(broker.drain() for broker in brokers))
    assert lefts == [[]] * len(brokers)
    assert time.monotonic() - began < 20  # and waits for no time-out
    prefix = brokers[0].config.etcd_prefix
    heads = {}
    for name in names:
        (item,) = (await etcd.range(item_key(prefix, name))).kvs[:1]
        found = JournalSpec.from_pb(pb.JournalSpec.FromString(item.value))
        heads[name] = found.suspend.offset if found.suspend is not None else 0
    assert heads == dict.fromkeys(names, len(b"content"))


async def test_who_becomes_primary_while_it_leaves_notes_the_head(cluster, etcd, etcd_prefix):
    """Another slot is another key in etcd: others that leave before it bring that about."""
    first = await cluster.start(zone="zone-a")
    stub = cluster.stub(first)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    observer = await cluster.start(zone="zone-b", journal_limit=0)

    async def move(own):
        key = assignment_key(etcd_prefix, JOURNAL, own.process_id, 3)
        return await etcd.txn([], [Delete(own.key), Put(key, own.value, lease=own.lease)])

    await drain_while(first, move)
    await eventually(lambda: not observer._context.space.state.assignments_of(JOURNAL))
    assert await noted_by_now(observer) == 7


async def test_a_head_is_not_noted_once_the_journal_has_gone_to_another(
    cluster, etcd, monkeypatch, caplog
):
    """Our mirror is late: the transaction itself finds that the assignment is gone."""
    first = await cluster.start()
    stub = cluster.stub(first)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    observer = await cluster.start(journal_limit=0)
    own = first._context.space.state.assignment_of(JOURNAL, first._context.process_id)

    async def change():
        await etcd.txn([], [Delete(own.key)])

    before_noting(change, monkeypatch)
    await first.drain()
    assert await noted_by_now(observer) == 0
    assert "a/journal: its write head 7 is not noted in etcd" in caplog.text


def before_noting(change, monkeypatch):
    """Change etcd right before a broker writes its head there."""
    written = handover.write_head

    async def write_later(*arguments, **options):
        monkeypatch.setattr(handover, "write_head", written)
        await change()
        return await written(*arguments, **options)

    monkeypatch.setattr(handover, "write_head", write_later)


async def test_a_head_that_is_noted_already_is_not_taken_back(cluster):
    """Of several replicas that leave the one that knew of most may be the first to note its head."""
    broker = await cluster.start()
    context = broker._context
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    replica = broker._resolver.replicas[JOURNAL]
    await write_suspend(context, JOURNAL, SuspendSpec(SuspendLevel.NONE, 100))
    await note_heads(context, [replica], broker._lease, timeout_s=10)
    assert await noted_by_now(broker) == 100
    await write_suspend(context, JOURNAL, SuspendSpec(SuspendLevel.NONE, 3))
    await note_heads(context, [replica], broker._lease, timeout_s=10)
    await eventually(lambda: noted(broker) == 7)


async def test_a_replica_that_has_just_been_made_keeps_no_head(cluster, etcd, etcd_prefix):
    """It stays, and has nothing of the journal yet."""
    first = await cluster.start(zone="zone-a")
    context = first._context
    stub = cluster.stub(first)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    other = await cluster.start(zone="zone-b", journal_limit=0)
    member, state = other._context.process_id, context.space.state
    await eventually(lambda: member in state.members)
    lease = state.members[member].lease
    key = assignment_key(etcd_prefix, JOURNAL, member, 1)
    made = await etcd.txn([], [Put(key, b"", lease=lease)])
    await context.space.wait_for_revision(made.header.revision)
    own = context.space.state.assignment_of(JOURNAL, context.process_id)
    # Before the primary brings it in step, or the allocator takes it away again.
    assert [one.process_id for one in context.space.state.assignments_of(JOURNAL)] == [
        own.process_id,
        member,
    ]
    await note_heads(context, [first._resolver.replicas[JOURNAL]], first._lease, timeout_s=10)
    await eventually(lambda: noted(first) == 7)


async def test_another_instance_of_a_replica_keeps_no_head(cluster, etcd, etcd_prefix, monkeypatch):
    """It was started again, and has nothing; our mirror shows the former one still."""
    first, other = [await cluster.start(zone=zone) for zone in ZONES[:2]]
    context, stub = first._context, cluster.stub(first)
    await cluster.apply(stub, spec(replication=2))
    await append(stub, JOURNAL, b"content")
    state = context.space.state
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 2)
    await eventually(lambda: state.is_consistent(JOURNAL))
    key = member_key(etcd_prefix, other._context.process_id)
    value = (await etcd.get(key)).value
    monkeypatch.setattr(context.space, "apply_batches", lambda batches: None)
    await other._lease.revoke()
    await other.abandon()
    lease = await etcd.grant_lease(30)
    await etcd.put(key, value, lease=lease.id)
    await note_heads(context, [first._resolver.replicas[JOURNAL]], first._lease, timeout_s=10)
    item = await etcd.get(item_key(etcd_prefix, JOURNAL))
    assert JournalSpec.from_pb(pb.JournalSpec.FromString(item.value)).suspend.offset == 7
    await lease.revoke()


async def test_a_head_is_not_that_of_what_is_under_way(cluster):
    """A journal may not be closed by then, where its broker is hurried."""
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    replica = broker._resolver.replicas[JOURNAL]
    draft = replica.spool.draft(with_digest=False)
    await draft.write([b"never"], 5)
    replica.spool.stage(draft, replica.spool.registers)
    await note_heads(broker._context, [replica], broker._lease, timeout_s=10)
    await eventually(lambda: noted(broker) == 7)
    replica.spool.drop_staged()


async def drain_while(broker, change):
    """Drain it, and change its assignment once it has closed the journal."""
    persist, space = broker._persist, broker._context.space

    async def persist_and_change():
        left = await persist()
        own = space.state.assignment_of(JOURNAL, broker._context.process_id)
        changed = await change(own)
        await space.wait_for_revision(changed.header.revision)
        return left

    broker._persist = persist_and_change
    await broker.drain()


@pytest.mark.timeout(180)
async def test_all_brokers_can_be_stopped_and_started_at_once(cluster):
    """Those that are the last to close their journals are not the last that are asked to leave."""
    zones = ("a", "a", "b", "c")
    names = [f"a/journal-{number:02d}" for number in range(12)]
    written = 0
    for _ in range(3):
        brokers = [await cluster.start(zone=zone) for zone in zones]
        stub = cluster.stub(brokers[0])
        if not written:
            await cluster.apply(stub, *[replace(spec(replication=3), name=name) for name in names])
        for name in names:
            answer = await append(stub, name, b"12345678")
            assert (Status(answer.status).name, answer.commit.begin) == ("OK", written), name
        written += 8
        await drain_in_waves(brokers)


async def drain_in_waves(brokers):
    """Half of them leave, and are still to be seen until the others have closed their journals."""
    early, late = brokers[:2], brokers[2:]
    are_leaving, are_at_stores = asyncio.Barrier(3), asyncio.Barrier(4)
    gone = asyncio.gather(*(drain_early(one, are_leaving, are_at_stores) for one in early))
    await are_leaving.wait()
    await asyncio.gather(gone, *(drain_late(one, are_at_stores, gone) for one in late))


async def drain_early(broker, are_leaving, are_at_stores):
    release = broker._release

    async def release_late():
        await are_leaving.wait()
        await are_at_stores.wait()
        await release()

    broker._release = release_late
    await broker.drain()


async def drain_late(broker, are_at_stores, gone):
    persist, state = broker._persist, broker._context.space.state

    def are_led():
        """Whether others were made primary of what was left."""
        held = [name for name in state.journals if state.assignments_of(name)]
        return len(state.members) == 2 and all(state.route_of(name).primary >= 0 for name in held)

    async def persist_slowly():
        await are_at_stores.wait()
        await gone
        await eventually(are_led)
        return await persist()

    broker._persist = persist_slowly
    await broker.drain()


async def test_beside_a_broker_of_gazette_no_head_is_noted(cluster, etcd, etcd_prefix, caplog):
    """It would heed the note, append after it, and never take it back."""
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
    assert await noted_by_now(observer) == 0
    assert 'zone:"zone" suffix:"of-gazette" is a broker of Gazette' in caplog.text
    await lease.revoke()


async def test_a_head_is_noted_all_the_same_if_the_spec_was_changed_at_that_moment(
    cluster, etcd, etcd_prefix, monkeypatch
):
    broker, observer = await cluster.start(), await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    key, write = item_key(etcd_prefix, JOURNAL), broker._context.etcd.txn
    changed = spec(length=1 << 19).to_pb().SerializeToString()
    changes = [Put(key, changed)]

    async def write_behind_another(compares, operations, *otherwise):
        if changes and any(operation.key == key for operation in operations):
            await etcd.txn([], [changes.pop()])
        return await write(compares, operations, *otherwise)

    monkeypatch.setattr(broker._context.etcd, "txn", write_behind_another)
    await broker.drain()
    await eventually(lambda: noted(observer) == len(b"content"))
    assert observer._context.space.state.items[JOURNAL].spec.fragment.length == 1 << 19


async def test_nothing_is_noted_for_a_journal_that_was_made_again(cluster, etcd, etcd_prefix):
    """Its first append would go to the offset of another journal."""
    broker = await cluster.start()
    await cluster.apply(cluster.stub(broker), spec())
    key = item_key(etcd_prefix, JOURNAL)
    before = await etcd.get(key)
    noting = Noting("f00d", LabelSet(), before.create_revision - 1)
    written = await write_suspend(
        broker._context, JOURNAL, SuspendSpec(SuspendLevel.NONE, 7), noting
    )
    assert not written.is_done
    assert await etcd.get(key) == before


@pytest.mark.parametrize("write", ["head", "suspension"])
@pytest.mark.parametrize("moved", ["spec", "assignment"])
async def test_nothing_is_noted_by_a_broker_whose_mirror_is_late(
    cluster, etcd, etcd_prefix, monkeypatch, moved, write
):
    """It would undo what others stored meanwhile, or report the head from before their appends."""
    broker = await cluster.start()
    context = broker._context
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    monkeypatch.setattr(context.space, "apply_batches", lambda batches: None)
    key = item_key(etcd_prefix, JOURNAL)
    own = context.space.state.assignment_of(JOURNAL, context.process_id)
    if moved == "spec":
        await etcd.txn([], [Put(key, spec(length=1 << 19).to_pb().SerializeToString())])
    else:
        await etcd.txn([], [Delete(own.key)])
    before = await etcd.get(key)
    suspend = SuspendSpec(SuspendLevel.NONE, 7)
    if write == "head":
        _, at = await read_record(etcd, context.config.etcd_prefix, JOURNAL)
        assert not await write_head(context, own, suspend, record=None, mod_revision=at)
    else:
        await write_suspend(context, JOURNAL, suspend)
    assert await etcd.get(key) == before


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
                await pass_time(0.01)
            await write(draft, chunks, length)

        monkeypatch.setattr(Draft, "write", write_unless_full)
        under_way = [
            tasks.spawn(append_in_vain(client, b"x" * 300_000), name=f"append {n}") for n in "12"
        ]
        await eventually(lambda: spool.spool.begin == 300_008)
        # A primary that goes on after the others have left settles what it has.
        close_together(brokers)
        await asyncio.gather(*(broker.drain() for broker in brokers))
        for one in under_way:  # they would wait for others
            one.cancel()
    monkeypatch.setattr(Draft, "write", write)
    after = await cluster.start()
    assert await noted_by_now(after) == 8
    for zone in ZONES[1:]:
        await cluster.start(zone=zone)
    stub = cluster.stub(after)
    assert (await append(stub, JOURNAL, b"after")).commit.begin == 8
    assert await read_all(stub, JOURNAL) == b"settled after"


async def append_in_vain(client, content):
    """Append, until no broker takes it."""
    with pytest.raises(GazetteError):
        await client.append(JOURNAL, content)


def close_together(brokers):
    """Let brokers that leave at once close their journals only when all of them do."""
    are_leaving = asyncio.Barrier(len(brokers))

    def held(ask_others):
        async def ask_and_wait():
            await ask_others()
            await are_leaving.wait()

        return ask_and_wait

    for broker in brokers:
        broker._ask_others = held(broker._ask_others)


async def test_no_append_goes_beyond_a_head_that_a_hurried_broker_noted(
    cluster, tasks, monkeypatch
):
    """Calls are not waited for any more; what they acknowledged later would be handed out twice."""
    broker = await cluster.start(min_append_rate=0)  # it waits for its client for seconds
    observer = await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    late = AppendCall(stub, JOURNAL)
    await late.send(*[b"x" * (1 << 20)] * 6)  # more than is gathered before it is written
    appender = broker._resolver.replicas[JOURNAL].appender
    await eventually(lambda: not appender.is_idle)
    outcomes = []

    async def note_then_commit(*args, **settings):
        await note_heads(*args, **settings)
        try:
            async with asyncio.timeout(patient(5)):
                outcomes.append((await late.commit()).status)
        except (aio.AioRpcError, TimeoutError) as err:
            outcomes.append(err)

    monkeypatch.setattr(serve, "note_heads", note_then_commit)
    draining = tasks.spawn(broker.drain(), name="drain")
    await eventually(lambda: broker._departure._limit is not None)
    broker.hurry()
    async with asyncio.timeout(patient(20)):
        await draining
    (outcome,) = outcomes
    await eventually(lambda: noted(observer) == 7)
    assert isinstance(outcome, aio.AioRpcError), outcome
    assert outcome.code() is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("leave", ["drain", "fail"])
async def test_a_head_is_noted_when_all_replicas_leave_at_once_and_another_has_no_room(
    cluster, leave
):
    brokers = [await cluster.start(zone=zone) for zone in ZONES]
    observer = await cluster.start(zone="zone-d", journal_limit=0)
    await cluster.apply(cluster.stub(brokers[0]), spec(replication=3))
    await append(cluster.stub(brokers[0]), JOURNAL, b"content")
    async with asyncio.timeout(patient(60)):
        await asyncio.gather(*(getattr(broker, leave)() for broker in brokers))
    state = observer._context.space.state
    await eventually(lambda: not state.assignments_of(JOURNAL))
    assert await noted_by_now(observer) == 7
