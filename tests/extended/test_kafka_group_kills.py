"""Consumer groups of real clients at real gateways, whose members and gateways are killed."""

from __future__ import annotations

import json
from collections import Counter

import confluent_kafka as ck
import pytest
from kafka_servers import Gateways, members

from gazette_platform.kafka.inspection import Caller
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]

PARTITIONS = 6
CLIENTS = ["confluent", "aiokafka"]


@pytest.fixture
def start(tmp_path):
    with members(tmp_path) as start:
        yield start


def produce(servers, topic, numbers):
    """Produce numbers, spread over all partitions, and wait for the answers."""
    failed = []
    producer = ck.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in numbers:
        producer.produce(
            topic,
            json.dumps({"n": number}).encode(),
            partition=number % PARTITIONS,
            on_delivery=lambda err, _: failed.append(err) if err else None,
        )
        producer.poll(0)
    assert producer.flush(patient(60.0)) == 0
    assert not failed


def values(started):
    return Counter(line["value"]["n"] for one in started for line in one.of("record"))


async def shared(started):
    """Wait until each has partitions, and all together have each once."""

    def is_shared():
        held = [one.partitions for one in started]
        return all(held) and sorted(n for some in held for n in some) == list(range(PARTITIONS))

    await eventually(is_shared, timeout_s=60.0)


@pytest.mark.parametrize("client", CLIENTS)
async def test_killed_member_loses_no_record(start_servers, start, client):
    gateways = Gateways(start_servers, "a", "b")
    await gateways.make_topic("flights", partitions=PARTITIONS)
    started = [start(name, client, gateways.servers, "g", "flights") for name in "xyz"]
    await shared(started)
    produce(gateways.servers, "flights", range(600))
    await eventually(lambda: len(started[0].of("committed")) >= 5, timeout_s=30.0)
    victim, *others = started
    victim.kill()
    produce(gateways.servers, "flights", range(600, 1200))
    await shared(others)
    await eventually(lambda: set(values(started)) == set(range(1200)), timeout_s=60.0)
    # Only what the killed member had not committed comes again.
    uncommitted = len(victim.of("record")) - len(victim.of("committed"))
    again = sum(count - 1 for count in values(started).values())
    assert again <= max(uncommitted, 0) + (10 * PARTITIONS if client == "aiokafka" else 0)
    for one in others:
        one.stop()
        assert one.of("left"), one.errors


async def test_static_member_comes_back_without_a_rebalance(start_servers, start):
    gateways = Gateways(start_servers, "a")
    await gateways.make_topic("flights", partitions=PARTITIONS)
    started = [
        start(name, "confluent", gateways.servers, "g", "flights", f"instance-{name}")
        for name in "xyz"
    ]
    await shared(started)
    victim, *others = started
    held = victim.partitions
    seen = [len(one.lines) for one in others]
    victim.kill()
    again = start("x", "confluent", gateways.servers, "g", "flights", "instance-x")
    await eventually(lambda: again.partitions == held, timeout_s=30.0)
    produce(gateways.servers, "flights", range(60))
    await eventually(lambda: set(values([again, *others])) == set(range(60)), timeout_s=30.0)
    for one, before in zip(others, seen, strict=True):
        kinds = {line["what"] for line in one.lines[before:]}
        assert kinds <= {"record", "committed"}, "a restart of another member was noticed"


@pytest.mark.parametrize("client", CLIENTS)
async def test_group_outlives_its_coordinator(start_servers, start, client):
    gateways = Gateways(start_servers, "a", "b", "c")
    await gateways.make_topic("flights", partitions=PARTITIONS, replication=2)
    started = [start(name, client, gateways.servers, "g", "flights") for name in "xy"]
    await shared(started)
    produce(gateways.servers, "flights", range(300))
    await eventually(lambda: set(values(started)) == set(range(300)), timeout_s=60.0)
    async with Caller("127.0.0.1", min(gateways.ports.values())) as caller:
        found = await caller.ask("find_coordinator", 2, key_type=0, key="g")
    # A third member joins, and the coordinator dies before all have joined again.
    started.append(start("z", client, gateways.servers, "g", "flights"))
    await eventually(lambda: started[2].of("started"), timeout_s=30.0)
    gateways.brokers[gateways.zone_of(found.port)].kill()
    produce(gateways.servers, "flights", range(300, 600))
    await shared(started)
    await eventually(lambda: set(values(started)) == set(range(600)), timeout_s=90.0)
    # Offsets survived: what was committed before does not come again.
    twice = [number for number, count in values(started).items() if count > 1]
    assert len(twice) <= len(started) * PARTITIONS * 10
    assert not [number for number in twice if number < 200]
