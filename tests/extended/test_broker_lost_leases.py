"""Two holders of a journal lose their leases at once, and one has content that the other never got.

It was proposed and never acknowledged. Which of them comes back first decides whether it is the journal's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil

import pytest
from journal_specs import journal_spec

from gazette_platform.broker import context as context_module, epochs
from gazette_platform.broker.crash import handover
from gazette_platform.broker.etcd_records import read_record, write_record
from gazette_platform.broker.journal import claims, replica as replicas
from gazette_platform.broker.replicate.replicator import Replicator
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import EtcdError
from gazette_platform.keyspace import encode_broker_spec, member_key
from gazette_platform.protocol import BrokerSpec, ProcessId
from gazette_platform.testing.local import LocalBrokers, read_all
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"


def replica(broker):
    return broker._resolver.replicas[JOURNAL]


def client(broker):
    return AsyncClient(ClientConfig(address=broker.endpoint, retry_timeout_s=patient(20)))


async def start(cluster, tmp_path, zone):
    spools = tmp_path / f"spool-{zone}"
    spools.mkdir(exist_ok=True)
    return await cluster.start(zone=f"zone-{zone}", spool_dir=spools)


async def with_more_at_one(cluster, tmp_path, *, is_closed=False):
    """A journal with content at both of its brokers, and more at the replica. Returns: primary and replica.

    Args:
        is_closed: whether the primary had the replica close its fragment then.
    """
    brokers = [await start(cluster, tmp_path, zone) for zone in "ab"]
    state = brokers[0]._context.space.state
    await cluster.apply(cluster.stub(brokers[0]), journal_spec(JOURNAL, 2, refresh_s=1))
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 2)
    async with client(brokers[0]) as one:
        await one.append(JOURNAL, b"content")
    primary, other = sorted(brokers, key=lambda broker: not replica(broker).is_primary)
    spool = replica(other).spool
    draft = spool.draft(with_digest=False)
    await draft.write([b" more"], 5)
    await spool.keep(draft, spool.registers)
    spool.commit(draft, spool.registers)
    if is_closed:
        spool.roll(spool.end)
        await spool.completed()
    return primary, other


async def with_lost_leases(cluster, tmp_path, **options):
    """As `with_more_at_one`, and both have lost their leases then."""
    primary, other = await with_more_at_one(cluster, tmp_path, **options)
    await lose_leases(primary, other)
    return primary, other


async def lose_leases(primary, other):
    # As one that is starved: nothing of what they do next reaches the other.
    await primary._server.stop(grace_s=0.0)
    await asyncio.gather(primary._lease.revoke(), other._lease.revoke())
    async with asyncio.timeout(patient(10)):
        await other.failed.wait()
    await primary.abandon()


def zone_of(broker):
    return broker.config.zone.removeprefix("zone-")


def stored(cluster):
    paths = (cluster.fragments / JOURNAL).glob("*")
    return [path.read_bytes() for path in sorted(paths)]


async def test_what_a_replica_stores_as_it_fails_does_not_stop_appends(cluster, tmp_path):
    primary, other = await with_lost_leases(cluster, tmp_path)
    await other.fail()
    assert b"content more" in stored(cluster)
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", and after")).begin == 12
        assert await read_all(cluster.stub(back), JOURNAL) == b"content more, and after"


@pytest.mark.parametrize("is_closed", [False, True])
async def test_what_others_went_on_without_is_not_stored_by_a_replica_that_fails(
    cluster, tmp_path, caplog, monkeypatch, is_closed
):
    have_gone_on, say_end = asyncio.Event(), claims.say_end

    async def say_late(*args):
        await have_gone_on.wait()
        await say_end(*args)

    monkeypatch.setattr(replicas, "say_end", say_late)
    primary, other = await with_lost_leases(cluster, tmp_path, is_closed=is_closed)
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", others")).begin == 7
        have_gone_on.set()
        await other.fail()
        await one.flush(f"name={JOURNAL}")
        assert not [content for content in stored(cluster) if b"more" in content]
        await start(cluster, tmp_path, zone_of(other))
        await eventually(lambda: f"{JOURNAL}: content [7, 12)" in caplog.text)
        assert await read_all(cluster.stub(back), JOURNAL) == b"content, others"


async def never(*_args, **_options):
    await asyncio.Event().wait()


def is_unconfirmed(broker):
    found = broker._resolver.replicas.get(JOURNAL)
    return found is not None and found.spool.is_unconfirmed


async def test_who_was_not_in_step_since_it_came_back_does_not_say_where_its_spool_ends(
    cluster, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(replicas, "say_end", never)  # killed before that
        primary, other = await with_lost_leases(cluster, tmp_path)
        await other.abandon()
    with monkeypatch.context() as patch:
        patch.setattr(Replicator, "sync", never)
        back = await start(cluster, tmp_path, zone_of(other))
        await eventually(lambda: is_unconfirmed(back))
        await back._lease.revoke()
        async with asyncio.timeout(patient(10)):
            await back.failed.wait()
        await back.fail()
    assert stored(cluster) == []
    first, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(first) as one:
        # Else readers would meet a gap, and wait for content that only a disk has.
        assert (await one.append(JOURNAL, b", and after")).begin == 7
        assert await read_all(cluster.stub(first), JOURNAL) == b"content, and after"


async def fail(broker):
    await broker._lease.revoke()
    async with asyncio.timeout(patient(10)):
        await broker.failed.wait()
    await broker.fail()


async def test_what_was_acknowledged_beside_a_broker_of_gazette_is_stored(cluster, tmp_path):
    broker = await start(cluster, tmp_path, "a")
    context = broker._context
    await cluster.apply(cluster.stub(broker), journal_spec(JOURNAL, 1))
    async with client(broker) as one:
        await one.append(JOURNAL, b"content")
        # As the primary does when a broker joins that keeps nothing: there are no holders then.
        prefix, revision = context.config.etcd_prefix, replica(broker).create_revision
        record, at = await read_record(context.etcd, prefix, JOURNAL)
        claim = epochs.claim(record, create_revision=revision, holders=None, end=7)
        assert await write_record(context.etcd, prefix, JOURNAL, claim.record, at)
        await one.append(JOURNAL, b" that counts")
    await fail(broker)
    assert b"".join(stored(cluster)) == b"content that counts"


async def test_an_unforeseen_error_keeps_no_content_from_the_store(cluster, tmp_path, monkeypatch):
    async def say_end(*_):
        raise RuntimeError("unforeseen")

    cluster.expect(RuntimeError)
    monkeypatch.setattr(replicas, "say_end", say_end)
    broker = await start(cluster, tmp_path, "a")
    await cluster.apply(cluster.stub(broker), journal_spec(JOURNAL, 1))
    async with client(broker) as one:
        await one.append(JOURNAL, b"content")
    await fail(broker)
    assert stored(cluster) == [b"content"]


async def test_where_spools_end_is_said_some_at_a_time(cluster, tmp_path, tasks, monkeypatch):
    broker, _ = [await start(cluster, tmp_path, zone) for zone in "ab"]
    context = broker._context
    await cluster.apply(cluster.stub(broker), journal_spec(JOURNAL, 2))
    async with client(broker) as one:
        await one.append(JOURNAL, b"content")
    for _ in range(context_module._ENDS_MAX):
        await context.end_slots.acquire()

    def say_end():
        ours = replica(broker)
        return claims.say_end(context, JOURNAL, ours.create_revision, ours.spool)

    async def head():
        record, _ = await read_record(context.etcd, context.config.etcd_prefix, JOURNAL)
        return record.released and record.released.head

    with monkeypatch.context() as patch:
        patch.setattr(claims, "_END_TURN_S", 0.1)
        await say_end()
    held = context.persister._held.pop(replica(broker).spool.tenure, None)
    assert (held is None) == replica(broker).is_primary, "all holders have what a primary has"
    saying = tasks.spawn(say_end(), name="say end")
    await stays(lambda: not saying.done(), for_s=0.2)
    assert await head() is None
    context.end_slots.release()
    await saying
    assert await head() == 7


async def test_what_a_replica_stores_as_it_leaves_does_not_stop_appends(cluster, tmp_path):
    primary, other = await with_more_at_one(cluster, tmp_path)
    await primary._server.stop(grace_s=0.0)  # it hangs, and is killed after that
    other.config = dataclasses.replace(other.config, drain_timeout_s=0.1)
    await other.drain()
    assert stored(cluster) == [b"content more"]
    await primary._lease.revoke()
    await primary.abandon()
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", and after")).begin == 12


async def with_more_that_comes_back(cluster, tmp_path, monkeypatch):
    """As `with_more_at_one`, both are killed, and what etcd has of the journal cannot be read. Returns: former primary, who
    is away, the other, who is in step with a third one, and that one."""
    with monkeypatch.context() as patch:
        patch.setattr(replicas, "say_end", never)  # killed before that
        primary, other = await with_lost_leases(cluster, tmp_path)
        await other.abandon()
    monkeypatch.setattr(claims, "read_record", away)
    back, third = [await start(cluster, tmp_path, zone) for zone in (zone_of(other), "c")]
    await eventually(lambda: is_held(back))
    await stays(lambda: stored(cluster) == [], for_s=0.3)
    return primary, back, third


async def away(*_args, **_options):
    raise EtcdError("etcd is away")


def is_held(broker):
    found = broker._resolver.replicas.get(JOURNAL)
    return found is not None and found.spool.is_held


async def test_what_a_broker_found_is_not_stored_before_its_journal_is_claimed(
    cluster, tmp_path, monkeypatch
):
    """Another holder may come back in its place, and go on below what is stored."""
    with monkeypatch.context() as patch:
        primary, back, third = await with_more_that_comes_back(cluster, tmp_path, patch)
        await asyncio.gather(fail(back), fail(third))
        assert stored(cluster) == []
    first, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "d")]
    async with client(first) as one:
        assert (await one.append(JOURNAL, b", and after")).begin == 7
        assert await read_all(cluster.stub(first), JOURNAL) == b"content, and after"


async def test_what_a_broker_found_is_stored_once_its_journal_is_claimed(
    cluster, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        await with_more_that_comes_back(cluster, tmp_path, patch)
    await eventually(lambda: stored(cluster) == [b"content more"])


async def test_what_closes_before_a_new_primary_has_claimed_the_journal_waits(
    cluster, tmp_path, monkeypatch
):
    primary, other = await with_more_at_one(cluster, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(claims, "read_record", away)
        await start(cluster, tmp_path, "c")
        await primary._server.stop(grace_s=0.0)
        await primary._lease.revoke()
        await primary.abandon()
        await eventually(lambda: is_held(other))
        await stays(lambda: stored(cluster) == [], for_s=0.3)
    await eventually(lambda: stored(cluster) == [b"content more"])


async def test_what_waits_for_a_claim_is_stored_by_a_broker_that_leaves(
    cluster, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        _, back, third = await with_more_that_comes_back(cluster, tmp_path, patch)
        patch.setattr(replicas, "claim_journal", away)
        patch.setattr(claims, "read_record", read_record)
        await fail(third)
        back.config = dataclasses.replace(back.config, drain_timeout_s=0.1)
        assert await back.drain() == []
        assert stored(cluster) == [b"content more"]


# ---------------------------------------------------------------------------- etcd is away
@pytest.fixture
async def own_cluster(own_etcd_server, tmp_path):
    """Brokers whose etcd ends when a test says so."""
    endpoint = own_etcd_server.endpoint
    async with LocalBrokers(tmp_path, etcd=endpoint, prefix="/ends") as cluster:
        yield cluster


async def without_etcd(etcd, *brokers):
    etcd.kill()
    async with asyncio.timeout(patient(20)):
        for broker in brokers:
            await broker.failed.wait()


async def test_what_could_not_be_said_is_not_stored(own_cluster, own_etcd_server, tmp_path, caplog):
    """Else the journal would go on below what is stored, and appends would wait for an operator."""
    cluster = own_cluster
    primary, other = await with_more_at_one(cluster, tmp_path)
    await without_etcd(own_etcd_server, primary, other)
    async with asyncio.timeout(patient(30)):
        await asyncio.gather(primary.fail(), other.fail())
    assert stored(cluster) == [b"content"], "what a primary has, all holders have"
    assert primary._persister._asked
    assert not other._persister._asked
    await asyncio.to_thread(own_etcd_server.start)
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", others")).begin == 7
    await start(cluster, tmp_path, zone_of(other))
    await eventually(lambda: f"{JOURNAL}: content [7, 12)" in caplog.text)
    assert await read_all(cluster.stub(back), JOURNAL) == b"content, others"


async def test_what_only_the_next_process_can_say_is_stored_by_it(
    own_cluster, own_etcd_server, tmp_path
):
    cluster = own_cluster
    primary, other = await with_more_at_one(cluster, tmp_path)
    await without_etcd(own_etcd_server, primary, other)
    await primary.abandon()
    shutil.rmtree(primary.config.spool_dir)
    async with asyncio.timeout(patient(30)):
        left = await other.fail()
    assert (stored(cluster), [(one.begin, one.end) for one in left]) == ([], [(0, 12)])
    await asyncio.to_thread(own_etcd_server.start)
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(other), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", and after")).begin == 12
        assert await one.flush(f"name={JOURNAL}") == {JOURNAL: 23}
    assert b"".join(stored(cluster)) == b"content more, and after"


async def test_it_is_said_and_stored_once_etcd_is_back(
    own_cluster, own_etcd_server, tmp_path, tasks
):
    cluster = own_cluster
    primary, other = await with_more_at_one(cluster, tmp_path)
    other.config = dataclasses.replace(other.config, drain_timeout_s=None)
    await without_etcd(own_etcd_server, primary, other)
    await primary.abandon()
    failing = tasks.spawn(other.fail(), name="fail")
    await eventually(lambda: other._persister._held)
    assert stored(cluster) == []
    await asyncio.to_thread(own_etcd_server.start)
    async with asyncio.timeout(patient(40)):
        assert await failing == []
    assert stored(cluster) == [b"content more"]
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", and after")).begin == 12


async def test_all_is_stored_beside_a_broker_of_gazette(own_cluster, own_etcd_server, tmp_path):
    """No process would adopt what is left, and it may have been acknowledged."""
    cluster = own_cluster
    primary, other = await with_more_at_one(cluster, tmp_path)
    theirs = BrokerSpec(
        id=ProcessId("zone", "of-gazette"), endpoint="http://127.0.0.1:1", journal_limit=0
    )
    context = other._context
    key = member_key(context.config.etcd_prefix, theirs.id)
    await context.etcd.put(key, encode_broker_spec(theirs))
    await eventually(lambda: context.membership.is_mixed)
    await without_etcd(own_etcd_server, primary, other)
    await primary.abandon()
    async with asyncio.timeout(patient(30)):
        assert await other.fail() == []
    assert stored(cluster) == [b"content more"]


@pytest.mark.parametrize("is_closed", [False, True])
async def test_what_others_went_on_without_meanwhile_is_not_stored(
    cluster, tmp_path, tasks, caplog, monkeypatch, is_closed
):
    have_gone_on = asyncio.Event()

    async def read(etcd, *args):
        if etcd is other._context.etcd and not have_gone_on.is_set():
            raise EtcdError("etcd is away")
        return await read_record(etcd, *args)

    primary, other = await with_more_at_one(cluster, tmp_path, is_closed=is_closed)
    other.config = dataclasses.replace(other.config, drain_timeout_s=None)
    monkeypatch.setattr(claims, "read_record", read)
    await lose_leases(primary, other)
    failing = tasks.spawn(other.fail(), name="fail")
    await eventually(lambda: other._persister._held)
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", others")).begin == 7
        have_gone_on.set()
        async with asyncio.timeout(patient(40)):
            await failing
        await one.flush(f"name={JOURNAL}")
        assert not [content for content in stored(cluster) if b"more" in content]
        await start(cluster, tmp_path, zone_of(other))
        await eventually(lambda: f"{JOURNAL}: content [7, 12)" in caplog.text)
        assert await read_all(cluster.stub(back), JOURNAL) == b"content, others"


async def test_a_broker_of_gazette_that_has_left_shows_at_once(cluster, tmp_path, monkeypatch):
    broker = await start(cluster, tmp_path, "a")
    context = broker._context
    theirs = BrokerSpec(
        id=ProcessId("zone", "of-gazette"), endpoint="http://127.0.0.1:1", journal_limit=0
    )
    key = member_key(context.config.etcd_prefix, theirs.id)
    await context.etcd.put(key, encode_broker_spec(theirs))
    await eventually(lambda: context.membership.is_mixed)
    monkeypatch.setattr(handover, "read_own_members", away)
    await context.etcd.delete(key)
    await eventually(lambda: not context.membership.is_mixed)
