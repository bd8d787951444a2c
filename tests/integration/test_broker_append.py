"""Append at a real broker: Gazette's cases AA1 to AA12, suspension, streams, clients that leave."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import pytest

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
from gazette_platform.testing.local_broker import AppendCall, append, apply, read_all, spans
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd

MIB = 1 << 20


def spec(name, *, replication=1, stores=("file:///",), codec=None, **fields):
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
def journal(names):
    return names.journal()


def sha1_parts(content):
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    parts = pb.SHA1Sum()
    parts.part1 = int.from_bytes(digest[:8], "big")
    parts.part2 = int.from_bytes(digest[8:16], "big")
    parts.part3 = int.from_bytes(digest[16:], "big")
    return parts


def labels(**named):
    return LabelSet.of(**named).to_pb()


async def spec_of(stub, journal):
    selector = LabelSelector.parse(f"name={journal}").to_pb()
    async for response in stub.List(pb.ListRequest(selector=selector)):
        for listed in response.journals:
            return JournalSpec.from_pb(listed.spec)
    return None


async def suspend_is(stub, journal, expected):
    """Wait until the broker that lists has seen what the primary wrote."""

    async def is_seen():
        return (await spec_of(stub, journal)).suspend == expected

    await eventually(is_seen)


# ---------------------------------------------------------------------------------------- commits
async def test_aa1_an_append(stub, journal):
    await apply(stub, spec(journal))
    response = await append(stub, f"{journal};with/meta", b"foo", b"bar")
    assert response.status == pb.OK
    assert response.commit == pb.Fragment(
        journal=journal,
        begin=0,
        end=6,
        sum=sha1_parts(b"foobar"),
        compression_codec=pb.SNAPPY,
    )
    assert response.HasField("registers")
    assert len(response.registers.labels) == 0
    assert (response.total_chunks, response.delayed_chunks) == (3, 0)
    assert response.header.process_id.suffix in {"broker-a", "broker-b", "broker-c"}
    assert response.header.route.primary == 0
    assert await read_all(stub, journal) == b"foobar"


async def test_aa2_registers(stub, journal):
    await apply(stub, spec(journal))

    async def step(check=None, subtract=None, union=None):
        fields = {}
        if check is not None:
            fields["check_registers"] = LabelSelector.parse(check).to_pb()
        if subtract is not None:
            fields["subtract_registers"] = labels(**subtract)
        if union is not None:
            fields["union_registers"] = labels(**union)
        response = await append(stub, journal, b"x", **fields)
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
    assert await read_all(stub, journal) == b"xxxx"


async def test_aa3_no_commit_no_append(stub, journal):
    await apply(stub, spec(journal))
    call = AppendCall(stub, journal)
    await call.send(b"foo", b"bar")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.finish()
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == "append stream: unexpected EOF"
    assert (await append(stub, journal)).commit.end == 0


async def test_aa5_a_client_that_cancels(stub, journal):
    await apply(stub, spec(journal))
    call = AppendCall(stub, journal)
    await call.send(b"foo")
    call.call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.call
    assert (await append(stub, journal, b"bar")).commit.end == 3
    assert await read_all(stub, journal) == b"bar"


# --------------------------------------------------------------------------------------- refusals
async def test_aa6_registers_without_content(stub, journal):
    await apply(stub, spec(journal))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await append(stub, journal, union_registers=labels(reg="1"))
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
    assert response.header.process_id.suffix == "broker-a"
    assert response.header.route == pb.Route(primary=-1)


async def test_aa11_a_read_only_journal(stub, journal):
    await apply(stub, spec(journal, flags=JournalFlag.O_RDONLY))
    await eventually(lambda: _is_ok(stub, journal))
    response = await append(stub, journal, b"foo")
    assert response.status == pb.NOT_ALLOWED
    assert response.header.process_id.suffix in {"broker-a", "broker-b", "broker-c"}


async def _is_ok(stub, journal):
    return (await append(stub, journal)).status == pb.OK


async def test_aa12_a_wrong_offset(stub, journal):
    await apply(stub, spec(journal))
    await append(stub, journal, b"x" * 1024)
    response = await append(stub, journal, b"y", offset=512)
    assert response.status == pb.WRONG_APPEND_OFFSET
    assert response.header.process_id.suffix in {"broker-a", "broker-b", "broker-c"}
    assert (await append(stub, journal, b"y", offset=1024)).status == pb.OK


async def test_a_malformed_request(shared):
    channel = grpc.aio.insecure_channel(shared.address.removeprefix("http://"))
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
async def test_large_appends_stream(stub, size, journal):
    await apply(stub, spec(journal, codec=CompressionCodec.NONE))
    content = bytes(range(251)) * (size // 251 + 1)
    content = content[:size]
    chunks = [content[at : at + 512 * 1024] for at in range(0, size, 512 * 1024)]
    first = await append(stub, journal, *chunks)
    second = await append(stub, journal, b"tail")
    assert (first.commit.begin, first.commit.end) == (0, size)
    assert first.commit.sum == sha1_parts(content)
    assert second.commit.begin == size
    assert await read_all(stub, journal) == content + b"tail"


async def test_a_large_append_is_invisible_until_it_commits(stub, journal):
    await apply(stub, spec(journal))
    call = AppendCall(stub, journal)
    await call.send(*[b"x" * MIB] * 3)
    await asyncio.sleep(0.1)
    assert await read_all(stub, journal) == b""
    with pytest.raises(grpc.aio.AioRpcError, match="unexpected EOF"):
        await call.finish()
    assert (await append(stub, journal, b"y")).commit.begin == 0


async def test_a_refused_stream_is_answered_before_its_end(stub, journal):
    """The client has not finished sending, and may never."""
    await apply(stub, spec(journal))
    await append(stub, journal, b"x")
    call = AppendCall(stub, journal, offset=77)
    await call.send(*[b"x" * MIB] * 3)
    async with asyncio.timeout(0.9):  # before it counts as stalled
        response = await call.call
    assert response.status == pb.WRONG_APPEND_OFFSET


async def test_a_slow_client_holds_nobody_up(stub, journal):
    await apply(stub, spec(journal))
    slow = AppendCall(stub, journal)
    await slow.send(b"slow ")
    async with asyncio.timeout(0.9):
        fast = await append(stub, journal, b"fast ")
    assert fast.commit.begin == 0
    assert (await slow.commit()).commit.begin == 5


async def test_many_at_once_are_each_whole(stub, journal):
    await apply(stub, spec(journal, codec=CompressionCodec.GZIP))
    contents = [b"%03d:" % n + bytes([65 + n % 26]) * (n * 37 % 3000) + b"\n" for n in range(200)]
    responses = await asyncio.gather(*(append(stub, journal, c) for c in contents))
    everything = await read_all(stub, journal)
    for response, content in zip(responses, contents, strict=True):
        assert everything[response.commit.begin : response.commit.end] == content
    assert sorted(everything.splitlines()) == sorted(c.rstrip() for c in contents)
    ends = [end for _, end in sorted(spans(r.commit for r in responses))]
    assert ends[-1] == len(everything)


# ------------------------------------------------------------------------------------- suspension
async def test_fs9_fs12_fs14_suspend_and_resume(stub, journal):
    await apply(stub, spec(journal))
    await append(stub, journal, b"foobar")
    now = AppendSuspend.SUSPEND_NOW.value
    assert (await append(stub, journal, suspend=now)).status == pb.SUSPENDED
    await suspend_is(stub, journal, SuspendSpec(SuspendLevel.PARTIAL, 6))
    keep = AppendSuspend.SUSPEND_KEEP.value
    assert (await append(stub, journal, suspend=keep)).status == pb.OK
    assert (await append(stub, journal, b"x", suspend=keep)).status == pb.NOT_ALLOWED
    no_resume = AppendSuspend.SUSPEND_NO_RESUME.value
    assert (await append(stub, journal, suspend=no_resume)).status == pb.SUSPENDED
    assert (await append(stub, journal)).status == pb.OK
    await suspend_is(stub, journal, SuspendSpec(SuspendLevel.NONE, 6))
    response = await append(stub, journal, b"more")
    assert (response.status, response.commit.begin) == (pb.OK, 6)
    await suspend_is(stub, journal, None)  # content behind the offset has made it void


async def test_suspend_now_persists_the_open_fragment(stub, journal, shared):
    await apply(stub, spec(journal))
    await append(stub, journal, b"one")
    await append(stub, journal, b"two")
    await append(stub, journal, suspend=AppendSuspend.SUSPEND_NOW.value)
    folder = shared.fragments / journal
    await eventually(lambda: folder.is_dir() and len(list(folder.iterdir())) == 2)


async def test_fs12_an_empty_journal_is_suspended_fully_and_resumed(stub, journal):
    await apply(stub, spec(journal))
    now = AppendSuspend.SUSPEND_NOW.value
    assert (await append(stub, journal, suspend=now)).status == pb.SUSPENDED
    await suspend_is(stub, journal, SuspendSpec(SuspendLevel.FULL, 0))

    async def is_unassigned():
        no_resume = AppendSuspend.SUSPEND_NO_RESUME.value
        response = await append(stub, journal, suspend=no_resume)
        assert response.status == pb.SUSPENDED
        return not response.header.route.members

    await eventually(is_unassigned)
    response = await append(stub, journal, b"foobar")
    assert (response.status, response.commit.end) == (pb.OK, 6)
    await suspend_is(stub, journal, None)


async def test_fs14_a_fully_suspended_journal_resumes_at_its_offset(stub, journal):
    full = SuspendSpec(SuspendLevel.FULL, 1024)
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(journal, suspend=full).to_pb())
    assert (await stub.Apply(request)).status == pb.OK
    responses = await asyncio.gather(*(append(stub, journal, b"foobar") for _ in range(5)))
    assert {r.status for r in responses} == {pb.OK}
    assert sorted(r.commit.begin for r in responses) == [1024 + 6 * n for n in range(5)]
