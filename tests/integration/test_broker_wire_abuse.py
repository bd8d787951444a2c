"""gRPC calls that nobody expects at a real broker: each is answered, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import grpc
import pytest
from grpc import aio

from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local_broker import append, read_all
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
STREAMED = {"Append": "stream_unary", "Replicate": "stream_stream"}
STREAMS = {"Read": "unary_stream", "List": "unary_stream"}
METHODS = [
    *(f"/protocol.Journal/{name}" for name in ("Append", "Replicate", "Read", "List", "Apply")),
    *(f"/protocol.Journal/{name}" for name in ("ListFragments", "FragmentStoreHealth")),
    "/gazette_platform.Admin/AppendWhole",
    *(f"/gazette_platform.Admin/{name}" for name in ("Flush", "PutSavepoint", "GetSavepoint")),
    *(
        f"/gazette_platform.Admin/{name}"
        for name in ("ListSavepoints", "DeleteSavepoint", "ResetHead")
    ),
]


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    stub = cluster.stub(broker)
    fragment = FragmentSpec(length=1 << 30, codec=CompressionCodec.NONE, refresh_interval_ns=10**9)
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=fragment))
    return stub


@pytest.fixture
async def channel(broker):
    """Of gRPC's threads. Its aio tells of a write of its own that failed, in place of the status."""
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{broker.port}", options) as channel:
        yield channel


@pytest.fixture
def quiet(broker, caplog):
    """Nothing is said, and no unforeseen error was contained."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    yield
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert broker.faults.reported == 0


async def outcome(channel, method, message, *, metadata=()):
    """Code and text by which a call of any kind ends."""
    name = method.rpartition("/")[2]
    kind = STREAMED.get(name) or STREAMS.get(name, "unary_unary")
    request = iter([message]) if name in STREAMED else message

    def called():
        begin = getattr(channel, kind)(method)
        begin = begin.future if kind.endswith("unary") else begin
        call = begin(request, metadata=metadata, timeout=20)
        return call.code(), call.details()

    return await asyncio.to_thread(called)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "junk",
    [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x04a\xff\xfe\xfd", b"\x0b" * 5_000],
    ids=["tags", "length", "utf8", "groups"],
)
async def test_malformed_messages(channel, stub, quiet, method, junk):
    code, text = await outcome(channel, method, junk)
    # As grpc-go has it; Replicate has it among the errors of its stream.
    expected = "UNKNOWN" if method.endswith("Replicate") else "INTERNAL"
    assert code.name == expected, text
    assert "Error parsing message" in text


@pytest.mark.parametrize("method", ["/protocol.Journal/Append", "/protocol.Journal/Apply"])
async def test_messages_beyond_the_limit(channel, stub, quiet, method):
    code, _ = await outcome(channel, method, bytes(5 << 20))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_unknown_methods_and_large_metadata(channel, stub, quiet):
    code, _ = await outcome(channel, "/protocol.Journal/None", b"")
    assert code is grpc.StatusCode.UNIMPLEMENTED
    large = (("authorization", "x" * 70_000),)
    code, _ = await outcome(channel, "/protocol.Journal/Apply", b"", metadata=large)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_streams_that_stop_and_clients_that_vanish(broker, stub, quiet):
    """Whether they said what they want, sent content, or committed and did not wait."""
    tasks = TaskGroup("clients")
    channels = [aio.insecure_channel(f"127.0.0.1:{broker.port}", [("grpc.use_local_subchannel_pool", 1)]) for _ in range(5)]  # fmt: skip
    messages = [
        pb.AppendRequest(journal=JOURNAL).SerializeToString(),
        pb.AppendRequest(content=b"never committed").SerializeToString(),
    ]

    async def begin(channel, count):
        call = channel.stream_unary("/protocol.Journal/Append")()
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            for message in messages[:count]:
                await call.write(message)
            await call

    for number in range(300):
        tasks.spawn(begin(channels[number % 5], number % 3))
    name, labels = "gazette_journal_server_started_totals_total", {"operation": "Append"}
    registry = broker.metrics.registry
    await eventually(lambda: registry.get_sample_value(name, labels) >= 200)
    await append(stub, JOURNAL, b"content")  # behind none of them
    for channel in channels:
        await channel.close()
    await tasks.close()
    held = broker.service._append._stock
    await eventually(lambda: held.held_bytes == 0)
    assert await read_all(stub, JOURNAL) == b"content"


async def test_readers_that_leave_in_the_midst(broker, stub, quiet):
    await append(stub, JOURNAL, *[bytes(1 << 20)] * 16)
    reads = broker.service._read
    for _ in range(20):
        call = stub.Read(pb.ReadRequest(journal=JOURNAL), timeout=20)
        await call.read()
        call.cancel()
    await eventually(lambda: reads._sending_bytes == 0)
    assert len(await read_all(stub, JOURNAL)) == 16 << 20
