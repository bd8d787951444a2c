"""Consumers of lines that are longer than what is read ahead: what a gateway holds of them, and that all are given."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from kafka_servers import topic_specs
from kafka_wire import WireClient, gateway_of

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.kafka.calls import offsets
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import JournalChange
from gazette_platform.testing.waiting import patient, turns

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 60.0
COUNT = 12
LINE = b"x" * (3 << 20)
TOTAL = 4 << 20
AHEAD = 256 << 10
RECORD = 1 << 20
PIECE = 1 << 20  # of a broker's answer


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        yield client


@pytest.fixture
async def gateway(broker, monkeypatch):
    monkeypatch.setattr(offsets, "_TOTAL_BYTES", TOTAL)
    monkeypatch.setattr(offsets, "_AHEAD_BYTES", AHEAD)
    async with gateway_of(broker, record_bytes_max=RECORD) as gateway:
        yield gateway


def ahead_of(gateway):
    (fetch,) = [part for part in gateway.parts if type(part).__name__ == "Fetch"]
    return fetch._ahead


async def test_long_lines_are_held_one_after_the_other_and_all_are_given(gateway, client):
    specs = topic_specs("long", partitions=COUNT)
    await client.apply([JournalChange(spec) for spec in specs])
    for spec in specs:
        await client.append(spec.name, LINE)
    ahead = ahead_of(gateway)
    held, given = [], {}

    async def watch():
        while len(given) < COUNT:
            held.append(ahead.held)
            await turns()

    async def consume(wire, number):
        while True:
            found = await wire.fetch("long", 0, index=number, wait_s=1)
            if found.records:
                (record,) = DefaultRecordBatch(bytes(found.records))
                given[number] = record.value
                return

    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(patient(WAIT_S)):
        wires = [await stack.enter_async_context(WireClient.to(gateway.port)) for _ in specs]
        watching = TaskGroup("watch").spawn(watch(), name="watch")
        for number, wire in enumerate(wires):
            assert (await wire.fetch("long", 0, index=number, wait_s=0.2)).records in (b"", None)
        for spec in specs:  # now the lines end
            await client.append(spec.name, b"\n")
        await asyncio.gather(*(consume(wire, number) for number, wire in enumerate(wires)))
        await watching
    assert given == dict.fromkeys(range(COUNT), LINE)
    # Each tail has a first piece, and one of them grows.
    assert max(held) <= COUNT * PIECE + 6 * RECORD < COUNT * len(LINE)
    assert ahead.held == 0


async def test_lines_that_no_one_takes_make_room(gateway, client, monkeypatch):
    """Connections that ask once, and never again, keep no one waiting for long."""
    monkeypatch.setattr(offsets, "_UNUSED_S", 0.5)
    specs = topic_specs("long", partitions=COUNT)
    await client.apply([JournalChange(spec) for spec in specs])
    for spec in specs:
        await client.append(spec.name, LINE)  # they have no end
    last = specs[-1].name
    await client.append(last, b"\n")
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(patient(WAIT_S)):
        for number in range(COUNT - 1):
            wire = await stack.enter_async_context(WireClient.to(gateway.port))
            await wire.fetch("long", 0, index=number, wait_s=0)
        wire = await stack.enter_async_context(WireClient.to(gateway.port))
        while not (found := await wire.fetch("long", 0, index=COUNT - 1, wait_s=1)).records:
            pass
        (record,) = DefaultRecordBatch(bytes(found.records))
        assert record.value == LINE


async def test_searches_hold_long_lines_one_after_the_other():
    room = offsets.Budget(10 << 20)
    content = [b"a\nbb\n", b"c" * (3 << 20), b"d\ne"]
    async with offsets._Pieces(room, 10 << 20) as first, offsets._Pieces(room, 10 << 20) as second:
        assert [await first.add(each) for each in content[:2]] == [b"a\nbb\n", b""]
        assert room.free == 0
        task = TaskGroup("second").spawn(second.add(content[1]), name="add")
        await turns()
        assert not task.done()
        assert await first.add(content[2]) == content[1] + b"d\n"
        await first.__aexit__()
        assert await task == b""
        first._taken = 0
