"""A broker that cannot go on: others take over at once, and it persists what it has."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math

import pytest
from away_store import JOURNAL, hold_back, refused, spec
from grpc import StatusCode, aio

from gazette_platform.broker import serve
from gazette_platform.broker.api.append import AppendApi
from gazette_platform.broker.etcd_records import storing_prefix
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import EtcdError
from gazette_platform.protocol import (
    LabelSet,
    Status,
    SuspendSpec,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read, read_all
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = pytest.mark.etcd


async def failing(cluster, tasks, monkeypatch, *, drain_timeout_s, ends_lease):
    """A broker that failed while its store is away, with content in its spool.

    Returns: the broker, its `fail` under way, and what brings the store back.
    """
    monkeypatch.setattr(serve, "_GRACE_S", 0.2)
    broker = await cluster.start(drain_timeout_s=drain_timeout_s)
    back = hold_back(broker, is_retried_soon=True)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec(refresh_s=1))
    await append(stub, JOURNAL, b"one ")
    await append(stub, JOURNAL, b"two ")
    if ends_lease:
        await broker._lease.revoke()
        async with asyncio.timeout(patient(10)):
            await broker.failed.wait()
    return broker, tasks.spawn(broker.fail(), name="fail"), back


async def test_content_is_persisted_however_long_the_store_is_away(cluster, tasks, monkeypatch):
    broker, failing_, back = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=None, ends_lease=True
    )
    await eventually(lambda: broker._persister._is_exiting)
    await stays(lambda: not failing_.done(), for_s=0.5)
    assert len(broker._persister) == 2
    back.set()
    async with asyncio.timeout(patient(10)):
        await failing_
    stored = sorted(path.read_bytes() for path in (cluster.fragments / JOURNAL).iterdir())
    assert stored == [b"one ", b"two "]


async def test_a_drain_timeout_bounds_it(cluster, tasks, monkeypatch, caplog):
    _, failing_, _ = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=0.1, ends_lease=True
    )
    async with asyncio.timeout(patient(10)):
        await failing_
    assert f"fragment {JOURNAL}/" in caplog.text
    assert "was not persisted" in caplog.text


async def test_others_take_over_while_it_persists(cluster, tasks, monkeypatch):
    _, failing_, back = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=None, ends_lease=False
    )
    second = cluster.stub(await cluster.start(etcd_lease_s=30.0))
    response = await append(second, JOURNAL, b"three")
    # The head was noted in time: what the other still persists keeps its offsets.
    assert (response.status, response.commit.begin) == (Status.OK, 8)
    assert not failing_.done()
    back.set()
    async with asyncio.timeout(patient(10)):
        await failing_

    async def is_whole():
        return await read_all(second, JOURNAL) == b"one two three"

    await eventually(is_whole)


def is_watched(observer, process_id):
    """Whether a broker's crash watch would testify against another that refuses connections."""
    evictor = observer._context.peers._observer.__self__
    track = evictor._watch._tracks.get(process_id)
    return track is not None and track.state.value == "well"


async def tailed_by_a_reader(cluster, tasks):
    """A broker of three, with a journal of seven bytes, and a reader that holds up its port's end.

    Returns: the broker, another, and what brings the store of the former back.
    """
    cluster.expect(RuntimeError)
    broker = await cluster.start(zone="zone-a")
    back = hold_back(broker, is_retried_soon=True)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec(refresh_s=1))
    await append(stub, JOURNAL, b"before ")
    others = [await cluster.start(zone=zone) for zone in ("zone-b", "zone-c")]
    own = broker._context.process_id
    await eventually(lambda: all(is_watched(other, own) for other in others))
    responses = aiter(read(stub, JOURNAL, 0, block=True))
    await anext(responses)
    tasks.spawn(drop(responses), name="tail")
    broker.tasks.failure = RuntimeError("a task that it needs has failed")
    return broker, others[0], back


async def drop(responses):
    with contextlib.suppress(aio.AioRpcError):
        async for _ in responses:
            pass


async def test_peers_do_not_take_for_a_crash_that_its_port_is_closed(cluster, tasks, caplog):
    """They gave its offsets to others, before it could note up to where they are taken."""
    broker, other, back = await tailed_by_a_reader(cluster, tasks)
    failing_ = tasks.spawn(broker.fail(), name="fail")
    own, members = broker._context.process_id, other._context.space.state.members
    await eventually(lambda: own not in members)
    response = await append(cluster.stub(other), JOURNAL, b"other")
    assert (response.status, response.commit.begin) == (Status.OK, 7)
    back.set()
    await failing_
    assert "is not noted" not in caplog.text


async def test_who_is_evicted_as_it_fails_says_which_write_heads_are_not_noted(
    cluster, tasks, caplog
):
    broker, _, back = await tailed_by_a_reader(cluster, tasks)

    own, state, stop = broker._context.process_id, broker._context.space.state, broker._server.stop

    async def not_said():
        raise EtcdError("etcd is away")

    async def stop_for_long(**options):
        await stop(**options)
        await eventually(lambda: own not in state.members)
        back.set()

    broker._announcement.set_exiting = not_said
    broker._server.stop = stop_for_long
    await broker.fail()
    assert f"{JOURNAL}: its write head 7 is not noted in etcd" in caplog.text


