"""Requests of our own service that mean harm: they hold up no other caller, and reveal nothing."""

from __future__ import annotations

import asyncio

import pytest
from grpc import StatusCode, aio
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import Header, LabelSelector
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.pb import admin_pb2 as pb, protocol_pb2
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

KEYS = "c2VjcmV0LWtleS1vZi0xNi1ieXRlcw=="
OURS, THEIRS = "tenant/ours", "other/secret"
METHODS = {"Flush": pb.FlushRequest, "ResetHead": pb.ResetHeadRequest}
ANSWERS = {"Flush": pb.FlushResponse, "ResetHead": pb.ResetHeadResponse}


def spec(name):
    return journal_spec(name, refresh_s=3600, stores=())


@pytest.fixture
async def brokers(cluster):
    """Two of them, and journals of two tenants."""
    made = [await cluster.start(auth_keys=KEYS, zone=zone, append_wait_s=0.2) for zone in "ab"]
    async with AsyncClient(ClientConfig(address=made[0].endpoint, auth_keys=KEYS)) as client:
        await client.apply([Change(spec(OURS)), Change(spec(THEIRS))])
        for name in (OURS, THEIRS):
            await client.append(name, b"content")
    return made


def token(capability, journal=OURS):
    claims = Claims(capability, LabelSelector.parse(f"name={journal}"))
    now = SystemClock().now().timestamp()
    return (("authorization", f"Bearer {KeyRing(KEYS).sign(claims, now=now, lifetime_s=60)}"),)


async def ask(broker, method, raw, capability=Capability.APPEND | Capability.APPLY):
    """Send bytes as the request. Returns: the response."""
    async with aio.insecure_channel(f"127.0.0.1:{broker.port}") as channel:
        call = channel.unary_unary(f"/gazette_platform.Admin/{method}")
        answer = await call(raw, metadata=token(capability), timeout=20)
        return ANSWERS[method].FromString(answer)


def with_members(request, members):
    for number in range(members):
        request.header.route.members.add(zone="zone", suffix=f"broker-{number}")
    request.header.etcd.revision = 1
    return request


@pytest.mark.parametrize("method", METHODS)
async def test_requests_are_held_against_rules_before_they_cost_anything(brokers, method):
    """A header of four megabytes took a second to look at, and a token was kept for each name."""
    kind = METHODS[method]
    hostile = {
        "Header": with_members(kind(journal=OURS), 100_000),
        "Journal": kind(journal=f"{OURS};{'x' * 1_000_000}"),
        "MinEtcdRevision": kind(journal=OURS, min_etcd_revision=-1),
    }
    for broker in brokers:
        for field, request in hostile.items():
            with pytest.raises(aio.AioRpcError, match=rf"{field}.*expected") as caught:
                await ask(broker, method, request.SerializeToString())
            assert caught.value.code() is StatusCode.UNKNOWN
            assert len(caught.value.details()) < 4000


@pytest.mark.parametrize("method", METHODS)
async def test_nothing_is_revealed_of_the_journals_of_others(brokers, method):
    kind = METHODS[method]

    async def told(name, broker, **fields):
        response = await ask(broker, method, kind(journal=name, **fields).SerializeToString())
        name = protocol_pb2.Status.Name(response.status)
        response.header.etcd.Clear()
        return name, response.SerializeToString()

    for broker in brokers:
        unknown = await told("other/there-is-none", broker)
        assert unknown[0] == "JOURNAL_NOT_FOUND"
        for name in (THEIRS, f"{THEIRS};meta"):
            assert await told(name, broker) == unknown
        assert (await told(f"{OURS};meta", broker))[0] in ("OK", "NOT_ALLOWED")
        for capability in (Capability.READ, Capability.LIST, Capability.REPLICATE):
            with pytest.raises(aio.AioRpcError) as caught:
                await ask(broker, method, kind(journal=OURS).SerializeToString(), capability)
            assert caught.value.code() is StatusCode.UNAUTHENTICATED
            assert OURS not in caught.value.details()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "raw",
    [b"\xff" * 100, b"\x12\x03\xed\xa0\x80", b"\x12\xff\xff\xff\xff\x0f", b"\x0b" * 10_000, b""],
    ids=["noise", "surrogate", "length", "groups", "empty"],
)
async def test_bytes_that_are_not_a_request_are_refused(brokers, method, raw):
    for broker in brokers:
        with pytest.raises(aio.AioRpcError) as caught:
            await ask(broker, method, raw)
        assert caught.value.code() in (StatusCode.INTERNAL, StatusCode.UNKNOWN)
        assert not broker.faults.recent


async def test_a_thousand_resets_at_a_time_leave_nothing_behind(brokers):
    """Of a journal that takes appends: nothing is done, and nothing stays."""
    raw = pb.ResetHeadRequest(journal=OURS, give_up=True).SerializeToString()
    tasks = len(asyncio.all_tasks())
    async with aio.insecure_channel(f"127.0.0.1:{brokers[0].port}") as channel:
        call = channel.unary_unary("/gazette_platform.Admin/ResetHead")
        calls = [call(raw, metadata=token(Capability.APPLY), timeout=30) for _ in range(1000)]
        for one in calls[::2]:
            one.cancel()
        for one in calls[1::2]:
            response = pb.ResetHeadResponse.FromString(await one)
            assert (response.head, response.was_refused) == (7, False)
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2)


async def test_who_may_only_append_has_no_broker_store_what_is_not_proven(brokers):
    """What a copy of its spools has may not be the journal's: a reset of the head says that it is given up."""
    other = next(one for one in brokers if OURS not in one._resolver.replicas)
    context = other._context
    header = Header(context.process_id, context.space.state.route_of(OURS), context.space.header)
    request = pb.FlushRequest(journal=OURS, gives_up=True)
    header.into_pb(request.header)
    with pytest.raises(aio.AioRpcError) as refused:
        await ask(other, "Flush", request.SerializeToString(), Capability.APPEND)
    assert refused.value.code() is StatusCode.UNAUTHENTICATED
    assert "missing required APPLY" in refused.value.details()
    answer = await ask(other, "Flush", request.SerializeToString())
    assert answer.status == protocol_pb2.NOT_JOURNAL_PRIMARY_BROKER
