import array
import asyncio
import itertools
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import grpc
import pytest

from gazette_platform.client import AsyncClient, Client, ClientConfig
from gazette_platform.client.write import append_queue
from gazette_platform.errors import (
    FragmentStoreUnhealthy,
    GazetteError,
    IndexHasGreaterOffset,
    JournalNotFound,
    NotAllowed,
    RegisterMismatch,
    Suspended,
    TransportError,
    ValidationError,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.h2.client_call import ClientCall
from gazette_platform.testing.waiting import eventually, turns
from tests.benches.fake_broker import FakeBroker, Fault


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
        await turns()  # the first append starts with what is queued
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
        await turns()
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
        await turns()  # the first append starts with what is queued
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
            await turns(steps)
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


async def test_what_is_written_is_sent_while_more_is_written():
    """Though a writer whose buffer has room never has to wait."""
    async with connected() as (broker, client):
        async with client.append_writer("a/journal") as writer:
            for _ in range(400):
                await writer.write(bytes(100_000))
            assert broker.calls["Append"], "the buffer of 64 MiB is not full yet"
        assert len(broker.journals["a/journal"].content) == 40_000_000


async def test_cancelled_waiter_does_not_end_the_append():
    async with connected() as (_broker, client):
        writer = client.append_writer("a/journal")
        ticket = await writer.write(b"a")
        waiter = asyncio.get_running_loop().create_task(wait_for(ticket))
        await turns()
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
        await eventually(lambda: broker.calls["Append"] == 1)
        second = await writer.write(b"b")
        await client.close()
        with pytest.raises(TransportError, match="outcome is unknown") as unknown:
            await first
        assert unknown.value.may_be_applied
        with pytest.raises(ValidationError, match="client was closed") as behind:
            await second
        assert not behind.value.may_be_applied
        for later in (writer.flush(), writer.close()):
            with pytest.raises(TransportError, match="client was closed"):
                await later
        with pytest.raises(ValidationError, match="client was closed") as later:
            await writer.write(b"c")
        assert not later.value.may_be_applied


async def test_threads_share_a_synchronous_writer():
    async with FakeBroker() as broker:
        broker.journal("a/journal")

        def run():
            with Client(ClientConfig(address=broker.address)) as client:
                spans = []
                with client.append_writer("a/journal", buffer_bytes_max=1000) as writer:

                    def produce(name):
                        lines = [b"%d-%03d\n" % (name, n) for n in range(200)]
                        tickets = [writer.write(line) for line in lines]
                        spans.extend(
                            (*ticket.result(30), line)
                            for ticket, line in zip(tickets, lines, strict=True)
                        )

                    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                return spans

        spans = await asyncio.to_thread(run)
        content = bytes(broker.journals["a/journal"].content)
        lines = content.splitlines()
        assert len(lines) == 800
        assert len(spans) == 800
        assert all(content[begin:end] == line for begin, end, line in spans)
        for name in range(4):
            mine = [line for line in lines if line.startswith(b"%d-" % name)]
            assert mine == sorted(mine)


async def test_write_that_is_not_bytes_harms_no_other_thread():
    """It is refused, or taken as the bytes that it is now: what is gathered is joined later."""
    numbers = memoryview(array.array("I", [1, 2]))
    async with FakeBroker() as broker:
        broker.journal("a/journal")

        found = []

        def run():
            with (
                Client(ClientConfig(address=broker.address)) as client,
                client.append_service() as service,
            ):
                for writer in (client.append_writer("a/journal"), service.writer("a/journal")):
                    tickets = [writer.write(b"first;")]
                    for each in ("text", [1, 2], None, 7):
                        with pytest.raises(ValidationError, match="cannot be appended, but bytes"):
                            writer.write(each)
                    with pytest.raises(ValidationError, match="nothing to write"):
                        writer.write(bytearray())
                    changing = bytearray(b"changing;")
                    tickets += [writer.write(changing), writer.write(numbers)]
                    changing[:] = b"........;"
                    tickets.append(writer.write(b"last;"))
                    found.extend(ticket.result(30) for ticket in tickets)
                    writer.close()

        await asyncio.to_thread(run)
        content = bytes(broker.journals["a/journal"].content)
    pieces = [b"first;", b"changing;", numbers.tobytes(), b"last;"] * 2
    assert [content[begin:end] for begin, end in found] == pieces
    assert content == b"".join(pieces)


@pytest.mark.parametrize("method", ["send", "done_sending"])
async def test_append_whose_connection_breaks_is_made_again(monkeypatch, method):
    """Twice at most: the broker may have committed what it was not heard about."""
    faults = iter([False, True])
    original = getattr(ClientCall, method)

    async def broken(self, *args):
        await original(self, *args)
        if next(faults, False):
            self._connection.flush()
            self._connection.abort()

    async with connected() as (broker, client):
        await client.append("a/journal", b"zero ")
        monkeypatch.setattr(ClientCall, method, broken)
        async with asyncio.timeout(10), client.append_writer("a/journal") as writer:
            for word in (b"one ", b"two ", b"three"):
                await (await writer.write(word))
        assert next(faults, None) is None, "no connection broke"
        content = bytes(broker.journals["a/journal"].content)
        assert content in {
            b"zero one two three",
            b"zero one one two three",
            b"zero one two two three",
        }


@pytest.mark.parametrize("error", [RuntimeError("unforeseen"), MemoryError()], ids=repr)
async def test_unexpected_error_fails_every_ticket_and_ends_the_writer(monkeypatch, error):
    attempts = itertools.count(1)
    original = append_queue.append
    has_begun, more_is_written = asyncio.Event(), asyncio.Event()

    async def append(*args, **kwargs):
        if next(attempts) == 2:
            has_begun.set()
            await more_is_written.wait()
            raise error
        return await original(*args, **kwargs)

    async with connected() as (broker, client):
        monkeypatch.setattr(append_queue, "append", append)
        writer = client.append_writer("a/journal")
        assert await (await writer.write(b"one ")) == (0, 4)
        second = await writer.write(b"two ")
        await has_begun.wait()
        third = await writer.write(b"three ")
        more_is_written.set()
        async with asyncio.timeout(5):
            with pytest.raises(TransportError, match="outcome is unknown") as told:
                await second
            assert told.value.may_be_applied
            assert told.value.__cause__ is error
            with pytest.raises(TransportError, match="not appended") as behind:
                await third
            assert not behind.value.may_be_applied
            for later in (writer.flush(), writer.write(b"four"), writer.close()):
                with pytest.raises(TransportError, match="failed unexpectedly"):
                    await later
        assert writer.buffered_bytes == 0
        assert broker.journals["a/journal"].content == b"one "


async def test_closing_the_client_before_the_first_append_began_is_reported():
    """The task that appends is cancelled before its first step, and never runs."""
    async with connected() as (broker, client):
        writer = client.append_writer("a/journal")
        ticket = writer.write_nowait(b"a")
        await client.close()
        async with asyncio.timeout(5):
            for wait in (ticket, writer.flush(), writer.close()):
                with pytest.raises(ValidationError, match="before all was appended"):
                    await wait
        assert not broker.calls["Append"]


async def test_calls_that_a_closing_client_ends_are_errors_and_no_cancellations():
    async with connected() as (broker, client):
        broker.fail("Append", Fault(stall=True))
        broker.fail("List", Fault(stall=True))
        broker.fail("Read", Fault(stall=True))
        calls = [client.append("a/journal", b"a"), client.list(), anext(client.tail("a/journal"))]
        tasks = [asyncio.get_running_loop().create_task(call) for call in calls]
        await eventually(lambda: len(broker.calls) == len(tasks))
        await client.close()
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, GazetteError) for outcome in outcomes), outcomes
        assert outcomes[0].may_be_applied


async def test_content_that_raises_errors_of_grpcs_own_ends_the_append():
    """They are the caller's, and are not taken for those of the append itself."""

    async def pieces():
        yield b"x" * 600_000
        raise asyncio.InvalidStateError("of the caller")

    async with connected() as (broker, client):
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.InvalidStateError, match="of the caller"):
                await client.append("a/journal", pieces())
        assert broker.journals["a/journal"].content == b""


def test_forked_process_learns_that_its_client_does_not_work_there():
    """In a process of its own, because gRPC's threads here make forks unsafe."""
    program = (
        "import os, signal\n"
        "from gazette_platform.client import Client\n"
        "from gazette_platform.errors import ValidationError\n"
        "client = Client()\n"
        "writer = client.append_writer('a/journal')\n"
        "if (child := os.fork()) == 0:\n"
        "    signal.alarm(10)\n"
        "    for call in (lambda: writer.write(b'a'), writer.flush, client.list):\n"
        "        try:\n"
        "            call()\n"
        "        except ValidationError as err:\n"
        "            assert 'fork' in str(err), err\n"
        "        else:\n"
        "            os._exit(1)\n"
        "    client.close()\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "client.close()\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "0\n", found.stderr
