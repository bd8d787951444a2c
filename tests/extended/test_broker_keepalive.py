"""Whoever has a call open on a connection that swallows everything notices it in seconds.

gRPC by itself would take minutes: what counts is the time-out of pings, which is set everywhere.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest
from journal_specs import journal_spec
from wire_limits import limit_pings

from gazette_platform.broker import peers as peers_module
from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.peers import Peers, open_replicate
from gazette_platform.client import AsyncClient, ClientConfig, wire as wire_module
from gazette_platform.errors import EtcdError, TransportError
from gazette_platform.etcd import EtcdClient
from gazette_platform.keyspace import KeySpace
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import JournalChange, ProcessId
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.serving import grpc_transport
from gazette_platform.serving.config import Wire
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.fault_proxy import Direction, FaultProxies, FaultProxy
from gazette_platform.testing.local import LocalBrokers, append
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd

NAME = "a/journal"

# Far more than any of them takes, and far less than the minute and more that gRPC would.
DEADLINE_S = 20.0


@pytest.fixture
async def brokers(etcd_server, etcd_prefix, tmp_path):
    local = LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix)
    async with local:
        yield local


@pytest.fixture
async def proxies():
    async with FaultProxies() as proxies:
        yield proxies


def spec(replication):
    return journal_spec(NAME, replication, refresh_s=3600)


@pytest.mark.parametrize("direction", list(Direction))
async def test_a_peer_that_is_cut_off(brokers, tmp_path, direction):
    broker = await brokers.start()
    config = BrokerConfig(id="own-broker", file_root=tmp_path, etcd_lease_s=2.0)
    peers = Peers(config, SystemClock())
    async with FaultProxy("127.0.0.1", broker.port) as proxy, asyncio.timeout(DEADLINE_S):
        # The other side waits for our first message.
        stream = open_replicate(peers, NAME, ProcessId("a", "peer"), proxy.address, "")
        await eventually(lambda: proxy.connections)
        proxy.black_hole(direction)
        with pytest.raises(RpcFailed) as caught:
            await stream.read()
        assert caught.value.code is Code.UNAVAILABLE
    await peers.close()


async def test_a_peer_is_pinged_four_times_a_lease(tmp_path):
    config = BrokerConfig(id="own-broker", file_root=tmp_path, etcd_lease_s=20.0)
    options = dict(peers_module._options(config, pings=True))
    assert options["grpc.keepalive_time_ms"] == 5000
    assert options["grpc.http2.ping_timeout_ms"] == 5000
    assert "grpc.keepalive_time_ms" not in dict(peers_module._options(config, pings=False))


async def test_a_tail_goes_on_at_another_broker_when_its_own_is_cut_off(brokers, proxies):
    stubs = {}
    for zone in "ab":
        proxy = await proxies.add(zone, "127.0.0.1", 1)
        broker = await brokers.start(zone=zone, advertise=proxy.address, etcd_lease_s=20.0)
        proxy.upstream = ("127.0.0.1", broker.port)
        stubs[zone] = brokers.stub(broker)
    config = ClientConfig(address=proxies["a"].address, keepalive_s=1.0)
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(spec=spec(2), delete="", revision=-1)])
        await client.append(NAME, b"before ")
        (listing,) = await client.list()
        zone = listing.route.primary_id.zone
    addresses = ",".join(proxies[name].address for name in proxies)
    config = ClientConfig(address=addresses, keepalive_s=1.0, zone=zone)
    async with (
        AsyncClient(config) as client,
        asyncio.timeout(DEADLINE_S),
        client.read(NAME, block=True) as reader,
    ):
        assert await anext(reader) == b"before "
        proxies[zone].black_hole()
        # Its replica is still within reach of the primary.
        await append(stubs[zone], NAME, b"after")
        assert await anext(reader) == b"after"


async def test_a_client_notices_within_20_s_by_default(brokers):
    broker = await brokers.start()
    await brokers.apply(brokers.stub(broker), spec(1))
    loop = asyncio.get_running_loop()
    async with FaultProxy("127.0.0.1", broker.port) as proxy:
        config = ClientConfig(address=proxy.address, route_cache_size=0, retry_timeout_s=0.0)
        async with AsyncClient(config) as client:
            await client.append(NAME, b"before ")
            reader = client.read(NAME, block=True)
            assert await anext(reader) == b"before "
            proxy.black_hole()
            began = loop.time()
            with pytest.raises(TransportError):
                await anext(reader)
            assert loop.time() - began < 25  # 10 s of silence, and 10 more
            await reader.aclose()


async def test_a_broker_that_minds_pings_gets_fewer_and_tails_go_on(brokers, monkeypatch):
    """As Gazette's do, with what its gRPC library does by default."""
    lenient = ("grpc.http2.min_ping_interval_without_data_ms", "grpc.http2.max_ping_strikes")
    strict = [(name, value) for name, value in grpc_transport._OPTIONS if name not in lenient]
    strict += [(lenient[0], 300_000), (lenient[1], 2)]
    monkeypatch.setattr(grpc_transport, "_OPTIONS", tuple(strict))
    broker = await brokers.start(wire=Wire.GRPC)
    stub = brokers.stub(broker)
    await brokers.apply(stub, spec(1))
    await append(stub, NAME, b"before ")
    config = ClientConfig(address=f"http://127.0.0.1:{broker.port}", keepalive_s=1.0)
    async with AsyncClient(config) as client, asyncio.timeout(DEADLINE_S):
        pool = client._transport._pool
        former = pool.get(config.address)
        reader = client.read(NAME, block=True)
        assert await anext(reader) == b"before "
        going_on = asyncio.ensure_future(anext(reader))  # noqa: TID251  awaited below
        await eventually(lambda: pool.get(config.address) is not former)
        await eventually(lambda: pool.get(config.address).calls == 1)
        await append(stub, NAME, b"after")
        assert await going_on == b"after"
        assert former.calls == 0
        pool.sweep()
        await reader.aclose()
    dialing = wire_module._dialing(config, "127.0.0.1:1", is_spared=True)
    assert (dialing.ping_every_s, dialing.ping_timeout_s) == (310.0, 1.0)


