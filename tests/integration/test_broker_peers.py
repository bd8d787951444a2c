"""Connections to peers: pinged while calls are open, unless the peer minds."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio

from gazette_platform.broker import peers as peers_module
from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.peers import Peers, open_replicate
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import ProcessId
from gazette_platform.serving.config import Wire
from gazette_platform.serving.interface import RpcFailed

PEER = ProcessId("a", "other")
DEADLINE_S = 5.0
IDLE_S = 0.4

# As gRPC's own defaults, and Go's: pings without data between them end the connection.
STRICT = (
    ("grpc.http2.min_ping_interval_without_data_ms", 300_000),
    ("grpc.http2.max_ping_strikes", 1),
)
LENIENT = (
    ("grpc.http2.min_ping_interval_without_data_ms", 1),
    ("grpc.http2.max_ping_strikes", 0),
)


@pytest.fixture
async def start():
    servers = []

    async def start(options):
        async def echo(messages, _context):
            async for raw in messages:
                yield raw

        server = aio.server(options=options)
        handlers = {"Replicate": grpc.stream_stream_rpc_method_handler(echo)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("protocol.Journal", handlers),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        return f"http://127.0.0.1:{port}"

    yield start
    for server in servers:
        await server.stop(None)


@pytest.fixture(params=list(Wire), ids=str)
async def peers(request, tmp_path, monkeypatch):
    monkeypatch.setattr(peers_module, "_PINGS_PER_LEASE", 25)
    config = BrokerConfig(id="own-broker", file_root=tmp_path, etcd_lease_s=1, wire=request.param)
    peers = Peers(config, SystemClock())
    yield peers
    await peers.close()


async def begin(peers, endpoint):
    """A stream that had a message each way, and waits for the next."""
    stream = open_replicate(peers, "a/journal", PEER, endpoint, "")
    await stream.write(b"one")
    assert await stream.read() == b"one"
    return stream


async def expect_idle(peers, endpoint):
    stream = await begin(peers, endpoint)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(IDLE_S):
            await stream.read()
    stream.cancel()


async def test_a_peer_that_minds_pings_gets_none_any_more(peers, start):
    endpoint = await start(STRICT)
    stream = await begin(peers, endpoint)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RpcFailed, match=r"(?i)too.many.pings"):
            await stream.read()
    await expect_idle(peers, endpoint)
    assert peers.endpoints == (endpoint,)
    await peers.drop(endpoint)
    assert peers.endpoints == ()


async def test_others_are_pinged(peers, start):
    await expect_idle(peers, await start(LENIENT))


@pytest.mark.parametrize(
    ("details", "is_kept"),
    [
        ("connection refused", True),
        ("", True),
        ("Too many pings", False),
        ("Socket closed (GOAWAY received; Error code: 11; Debug Text: too_many_pings)", False),
    ],
)
async def test_only_failures_over_pings_change_something(peers, details, is_kept):
    channel = peers.channel("http://127.0.0.1:1")
    peers.on_failure("http://127.0.0.1:1", details)
    assert (peers.channel("http://127.0.0.1:1") is channel) == is_kept
