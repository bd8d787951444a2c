"""Which broker a call goes to, over which connection, and what it is asked to know: V10, RC1."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.client.wire import call_error
from gazette_platform.errors import TransportError
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import JournalChange, JournalSpec, ProcessId, Route
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import ASK_AGAIN, CANNOT_REACH, DROPPED, Code, RpcFailed
from gazette_platform.serving.sockets import Proxy
from tests.benches.fake_broker import FakeBroker, Fault

JOURNAL = "a/journal"
DEAD = "http://127.0.0.1:1"


@asynccontextmanager
async def started(count):
    """Brokers that have the same journal."""
    brokers = [FakeBroker() for _ in range(count)]
    for broker in brokers:
        await broker.__aenter__()
        broker.journal(JOURNAL, b"content")
    try:
        yield brokers
    finally:
        for broker in brokers:
            await broker.__aexit__()


def route(*members, primary=0):
    """Of (zone, endpoint) pairs."""
    ids = tuple(ProcessId(zone, f"broker-{n}") for n, (zone, _) in enumerate(members))
    return Route(ids, primary, tuple(endpoint for _, endpoint in members))


def client_of(broker, clock=None, **config):
    return AsyncClient(ClientConfig(address=broker.address, zone="near", **config), clock=clock)


async def test_v10_the_service_address_is_asked_first_and_members_then():
    async with started(3) as (service, far, near), client_of(service) as client:
        service.route = route(("far", far.address), ("near", near.address))
        far.route = near.route = service.route
        assert await client.read(JOURNAL).read() == b"content"
        assert await client.read(JOURNAL).read() == b"content"
        await client.append(JOURNAL, b"x")
        assert [b.calls["Read"] for b in (service, far, near)] == [1, 0, 1]
        assert [b.calls["Append"] for b in (service, far, near)] == [0, 1, 0]
        await client.append(JOURNAL, b"x")
        assert len(client._transport._pool._wires) == 3, "one connection a member"


async def test_v10_a_member_that_failed_is_dropped_with_its_route():
    """And never are those of another zone asked in its place: brokers know better who lives."""
    async with started(2) as (service, far), client_of(service) as client:
        service.route = route(("far", far.address), ("near", DEAD))
        for _ in range(3):
            assert await client.read(JOURNAL).read() == b"content"
        assert far.calls["Read"] == 0
        assert service.calls["Read"] >= 2


async def test_v10_a_local_member_that_failed_makes_way_for_another():
    async with started(2) as (service, near), client_of(service) as client:
        service.route = near.route = route(("near", DEAD), ("near", near.address))
        for _ in range(4):
            assert await client.read(JOURNAL).read() == b"content"
        assert (service.calls["Read"], near.calls["Read"]) == (2, 2)


async def test_of_several_addresses_the_next_is_asked_when_one_fails():
    async with started(2) as (first, second):
        address = f"{DEAD}, {first.address},{second.address}"
        async with AsyncClient(ClientConfig(address=address, route_cache_size=0)) as client:
            assert await client.read(JOURNAL).read() == b"content"
            await client.append(JOURNAL, b"x")
            await client.list()
            assert (first.calls["Append"], second.calls["Append"]) == (1, 0)
            await first.__aexit__()
            await client.append(JOURNAL, b"y")
            assert len(await client.list()) == 1
            assert await client.read(JOURNAL).read() == b"contenty"
            assert second.calls["Append"] == 1
            assert len(client._transport._pool._wires) == 3
            await first.__aenter__()  # somewhere else, which `started` will end


async def test_v10_connections_without_use_are_swept():
    clock = ManualClock()
    async with started(3) as (service, near, held), client_of(service, clock) as client:
        pool = client._transport._pool
        pool.get(service.address)
        pool.get(near.address)
        wire = pool.get(held.address)
        with wire:
            clock.advance(29)
            pool.sweep()
            assert len(pool._wires) == 3
            clock.advance(2)
            pool.sweep()
            assert set(pool._wires) == {service.address, held.address}
            assert pool._sweep_timer is not None
        pool.sweep()
        assert set(pool._wires) == {service.address}, "which stays"
        assert pool._sweep_timer is None


async def test_a_broker_that_cannot_reach_another_is_told_apart():
    async with started(1) as (broker,), client_of(broker, retry_timeout_s=0.0) as client:
        text = f"{CANNOT_REACH}{DEAD}: Connection refused"

        broker.fail("Append", Fault(code=grpc.StatusCode.UNAVAILABLE, details=text))
        with pytest.raises(TransportError) as caught:
            await client.append(JOURNAL, b"x")
        assert str(caught.value) == f"append to {JOURNAL}: broker {broker.address} {text}"
        assert client._transport.was_connected, "so that it is worth to go on trying"


async def test_broker_that_asks_to_come_back_is_reachable():
    """So a client that was never served is as patient as any other."""
    async with started(1) as (broker,), client_of(broker, connect_timeout_s=0.001) as client:
        fault = Fault(code=grpc.StatusCode.UNAVAILABLE, details=f"{JOURNAL}: not yet{ASK_AGAIN}")
        broker.fail("List", *[fault] * 3)
        assert [journal.name for journal in await client.list()] == [JOURNAL]


async def test_calls_ask_for_what_was_applied():
    clock = ManualClock()
    async with started(1) as (broker,), client_of(broker, clock) as client:
        await client.append(JOURNAL, b"x")
        assert broker.requests[-1].min_etcd_revision == 0
        await client.append(JOURNAL, b"x", min_revision=1)
        assert broker.requests[-1].min_etcd_revision == 1
        revision = await client.apply([JournalChange(_spec(), revision=-1)])
        assert revision > 1
        await client.append(JOURNAL, b"x", min_revision=1)
        assert broker.requests[-1].min_etcd_revision == revision
        await client.read(JOURNAL, min_revision=revision + 1).read()
        assert broker.requests[-1].min_etcd_revision == revision + 1
        clock.advance(61)
        await client.read(JOURNAL).read()
        assert broker.requests[-1].min_etcd_revision == 0


def _spec():
    from gazette_platform.protocol import CompressionCodec, FragmentSpec

    fragment = FragmentSpec(1024, CompressionCodec.NONE, refresh_interval_ns=10**9)
    return JournalSpec(JOURNAL, 1, fragment=fragment)


async def test_a_direct_read_lets_a_replica_ask_that_does_not_know():
    async with started(1) as (broker,), client_of(broker) as client:
        broker.fail("Read", Fault(status=pb.NOT_JOURNAL_BROKER))
        assert await client.read(JOURNAL, direct=True).read() == b"content"
        assert [request.do_not_proxy for request in broker.requests] == [True, False]
        async with asyncio.timeout(5):
            assert await client.read(JOURNAL, direct=True).read() == b"content"
        assert broker.requests[-1].do_not_proxy


NOT_CONNECTED = "127.0.0.1:1: Failed to connect to remote host: "
CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ("a/one: it is not listed yet; ask again", "cannot answer now: a/one: it is not listed"),
        ("a/one: its lease is over; ask another one", "cannot answer now: a/one: its lease is"),
        (f"the process {DROPPED}", "dropped the call, as it does while thousands wait for it"),
        ("Socket closed (reset)", "(it ended, or its connection broke; is it running?)"),
        ("ping timeout", "(it ended, or its connection broke; is it running?)"),
        (
            f"{NOT_CONNECTED}Socket closed",
            "(does it speak TLS? then its address begins with https:",
        ),
        (f"{NOT_CONNECTED}Connection refused", "Connection refused (is it running, and is"),
        (
            f"{NOT_CONNECTED}Connection refused (through {Proxy('127.0.0.1', 3128, 'http_proxy')})",
            "(can the proxy reach it? no_proxy names the hosts to reach without a proxy)",
        ),
        (f"{NOT_CONNECTED}{CERTIFICATE}self-signed", "is of no authority that is trusted here"),
        (f"{NOT_CONNECTED}{CERTIFICATE}Hostname mismatch", "its certificate names other hosts"),
        (f"{NOT_CONNECTED}{CERTIFICATE}IP address mismatch", "its certificate names other hosts"),
        (f"{NOT_CONNECTED}[SSL: WRONG_VERSION_NUMBER] wrong", "its address begins with http://"),
    ],
)
def test_an_error_says_whether_the_broker_was_reached(details, said):
    error = call_error(RpcFailed(Code.UNAVAILABLE, details), DEAD, "list of journals")
    assert said in str(error)
    assert error.retriable


@pytest.mark.parametrize("before", ["", "proxied: "], ids=["direct", "proxied"])
def test_a_broker_that_has_stopped_serving_is_asked_again(before):
    """Nothing was done: it says so before it looks at the journal. Gazette's brokers say it as well."""
    text = f"{before}resolve: resolver has stopped serving local replicas"
    error = call_error(RpcFailed(Code.UNKNOWN, text), DEAD, "append to a/one")
    assert "is leaving: " in str(error)
    assert error.retriable
    other = call_error(RpcFailed(Code.UNKNOWN, "resolve: out of ideas"), DEAD, "append to a/one")
    assert not other.retriable


def test_a_call_that_the_broker_dropped_is_made_again():
    """Cancelled by the other side: it had too many before it."""
    error = call_error(RpcFailed(Code.CANCELLED, "CANCELLED"), DEAD, "list of journals")
    assert "dropped the call, as it does while thousands wait for it" in str(error)
    assert error.retriable
