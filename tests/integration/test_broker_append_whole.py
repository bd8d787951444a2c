"""AppendWhole at real brokers: what a stream of the same append is answered, it is, too."""

from __future__ import annotations

import asyncio
import base64

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, JournalChange, LabelSelector, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL, MIB = "a/journal", 1 << 20
KEY = base64.b64encode(b"ab" * 16).decode()


def spec():
    return journal_spec(JOURNAL, length=64 * MIB, codec=CompressionCodec.SNAPPY)


def labels(**named):
    return LabelSet.of(**named).to_pb()


@pytest.fixture
async def broker(cluster):
    broker = await cluster.start()
    await cluster.apply(cluster.stub(broker), spec())
    return broker


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


@pytest.fixture
async def whole_at():
    """Calls of a broker, with bytes or with the fields of a request."""
    channels = []

    def at(broker):
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{broker.port}")
        channels.append(channel)
        call = channel.unary_unary("/gazette_platform.Admin/AppendWhole")

        async def whole(raw=None, **fields):
            request = pb.AppendRequest(journal=JOURNAL, **fields).SerializeToString()
            async with asyncio.timeout(patient(60)):
                answer = await call(request if raw is None else raw)
            return pb.AppendResponse.FromString(answer)

        return whole

    yield at
    for channel in channels:
        await channel.close()


@pytest.fixture
async def whole(whole_at, broker):
    return whole_at(broker)


async def test_the_answer_is_that_of_a_stream(stub, whole):
    streamed = await append(stub, JOURNAL, b"same")
    answer = await whole(content=b"same")
    assert (answer.commit.begin, answer.commit.end) == (4, 8)
    streamed.commit.begin, streamed.commit.end = 4, 8
    assert answer == streamed
    assert (answer.total_chunks, answer.delayed_chunks) == (2, 0)
    assert await read_all(stub, JOURNAL) == b"samesame"


async def test_conditions_and_effects(stub, whole):
    answer = await whole(content=b"a", union_registers=labels(key="v"))
    assert answer.registers == labels(key="v")
    mismatch = await whole(content=b"b", check_registers=LabelSelector.parse("key=other").to_pb())
    assert (mismatch.status, mismatch.registers) == (pb.REGISTER_MISMATCH, labels(key="v"))
    empty = await whole(check_registers=LabelSelector.parse("key=v").to_pb())
    assert (empty.status, empty.commit.end, empty.total_chunks) == (pb.OK, 1, 1)
    with pytest.raises(grpc.aio.AioRpcError, match="requires non-empty Append"):
        await whole(subtract_registers=labels(key="v"))
    assert not (await whole(content=b"c", subtract_registers=labels(key="v"))).registers.labels
    assert (await whole(content=b"d", offset=7)).status == pb.WRONG_APPEND_OFFSET
    assert (await whole(content=b"d", offset=2)).status == pb.OK
    assert await read_all(stub, JOURNAL) == b"acd"


@pytest.mark.parametrize(
    ("raw", "code", "text"),
    [
        (b"\xff\xff", grpc.StatusCode.INTERNAL, "Append: malformed message"),
        (
            pb.AppendRequest(journal="/invalid", content=b"x").SerializeToString(),
            grpc.StatusCode.UNKNOWN,
            "Journal: cannot begin with '/' (/invalid)",
        ),
    ],
    ids=["malformed", "invalid"],
)
async def test_malformed_appends_are_refused(whole, raw, code, text):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await whole(raw)
    assert caught.value.code() is code
    assert text in caught.value.details()


async def test_another_broker_forwards_it(cluster, stub, whole_at):
    whole = whole_at(await cluster.start(journal_limit=0))
    answer = await whole(content=b"one")
    assert (answer.status, answer.commit.end) == (pb.OK, 3)
    assert (await whole(content=b"two", offset=7)).status == pb.WRONG_APPEND_OFFSET
    assert await read_all(stub, JOURNAL) == b"one"


def counted(broker, name, **labels):
    """A counter of a broker, of the labels that it has; 0 if it was never counted."""
    found = 0.0
    for line in broker._context.metrics.exposition().decode().splitlines():
        key, _, value = line.rpartition(" ")
        if key.startswith(f"{name}{{") and all(f'{k}="{v}"' in key for k, v in labels.items()):
            found += float(value)
    return found


async def test_it_counts_as_an_append(broker, whole):
    statuses = ("ok", "error", "WRONG_APPEND_OFFSET")

    def counts():
        name = "gazette_journal_server_completed_totals"
        return [counted(broker, name, operation="Append", status=each) for each in statuses]

    def started():
        return counted(broker, "gazette_journal_server_started_totals", operation="Append")

    before, started_before = counts(), started()
    await whole(content=b"x")
    await whole(content=b"x", offset=7)
    with pytest.raises(grpc.aio.AioRpcError):
        await whole(b"\xff\xff")
    assert counts() == [each + 1 for each in before]
    assert started() == started_before + 3


async def test_it_needs_a_token_as_an_append_does(cluster, whole_at):
    broker = await cluster.start(auth_keys=KEY)
    async with AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=KEY)) as client:
        await client.apply([JournalChange(spec(), revision=0)])
        for _ in range(2):  # the second one goes whole
            await client.append(JOURNAL, b"x")
        assert await client.read(JOURNAL).read() == b"xx"
    for raw in (None, b"\xff\xff"):  # nothing of a stranger is looked at
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await whole_at(broker)(raw, content=b"y")
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_clients_take_it_once_they_are_connected(broker):
    def counts():
        name, methods = "grpc_server_handled_total", ("Append", "AppendWhole")
        return [counted(broker, name, grpc_method=each, grpc_code="OK") for each in methods]

    streams, wholes = counts()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        for _ in range(3):
            await client.append(JOURNAL, b"x")
        await client.append(JOURNAL, b"x" * MIB)
    assert counts() == [streams + 2, wholes + 2]
