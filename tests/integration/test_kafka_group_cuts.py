"""Members of a group, when the client that moved the group on is gone before its answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from kafka_wire import WireClient, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

SESSION = timedelta(seconds=60)
WAIT_S = 30.0


async def begin_join(wire, member_id=""):
    protocol = wire.entity("join_group", 3, "JoinGroupRequestProtocol", name="range", metadata=b"")
    request = wire.entity(
        "join_group",
        3,
        "JoinGroupRequest",
        group_id="g",
        session_timeout=SESSION,
        rebalance_timeout=SESSION,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(protocol,),
    )
    await wire.send("join_group", 3, request)


async def test_others_get_their_answers_if_the_last_to_join_is_gone(local_brokers, monkeypatch):
    """Its join completes a generation. It is cut off while etcd writes that."""
    broker = await local_brokers.start()
    async with (
        gateway_of(broker) as gateway,
        WireClient.to(gateway.port) as first,
        WireClient.to(gateway.port) as second,
    ):
        await begin_join(first)
        _, joined = await first.answer("join_group", 3)
        assert joined.error_code is ErrorCode.none
        await begin_join(second)  # which waits for the first
        (coordinator,) = [one for one in gateway.parts if type(one).__name__ == "GroupCoordinator"]
        group = coordinator._groups.known
        assert await eventually(lambda: len(group("g").group.members) == 2, timeout_s=WAIT_S)
        etcd, writes, goes_on = gateway._etcd, [], asyncio.Event()
        real = etcd.txn

        async def slow(*arguments):
            writes.append(arguments)
            await goes_on.wait()
            return await real(*arguments)

        monkeypatch.setattr(etcd, "txn", slow)
        await begin_join(first, joined.member_id)
        assert await eventually(lambda: writes, timeout_s=WAIT_S)
        connections = gateway.metrics.gauges["connections"]
        first._writer.transport.abort()
        assert await eventually(lambda: connections() == 1, timeout_s=WAIT_S)
        goes_on.set()
        _, answer = await second.answer("join_group", 3)
        assert (answer.error_code, answer.generation_id) == (
            ErrorCode.none,
            joined.generation_id + 1,
        )
