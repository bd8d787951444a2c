"""What a broker that leaves says in etcd of content that it still stores, and what others make of it."""

from __future__ import annotations

import asyncio

import pytest
from away_store import JOURNAL, hold_back, spec

from gazette_platform.broker import serve
from gazette_platform.broker.etcd_records import storing_prefix
from gazette_platform.broker.journal import gaps
from gazette_platform.broker.journal.gaps import Unstored
from gazette_platform.broker.spool.digester import Digester
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import EtcdError
from gazette_platform.etcd import EtcdClient
from gazette_platform.testing.local import LocalBrokers, append
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

STORED = "a/stored"


async def with_content(cluster, **settings):
    """A broker with content of a journal that it cannot store. Returns: it, and what mends that."""
    broker = await cluster.start(drain_timeout_s=None, **settings)
    back = hold_back(broker, JOURNAL, is_retried_soon=True)
    for name in (JOURNAL, STORED):
        await cluster.apply(cluster.stub(broker), spec(name=name))
        await append(cluster.stub(broker), name, b"content")
    return broker, back


async def said(etcd, prefix):
    """What brokers say in etcd."""
    found = await etcd.range(storing_prefix(prefix))
    return [Unstored.decode(kv.value) for kv in found.kvs]


async def handed_over(cluster, tasks):
    """A broker that handed over its journals, and stores one. Returns: also another, and its end."""
    first, back = await with_content(cluster)
    second = await cluster.start()
    draining = tasks.spawn(first.drain(), name="drain")
    await eventually(lambda: first._persister._is_exiting)
    state = second._context.space.state
    await eventually(
        lambda: all(
            [one.process_id for one in state.assignments_of(name)] == [second._context.process_id]
            for name in (JOURNAL, STORED)
        )
    )
    return first, second, back, draining


async def test_who_fails_says_it_before_anything_of_it_may_take_long(
    cluster, etcd, etcd_prefix, tasks, monkeypatch
):
    """Its member key is gone already; its disk may hang for hours."""
    broker, back = await with_content(cluster)
    complete, read_back = Digester.complete, asyncio.Event()

    async def complete_later(self):
        await read_back.wait()
        return await complete(self)

    monkeypatch.setattr(Digester, "complete", complete_later)
    await broker._lease.revoke()
    async with asyncio.timeout(patient(10)):
        await broker.failed.wait()
    failing = tasks.spawn(broker.fail(), name="fail")
    (found,) = await eventually(lambda: said(etcd, etcd_prefix))
    assert found == Unstored(broker._lease.id, frozenset({JOURNAL, STORED}))
    assert not failing.done()
    read_back.set()
    back.set()
    assert await failing == []
    assert await said(etcd, etcd_prefix) == []


async def test_it_is_said_once_etcd_is_back(own_etcd_server, etcd_prefix, tmp_path, tasks):
    """When it is away for longer than a lease, all brokers fail at once."""
    endpoint = own_etcd_server.endpoint
    local = LocalBrokers(tmp_path, etcd=endpoint, prefix=etcd_prefix)
    async with EtcdClient([endpoint]) as etcd, local as cluster:
        broker, back = await with_content(cluster)
        own_etcd_server.pause()
        try:
            async with asyncio.timeout(patient(20)):
                await broker.failed.wait()
            failing = tasks.spawn(broker.fail(), name="fail")
            await eventually(lambda: broker._persister._is_exiting)
        finally:
            own_etcd_server.resume()
        (found,) = await eventually(lambda: said(etcd, etcd_prefix))
        assert JOURNAL in found.journals
        back.set()
        assert await failing == []


async def test_broker_that_leaves_names_journals_that_it_stores(cluster, etcd, etcd_prefix, tasks):
    first, second, back, draining = await handed_over(cluster, tasks)

    async def is_only_the_one():
        return await said(etcd, etcd_prefix) == [
            Unstored(first._lease.id, frozenset({JOURNAL})),
        ]

    await eventually(is_only_the_one)
    # It is a member still, and does not answer.
    assert first._context.process_id in second._context.space.state.members
    assert await gaps.ask_others(second._context, STORED)
    assert not await gaps.ask_others(second._context, JOURNAL)
    back.set()
    assert await draining == []
    assert await said(etcd, etcd_prefix) == []
    assert await gaps.ask_others(second._context, JOURNAL)


async def test_another_instance_of_the_same_name_has_not_said_it(cluster, etcd, etcd_prefix):
    first, second = [await cluster.start() for _ in range(2)]
    await eventually(lambda: first._context.process_id in second._context.space.state.members)
    await first._server.stop(grace_s=0.0)
    key = f"{storing_prefix(etcd_prefix)}anything"
    for lease, is_told in ((first._lease.id + 1, False), (first._lease.id, True)):
        await etcd.put(key, Unstored(lease, frozenset()).encode())
        assert await gaps.ask_others(second._context, JOURNAL) is is_told
    await etcd.delete(key)


