"""A primary that freezes past its lease: others take over, and nothing of it counts any more."""

from __future__ import annotations

import asyncio
import re

import pytest
from grpc import aio
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.platform.component import answer_of
from gazette_platform.protocol import JournalChange
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.local import AppendCall
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd]

LEASE_S = 3.0
# How long appends may be held up: usually a second more than a lease; a client would wait for a minute.
HELD_UP_MAX_S = LEASE_S + 20.0


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path):
    async with BrokerCluster(
        tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix, zones="abcd", lease_s=LEASE_S
    ) as brokers:
        yield brokers


def spec(name, replication):
    return journal_spec(name, replication, refresh_s=3600)


async def primary_of(client, name):
    for listing in await client.list():
        if listing.spec.name == name and listing.route.primary_id is not None:
            return listing.route.primary_id.suffix
    return ""


def holders(cluster):
    """Count the brokers whose spools hold content that is never committed."""
    return sum(
        any(b"never " in path.read_bytes() for path in broker.spool.rglob("*.content"))
        for broker in cluster.brokers.values()
    )


async def messages_taken(broker):
    """Count the messages of appends that a broker has taken."""
    text = await asyncio.to_thread(answer_of, f"{broker.http_address}/debug/metrics", timeout_s=5.0)
    found = re.search(
        rb'^grpc_server_msg_received_total{[^}]*grpc_method="Append"[^}]*} (\S+)$',
        text,
        re.MULTILINE,
    )
    return float(found[1])


async def test_a_frozen_primary_neither_counts_nor_holds_up(cluster):
    name = "replicated/journal"
    config = ClientConfig(address=cluster.address, retry_timeout_s=60.0)
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(spec=spec(name, 3), delete="", revision=-1)])
        await client.append(name, b"before ")
        zombie = await primary_of(client, name)
        async with aio.insecure_channel(
            cluster.brokers[zombie].address.removeprefix("http://")
        ) as channel:
            stub = protocol_pb2_grpc.JournalStub(channel)
            # The one is under way when it freezes, with content at its replicas; it holds their
            # spools. The other comes while no peer looks.
            begun = AppendCall(stub, name, do_not_proxy=True)
            await begun.send(
                *[b"never " * (1 << 19)] * 2
            )  # more than is gathered before it is written
            await eventually(lambda: holders(cluster) == 3)
            cluster.pause(zombie)
            late = AppendCall(stub, name, do_not_proxy=True)
            await late.send(b"never ")
            began = asyncio.get_running_loop().time()
            result = await client.append(name, b"after")
            assert asyncio.get_running_loop().time() - began < HELD_UP_MAX_S
            assert result.begin == 7
            assert await primary_of(client, name) not in ("", zombie)
            await begun.call.write(pb.AppendRequest())
            await late.call.write(pb.AppendRequest())
            cluster.resume(zombie)
            for call in (begun, late):
                try:
                    response = await call.finish()
                except aio.AioRpcError:
                    continue
                assert response.status != pb.OK
        await eventually(lambda: cluster.brokers[zombie].has_ended)
        assert "lease" in cluster.brokers[zombie].log_tail()
        await cluster.revive()
        assert (await client.append(name, b"")).begin == 12
        async with client.read(name) as reader:
            assert b"".join([piece async for piece in reader]) == b"before after"


@pytest.mark.parametrize("replication", [1, 2])
async def test_who_froze_past_its_lease_with_all_its_replicas_counts_nothing(cluster, replication):
    """No broker is left that would refuse: each knows by its own clock alone, as soon as it wakes."""
    name = "replicated/journal"
    config = ClientConfig(address=cluster.address, retry_timeout_s=60.0)
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(spec=spec(name, replication), delete="", revision=-1)])
        await client.append(name, b"before ")
        (listing,) = await client.list()
        assert len(listing.route.members) == replication
        zombie = await primary_of(client, name)
        frozen = [member.suffix for member in listing.route.members]
        address = cluster.brokers[zombie].address.removeprefix("http://")
        async with aio.insecure_channel(address) as channel:
            stub = protocol_pb2_grpc.JournalStub(channel)
            calls = [AppendCall(stub, name, do_not_proxy=True) for _ in range(8)]
            before = await messages_taken(cluster.brokers[zombie])
            for call in calls:
                await call.send(b"never ")

            async def are_begun():  # it has them, except their ends
                return await messages_taken(cluster.brokers[zombie]) == before + 2 * len(calls)

            await eventually(are_begun)
            for broker in frozen:
                cluster.pause(broker)
            await eventually_taken_over(client, name, frozen)
            for call in calls:
                await call.call.write(pb.AppendRequest())
                await call.call.done_writing()
            for broker in reversed(frozen):  # the primary last: its replicas may have woken, or not
                cluster.resume(broker)
            for call in calls:
                try:
                    response = await call.call
                except aio.AioRpcError:
                    continue
                assert response.status != pb.OK
        for broker in frozen:
            await eventually(lambda broker=broker: cluster.brokers[broker].has_ended)
            assert "lease" in cluster.brokers[broker].log_tail()
        # Nor has any of it been persisted.
        assert {path.read_bytes() for path in cluster.fragments.rglob("*.raw")} == {b"before "}


async def eventually_taken_over(client, name, former):
    async def is_taken_over():
        return await primary_of(client, name) not in ("", *former)

    await eventually(is_taken_over)


async def test_a_frozen_replica_is_replaced(cluster):
    name = "replicated/journal"
    config = ClientConfig(address=cluster.address, retry_timeout_s=60.0)
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(spec=spec(name, 3), delete="", revision=-1)])
        await client.append(name, b"before ")
        primary = await primary_of(client, name)
        (listing,) = await client.list()
        frozen = next(m.suffix for m in listing.route.members if m.suffix != primary)
        cluster.pause(frozen)
        began = asyncio.get_running_loop().time()
        result = await client.append(name, b"after")
        assert asyncio.get_running_loop().time() - began < HELD_UP_MAX_S
        cluster.resume(frozen)
        (listing,) = await client.list()
        assert frozen not in [m.suffix for m in listing.route.members]
        async with client.read(name) as reader:
            content = b"".join([piece async for piece in reader])
        # The append that waited for it was tried again, and may be duplicated.
        assert content.startswith(b"before after")
        assert result.end == len(content)
