"""Etcd says who holds a journal: it must be those brokers that its primary is in step with, and no others."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace

import pytest
from journal_specs import journal_spec

from gazette_platform.broker.epochs import EpochRecord, Holder
from gazette_platform.broker.etcd_records import read_record, write_record
from gazette_platform.broker.journal import claims, replica
from gazette_platform.broker.journal.gaps import ask_other
from gazette_platform.broker.spool.home import SpoolHome
from gazette_platform.broker.spool.persister import Persister
from gazette_platform.broker.spool.recovery import RecoveredTenure
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import StoreUnavailable
from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import assignment_key, encode_journal_spec, item_key
from gazette_platform.protocol import LabelSet, ProcessId, Route, SuspendLevel, SuspendSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.waiting import block_for, eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"


def spec(replication, name=JOURNAL, **options):
    return journal_spec(name, replication, refresh_s=3600, **options)


def client(broker, **options):
    return AsyncClient(ClientConfig(address=broker.endpoint, **options))


def tenures(brokers):
    return {broker._resolver.replicas[JOURNAL].spool.tenure for broker in brokers}


async def record_of(broker):
    context = broker._context
    return (await read_record(context.etcd, context.config.etcd_prefix, JOURNAL))[0]


async def crash(broker):
    """As by SIGKILL, except what its process shares with the test."""
    await broker._server.stop(grace_s=0.0)
    await broker._lease.revoke()
    await broker.abandon()


async def test_a_noted_head_counts_though_the_spec_is_applied_again_behind_the_claim(
    cluster, monkeypatch
):
    """The claim deletes what else is known of the head, so the spool has to exist by then."""
    first = await cluster.start(drain_timeout_s=20.0)
    await cluster.apply(cluster.stub(first), spec(1))
    await append(cluster.stub(first), JOURNAL, b"content, ")
    await first.drain()
    applied = []

    async def claim_then_apply(context, *args, **options):
        found = await claims.claim_journal(context, *args, **options)
        if isinstance(found, claims.Claimed) and found.is_done and not applied:
            key = item_key(context.config.etcd_prefix, JOURNAL)
            result = await context.etcd.txn([], [Put(key, encode_journal_spec(spec(1)))])
            await context.space.wait_for_revision(result.header.revision)
            applied.append(result)
        return found

    monkeypatch.setattr(replica, "claim_journal", claim_then_apply)
    second = await cluster.start()
    stub = cluster.stub(second)
    assert (await append(stub, JOURNAL, b"and more")).status == pb.OK
    assert applied
    assert await read_all(stub, JOURNAL) == b"content, and more"


async def test_brokers_that_came_while_etcd_was_asked_are_not_holders(cluster, tasks, monkeypatch):
    """Nor does one stay that left: it would be believed once it comes back, and lacks what follows."""
    brokers = [await cluster.start(zone=zone) for zone in ("zone-a", "zone-b")]
    is_held, may_go = asyncio.Event(), asyncio.Event()

    async def read_late(*args):
        found = await read_record(*args)
        is_held.set()
        await may_go.wait()
        return found

    monkeypatch.setattr(claims, "read_record", read_late)
    tasks.spawn(cluster.apply(cluster.stub(brokers[0]), spec(2)), name="apply")
    await is_held.wait()
    state = brokers[0]._context.space.state
    primary = next(
        one for one in brokers if one._context.process_id == state.route_of(JOURNAL).primary_id
    )
    (left,) = set(brokers) - {primary}
    state = primary._context.space.state
    await crash(left)
    other = await cluster.start(zone="zone-c")
    await eventually(
        lambda: (
            set(state.route_of(JOURNAL).members)
            == {primary._context.process_id, other._context.process_id}
        )
    )
    may_go.set()
    async with client(primary) as one:
        await one.append(JOURNAL, b"of both")
    record = await record_of(primary)
    assert {one.tenure for one in record.holders} == tenures([primary, other])


@pytest.mark.parametrize("is_seen", [False, True])
@pytest.mark.parametrize(
    "what", ["nothing", "record", "spec", "assignment", "assignment gone", "another assignment"]
)
async def test_nothing_is_claimed_if_anything_changed_since_it_was_decided_on(
    etcd, etcd_prefix, monkeypatch, what, is_seen
):
    """Another process has the journal by now, or it is another one: what they wrote stays.

    It does not help to have seen the change meanwhile: no broker has synced with the one that came.
    """
    item_at, raw = item_key(etcd_prefix, JOURNAL), encode_journal_spec(spec(1))
    us, other = (
        assignment_key(etcd_prefix, JOURNAL, ProcessId("zone", name), slot)
        for slot, name in enumerate(("us", "other"))
    )
    former = EpochRecord((await etcd.put(item_at, raw)).revision, 1, ())
    await write_record(etcd, etcd_prefix, JOURNAL, former, 0)
    known_at = (await etcd.put(us, b"")).revision
    space = SimpleNamespace(
        revision=known_at,
        state=SimpleNamespace(
            items={JOURNAL: SimpleNamespace(create_revision=former.create_revision, spec=spec(1))},
            assignments_of=lambda _: (
                SimpleNamespace(key=us, mod_revision=known_at, route=Route()),
            ),
            route_of=lambda _: Route(),
        ),
    )

    async def read_before_it_changes(*args):
        found = await read_record(*args)
        match what:
            case "record":
                await write_record(etcd, etcd_prefix, JOURNAL, former, found[1])
            case "spec":
                await etcd.delete(item_at)
                await etcd.put(item_at, raw)
            case "assignment":
                await etcd.put(us, b"changed")
            case "assignment gone":
                await etcd.delete(us)
            case "another assignment":
                await etcd.put(other, b"")
        if is_seen:
            space.revision = (await etcd.range(etcd_prefix)).header.revision
        return found

    monkeypatch.setattr(claims, "read_record", read_before_it_changes)
    ours = Holder("ours", ProcessId("zone", "us"))
    claimed = await claims.claim_journal(
        SimpleNamespace(etcd=etcd, space=space, config=SimpleNamespace(etcd_prefix=etcd_prefix)),
        JOURNAL,
        former.create_revision,
        frozenset([ours]),
        end=0,
        registers=LabelSet(),
        is_reset=False,
    )
    record, _ = await read_record(etcd, etcd_prefix, JOURNAL)
    assert (claimed.is_done, record.holders) == (
        (True, (ours,)) if what == "nothing" else (False, ())
    )


async def test_a_journal_made_again_is_held_although_its_brokers_stay(cluster):
    broker = await cluster.start(watch_delay_s=0.2)
    await cluster.apply(cluster.stub(broker), spec(1))
    former = broker._resolver.replicas[JOURNAL]
    etcd, key = broker._context.etcd, item_key(broker.config.etcd_prefix, JOURNAL)
    await etcd.txn((), (Delete(key),))
    await etcd.txn((), (Put(key, encode_journal_spec(spec(1))),))
    replicas = broker._resolver.replicas  # it is in none while both revisions are apart
    await eventually(lambda: replicas.get(JOURNAL) not in (None, former))
    async with client(broker) as one:
        await one.append(JOURNAL, b"acknowledged")
    assert {one.tenure for one in (await record_of(broker)).holders} == tenures([broker])
    await crash(broker)
    broker = await cluster.start()
    stub = cluster.stub(broker)
    assert (await append(stub, JOURNAL, b" and more")).commit.begin == len(b"acknowledged")
    assert await read_all(stub, JOURNAL) == b"acknowledged and more"


async def test_what_was_found_is_stored_once_its_journal_goes_on(cluster):
    broker = await cluster.start()
    await cluster.apply(cluster.stub(broker), spec(1))
    await append(cluster.stub(broker), JOURNAL, b"found")
    await crash(broker)
    broker = await cluster.start()
    await append(cluster.stub(broker), JOURNAL, b" and more")
    files = cluster.fragments
    await eventually(lambda: b"found" in [path.read_bytes() for path in files.rglob("*.raw")])


async def test_a_store_that_is_away_holds_up_no_journals_of_other_stores(
    cluster, tmp_path, monkeypatch
):
    """Of several that wait for what a broker has found, only that of the store waits for it."""
    names, is_away = [f"a/journal-{n}" for n in range(3)], True
    put = Persister._put

    async def put_unless_away(self, store, spool, fragment):
        if is_away and fragment.journal == names[0]:
            raise StoreUnavailable("the store is away")
        await put(self, store, spool, fragment)

    monkeypatch.setattr(Persister, "_put", put_unless_away)
    former = await cluster.start(zone="zone-a", id="holder")
    stub = cluster.stub(former)
    await cluster.apply(stub, *(spec(1, name) for name in names))
    for name in names:
        await append(stub, name, b"of the holder ")
    (tmp_path / "other").mkdir()
    other = await cluster.start(zone="zone-b", spool_dir=tmp_path / "other")
    await crash(former)
    await cluster.start(zone="zone-a", id="holder", journal_limit=0)
    async with client(other) as one:
        async with asyncio.timeout(patient(20)):
            for name in names[1:]:
                assert (await one.append(name, b"x")).begin == 14
        is_away = False
        assert (await one.append(names[0], b"x")).begin == 14
    for name in names:
        assert await read_all(cluster.stub(other), name) == b"of the holder x"


async def test_spec_that_cannot_be_read_is_not_a_deleted_journal(cluster):
    """What a broker finds of such a journal stays until the spec is mended."""
    former = await cluster.start()
    await cluster.apply(cluster.stub(former), spec(1))
    await append(cluster.stub(former), JOURNAL, b"acknowledged")
    etcd, key = former._context.etcd, item_key(former.config.etcd_prefix, JOURNAL)
    await etcd.txn((), (Put(key, b"no spec"),))
    await crash(former)
    broker = await cluster.start()
    assert JOURNAL not in broker._context.space.state.items
    await broker._leftovers.settle_all()
    etcd = broker._context.etcd
    await etcd.txn((), (Put(key, encode_journal_spec(spec(1))),))
    await eventually(lambda: JOURNAL in broker._resolver.replicas)
    stub = cluster.stub(broker)
    assert (await append(stub, JOURNAL, b" and more")).commit.begin == len(b"acknowledged")
    assert await read_all(stub, JOURNAL) == b"acknowledged and more"


async def test_a_journal_is_held_again_once_no_broker_of_gazette_leads_it(cluster):
    """As while brokers are replaced by newer ones: the first of these are led by older ones for a time."""
    brokers = [await cluster.start(zone=zone) for zone in ("zone-a", "zone-b")]
    await cluster.apply(cluster.stub(brokers[0]), spec(2))
    replicas = [broker._resolver.replicas[JOURNAL] for broker in brokers]
    async with client(brokers[0]) as one:
        await one.append(JOURNAL, b"before ")
        (primary,) = [replica for replica in replicas if replica.is_primary]
        await primary.replicator.renew()
        (other,) = [replica for replica in replicas if replica is not primary]
        await eventually(lambda: not other.spool.lock.locked())
        other.renounce()
        await eventually(lambda: is_forgotten(brokers[0]))
        assert (await one.append(JOURNAL, b"after")).begin == 7
    assert {one.tenure for one in (await record_of(brokers[0])).holders} == tenures(brokers)
    for broker in brokers:
        await crash(broker)
    brokers = [await cluster.start(zone=zone) for zone in ("zone-a", "zone-b")]
    async with client(brokers[0]) as one:
        assert (await one.append(JOURNAL, b" that")).begin == 12
    assert await read_all(cluster.stub(brokers[0]), JOURNAL) == b"before after that"


async def is_forgotten(broker):
    return await record_of(broker) is None


async def test_suspended_journal_has_no_holder_and_resumes_with_its_registers(cluster):
    """Brokers would look after what they held of it for as long as it is suspended."""
    brokers = [await cluster.start(zone=zone) for zone in ("zone-a", "zone-b")]
    await cluster.apply(cluster.stub(brokers[0]), spec(2))
    async with client(brokers[0]) as one:
        await one.append(JOURNAL, b"before ", union_registers=LabelSet.of(held="there"))
        suspended = spec(2, suspend=SuspendSpec(SuspendLevel.FULL, 7))
        await one.apply([Change(suspended, revision=-1)])
        await eventually(lambda: all(JOURNAL not in one._resolver.replicas for one in brokers))
        await asyncio.gather(*(broker._resolver.closed(JOURNAL) for broker in brokers))
        await asyncio.gather(*(broker._persister.flush(JOURNAL) for broker in brokers))
        await eventually(lambda: not any(len(broker._leftovers) for broker in brokers))
        done = await one.append(JOURNAL, b"after")
    assert (done.begin, done.registers) == (7, LabelSet.of(held="there"))
    assert {one.tenure for one in (await record_of(brokers[0])).holders} == tenures(brokers)


async def test_leftovers_of_a_former_process_are_reported_on_request(cluster, monkeypatch):
    """It may be a holder's, which keeps its content: else readers would take that for lost."""
    brokers = [await cluster.start(zone=zone) for zone in ("zone-a", "zone-b")]
    await cluster.apply(cluster.stub(brokers[0]), spec(1))
    async with client(brokers[0]) as one:
        await one.append(JOURNAL, b"content")
    primary = next(broker for broker in brokers if JOURNAL in broker._resolver.replicas)
    other = next(broker for broker in brokers if broker is not primary)
    leftovers, asked = other._context.leftovers, other._context.process_id
    assert await ask_other(primary._context, JOURNAL, asked)
    monkeypatch.setattr(leftovers, "has_content", lambda journal: journal == JOURNAL)
    assert not await ask_other(primary._context, JOURNAL, asked)
    tenure = SimpleNamespace(id="t", create_revision=1, is_older_than_etcd=False)
    found = RecoveredTenure(tenure, "zone#us", 0, LabelSet(), is_whole=True)
    monkeypatch.undo()
    monkeypatch.setitem(leftovers._found, JOURNAL, [found])
    assert not leftovers.has_content(JOURNAL)
    found.fragments = [SimpleNamespace(state=SimpleNamespace(begin=0))]
    assert leftovers.has_content(JOURNAL)


