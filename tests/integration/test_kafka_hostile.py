"""Clients that may ask, and ask for what should harm a broker: it lives, and answers others."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from kafka_servers import topic_specs
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.kafka.wire import bounds
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import JournalChange, LabelSet
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


async def test_batches_that_grow_a_hundred_times_wait_for_room(gateway, wire, monkeypatch):
    """160 MB in a request of 400 kB; of them no more than has room is in memory."""
    monkeypatch.setattr(bounds, "_STUCK_S", 60.0)  # this journal is slow, and not stuck
    await made(wire, "bomb")
    (produce,) = [part for part in gateway.parts if type(part).__name__ == "Produce"]
    lanes = produce._lanes
    batch = batch_of(b'{"a":"%s"}' % (b"x" * (4 << 20)), codec=1)
    assert len(batch) < 10_000
    request = wire.produce_request("bomb", *[(0, batch)] * 40)
    held = []

    async def work():
        await wire.send("produce", 9, replace(request, timeout=timedelta(seconds=60)))
        _, found = await wire.answer("produce", 9)
        parts = found.responses[0].partition_responses
        assert {part.error_code for part in parts} == {ErrorCode.none}

    group = TaskGroup("hostile")
    task = group.spawn(work(), name="work")
    while not task.done():
        lane = next(iter(lanes._lanes.values()), None)
        held.append(sum(one.lines.size for one in lane._queue) if lane else 0)
        await turns()
    await task
    assert max(held) <= ROOM
    assert lanes.room.free == ROOM


async def test_stuck_journal_leaves_room_for_others(gateway, wire, broker):
    """Its replicas cannot be found, so its appends wait for long."""
    await made(wire, "good")
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        specs = topic_specs("stuck", partitions=1, replication=2)
        await client.apply([JournalChange(spec) for spec in specs])
    batch = batch_of(b'{"a":"%s"}' % (b"x" * (3 << 20)), codec=1)
    async with WireClient.to(gateway.port) as other:
        for _ in range(8):
            await other.send("produce", 9, other.produce_request("stuck", (0, batch)))
        (produce,) = [part for part in gateway.parts if type(part).__name__ == "Produce"]
        await eventually(lambda: produce._lanes.room.free < ROOM, timeout_s=WAIT_S)
        for _ in range(5):
            answer = await wire.produce("good", batch_of(b"{}"))
            assert answer.error_code is ErrorCode.none
        codes = [(await other.produced()).error_code for _ in range(8)]
    assert codes[0] is ErrorCode.request_timed_out  # it may be appended later
    assert codes[-1] is ErrorCode.not_enough_replicas
    assert codes[-1].retriable


def topics_of(gateway):
    return gateway.parts[1]._gateway.topics


async def numbers_of(wire, name):
    """The partitions of a topic; None: there is none."""
    topic = wire.entity("metadata", 4, "MetadataRequestTopic", name=name)
    answer = await wire.call("metadata", 4, topics=(topic,), allow_auto_topic_creation=False)
    return [part.partition_index for part in answer.topics[0].partitions]


async def test_label_takes_over_no_partition_of_another_topic(gateway, wire, broker):
    """Not one that is new, and not one that exists, by a journal that is older."""
    (mine,) = topic_specs("x", partitions=1)
    (own,) = topic_specs("t", partitions=1)
    own = replace(own, name="events/part=000")
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([JournalChange(replace(mine, name="mine/x/0", labels=LabelSet()))])
        await client.apply([JournalChange(own)])
        assert await eventually(lambda: is_listed(wire, "t"), timeout_s=WAIT_S)
        for number in (0, 1):
            labels = LabelSet.of({"kafka.topic": "t", "kafka.partition": str(number)})
            (was,) = await client.list("name=mine/x/0")
            spec = replace(was.spec, labels=labels)
            await client.apply([JournalChange(spec, revision=was.mod_revision)])
            topics_of(gateway).forget()
            assert await numbers_of(wire, "t") == [0]
            async with gateway_of(broker) as other, WireClient.to(other.port) as second:
                assert await numbers_of(second, "t") == [0]
                answer = await second.produce("t", batch_of(b"{}"))
                assert answer.error_code is ErrorCode.none
        assert await client.read("mine/x/0").read() == b""
        assert (await client.read("events/part=000").read()).count(b"\n") == 2
        # Once it is deleted the name is free.
        (was,) = await client.list("name=events/part=000")
        await client.apply([JournalChange(None, was.name, was.mod_revision)])
        topics_of(gateway).forget()
        assert await numbers_of(wire, "t") == [1]


async def is_listed(wire, name):
    return bool(await numbers_of(wire, name))


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
