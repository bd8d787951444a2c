"""An unforeseen error ends the call, or holds up the journal, that met it: never the broker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest
from grpc import StatusCode, aio
from journal_specs import journal_spec

from gazette_platform.broker import context as broker_context, serve
from gazette_platform.broker.api.listing import ListApi
from gazette_platform.broker.append import batch as append_batch, content as append_content
from gazette_platform.broker.journal.resolver import Resolver
from gazette_platform.broker.spool import digester, journal_spool
from gazette_platform.broker.spool.digester import Digester
from gazette_platform.etcd import EtcdClient
from gazette_platform.keyspace import item_key
from gazette_platform.protocol import Status, SuspendLevel, SuspendSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import AppendCall, LocalBrokers, append, read_all
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        brokers.expect(KeyError)
        yield brokers


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


def spec(name=JOURNAL):
    return journal_spec(name)


def unforeseen(broker, kind):
    """How often the metric counted it."""
    name = "gazette_platform_unforeseen_errors_total"
    return broker.metrics.registry.get_sample_value(name, {"kind": kind}) or 0


def fails(*_args, **_settings):
    raise KeyError("unforeseen")


async def fails_later(*_args, **_settings):
    raise KeyError("unforeseen")


def failing_first(method, count=1, *, of=lambda *_: True):
    """`method`, but the first calls fail."""
    left = count

    def failing(*args, **settings):
        nonlocal left
        if left and of(*args):
            left -= 1
            raise KeyError("unforeseen")
        return method(*args, **settings)

    return failing


async def goes_on(broker, stub, journal="another/journal"):
    """The broker serves others."""
    assert not broker.failed.is_set()
    assert (await append(stub, journal, b"content")).status == Status.OK


async def test_a_call_is_answered_with_what_went_wrong(cluster, broker, stub, monkeypatch):
    await cluster.apply(stub, spec("another/journal"))
    monkeypatch.setattr(ListApi, "_matching", fails)
    with pytest.raises(aio.AioRpcError) as caught:
        async for _ in stub.List(pb.ListRequest()):
            pass
    assert caught.value.code() is StatusCode.INTERNAL
    assert "List: unforeseen KeyError: 'unforeseen'" in caught.value.details()
    assert unforeseen(broker, "call") == 1
    await goes_on(broker, stub)


async def test_a_streamed_append_is_answered_when_the_task_of_its_content_fails(
    cluster, broker, stub, monkeypatch
):
    await cluster.apply(stub, spec(), spec("another/journal"))
    monkeypatch.setattr(append_content.Body, "expect_end", fails_later)
    call = AppendCall(stub, JOURNAL)
    await call.send(*[b"x" * (1 << 20)] * 8)  # more than is gathered before it is a journal's turn
    with pytest.raises(aio.AioRpcError) as caught:
        await call.commit()
    assert caught.value.code() is StatusCode.INTERNAL
    assert "append stream: KeyError: 'unforeseen'" in caught.value.details()
    monkeypatch.undo()
    assert unforeseen(broker, "task") == 1
    await goes_on(broker, stub)
    assert await read_all(stub, JOURNAL) == b""
    assert (await append(stub, JOURNAL, b"after")).commit.begin == 0


async def test_a_journal_that_cannot_be_taken_up_is_tried_again(cluster, broker, stub, monkeypatch):
    failing = failing_first(Resolver._update, 2, of=lambda _, journal: journal == JOURNAL)
    monkeypatch.setattr(Resolver, "_update", failing)
    await cluster.apply(stub, spec(), spec("another/journal"))
    assert unforeseen(broker, "journal") == 2
    await goes_on(broker, stub)

    async def is_served():
        return (await append(stub, JOURNAL, b"content")).status == Status.OK

    await eventually(is_served)


async def test_an_observer_that_fails_costs_neither_others_nor_the_mirror(cluster, broker, stub):
    broker._context.space._observers.insert(0, fails)
    await cluster.apply(stub, spec("another/journal"))
    assert unforeseen(broker, "observer") > 0
    await goes_on(broker, stub)


async def test_the_loop_of_the_lease_begins_again(cluster, broker, stub, monkeypatch):
    monkeypatch.setattr(broker._lease, "_renew", failing_first(broker._lease._renew))
    await eventually(lambda: unforeseen(broker, "loop") == 1)
    await cluster.apply(stub, spec("another/journal"))
    await goes_on(broker, stub)


async def test_a_journal_whose_appends_fail_goes_on_and_others_with_it(
    cluster, broker, stub, monkeypatch
):
    await cluster.apply(stub, spec(), spec("another/journal"))
    monkeypatch.setattr(append_batch, "view_of", failing_first(append_batch.view_of))
    with pytest.raises(aio.AioRpcError, match="whether it was appended is unknown") as caught:
        await append(stub, JOURNAL, b"content")
    assert caught.value.code() is StatusCode.INTERNAL
    assert unforeseen(broker, "journal") == 1
    await goes_on(broker, stub)
    assert (await append(stub, JOURNAL, b"content")).commit.begin == 0


async def test_a_journal_that_is_sent_to_the_end_of_offsets_refuses_and_can_be_mended(
    cluster, broker, stub, etcd_server, etcd_prefix
):
    """By a spec that got into etcd unchecked: Apply takes none such."""
    await cluster.apply(stub, spec("another/journal"))
    bad = dataclasses.replace(spec(), suspend=SuspendSpec(SuspendLevel.NONE, (1 << 63) - 1))
    etcd = EtcdClient([etcd_server.endpoint])
    await etcd.connect()
    for change in (bad, spec()):
        await etcd.put(item_key(etcd_prefix, JOURNAL), change.to_pb().SerializeToString())
        if change is bad:
            with pytest.raises(aio.AioRpcError, match="beyond 4611686018427387904"):
                await append(stub, JOURNAL, b"content")
            await goes_on(broker, stub)
    await etcd.close()

    async def is_mended():
        with contextlib.suppress(aio.AioRpcError):
            return (await append(stub, JOURNAL, b"content")).commit.end == 7
        return False

    await eventually(is_mended)
    assert broker.faults.reported == 0


async def test_a_fragment_whose_end_fails_is_stored_all_the_same(
    cluster, broker, stub, monkeypatch
):
    """Its content is acknowledged, and no other broker may have it."""
    monkeypatch.setattr(journal_spool, "DISK_RETRY_S", 0.05)
    monkeypatch.setattr(digester, "DISK_RETRY_S", 0.05)
    monkeypatch.setattr(Digester, "complete", failing_first(Digester.complete))
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    await broker._resolver.replicas[JOURNAL].close_fragment()
    await eventually(lambda: unforeseen(broker, "journal") == 1)
    await eventually(lambda: list((cluster.fragments / JOURNAL).glob("*.raw")))
    assert await read_all(stub, JOURNAL) == b"content"
    assert await broker.drain() == []


async def test_a_journal_that_fails_to_look_after_itself_holds_up_no_other(cluster, monkeypatch):
    monkeypatch.setattr(serve, "_TICK_S", 0.01)
    broker = await cluster.start(auto_suspend=True)
    await cluster.apply(cluster.stub(broker), spec("a/one"), spec("b/other"))
    looked, fails = asyncio.Event(), KeyError("unforeseen")
    broken, well = broker._resolver.replicas.values()  # in the order in which they look

    def on_tick():
        raise fails

    broken.on_tick, well.on_tick = on_tick, looked.set
    async with asyncio.timeout(patient(10)):
        await looked.wait()
    assert fails in broker.faults.recent


async def test_a_store_whose_listing_hangs_holds_up_its_own_journals_alone(cluster, monkeypatch):
    monkeypatch.setattr(broker_context, "_REFRESHES_MAX", 1)
    broker = await cluster.start(append_wait_s=1.0)
    hangs, listing = asyncio.Event(), broker._context.lister.list

    async def list_stores(of):
        if of.fragment.stores == ("file:///hangs/",):
            await hangs.wait()
        return await listing(of)

    monkeypatch.setattr(broker._context.lister, "list", list_stores)
    stub, request = cluster.stub(broker), pb.ApplyRequest()
    hanging = dataclasses.replace(spec().fragment, stores=("file:///hangs/",))
    for name in ("a/one", "a/other"):
        one = dataclasses.replace(spec(name), fragment=hanging)
        request.changes.add().upsert.CopyFrom(one.to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    await eventually(lambda: len(broker._resolver.replicas) == 2)
    async with asyncio.timeout(patient(10)):
        await cluster.apply(stub, spec("b/well"))
    hangs.set()