async def test_holders_that_are_named_since_are_not_forgotten(cluster):
    """A broker of Gazette led the journal for a moment; one of ours has led it since."""
    broker = await cluster.start()
    await cluster.apply(cluster.stub(broker), spec(1))
    context, before = broker._context, broker._context.space.revision
    async with client(broker) as one:
        await one.append(JOURNAL, b"content")
    revision = context.space.state.items[JOURNAL].create_revision
    record = await record_of(broker)
    _, written_at = await read_record(context.etcd, context.config.etcd_prefix, JOURNAL)
    for as_of in (min(before, written_at - 1), written_at - 1):
        await claims.forget_holders(context, JOURNAL, revision, as_of=as_of)
        assert await record_of(broker) == record
    await claims.forget_holders(context, JOURNAL, revision, as_of=written_at)
    assert await record_of(broker) is None


async def test_journals_are_begun_beside_the_event_loop(cluster, monkeypatch):
    """Many are begun at once, when brokers come and go: a slow disk must not cost the lease."""
    threads, write = [], SpoolHome.write

    def told(*args):
        if threading.current_thread() is not threading.main_thread():
            threads.append(threading.current_thread())
        write(*args)

    broker = await cluster.start()
    monkeypatch.setattr(SpoolHome, "write", told)
    for n in range(5):
        await cluster.apply(cluster.stub(broker), spec(1, f"a/journal-{n}"))
    held = broker._resolver.replicas
    await eventually(lambda: len(held) == 5 and all(one.spool.tenure for one in held.values()))
    await eventually(lambda: len(threads) == 5)
    await crash(broker)
    again = await cluster.start()
    held = again._resolver.replicas
    await eventually(lambda: len(held) == 5 and all(one.spool.tenure for one in held.values()))
    await eventually(lambda: len(threads) == 10)


