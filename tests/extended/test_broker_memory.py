"""Memory of a broker whose clients stall: what it holds of them is bounded, however many there are.

Each bound is a few hundred megabytes below what the broker took before it had one, and above what it
takes now by a third at least: allocators differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
from pathlib import Path

import grpc
import pytest
from grpc import aio
from journal_specs import journal_spec

from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd

MIB = 1 << 20
JOURNAL, OTHER = "a/journal", "other/journal"


def spec(name, *, length=1 << 30):
    return journal_spec(name, length=length)


@pytest.fixture
def broker(etcd_server, etcd_prefix, tmp_path):
    server = BrokerServer(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix, lease_s=20)
    with server:
        yield server


@pytest.fixture
async def connect(broker):
    """Makes stubs, each on a connection of its own."""
    channels = []

    def make(server=broker):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channels.append(aio.insecure_channel(server.address.removeprefix("http://"), options))
        return protocol_pb2_grpc.JournalStub(channels[-1])

    yield make
    await asyncio.gather(*(channel.close() for channel in channels))


@pytest.fixture
async def stub(connect):
    stub = connect()
    request = pb.ApplyRequest()
    for name in (JOURNAL, OTHER):
        request.changes.add().upsert.CopyFrom(spec(name).to_pb())
    await stub.Apply(request, timeout=20)
    for name in (JOURNAL, OTHER):
        await append(stub, name, b"first")
    return stub


def rss_bytes(broker):
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


@contextlib.contextmanager
def growth_below(broker, limit_bytes):
    before = rss_bytes(broker)
    yield
    grown = rss_bytes(broker) - before
    assert grown < limit_bytes, f"the broker grew by {grown / MIB:.0f} MiB"


@pytest.fixture
def few_files():
    """Lets child processes begin with few, as most systems do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield min(hard, 1 << 16) if hard != resource.RLIM_INFINITY else 1 << 16
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_broker_may_open_as_many_files_as_the_system_allows(few_files, broker):
    limits = Path(f"/proc/{broker.pid}/limits").read_text()
    assert int(limits.partition("Max open files")[2].split()[0]) == few_files


async def test_large_appends_that_do_not_commit(broker, connect, stub):
    """120 of 6 MiB, to a journal whose first one never commits: took 1,015 MiB."""
    calls = []

    async def begin():
        call = connect().Append(timeout=100)
        calls.append(call)
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await call.write(pb.AppendRequest(journal=JOURNAL))
            for _ in range(6):
                await call.write(pb.AppendRequest(content=bytes(MIB)))

    tasks = TaskGroup("clients")
    with growth_below(broker, 620 * MIB):
        for _ in range(120):
            tasks.spawn(begin())

        async def refusals():
            # grpcio may lose the status of a call that ends beneath a write.
            ended = [await call.details() for call in calls if call.done()]
            why = [text for text in ended if "appends that wait for their turn" in text]
            return len(ended) > 30 and len(why) > 0

        await eventually(refusals)
        # Small ones, and other journals, are served meanwhile.
        await append(stub, OTHER, b"x" * 1000)
    for call in calls:
        call.cancel()
    await tasks.close()
    # What they took is given back.
    await asyncio.gather(*(append(stub, OTHER, bytes(300_000)) for _ in range(200)))


@pytest.mark.parametrize("fragment_bytes", [1 << 30, 5 * MIB], ids=["spool", "stored"])
async def test_readers_that_stop(broker, connect, fragment_bytes):
    """300 of them: took 473 MiB of a spool, and 940 MiB of what is stored without compression."""
    stub = connect()
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(JOURNAL, length=fragment_bytes).to_pb())
    await stub.Apply(request, timeout=20)
    content = random.Random(1).randbytes(4 * MIB)
    for _ in range(8):
        await append(stub, JOURNAL, *(content[at : at + MIB] for at in range(0, len(content), MIB)))
    calls = []

    async def begin():
        call = connect().Read(pb.ReadRequest(journal=JOURNAL), timeout=100)
        calls.append(call)
        await call.read()

    with growth_below(broker, 400 * MIB):
        await asyncio.gather(*(begin() for _ in range(300)))
        # Who reads is served meanwhile.
        assert await read_all(stub, JOURNAL) == content * 8
    # Who stopped goes on where it was.
    got = []
    while (response := await calls[7].read()) is not aio.EOF:
        got.append(response.content)
    assert b"".join(got) == content * 8
    for call in calls:
        call.cancel()


async def test_readers_that_stop_at_a_broker_that_forwards(
    broker, connect, etcd_server, etcd_prefix, tmp_path
):
    """It held 8 MiB of each read from the other broker: 300 took 920 MiB."""
    stub = connect()
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(JOURNAL).to_pb())
    await stub.Apply(request, timeout=20)
    for _ in range(8):
        await append(stub, JOURNAL, *[bytes(MIB)] * 4)
    server = BrokerServer(
        tmp_path / "forwards",
        etcd=etcd_server.endpoint,
        prefix=etcd_prefix,
        broker_id="forwards",
        lease_s=20,
        flags=["--broker.limit=0"],
    )
    with server:
        calls = []

        async def begin():
            call = connect(server).Read(pb.ReadRequest(journal=JOURNAL), timeout=100)
            calls.append(call)
            await call.read()

        assert len(await read_all(connect(server), JOURNAL)) == 32 * MIB
        with growth_below(server, 700 * MIB):
            await asyncio.gather(*(begin() for _ in range(300)))
            assert len(await read_all(connect(server), JOURNAL)) == 32 * MIB
        for call in calls:
            call.cancel()
