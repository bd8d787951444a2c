"""The gRPC library as a client of our server: calls of all kinds, over TCP, TLS and Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from dataclasses import replace

import grpc
import pytest
from grpc import aio
from h2_server_bench import SERVICE, Bench

from gazette_platform.errors import SetupError
from gazette_platform.serving.auth import TlsMaterial
from gazette_platform.serving.h2.frames import LIMITS
from gazette_platform.serving.h2.server_call import Call
from gazette_platform.serving.interface import Code
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import eventually, patient, turns

DEADLINE_S = patient(20)


@pytest.fixture
async def bench():
    async with Bench() as bench:
        yield bench


@pytest.fixture
async def channel(bench):
    async with open_channel(bench.address) as channel:
        yield channel


def open_channel(address, **options):
    settings = {"grpc.max_receive_message_length": -1, "grpc.use_local_subchannel_pool": 1}
    return aio.insecure_channel(address, options=[*(settings | options).items()])


def unary(channel, name="Unary"):
    return channel.unary_unary(f"/{SERVICE}/{name}")


async def error_of(call):
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


# ------------------------------------------------------------------------------------ four kinds
@pytest.mark.parametrize("size", [0, 3, 16_380, 65_536, 5 << 20])
async def test_unary_message_of_any_size_comes_back(channel, size):
    assert await unary(channel)(b"x" * size, timeout=DEADLINE_S) == b"x" * size


@pytest.mark.parametrize("sizes", [[1, 0, 2], [5 << 20] * 3, [100_000] * 100])
async def test_uploaded_messages_all_arrive(channel, sizes):
    call = channel.stream_unary(f"/{SERVICE}/Upload")
    answer = await call(iter([bytes(size) for size in sizes]), timeout=DEADLINE_S)
    assert answer == b"%d messages, %d bytes" % (len(sizes), sum(sizes))


@pytest.mark.parametrize(
    ("count", "size"), [(0, 0), (3, 0), (1000, 100), (200, 100_000), (3, 5 << 20)]
)
async def test_downloaded_messages_all_arrive_in_order(channel, count, size):
    call = channel.unary_stream(f"/{SERVICE}/Download")
    answers = [answer async for answer in call(b"%d %d" % (count, size), timeout=DEADLINE_S)]
    assert answers == [bytes((number % 256,)) * size for number in range(count)]


# Not 0: of a call that has ended, grpc.aio may say that it had no greeting.
@pytest.mark.parametrize("count", [1, 3])
async def test_greeting_of_an_rpc_comes_ahead_of_its_responses(channel, count):
    call = channel.unary_stream(f"/{SERVICE}/Greeted")(b"%d 9" % count, timeout=DEADLINE_S)
    assert ("greeting", "of all streams") in tuple(await call.initial_metadata())
    assert len([answer async for answer in call]) == count


async def test_messages_go_both_ways_after_a_greeting(channel):
    call = channel.stream_stream(f"/{SERVICE}/Both")(timeout=DEADLINE_S)
    assert ("greeting", "hello") in tuple(await call.initial_metadata())
    for part in (b"abc", b"", bytes(1 << 20)):
        await call.write(part)
        assert await call.read() == part[::-1]
    await call.done_writing()
    assert await call.read() is aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_many_calls_share_a_connection(bench, channel):
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(unary(channel)(b"%d" % n) for n in range(2000)))
    assert answers == [b"%d" % n for n in range(2000)]
    assert len(bench.shared.connections) == 1


async def test_compressed_request_is_inflated(channel):
    call = unary(channel)(bytes(100_000), compression=grpc.Compression.Gzip, timeout=DEADLINE_S)
    assert await call == bytes(100_000)


async def test_metadata_reaches_the_handler(bench, channel):
    await unary(channel)(b"", metadata=[("authorization", "Bearer x")], timeout=DEADLINE_S)
    assert bench.echo.metadata["authorization"] == "Bearer x"


# ---------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize("code", list(Code))
async def test_code_and_text_of_a_failure_arrive(bench, channel, code):
    found = await error_of(unary(channel, "Fail")(code.value.encode(), timeout=DEADLINE_S))
    assert found == (grpc.StatusCode[code.value], "why: 100 % of ü")


async def test_unexpected_error_of_a_handler_ends_its_call_and_is_logged(bench, channel, caplog):
    code, text = await error_of(unary(channel, "Crash")(b"", timeout=DEADLINE_S))
    assert code is grpc.StatusCode.UNKNOWN
    assert text == "Unexpected <class 'ValueError'>: unexpected"
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]
    assert bench.handled("Crash", "Unknown") == 1


async def test_unknown_method_is_unimplemented(channel):
    code, text = await error_of(unary(channel, "Missing")(b"", timeout=DEADLINE_S))
    assert (code, text) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


async def test_message_beyond_the_limit_is_refused(bench, channel):
    code, text = await error_of(unary(channel)(bytes((8 << 20) + 1), timeout=DEADLINE_S))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert text == f"SERVER: Received message larger than max ({(8 << 20) + 1} vs. {8 << 20})"
    assert bench.handled("Unary", "ResourceExhausted") == 1


async def test_stream_without_a_message_is_an_error(channel):
    call = channel.stream_unary(f"/{SERVICE}/Upload")
    found = await error_of(call(iter([]), timeout=DEADLINE_S))
    assert found == (grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF")


async def test_answer_before_the_end_of_an_upload_arrives(channel):
    call = channel.stream_unary(f"/{SERVICE}/Early")(timeout=DEADLINE_S)
    with contextlib.suppress(asyncio.InvalidStateError, aio.AioRpcError):
        for _ in range(100):
            await call.write(bytes(100_000))
    assert await call == b"early"
    assert await unary(channel)(b"next", timeout=DEADLINE_S) == b"next"


# --------------------------------------------------------------------------- deadlines, cancelling
async def test_deadline_cancels_the_handler(bench, channel):
    code, _ = await error_of(unary(channel, "Wait")(b"", timeout=0.1))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: bench.echo.cancelled)
    counted = ("DeadlineExceeded", "Canceled")  # the client may give up first
    await eventually(lambda: sum(bench.handled("Wait", code) for code in counted) == 1)


async def test_caller_that_cancels_cancels_the_handler(bench, channel):
    call = unary(channel, "Wait")(b"")
    await eventually(lambda: bench.echo.begun)
    call.cancel()
    await eventually(lambda: bench.echo.cancelled)
    await eventually(lambda: bench.handled("Wait", "Canceled") == 1)
    await eventually(lambda: not bench.shared.tasks)


async def test_caller_whose_connection_ends_cancels_the_handler(bench):
    async with open_channel(bench.address) as channel:
        call = unary(channel, "Wait")(b"")
        await eventually(lambda: bench.echo.begun)
    await eventually(lambda: bench.echo.cancelled)
    assert call.done()


async def test_calls_that_were_served_leave_nothing(bench, channel):
    for _ in range(3):
        await unary(channel)(bytes(1 << 20), timeout=DEADLINE_S)
    assert bench.shared.connections
    for connection in bench.shared.connections:
        assert not connection.streams
        assert not connection.blocked
        assert connection.unread == 0
    assert not [each for each in gc.get_objects() if type(each) is Call]


# --------------------------------------------------------------------------------------- transports
@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("tls"))


def material(authority, *, is_mutual):
    mine = authority.issue("server")
    ca = authority.ca.read_bytes() if is_mutual else b""
    return TlsMaterial(mine.cert.read_bytes(), mine.key.read_bytes(), ca)


async def test_calls_over_tls(authority):
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    bench = Bench(tls=material(authority, is_mutual=False))
    async with bench, aio.secure_channel(bench.address, credentials) as channel:
        assert await unary(channel)(bytes(3 << 20), timeout=DEADLINE_S) == bytes(3 << 20)


async def test_mutual_tls_takes_only_clients_with_a_certificate(authority):
    client = authority.issue("client")
    pair = (client.key.read_bytes(), client.cert.read_bytes())
    ca = authority.ca.read_bytes()
    async with Bench(tls=material(authority, is_mutual=True)) as bench:
        async with aio.secure_channel(
            bench.address, grpc.ssl_channel_credentials(ca, *pair)
        ) as channel:
            assert await unary(channel)(b"x", timeout=DEADLINE_S) == b"x"
        async with aio.secure_channel(bench.address, grpc.ssl_channel_credentials(ca)) as channel:
            code, _ = await error_of(unary(channel)(b"x", timeout=DEADLINE_S))
            assert code is grpc.StatusCode.UNAVAILABLE


async def test_client_of_tls_that_speaks_no_http2_is_cut_off(authority):
    import ssl

    context = ssl.create_default_context(cadata=authority.ca.read_text())
    async with Bench(tls=material(authority, is_mutual=False)) as bench:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port, ssl=context)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_calls_over_a_unix_socket(tmp_path):
    path = tmp_path / "socket"
    for _ in range(2):  # the second time, the socket of the first is in the way
        async with Bench(socket=path) as bench, open_channel(f"unix:{path}") as channel:
            assert bench.server.port == 1
            assert await unary(channel)(b"x", timeout=DEADLINE_S) == b"x"


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "[::1]", "::"])
async def test_calls_to_any_kind_of_host(host):
    try:
        bench = Bench(host=host)
    except SetupError:
        pytest.skip("this machine has no IPv6")
    async with bench:
        target = "[::1]" if "::" in host else "127.0.0.1"
        async with open_channel(f"{target}:{bench.server.port}") as channel:
            assert await unary(channel)(b"x", timeout=DEADLINE_S) == b"x"


async def test_port_in_use_is_explained(bench):
    with pytest.raises(
        SetupError, match=r"Address already in use .choose another port with --broker.port"
    ):
        Bench(port=bench.server.port)


# -------------------------------------------------------------------------------------------- drain
async def test_drain_lets_calls_end_and_refuses_new_ones(bench, channel):
    waiting = unary(channel, "Wait")(b"")
    await eventually(lambda: bench.echo.begun)
    stopping = asyncio.ensure_future(bench.server.stop(grace_s=DEADLINE_S))  # noqa: TID251
    await eventually(lambda: all(each.is_drained for each in bench.shared.connections))
    code, _ = await error_of(unary(channel)(b"x", timeout=DEADLINE_S))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert not stopping.done()
    bench.echo.gate.set()
    assert await waiting == b"waited"
    await stopping
    await bench.server.wait_ended()


async def test_drain_cancels_calls_after_the_grace(bench, channel):
    waiting = unary(channel, "Wait")(b"")
    await eventually(lambda: bench.echo.begun)
    await bench.server.stop(grace_s=0.1)
    assert bench.echo.cancelled
    code, _ = await error_of(waiting)
    assert code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


async def test_drain_of_idle_clients_takes_no_longer_than_they_need(bench, channel):
    await unary(channel)(b"x", timeout=DEADLINE_S)
    async with asyncio.timeout(patient(3)):
        await bench.server.stop(grace_s=60.0)


# ------------------------------------------------------------------------------------------- limits
async def test_reader_that_stops_is_asked_to_come_back():
    bench = Bench(limits=replace(LIMITS, stall_s=0.3))
    async with bench, open_channel(bench.address) as channel:
        call = channel.unary_stream(f"/{SERVICE}/Download")(b"100 1000000")
        await call.read()
        await eventually(lambda: bench.echo.failed)
        with contextlib.suppress(aio.AioRpcError):
            while await call.read() is not aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        expected = "nothing was taken of the responses for 0.3 s; ask again"
        assert await call.details() == expected


async def test_call_without_a_message_ends_by_the_stall_limit():
    bench = Bench(limits=replace(LIMITS, stall_s=0.3))
    async with bench, open_channel(bench.address) as channel:
        call = channel.stream_unary(f"/{SERVICE}/Upload")()
        code, text = await error_of(call)
        assert code is grpc.StatusCode.UNKNOWN
        assert text == "append stream: nothing was sent for 0.3 s"
        assert bench.handled("Upload", "Unknown", "client_stream") == 1


async def test_metrics_count_calls_and_messages(bench, channel):
    await channel.stream_unary(f"/{SERVICE}/Upload")(iter([b"a", b"b"]), timeout=DEADLINE_S)
    value = bench.metrics.registry.get_sample_value
    labels = {"grpc_type": "client_stream", "grpc_service": SERVICE, "grpc_method": "Upload"}
    assert value("grpc_server_started_total", labels) == 1
    assert value("grpc_server_msg_received_total", labels) == 2
    assert value("grpc_server_msg_sent_total", labels) == 1
    assert value("grpc_server_handling_seconds_count", labels) == 1
    assert bench.handled("Upload", "OK", "client_stream") == 1


@pytest.mark.parametrize("turns_before", range(6))
async def test_server_that_stops_leaves_no_accepted_connection_open(turns_before):
    """asyncio makes a connection in a task of its own, which fails once its server is closed."""
    async with Bench() as bench:
        host, port = bench.address.split(":")
        with socket.create_connection((host, int(port))) as client:
            await turns(turns_before)
            await bench.server.stop(grace_s=0.0)
            await turns(5)
            gc.collect()  # an open transport warns, and the warning fails the test
            client.settimeout(patient(5))
            with contextlib.suppress(ConnectionResetError):
                while client.recv(1000):
                    pass