async def test_a_flush_waits_for_who_lost_its_lease_while_it_stored(cluster, tasks):
    first, second, back, draining = await handed_over(cluster, tasks)
    await append(cluster.stub(second), JOURNAL, b" and more")
    await second._context.etcd.revoke_lease(first._lease.id)
    state = second._context.space.state
    await eventually(lambda: first._context.process_id not in state.members)
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        flushing = tasks.spawn(client.flush(f"name={JOURNAL}"), name="flush")
        index = second._resolver.replicas[JOURNAL].index
        await eventually(lambda: index.is_stored(7, 16))
        assert not await gaps.ask_others(second._context, JOURNAL)
        assert not flushing.done()
        back.set()
        assert await draining == []
        async with asyncio.timeout(patient(20)):
            assert await flushing == {JOURNAL: 16}


async def test_it_is_said_again_when_its_lease_is_lost(cluster, etcd, etcd_prefix, tasks):
    """Etcd may be away for that long while the store is."""
    first, _, back, draining = await handed_over(cluster, tasks)
    expected = [Unstored(first._lease.id, frozenset({JOURNAL}))]

    async def is_said():
        return await said(etcd, etcd_prefix) == expected

    await eventually(is_said)
    (kv,) = (await etcd.range(storing_prefix(etcd_prefix))).kvs
    await etcd.revoke_lease(kv.lease)
    assert await said(etcd, etcd_prefix) == []
    await eventually(is_said)
    back.set()
    assert await draining == []


async def test_nothing_is_lost_while_etcd_does_not_say_who_stores(cluster, monkeypatch):
    broker = await cluster.start()
    context = broker._context
    assert await gaps.ask_others(context, JOURNAL)

    async def read(prefix, **options):
        raise EtcdError("etcd is away")

    monkeypatch.setattr(context.etcd, "range", read)
    assert not await gaps.ask_others(context, JOURNAL)
    monkeypatch.undo()


async def test_who_does_not_know_the_journal_may_hold_content(cluster):
    """Its mirror is late, or shows no primary while another takes over: it stored nothing."""
    first, second = [await cluster.start() for _ in range(2)]
    await eventually(lambda: first._context.process_id in second._context.space.state.members)
    assert not await gaps.ask_others(second._context, JOURNAL)
    await cluster.apply(cluster.stub(first), spec())
    assert await eventually(lambda: gaps.ask_others(second._context, JOURNAL))


async def test_who_does_not_answer_in_time_may_hold_content(cluster, monkeypatch):
    first, second = [await cluster.start() for _ in range(2)]
    await cluster.apply(cluster.stub(first), spec())
    await eventually(lambda: first._context.process_id in second._context.space.state.members)

    async def hang(_):
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(gaps, "_ASK_TIMEOUT_S", 0.2)
        for broker in (first, second):
            patch.setattr(broker._resolver, "closed", hang)
        assert not await gaps.ask_others(second._context, JOURNAL)
    assert await eventually(lambda: gaps.ask_others(second._context, JOURNAL))


@pytest.mark.parametrize("journals", [set(), {"a/b"}, {"a/b", "a/c d"}])
def test_what_is_said_is_understood(journals):
    found = Unstored(0x1F, frozenset(journals))
    assert Unstored.decode(found.encode()) == found
    assert [found.may_have(name) for name in ("a/b", "a/d")] == ["a/b" in journals, False]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no lease\na/b\n",
        b"\xff\n",
        Unstored(1, frozenset(f"a/{n:0100}" for n in range(1000))).encode(),
    ],
    ids=["nothing", "no number", "no text", "too many"],
)
def test_unnamed_content_may_be_of_any_journal(value):
    assert Unstored.decode(value).may_have("a/b")


async def test_all_steps_of_leaving_fit_into_what_the_process_is_given(cluster):
    broker = await cluster.start(drain_timeout_s=1.0)
    within_s, step, limits = broker.leaves_within_s, broker._departure.step, []

    async def note_limit(limit_s, what, work):
        limits.append(limit_s or 0.0)
        return await step(limit_s, what, work)

    broker._departure.step = note_limit
    asked_s = broker._context.etcd._timeout_s + serve._GRACE_S + 1.0
    persisted_s = broker._limit_s
    await broker.drain()
    assert limits.count(0.0) == 2  # those two have limits of their own
    assert sum(limits) + asked_s + persisted_s <= within_s
