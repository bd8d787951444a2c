"""A broker that becomes primary with nothing of what its replicas have: what it reports to readers."""

from __future__ import annotations

import asyncio

import pytest
from away_store import JOURNAL, ZONES, hold_back, refused, spec

from gazette_platform.broker.api import routing
from gazette_platform.broker.journal.pulses import Pulses
from gazette_platform.broker.journal.replica import Replica
from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import assignment_key
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read, read_all, store_fragment
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


async def make_new_primary(cluster, etcd, etcd_prefix, monkeypatch, *, offset=0, slot=0):
    """Put a broker that has nothing of a journal in place of its primary; all stores are away.

    Args:
        offset: where the journal goes on with what that one has acknowledged.
        slot: of the broker; unless it is 0, the journal has no primary for now.

    Returns: the broker, and an event that lets it hear from the replica that stays.
    """
    first, second = [await cluster.start(zone=zone) for zone in ZONES[:2]]
    stub = cluster.stub(first)
    await cluster.apply(stub, spec(2))
    appended = await append(stub, JOURNAL, b"acknowledged", offset=offset)
    assert appended.commit.end == offset + 12
    third = await cluster.start(zone="zone-c", append_wait_s=2.0)
    state = third._context.space.state
    await eventually(lambda: state.is_consistent(JOURNAL))
    for broker in (first, second, third):
        hold_back(broker)
        broker._allocating.cancel()  # it would assign as it likes
    hears, pulse = asyncio.Event(), Pulses._append

    async def pulse_once_it_hears(self, suspend):
        if self._replica.process_id == third._context.process_id:
            await hears.wait()
        await pulse(self, suspend)

    monkeypatch.setattr(Pulses, "_append", pulse_once_it_hears)
    primary, _ = sorted(state.assignments_of(JOURNAL), key=lambda one: one.slot)
    own = third._context.process_id
    lease = state.members[own].lease
    key = assignment_key(etcd_prefix, JOURNAL, own, slot)
    # As an allocator does that makes it primary in place of a broker which crashed.
    await etcd.txn([], [Delete(primary.key), Put(key, b"", lease=lease)])
    await eventually(lambda: JOURNAL in third._resolver.replicas)
    return third, hears


async def listed(stub, request):
    return await stub.ListFragments(request)


async def test_new_primary_reports_no_end_before_it_has_heard_from_its_replicas(
    cluster, etcd, etcd_prefix, tasks, monkeypatch
):
    """It ended a read at what the store had, before content that its replica had acknowledged."""
    third, hears = await make_new_primary(cluster, etcd, etcd_prefix, monkeypatch)
    stub = cluster.stub(third)
    calls = [
        tasks.spawn(refused(read_all(stub, JOURNAL, at, do_not_proxy=True)), name=f"read at {at}")
        for at in (0, -1)
    ]
    await stays(lambda: not any(call.done() for call in calls), for_s=0.3)
    hears.set()
    # The other one has it, and its store is away.
    for call in calls:
        assert "that is not stored yet" in await call


async def test_new_primary_that_syncs_with_its_replicas_reports_no_older_head(
    cluster, etcd, etcd_prefix, tasks, monkeypatch
):
    """Beside content it reported the end of what is stored, and others had reported a later one."""
    monkeypatch.setattr(routing, "_SYNC_WAIT_S", 20.0)
    store_fragment(cluster.fragments, JOURNAL, 0, b"before ")
    third, hears = await make_new_primary(cluster, etcd, etcd_prefix, monkeypatch, offset=7)
    replica = third._resolver.replicas[JOURNAL]
    response = tasks.spawn(anext(aiter(read(cluster.stub(third), JOURNAL))), name="read")
    watching = len(replica.watchers)
    await eventually(lambda: response.done() or len(replica.watchers) > watching)
    hears.set()
    found = await response
    assert (found.fragment.end, found.write_head) == (7, 19)


async def test_read_from_before_the_first_listing_gets_what_it_shows(
    cluster, etcd, etcd_prefix, tasks, monkeypatch
):
    """It waited for all else that is not known, too, and was refused although content existed."""
    monkeypatch.setattr(routing, "_SYNC_WAIT_S", 20.0)
    store_fragment(cluster.fragments, JOURNAL, 0, b"before ")
    is_listed, refresh = asyncio.Event(), Replica._refresh

    async def refresh_when_told(replica):
        if replica.process_id.zone == "zone-c":
            await is_listed.wait()
        return await refresh(replica)

    monkeypatch.setattr(Replica, "_refresh", refresh_when_told)
    third, hears = await make_new_primary(cluster, etcd, etcd_prefix, monkeypatch, offset=7)
    replica = third._resolver.replicas[JOURNAL]
    response = tasks.spawn(anext(aiter(read(cluster.stub(third), JOURNAL))), name="read")
    hears.set()
    await eventually(lambda: replica.is_synced)
    await eventually(lambda: replica.index._waiters)
    assert not response.done()
    is_listed.set()
    found = await response
    assert (found.fragment.end, found.write_head) == (7, 19)


async def test_new_replica_of_a_journal_without_primary_reports_no_end(
    cluster, etcd, etcd_prefix, tasks, monkeypatch
):
    """The primary crashed as it was assigned: no broker synced it, and it reported the end of the store."""
    third, hears = await make_new_primary(cluster, etcd, etcd_prefix, monkeypatch, slot=2)
    stub = cluster.stub(third)
    calls = [
        tasks.spawn(
            refused(read_all(stub, JOURNAL, at, do_not_proxy=do_not_proxy)), name=f"read at {at}"
        )
        for at in (0, -1)
        for do_not_proxy in (False, True)
    ]
    request = pb.FragmentsRequest(journal=JOURNAL, do_not_proxy=True)
    calls.append(tasks.spawn(refused(listed(stub, request)), name="list"))
    await stays(lambda: not any(call.done() for call in calls), for_s=0.3)
    state, own = third._context.space.state, third._context.process_id
    # It is made the primary, as an allocator may do.
    was = assignment_key(etcd_prefix, JOURNAL, own, 2)
    now = assignment_key(etcd_prefix, JOURNAL, own, 0)
    await etcd.txn([], [Delete(was), Put(now, b"", lease=state.members[own].lease)])
    hears.set()
    # The other one has it, and its store is away.
    for call in calls:
        assert "that is not stored yet" in await call


async def test_what_a_new_primary_has_is_read_though_it_does_not_hear_from_its_replicas(
    cluster, etcd, etcd_prefix, monkeypatch
):
    store_fragment(cluster.fragments, JOURNAL, 0, b"before ")
    third, hears = await make_new_primary(cluster, etcd, etcd_prefix, monkeypatch, offset=7)
    async with asyncio.timeout(patient(10)):
        responses = aiter(read(cluster.stub(third), JOURNAL))
        found = await anext(responses)
        assert (found.fragment.end, found.write_head) == (7, 7)  # all that it knows of
        assert (await anext(responses)).content == b"before "
    assert not third._resolver.replicas[JOURNAL].is_synced
    hears.set()
