"""What clients keep in etcd by names of groups and transactional ids: bounded for each owner, and in all."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.coordinator import group_bounds, live_groups, live_transactions
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

KEY = "c2VjcmV0IGtleSBvZiBhIGRlbW8sIGRvIG5vdCB1c2U="
TIME = timedelta(seconds=30)
WAIT_S = 30.0
OK, FULL = ErrorCode.none, ErrorCode.policy_violation
TOPIC = "flights"
# Tokens with other claims are other owners.
ALICE, BOB, CAROL, DAVE, EVE = (
    Capability.ALL & ~bit for bit in (0, 1 << 16, 1 << 17, 1 << 18, 1 << 19)
)


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start(auth_keys=KEY)


@contextlib.asynccontextmanager
async def wire_of(gateway, capability):
    """A client that has logged in."""
    token = KeyRing(KEY).sign(Claims(capability), now=SystemClock().unix_s(), lifetime_s=600)
    async with WireClient.to(gateway.port) as wire:
        await wire.call("sasl_handshake", 1, mechanism="PLAIN")
        await wire.call("sasl_authenticate", 2, auth_bytes=b"\0me\0" + token.encode())
        yield wire


@contextlib.asynccontextmanager
async def owners_of(broker, *capabilities):
    """A gateway that has a topic, and its clients."""
    async with (
        gateway_of(broker, auto_create=True) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        wires = [await stack.enter_async_context(wire_of(gateway, one)) for one in capabilities]
        topic = wires[0].entity("metadata", 4, "MetadataRequestTopic", name=TOPIC)
        await wires[0].call("metadata", 4, topics=(topic,), allow_auto_topic_creation=True)
        assert (await wires[0].produce(TOPIC, batch_of(b"{}"))).error_code is OK
        yield gateway, wires


async def commit(wire, group, *, topic=TOPIC, metadata="", offset=1):
    """Returns: the code."""
    part = wire.entity(
        "offset_commit",
        7,
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata=metadata,
    )
    named = wire.entity(
        "offset_commit", 7, "OffsetCommitRequestTopic", name=topic, partitions=(part,)
    )
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    answer = await wire.call("offset_commit", 7, group_id=group, topics=(named,), **member)
    return answer.topics[0].partitions[0].error_code


async def join(wire, group, member_id=""):
    protocol = wire.entity("join_group", 5, "JoinGroupRequestProtocol", name="range", metadata=b"")
    return await wire.call(
        "join_group",
        5,
        group_id=group,
        session_timeout=TIME,
        rebalance_timeout=TIME,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(protocol,),
    )


async def stored(wire):
    """Groups that have a record."""
    return {each.group_id for each in (await wire.call("list_groups", 3)).groups}


async def test_names_of_groups_alone_leave_nothing_in_etcd(broker, monkeypatch):
    monkeypatch.setattr(live_groups, "_IDLE_S", 0.2)
    async with owners_of(broker, ALICE) as (_, (wire,)):
        for number in range(20):
            answer = await join(wire, f"joined{number}")
            assert answer.error_code is ErrorCode.member_id_required
            assert await commit(wire, f"none{number}", topic="none") is not OK
        assert await stored(wire) == set()
        # One that has members has a record, and is forgotten after they have left.
        member = await join(wire, "used", (await join(wire, "used")).member_id)
        assert (member.error_code, await stored(wire)) == (OK, {"used"})
        await wire.call("leave_group", 1, group_id="used", member_id=member.member_id)
        assert await commit(wire, "kept") is OK

        async def forgotten():
            return await stored(wire) == {"kept"}

        assert await eventually(forgotten, timeout_s=WAIT_S, poll_s=0.1)


async def test_one_owner_does_not_fill_etcd_with_groups(broker, monkeypatch):
    monkeypatch.setattr(group_bounds, "_STORED_BYTES_MAX", 64 << 10)
    async with owners_of(broker, ALICE, BOB, CAROL, DAVE, EVE) as (gateway, wires):
        alice, bob, *others = wires
        codes = [await commit(alice, f"a{number}") for number in range(8)]
        count = codes.index(FULL)
        assert set(codes[count:]) == {FULL}
        assert await stored(alice) == {f"a{number}" for number in range(count)}
        assert await commit(alice, "a0", offset=10**9) is OK  # what exists goes on
        assert await commit(alice, "a0", metadata="x" * 4000) is FULL
        assert (await join(alice, "new")).error_code is FULL
        assert await commit(bob, "b0") is OK
        for number in range(3 * count):
            await commit(wires[1 + number % 3], f"o{number}")
        assert await commit(others[-1], "e0") in (OK, FULL)
        assert gateway.metrics.gauges["group_bytes"]() <= 64 << 10
        # Deleted groups make room.
        answer = await alice.call("delete_groups", 1, groups_names=("a0", "a1"))
        assert {each.error_code for each in answer.results} == {OK}
        assert await commit(alice, "a9") is OK
    async with owners_of(broker, ALICE) as (gateway, (wire,)):
        # A gateway that starts counts what is kept.
        assert await eventually(
            lambda: gateway.metrics.gauges["group_bytes"]() > 16 << 10, timeout_s=WAIT_S
        )
        assert [await commit(wire, f"a{number}") for number in (10, 11)] == [OK, FULL]


async def test_offsets_of_one_group_have_a_bound(broker, monkeypatch):
    monkeypatch.setattr(group_bounds, "_GROUP_BYTES_MAX", 3000)
    async with owners_of(broker, ALICE) as (_, (wire,)):
        assert await commit(wire, "g", metadata="x" * 2000) is OK
        code = ErrorCode.invalid_commit_offset_size
        assert await commit(wire, "g", metadata="x" * 4000) is code
        assert await commit(wire, "g", metadata="y" * 2000) is OK


async def init(wire, name):
    answer = await wire.call(
        "init_producer_id",
        4,
        transactional_id=name,
        transaction_timeout=TIME,
        producer_id=-1,
        producer_epoch=-1,
    )
    return answer.error_code


async def test_one_owner_does_not_fill_etcd_with_transactional_ids(broker, monkeypatch):
    monkeypatch.setattr(live_transactions, "_STORED_BYTES_MAX", 64 << 10)
    async with owners_of(broker, ALICE, BOB) as (gateway, (alice, bob)):
        assert [await init(alice, f"a{number}") for number in range(6)] == [OK] * 4 + [FULL] * 2
        assert await init(alice, "a0") is OK
        assert await init(bob, "b") is OK
        assert gateway.metrics.gauges["transaction_bytes"]() <= 64 << 10
        # Ids that are not used for a while make room.
        monkeypatch.setattr(live_transactions, "_FINISHED_MS", 0)
        monkeypatch.setattr(live_transactions, "_LOOK_S", 0.2)
        monkeypatch.setattr(live_transactions, "_IDLE_S", 0.1)

        async def has_room():
            return await init(alice, "more") is OK

        assert await eventually(has_room, timeout_s=WAIT_S, poll_s=0.1)
