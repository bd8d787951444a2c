"""Append at a real broker: Gazette's cases AA1 to AA12, suspension, streams, clients that leave."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.protocol import (
    AppendSuspend,
    CompressionCodec,
    JournalSpec,
    LabelSelector,
    LabelSet,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import AppendCall, append, apply, read_all
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd

MIB = 1 << 20


def spec(name, *, replication=1, stores=("file:///",), codec=None, **fields):
    return journal_spec(
        name,
        replication,
        length=64 * MIB,
        codec=codec or CompressionCodec.SNAPPY,
        stores=stores,
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


# ------------------------------------------------------------------------------------ large appends
@pytest.mark.parametrize("size", [5 * MIB + 1, 9 * MIB])
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