class Keys:
    """The view of a mirror: which keys there are."""

    def __init__(self):
        self.known = set()

    def begin(self):
        pass

    def end(self):
        pass

    def put(self, kv):
        self.known.add(kv.key.rpartition("/")[2])

    def remove(self, key):
        self.known.discard(key.rpartition("/")[2])


async def test_the_mirror_of_etcd_moves_to_another_endpoint(etcd_server, etcd_prefix, etcd):
    host, _, port = etcd_server.endpoint.removeprefix("http://").partition(":")
    async with (
        FaultProxy(host, int(port)) as proxy,
        EtcdClient([proxy.address, etcd_server.endpoint]) as client,
    ):
        space = KeySpace(client, etcd_prefix, Keys())
        tasks = TaskGroup("test")
        await space.load()
        tasks.spawn(space.watch())
        await etcd.put(f"{etcd_prefix}/one", b"")
        await eventually(lambda: "one" in space.state.known)
        assert client.endpoint == proxy.address
        proxy.black_hole()
        await etcd.put(f"{etcd_prefix}/two", b"")
        await eventually(lambda: "two" in space.state.known, timeout_s=DEADLINE_S)
        await tasks.close()


async def test_calls_pass_over_an_endpoint_of_etcd_that_swallows_them(
    etcd_server, etcd_prefix, etcd
):
    host, _, port = etcd_server.endpoint.removeprefix("http://").partition(":")
    async with FaultProxy(host, int(port)) as proxy:
        addresses = [proxy.address, etcd_server.endpoint]
        async with EtcdClient(addresses, request_timeout_s=0.5) as client:
            await client.get(f"{etcd_prefix}/one")
            proxy.black_hole()
            with pytest.raises(EtcdError, match="DEADLINE_EXCEEDED"):
                await client.get(f"{etcd_prefix}/one")
            assert await client.get(f"{etcd_prefix}/one") is None


async def test_a_broker_ends_the_calls_of_callers_that_are_cut_off(brokers, monkeypatch):
    limit_pings(monkeypatch, every_s=0.2, timeout_s=0.5)
    broker = await brokers.start()
    stub = brokers.stub(broker)
    await brokers.apply(stub, spec(1))
    await append(stub, NAME, b"content")
    async with (
        FaultProxy("127.0.0.1", broker.port) as proxy,
        grpc.aio.insecure_channel(proxy.address.removeprefix("http://")) as channel,
    ):
        tail = protocol_pb2_grpc.JournalStub(channel).Read(pb.ReadRequest(journal=NAME, block=True))
        await tail.read()
        proxy.black_hole()
        labels = {
            "grpc_service": "protocol.Journal",
            "grpc_method": "Read",
            "grpc_code": "Canceled",
        }
        labels["grpc_type"] = "server_stream"
        counted = broker.metrics.registry.get_sample_value
        await eventually(lambda: counted("grpc_server_handled_total", labels) == 1)
        tail.cancel()
