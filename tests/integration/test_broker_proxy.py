"""Any broker answers for all journals: E1, E5, E8, B4, H5, H6 and reads without a hole."""

from __future__ import annotations

import asyncio
import base64
import time

import aiohttp
import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import JournalChange, Status
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import AppendCall, append, messages_taken, read, read_all
from gazette_platform.testing.waiting import eventually, pass_time

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
KEY = base64.b64encode(b"a key of 32 bytes, or more or so").decode()


def spec(name=JOURNAL, replication=1, **fields):
    return journal_spec(name, replication, length=1 << 24, refresh_s=3600, **fields)


@pytest.fixture
async def primary(cluster):
    """The broker that has the journal."""
    broker = await cluster.start(drain_timeout_s=30.0)
    await cluster.apply(cluster.stub(broker), spec())
    return broker


@pytest.fixture
async def other(cluster, primary):
    """A broker that has no journal."""
    return await cluster.start(journal_limit=0)


@pytest.fixture
async def stub(cluster, other):
    return cluster.stub(other)


async def test_e1_calls_by_way_of_another_broker(cluster, primary, stub):
    response = await append(stub, f"{JOURNAL};meta", b"one ", b"two ")
    assert (response.status, response.commit.begin, response.commit.end) == (pb.OK, 0, 8)
    assert response.header.process_id.suffix == primary.config.id
    assert response.total_chunks == 3
    assert await read_all(stub, JOURNAL) == b"one two "
    call = read(stub, JOURNAL, 4, block=True)
    responses = aiter(call)
    first = await anext(responses)
    assert first.header.process_id.suffix == primary.config.id
    assert (first.fragment.begin, first.fragment.end) == (0, 8)
    assert (await anext(responses)).content == b"two "
    await append(cluster.stub(primary), JOURNAL, b"three")
    assert (await anext(responses)).fragment.end == 13
    call.cancel()
    listed = await stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL))
    assert [(f.spec.begin, f.spec.end) for f in listed.fragments][-1][1] == 13


async def test_large_appends_pass_unchanged(primary, stub):
    chunks = [bytes([n]) * 300_000 for n in range(20)]
    response = await append(stub, JOURNAL, *chunks)
    assert (response.status, response.commit.end) == (pb.OK, 6_000_000)
    assert await read_all(stub, JOURNAL) == b"".join(chunks)


async def test_refusals_and_errors_come_from_the_primary(primary, stub):
    await append(stub, JOURNAL, b"x")
    response = await append(stub, JOURNAL, b"y", offset=7)
    assert response.status == pb.WRONG_APPEND_OFFSET
    assert response.header.process_id.suffix == primary.config.id
    call = AppendCall(stub, JOURNAL)
    await call.send(b"no commit")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.finish()
    assert caught.value.details() == "append stream: unexpected EOF"
    assert await read_all(stub, JOURNAL) == b"x"


async def test_a_client_that_goes_away_leaves_nothing_behind(primary, stub, cluster):
    call = AppendCall(stub, JOURNAL)
    taken = messages_taken(primary, "Append")
    await call.send(b"never to be committed")
    await eventually(lambda: messages_taken(primary, "Append") == taken + 2)
    call.call.cancel()
    response = await append(cluster.stub(primary), JOURNAL, b"next")
    assert (response.commit.begin, response.commit.end) == (0, 4)


async def test_e8_b4_a_forwarded_read_ends_cleanly_with_its_broker(other, primary, stub):
    await append(stub, JOURNAL, b"content")
    call = read(stub, JOURNAL, block=True)
    responses = aiter(call)
    assert (await anext(responses)).header.process_id.suffix == primary.config.id
    assert (await anext(responses)).content == b"content"
    began = time.monotonic()
    draining = asyncio.ensure_future(other.drain())  # noqa: TID251  awaited below
    assert [response async for response in responses] == []
    await draining
    assert time.monotonic() - began < 5, "hung reads hold no other call up"


async def test_e8_a_forwarded_read_ends_cleanly_with_its_replica(primary, stub):
    await append(stub, JOURNAL, b"content")
    call = read(stub, JOURNAL, block=True)
    responses = aiter(call)
    assert [(await anext(responses)).status, (await anext(responses)).content] == [0, b"content"]
    await primary.drain()
    assert [response async for response in responses] == []