async def test_a_flush_waits_for_a_broker_that_failed_and_persists_still(
    cluster, tasks, monkeypatch
):
    _, failing_, back = await failing(
        cluster, tasks, monkeypatch, drain_timeout_s=None, ends_lease=False
    )
    second = await cluster.start(etcd_lease_s=30.0)
    stub = cluster.stub(second)
    await append(stub, JOURNAL, b"three")
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        flushing = tasks.spawn(client.flush(f"name={JOURNAL}"), name="flush")
        index = second._resolver.replicas[JOURNAL].index
        await eventually(lambda: index.is_stored(8, 13))
        with pytest.raises(aio.AioRpcError) as caught:
            await read_all(stub, JOURNAL)
        assert not flushing.done()
        assert "content at 0 that is not stored yet" in caught.value.details()
        back.set()
        async with asyncio.timeout(patient(10)):
            await failing_
            assert await flushing == {JOURNAL: 13}
    stored = sorted(path.read_bytes() for path in (cluster.fragments / JOURNAL).iterdir())
    assert stored == [b"one ", b"three", b"two "]
    assert await read_all(stub, JOURNAL) == b"one two three"
    etcd = second._context.etcd
    assert (await etcd.range(storing_prefix(second.config.etcd_prefix))).kvs == ()


async def test_who_gave_up_commits_nothing_that_others_could_read(cluster):
    """Etcd may not know yet why, and its port may be open for some moments more."""
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec(refresh_s=1))
    await append(stub, JOURNAL, b"before")
    broker._context.membership.give_up("this broker has failed")
    with pytest.raises(aio.AioRpcError, match="this broker has failed"):
        await append(stub, JOURNAL, b"never")
    assert broker._resolver.replicas[JOURNAL].spool.spool.end == 6


async def test_replica_that_gave_up_reports_no_end(cluster):
    """Others may have acknowledged more: a reader would take a reported end for the end of all content.

    Nor does it report a head beside content: it may have some that others went on without.
    """
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec(refresh_s=1))
    await append(stub, JOURNAL, b"before")
    broker._context.membership.give_up("this broker has failed")
    for offset in (0, -1, 6):
        with pytest.raises(aio.AioRpcError, match="this broker has failed; ask another one"):
            await anext(aiter(read(stub, JOURNAL, offset)))


async def test_who_is_evicted_between_commit_and_answer_acknowledges_nothing(cluster, monkeypatch):
    """As it was paused there: others may have gone on without what it wrote."""
    serve_append = AppendApi.append

    async def evicted(api, request, *args, **kwargs):
        answer = await serve_append(api, request, *args, **kwargs)
        if b"evicted" in request:
            assert index.summary.end == 12, "it was committed"
            await broker._lease.revoke()
            await eventually(lambda: broker._context.membership.problem)
        return answer

    monkeypatch.setattr(AppendApi, "append", evicted)
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec(refresh_s=1))
    await append(stub, JOURNAL, b"before")
    index, union = broker._resolver.replicas[JOURNAL].index, LabelSet.of(by="evicted").to_pb()
    with pytest.raises(aio.AioRpcError) as caught:
        await append(stub, JOURNAL, b" after", union_registers=union)
    assert caught.value.code() is StatusCode.UNAVAILABLE
    assert "whether it was appended is unknown" in caught.value.details()


def give_up_when_asking(broker):
    """Let it give up while it asks others for what is missing. Returns: its replica."""
    replica = broker._resolver.replicas[JOURNAL]
    ask = replica.gaps._ask

    async def ask_and_give_up():
        broker._context.membership.give_up("this broker has failed")
        return await ask()

    replica.gaps._ask = ask_and_give_up
    return replica


NOTED = dataclasses.replace(spec(refresh_s=1), suspend=SuspendSpec(offset=100))


async def test_replica_that_gives_up_at_a_gap_reports_no_end(cluster):
    broker = await cluster.start(append_wait_s=1.0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, NOTED)
    assert [response.write_head async for response in read(stub, JOURNAL, -1)] == [100]
    replica = give_up_when_asking(broker)
    replica.gaps._met_at.put(0, -math.inf)  # what is missing is lost, except others
    with pytest.raises(aio.AioRpcError, match="this broker has failed; ask another one"):
        await anext(aiter(read(stub, JOURNAL)))


async def test_replica_that_gives_up_below_a_noted_head_reports_none(cluster, tasks):
    broker = await cluster.start(append_wait_s=1.0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, NOTED)
    assert (await append(stub, JOURNAL)).commit.begin == 100  # nothing: the head stays noted
    replica = broker._resolver.replicas[JOURNAL]
    await replica.index.first_refresh.wait()
    assert replica.is_filling
    waiting = tasks.spawn(refused(anext(aiter(read(stub, JOURNAL, -1)))), name="read")
    await eventually(lambda: replica.index._waiters)
    broker._context.membership.give_up("this broker has failed")
    assert "this broker has failed; ask another one" in await waiting


async def test_who_gives_up_while_it_asks_for_what_is_missing_lists_nothing(cluster):
    broker = await cluster.start()
    stub = cluster.stub(broker)
    await cluster.apply(stub, NOTED)
    assert (await append(stub, JOURNAL, b"behind")).commit.begin == 100
    await eventually(lambda: broker._resolver.replicas[JOURNAL].missing_at == 99)
    replica = give_up_when_asking(broker)
    replica.hole._began_at = -math.inf  # no one waits for it any more, but others are asked
    with pytest.raises(aio.AioRpcError, match="this broker has failed; ask another one"):
        await stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL), timeout=20)
