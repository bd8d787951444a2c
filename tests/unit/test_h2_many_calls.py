"""A hundred thousand calls over our channel and our server leave nothing on either side."""

from __future__ import annotations

import asyncio
import gc

import pytest
from h2_server_bench import SERVICE, Bench

from gazette_platform.ops.process import resident_bytes
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import PEER_LIMITS
from gazette_platform.serving.interface import Kind


async def call_many(channel, count, timeout_s):
    left = iter(range(count))

    async def work():
        for number in left:
            request = b"%d" % number
            path = f"/{SERVICE}/Unary"
            call = channel.call(path, Kind.UNARY, request=request, timeout_s=timeout_s)
            assert await call.answer() == request

    await asyncio.gather(*(work() for _ in range(32)))


@pytest.mark.long
async def test_hundred_thousand_calls_leave_nothing():
    async with Bench() as bench:
        channel = Channel(bench.address, Dialing(limits=PEER_LIMITS, message_bytes_max=1 << 20))
        await call_many(channel, 5_000, 60.0)
        gc.collect()
        objects, resident = len(gc.get_objects()), resident_bytes()
        await call_many(channel, 95_000, 60.0)
        gc.collect()
        assert len(gc.get_objects()) < objects + 1000
        assert resident_bytes() < resident + (8 << 20)
        (connection,) = bench.shared.connections
        assert not connection.streams
        assert not connection.blocked
        assert not bench.shared.tasks
        assert connection.unread == 0
        assert len(connection._ids._dropped) == 0
        await channel.close()
