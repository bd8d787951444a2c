"""Append at a real broker: Gazette's cases AA1 to AA12 and AA15, suspension, streams, clients that leave."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import pytest

from gazette_platform.errors import AccessDenied
from gazette_platform.fragment import refresh
from gazette_platform.protocol import (
    AppendSuspend,
    CompressionCodec,
    FragmentSpec,
    JournalFlag,
    JournalSpec,
    LabelSelector,
    LabelSet,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving import grpc_server
from gazette_platform.testing.local_broker import AppendCall, append, read_all, spans
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

MIB = 1 << 20


def spec(name="a/journal", *, replication=1, stores=("file:///",), codec=None, **fields):
    return JournalSpec(
        name,
        replication,
        fragment=FragmentSpec(
            length=64 * MIB,
            codec=codec or CompressionCodec.SNAPPY,
            stores=stores,
            refresh_interval_ns=10**9,
        ),
        **fields,
    )


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


def sha1_parts(content):
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    parts = pb.SHA1Sum()
    parts.part1 = int.from_bytes(digest[:8], "big")
    parts.part2 = int.from_bytes(digest[8:16], "big")
    parts.part3 = int.from_bytes(digest[16:], "big")
    return parts


def labels(**named):
    return LabelSet.of(**named).to_pb()


async def spec_of(stub, journal="a/journal"):
    selector = LabelSelector.parse(f"name={journal}").to_pb()
    async for response in stub.List(pb.ListRequest(selector=selector)):
        for listed in response.journals:
            return JournalSpec.from_pb(listed.spec)
    return None


# ---------------------------------------------------------------------------------------- commits
async def test_aa1_an_append(cluster, stub):
    await cluster.apply(stub, spec())
    response = await append(stub, "a/journal;with/meta", b"foo", b"bar")
    assert response.status == pb.OK
    assert response.commit == pb.Fragment(
        journal="a/journal",
        begin=0,
        end=6,
        sum=sha1_parts(b"foobar"),
        compression_codec=pb.SNAPPY,
    )
    assert response.HasField("registers")
    assert len(response.registers.labels) == 0
    assert (response.total_chunks, response.delayed_chunks) == (3, 0)
    assert response.header.process_id.suffix == "broker-0"
    assert response.header.route.primary == 0
    assert await read_all(stub, "a/journal") == b"foobar"


async def test_aa2_registers(cluster, stub):
    await cluster.apply(stub, spec())

    async def step(check=None, subtract=None, union=None):
        fields = {}
        if check is not None:
            fields["check_registers"] = LabelSelector.parse(check).to_pb()
        if subtract is not None:
            fields["subtract_registers"] = labels(**subtract)
        if union is not None:
            fields["union_registers"] = labels(**union)
        response = await append(stub, "a/journal", b"x", **fields)
        held = {label.name: label.value for label in response.registers.labels}
        return response.status, held

    assert await step(union={"AA": "11", "BB": "22"}) == (pb.OK, {"AA": "11", "BB": "22"})
    assert await step("AA in (11), BB", {"AA": "11", "BB": "XYZ"}, {"CC": "33"}) == (
        pb.OK,
        {"BB": "22", "CC": "33"},
    )
    assert await step("!AA, CC", {"CC": "33"}, {"AA": "44"}) == (pb.OK, {"AA": "44", "BB": "22"})
    assert await step("AA = 55") == (pb.REGISTER_MISMATCH, {"AA": "44", "BB": "22"})
    # What was refused left neither bytes nor registers; nor does a check alone.
    assert await step("AA = 55", {"AA": "44"}, {"DD": "1"}) == (
        pb.REGISTER_MISMATCH,
        {"AA": "44", "BB": "22"},
    )
    assert await step("AA, BB in (21, 22), !CC") == (pb.OK, {"AA": "44", "BB": "22"})
    assert await read_all(stub, "a/journal") == b"xxxx"


async def test_aa3_no_commit_no_append(cluster, stub):
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    await call.send(b"foo", b"bar")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.finish()
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "append stream: unexpected EOF"
    assert (await append(stub, "a/journal")).commit.end == 0


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


async def test_aa5_a_client_that_cancels(cluster, stub, broker):
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    await call.send(b"foo")
    call.call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.call
    assert (await append(stub, "a/journal", b"bar")).commit.end == 3
    assert await read_all(stub, "a/journal") == b"bar"


# --------------------------------------------------------------------------------------- refusals
async def test_aa6_registers_without_content(cluster, stub):
    await cluster.apply(stub, spec())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await append(stub, "a/journal", union_registers=labels(reg="1"))
    assert caught.value.details() == (
        "append stream: register modification requires non-empty Append"
    )


async def test_aa7_an_invalid_name(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await append(stub, "/invalid/name")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "Journal: cannot begin with '/' (/invalid/name)"


async def test_aa8_rs8_an_unknown_journal(stub):
    response = await append(stub, "unknown/journal")
    assert response.status == pb.JOURNAL_NOT_FOUND
    assert response.header.process_id.suffix == "broker-0"
    assert response.header.route == pb.Route(primary=-1)


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


async def test_aa11_a_read_only_journal(cluster, stub):
    await cluster.apply(stub, spec(flags=JournalFlag.O_RDONLY))
    await eventually(lambda: _is_ok(stub))
    response = await append(stub, "a/journal", b"foo")
    assert response.status == pb.NOT_ALLOWED
    assert response.header.process_id.suffix == "broker-0"


async def _is_ok(stub):
    return (await append(stub, "a/journal")).status == pb.OK


async def test_aa12_a_wrong_offset(cluster, stub):
    await cluster.apply(stub, spec())
    await append(stub, "a/journal", b"x" * 1024)
    response = await append(stub, "a/journal", b"y", offset=512)
    assert response.status == pb.WRONG_APPEND_OFFSET
    assert response.header.process_id.suffix == "broker-0"
    assert (await append(stub, "a/journal", b"y", offset=1024)).status == pb.OK


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
    monkeypatch.setattr(refresh, "_FAILING_S", 1.0)
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
    async with asyncio.timeout(20):
        responses = await asyncio.gather(*(append(stub, "a/journal", b"x") for _ in range(3)))
    assert {one.status for one in responses} == {pb.FRAGMENT_STORE_UNHEALTHY}
    problem = (
        "fragment store file:///archive/ cannot be listed: LIST is not for you (mend it, or take it "
        "out of the journal's stores)"
    )
    assert {one.store_health_error for one in responses} == {problem}
    is_denied = False
    async with asyncio.timeout(20):
        while (await append(stub, "a/journal", b"y")).status != pb.OK:
            pass
    assert await read_all(stub, "a/journal") == b"y"


async def test_a_malformed_request(broker, stub, cluster):
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{broker.port}")
    for method, kind in (("Append", "stream_unary"), ("Apply", "unary_unary")):
        raw = getattr(channel, kind)(f"/protocol.Journal/{method}")
        call = raw(iter([b"\xff\xff"])) if kind == "stream_unary" else raw(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "malformed message" in caught.value.details()
    await channel.close()


# ------------------------------------------------------------------------------------ large appends
@pytest.mark.parametrize("size", [3 * MIB + 1, 9 * MIB])
async def test_large_appends_stream(cluster, stub, broker, size):
    await cluster.apply(stub, spec(codec=CompressionCodec.NONE))
    content = bytes(range(251)) * (size // 251 + 1)
    content = content[:size]
    chunks = [content[at : at + 512 * 1024] for at in range(0, size, 512 * 1024)]
    first = await append(stub, "a/journal", *chunks)
    second = await append(stub, "a/journal", b"tail")
    assert (first.commit.begin, first.commit.end) == (0, size)
    assert first.commit.sum == sha1_parts(content)
    assert second.commit.begin == size
    assert await read_all(stub, "a/journal") == content + b"tail"


async def test_a_large_append_is_invisible_until_it_commits(cluster, stub):
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    await call.send(*[b"x" * MIB] * 3)
    await asyncio.sleep(0.1)
    assert await read_all(stub, "a/journal") == b""
    with pytest.raises(grpc.aio.AioRpcError, match="unexpected EOF"):
        await call.finish()
    assert (await append(stub, "a/journal", b"y")).commit.begin == 0


async def test_a_refused_stream_is_answered_before_its_end(cluster, stub):
    """The client has not finished sending, and may never."""
    await cluster.apply(stub, spec())
    await append(stub, "a/journal", b"x")
    call = AppendCall(stub, "a/journal", offset=77)
    await call.send(*[b"x" * MIB] * 3)
    async with asyncio.timeout(0.9):  # before it counts as stalled
        response = await call.call
    assert response.status == pb.WRONG_APPEND_OFFSET


async def test_a_slow_client_holds_nobody_up(cluster, stub):
    await cluster.apply(stub, spec())
    slow = AppendCall(stub, "a/journal")
    await slow.send(b"slow ")
    async with asyncio.timeout(0.9):
        fast = await append(stub, "a/journal", b"fast ")
    assert fast.commit.begin == 0
    assert (await slow.commit()).commit.begin == 5


async def test_many_at_once_are_each_whole(cluster, stub):
    await cluster.apply(stub, spec(codec=CompressionCodec.GZIP))
    contents = [b"%03d:" % n + bytes([65 + n % 26]) * (n * 37 % 3000) + b"\n" for n in range(200)]
    responses = await asyncio.gather(*(append(stub, "a/journal", c) for c in contents))
    everything = await read_all(stub, "a/journal")
    for response, content in zip(responses, contents, strict=True):
        assert everything[response.commit.begin : response.commit.end] == content
    assert sorted(everything.splitlines()) == sorted(c.rstrip() for c in contents)
    ends = [end for _, end in sorted(spans(r.commit for r in responses))]
    assert ends[-1] == len(everything)


async def test_the_journals_max_rate_delays_and_counts(cluster, broker, stub):
    await cluster.apply(stub, spec(max_append_rate=MIB))
    balance = broker._resolver.replicas["a/journal"].balance
    # What has accrued while the journal was made is banked, too.
    balance.balance, balance.updated_at = float(MIB), broker._context.clock.monotonic()
    loop = asyncio.get_running_loop()
    began = loop.time()
    response = await append(stub, "a/journal", *[b"x" * (MIB // 4)] * 6)
    assert response.status == pb.OK
    assert response.delayed_chunks >= 1
    assert loop.time() - began >= 0.4, "one and a half seconds' worth, of which one was in hand"


# ------------------------------------------------------------------------------------- suspension
async def test_fs9_fs12_fs14_suspend_and_resume(cluster, stub):
    await cluster.apply(stub, spec())
    await append(stub, "a/journal", b"foobar")
    now = AppendSuspend.SUSPEND_NOW.value
    assert (await append(stub, "a/journal", suspend=now)).status == pb.SUSPENDED
    assert (await spec_of(stub)).suspend == SuspendSpec(SuspendLevel.PARTIAL, 6)
    keep = AppendSuspend.SUSPEND_KEEP.value
    assert (await append(stub, "a/journal", suspend=keep)).status == pb.OK
    assert (await append(stub, "a/journal", b"x", suspend=keep)).status == pb.NOT_ALLOWED
    no_resume = AppendSuspend.SUSPEND_NO_RESUME.value
    assert (await append(stub, "a/journal", suspend=no_resume)).status == pb.SUSPENDED
    assert (await append(stub, "a/journal")).status == pb.OK
    assert (await spec_of(stub)).suspend == SuspendSpec(SuspendLevel.NONE, 6)
    response = await append(stub, "a/journal", b"more")
    assert (response.status, response.commit.begin) == (pb.OK, 6)
    assert (await spec_of(stub)).suspend is None, "content behind the offset has made it void"


async def test_suspend_now_persists_the_open_fragment(cluster, stub):
    await cluster.apply(stub, spec())
    await append(stub, "a/journal", b"one")
    await append(stub, "a/journal", b"two")
    await append(stub, "a/journal", suspend=AppendSuspend.SUSPEND_NOW.value)
    folder = cluster.fragments / "a/journal"
    await eventually(lambda: folder.is_dir() and len(list(folder.iterdir())) == 2)


async def test_fs12_an_empty_journal_is_suspended_fully_and_resumed(cluster, stub):
    await cluster.apply(stub, spec())
    now = AppendSuspend.SUSPEND_NOW.value
    assert (await append(stub, "a/journal", suspend=now)).status == pb.SUSPENDED
    assert (await spec_of(stub)).suspend == SuspendSpec(SuspendLevel.FULL, 0)

    async def is_unassigned():
        no_resume = AppendSuspend.SUSPEND_NO_RESUME.value
        response = await append(stub, "a/journal", suspend=no_resume)
        assert response.status == pb.SUSPENDED
        return not response.header.route.members

    await eventually(is_unassigned)
    response = await append(stub, "a/journal", b"foobar")
    assert (response.status, response.commit.end) == (pb.OK, 6)
    assert (await spec_of(stub)).suspend is None


async def test_fs14_a_fully_suspended_journal_resumes_at_its_offset(cluster, stub):
    full = SuspendSpec(SuspendLevel.FULL, 1024)
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(suspend=full).to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    responses = await asyncio.gather(*(append(stub, "a/journal", b"foobar") for _ in range(5)))
    assert {r.status for r in responses} == {pb.OK}
    assert sorted(r.commit.begin for r in responses) == [1024 + 6 * n for n in range(5)]


# ---------------------------------------------------------------------------------------- metrics
async def test_commits_are_counted(cluster, stub, broker):
    await cluster.apply(stub, spec())
    await append(stub, "a/journal", b"one")
    await append(stub, "a/journal", b"three")
    call = AppendCall(stub, "a/journal")
    await call.send(*[b"x" * MIB] * 3)
    await asyncio.sleep(0.1)  # some of it was written
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


# --------------------------------------------------------------------------------------- shutdown
STOPPED = "resolve: resolver has stopped serving local replicas"


async def test_e2_an_append_in_progress_at_shutdown_finishes(cluster, broker, stub):
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    await call.send(*[b"x" * MIB] * 3)
    await asyncio.sleep(0.1)  # it has its turn
    draining = asyncio.ensure_future(broker.drain())  # noqa: TID251  awaited below
    await asyncio.sleep(0.1)
    assert not draining.done()
    response = await call.commit()
    assert (response.status, response.commit.end) == (pb.OK, 3 * MIB)
    assert await draining == []
    (path,) = (cluster.fragments / "a/journal").iterdir()
    assert path.name.startswith("0000000000000000-0000000000300000-")


async def test_e3_an_append_that_is_late_is_refused(cluster, broker, stub):
    await cluster.apply(stub, spec())
    call = AppendCall(stub, "a/journal")
    await call.send(b"begun, but not whole")
    await asyncio.sleep(0.05)
    draining = asyncio.ensure_future(broker.drain())  # noqa: TID251  awaited below
    await asyncio.sleep(0.2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.commit()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNKNOWN, STOPPED)
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


async def test_a_stream_that_says_nothing_is_ended(stub, monkeypatch):
    monkeypatch.setattr(grpc_server, "_STALL_S", 0.3)
    call = stub.Append(timeout=20)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "append stream: nothing was sent for 0.3 s"
