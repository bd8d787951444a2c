"""The cluster of broker processes of the test kit: what is done to them shows, and can be undone."""

from __future__ import annotations

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import TransportError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalChange, JournalSpec
from gazette_platform.testing.waiting import eventually
from tests.checker import check_history
from tests.checker.history import Payload, Recorder, load_history
from tests.checker.recording import RecordingClient

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

JOURNALS = [f"a/journal-{number}" for number in range(4)]


def client_of(cluster, **settings):
    defaults = {"address": cluster.address, "route_cache_ttl_s": 1.0}
    return AsyncClient(ClientConfig(**(defaults | settings)))


async def make_journals(client):
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=5 * SECOND_NS,
    )
    specs = [JournalSpec(name=name, replication=1, fragment=fragment) for name in JOURNALS]
    await client.apply([JournalChange(spec, "", 0) for spec in specs])


async def append_to_all(client, data=b"x"):
    for name in JOURNALS:
        await client.append(name, data)


async def zones_of(client):
    return {member.zone for listing in await client.list() for member in listing.route.members}


async def test_drain_hands_over_and_loses_nothing(broker_cluster, tmp_path):
    cluster = await broker_cluster(zones="ab")
    async with client_of(cluster) as client:
        await make_journals(client)
        with Recorder(tmp_path / "history", SystemClock(), seed=3) as recorder:
            recording = RecordingClient(client, recorder, "w1")
            for number in range(20):
                if number == 10:
                    await cluster.drain("broker-1")
                for name in JOURNALS:
                    await recording.append(name, Payload(f"w1-{name[-1]}-{number}", 60))
            for name in JOURNALS:
                async with client.read(name) as reader:
                    recorder.final(name, b"".join([bytes(piece) async for piece in reader]))
        assert await zones_of(client) == {"b"}
    report = check_history(load_history(tmp_path / "history"))
    assert report.is_valid, str(report)
    assert report.appends_ok == 80


async def test_broker_paused_past_its_lease_is_replaced(broker_cluster):
    cluster = await broker_cluster(zones="ab", lease_s=1.0)
    async with client_of(cluster) as client:
        await make_journals(client)
        cluster.pause("broker-2")

        async def is_a_alone():
            return await zones_of(client) == {"a"}

        await eventually(is_a_alone)
        cluster.resume("broker-2")
        # It finds its lease gone, and ends.
        await eventually(lambda: cluster.brokers["broker-2"].has_ended)
        assert await cluster.revive() == ["broker-2"]


async def test_isolated_broker_is_replaced_and_healed(broker_cluster):
    cluster = await broker_cluster(zones="ab", lease_s=1.0, is_proxied=True)
    async with client_of(cluster) as client:
        await make_journals(client)
        await append_to_all(client)
        cluster.isolate("broker-1")
        alone = ClientConfig(
            address=cluster.proxies["broker-1"].address, call_timeout_s=0.3, retry_timeout_s=0
        )
        async with AsyncClient(alone) as other:
            with pytest.raises(TransportError):
                await other.list()

        async def is_b_alone():
            return await zones_of(client) == {"b"}

        await eventually(is_b_alone)
        await cluster.heal()
        await eventually(lambda: cluster.brokers["broker-1"].has_ended)
        await cluster.revive()
        assert len(await client.list()) == 4
