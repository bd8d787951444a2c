"""Content that another broker is about to store: flushes and readers wait for it, and do not lie."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import aiohttp
import pytest
from away_store import JOURNAL, ZONES, handed_over, hold_back, refused, spec, stored
from grpc import StatusCode, aio

from gazette_platform.broker import context as broker_context
from gazette_platform.broker.journal import gaps
from gazette_platform.broker.journal.pulses import Pulses
from gazette_platform.broker.spool.digester import Digester
from gazette_platform.broker.spool.journal_spool import JournalSpool
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import assignment_key
from gazette_platform.protocol import JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read, read_all, spans, store_fragment
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


@pytest.mark.parametrize("ask_timeout_s", [10.0, 0.02], ids=["patient", "asked again"])
async def test_a_flush_waits_for_a_broker_that_had_the_journal_before(
    cluster, tasks, monkeypatch, ask_timeout_s
):
    monkeypatch.setattr(gaps, "_ASK_TIMEOUT_S", ask_timeout_s)
    second, back, draining = await handed_over(cluster, tasks)
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        await client.append(JOURNAL, b"here")
        flushing = tasks.spawn(client.flush(f"name={JOURNAL}"), name="flush")
        await eventually(lambda: stored(cluster) == b"here")
        # It has nothing more to do itself.
        await stays(lambda: not flushing.done(), for_s=0.2)
        back.set()
        assert await flushing == {JOURNAL: 19}
        assert stored(cluster) == b"before that is here"
    assert await draining == []


async def test_a_flush_has_replicas_store_what_a_crashed_primary_had(cluster):
    brokers = [await cluster.start(zone=zone) for zone in ZONES]
    for broker in brokers:
        hold_back(broker)
    await cluster.apply(cluster.stub(brokers[0]), spec(3))
    state = brokers[0]._context.space.state
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 3)
    await eventually(lambda: state.is_consistent(JOURNAL))
    replicas = [broker._resolver.replicas[JOURNAL] for broker in brokers]
    primary = next(b for b, r in zip(brokers, replicas, strict=True) if r.is_primary)
    for content in (b"before ", b"that"):
        await append(cluster.stub(primary), JOURNAL, content)
    await primary._server.stop(grace_s=0.0)
    await primary._lease.revoke()
    await primary.abandon()
    for broker in brokers:  # from now on the store is well; they would wait for minutes
        del broker._persister._put
    await cluster.start(zone="zone-d")
    other = next(b for b in brokers if b is not primary)
    async with AsyncClient(ClientConfig(address=other.endpoint)) as client:
        assert await client.flush(f"name={JOURNAL}", timeout_s=20) == {JOURNAL: 11}
    assert stored(cluster) == b"before that"


async def test_flush_hears_from_a_replica_of_fragments_that_it_is_closing(cluster, monkeypatch):
    """They are in no queue of its persister yet, for as long as its disk takes."""
    brokers = [await cluster.start(zone=zone) for zone in ZONES[:2]]
    await cluster.apply(cluster.stub(brokers[0]), spec(2))
    state = brokers[0]._context.space.state
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 2)
    await eventually(lambda: state.is_consistent(JOURNAL))
    replicas = [broker._resolver.replicas[JOURNAL] for broker in brokers]
    primary, other = sorted(replicas, key=lambda replica: not replica.is_primary)
    asked = brokers[replicas.index(other)]
    await append(cluster.stub(asked), JOURNAL, b"content")
    complete, closed = Digester.complete, asked._resolver.closed
    flush, was_asked, flushed = asked._persister.flush, asyncio.Event(), []

    async def complete_when_asked(self):
        if self is closing:
            await was_asked.wait()
        return await complete(self)

    async def closed_when_asked(journal):
        was_asked.set()
        await closed(journal)

    async def flush_what_waits(journal):
        flushed.append(other.spool.unfinished())
        await flush(journal)

    closing = other.spool.digester
    monkeypatch.setattr(Digester, "complete", complete_when_asked)
    asked._resolver.closed = closed_when_asked
    asked._persister.flush = flush_what_waits
    await primary.close_fragment()
    await eventually(lambda: other.spool.digester is not closing)
    asking = brokers[replicas.index(primary)]._context
    assert await gaps.ask_other(asking, JOURNAL, asked._context.process_id)
    assert flushed == [[]]
    assert stored(cluster) == b"content"


async def test_readers_wait_for_what_was_handed_over_before_it_was_stored(cluster, tasks):
    """The head never falls back, and a reader does not end before it as if there were no more."""
    second, back, draining = await handed_over(cluster, tasks)
    stub = cluster.stub(second)
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:

        async def read_whole():
            async with client.read(JOURNAL) as reader:
                return b"".join([piece async for piece in reader])

        reading = tasks.spawn(read_whole(), name="read")
        waits = [
            tasks.spawn(refused(anext(aiter(read(stub, JOURNAL, offset)))), name=f"at {offset}")
            for offset in (0, -1)
        ]
        request = pb.FragmentsRequest(journal=JOURNAL)
        waits.append(tasks.spawn(refused(stub.ListFragments(request)), name="list"))
        url = f"http://127.0.0.1:{second.http_port}/{JOURNAL}"
        async with aiohttp.ClientSession() as http, http.head(url) as response:
            assert response.status == 503
            assert "X-Write-Head" not in response.headers
        for waiting in waits:
            assert "another broker has content before 15" in await waiting
        # Who has read all of that has no need of it.
        async for response in read(stub, JOURNAL, 15):
            assert (response.status, response.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 15)
        assert not reading.done()
        back.set()
        assert await draining == []
        assert await reading == b"before that is "
        async for response in read(stub, JOURNAL, -1):
            assert (response.status, response.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 15)
    assert await read_all(stub, JOURNAL) == b"before that is "


def minutes_later(broker, monkeypatch):
    """Nothing that is missing is expected to come by itself any more."""
    replica = broker._resolver.replicas[JOURNAL]
    replica.hole._began_at, replica.gaps.wait_s = -math.inf, 1.0
    monkeypatch.setattr(gaps, "_LOST_S", -1.0)


async def listed(stub):
    found = await stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL))
    return spans(one.spec for one in found.fragments)


async def test_no_list_leaves_out_what_a_living_broker_holds_however_long_that_takes(
    cluster, tasks, monkeypatch
):
    """Who goes on after the last fragment of a list would pass it over for good."""
    second, back, draining = await handed_over(cluster, tasks)
    stub, replica = cluster.stub(second), second._resolver.replicas[JOURNAL]
    await append(stub, JOURNAL, b"here")
    await replica.close_fragment()
    await eventually(lambda: replica.index.is_stored(15, 19))
    minutes_later(second, monkeypatch)
    assert "content at 14" in await refused(listed(stub))
    back.set()
    assert await draining == []
    assert await listed(stub) == [(0, 7), (7, 15), (15, 19)]


async def test_a_replica_leaves_it_to_its_primary_whether_content_is_gone(cluster, tasks):
    """It does not know what the primary alone had before, and the store does not have yet."""
    first = await cluster.start(zone=ZONES[0])
    back = hold_back(first)
    await cluster.apply(cluster.stub(first), spec())
    await append(cluster.stub(first), JOURNAL, b"before ")
    await first._resolver.replicas[JOURNAL].close_fragment()
    second = await cluster.start(zone=ZONES[1], append_wait_s=2.0)
    request = pb.ApplyRequest()
    request.changes.add(expect_mod_revision=-1).upsert.CopyFrom(spec(2).to_pb())
    assert (await cluster.stub(first).Apply(request)).status == pb.OK
    state = second._context.space.state
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 2)
    await append(cluster.stub(first), JOURNAL, b"that")
    await eventually(lambda: second._resolver.replicas[JOURNAL].index.covers(7, 11))
    replica = second._resolver.replicas[JOURNAL]
    store_fragment(cluster.fragments, JOURNAL, 7, b"that")
    replica.refresh()
    await eventually(lambda: replica.index.is_stored(7, 11))
    assert not replica.index.covers(0, 7)
    stub = cluster.stub(second)
    assert await read_all(stub, JOURNAL) == b"before that"
    call = anext(aiter(read(stub, JOURNAL, do_not_proxy=True)))
    assert "content at 0" in await refused(call)
    back.set()
    await first._persister.flush(JOURNAL)
    response = await anext(aiter(read(stub, JOURNAL, do_not_proxy=True)))
    assert (response.status, response.offset) == (pb.OK, 0)


async def two_with_pruned_beginning(cluster):
    """A journal whose first fragment begins at 100. Returns: its primary, and the other."""
    brokers = [await cluster.start(zone=zone, append_wait_s=1.0) for zone in ZONES[:2]]
    store_fragment(cluster.fragments, JOURNAL, 100, b"x" * 50)
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(2).to_pb())
    assert (await cluster.stub(brokers[0]).Apply(request)).status == pb.OK
    state = brokers[0]._context.space.state
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 2)
    await eventually(lambda: state.is_consistent(JOURNAL))
    brokers.sort(key=lambda broker: not broker._resolver.replicas[JOURNAL].is_primary)
    assert (await append(cluster.stub(brokers[0]), JOURNAL, b"on", offset=150)).status == pb.OK
    return brokers


@pytest.mark.parametrize("fields", [{}, {"do_not_proxy": True}, {"block": True}], ids=str)
async def test_a_replica_learns_from_its_primary_what_was_pruned(cluster, fields):
    """Else it forwards, or refuses, each read at the beginning, for hours."""
    primary, other = await two_with_pruned_beginning(cluster)
    replica = other._resolver.replicas[JOURNAL]
    await eventually(lambda: replica.index.covers(100, 152))
    response = await anext(aiter(read(cluster.stub(other), JOURNAL, **fields)))
    assert (response.status, response.offset) == (pb.OK, 100)
    answered = response.header.process_id
    own = other._context.process_id
    assert (answered.zone, answered.suffix) == (own.zone, own.suffix)
    await falls_silent(primary)  # it is asked once
    response = await anext(aiter(read(cluster.stub(other), JOURNAL, 7, do_not_proxy=True)))
    assert (response.status, response.offset) == (pb.OK, 100)


async def falls_silent(broker):
    """Let a broker answer no calls any more; its lease goes on."""
    await broker._server.stop(grace_s=0.0)


async def test_a_replica_refuses_no_read_of_the_beginning_while_its_primary_is_silent(cluster):
    """It does not send the client elsewhere for ever, but has it ask again."""
    primary, other = await two_with_pruned_beginning(cluster)
    await eventually(lambda: other._resolver.replicas[JOURNAL].index.covers(100, 152))
    await falls_silent(primary)
    for fields in ({}, {"do_not_proxy": True}):
        await refused(anext(aiter(read(cluster.stub(other), JOURNAL, **fields))))


async def test_fragments_that_close_under_load_are_nothing_that_others_might_have(
    cluster, monkeypatch
):
    """They begin at the end of what is staged, which is not settled yet."""
    primary, _ = await two_with_pruned_beginning(cluster)
    stub, replica = cluster.stub(primary), primary._resolver.replicas[JOURNAL]
    assert await read_all(stub, JOURNAL, end_offset=120) == b"x" * 20
    staged_rolls, roll = 0, JournalSpool.roll

    def counted(self, to, **options):
        nonlocal staged_rolls
        staged_rolls += self is replica.spool and not self.is_settled
        roll(self, to, **options)

    monkeypatch.setattr(JournalSpool, "roll", counted)

    async def load():
        while not staged_rolls:
            assert (await append(stub, JOURNAL, b"q" * 300_000)).status == pb.OK

    async with asyncio.timeout(patient(20)):
        await asyncio.gather(*(load() for _ in range(4)))
    assert replica.gaps.may_skip(0)


async def moved_on(cluster, etcd, etcd_prefix, journal_leaves):
    """A journal that another broker has, and stores from 7 on.

    Args:
        journal_leaves: called with its first broker before the journal goes to the other one.

    Returns: both brokers, and what moves it from one to the other.
    """
    first = await cluster.start(append_wait_s=1.0)
    stub = cluster.stub(first)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"before ")
    second = await cluster.start(append_wait_s=2.0)
    journal_leaves(first)
    for broker in (first, second):
        broker._allocating.cancel()  # it would assign as it likes
    state = second._context.space.state

    async def move(old, new):
        """As an allocator does: the other one joins, is in step, and stays alone."""
        own = new._context.process_id
        lease = state.members[own].lease
        await etcd.txn([], [Put(assignment_key(etcd_prefix, JOURNAL, own, 1), b"", lease=lease)])
        await eventually(lambda: len(state.assignments_of(JOURNAL)) == 2)
        await eventually(lambda: state.is_consistent(JOURNAL))
        both = state.assignments_of(JOURNAL)
        value = next(one.value for one in both if one.process_id == own)
        await etcd.txn(
            [],
            [
                *(Delete(one.key) for one in both),
                Put(assignment_key(etcd_prefix, JOURNAL, own, 0), value, lease=lease),
            ],
        )
        await eventually(lambda: JOURNAL not in old._resolver.replicas)
        await eventually(lambda: new._context.space.state.route_of(JOURNAL).primary_id == own)
        await eventually(lambda: new._context.space.state.is_consistent(JOURNAL))

    await move(first, second)
    await append(cluster.stub(second), JOURNAL, b"that")
    replica = second._resolver.replicas[JOURNAL]
    await replica.close_fragment()
    await eventually(lambda: replica.index.is_stored(7, 11))
    return first, second, move


async def there_and_back(cluster, etcd, etcd_prefix, journal_leaves):
    """As `moved_on`, and it comes back. Returns: the broker that has it, and had its beginning."""
    first, second, move = await moved_on(cluster, etcd, etcd_prefix, journal_leaves)
    await move(second, first)
    return first


async def test_a_flush_waits_for_what_a_broker_had_before_and_closes_itself(
    cluster, etcd, etcd_prefix, tasks, monkeypatch
):
    """It is in no queue of its persister yet, for as long as its disk takes."""
    complete, goes_on, closing = Digester.complete, asyncio.Event(), []

    async def complete_then(self):
        if self in closing:
            await goes_on.wait()
        return await complete(self)

    def journal_leaves(first):
        closing.append(first._resolver.replicas[JOURNAL].spool.digester)

    monkeypatch.setattr(Digester, "complete", complete_then)
    broker = await there_and_back(cluster, etcd, etcd_prefix, journal_leaves)
    asked, closed = asyncio.Event(), broker._resolver.closed

    async def closed_when_asked(journal):
        asked.set()
        await closed(journal)

    monkeypatch.setattr(broker._resolver, "closed", closed_when_asked)
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        flushing = tasks.spawn(client.flush(f"name={JOURNAL}"), name="flush")
        waiting = tasks.spawn(asked.wait(), name="asked")
        await asyncio.wait({flushing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not flushing.done()
        goes_on.set()
        assert await flushing == {JOURNAL: 11}
    assert stored(cluster) == b"before that"


async def test_no_read_jumps_for_some_minutes_over_what_a_broker_had_that_crashed(
    cluster, etcd, etcd_prefix
):
    """Others can be asked no more, and may have stored it, or be about to."""
    crashed, broker, _ = await moved_on(cluster, etcd, etcd_prefix, hold_back)
    await crashed._server.stop(grace_s=0.0)
    await crashed._lease.revoke()
    await crashed.abandon()
    state, gone = broker._context.space.state, crashed._context.process_id
    await eventually(lambda: gone not in state.members)
    stub, replica = cluster.stub(broker), broker._resolver.replicas[JOURNAL]
    assert "content at 0" in await refused(anext(aiter(read(stub, JOURNAL))))
    began_at, replica.hole._began_at = replica.hole._began_at, -math.inf
    assert await read_all(stub, JOURNAL) == b"that"
    replica.hole._began_at = began_at
    store_fragment(cluster.fragments, JOURNAL, 0, b"before ")
    replica.refresh()
    await eventually(lambda: not replica.is_filling)
    assert await read_all(stub, JOURNAL) == b"before that"


async def test_lone_broker_reports_no_end_before_etcd_says_who_holds_the_journal(
    cluster, monkeypatch
):
    """It has no peer to hear from, but a broker that is away may hold more."""
    pulse, may_pulse = Pulses._append, asyncio.Event()

    async def wait(self, suspend):
        await may_pulse.wait()
        await pulse(self, suspend)

    monkeypatch.setattr(Pulses, "_append", wait)
    broker = await cluster.start(append_wait_s=0.5)
    store_fragment(cluster.fragments, JOURNAL, 0, b"content")
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec().to_pb())
    stub = cluster.stub(broker)
    assert (await stub.Apply(request)).status == pb.OK
    await eventually(lambda: JOURNAL in broker._resolver.replicas)
    with pytest.raises(aio.AioRpcError, match="its primary is new") as caught:
        await read_all(stub, JOURNAL)
    assert caught.value.code() is StatusCode.UNAVAILABLE
    assert not broker._resolver.replicas[JOURNAL].is_synced
    may_pulse.set()
    await eventually(lambda: broker._resolver.replicas[JOURNAL].is_synced)
    assert await read_all(stub, JOURNAL) == b"content"


async def test_a_journal_comes_in_step_though_the_stores_of_others_are_broken(cluster, monkeypatch):
    """Their pulses wait until they are listed, and hold up no other meanwhile."""
    monkeypatch.setattr(broker_context, "_PULSES_MAX", 1)
    brokers = [await cluster.start(zone=zone, append_wait_s=5.0) for zone in ZONES[:2]]
    (cluster.fragments / "broken").write_text("in the way of a folder")
    stores = replace(spec().fragment, stores=("file:///broken/",))
    broken = [JournalSpec(f"broken/{n}", 2, fragment=stores) for n in range(4)]
    request = pb.ApplyRequest()
    for one in broken:
        request.changes.add().upsert.CopyFrom(one.to_pb())
    stub = cluster.stub(brokers[0])
    assert (await stub.Apply(request)).status == pb.OK
    held = [broker._resolver.replicas for broker in brokers]
    await eventually(lambda: sum(len(replicas) for replicas in held) == 8)
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(2).to_pb())
    assert (await stub.Apply(request)).status == pb.OK

    def is_in_step():
        return any(JOURNAL in some and some[JOURNAL].is_consistent for some in held)

    await eventually(is_in_step, timeout_s=5.0)
