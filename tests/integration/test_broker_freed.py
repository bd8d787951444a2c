"""What a call held is freed with it, however it ends: the garbage collector comes much later."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import grpc
import pytest

from gazette_platform.broker.append.batch import Pending
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
CONTENT = bytes(512 << 10)
BEFORE = 0
"""Bytes that appends of other tests left in memory."""


@pytest.fixture
async def broker(cluster, monkeypatch):
    broker = await cluster.start()
    spec = JournalSpec(
        JOURNAL,
        1,
        fragment=FragmentSpec(
            length=1 << 30, codec=CompressionCodec.NONE, refresh_interval_ns=10**9
        ),
    )
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec)
    await append(stub, JOURNAL, b"first")
    gc.collect()
    monkeypatch.setitem(globals(), "BEFORE", BEFORE + held_bytes())
    gc.disable()
    yield broker
    gc.enable()


def held_bytes():
    """Of content that appends have gathered, which are still in memory."""
    return sum(o.length for o in gc.get_objects() if type(o) is Pending) - BEFORE


async def without_commit(broker, stub):
    call = stub.Append()
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
        await call.write(pb.AppendRequest(journal=JOURNAL))
        for _ in range(3):
            await call.write(pb.AppendRequest(content=CONTENT))
        await call.done_writing()
    assert await call.code() is grpc.StatusCode.UNKNOWN


async def cancelled(broker, stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(journal=JOURNAL))
    for _ in range(3):
        await call.write(pb.AppendRequest(content=CONTENT))
    await eventually(lambda: held_bytes() > 0)
    call.cancel()


async def over_http(broker, stub):
    _, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    head = f"PUT /{JOURNAL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n"
    writer.write(head.encode() + CONTENT * 3)
    await writer.drain()
    await eventually(lambda: held_bytes() > 0)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("fail", [without_commit, cancelled, over_http])
async def test_content_of_an_append_that_failed(cluster, broker, fail):
    """Each kept up to 2 MiB: 14,000 of them took a broker to 1.4 GB."""
    stub = cluster.stub(broker)
    for _ in range(5):
        await fail(broker, stub)
    await append(stub, JOURNAL, b"next")
    await eventually(lambda: held_bytes() < len(CONTENT))
