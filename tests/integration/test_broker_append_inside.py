"""Append at brokers of a test's own: other settings, a look inside, and shutdown. Gazette's cases AA4, AA10, AA15, E2 and E3."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from journal_specs import journal_spec
from wire_limits import limit_stalls

from gazette_platform.errors import AccessDenied
from gazette_platform.fragment import index
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import AppendCall, append, messages_taken, read_all
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]
MIB = 1 << 20


def spec(name="a/journal", *, replication=1, stores=("file:///",), codec=None, **fields):
    return journal_spec(
        name,
        replication,
        length=64 * MIB,
        codec=codec or CompressionCodec.SNAPPY,
        stores=stores,
        **fields,
    )


async def has_its_turn(broker):
    """Wait until the journal's appender writes what a stream has sent so far."""
    replica = broker._resolver.replicas["a/journal"]
    await eventually(lambda: replica.appender._in_hand and written(broker))


def written(broker):
    """Bytes in a broker's spools, committed or not."""
    return sum(path.stat().st_size for path in broker.config.spool_dir.rglob("*.content"))


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


async def test_aa4_a_stalled_client_is_refused(cluster, stub, monkeypatch):
    monkeypatch.setattr("gazette_platform.broker.append.content._GATHER_CREDIT_S", 1.0)
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    await call.send(b"foo")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.call
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == (
        "append stream: client stream didn't sustain the minimum append data rate"
    )


async def test_rs7_a_journal_without_brokers(cluster):
    stub = cluster.stub(await cluster.start(journal_limit=0, append_wait_s=0.0))
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec().to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    assert (await append(stub, "a/journal")).status == pb.NO_JOURNAL_PRIMARY_BROKER
    async for response in stub.Read(pb.ReadRequest(journal="a/journal")):
        assert response.status == pb.INSUFFICIENT_JOURNAL_BROKERS


async def test_aa10_too_few_brokers(cluster):
    stub = cluster.stub(await cluster.start(append_wait_s=0.5))
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(replication=2).to_pb())
    assert (await stub.Apply(request)).status == pb.OK

    response = await append(stub, "a/journal", b"x")
    assert response.status == pb.INSUFFICIENT_JOURNAL_BROKERS
    assert response.header.process_id.suffix == "broker-0"


async def test_aa15_an_unusable_store(cluster):
    stub = cluster.stub(await cluster.start(file_root=None))
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(stores=("file:///nonexistent/",)).to_pb())
    await stub.Apply(request)
    response = await append(stub, "a/journal", b"x")
    assert response.status == pb.FRAGMENT_STORE_UNHEALTHY
    text = response.store_health_error
    assert text.startswith("fragment store file:///nonexistent/ unhealthy: ")
    assert "file-root" in text


async def test_a_second_store_that_cannot_be_listed(cluster, broker, stub, monkeypatch):
    """What the journal holds is not known then; appends waited for that without an end, or a word."""
    monkeypatch.setattr(index, "_FAILING_S", 1.0)
    archive = broker._context.stores.get("file:///archive/")
    is_denied = True

    async def list_unless_denied(prefix):
        if is_denied:
            raise AccessDenied("LIST is not for you")
        async for item in archive.store.list(prefix):
            yield item

    monkeypatch.setattr(archive, "list", list_unless_denied)
    request = pb.ApplyRequest()
    changed = spec(stores=("file:///", "file:///archive/"))
    request.changes.add().upsert.CopyFrom(changed.to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    async with asyncio.timeout(patient(20)):
        responses = await asyncio.gather(*(append(stub, "a/journal", b"x") for _ in range(3)))
    assert {one.status for one in responses} == {pb.FRAGMENT_STORE_UNHEALTHY}
    problem = (
        "fragment store file:///archive/ cannot be listed: LIST is not for you (mend it, or take it "
        "out of the journal's stores)"
    )
    assert {one.store_health_error for one in responses} == {problem}
    is_denied = False
    async with asyncio.timeout(patient(20)):
        while (await append(stub, "a/journal", b"y")).status != pb.OK:
            pass
    assert await read_all(stub, "a/journal") == b"y"


async def test_commits_are_counted(cluster, stub, broker):
    await cluster.apply(stub, spec())
    await append(stub, "a/journal", b"one")
    await append(stub, "a/journal", b"three")
    call = AppendCall(stub, "a/journal")
    await call.send(*[b"x" * MIB] * 6)
    await has_its_turn(broker)
    with pytest.raises(grpc.aio.AioRpcError):
        await call.finish()
    await append(stub, "a/journal", b"x", offset=77)
    text = broker._context.metrics.exposition().decode()
    prefix = "gazette_journal_server_completed_totals"
    assert f'{prefix}{{operation="Append",status="ok"}} 3.0' in text
    assert f'{prefix}{{operation="Append",status="error"}} 1.0' in text
    assert f'{prefix}{{operation="Append",status="WRONG_APPEND_OFFSET"}} 1.0' in text
    assert "gazette_spool_commits_total 2.0" in text
    assert "gazette_spool_commit_bytes_total 8.0" in text
    assert "gazette_spool_rollbacks_total 1.0" in text
    assert 'gazette_write_head{journal="a/journal"} 8.0' in text


STOPPED = "resolve: resolver has stopped serving local replicas; ask again"


async def test_e2_an_append_in_progress_at_shutdown_finishes(cluster, broker, stub):
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    await call.send(*[b"x" * MIB] * 6)
    await has_its_turn(broker)
    draining = asyncio.ensure_future(broker.drain())  # noqa: TID251  awaited below
    await eventually(lambda: not broker._resolver._is_serving)
    assert not draining.done()
    response = await call.commit()
    assert (response.status, response.commit.end) == (pb.OK, 6 * MIB)
    assert await draining == []
    (path,) = (cluster.fragments / "a/journal").iterdir()
    assert path.name.startswith("0000000000000000-0000000000600000-")


async def test_e3_an_append_that_is_late_is_refused(cluster, broker, stub):
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    taken = messages_taken(broker, "Append")
    await call.send(b"begun, but not whole")
    await eventually(lambda: messages_taken(broker, "Append") == taken + 2)
    draining = asyncio.ensure_future(broker.drain())  # noqa: TID251  awaited below
    await eventually(lambda: not broker._resolver._is_serving)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.commit()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, STOPPED)
    assert await draining == []


async def test_a_store_that_is_down_does_not_hold_up_a_drain(cluster, broker, stub):
    request = pb.ApplyRequest()
    blocked = cluster.fragments / "blocked"
    blocked.write_text("a file where a directory should be")
    request.changes.add().upsert.CopyFrom(spec(stores=("file:///blocked/",)).to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    calls = [AppendCall(stub, "a/journal") for _ in range(3)]
    waiting = [asyncio.ensure_future(_whole(call)) for call in calls]  # noqa: TID251  below
    replicas = broker._resolver.replicas
    await eventually(
        lambda: "a/journal" in replicas and len(replicas["a/journal"].appender._queue) >= 3
    )
    async with asyncio.timeout(5):
        assert await broker.drain() == []
    for done in waiting:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await done
        assert caught.value.details() == STOPPED


async def _whole(call):
    await call.send(b"x")
    return await call.commit()


async def test_a_stream_that_says_nothing_is_ended(broker, stub, monkeypatch):
    limit_stalls(monkeypatch, broker, 0.3)
    call = stub.Append(timeout=20)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "append stream: nothing was sent for 0.3 s"
