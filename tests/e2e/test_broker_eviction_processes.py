"""Broker processes that crash, stop or leave, on a real etcd and under a long lease."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from grpc import aio

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalChange, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.testing.local import AppendCall
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

LEASE_S = 20.0
# Longer than it takes to notice a crash.
LONG_S = 2.5


async def members(etcd, prefix):
    found = await etcd.range(f"{prefix}/members/", keys_only=True)
    return {kv.key.rpartition("#")[2] for kv in found.kvs}


async def all_stay(etcd, prefix, *, for_s=0.6):
    """Check that no broker of three is evicted while they see each other."""

    async def are_members():
        return await members(etcd, prefix) == {"broker-1", "broker-2", "broker-3"}

    await stays(are_members, for_s=for_s)


def tell_of_crashes(cluster):
    return [
        line
        for b in cluster.brokers.values()
        for line in b.log_tail().splitlines()
        if "has crashed" in line
    ]


async def test_a_killed_broker_is_evicted_and_a_stopped_one_is_not(
    broker_cluster, etcd, etcd_prefix
):
    cluster = await broker_cluster(zones="abc", lease_s=LEASE_S)
    await all_stay(etcd, etcd_prefix)
    cluster.pause("broker-2")
    await all_stay(etcd, etcd_prefix, for_s=LONG_S)
    cluster.resume("broker-2")
    assert not tell_of_crashes(cluster)
    began = time.monotonic()
    cluster.kill("broker-1")

    async def is_evicted():
        return "broker-1" not in await members(etcd, etcd_prefix)

    await eventually(is_evicted)
    # In less than two seconds, if the machine has nothing else to do; by its lease it would be twenty.
    assert time.monotonic() - began < LEASE_S / 2
    assert tell_of_crashes(cluster)
    # Its journals can be taken over, and it may come back under its name at once.
    await cluster.start("broker-1", timeout_s=15)
    await all_stay(etcd, etcd_prefix)
    # Nothing is left of what was said of it.
    assert not (await etcd.range(f"/.gazette-platform/refused{etcd_prefix}/")).kvs


async def test_who_lost_its_lease_acknowledges_nothing(broker_cluster, etcd, etcd_prefix):
    """A live process that is evicted by force: no append of a client of its own succeeds."""
    cluster = await broker_cluster(zones="a", lease_s=LEASE_S)
    broker = cluster.brokers["broker-1"]
    spec = JournalSpec(
        "a/journal",
        1,
        fragment=FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.NONE,
            stores=("file:///",),
            refresh_interval_ns=60 * 10**9,
        ),
    )
    channel = aio.insecure_channel(broker.address.removeprefix("http://"))
    config = ClientConfig(address=broker.address, retry_timeout_s=0.0)
    async with channel, AsyncClient(config) as client:
        await client.apply([JournalChange(spec, "", 0)])
        await client.append("a/journal", b"one")
        # Under way, and it owns the journal: more than a broker gathers before that.
        begun = AppendCall(protocol_pb2_grpc.JournalStub(channel), "a/journal")
        await begun.send(*[b"never " * (1 << 17)] * 6)
        (member,) = (await etcd.range(f"{etcd_prefix}/members/")).kvs
        assert await etcd.revoke_lease(member.lease)
        assert not await etcd.revoke_lease(member.lease)
        # It knows by now; its port is open for a second more.
        await eventually(lambda: "member key not found" in broker.log_tail())
        with contextlib.suppress(aio.AioRpcError):
            assert (await begun.commit()).status != pb.OK
        with pytest.raises(GazetteError):
            await client.append("a/journal", b"two")
    assert await asyncio.to_thread(broker.wait, timeout_s=patient(15)) != 0
    stored = b"".join(path.read_bytes() for path in cluster.fragments.rglob("*.raw"))
    assert stored == b"one"
