"""Reads of content that was removed from its store."""

from __future__ import annotations

import asyncio

import pytest
from away_store import JOURNAL, handed_over, spec, stored

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read, read_all, spans, store_fragment
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

HOUR_NS = 3600 * 10**9


async def test_read_continues_after_what_was_removed_before_the_next_listing(cluster):
    """It failed until then: for the refresh interval of the journal, a minute or an hour."""
    broker = await cluster.start()
    stub = cluster.stub(broker)
    first = store_fragment(cluster.fragments, JOURNAL, 0, b"0123456789", stored_at=1)
    store_fragment(cluster.fragments, JOURNAL, 10, b"abcdef", stored_at=1)
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=HOUR_NS,
    )
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=fragment))
    assert await read_all(stub, JOURNAL) == b"0123456789abcdef"
    (cluster.fragments / first.content_path).unlink()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        async with asyncio.timeout(patient(30)):
            assert await client.read(JOURNAL, on_jump="continue").read() == b"abcdef"


async def test_what_was_stored_before_a_broker_took_over_may_be_pruned_at_once(cluster, tasks):
    """It was taken for content that others still have to store: for minutes no read found an end."""
    broker, back, draining = await handed_over(cluster, tasks)
    stub, replica = cluster.stub(broker), broker._resolver.replicas[JOURNAL]
    assert replica.is_filling
    back.set()
    assert await draining == []
    await eventually(lambda: not replica.is_filling)
    await append(stub, JOURNAL, b"here")
    await replica.close_fragment()
    await eventually(lambda: stored(cluster) == b"before that is here")
    for path in sorted(cluster.fragments.rglob("*.raw"))[:-1]:
        path.unlink()
    replica.refresh()
    await eventually(lambda: replica.index.summary.begin == 15)
    async with asyncio.timeout(patient(10)):
        assert await read_all(stub, JOURNAL) == b"here"
        assert await read_all(stub, JOURNAL, 15) == b"here"
        for offset in (-1, 19):
            async for response in read(stub, JOURNAL, offset):
                assert (response.status, response.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 19)
        found = await stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL))
        assert spans(one.spec for one in found.fragments) == [(15, 19)]


async def test_replica_that_continues_after_what_was_pruned_reports_the_end(cluster):
    """It gave all content, as its primary had reported what is gone, and then refused to report the end."""
    first = await cluster.start(zone="zone-a")
    stub = cluster.stub(first)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"before")
    primary = first._resolver.replicas[JOURNAL]
    await primary.close_fragment()
    await eventually(lambda: stored(cluster) == b"before")
    second = await cluster.start(zone="zone-b")
    lister, may_list = second._context.lister, asyncio.Event()

    async def list_later(journal):
        await may_list.wait()
        return await type(lister).list(lister, journal)

    lister.list = list_later
    request = pb.ApplyRequest()
    request.changes.add(expect_mod_revision=-1).upsert.CopyFrom(spec(2).to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    replica = await eventually(lambda: second._resolver.replicas.get(JOURNAL))
    await eventually(lambda: replica.hole.end == 6)
    may_list.set()
    await eventually(lambda: replica.index.summary.end == 6)
    await append(stub, JOURNAL, b"behind")
    await primary.close_fragment()
    await eventually(lambda: stored(cluster) == b"beforebehind")
    for path in sorted(cluster.fragments.rglob("*.raw"))[:-1]:
        path.unlink()
    for one in (primary, replica):
        one.refresh()
        await eventually(lambda one=one: one.index.summary.begin == 6)
    config = ClientConfig(address=second.endpoint, zone="zone-b", retry_timeout_s=10)
    async with (
        AsyncClient(config) as client,
        client.read(JOURNAL, on_jump="continue") as reader,
    ):
        assert await reader.read() == b"behind"
        assert reader.write_head == 12
