"""A broker that crashed, and is back at the same address before any peer looked."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gazette_platform.broker.crash.handover import await_former
from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import encode_broker_spec, member_key
from gazette_platform.platform.component import choose_ports
from gazette_platform.protocol import BrokerSpec, ProcessId
from gazette_platform.testing.local import LocalBrokers
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

LEASE_S = 20.0


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
    port = choose_ports(["broker"])["broker"]
    others = [await brokers.start(zone=zone, etcd_lease_s=LEASE_S) for zone in "bc"]
    former = await brokers.start(zone="a", id=ids[0], port=port, etcd_lease_s=LEASE_S)
    members = others[0]._context.space.state.members
    # Its peers have to have seen it alive: a mirror of etcd is a moment behind who wrote to it.
    await eventually(lambda: ProcessId("a", ids[0]) in members)
    await eventually(lambda: all(has_seen(b, ProcessId("a", ids[0])) for b in others))
    was = members[ProcessId("a", ids[0])].create_revision
    await former.abandon()
    async with asyncio.timeout(LEASE_S / 2):
        again = await brokers.start(zone="a", id=ids[1], port=port, etcd_lease_s=LEASE_S)
        await eventually(lambda: ProcessId("a", ids[1]) in members)
    assert again.port == port
    assert was not in {member.create_revision for member in members.values()}


@pytest.mark.parametrize(
    ("name", "endpoint", "is_exiting", "waits"),
    [
        ("own-one", "http://elsewhere:1", False, True),
        ("another", "http://here:1", False, True),
        ("another", "http://elsewhere:1", False, False),
        ("own-one", "http://here:1", True, False),
    ],
    ids=["same id", "same endpoint", "nothing of ours", "leaving"],
)
async def test_who_is_waited_for(etcd, etcd_prefix, name, endpoint, is_exiting, waits):
    """An instance that says that it leaves is not dead: its lease, and others, see to it."""
    own, member = ProcessId("a", "own-one"), ProcessId("a", name)
    spec = BrokerSpec(member, endpoint, exiting=is_exiting)
    key = member_key(etcd_prefix, member)
    await etcd.txn([], [Put(key, encode_broker_spec(spec))])
    waiting = asyncio.ensure_future(  # noqa: TID251
        await_former(
            etcd, etcd_prefix, own, "http://here:1", host="127.0.0.1", port=0, timeout_s=60.0
        )
    )
    if waits:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.5)
        await etcd.txn([], [Delete(key)])
    await asyncio.wait_for(waiting, patient(10))


async def test_broker_whose_port_answers_is_not_waited_for(etcd, etcd_prefix):
    own = ProcessId("a", "own-one")
    spec = BrokerSpec(own, "http://here:1")
    await etcd.txn([], [Put(member_key(etcd_prefix, own), encode_broker_spec(spec))])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        await asyncio.wait_for(
            await_former(
                etcd, etcd_prefix, own, "http://here:1", host="127.0.0.1", port=port, timeout_s=60.0
            ),
            10,
        )
