"""Clients that may ask, and ask for what should harm a broker: it lives, and answers others."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import eventually, turns

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 30.0
ROOM = 8 << 20


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def gateway(broker):
    settings = {"request_bytes_max": 4 << 20, "buffer_bytes_max": ROOM, "auto_create": True}
    async with gateway_of(broker, **settings) as gateway:
        yield gateway


@pytest.fixture
async def wire(gateway):
    async with WireClient.to(gateway.port) as wire:
        yield wire


async def made(wire, *names):
    topics = tuple(wire.entity("metadata", 4, "MetadataRequestTopic", name=one) for one in names)
    await wire.call("metadata", 4, topics=topics, allow_auto_topic_creation=True)


async def test_batches_that_grow_a_hundred_times_wait_for_room(gateway, wire):
    """160 MB in a request of 400 kB; of them no more than has room is in memory."""
    await made(wire, "bomb")
    (produce,) = [part for part in gateway.parts if type(part).__name__ == "Produce"]
    lanes = produce._lanes
    batch = batch_of(b'{"a":"%s"}' % (b"x" * (4 << 20)), codec=1)
    assert len(batch) < 10_000
    request = wire.produce_request("bomb", *[(0, batch)] * 40)
    held = []

    async def work():
        await wire.send("produce", 9, request)
        _, found = await wire.answer("produce", 9)
        parts = found.responses[0].partition_responses
        assert {part.error_code for part in parts} == {ErrorCode.none}

    group = TaskGroup("hostile")
    task = group.spawn(work(), name="work")
    while not task.done():
        lane = next(iter(lanes._lanes.values()), None)
        held.append(sum(len(one.lines.content) for one in lane._queue) if lane else 0)
        await turns()
    await task
    assert max(held) <= ROOM
    assert lanes.room.free == ROOM


async def test_names_that_do_not_exist_cost_few_listings(gateway, wire, monkeypatch):
    client, listings = gateway._client, []
    real = client.list

    async def count(*args):
        listings.append(args)
        await asyncio.to_thread(threading.Event().wait, 0.01)
        return await real(*args)

    monkeypatch.setattr(client, "list", count)
    names = [f"none{number}" for number in range(10_000)]
    topics = tuple(wire.entity("metadata", 4, "MetadataRequestTopic", name=one) for one in names)
    await wire.send(
        "metadata",
        4,
        wire.entity(
            "metadata", 4, "MetadataRequest", topics=topics, allow_auto_topic_creation=False
        ),
    )
    await eventually(lambda: listings, timeout_s=WAIT_S)
    before, began = len(listings), time.monotonic()
    await eventually(lambda: len(listings) > before + 5, timeout_s=WAIT_S)
    assert time.monotonic() - began > 0.4
