"""Kafka's quotas, as librdkafka sees them: a caller keeps the rate, learns how long it waits, and others are not slowed."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_wire import WireClient, batch_of, gateway_of

from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 60.0
RATE = 200_000
COUNT = 100
VALUE = b'{"v":"%s"}' % (b"x" * 10_000)
SIZE = COUNT * len(VALUE)
# A quiet caller may take as much as in a second at once.
IDEAL_S = SIZE / RATE - 1


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


def settings_of(gateway, name, throttles):
    return {
        "bootstrap.servers": f"127.0.0.1:{gateway.port}",
        "client.id": name,
        "log_level": 0,
        "throttle_cb": lambda event: throttles.append(event.throttle_time),
    }


def make_topic(gateway):
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{gateway.port}", "log_level": 0})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(patient(WAIT_S))


def produce(gateway, name="fast", settings=()):
    """Produce all. Returns: the seconds it took, and what the client was asked to wait."""
    throttles = []
    producer = Producer(
        settings_of(gateway, name, throttles) | {"batch.size": 40_000} | dict(settings)
    )
    began = time.monotonic()
    for _ in range(COUNT):
        producer.produce("t", VALUE)
    assert producer.flush(patient(WAIT_S)) == 0
    return time.monotonic() - began, throttles


def consume(gateway, name="fast"):
    throttles = []
    consumer = Consumer(
        settings_of(gateway, name, throttles)
        | {"group.id": "g", "max.partition.fetch.bytes": 40_000}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    began = time.monotonic()
    found = []
    while len(found) < COUNT and time.monotonic() < began + patient(WAIT_S):
        found += consumer.consume(COUNT - len(found), 1.0)
    took_s = time.monotonic() - began
    consumer.close()
    assert [record.value() for record in found] == [VALUE] * COUNT
    return took_s, throttles


async def test_a_producer_keeps_the_rate_and_others_are_not_slowed(broker):
    async with gateway_of(broker, produce_quota=RATE) as gateway:
        await asyncio.to_thread(make_topic, gateway)
        took_s, throttles = await asyncio.to_thread(produce, gateway)
        assert took_s == pytest.approx(IDEAL_S, rel=0.2)
        assert throttles
        assert sum(throttles) == pytest.approx(gateway.metrics.throttled_s["in"], abs=0.5)
        async with WireClient.to(gateway.port) as wire:  # another client id
            answer = await wire.produce("t", batch_of(b'{"a":1}'))
        assert answer.base_offset > 0
        assert gateway.metrics.throttled_s["out"] == 0
        _, throttles = await asyncio.to_thread(consume, gateway)
        assert not throttles


async def test_a_consumer_keeps_the_rate(broker):
    async with gateway_of(broker, fetch_quota=RATE) as gateway:
        await asyncio.to_thread(make_topic, gateway)
        took_s, throttles = await asyncio.to_thread(produce, gateway)
        assert not throttles
        assert took_s < IDEAL_S
        took_s, throttles = await asyncio.to_thread(consume, gateway)
        assert took_s == pytest.approx(IDEAL_S, rel=0.2)
        assert throttles
        assert gateway.metrics.throttled_s["out"] > 0


async def test_a_client_that_does_not_wait_is_not_served(broker):
    async with gateway_of(broker, produce_quota=RATE) as gateway:
        await asyncio.to_thread(make_topic, gateway)
        batch = batch_of(*[VALUE] * 20)
        async with WireClient.to(gateway.port) as wire:
            began = time.monotonic()
            for _ in range(4):
                await wire.produce("t", batch)
            # The first is free, and the last is answered before its time is waited for.
            assert time.monotonic() - began > 2 * len(batch) / RATE * 0.8
