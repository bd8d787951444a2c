import asyncio
import threading
from contextlib import asynccontextmanager

import grpc
import pytest

from gazette_platform.client import AsyncClient, Client, ClientConfig
from gazette_platform.errors import (
    FragmentStoreUnhealthy,
    IndexHasGreaterOffset,
    JournalNotFound,
    NotAllowed,
    RegisterMismatch,
    Suspended,
    ValidationError,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.fake_broker import FakeBroker, Fault


async def wait_for(awaitable):
    return await awaitable


@asynccontextmanager
async def connected(**config):
    async with FakeBroker() as broker:
        broker.journal("a/journal")
        async with AsyncClient(ClientConfig(address=broker.address, **config)) as client:
            yield broker, client


async def test_as1_many_writes_become_few_appends_in_order():
    async with connected() as (broker, client):
        async with client.append_writer("a/journal") as writer:
            tickets = [await writer.write(b"%06d\n" % n) for n in range(5000)]
        assert broker.journals["a/journal"].content == b"".join(b"%06d\n" % n for n in range(5000))
        assert broker.calls["Append"] < 10
        assert [await t for t in tickets[:2]] == [(0, 7), (7, 14)]
        assert tickets[4999].span() == (34993, 35000)


async def test_as1_writes_gather_while_an_append_is_under_way():
    async with connected() as (broker, client):
        writer = client.append_writer("a/journal")
        first = await writer.write(b"one")
        await asyncio.sleep(0)  # the first append starts with what is there
        later = [await writer.write(b"x") for _ in range(10)]
        assert await first == (0, 3)
        assert await later[-1] == (12, 13)
        assert broker.append_sizes == [3, 10]
        await writer.close()


async def test_as1_writer_retries_and_keeps_order():
    async with connected() as (broker, client):
        broker.fail(
            "Append",
            Fault(code=grpc.StatusCode.UNKNOWN, details="recv from peer"),
            Fault(status=pb.INSUFFICIENT_JOURNAL_BROKERS),
        )
        async with client.append_writer("a/journal") as writer:
            await writer.write(b"a")
            await writer.write(b"b")
        assert broker.journals["a/journal"].content == b"ab"
        assert broker.calls["Append"] == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (pb.JOURNAL_NOT_FOUND, JournalNotFound),
        (pb.NOT_ALLOWED, NotAllowed),
        (pb.INDEX_HAS_GREATER_OFFSET, IndexHasGreaterOffset),
        (pb.REGISTER_MISMATCH, RegisterMismatch),
        (pb.SUSPENDED, Suspended),
        (pb.FRAGMENT_STORE_UNHEALTHY, FragmentStoreUnhealthy),
    ],
)
async def test_as6_terminal_error_ends_the_writer(status, error):
    async with connected() as (broker, client):
        broker.fail("Append", Fault(status=status))
        writer = client.append_writer("a/journal")
        first = await writer.write(b"a")
        await asyncio.sleep(0)
        second = await writer.write(b"b")
        for wait in (first, second, writer.flush(), writer.write(b"c"), writer.close()):
            with pytest.raises(error):
                await wait
        assert broker.calls["Append"] == 1
        assert writer.buffered_bytes == 0


async def test_as3_batches_end_at_their_bound_and_writes_stay_whole():
    async with connected() as (broker, client):
        writer = client.append_writer("a/journal", batch_bytes_max=10)
        await writer.write(b"0000")
        await asyncio.sleep(0)  # the first append starts with what is there
        for n in range(1, 8):
            await writer.write(b"%d" % n * 4)
        await writer.close()
        # The write that reaches the bound is the last of its batch.
        assert broker.append_sizes == [4, 12, 12, 4]
        assert broker.journals["a/journal"].content == b"".join(b"%d" % n * 4 for n in range(8))


@pytest.mark.parametrize("steps", range(12))
async def test_as4_a_write_that_comes_as_the_last_append_ends_is_appended(steps):
    """At whatever moment: the task that appends ends with the last batch, and is started again."""
    async with connected() as (broker, client):
        writer = client.append_writer("a/journal")
        for n in range(5):
            ticket = await writer.write(b"%d" % n)
            done = asyncio.Event()
            ticket.add_done_callback(done.set)
            if n % 2:
                await done.wait()
            for _ in range(steps):
                await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await ticket == (4, 5)
            await writer.close()
        assert broker.journals["a/journal"].content == b"01234"


async def test_full_buffer_holds_writers_up():
    async with connected() as (broker, client):
        writer = client.append_writer("a/journal", buffer_bytes_max=10, batch_bytes_max=4)
        for _ in range(50):
            await writer.write(b"12345")
            assert writer.buffered_bytes <= 15
        await writer.close()
        assert len(broker.journals["a/journal"].content) == 250


async def test_cancelled_waiter_does_not_end_the_append():
    async with connected() as (_broker, client):
        writer = client.append_writer("a/journal")
        ticket = await writer.write(b"a")
        waiter = asyncio.get_running_loop().create_task(wait_for(ticket))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await writer.flush()
        assert ticket.span() == (0, 1)


async def test_closed_writer_and_empty_writes_are_refused():
    async with connected() as (_, client):
        writer = client.append_writer("a/journal")
        with pytest.raises(ValidationError, match="nothing to write"):
            await writer.write(b"")
        await writer.close()
        await writer.close()
        with pytest.raises(ValidationError, match="writer is closed"):
            await writer.write(b"a")


async def test_as5_closing_the_client_fails_what_was_not_appended():
    async with connected() as (broker, client):
        broker.fail("Append", Fault(stall=True))
        writer = client.append_writer("a/journal")
        first = await writer.write(b"a")
        await asyncio.sleep(0.01)
        second = await writer.write(b"b")
        await client.close()
        with pytest.raises(ValidationError, match="outcome is unknown"):
            await first
        with pytest.raises(ValidationError, match="client was closed"):
            await second
        with pytest.raises(ValidationError, match="client was closed"):
            await writer.write(b"c")


async def test_threads_share_a_synchronous_writer():
    async with FakeBroker() as broker:
        broker.journal("a/journal")

        def run():
            with Client(ClientConfig(address=broker.address)) as client:
                spans = []
                with client.append_writer("a/journal", buffer_bytes_max=1000) as writer:

                    def produce(name):
                        tickets = [writer.write(b"%d-%03d\n" % (name, n)) for n in range(200)]
                        spans.extend(ticket.result(5) for ticket in tickets)

                    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                return spans

        spans = await asyncio.to_thread(run)
        lines = bytes(broker.journals["a/journal"].content).splitlines()
        assert len(lines) == 800
        assert sorted(spans) == [(n * 6, n * 6 + 6) for n in range(800)]
        for name in range(4):
            mine = [line for line in lines if line.startswith(b"%d-" % name)]
            assert mine == sorted(mine)


async def test_synchronous_writer_reports_its_error_once_and_for_all():
    async with FakeBroker() as broker:

        def run():
            with Client(ClientConfig(address=broker.address)) as client:
                writer = client.append_writer("no/journal")
                ticket = writer.write(b"a")
                with pytest.raises(JournalNotFound):
                    ticket.result(5)
                for call in (writer.flush, writer.close, lambda: writer.write(b"b")):
                    with pytest.raises(JournalNotFound):
                        call()

        await asyncio.to_thread(run)