async def test_e5_an_append_is_forwarded_when_its_primary_left(cluster, primary):
    """It was gathered by the old one, and had not had its turn when the role went."""
    stub = cluster.stub(primary)
    await append(stub, JOURNAL, b"before")
    replica = primary._resolver.replicas[JOURNAL]
    heir = await cluster.start()
    held = asyncio.ensure_future(_hold(stub))  # noqa: TID251  awaited below
    await eventually(lambda: not replica.appender.is_idle)
    late = (b"after!",), [b"z" * 3_000_000] * 2
    queued = [
        asyncio.ensure_future(append(stub, JOURNAL, *content))  # noqa: TID251  awaited below
        for content in late
    ]
    await eventually(lambda: len(replica.appender._queue) == 2)
    draining = asyncio.ensure_future(primary.drain())  # noqa: TID251  awaited below
    responses = await asyncio.gather(*queued)
    await asyncio.gather(held, draining, return_exceptions=True)
    assert {response.status for response in responses} == {pb.OK}
    # The heir appended them, one after the other, after what the old primary had.
    assert {response.header.process_id.suffix for response in responses} == {heir.config.id}
    spans = sorted((response.commit.begin, response.commit.end) for response in responses)
    assert spans[0][0] == 6 + 6_000_000
    assert spans[0][1] == spans[1][0]
    content = await read_all(cluster.stub(heir), JOURNAL)
    for response, sent in zip(responses, late, strict=True):
        assert content[response.commit.begin : response.commit.end] == b"".join(sent)


async def _hold(stub):
    """A streamed append that owns the journal for a while."""
    call = AppendCall(stub, JOURNAL)
    await call.send(*[b"s" * 500_000] * 12)
    await pass_time(0.5)
    return await call.commit()


async def test_forwarded_calls_are_authorized_at_both_brokers(cluster):
    await cluster.start(auth_keys=KEY)
    other = await cluster.start(auth_keys=KEY, journal_limit=0)
    config = ClientConfig(address=other.endpoint, auth_keys=KEY, route_cache_size=0)
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(spec(), revision=0)])
        assert (await client.append(JOURNAL, b"x")).end == 1
        assert await client.read(JOURNAL).read() == b"x"
        assert await client.fragments(JOURNAL)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await append(cluster.stub(other), JOURNAL, b"y")
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


# ---------------------------------------------------------------------------------------- gateway
async def test_h5_h6_the_gateway_serves_journals_of_other_brokers(primary, other):
    url = f"http://127.0.0.1:{other.http_port}/{JOURNAL}"
    async with aiohttp.ClientSession() as session:
        put = await session.put(url, data=b"by way of another")
        assert (put.status, put.headers["X-Commit-End"]) == (204, "17")
        got = await session.get(f"{url}?offset=3")
        assert (got.status, await got.read()) == (206, b"way of another")
        assert got.headers["X-Write-Head"] == "17"
        assert f'suffix:"{primary.config.id}"' in got.headers["X-Route-Token"]
        head = await session.head(url)
        assert (head.status, head.headers["X-Write-Head"]) == (206, "17")
        unknown = await session.get(f"http://127.0.0.1:{other.http_port}/un/known")
        assert unknown.status == 404


# ----------------------------------------------------------------------------------------- client
async def test_a_client_finds_the_brokers_by_itself(primary, other):
    """By way of the one it was given at first, and past it from then on."""
    async with AsyncClient(ClientConfig(address=other.endpoint)) as client:
        await client.append(JOURNAL, b"one")
        await client.append(JOURNAL, b"two")
        assert await client.read(JOURNAL).read() == b"onetwo"
        wires = client._transport._pool._wires
        assert set(wires) == {primary.endpoint, other.endpoint}
    name, labels = "gazette_journal_server_started_totals_total", {"operation": "Append"}
    assert other.metrics.registry.get_sample_value(name, labels) == 1


async def test_without_a_route_cache_brokers_do_the_forwarding(primary, other):
    async with AsyncClient(ClientConfig(address=other.endpoint, route_cache_size=0)) as client:
        await client.append(JOURNAL, b"one")
        assert await client.read(JOURNAL).read() == b"one"
        assert await client.fragments(JOURNAL)
        assert set(client._transport._pool._wires) == {other.endpoint}


