"""Our channel, as a client of our own server and of the gRPC library's; calls in one process are no different.

Long because it has all that a channel does when servers and connections fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest
from connect_proxy import pass_on
from grpc_core_bench import GrpcBench
from h2_server_bench import SERVICE, Bench
from local_bench import LocalBench

from gazette_platform.serving.auth import TlsMaterial, http2_client_context
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import (
    HEADERS,
    PEER_LIMITS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    ErrorCode as E,
    frame,
    goaway,
)
from gazette_platform.serving.interface import FELL_SILENT, Code, Condition, Kind, RpcFailed
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import block_for, eventually, patient, turns

DEADLINE_S = patient(20)


@pytest.fixture(params=[Bench, GrpcBench, LocalBench], ids=["ours", "grpc", "local"])
async def bench(request):
    async with request.param() as bench:
        yield bench


@pytest.fixture(params=[Bench, GrpcBench], ids=["ours", "grpc"])
async def server(request):
    async with request.param() as bench:
        yield bench


@pytest.fixture
async def ours():
    async with Bench() as bench:
        yield bench


@pytest.fixture
async def open_channel():
    channels = []

    def open_channel(target, tls=None, **settings):
        channels.append(Channel(target, dialing(**settings), tls))
        return channels[-1]

    async with asyncio.timeout(DEADLINE_S):
        yield open_channel
        for channel in channels:
            await channel.close()


def dialing(**settings):
    given = {"limits": PEER_LIMITS, "message_bytes_max": 1 << 30}
    return Dialing(**(given | settings))


@pytest.fixture
def channel(bench, open_channel):
    return bench.channel if isinstance(bench, LocalBench) else open_channel(bench.address)


def path(name):
    return f"/{SERVICE}/{name}"


def unary(channel, name="Unary", request=b"abc", **more):
    return channel.call(path(name), Kind.UNARY, request=request, **more)


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


async def error_of(work):
    with pytest.raises(RpcFailed) as caught:
        await work
    return caught.value.code, caught.value.text


# ------------------------------------------------------------------------------------ four kinds
@pytest.mark.parametrize("size", [0, 3, 16_380, 65_536, 5 << 20])
async def test_unary_message_of_any_size_comes_back(channel, size):
    content = os.urandom(size)
    assert await unary(channel, request=content).answer() == content
    assert channel.condition <= Condition.READY


@pytest.mark.parametrize("sizes", [[1, 0, 2], [5 << 20] * 3, [100_000] * 50])
async def test_uploaded_messages_all_arrive(channel, sizes):
    call = channel.call(path("Upload"), Kind.CLIENT_STREAM)
    for size in sizes:
        await call.send(bytes(size))
    await call.done_sending()
    assert await call.answer() == b"%d messages, %d bytes" % (len(sizes), sum(sizes))


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1000, 100), (50, 100_000), (3, 5 << 20)])
async def test_downloaded_messages_all_arrive_in_order(channel, count, size):
    call = channel.call(path("Download"), Kind.SERVER_STREAM, (), b"%d %d" % (count, size))
    for number in range(count):
        assert await call.next() == bytes((number % 256,)) * size
    assert await call.next() is None


async def test_listener_takes_messages_as_they_come(server, open_channel):
    channel = open_channel(server.address)
    call, taken = channel.call(path("Both"), Kind.BIDI_STREAM), []
    assert not call.send_now(b"not connected yet")
    await call.send(b"first")
    assert await call.next() == b"tsrif"
    call.listen(taken.append)
    parts = [b"%d" % number for number in range(10, 60)]
    for part in parts:
        assert call.send_now(part)
    assert not call.send_now(bytes(100_000_000)), "there is no room"
    while len(taken) < len(parts):
        # What comes while nothing waits for it is returned, as without a listener.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                taken.append(await call.next())
    assert taken == [part[::-1] for part in parts]
    await call.done_sending()
    assert await call.next() is None
    assert not call.send_now(b"over")


async def test_messages_go_both_ways_after_a_greeting(channel):
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    for part in (b"abc", b"", bytes(5 << 20)):
        await call.send(part)
        assert await call.next() == part[::-1]
    assert (await call.greeting())["greeting"] == "hello"
    await call.done_sending()
    assert await call.next() is None


async def test_metadata_reaches_the_handler(bench, channel):
    await channel.call(path("Unary"), Kind.UNARY, (("authorization", "Bearer x"),), b"").answer()
    metadata = bench.metadata if isinstance(bench, GrpcBench) else bench.echo.metadata
    assert metadata["authorization"] == "Bearer x"


# ------------------------------------------------------------------------------------------ ends
@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.UNAVAILABLE, Code.UNAUTHENTICATED])
async def test_errors_have_code_and_text(channel, code):
    found = await error_of(unary(channel, "Fail", code.value.encode()).answer())
    assert found == (code, "why: 100 % of ü")


async def test_unknown_method_is_unimplemented(channel):
    code, text = await error_of(unary(channel, "Missing").answer())
    assert (code, text) == (Code.UNIMPLEMENTED, "Method not found!")


async def test_cancelled_call_ends_its_handler(bench, channel):
    cancelled = bench.cancelled if isinstance(bench, GrpcBench) else bench.echo.cancelled
    waiting = asyncio.get_running_loop().create_task(unary(channel, "Wait").answer())
    await unary(channel).answer()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await eventually(lambda: cancelled == ["wait"])
    assert await unary(channel).answer() == b"abc"


async def test_deadline_ends_a_call(channel):
    code, _ = await error_of(unary(channel, "Wait", timeout_s=0.05).answer())
    assert code is Code.DEADLINE_EXCEEDED


async def test_server_that_notices_the_deadline_first_changes_nothing(ours, open_channel):
    def cancels(stream_id):
        block_for(0.1)
        return frame(RST_STREAM, 0, stream_id, E.CANCEL.to_bytes(4, "big"))

    async with Front(ours.address, cancels) as front:
        call = unary(open_channel(front.address), timeout_s=0.05)
        assert await error_of(call.answer()) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")


async def test_early_answer_stops_what_is_sent(ours, open_channel):
    call = open_channel(ours.address).call(path("Early"), Kind.CLIENT_STREAM)
    await call.send(b"first")
    assert await call.answer() == b"early"
    with pytest.raises(RpcFailed):
        await call.send(b"second")


# ----------------------------------------------------------------------------------- connections
async def test_channel_connects_once_a_server_listens(open_channel, free_port):
    channel = open_channel(f"127.0.0.1:{free_port}")
    assert channel.condition is Condition.UNKNOWN
    code, text = await error_of(unary(channel).answer())
    assert code is Code.UNAVAILABLE
    assert "Failed to connect" in text
    assert channel.condition is Condition.FAILED
    async with Bench(port=free_port):
        await eventually(lambda: channel.condition is Condition.READY)
        assert await unary(channel).answer() == b"abc"


async def test_call_that_fails_at_once_lets_others_run(open_channel, free_port):
    channel = open_channel(f"127.0.0.1:{free_port}")
    await error_of(unary(channel).answer())
    for _ in range(3):
        turned = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        await error_of(unary(channel).answer())
        assert turned


class Mute:
    """A server that accepts connections and says no more than a greeting, until it is to answer as another one does."""

    def __init__(self, greeting=b""):
        self.greeting = greeting

    async def __aenter__(self):
        self.met = 0
        self.writers = []
        self.server = await asyncio.start_server(self.meet, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc_info):
        self.leave()
        await self.server.wait_closed()

    def leave(self):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def meet(self, _reader, writer):
        self.met += 1
        self.writers.append(writer)
        writer.write(self.greeting)


async def test_channel_tries_again_after_a_peer_that_said_nothing(open_channel):
    async with Mute() as mute:
        channel = open_channel(mute.address, connect_s=0.1, backoff_s_max=0.1)
        code, text = await error_of(unary(channel).answer())
        assert (code, text.endswith("it took too long")) == (Code.UNAVAILABLE, True)
        await eventually(lambda: mute.met > 2)
        assert channel.condition is Condition.FAILED
        mute.leave()
        async with Bench(port=mute.port):
            await eventually(lambda: channel.condition is Condition.READY)
            assert await unary(channel).answer() == b"abc"


async def test_channel_may_be_closed_while_its_peer_has_said_nothing(open_channel):
    async with Mute() as mute:
        channel = open_channel(mute.address)
        call = unary(channel)
        await eventually(lambda: mute.met == 1)
        await channel.close()
        assert await error_of(call.answer()) == (Code.UNAVAILABLE, "the peer has left the cluster")
        assert not channel._links


@pytest.mark.parametrize("target", ["127.0.0.1:99999", "no-port", "a:b", "unix:/tmp/a\0b"])
async def test_address_that_cannot_be_one_fails_calls_at_once(open_channel, target):
    code, text = await error_of(unary(open_channel(target)).answer())
    assert (code, text.startswith(f"{target}: Failed to connect")) == (Code.UNAVAILABLE, True)


async def test_connected_waits_for_the_first_attempt(ours, open_channel, free_port):
    channel = open_channel(ours.address)
    assert await channel.connected()
    assert channel.condition is Condition.READY
    await channel.close()
    assert not await channel.connected()
    assert not await open_channel(f"127.0.0.1:{free_port}").connected()


async def test_message_larger_than_the_limit_is_not_sent(ours, open_channel):
    channel = open_channel(ours.address, message_bytes_max=1000)
    too_large = (Code.RESOURCE_EXHAUSTED, "Sent message larger than max (1001 vs. 1000)")
    assert await error_of(unary(channel, request=bytes(1001)).answer()) == too_large
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    assert await error_of(call.send(bytes(1001))) == too_large
    assert await error_of(call.next()) == too_large
    assert await unary(channel, request=bytes(1000)).answer() == bytes(1000)


async def test_deadline_may_be_moved_and_taken_back(ours, open_channel):
    channel = open_channel(ours.address)
    call = unary(channel, "Wait")
    call.expire_in(60.0)
    call.expire_in(None)
    assert not channel.deadlines._steps
    call.expire_in(0.05)
    code, text = await error_of(call.answer())
    assert (code, text, call.has_expired) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", True)
    assert not channel.deadlines._steps


async def test_call_after_a_lost_connection_makes_another(ours, open_channel):
    channel = open_channel(ours.address)
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    await call.send(b"ab")
    assert await call.next() == b"ba"
    for connection in tuple(ours.shared.connections):
        connection.abort()
    code, text = await error_of(call.next())
    assert (code, text.partition(" (")[0]) == (Code.UNAVAILABLE, "Socket closed")
    assert channel.condition is Condition.UNKNOWN
    assert await unary(channel).answer() == b"abc"


async def test_server_that_leaves_serves_what_it_has(ours, open_channel):
    channel = open_channel(ours.address)
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    await call.send(b"ab")
    assert await call.next() == b"ba"
    (connection,) = ours.shared.connections
    connection.close_soon()
    await eventually(lambda: connection.is_drained)
    assert await unary(channel).answer() == b"abc"  # over another connection
    await call.send(b"cd")
    assert await call.next() == b"dc"
    await call.done_sending()
    assert await call.next() is None
    await eventually(lambda: connection not in ours.shared.connections)


class Front:
    """Before a server: the first connection it answers itself, and passes all others on."""

    def __init__(self, target, refusal, farewell=b""):
        self.target, self.refusal, self.farewell = target, refusal, farewell
        self.asked, self.is_first = 0, True
        self.tasks = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.meet, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *exc_info):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def meet(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        writers = [writer]
        try:
            if self.is_first:
                self.is_first = False
                await self.refuse(reader, writer)
            else:
                to_reader, to_writer = await asyncio.open_connection(*self.target.split(":"))
                writers.append(to_writer)
                await asyncio.gather(pass_on(reader, to_writer), pass_on(to_reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for each in writers:
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()

    async def refuse(self, reader, writer):
        writer.write(frame(SETTINGS, 0, 0) + self.farewell)
        await reader.readexactly(len(PREFACE))
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == HEADERS:
                self.asked += 1
                writer.write(self.refusal(int.from_bytes(head[5:], "big")))


def leaves(_stream_id):
    return goaway(0, E.NO_ERROR)


def refuses(stream_id):
    return frame(RST_STREAM, 0, stream_id, E.REFUSED_STREAM.to_bytes(4, "big"))


async def test_call_that_a_leaving_server_did_not_serve_is_made_again(ours, open_channel):
    async with Front(ours.address, leaves) as front:
        assert await unary(open_channel(front.address)).answer() == b"abc"
    assert front.asked == 1


async def test_attempts_to_connect_are_never_far_apart(open_channel):
    attempts = 0

    async def refuse(_, writer):
        nonlocal attempts
        attempts += 1
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        channel = open_channel(f"127.0.0.1:{port}", backoff_s_min=0.01, backoff_s_max=0.02)
        await error_of(unary(channel).answer())
        await eventually(lambda: attempts >= 25)


async def test_call_is_made_again_after_a_server_left_at_once(ours, open_channel):
    async with Front(ours.address, leaves, goaway(0, E.NO_ERROR)) as front:
        assert await unary(open_channel(front.address)).answer() == b"abc"


@pytest.mark.parametrize("size", [2, 1 << 20])
async def test_call_that_has_sent_something_is_not_made_again(ours, open_channel, size):
    """What it sent is not kept; and whoever sends it must know."""
    async with Front(ours.address, leaves) as front:
        channel = open_channel(front.address)
        call = channel.call(path("Both"), Kind.BIDI_STREAM)
        with contextlib.suppress(RpcFailed):
            await call.send(bytes(size))
        code, text = await error_of(call.next())
        assert (code, text) == (Code.UNAVAILABLE, "Socket closed (the other side leaves)")
        assert await unary(channel).answer() == b"abc"


async def test_sender_waits_for_the_connection_that_its_call_moved_to(ours, open_channel):
    """The server leaves in the read in which the call began, before the sender ran again."""
    channel = open_channel(ours.address)
    await unary(channel).answer()
    first = channel._link
    first.is_ready = False
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    sending = asyncio.get_running_loop().create_task(call.send(b"ab"))
    await turns(2)
    first.is_ready = True
    first._begin_waiting()
    first.receive(goaway(1, E.NO_ERROR))
    await sending
    assert await call.next() == b"ba"
    call.cancel()


async def test_connection_without_more_ids_is_followed_by_another(ours, open_channel):
    channel = open_channel(ours.address)
    await unary(channel).answer()
    first = channel._link
    tail = channel.call(path("Both"), Kind.BIDI_STREAM)
    await tail.send(b"ab")
    first._ids.last = (1 << 31) - 3
    assert [await unary(channel).answer() for _ in range(3)] == [b"abc"] * 3
    assert channel._link is not first
    assert await tail.next() == b"ba"
    tail.cancel()


async def test_call_that_is_refused_is_made_again_once(ours, open_channel):
    async with Front(ours.address, refuses) as front:
        code, _ = await error_of(unary(open_channel(front.address)).answer())
        assert code is Code.UNAVAILABLE
        assert front.asked == 2


async def test_closed_channel_ends_its_calls(channel, bench):
    call = unary(channel, "Wait")
    await unary(channel).answer()
    await channel.close()
    assert await error_of(call.answer()) == (Code.UNAVAILABLE, "the peer has left the cluster")
    assert await error_of(unary(channel).answer()) == (
        Code.UNAVAILABLE,
        "the peer has left the cluster",
    )


async def test_peer_that_falls_silent_is_given_up(ours, open_channel):
    channel = open_channel(ours.address, ping_every_s=0.1, ping_timeout_s=0.2)
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    await call.send(b"ab")
    assert await call.next() == b"ba"
    (connection,) = ours.shared.connections
    connection.hold(is_held=True)
    code, text = await error_of(call.next())
    assert (code, text) == (Code.UNAVAILABLE, "ping timeout")


@pytest.mark.parametrize("kind", [Kind.UNARY, Kind.BIDI_STREAM])
async def test_peer_that_is_silent_after_its_settings_is_given_up(open_channel, kind):
    async with Mute(greeting=frame(SETTINGS, 0, 0)) as mute:
        channel = open_channel(mute.address, connect_s=0.3)
        call = channel.call(path("Unary"), kind, request=b"abc" if kind is Kind.UNARY else None)
        async with asyncio.timeout(patient(3)):
            code, text = await error_of(call.next())
        assert (code, text.endswith(FELL_SILENT)) == (Code.UNAVAILABLE, True)
        assert not await channel.connected()


async def test_peer_that_answers_pings_is_kept(ours, open_channel):
    channel = open_channel(ours.address, ping_every_s=0.05, ping_timeout_s=2.0)
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    await call.send(b"ab")
    assert await call.next() == b"ba"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await call.next()
    await call.send(b"cd")
    assert await call.next() == b"dc"


async def test_peer_that_answers_within_a_tick_of_the_clock_is_kept(
    ours, open_channel, monkeypatch
):
    loop = asyncio.get_running_loop()
    exact = loop.time
    monkeypatch.setattr(loop, "time", lambda: exact() // 0.05 * 0.05)  # uvloop's has milliseconds
    channel = open_channel(ours.address, ping_every_s=0.1, ping_timeout_s=0.1)
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    await call.send(b"ab")
    assert await call.next() == b"ba"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await call.next()


async def test_answered_ping_stays_answered_though_we_were_busy_since(ours, open_channel):
    channel = open_channel(ours.address, ping_every_s=30.0, ping_timeout_s=0.6)
    call = channel.call(path("Both"), Kind.BIDI_STREAM)
    await call.send(b"ab")
    assert await call.next() == b"ba"
    link = call._connection
    link._alive_at -= 40.0  # as if nothing had come for so long
    link._sweep()
    await eventually(lambda: link._alive_at > link.swept_at - 1.0)  # the answer to the ping
    link.swept_at -= 0.5  # as if the sweep were late by so much
    link._sweep()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0):
            await call.next()


# ---------------------------------------------------------------------------------- flow control
async def test_reader_that_stops_holds_up_no_other_call(server, open_channel):
    channel = open_channel(server.address)
    slow = channel.call(path("Download"), Kind.SERVER_STREAM, (), b"%d %d" % (60, 100_000))
    assert await slow.next() == bytes(100_000)
    assert await unary(channel, request=bytes(3 << 20)).answer() == bytes(3 << 20)
    assert slow.unread <= PEER_LIMITS.stream_window
    for number in range(1, 60):
        assert await slow.next() == bytes((number,)) * 100_000
    assert await slow.next() is None


async def test_both_sides_send_more_than_they_read(channel):
    """Each must go on reading while its writing is held up."""
    call = channel.call(path("Both"), Kind.BIDI_STREAM)

    async def send():
        for _ in range(40):
            await call.send(bytes(1 << 20))
        await call.done_sending()

    sending = asyncio.get_running_loop().create_task(send())
    for _ in range(40):
        assert len(await call.next()) == 1 << 20
    assert await call.next() is None
    await sending


# ------------------------------------------------------------------------------ TLS, Unix sockets
async def test_tls_with_certificates_of_both_sides(tmp_path, open_channel):
    authority = CertificateAuthority(tmp_path)
    theirs, mine = (authority.issue(name) for name in ("server", "client"))
    ca = authority.ca.read_bytes()
    material = TlsMaterial(theirs.cert.read_bytes(), theirs.key.read_bytes(), ca)
    shown = TlsMaterial(mine.cert.read_bytes(), mine.key.read_bytes(), ca)
    async with Bench(tls=material) as bench:
        address = f"localhost:{bench.server.port}"
        channel = open_channel(address, http2_client_context(shown))
        content = os.urandom(5 << 20)
        assert await unary(channel, request=content).answer() == content
        for trusted in (TlsMaterial(), TlsMaterial(ca=ca)):  # not trusting, not showing
            stranger = open_channel(address, http2_client_context(trusted))
            code, text = await error_of(unary(stranger).answer())
            assert code is Code.UNAVAILABLE
            assert trusted.ca or "CERTIFICATE_VERIFY_FAILED" in text


async def test_calls_over_a_unix_socket(tmp_path, open_channel):
    path = tmp_path / "socket"
    async with Bench(socket=path):
        assert await unary(open_channel(f"unix://{path}")).answer() == b"abc"
