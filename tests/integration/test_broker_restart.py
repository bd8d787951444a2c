"""A broker that crashed, and is there again at the same address before anybody looked."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gazette_platform.protocol import ProcessId
from gazette_platform.testing.local_broker import LocalBrokers, eventually

pytestmark = pytest.mark.etcd

LEASE_S = 20.0


def unused_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def has_seen(broker, process_id):
    """Whether the crash watch of `broker` has had a connection accepted."""
    evictor = broker._context.peers._observer.__self__
    track = evictor._watch._tracks.get(process_id)
    return track is not None and track.state.value == "well"


@pytest.fixture
async def brokers(etcd_server, etcd_prefix, tmp_path):
    local = LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix)
    async with local:
        yield local


@pytest.mark.parametrize("ids", [("a-broker", "a-broker"), ("a-broker", "another")])
async def test_its_former_instance_is_evicted_all_the_same(brokers, ids):
    port = unused_port()
    others = [await brokers.start(zone=zone, etcd_lease_s=LEASE_S) for zone in "bc"]
    former = await brokers.start(zone="a", id=ids[0], port=port, etcd_lease_s=LEASE_S)
    members = others[0]._context.space.state.members
    was = members[ProcessId("a", ids[0])].create_revision
    # Its peers have to have seen it alive.
    await eventually(lambda: all(has_seen(b, ProcessId("a", ids[0])) for b in others))
    await former.abandon()
    async with asyncio.timeout(LEASE_S / 2):
        again = await brokers.start(zone="a", id=ids[1], port=port, etcd_lease_s=LEASE_S)
        await eventually(lambda: ProcessId("a", ids[1]) in members)
    assert again.port == port
    assert was not in {member.create_revision for member in members.values()}