async def test_what_a_client_applied_is_known_to_whoever_answers_it(cluster, primary, monkeypatch):
    """Even by a broker whose mirror of etcd is late."""
    late = await cluster.start(journal_limit=0, watch_delay_s=0.5)
    async with AsyncClient(ClientConfig(address=primary.endpoint)) as client:
        await client.list()
        for number in range(3):  # so that the watch of the other one is in its delay
            name = f"b/journal-{number}"
            revision = await client.apply([JournalChange(spec(name), revision=0)])
        async with AsyncClient(ClientConfig(address=late.endpoint)) as second:
            assert late._context.space.revision < revision
            result = await second.append(name, b"x", min_revision=revision)
            assert result.end == 1
        revision = await client.apply([JournalChange(spec("c/journal"), revision=0)])
        monkeypatch.setattr(client._transport._pool._config.__class__, "address", late.endpoint)
        client._transport.routes.invalidate("c/journal")
        assert late._context.space.revision < revision
        assert (await client.append("c/journal", b"x")).end == 1


# ------------------------------------------------------------------------------------ read holes
async def test_a_replica_that_has_not_listed_its_store_asks_the_primary(
    cluster, primary, monkeypatch
):
    """Gazette's answers OFFSET_NOT_YET_AVAILABLE for content that exists."""
    stub = cluster.stub(primary)
    await append(stub, JOURNAL, b"before the second replica ")
    joining = await cluster.start(zone="another")

    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(joining._context.lister, "list", never)
    changed = spec(replication=2)
    request = pb.ApplyRequest()
    request.changes.add(expect_mod_revision=-1).upsert.CopyFrom(changed.to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    second = cluster.stub(joining)
    await eventually(lambda: JOURNAL in joining._resolver.replicas)
    assert await read_all(second, JOURNAL) == b"before the second replica "
    [at_head] = [r async for r in read(second, JOURNAL, -1)]
    assert (at_head.status, at_head.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 26)
    call = read(second, JOURNAL, block=True)
    responses = aiter(call)
    assert (await anext(responses)).header.process_id.suffix == primary.config.id
    assert (await anext(responses)).content == b"before the second replica "
    call.cancel()
    refused = [r async for r in read(second, JOURNAL, do_not_proxy=True)]
    assert [r.status for r in refused] == [Status.NOT_JOURNAL_BROKER]
    async with AsyncClient(ClientConfig(address=joining.endpoint)) as client:
        assert await client.read(JOURNAL, direct=True).read() == b"before the second replica "


async def test_a_read_that_is_under_way_goes_on_at_the_primary(cluster, primary, monkeypatch):
    """With one header, and none of the content twice."""
    stub = cluster.stub(primary)
    joining = await cluster.start(zone="another")
    request = pb.ApplyRequest()
    request.changes.add(expect_mod_revision=-1).upsert.CopyFrom(spec(replication=2).to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    second = cluster.stub(joining)
    await eventually(lambda: len(primary._context.space.state.assignments_of(JOURNAL)) == 2)
    await eventually(lambda: primary._context.space.state.is_consistent(JOURNAL))
    await append(stub, JOURNAL, b"both have it ")
    await eventually(lambda: joining._resolver.replicas[JOURNAL].index.summary.end == 13)
    proxy = joining.service._proxy
    other = joining._resolver.resolve_now(JOURNAL, may_proxy=True, require_primary=True)
    monkeypatch.setattr(type(proxy), "better_placed", lambda *_: other)
    call = read(second, JOURNAL, block=True)
    responses = aiter(call)
    first = await anext(responses)
    assert first.header.process_id.suffix == joining.config.id
    assert (await anext(responses)).content == b"both have it "
    await eventually(lambda: proxy._reads)
    await append(stub, JOURNAL, b"more")
    told = await anext(responses)
    assert (told.offset, told.HasField("header"), told.HasField("fragment")) == (13, False, True)
    told = await anext(responses)
    assert (told.offset, told.content) == (13, b"more")
    call.cancel()
