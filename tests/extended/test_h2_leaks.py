"""Our server gives back what callers of every kind made it hold, and holds no more than its limits say."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys

import pytest
from h2_server_bench import SERVICE
from h2_server_process import MIB, ServerProcess, open_channel
from http2_bench import START, headers, message

from gazette_platform.ops.process import resident_bytes
from gazette_platform.serving.h2.frames import DATA, WINDOW_UPDATE, frame, settings
from gazette_platform.serving.interface import Kind, RpcFailed
from gazette_platform.testing.fault_proxy import FaultProxy
from gazette_platform.testing.waiting import eventually, pass_time, patient

pytestmark = pytest.mark.timeout(patient(300))


def path(name):
    return f"/{SERVICE}/{name}"


@pytest.fixture
async def start():
    async with contextlib.AsyncExitStack() as stack:

        async def start(**limits):
            return await stack.enter_async_context(ServerProcess(**limits))

        yield start


@pytest.fixture
async def open_many():
    channels = []

    def open_many(target, count, **settings):
        channels.extend(open_channel(target, **settings) for _ in range(count))
        return channels[-count:]

    yield open_many
    await asyncio.gather(*(channel.close() for channel in channels))


class Raw:
    """A connection that says what a test writes. It answers nothing, and reads if it is asked to."""

    def __init__(self, port):
        self.port = port

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4096)
        return self

    async def __aexit__(self, *exc_info):
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def send(self, raw):
        """Write all of it, however long it takes; False: the server has closed."""
        try:
            self.writer.write(raw)
            await self.writer.drain()
        except OSError:
            return False
        return not self.writer.transport.is_closing()


# ----------------------------------------------------------------------------------------- calls
async def call_many(channels, count):
    left = iter(range(count))

    async def work(channel):
        for number in left:
            request = b"%d" % number
            call = channel.call(path("Unary"), Kind.UNARY, request=request)
            assert await call.answer() == request

    await asyncio.gather(*(work(channel) for channel in channels for _ in range(16)))


@pytest.mark.timeout(patient(600))
async def test_million_calls_leave_nothing(start, open_many):
    server = await start()
    channels = open_many(server.address, 4)
    await call_many(channels, 20_000)
    server.before = await server.state()
    mine = resident_bytes()
    await call_many(channels, 1_000_000)
    await server.at_rest(growth_mib=8)
    assert resident_bytes() - mine < 8 * MIB
    assert not any(link.streams for channel in channels for link in channel._links)


@pytest.mark.parametrize("has_deadline", [False, True])
async def test_hundred_thousand_resets_leave_nothing(start, open_many, has_deadline):
    server = await start()
    timeout_s = 60.0 if has_deadline else None
    for _ in range(5):
        for channel in open_many(server.address, 10):
            await channel.call(path("Unary"), Kind.UNARY, request=b"").answer()
            calls = [
                channel.call(path("Wait"), Kind.UNARY, request=b"x", timeout_s=timeout_s)
                for _ in range(2_000)  # as many as are forgiven in a second
            ]
            for call in calls:
                call.cancel()
            await channel.call(path("Unary"), Kind.UNARY, request=b"").answer()
            await channel.close()
    for channel in open_many(server.address, 5):  # calls that are older may all be cancelled
        calls = [channel.call(path("Wait"), Kind.UNARY, request=b"x") for _ in range(10_000)]
        await channel.call(path("Unary"), Kind.UNARY, request=b"").answer()
        await pass_time(1.5)
        for call in calls:
            call.cancel()
        await channel.call(path("Unary"), Kind.UNARY, request=b"").answer()
        await channel.close()
    await server.at_rest()


# ------------------------------------------------------------------------- callers that stand still
async def test_stalled_readers_are_ended_and_leave_nothing(start):
    server = await start(stall_s=1.0)
    ask = frame(DATA, 1, 1, message(b"1000 1000000"))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(50):
            raw = await stack.enter_async_context(Raw(server.port))
            raw.reader._transport.pause_reading()
            assert await raw.send(START + headers(1, path=b"/test.Echo/Download") + ask)
        await eventually_less(server, "tasks")
    await server.at_rest()


async def test_writers_that_stop_are_ended_and_leave_nothing(start):
    server = await start(stall_s=1.0)
    half = frame(DATA, 0, 1, message(bytes(2 * MIB))[:MIB])
    async with contextlib.AsyncExitStack() as stack:
        for path in (b"/test.Echo/Unary", b"/test.Echo/Upload"):
            for _ in range(50):
                raw = await stack.enter_async_context(Raw(server.port))
                assert await raw.send(START + headers(1, path=path) + half)
        await eventually_less(server, "unread")
    await server.at_rest()


async def eventually_less(server, what):
    """Wait until there is some of it, and then until there is no more than at first."""

    async def has(is_more):
        return ((await server.state(is_tidy=False))[what] > server.before[what]) is is_more

    await eventually(lambda: has(True), what=f"no {what}")
    await eventually(lambda: has(False), timeout_s=30.0, what=f"{what} stay")


CALLER = """
import asyncio, sys
from h2_server_process import Kind, open_channel

