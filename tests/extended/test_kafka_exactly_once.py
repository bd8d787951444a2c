"""Consume, transform, produce: each record once, whatever is killed, and all readers agree."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter

import confluent_kafka as ck
import pytest
from kafka_servers import Gateways, Program

from gazette_platform.client import AsyncClient
from gazette_platform.kafka.inspection import Caller
from gazette_platform.message import Flags, JsonFraming, read_committed
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]

PARTITIONS = 4
RECORDS = 1500
IDS = ("transform-0", "transform-1")


@pytest.fixture
def programs(tmp_path):
    """Starts programs of each transactional id, and again after they have ended."""
    running = {}

    def start(gateways, name):
        file = tmp_path / f"{name}.log"
        running[name] = Program(
            "kafka_transform.py", file, gateways.servers, "g", "source", "target", name, str(file)
        )
        return running[name]

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [one.kill() for one in running.values()])
        start.running = running
        yield start


def produce(servers):
    failed = []
    producer = ck.Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0}
    )
    for number in range(RECORDS):
        producer.produce(
            "source",
            json.dumps({"n": number}),
            partition=number % PARTITIONS,
            on_delivery=lambda err, _: failed.append(err) if err else None,
        )
        producer.poll(0)
    assert producer.flush(patient(60.0)) == 0
    assert not failed


def consume(servers, topic):
    """The numbers of a topic that are committed, up to its end. Blocks."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([ck.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
        found, ended = [], set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(patient(30.0))
            assert message is not None, f"only the partitions {ended} ended"
            if message.error() is None:
                found.append(json.loads(message.value())["n"])
            elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return Counter(found)
    finally:
        consumer.close()


async def numbers_of_client(gateways, journals):
    found = Counter()
    async with AsyncClient(gateways.client_config) as client:
        for journal in journals:
            framing = JsonFraming(uuid_field="_meta.uuid")
            async with await read_committed(client, journal, framing=framing) as reader:
                async for batch in reader:
                    found.update(
                        one.message["n"] for one in batch if one.uuid.flags != Flags.ACK_TXN
                    )
    return found


async def coordinator_zone(gateways, transactional_id):
    """The zone of the gateway that coordinates a transactional id."""
    async with Caller("127.0.0.1", gateways.ports["a"]) as caller:
        found = await caller.ask("find_coordinator", 2, key_type=1, key=transactional_id)
    return gateways.zone_of(found.port)


async def test_each_record_is_transformed_once(start_servers, programs):
    gateways = Gateways(start_servers, "a", "b", "c")
    await gateways.make_topic("source", partitions=PARTITIONS, replication=2)
    journals = await gateways.make_topic("target", partitions=PARTITIONS, replication=2)
    await asyncio.to_thread(produce, gateways.servers)
    drawn = random.Random(41)
    for name in IDS:
        programs(gateways, name)

    def committed():
        return sum(
            line["records"] for one in programs.running.values() for line in one.of("committed")
        )

    async def keep_running(wanted):
        """Wait for records, and start programs again that have ended."""

        def is_done():
            for name, one in [*programs.running.items()]:
                if one.process.poll() is not None:
                    programs(gateways, name)
            return committed() >= wanted

        await eventually(is_done, timeout_s=60.0)

    for step in range(1, 5):
        await keep_running(step * 150)
        victim = drawn.choice(IDS)
        programs.running[victim].kill()  # in the middle of anything
        programs(gateways, victim)
    await keep_running(committed() + 60)
    zone = await coordinator_zone(gateways, IDS[0])
    gateways.brokers[zone].kill()
    await keep_running(committed() + 60)
    gateways.brokers[zone].start()

    async def is_complete():
        await keep_running(0)
        return set(await asyncio.to_thread(consume, gateways.servers, "target")) == set(
            range(RECORDS)
        )

    await eventually(is_complete, timeout_s=120.0, poll_s=1.0)
    for one in programs.running.values():
        one.stop()
    found = await asyncio.to_thread(consume, gateways.servers, "target")
    assert [n for n, count in found.items() if count > 1] == []
    assert set(found) == set(range(RECORDS))
    assert await numbers_of_client(gateways, journals) == found
