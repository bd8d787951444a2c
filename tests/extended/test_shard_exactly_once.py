"""Each message is in a shard's state, and each result in its output, once, however often it is killed."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

import pytest
from shard_bench import (
    IN,
    IN2,
    Bench,
    FileStore,
    NumberedInBatches,
    RemoteStore,
    make_journals,
    spec_of,
)

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.application import DeferToNextTransaction
from gazette_platform.errors import Fenced

pytestmark = pytest.mark.etcd

KEYS = "abc"


@pytest.fixture
async def bench(local_brokers, tmp_path):
    broker = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await make_journals(client)
        bench = Bench(client, tmp_path / "replicas")
        yield bench
        await bench.close()


class _SlowFiles(FileStore):
    delay_s: ClassVar[float] = 0.02


class _SlowRemote(RemoteStore):
    delay_s: ClassVar[float] = 0.02


class _Application(NumberedInBatches):
    """One that takes its time, and defers now and then."""

    def __init__(self, dice, remote=None):
        super().__init__(remote)
        self.dice = dice

    def new_store(self, shard, recorder):
        return _SlowRemote(self.remote) if recorder is None else _SlowFiles(recorder)

    async def consume_batch(self, txn, envelopes):
        await asyncio.sleep(self.dice.random() * 0.01)
        if len(envelopes) > 3 and self.dice.random() < 0.3:
            count = self.dice.randrange(1, len(envelopes))
            await super().consume_batch(txn, envelopes[:count])
            raise DeferToNextTransaction(count)
        await super().consume_batch(txn, envelopes)


async def publish_for_long(bench, dice, count):
    """Messages of two producers, some in transactions."""
    publishers = {name: bench.publisher(name) for name in (IN, IN2)}
    for number in range(count):
        name = dice.choice([IN, IN2])
        publisher = publishers[name]
        message = {"id": number, "key": KEYS[number % 3]}
        if name == IN:
            await publisher.publish_committed(message)
        else:
            await publisher.publish_uncommitted(message)
            if dice.random() < 0.2:
                await publisher.append_acks(publisher.build_acks())
        if dice.random() < 0.2:
            await asyncio.sleep(dice.random() * 0.01)
    await publishers[IN2].append_acks(publishers[IN2].build_acks())
    await publishers[IN].service.flush()


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
async def test_results_are_there_once_though_the_shard_is_killed_again_and_again(bench, log, seed):
    dice = random.Random(seed)
    application = _Application(dice)
    spec = spec_of(IN, IN2, log=log, ring_buffer_size=8)
    count = 800
    zombies = []
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(100):
        publishing = tasks.create_task(publish_for_long(bench, random.Random(seed), count))
        replica = bench.replica(application, spec)
        while not publishing.done():
            await asyncio.sleep(dice.random() * 0.4)
            if replica.is_ready and dice.random() < 0.5:
                # It is not killed, but goes on while another takes the shard over. One that was not
                # ready could still take it over itself, after that other.
                zombies.append(replica)
            elif dice.random() < 0.5:
                await replica.stop()
            else:
                await replica._tasks.close()  # nothing is tidied up: what is under way comes later
            replica = bench.replica(application, spec)
        ends = {name: await bench.client.write_head(name) for name in (IN, IN2)}
        store = await replica.wait_through(ends)
    assert len(bench.replicas) > 4
    assert len(application.seen) > count  # what was given up came again
    per_key = {key: len(range(index, count, 3)) for index, key in enumerate(KEYS)}
    assert store.state == {"all": count, **per_key}

    output = await bench.output()
    assert [each["number"] for each in output] == [*range(1, count + 1)]
    assert sorted(each["id"] for each in output) == [*range(count)]
    for key in KEYS:
        of_key = [each["of_key"] for each in output if each["key"] == key]
        assert of_key == [*range(1, per_key[key] + 1)]
    assert all(isinstance(zombie.error, Fenced | None) for zombie in zombies)


@pytest.mark.parametrize("log", [True, False])
async def test_results_are_there_once_though_the_broker_is_killed(broker, tmp_path, log):
    config = ClientConfig(address=broker.address, retry_timeout_s=None, connect_timeout_s=60)
    async with AsyncClient(config) as client:
        await make_journals(client)
        bench = Bench(client, tmp_path / "replicas")
        application = NumberedInBatches()
        replica = bench.replica(application, spec_of(log=log))
        publisher, count = bench.publisher(), 600

        async def publish():
            for number in range(count):
                await publisher.publish_committed({"id": number, "key": KEYS[number % 3]})
                await asyncio.sleep(0.005)
            await publisher.service.flush()

        async with asyncio.TaskGroup() as tasks, asyncio.timeout(100):
            publishing = tasks.create_task(publish())
            while not publishing.done():
                await asyncio.sleep(1)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            store = await replica.wait_through({IN: await client.write_head(IN)})
        assert store.state["all"] == count
        output = await bench.output()
        assert [each["number"] for each in output] == [*range(1, count + 1)]
        assert sorted(each["id"] for each in output) == [*range(count)]
        await bench.close()