async def main():
    channels = [open_channel(sys.argv[1]) for _ in range(20)]
    calls = [c.call("/test.Echo/Wait", Kind.UNARY, request=b"x") for c in channels for _ in range(50)]
    for channel in channels:
        await channel.call("/test.Echo/Unary", Kind.UNARY, request=b"").answer()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_caller_that_is_stopped_is_given_up(start):
    server = await start(ping_every_s=0.5, ping_timeout_s=1.0)
    caller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALLER, server.address, stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    try:
        assert await caller.stdout.readline() == b"ready\n"
        assert (await server.state())["streams"] >= 1000
        await pass_time(2.0)
        assert (await server.state())["streams"] >= 1000, "a caller that answers pings is kept"
        caller.send_signal(signal.SIGSTOP)
        await server.at_rest()
    finally:
        caller.kill()
        await caller.communicate()


async def test_callers_whose_packets_vanish_are_given_up(start, open_many):
    server = await start(ping_every_s=0.5, ping_timeout_s=1.0)
    async with FaultProxy("127.0.0.1", server.port) as proxy:
        target = proxy.address.removeprefix("http://")
        channels = open_many(target, 20, ping_every_s=0.5, ping_timeout_s=1.0)
        calls = [
            channel.call(path("Wait"), Kind.UNARY, request=b"x")
            for channel in channels
            for _ in range(50)
        ]
        for channel in channels:
            await channel.call(path("Unary"), Kind.UNARY, request=b"").answer()
        proxy.black_hole()
        await server.at_rest()
        for call in calls:
            with pytest.raises(RpcFailed, match="ping timeout"):
                await call.answer()
        assert not any(channel._links for channel in channels)


# ----------------------------------------------------------------------------------------- floods
ROOM = 4 * MIB - 16_384  # of a stream


def pieces(body, size):
    """Frames with this body, for any stream."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def large_messages(stream):
    body = message(bytes(MIB - 5))
    return b"".join(frame(DATA, 0, stream, piece) for piece in pieces(body, 16_384)) * 3


def tiny_messages(stream):
    return frame(DATA, 0, stream, message(b"ab") * 2340) * (ROOM // 16_380)


def tiny_frames(stream):
    return frame(DATA, 0, stream, message(bytes(7 * MIB))[:1000]) + frame(
        DATA, 0, stream, b"ab"
    ) * (MIB // 2)


FLOODS = {
    "large messages": large_messages,
    "tiny messages": tiny_messages,
    "tiny frames": tiny_frames,
}


async def flood(port, make, *, connections, for_s):
    """Fill all streams that a connection has room for; nothing is taken."""
    numbers = range(1, 33, 2)
    opening = START + b"".join(
        headers(number, path=b"/test.Echo/Hold") + frame(DATA, 0, number, message(b"first"))
        for number in numbers
    )
    bodies = [make(number) for number in numbers]

    async def fill(raw):
        await raw.send(opening)
        for body in bodies:
            if not await raw.send(body):
                break

    async with contextlib.AsyncExitStack() as stack:
        filling = [fill(await stack.enter_async_context(Raw(port))) for _ in range(connections)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await asyncio.gather(*filling)
                await pass_time(for_s)


async def test_memory_of_one_connection_is_bounded(start):
    server = await start()
    made = flood(server.port, large_messages, connections=1, for_s=patient(2.0))
    assert 32 < await server.watch(made) < 64 + 32
    await server.at_rest()


@pytest.mark.parametrize("make", FLOODS.values(), ids=FLOODS)
async def test_memory_is_bounded_while_unread_messages_flood_in(start, make):
    server = await start(process_bytes=64 * MIB)
    # Less than `squeeze_s`, after which the server ends calls, those of the watch among them.
    made = flood(server.port, make, connections=8, for_s=min(patient(5.0), 8.0))
    grown = await server.watch(made)
    # What the process counts, a read of each connection, and what the allocator keeps.
    assert grown < 2 * 64 + 32
    await server.at_rest()


async def test_memory_is_bounded_while_open_calls_have_much_metadata(start):
    server = await start(process_bytes=64 * MIB)

    async def fill():
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                raw = await stack.enter_async_context(Raw(server.port))
                await raw.send(START)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patient(3.0)):
                        for number in range(1, 20_000, 2):
                            more = (b"x-a", b"%d" % number + b"a" * 15_000)
                            await raw.send(headers(number, more, path=b"/test.Echo/Hold"))

    grown = await server.watch(fill())
    assert grown < 2 * 64 + 32
    await server.at_rest()


async def test_memory_is_bounded_while_answers_are_not_read(start):
    """A server that cannot write reads nothing, so what it has to answer does not pile up."""
    server = await start()
    asks = b"".join(
        headers(number, end=False, path=b"/test.Echo/Unary")
        + frame(DATA, 1, number, message(bytes(16_000)))
        for number in range(1, 20_001, 2)
    )
    opening = START + settings({4: (1 << 31) - 1}) + frame(WINDOW_UPDATE, 0, 0, b"\x7f\0\0\0")

    async def ask(raw):
        raw.reader._transport.pause_reading()
        await raw.send(opening + asks)

    async def flood_asks():
        async with contextlib.AsyncExitStack() as stack:
            raws = [await stack.enter_async_context(Raw(server.port)) for _ in range(8)]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patient(3.0)):
                    await asyncio.gather(*map(ask, raws))

    assert await server.watch(flood_asks()) < 64
    await server.at_rest()
