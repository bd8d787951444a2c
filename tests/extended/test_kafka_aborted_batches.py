"""A producer that aborts while an answer is lost, and numbers other records like those that it gave up."""

from __future__ import annotations

import asyncio
import json

import confluent_kafka as ck
import pytest
from kafka_servers import topic_specs

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import JournalChange
from gazette_platform.testing.cluster import BrokerCluster
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.fault_proxy import Direction
from gazette_platform.testing.waiting import eventually, patient
from tests.kafka_chaos.readers import consume

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]

WAIT_S = 30.0
GIVEN_UP, WANTED = range(100, 200), range(1000, 1014)


def producer_of(servers):
    return ck.Producer(
        {"bootstrap.servers": servers, "transactional.id": "x", "linger.ms": 5, "log_level": 0}
    )


def produce(producer, numbers):
    for number in numbers:
        producer.produce("t", json.dumps({"n": number}))


async def test_records_after_a_batch_that_was_given_up_are_kept(sturdy_etcd_binary, tmp_path):
    async def calls(call):
        return await asyncio.to_thread(call, patient(WAIT_S))

    with EtcdServer(sturdy_etcd_binary) as etcd:
        async with (
            BrokerCluster(
                tmp_path,
                etcd=etcd.endpoint,
                prefix="/given-up",
                zones="a",
                lease_s=10.0,
                is_proxied=True,
                has_kafka=True,
            ) as cluster,
            AsyncClient(ClientConfig(address=cluster.address)) as client,
        ):
            (spec,) = topic_specs("t", partitions=1)
            await client.apply([JournalChange(spec)])
            await client.append(spec.name, b"")
            _, door = cluster.doors("broker-1")
            servers = f"127.0.0.1:{door.port}"
            producer = producer_of(servers)
            await calls(producer.init_transactions)
            producer.begin_transaction()
            produce(producer, [0])
            await calls(producer.flush)
            head = await client.write_head(spec.name)
            door.black_hole(Direction.TO_CLIENT)
            produce(producer, GIVEN_UP)

            async def is_appended():
                return await client.write_head(spec.name) > head

            await eventually(is_appended, timeout_s=WAIT_S)
            door.refuse()  # librdkafka queues them again, and gives them up at once when it aborts
            async with asyncio.TaskGroup() as aborting:
                aborting.create_task(calls(producer.abort_transaction))
                await eventually(lambda: len(producer) == 0, timeout_s=WAIT_S)
                await door.heal()
            producer.begin_transaction()
            produce(producer, WANTED)
            # As at Kafka's brokers, it has to begin again: its numbers are those of what it gave up.
            with pytest.raises(ck.KafkaException, match="FATAL"):
                await calls(producer.commit_transaction)
            producer = producer_of(servers)
            await calls(producer.init_transactions)
            producer.begin_transaction()
            produce(producer, WANTED)
            await calls(producer.commit_transaction)
            found = await asyncio.to_thread(consume, servers, "t", 1)
            assert [number for _, number in found[0]] == list(WANTED)
