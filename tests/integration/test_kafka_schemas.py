"""Avro values of Confluent's serializers: lines of JSON in the journal, and the same values for consumers."""

from __future__ import annotations

import asyncio
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from http import HTTPStatus
from io import BytesIO

import fastavro
import orjson
import pytest

pytest.importorskip("avro")
pytest.importorskip("httpx2")

from aiohttp import ClientSession, encode_basic_auth
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 20.0
TOPIC, JOURNAL, SUBJECT = "flights", "topic/flights/part=000", "flights-value"
CONTEXT = SerializationContext(TOPIC, MessageField.VALUE)
KEY = "c2VjcmV0IGtleSBvZiBhIGRlbW8sIGRvIG5vdCB1c2U="


def schema_of(*fields):
    parts = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Flight", "fields": parts})


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DAY = {"type": "int", "logicalType": "date"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
FLIGHT = schema_of(
    ("id", "string"),
    ("alt", ["null", "double"]),
    ("at", MILLIS),
    ("day", ["null", DAY]),
    ("price", PRICE),
    ("raw", "bytes"),
)
VALUE = {
    "id": "a }\n",
    "alt": 1.5,
    "at": datetime(2024, 1, 1, 1, 2, 3, 4000, tzinfo=UTC),
    "day": date(2024, 2, 29),
    "price": Decimal("-1.20"),
    "raw": b"\xff\0",
}
SHOWN = {
    "id": "a }\n",
    "alt": 1.5,
    "at": "2024-01-01T01:02:03.004000Z",
    "day": "2024-02-29",
    "price": "-1.20",
    "raw": "/wA=",
}


def server_of(gateway):
    return {"bootstrap.servers": f"127.0.0.1:{gateway.port}", "log_level": 0}


def make_topic(gateway, form="avro"):
    topic = NewTopic(TOPIC, 1, 1, config={"kafka.form": form})
    admin = AdminClient(server_of(gateway))
    admin.create_topics([topic])[TOPIC].result(patient(WAIT_S))


def produce(gateway, registry, *values, text=FLIGHT, transactional_id=""):
    """Produce values with keys and headers. Raises: KafkaException."""
    serialize = AvroSerializer(registry, text)
    failed = []
    extra = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer(server_of(gateway) | extra)
    if transactional_id:
        producer.init_transactions(patient(WAIT_S))
        producer.begin_transaction()
    for number, value in enumerate(values):
        content = None if value is None else serialize(value, CONTEXT)
        producer.produce(
            TOPIC,
            content,
            f"k{number}",
            headers=[("h", b"1")],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(patient(WAIT_S)) == 0
    if transactional_id:
        producer.commit_transaction(patient(WAIT_S))
    if failed:
        raise KafkaException(failed[0])


def consume(gateway, registry, count):
    """Keys, headers and values of records from the begin on."""
    deserialize = AvroDeserializer(registry)
    consumer = Consumer(server_of(gateway) | {"group.id": "g"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = consumer.consume(count, patient(WAIT_S))
    consumer.close()
    assert [one.error() for one in found] == [None] * count
    return [
        (one.key(), one.headers(), one.value() and deserialize(one.value(), CONTEXT))
        for one in found
    ]


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def gateway(broker):
    async with gateway_of(broker, registry_port=0) as gateway:
        await asyncio.to_thread(make_topic, gateway)
        yield gateway


@pytest.fixture
def registry(gateway):
    with SchemaRegistryClient({"url": f"http://127.0.0.1:{gateway.registry.port}"}) as client:
        yield client


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        yield client


async def lines_of(client):
    content = await client.read(JOURNAL).read()
    return [orjson.loads(line) for line in content.splitlines()]


@pytest.mark.parametrize("transactional_id", ["", "t"])
async def test_values_are_json_in_the_journal_and_avro_for_consumers(
    gateway, registry, client, transactional_id
):
    values = [VALUE, None, VALUE | {"alt": None, "day": None, "id": ""}]
    await asyncio.to_thread(produce, gateway, registry, *values, transactional_id=transactional_id)
    schema_id = (await asyncio.to_thread(registry.get_latest_version, SUBJECT)).schema_id
    first, tombstone, last, *_ = await lines_of(client)
    meta = first.pop("_meta")
    assert (meta["schema"], meta["key"], meta["headers"]) == (schema_id, "k0", [["h", "1"]])
    assert first == SHOWN
    assert (tombstone["_meta"]["tombstone"], len(tombstone)) == (True, 1)
    assert (last["alt"], last["id"]) == (None, "")
    found = await asyncio.to_thread(consume, gateway, registry, 3)
    assert found == [
        (f"k{number}".encode(), [("h", b"1")], value) for number, value in enumerate(values)
    ]


async def test_each_value_keeps_its_own_schema(gateway, registry):
    newer = schema_of(("id", "string"), ("n", {"type": "long", "default": 0}))
    older = schema_of(("id", "string"))
    newer = json.loads(newer) | {
        "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "long", "default": 0}]
    }
    await asyncio.to_thread(produce, gateway, registry, {"id": "a"}, text=older)
    await asyncio.to_thread(produce, gateway, registry, {"id": "b", "n": 7}, text=json.dumps(newer))
    found = await asyncio.to_thread(consume, gateway, registry, 2)
    assert [value for _, _, value in found] == [{"id": "a"}, {"id": "b", "n": 7}]


async def test_lines_of_others_have_the_newest_schema_if_they_fit_it(gateway, registry, client):
    await asyncio.to_thread(produce, gateway, registry, VALUE)
    lines = [SHOWN | {"id": "python"}, {"_meta": {"of": "another"}} | SHOWN, {"id": "no flight"}]
    for line in lines:
        await client.append(JOURNAL, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def values():
        consumer = Consumer(server_of(gateway) | {"group.id": "g"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found = consumer.consume(4, patient(WAIT_S))
        consumer.close()
        return [one.value() for one in found]

    *fit, unfit = await asyncio.to_thread(values)
    deserialize = AvroDeserializer(registry)
    read = [await asyncio.to_thread(deserialize, one, CONTEXT) for one in fit]
    assert read == [VALUE, VALUE | {"id": "python"}, VALUE]
    assert orjson.loads(unfit) == lines[-1]


def wire_value(schema_id, text, value):
    out = BytesIO()
    out.write(struct.pack(">BI", 0, schema_id))
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(text)), value)
    return out.getvalue()


async def test_what_json_cannot_hold_is_refused_and_nothing_is_appended(gateway, registry, client):
    texts = {
        "number": schema_of(("x", "double")),
        "branches": schema_of(("x", ["string", "bytes"])),
        "meta": schema_of(("_meta", "string")),
        "tree": schema_of(("x", ["null", "Flight"])),
        "text": '"string"',
    }
    ids = {
        name: await asyncio.to_thread(registry.register_schema, name, Schema(text, "AVRO"))
        for name, text in texts.items()
    }
    good = wire_value(ids["number"], texts["number"], {"x": 1.0})
    nan = wire_value(ids["number"], texts["number"], {"x": float("nan")})
    cases = [
        (nan, "JSON cannot hold the value"),
        (wire_value(ids["branches"], texts["branches"], {"x": b"abcd"}), "look the same"),
        (wire_value(ids["meta"], texts["meta"], {"_meta": "a"}), "a field _meta"),
        (wire_value(ids["tree"], texts["tree"], {"x": None}), "holds itself"),
        (wire_value(ids["text"], texts["text"], "a"), "not of a record"),
        (struct.pack(">BI", 0, 4711) + b"a", "no schema 4711"),
        (good[:-1], "does not fit its schema"),
        (good + b"\0", "does not fit its schema"),
        (b'{"x":1}', "does not begin with 0"),
        (b"", "does not begin with 0"),
    ]
    async with WireClient.to(gateway.port) as wire:
        for value, why in cases:
            answer = await wire.produce(TOPIC, batch_of(good, value))
            assert answer.error_code is ErrorCode.invalid_record
            (error,) = answer.record_errors
            assert error.batch_index == 1
            assert why in error.batch_index_error_message
        older = await wire.produce(TOPIC, batch_of(good, b""), version=7)
        assert older.error_code is ErrorCode.invalid_record  # and this version names no records
        assert await lines_of(client) == []
        assert (await wire.produce(TOPIC, batch_of(good))).error_code is ErrorCode.none
    (line,) = await lines_of(client)
    assert line["x"] == 1.0


async def test_schemas_of_another_registry(gateway, registry, broker, client):
    url = f"http://127.0.0.1:{gateway.registry.port}"
    async with gateway_of(broker, registry=url) as other:
        await asyncio.to_thread(produce, other, registry, VALUE)
        found = await asyncio.to_thread(consume, other, registry, 1)
        assert found[0][2] == VALUE
        (line,) = await lines_of(client)
    assert line["id"] == VALUE["id"]


async def test_a_registry_that_does_not_answer_is_asked_again(gateway, registry, broker, client):
    schema_id = await asyncio.to_thread(registry.register_schema, SUBJECT, Schema(FLIGHT, "AVRO"))
    value = wire_value(schema_id, FLIGHT, VALUE)
    # No one listens there.
    away = "http://127.0.0.1:1"
    async with gateway_of(broker, registry=away) as other, WireClient.to(other.port) as wire:
        answer = await wire.produce(TOPIC, batch_of(value))
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert "--kafka.registry" in answer.error_message
    assert await lines_of(client) == []


async def test_versions_and_what_is_compatible(registry):
    def work():
        first = Schema(schema_of(("a", "int")), "AVRO")
        narrower = Schema(schema_of(("a", "int"), ("b", "string")), "AVRO")
        fields = [
            {"name": "a", "type": "long"},
            {"name": "b", "type": "string", "default": ""},
        ]
        wider = Schema(json.dumps({"type": "record", "name": "Flight", "fields": fields}), "AVRO")
        assert registry.get_subjects() == []
        one = registry.register_schema("s", first)
        assert registry.register_schema("s", first) == one
        assert registry.register_schema("other", first) == one
        assert sorted(registry.get_subjects()) == ["other", "s"]
        with pytest.raises(SchemaRegistryError) as refused:
            registry.register_schema("s", narrower)
        assert refused.value.http_status_code == HTTPStatus.CONFLICT
        assert not registry.test_compatibility("s", narrower)
        assert registry.test_compatibility("s", wider)
        two = registry.register_schema("s", wider)
        assert two != one
        assert registry.get_versions("s") == [1, 2]
        latest = registry.get_latest_version("s")
        assert (latest.version, latest.schema_id) == (2, two)
        assert json.loads(latest.schema.schema_str) == json.loads(wider.schema_str)
        assert registry.get_version("s", 1).schema_id == one
        assert registry.lookup_schema("s", first).version == 1
        for call in (
            lambda: registry.get_latest_version("none"),
            lambda: registry.get_version("s", 3),
            lambda: registry.get_schema(4711),
        ):
            with pytest.raises(SchemaRegistryError) as missing:
                call()
            assert missing.value.http_status_code == HTTPStatus.NOT_FOUND
        registry.set_compatibility("s", "NONE")
        assert registry.get_compatibility("s") == "NONE"
        assert registry.register_schema("s", narrower) > two
        for kind in ("PROTOBUF", "JSON"):
            with pytest.raises(SchemaRegistryError) as unserved:
                registry.register_schema("p", Schema("{}", kind))
            assert f"schemas of {kind} are not served" in str(unserved.value)
        with pytest.raises(SchemaRegistryError):
            registry.register_schema("p", Schema('{"type":"recor"}', "AVRO"))

    await asyncio.to_thread(work)


async def test_registrations_at_the_same_time_have_ids_of_their_own(registry):
    def register(number):
        text = schema_of((f"f{number}", "int"))
        return registry.register_schema(f"s{number % 3}-{number}", Schema(text, "AVRO"))

    # Threads of their own: the registry, which is in this process, needs some of the loop's.
    with ThreadPoolExecutor(8) as threads:
        loop = asyncio.get_running_loop()
        ids = await asyncio.gather(
            *(loop.run_in_executor(threads, register, number) for number in range(8))
        )
    assert sorted(ids) == list(range(1, 9))


async def test_callers_of_the_registry_need_a_token(local_brokers):
    def token(capability):
        claims = Claims(capability)
        return KeyRing(KEY).sign(claims, now=SystemClock().unix_s(), lifetime_s=600)

    def basic(password):
        return {"Authorization": encode_basic_auth("anyone", password)}

    body = {"schema": schema_of(("a", "int"))}
    broker = await local_brokers.start(auth_keys=KEY)
    async with gateway_of(broker, registry_port=0) as gateway, ClientSession() as session:
        url = f"http://127.0.0.1:{gateway.registry.port}/subjects/s/versions"

        async def status(method, **options):
            async with session.request(method, url, **options) as answer:
                return answer.status

        async def with_token(method, capability):
            return await status(method, headers=basic(token(capability)), json=body)

        assert await status("GET") == HTTPStatus.UNAUTHORIZED
        assert await status("GET", headers=basic("wrong")) == HTTPStatus.UNAUTHORIZED
        assert await status("POST", json=body) == HTTPStatus.UNAUTHORIZED
        assert await with_token("GET", Capability.LIST) == HTTPStatus.FORBIDDEN
        assert await with_token("POST", Capability.READ) == HTTPStatus.FORBIDDEN
        assert await with_token("POST", Capability.APPEND) == HTTPStatus.OK
        assert await with_token("GET", Capability.READ) == HTTPStatus.OK
        bearer = {"Authorization": f"Bearer {token(Capability.READ)}"}
        assert await status("GET", headers=bearer) == HTTPStatus.OK


async def test_a_form_that_is_not_served_is_refused(gateway):
    topic = NewTopic("p", 1, 1, config={"kafka.form": "protobuf"})
    admin = AdminClient(server_of(gateway))
    future = admin.create_topics([topic])["p"]
    with pytest.raises(KafkaException, match="json, avro or envelope"):
        await asyncio.to_thread(future.result, patient(WAIT_S))
