"""What a broker with a gateway shows on /debug/metrics, after real requests of clients."""

from __future__ import annotations

import asyncio
import re
import struct
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_wire import WireClient, batch_of
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.kafka.server import BrokerWithKafka
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 20.0
COUNT = 25
METADATA = 3


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def both(broker):
    found = BrokerWithKafka(broker, KafkaConfig(port=0, store="file:///kafka/"))
    await found.start_kafka()
    yield found
    await found._stop_kafka()


def read(broker):
    """The samples of the gateway, by name and labels."""
    url = f"http://127.0.0.1:{broker.http_port}/debug/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        text = answer.read().decode()
    lines = re.findall(r"^gazette_platform_kafka_(\S+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


async def test_requests_records_and_what_is_open(both, broker):
    server = {"bootstrap.servers": f"127.0.0.1:{both.kafka.port}", "log_level": 0}
    before = await asyncio.to_thread(read, broker)
    assert (before["connections"], before['records_total{direction="in"}']) == (0, 0)

    def produce():
        admin = AdminClient(server)
        future = admin.create_topics([NewTopic("t", 1, 1)])["t"]
        future.result(patient(WAIT_S))
        producer = Producer(server | {"transactional.id": "x"})
        producer.init_transactions(patient(WAIT_S))
        producer.begin_transaction()
        for n in range(COUNT):
            producer.produce("t", b'{"n":%d}' % n)
        producer.flush(patient(WAIT_S))
        return producer

    producer = await asyncio.to_thread(produce)
    found = await asyncio.to_thread(read, broker)
    assert found['records_total{direction="in"}'] == COUNT
    assert found['record_bytes_total{direction="in"}'] > COUNT * len('{"n":0}')
    assert found["open_transactions"] == 1
    assert found["connections"] >= 1
    assert found['requests_total{api="produce",outcome="ok"}'] >= 1
    await asyncio.to_thread(producer.commit_transaction, patient(WAIT_S))

    def consume():
        settings = {"group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(server | settings)
        consumer.subscribe(["t"])
        records = consumer.consume(COUNT, patient(WAIT_S))
        assert [one.error() for one in records] == [None] * COUNT
        return consumer

    consumer = await asyncio.to_thread(consume)
    found = await asyncio.to_thread(read, broker)
    assert found['records_total{direction="out"}'] == COUNT
    assert found['record_bytes_total{direction="out"}'] > COUNT * len('{"n":0}')
    assert (found["groups"], found["group_members"], found["open_transactions"]) == (1, 1, 0)
    begun = broker.metrics.registry.get_sample_value
    labels = {"grpc_type": "server_stream", "grpc_service": "protocol.Journal"}
    assert begun("grpc_server_started_total", labels | {"grpc_method": "Read"}) >= 1
    assert not broker._server._shared.connections, "the gateway calls its broker without one"
    await asyncio.to_thread(consumer.close)

    async def left():
        now = await asyncio.to_thread(read, broker)
        return now["group_members"] == 0

    assert await eventually(left, poll_s=0.1)


async def test_errors_and_closed_connections(both, broker):
    async with WireClient.to(both.kafka.port) as wire:
        answer = await wire.produce("none", batch_of(b"{}"))
        assert answer.error_code is ErrorCode.unknown_topic_or_partition
    async with WireClient.to(both.kafka.port) as wire:
        wire.send_frame(struct.pack(">hhih", METADATA, 7, 1, -1))  # and no topics
        await wire.ended()

    async def counted():
        found = await asyncio.to_thread(read, broker)
        keys = [
            'requests_total{api="produce",outcome="error"}',
            'requests_total{api="metadata",outcome="closed"}',
        ]
        return [found.get(key) for key in keys] == [1, 1] and found["connections"] == 0

    assert await eventually(counted, poll_s=0.1)
