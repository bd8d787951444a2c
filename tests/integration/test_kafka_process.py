"""Gateways in processes of their own: clients of Kafka are served by brokers without a port for them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_servers import GatewayServer

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import SetupError
from gazette_platform.kafka.config import GatewayConfig, KafkaConfig
from gazette_platform.kafka.process import KafkaProcess
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 20.0
KEY = "c2VjcmV0IGtleSBvZiBhIGRlbW8sIGRvIG5vdCB1c2U="
RECORDS = 200


def settings(*servers, **more):
    return {"bootstrap.servers": ",".join(servers), "log_level": 0} | more


def create(config, topic, partitions):
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(patient(WAIT_S))


def produce(config, topic, numbers):
    """Produce in a transaction, and in another one that is aborted."""
    producer = Producer(config | {"transactional.id": "one"})
    producer.init_transactions(patient(WAIT_S))
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for n in numbers:
            producer.produce(topic, b'{"n":%d}' % n)
        assert producer.flush(patient(WAIT_S)) == 0
        ends(patient(WAIT_S))


def consume(config, topic, count):
    """Take records as the group `g`, and commit."""
    options = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(config | options)
    found = []
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            some = consumer.consume(count - len(found), patient(WAIT_S))
            assert some, f"{len(found)} of {count} records came"
            assert [one.error() for one in some] == [None] * len(some)
            found += [one.value() for one in some]
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def nodes(config):
    return {node.port for node in AdminClient(config).list_topics(timeout=WAIT_S).brokers.values()}


def records_in(gateway):
    """Records that it took in, as its metrics say."""
    with urllib.request.urlopen(f"{gateway.http_address}/debug/metrics", timeout=WAIT_S) as answer:
        text = answer.read().decode()
    return float(re.search(r'kafka_records_total\{direction="in"\} (\S+)', text)[1])


async def test_gateways_serve_clients_and_leave_to_each_other(
    start_servers, etcd_server, etcd_prefix, tmp_path
):
    (broker,) = start_servers("a")
    where = {"broker": broker.address, "etcd": etcd_server.endpoint, "prefix": etcd_prefix}
    with (
        GatewayServer(tmp_path / "one", **where) as one,
        GatewayServer(tmp_path / "two", **where) as two,
    ):
        both, left = settings(one.server, two.server), settings(two.server)
        await asyncio.to_thread(create, both, "t", 4)
        listed = await asyncio.to_thread(AdminClient(both).list_topics, timeout=patient(WAIT_S))
        assert nodes(both) == {one.port, two.port}
        assert {each.leader for each in listed.topics["t"].partitions.values()} <= {1, 2}
        await asyncio.to_thread(produce, both, "t", range(RECORDS))
        assert records_in(one) + records_in(two) == 2 * RECORDS
        found = await asyncio.to_thread(consume, both, "t", RECORDS // 2)
        assert await asyncio.to_thread(one.stop) == 0

        async def is_alone():
            return await asyncio.to_thread(nodes, left) == {two.port}

        await eventually(is_alone, timeout_s=WAIT_S)
        found += await asyncio.to_thread(consume, left, "t", RECORDS - RECORDS // 2)
        assert sorted(found) == sorted(b'{"n":%d}' % n for n in range(RECORDS))
        await asyncio.to_thread(produce, left, "t", range(3))
        assert len(await asyncio.to_thread(consume, left, "t", 3)) == 3


@contextlib.asynccontextmanager
async def process(broker, etcd_server, etcd_prefix, **more):
    """A gateway beside a broker, in this process."""
    common = {"etcd_address": etcd_server.endpoint, "etcd_prefix": etcd_prefix}
    kafka = KafkaConfig(port=0, store="file:///kafka/")
    config = GatewayConfig(broker_address=broker.endpoint, kafka=kafka, **(common | more))
    made = KafkaProcess(config)
    try:
        await made.start()
        yield made
    finally:
        await made.drain()


async def test_port_has_a_certificate_and_asks_for_tokens(
    local_brokers, etcd_server, etcd_prefix, tmp_path
):
    authority = CertificateAuthority(tmp_path)
    files = authority.issue("gateway")
    secure = {
        "server_cert_file": files.cert,
        "server_cert_key_file": files.key,
        "peer_ca_file": authority.ca,
        "auth_keys": KEY,
    }
    broker = await local_brokers.start(**secure)
    async with process(broker, etcd_server, etcd_prefix, **secure) as gateway:

        def config(capability):
            claims = Claims(capability)
            token = KeyRing(KEY).sign(claims, now=SystemClock().unix_s(), lifetime_s=600)
            return settings(f"127.0.0.1:{gateway.port}") | {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(authority.ca),
                "sasl.mechanism": "PLAIN",
                "sasl.username": "anyone",
                "sasl.password": token,
            }

        everything = config(Capability.ALL)
        await asyncio.to_thread(create, everything, "t", 1)
        await asyncio.to_thread(produce, everything, "t", range(3))
        assert len(await asyncio.to_thread(consume, everything, "t", 3)) == 3
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            await asyncio.to_thread(create, config(Capability.READ), "u", 1)
        assert gateway.metrics.registry.get_sample_value(
            "gazette_platform_kafka_records_total", {"direction": "out"}
        )
        options = {"address": broker.endpoint, "trusted_ca_file": str(authority.ca)}
        async with AsyncClient(ClientConfig(auth_keys=KEY, **options)) as client:
            assert [each.name for each in await client.list("kafka.topic=t")] == [
                "topic/t/part=000"
            ]


async def test_brokers_and_etcd_have_to_be_of_one_cluster(local_brokers, etcd_server, etcd_prefix):
    broker = await local_brokers.start()
    with pytest.raises(SetupError, match=f"not those of {etcd_prefix}/other in the etcd at"):
        async with process(broker, etcd_server, f"{etcd_prefix}/other"):
            pass
