"""What clients can do to a server over a socket: floods, hostile bytes, silence, and taking nothing."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import replace

import pytest
from h2_server_bench import Bench
from http2_bench import START, block, frames_of, headers, message

from gazette_platform.serving.h2.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LIMITS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    frame,
    settings,
    window_update,
)
from gazette_platform.testing.waiting import eventually, patient, stays

SERVED = headers(path=b"/test.Echo/Unary") + frame(DATA, END_STREAM, 1, message(b"hi"))


class Wire:
    """A client of bytes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.heard = b""

    async def send(self, *pieces):
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()

    async def hear(self, *, until=lambda _: False, limit_s=10.0):
        """Read until a frame satisfies `until`, or the server closes."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(patient(limit_s)):
                while not any(map(until, frames_of(self.heard))):
                    raw = await self.reader.read(1 << 16)
                    if not raw:
                        break
                    self.heard += raw
        return frames_of(self.heard)


@contextlib.asynccontextmanager
async def wire_to(bench):
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def is_end(each):
    return each.kind == HEADERS and bool(each.flags & END_STREAM)


async def is_served(bench):
    async with wire_to(bench) as wire:
        await wire.send(START + SERVED)
        heard = await wire.hear(until=is_end)
    return any(each.kind == DATA and each.payload == message(b"hi") for each in heard)


HOSTILE = {
    "no preface": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(1000),
    "a cut frame": START + SERVED[:20],
    "frame of 2 MiB": START + headers() + frame(DATA, 1, 1, bytes(2 << 20)),
    "HPACK bomb": START + frame(HEADERS, 4, 1, block()) + frame(HEADERS, 4, 3, b"\xbe" * 16_000),
    "CONTINUATION flood": START + frame(HEADERS, 0, 1, block()) + frame(9, 0, 1) * 100_000,
    "SETTINGS flood": START + frame(SETTINGS, 0, 0) * 50_000,
    "PING flood": START + frame(PING, 0, 0, b"12345678") * 50_000,
    "rapid reset": START
    + b"".join(headers(n) + frame(RST_STREAM, 0, n, bytes(4)) for n in range(1, 20_000, 2)),
    "20,000 open streams": START + b"".join(headers(n) for n in range(1, 40_000, 2)),
    "compressed message": START + headers() + frame(DATA, 1, 1, message(b"hi", compressed=1)),
    "message of 2 GiB": START + headers() + frame(DATA, 0, 1, struct.pack(">BI", 0, 1 << 31)),
    "end within a message": START + headers() + frame(DATA, 1, 1, message(b"hello")[:-2]),
    "path not UTF-8": START + headers(path=b"/\xff\xfe") + frame(DATA, 1, 1, message(b"")),
    "metadata not UTF-8": START + headers(1, (b"a", b"\xff")) + frame(DATA, 1, 1, message(b"")),
    "deadline of 20 digits": START + headers(1, (b"grpc-timeout", b"9" * 20 + b"H")),
    "deadline of 10,000 years": START
    + headers(1, (b"grpc-timeout", b"99999999H"), path=b"/test.Echo/Wait")
    + frame(DATA, 1, 1, message(b"")),
    "windows of 0": START + settings({4: 0}) * 10 + SERVED,
    "window overflow": START + window_update(0, (1 << 31) - 1) * 2,
    "byte by byte": None,
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
async def test_hostile_bytes_harm_only_their_connection(raw, caplog):
    async with Bench() as bench:
        async with wire_to(bench) as wire:
            if raw is None:
                await wire.send(*(bytes((byte,)) for byte in START + SERVED))
                assert any(map(is_end, await wire.hear(until=is_end)))
            else:
                await wire.send(raw)
            assert await is_served(bench)
        await eventually(lambda: not bench.shared.connections)
        await eventually(lambda: not bench.shared.tasks)
    # The test runs in the loop of the server, and a busy machine stops both.
    assert not [one for one in caplog.messages if "the event loop was blocked" not in one]


async def test_goaway_names_the_fault_before_the_connection_closes():
    async with Bench() as bench, wire_to(bench) as wire:
        await wire.send(START + frame(PING, 0, 1, bytes(8)))
        heard = await wire.hear()
        assert [each.code for each in heard if each.kind == GOAWAY] == [1]
        assert b"PING on stream 1" in heard[-1].payload
        await eventually(lambda: not bench.shared.connections)


async def test_connection_that_never_speaks_is_dropped():
    limits = replace(LIMITS, handshake_s=0.2, ping_every_s=0.4)
    async with Bench(limits=limits) as bench, wire_to(bench) as wire:
        heard = await wire.hear()
        assert [each.kind for each in heard] == [SETTINGS, WINDOW_UPDATE]


async def test_silent_client_is_pinged_and_dropped():
    limits = replace(LIMITS, ping_every_s=0.2, ping_timeout_s=0.4)
    async with Bench(limits=limits) as bench, wire_to(bench) as wire:
        await wire.send(START + headers(path=b"/test.Echo/Wait") + frame(DATA, 1, 1, message(b"")))
        heard = await wire.hear()
        assert heard[-1].kind == PING
        await eventually(lambda: bench.echo.cancelled)


async def test_client_that_answers_within_a_tick_of_the_clock_stays(monkeypatch):
    loop = asyncio.get_running_loop()
    exact = loop.time
    monkeypatch.setattr(loop, "time", lambda: exact() // 0.1 * 0.1)  # uvloop's has milliseconds
    limits = replace(LIMITS, ping_every_s=0.2, ping_timeout_s=0.2)
    async with Bench(limits=limits) as bench, wire_to(bench) as wire:
        await wire.send(START)
        for number in range(1, 6):

            def is_next(_, number=number):
                return sum(each.kind == PING for each in frames_of(wire.heard)) >= number

            heard = await wire.hear(until=is_next)
            assert sum(each.kind == PING for each in heard) >= number
            await wire.send(frame(PING, 1, 0, heard[-1].payload))
        assert bench.shared.connections


async def test_client_that_answers_pings_stays():
    limits = replace(LIMITS, ping_every_s=0.2, ping_timeout_s=0.4)
    async with Bench(limits=limits) as bench, wire_to(bench) as wire:
        await wire.send(START)
        for number in range(1, 5):

            def is_next(_, number=number):
                return sum(each.kind == PING for each in frames_of(wire.heard)) >= number

            heard = await wire.hear(until=is_next)
            ping = [each for each in heard if each.kind == PING][-1]
            await wire.send(frame(PING, 1, 0, ping.payload))
        assert bench.shared.connections


async def test_client_that_is_not_read_is_not_expected_to_answer_pings():
    async with Bench() as bench, wire_to(bench) as wire:
        await wire.send(START)
        await eventually(lambda: any(each.is_greeted for each in bench.shared.connections))
        (connection,) = bench.shared.connections
        now = asyncio.get_running_loop().time()
        connection.hold(is_held=True)
        for minutes in range(1, 5):
            connection.sweep(now + 60 * minutes)
        assert not connection._pinged_at
        connection.hold(is_held=False)
        connection.sweep(now + 600)
        assert connection._pinged_at


def paused(bench):
    """The connections that have enough to write."""
    return [each for each in bench.shared.connections if each.is_paused]


async def ask_for_much(wire, *, calls):
    """Ask for a megabyte by each call, without a limit of what may be sent."""
    ask = b"".join(
        headers(number, path=b"/test.Echo/Download")
        + frame(DATA, END_STREAM, number, message(b"100 10000"))
        for number in range(1, 2 * calls, 2)
    )
    grant = settings({4: (1 << 31) - 1}) + window_update(0, (1 << 30))
    wire.writer.write(START + grant + ask)


async def take(wire, total):
    async with asyncio.timeout(patient(20)):
        while total > 0:
            total -= len(await wire.reader.read(1 << 20))


async def test_client_that_takes_nothing_is_not_read():
    """Its requests must not pile up, nor the answers to its pings."""
    async with Bench() as bench, wire_to(bench) as wire:
        await ask_for_much(wire, calls=100)
        await eventually(lambda: paused(bench))
        (connection,) = paused(bench)
        wire.writer.write(frame(PING, 0, 0, bytes(8)) * 9_000)
        await stays(lambda: connection.out_bytes < 1 << 20 and connection.is_paused, for_s=0.5)
        assert not connection._transport.is_reading()

        await take(wire, 100 * 100 * 10_000)
        await eventually(connection._transport.is_reading)


async def test_client_that_takes_what_is_sent_counts_as_alive():
    async with Bench() as bench, wire_to(bench) as wire:
        await ask_for_much(wire, calls=20)
        await eventually(lambda: paused(bench))
        (connection,) = paused(bench)
        alive_at = connection._alive_at
        await take(wire, 20 * 100 * 10_000)
        await eventually(lambda: connection._alive_at > alive_at)


async def test_connection_that_is_made_while_the_server_stops_takes_no_calls():
    """As when a handshake of TLS takes longer than the drain of others."""
    async with Bench() as bench:
        bench.shared.is_stopping = True
        async with wire_to(bench) as wire:
            await wire.send(START)
            heard = await wire.hear(until=lambda each: each.kind == GOAWAY)
            assert [each.code for each in heard if each.kind == GOAWAY] == [ErrorCode.NO_ERROR]


DOWNLOADS = 8


def downloads(asked, *, window):
    """Begin calls whose streams have any room; the connection has `window` more."""
    room = settings({Setting.INITIAL_WINDOW_SIZE: 1 << 30, Setting.MAX_FRAME_SIZE: 1 << 20})
    pieces = [PREFACE, room, window_update(0, window)]
    for number in range(DOWNLOADS):
        stream_id = 2 * number + 1
        request = frame(DATA, END_STREAM, stream_id, message(asked))
        pieces += (headers(stream_id, path=b"/test.Echo/Download"), request)
    return b"".join(pieces)


async def test_calls_that_wait_for_room_take_turns():
    sizes = dict.fromkeys(range(1, 2 * DOWNLOADS, 2), 0)
    async with Bench() as bench, wire_to(bench) as wire:
        await wire.send(downloads(b"10 200000", window=1))
        while sum(sizes.values()) < 2_000_000:
            head = await wire.reader.readexactly(9)
            payload = await wire.reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == DATA:
                sizes[int.from_bytes(head[5:], "big")] += len(payload)
                await wire.send(window_update(0, len(payload)))
    assert min(sizes.values()) > 100_000


async def test_handler_that_waits_for_nothing_sends_no_more_than_is_taken():
    async with Bench() as bench, wire_to(bench) as wire:
        await wire.send(downloads(b"1000 100000", window=1 << 30))
        await eventually(lambda: bench.echo.begun == DOWNLOADS)
        (connection,) = bench.shared.connections
        await eventually(lambda: len(connection.blocked) == DOWNLOADS)
        assert connection._transport.get_write_buffer_size() < 4 << 20


async def test_unread_bytes_of_a_process_are_bounded():
    """A call whose handler waits holds its messages; connections that bring more are not read."""
    limits = replace(LIMITS, process_bytes=8 << 20, squeeze_s=3600.0)
    bench = Bench(limits=limits)

    async def hold(first, content, metadata):
        await bench.echo.gate.wait()
        return await bench.echo.upload(first, content, metadata)

    bench.server._shared.methods[b"/test.Echo/Upload"] = replace(
        bench.server._shared.methods[b"/test.Echo/Upload"], handler=hold
    )
    body = message(bytes(1 << 20))
    chunk = [body[at : at + 16_000] for at in range(0, len(body), 16_000)]

    async def fill(wire):
        wire.writer.write(START)
        for number in range(1, 9, 2):
            wire.writer.write(headers(number, path=b"/test.Echo/Upload"))
            for _ in range(3):
                for piece in chunk:
                    wire.writer.write(frame(DATA, 0, number, piece))
                await wire.writer.drain()

    async with bench, contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(wire_to(bench)) for _ in range(6)]
        filling = [asyncio.ensure_future(fill(wire)) for wire in wires]  # noqa: TID251
        await eventually(lambda: bench.shared.budget._waiting)

        def held():
            return sum(each.unread for each in bench.shared.connections)

        assert 6 * 12 << 20 > held() > 8 << 20
        await stays(lambda: held() < 20 << 20, for_s=0.5)
        bench.echo.gate.set()
        await asyncio.gather(*filling)
        await eventually(lambda: held() < 2 << 20)
        assert not bench.shared.budget._waiting


async def test_connection_that_stands_still_loses_its_largest_call():
    limits = replace(LIMITS, connection_bytes=1 << 20, squeeze_s=0.3, stall_s=1.0)
    bench = Bench(limits=limits)

    async def hold(first, content, metadata):
        await bench.echo.gate.wait()
        return b""

    methods = bench.server._shared.methods
    methods[b"/test.Echo/Upload"] = replace(methods[b"/test.Echo/Upload"], handler=hold)
    async with bench, wire_to(bench) as wire:
        await wire.send(START)
        for number, size in ((1, 300_000), (3, 700_000)):
            raw = message(bytes(size))
            await wire.send(
                headers(number, path=b"/test.Echo/Upload"), frame(DATA, 0, number, message(b""))
            )
            await wire.send(
                *(
                    frame(DATA, 0, number, raw[at : at + 16_000])
                    for at in range(0, size + 5, 16_000)
                )
            )
        heard = await wire.hear(until=is_end)
        (last,) = [each for each in heard if is_end(each)]
        assert last.stream == 3
        assert b"this process holds too many messages" in last.payload
        assert {call.id for c in bench.shared.connections for call in c.streams.values()} == {1}


async def test_loop_that_was_blocked_is_logged_and_peers_are_spared(caplog):
    limits = replace(LIMITS, ping_every_s=0.2, ping_timeout_s=0.4)
    async with Bench(limits=limits) as bench, wire_to(bench) as wire:
        await wire.send(START)
        await wire.hear(until=lambda each: each.kind == PING)
        (connection,) = bench.shared.connections
        bench.shared.swept_at -= 10.0  # as if the sweep were late by so much
        connection._pinged_at -= 10.0
        bench.server._sweep()
        assert "the event loop was blocked for" in caplog.text
        assert connection._transport is not None
        assert not connection._transport.is_closing()
