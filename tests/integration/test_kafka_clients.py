"""Kafka's clients as they are: librdkafka (confluent-kafka) and aiokafka produce to journals and consume from them."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition as ConfluentPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 20.0
RECORDS = [
    (
        b"key-%d" % n if n % 3 else (None if n % 2 else b"\xff\x00"),
        b'{"n":%d,"text":"gr\xc3\xbcn }"}' % n if n % 7 else None,
        [("a", b"1"), ("b", None), ("c", b"\xfe")] if n % 5 == 0 else [],
    )
    for n in range(500)
]


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def gateway(broker):
    async with gateway_of(broker) as gateway:
        yield gateway


@pytest.fixture
def server(gateway):
    return {"bootstrap.servers": f"127.0.0.1:{gateway.port}", "log_level": 0}


@pytest.fixture
def admin(server):
    return AdminClient(server)


async def made(admin, name, *, partitions=1, **config):
    topic = NewTopic(
        name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()}
    )
    await asyncio.to_thread(admin.create_topics([topic])[name].result, patient(WAIT_S))


def produce(server, topic, records, **config):
    """Returns: the offsets that were acknowledged."""
    producer = Producer({**server, "linger.ms": 5, **config})
    acknowledged, failures = [], []

    def done(error, message):
        if error is None:
            acknowledged.append(message.offset())
        else:
            failures.append(error)

    for key, value, headers in records:
        producer.produce(topic, value, key=key, headers=headers, on_delivery=done)
    assert producer.flush(patient(WAIT_S)) == 0
    assert failures == []
    return acknowledged


def consume(server, topic, count, **config):
    consumer = Consumer({**server, "group.id": "none", "enable.auto.commit": False, **config})
    try:
        consumer.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING)])
        found = []
        while len(found) < count:
            some = consumer.consume(count - len(found), timeout=patient(WAIT_S))
            assert some, f"{len(found)} of {count} records came"
            for message in some:
                assert message.error() is None
                found.append((message.key(), message.value(), message.headers() or []))
        return found
    finally:
        consumer.close()


async def consume_by_aiokafka(gateway, topic, count, **config):
    consumer = AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{gateway.port}", **config)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found = []
        async with asyncio.timeout(patient(WAIT_S)):
            while len(found) < count:
                some = await consumer.getmany(timeout_ms=1000)
                found += [
                    (each.key, each.value, list(each.headers))
                    for messages in some.values()
                    for each in messages
                ]
        return found
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_librdkafka_produces_both_clients_consume(admin, server, gateway, codec):
    await made(admin, "t")
    offsets = await asyncio.to_thread(produce, server, "t", RECORDS, **{"compression.type": codec})
    assert offsets == sorted(offsets)
    assert await asyncio.to_thread(consume, server, "t", len(RECORDS)) == RECORDS
    assert await consume_by_aiokafka(gateway, "t", len(RECORDS)) == RECORDS


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_what_aiokafka_produces_both_clients_consume(admin, server, gateway, codec):
    await made(admin, "t")
    records = [each for each in RECORDS if each[0] is not None or each[1] is not None]  # its rule
    producer = AIOKafkaProducer(
        bootstrap_servers=f"127.0.0.1:{gateway.port}", compression_type=codec, linger_ms=5
    )
    await producer.start()
    sent = [
        await producer.send("t", value, key, 0, 1_700_000_000_000 + n, headers)
        for n, (key, value, headers) in enumerate(records)
    ]
    answered = [await each for each in sent]
    await producer.stop()
    offsets = [each.offset for each in answered]
    assert offsets == sorted(offsets)
    assert await asyncio.to_thread(consume, server, "t", len(records)) == records
    assert (
        await consume_by_aiokafka(gateway, "t", len(records), isolation_level="read_committed")
        == records
    )


async def test_envelope_topic_holds_any_bytes(admin, server, gateway):
    await made(admin, "t", kafka_form="envelope")
    records = [
        (b"k", bytes(range(256)), []),
        (None, b"", []),
        (b"", None, [("h", b"")]),
        (None, b"\n", []),
    ]
    await asyncio.to_thread(produce, server, "t", records)
    assert await asyncio.to_thread(consume, server, "t", len(records)) == records


async def test_idempotent_producer_and_large_records(admin, server, gateway):
    await made(admin, "t")
    records = [(None, b'{"n":%d,"text":"%s"}' % (n, b"x" * 300_000), []) for n in range(20)]
    await asyncio.to_thread(produce, server, "t", records, **{"enable.idempotence": True})
    assert await asyncio.to_thread(consume, server, "t", len(records)) == records


async def test_topic_is_journals_of_plain_lines(admin, server, broker):
    await made(admin, "flights", partitions=3)
    await asyncio.to_thread(
        produce, server, "flights", [(b"%d" % n, b'{"n":%d}' % n, []) for n in range(60)]
    )
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        journals = await client.list("kafka.topic=flights")
        assert [each.name for each in journals] == [f"topic/flights/part={n:03}" for n in range(3)]
        lines = []
        for each in journals:
            lines += (await client.read(each.name).read()).splitlines()
        assert sorted(orjson.loads(line)["n"] for line in lines) == list(range(60))


async def test_journal_of_others_becomes_a_topic_by_labels(admin, server, broker):
    await made(admin, "near")
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        (near,) = await client.list("kafka.topic=near")
        await client.append(near.name, b"first line\nsecond line\n")
    assert [value for _, value, _ in await asyncio.to_thread(consume, server, "near", 2)] == [
        b"first line",
        b"second line",
    ]


async def test_admin_makes_changes_and_deletes_topics(admin, server):
    await made(admin, "t", partitions=2, retention_ms="3600000", compression_type="gzip")

    def described():
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t")
        configs = admin.describe_configs([resource])[resource].result(patient(WAIT_S))
        return {name: each.value for name, each in configs.items()}

    configs = await asyncio.to_thread(described)
    assert configs["retention.ms"] == "3600000"
    assert configs["compression.type"] == "gzip"
    assert configs["cleanup.policy"] == "delete"
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        await made(admin, "t")
    grown = admin.create_partitions([NewPartitions("t", 4)])["t"]
    await asyncio.to_thread(grown.result, patient(WAIT_S))
    listed = await asyncio.to_thread(admin.list_topics, timeout=patient(WAIT_S))
    assert sorted(listed.topics["t"].partitions) == [0, 1, 2, 3]
    await asyncio.to_thread(admin.delete_topics(["t"])["t"].result, patient(WAIT_S))
    listed = await asyncio.to_thread(admin.list_topics, timeout=patient(WAIT_S))
    assert "t" not in listed.topics


async def test_a_producer_of_a_topic_that_was_made_again_has_to_be_another(admin, gateway):
    async def outcome(wire, producer_id, sequence):
        batch = batch_of(b"{}", producer_id=producer_id, epoch=0, sequence=sequence)
        return (await wire.produce("t", batch)).error_code

    await made(admin, "t")
    async with WireClient.to(gateway.port) as wire:
        assert await outcome(wire, 7, 0) is ErrorCode.none
        await asyncio.to_thread(admin.delete_topics(["t"])["t"].result, patient(WAIT_S))
        await made(admin, "t")
        assert await outcome(wire, 7, 1) is ErrorCode.out_of_order_sequence_number
        assert await outcome(wire, 8, 0) is ErrorCode.none


async def test_admin_changes_configs_of_a_topic(admin, broker):
    await made(admin, "t", partitions=2, max_message_bytes="5000")

    async def altered(**changes):
        """Set configs, and let those whose value is None have their default."""
        entries = [
            ConfigEntry(
                name.replace("_", "."),
                value,
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for name, value in changes.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=entries)
        future = admin.incremental_alter_configs([resource])[resource]
        await asyncio.to_thread(future.result, patient(WAIT_S))

    async def specs():
        async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
            return [each.spec for each in await client.list("kafka.topic=t")]

    await altered(retention_ms="60000", compression_type="gzip", max_message_bytes=None)
    for spec in await specs():
        assert spec.fragment.retention_ns == 60 * 10**9
        assert spec.fragment.codec is CompressionCodec.GZIP
        assert spec.labels.value_of("kafka.max-message-bytes") == ""
    before = await specs()
    for changes, why in (
        ({"cleanup_policy": "none"}, "expected delete, compact or compact,delete"),
        ({"kafka_form": "envelope"}, "kafka.form of a topic cannot be changed"),
        ({"retention_ms": "soon"}, "a number from -1 on"),
        ({"retention_ms": "5000", "flush_ms": "1"}, "flush.ms of a topic cannot be changed"),
    ):
        with pytest.raises(KafkaException, match=why):
            await altered(**changes)
    assert await specs() == before
    await altered(retention_ms=None)
    assert [spec.fragment.retention_ns for spec in await specs()] == [0, 0]


async def test_admin_replaces_all_configs_of_a_topic(admin, broker):
    await made(admin, "t", partitions=2, retention_ms="60000", kafka_form="envelope")
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t")

    async def described():
        future = admin.describe_configs([resource])[resource]
        found = await asyncio.to_thread(future.result, patient(WAIT_S))
        return {name: each.value for name, each in found.items()}

    async def replaced(configs):
        wanted = ConfigResource(ConfigResource.Type.TOPIC, "t", set_config=configs)
        with pytest.warns(DeprecationWarning, match="alter_configs has been deprecated"):
            future = admin.alter_configs([wanted])[wanted]
        await asyncio.to_thread(future.result, patient(WAIT_S))

    before = await described()
    await replaced(before | {"compression.type": "gzip"})
    assert await described() == before | {"compression.type": "gzip"}
    for changes, why in (
        ({"kafka.form": "json"}, "kafka.form of a topic cannot be changed"),
        ({"flush.ms": "1"}, "flush.ms of a topic cannot be changed"),
        ({"cleanup.policy": "forget"}, "expected delete, compact or compact,delete"),
    ):
        with pytest.raises(KafkaException, match=why):
            await replaced(before | changes)
    await replaced({"max.message.bytes": "5000"})
    after = {"compression.type": "zstd", "retention.ms": "-1", "max.message.bytes": "5000"}
    assert await described() == before | after


async def test_a_compacted_topic_keeps_everything(admin, server, broker):
    await made(admin, "t", cleanup_policy="compact", retention_ms="60000")

    async def spec():
        async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
            return (await client.list("kafka.topic=t"))[0].spec

    async def altered(operation, value):
        entry = ConfigEntry("cleanup.policy", value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
        future = admin.incremental_alter_configs([resource])[resource]
        await asyncio.to_thread(future.result, patient(WAIT_S))

    assert (await spec()).fragment.retention_ns == 0
    await altered(AlterConfigOpType.APPEND, "delete")
    assert (await spec()).fragment.retention_ns == 60 * 10**9
    await altered(AlterConfigOpType.SUBTRACT, "delete")
    assert (await spec()).fragment.retention_ns == 0
    records = [(b"k", b'{"n":%d}' % n if n < 3 else None, []) for n in range(4)]
    await asyncio.to_thread(produce, server, "t", records)
    assert await asyncio.to_thread(consume, server, "t", 4) == records


async def test_place_is_found_by_offset_and_by_time(admin, server, gateway):
    await made(admin, "t")
    producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{gateway.port}")
    await producer.start()
    for n in range(10):
        await producer.send_and_wait("t", b'{"n":%d}' % n, timestamp_ms=1_000 * n)
    await producer.stop()

    def look():
        consumer = Consumer({**server, "group.id": "none", "enable.auto.commit": False})

        def at(offset):
            consumer.assign([ConfluentPartition("t", 0, offset)])
            message = consumer.poll(patient(WAIT_S))
            return message.value(), message.offset()

        def time(ms):
            (found,) = consumer.offsets_for_times(
                [ConfluentPartition("t", 0, ms)], timeout=patient(WAIT_S)
            )
            return found.offset

        try:
            first = at(OFFSET_BEGINNING)
            found = [at(time(ms))[0] for ms in (0, 1, 4_000, 4_001, 9_000)]
            again = at(first[1])
            return (
                first,
                again,
                found,
                time(9_001),
                consumer.get_watermark_offsets(ConfluentPartition("t", 0)),
            )
        finally:
            consumer.close()

    first, again, found, behind, (low, high) = await asyncio.to_thread(look)
    assert first == again
    assert [orjson.loads(value)["n"] for value in found] == [0, 1, 4, 5, 9]
    assert behind == -1
    assert low == 0
    assert high > first[1]


async def test_each_broker_is_a_node_and_any_serves_any_partition(local_brokers, etcd_server):
    brokers = [await local_brokers.start(zone=zone) for zone in ("a", "b")]
    async with gateway_of(brokers[0]) as first, gateway_of(brokers[1]) as second:
        server = {"bootstrap.servers": f"127.0.0.1:{second.port}", "log_level": 0}
        admin = AdminClient(server)
        await made(admin, "t", partitions=4)
        listed = await asyncio.to_thread(admin.list_topics, timeout=patient(WAIT_S))
        assert {node.port for node in listed.brokers.values()} == {first.port, second.port}
        leaders = {each.leader for each in listed.topics["t"].partitions.values()}
        assert leaders <= set(listed.brokers)
        await asyncio.to_thread(produce, server, "t", RECORDS, **{"enable.idempotence": True})
        async with AsyncClient(ClientConfig(address=brokers[0].endpoint)) as client:
            contents = [
                await client.read(each.name).read() for each in await client.list("kafka.topic=t")
            ]
        assert sum(content.count(b"\n") for content in contents) == len(RECORDS)


async def test_port_has_the_certificate_of_the_broker(local_brokers, tmp_path):
    authority = CertificateAuthority(tmp_path)
    files = authority.issue("broker")
    broker = await local_brokers.start(
        server_cert_file=files.cert, server_cert_key_file=files.key, peer_ca_file=authority.ca
    )
    async with gateway_of(broker, auto_create=True) as gateway:
        plain = {"bootstrap.servers": f"127.0.0.1:{gateway.port}", "log_level": 0}
        secure = {**plain, "security.protocol": "ssl", "ssl.ca.location": str(authority.ca)}
        records = [(b"k", b'{"n":1}', [])]
        await asyncio.to_thread(produce, secure, "t", records)
        assert await asyncio.to_thread(consume, secure, "t", 1) == records
        with pytest.raises(KafkaException):
            await asyncio.to_thread(AdminClient(plain).list_topics, timeout=2)
