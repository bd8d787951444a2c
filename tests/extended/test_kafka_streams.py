"""Kafka Streams, unchanged, with a gateway: its state is in compacted topics, and is restored from them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka_docs import program_does
from kafka_jars import jars_of, version_of
from kafka_programs import SOURCES
from kafka_servers import LEASE_S, Gateways

from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

COUNT = 3000
WAIT_S = 180.0


@contextlib.contextmanager
def running(folder, server, name):
    """The program, with a state of its own, until it is killed at the end."""
    jars = f"{jars_of('streams')}/*:{jars_of('apache')}/*"
    source = SOURCES / "java" / "WordCount.java"
    subprocess.run(["javac", "-cp", jars, "-d", folder, source], check=True, timeout=patient(120))
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{folder}:{jars}", "WordCount"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, server, folder / name], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def produce(config, numbers):
    producer = Producer(config)
    for n in numbers:
        value = json.dumps({"text": f"alpha {'abc'[n % 3]}"})
        producer.produce("in", value.encode(), key=str(n))
    assert producer.flush(patient(WAIT_S)) == 0


def counted(config, wanted):
    """The last count of each word, once they are those, or when that takes too long."""
    group = {"group.id": f"look-{os.urandom(4).hex()}", "isolation.level": "read_committed"}
    consumer = Consumer(config | group | {"auto.offset.reset": "earliest"})
    found, deadline = {}, time.monotonic() + patient(WAIT_S)
    try:
        consumer.subscribe(["out"])
        while found != wanted and time.monotonic() < deadline:
            record = consumer.poll(1.0)
            if record is not None and record.error() is None:
                found[record.key().decode()] = json.loads(record.value())["n"]
        return found
    finally:
        consumer.close()


def counts_of(records):
    return dict.fromkeys(("text", "alpha"), records) | dict.fromkeys("abc", records // 3)


async def test_words_are_counted_once_though_the_program_and_its_state_are_lost(
    start_servers, tmp_path, request
):
    if shutil.which("javac") is None:
        pytest.skip("needs javac, to compile a program (Debian: default-jdk-headless)")
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    for topic in ("in", "out"):
        await gateways.make_topic(topic, partitions=2)
    config = {"bootstrap.servers": gateways.servers, "log_level": 0}
    with running(tmp_path, gateways.servers, "first"):
        await asyncio.to_thread(produce, config, range(COUNT))
        assert await asyncio.to_thread(counted, config, counts_of(COUNT)) == counts_of(COUNT)
        await asyncio.to_thread(produce, config, range(COUNT, 2 * COUNT))
    with running(tmp_path, gateways.servers, "second"):
        found = await asyncio.to_thread(counted, config, counts_of(2 * COUNT))
        assert found == counts_of(2 * COUNT)
    admin = AdminClient(config)
    listed = await asyncio.to_thread(admin.list_topics, timeout=patient(20.0))
    (changelog,) = (topic for topic in listed.topics if topic.endswith("-changelog"))
    asked = ConfigResource(ConfigResource.Type.TOPIC, changelog)
    future = admin.describe_configs([asked])[asked]
    configs = await asyncio.to_thread(future.result, patient(20.0))
    assert (configs["cleanup.policy"].value, configs["kafka.form"].value) == ("compact", "envelope")
    program_does(
        request.config,
        f"Kafka Streams {version_of('streams')}",
        "counts exactly once (`exactly_once_v2`), and restores its state from a compacted topic after it is killed",
    )