@pytest.mark.parametrize("replication", [1, 2])
async def test_a_slow_disk_holds_up_threads_and_not_the_event_loop(
    cluster, monkeypatch, replication
):
    """The small writes of a few journals took the loop so long that the lease was not renewed."""
    slow_s, on_loop, in_threads = 0.05, [], []

    def slowed(call):
        def slow(*args):
            is_loop = threading.current_thread() is threading.main_thread()
            (on_loop if is_loop else in_threads).append(call)
            block_for(slow_s)
            return call(*args)

        return slow

    brokers = [await cluster.start(zone=zone) for zone in "ab"[:replication]]
    names = [f"a/journal-{n}" for n in range(10)]
    for name in names:
        await cluster.apply(cluster.stub(brokers[0]), spec(replication, name))
    stub = cluster.stub(brokers[0])
    for content in (b"first fragments are short ", b"before "):
        await asyncio.gather(*[append(stub, name, content) for name in names])
    monkeypatch.setattr(Spool, "write", slowed(Spool.write))
    monkeypatch.setattr(SpoolHome, "write", slowed(SpoolHome.write))
    monkeypatch.setattr(os, "pread", slowed(os.pread))
    for _ in range(2):
        await asyncio.gather(*[append(stub, name, b"slowly ") for name in names])
    for name in names:
        assert await read_all(stub, name) == b"first fragments are short before slowly slowly "
    # Those that found out that it is slow, and those that look now and then whether it still is.
    assert len(on_loop) <= 12 * replication
    assert len(in_threads) >= 40 * replication
