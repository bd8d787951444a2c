"""The proxy does to real sockets what it says, and heals."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import TransportError
from gazette_platform.testing.fault_proxy import Direction, FaultProxy
from tests.benches.fake_broker import FakeBroker


class Echo:
    """A server that says back what it hears."""

    def __init__(self):
        self.heard = b""
        self.ended: list[str] = []

    async def serve(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                self.heard += data
                writer.write(data)
                await writer.drain()
            self.ended.append("eof")
        except ConnectionError:
            self.ended.append("reset")
        finally:
            writer.close()


@pytest.fixture
async def echo():
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()


@pytest.fixture
async def proxy(echo):
    async with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@pytest.fixture
async def dial(proxy):
    """Connect through the proxy; closed at the end."""
    writers = []

    async def connect():
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def said(reader, length, timeout_s=2.0):
    async with asyncio.timeout(timeout_s):
        return await reader.readexactly(length)


async def silent(reader, seconds=0.05):
    with pytest.raises(TimeoutError):
        await said(reader, 1, seconds)


async def test_forwards_both_ways_and_the_end(proxy, dial, echo):
    reader, writer = await dial()
    data = bytes(range(256)) * 4096
    writer.write(data)
    assert await said(reader, len(data)) == data
    writer.write_eof()
    assert await reader.read() == b""
    assert echo.ended == ["eof"]


async def test_reset_ends_both_sides_hard(proxy, dial, echo):
    reader, writer = await dial()
    writer.write(b"x")
    await said(reader, 1)
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        await said(reader, 1)
    reader, writer = await dial()
    writer.write(b"y")
    assert await said(reader, 1) == b"y"
    assert echo.ended == ["reset"]
    assert proxy.connections == 1


async def test_refuse_lets_no_client_in_until_healed(proxy, dial):
    reader, writer = await dial()
    writer.write(b"x")
    await said(reader, 1)
    address = proxy.address
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        await said(reader, 1)
    with pytest.raises(ConnectionRefusedError):
        await dial()
    await proxy.heal()
    assert proxy.address == address
    reader, writer = await dial()
    writer.write(b"y")
    assert await said(reader, 1) == b"y"


async def test_black_hole_holds_everything_until_healed(proxy, dial, echo):
    reader, writer = await dial()
    writer.write(b"a")
    await said(reader, 1)
    proxy.black_hole()
    writer.write(b"b")
    await silent(reader)
    assert echo.heard == b"a"
    await proxy.heal()
    assert await said(reader, 1) == b"b"


async def test_delay_adds_up_over_both_directions(proxy, dial):
    reader, writer = await dial()
    proxy.delay(0.5)
    began = time.monotonic()
    writer.write(b"a")
    await said(reader, 1)
    assert 1.0 <= time.monotonic() - began < 10.0
    await proxy.heal()
    began = time.monotonic()
    writer.write(b"b")
    assert await said(reader, 1) == b"b"
    assert time.monotonic() - began < 1.0


# ------------------------------------------------------------------ gRPC


@pytest.fixture(params=["streams", "whole"])
async def journal(request, monkeypatch):
    """A client of a broker behind a proxy: (append, proxy, journal); both kinds of brokers."""
    monkeypatch.setattr(FakeBroker, "takes_whole", request.param == "whole")
    async with (
        FakeBroker() as broker,
        FaultProxy("127.0.0.1", int(broker.address.rpartition(":")[2])) as proxy,
    ):
        config = ClientConfig(
            address=proxy.address, route_cache_size=0, retry_timeout_s=0, append_timeout_s=2.0
        )
        async with AsyncClient(config) as client:

            async def append(data):
                return await client.append("a/journal", data)

            yield append, proxy, broker.journal("a/journal")


async def test_grpc_append_into_a_black_hole_is_unanswered(journal):
    append, proxy, held = journal
    await append(b"a")
    proxy.black_hole(Direction.TO_CLIENT)
    with pytest.raises(TransportError, match="unknown"):
        await append(b"b")
    await proxy.heal()
    await append(b"c")
    # Who knows streams only has refused the call of one message, which was not heard either.
    assert bytes(held.content) == (b"abc" if FakeBroker.takes_whole else b"ac")
