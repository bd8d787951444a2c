"""Brokers behind proxies that break the connections between them."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.broker.config import BrokerConfig
from gazette_platform.broker.peers import Peers, open_replicate
from gazette_platform.broker.replicate import replicator
from gazette_platform.broker.spool.journal_spool import Draft
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import ProcessId
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.fault_proxy import FaultProxies, FaultProxy
from gazette_platform.testing.local import AppendCall, LocalBrokers, append, read_all
from gazette_platform.testing.waiting import eventually, pass_time, patient, turns

pytestmark = pytest.mark.etcd

NAME = "replicated/journal"

LARGE = bytes(400_000)


def spec(replication, name=NAME):
    return journal_spec(name, replication, length=1 << 30, refresh_s=3600)


class Network:
    """Brokers that reach each other by proxies only; a test reaches them directly."""

    def __init__(self, local):
        self.local = local
        self.proxies = FaultProxies()
        self.brokers = {}
        self.stubs = {}

    async def start(self, zone, **settings):
        proxy = await self.proxies.add(zone, "127.0.0.1", 1)
        broker = await self.local.start(
            zone=zone, id=f"broker-{zone}", advertise=proxy.address, **settings
        )
        proxy.upstream = ("127.0.0.1", broker.port)
        self.brokers[zone] = broker
        self.stubs[zone] = self.local.stub(broker)

    @property
    def state(self):
        return next(iter(self.brokers.values()))._context.space.state

    def primary(self, name=NAME):
        primary_id = self.state.route_of(name).primary_id
        return primary_id.zone if primary_id is not None else ""

    async def apply(self, one):
        request = pb.ApplyRequest()
        change = request.changes.add()
        change.upsert.CopyFrom(one.to_pb())
        change.expect_mod_revision = -1
        assert (await next(iter(self.stubs.values())).Apply(request)).status == pb.OK

        def is_settled():
            members = self.state.assignments_of(one.name)
            return len(members) == one.replication and self.state.is_consistent(one.name)

        await eventually(is_settled)

    def failures(self):
        """What broker did not foresee, or died of."""
        return {
            zone: broker.failure or broker.faults.last
            for zone, broker in self.brokers.items()
            if broker.failure is not None or broker.faults.reported
        }


@pytest.fixture
async def network(etcd_server, etcd_prefix, tmp_path):
    local = LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix)
    async with local:
        network = Network(local)
        async with network.proxies:
            yield network


async def test_no_reset_of_a_connection_ends_a_broker(network, caplog):
    for zone in "abc":
        await network.start(zone, etcd_lease_s=20.0)
        # Slow enough for something to be on its way whenever a connection breaks.
        network.proxies[zone].limit(50e6)
    await network.apply(spec(2))
    primary = network.primary()
    other = next(zone for zone in "abc" if zone != primary)
    failures = 0
    is_over = asyncio.Event()

    async def write(*chunks):
        nonlocal failures
        while not is_over.is_set():
            call = AppendCall(network.stubs[other], NAME)
            try:
                await call.send(*chunks)
                await call.commit()
            except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                failures += 1

    async def break_connections():
        # About as soon as they are back: more often than any network does.
        for _ in range(20):
            await pass_time(0.12)
            for proxy in network.proxies:
                network.proxies[proxy].reset()
        is_over.set()

    async with asyncio.timeout(patient(60)), asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(write(*[LARGE] * 5))
        for _ in range(12):
            tasks.create_task(write(b"small"))
        tasks.create_task(break_connections())
    assert failures > 0
    assert network.failures() == {}
    assert [record.message for record in caplog.records if record.exc_info] == []

    async def is_appended():
        try:
            response = await append(network.stubs[other], NAME, b"still here")
        except grpc.aio.AioRpcError:
            return False
        return response.status == pb.OK

    await eventually(is_appended)
    assert (await read_all(network.stubs[primary], NAME)).endswith(b"still here")


@pytest.fixture
async def stalled(tmp_path):
    """A stream to a peer that takes nothing any more, and a way to break the connection."""

    async def discard(messages, _context):
        async for _ in messages:
            pass
        yield b""

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers = {"Replicate": grpc.stream_stream_rpc_method_handler(discard)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("protocol.Journal", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peers = Peers(BrokerConfig(id="own-broker", file_root=tmp_path), SystemClock())
    async with FaultProxy("127.0.0.1", port) as proxy:
        stream = open_replicate(peers, NAME, ProcessId("a", "other"), proxy.address, "")
        await stream.write(b"first")
        proxy.black_hole()
        yield stream, proxy
    await peers.close()
    await server.stop(None)


async def fill(stream, tasks):
    """Write until nothing is taken any more. Returns: the write that waits."""
    while True:
        writing = tasks.spawn(stream.write(bytes(100_000)))
        done, _ = await asyncio.wait([writing], timeout=0.5)
        if not done:
            return writing


async def test_what_waits_on_a_connection_that_breaks_fails_with_it(stalled):
    stream, proxy = stalled
    tasks = TaskGroup("test", faults=Faults())
    waiting = [await fill(stream, tasks), tasks.spawn(stream.read())]
    await turns()  # each is begun
    proxy.reset()
    async with asyncio.timeout(patient(20)):
        failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(failure) for failure in failures] == [RpcFailed] * 2
    assert {failure.code for failure in failures} == {Code.UNAVAILABLE}


async def test_an_append_may_take_longer_than_idle_streams_last(network, monkeypatch):
    monkeypatch.setattr(replicator, "_IDLE_S", 0.2)
    for zone in "ab":
        await network.start(zone, etcd_lease_s=20.0)
    await network.apply(spec(2))
    call = AppendCall(network.stubs[network.primary()], NAME)
    for _ in range(8):
        await call.send(bytes(1 << 20), bytes(1 << 20))
        await pass_time(0.3)
    assert (await call.commit()).commit.end == 16 << 20


async def test_a_replica_that_takes_nothing_neither_hangs_a_journal_nor_a_drain(
    network, monkeypatch
):
    """Its disk stands still in the midst of a large append, while its connection is well."""
    monkeypatch.setattr(replicator, "_STALL_S", 1.0)
    for zone in "ab":
        await network.start(zone, etcd_lease_s=20.0)
    await network.apply(spec(2))
    primary = network.primary()
    other = "b" if primary == "a" else "a"
    assert (await append(network.stubs[primary], NAME, b"before")).status == pb.OK
    stalled = network.brokers[other]._resolver.replicas[NAME].spool
    disk = asyncio.Event()
    write = Draft.write

    async def held(draft, chunks, length):
        if draft.digester is stalled.digester:
            await disk.wait()
        await write(draft, chunks, length)

    monkeypatch.setattr(Draft, "write", held)

    async def stream():
        call = AppendCall(network.stubs[primary], NAME)
        await call.send(*[bytes(1 << 20)] * 64)  # more than all buffers on the way there hold
        return await call.commit()

    with pytest.raises(grpc.RpcError):
        await stream()
    # Another one is under way when its primary is asked to leave.
    monkeypatch.setattr(replicator, "_STALL_S", 600.0)
    broker = network.brokers[primary]
    tasks = TaskGroup("test", faults=Faults())
    hanging = tasks.spawn(stream())
    appender = broker._resolver.replicas[NAME].appender
    await eventually(lambda: not appender.is_idle)
    async with asyncio.timeout(patient(15)):
        await broker.drain()
        await asyncio.wait([hanging])
    disk.set()
