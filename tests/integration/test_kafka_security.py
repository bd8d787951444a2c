"""Clients of Kafka log in with tokens, and may do what these allow."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAuthorizationFailedError
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.wire import DECIDED
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import LabelSelector
from gazette_platform.protocol.auth import LEEWAY_S, Capability, Claims, KeyRing
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 20.0
KEY = "c2VjcmV0IGtleSBvZiBhIGRlbW8sIGRvIG5vdCB1c2U="
OTHER = "YW5vdGhlciBrZXkgb2YgYSBkZW1vLCBkbyBub3QgdXNl"
VALUES = [b'{"n":%d}' % n for n in range(20)]
READER = Capability.READ | Capability.LIST


def token(capability=Capability.ALL, selector="", *, key=KEY, lifetime_s=600):
    chosen = LabelSelector.parse(selector) if selector else LabelSelector()
    return KeyRing(key).sign(
        Claims(capability, chosen), now=SystemClock().unix_s(), lifetime_s=lifetime_s
    )


@pytest.fixture
async def gateway(local_brokers):
    async with gateway_of(await local_brokers.start(auth_keys=KEY)) as gateway:
        await asyncio.to_thread(make, gateway, "flights", "secret")
        yield gateway


def settings(gateway, bearer, mechanism="PLAIN"):
    """Of librdkafka."""
    found = {
        "bootstrap.servers": f"127.0.0.1:{gateway.port}",
        "log_level": 0,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "PLAIN":
        return found | {"sasl.username": "anyone", "sasl.password": bearer}
    return found | {"oauth_cb": lambda _: (bearer, SystemClock().unix_s() + 600)}


class Given(AbstractTokenProvider):
    """Gives aiokafka a token."""

    def __init__(self, bearer):
        self._bearer = bearer

    async def token(self):
        return self._bearer


def options(gateway, bearer, mechanism="PLAIN"):
    """Of aiokafka."""
    found = {
        "bootstrap_servers": f"127.0.0.1:{gateway.port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "PLAIN":
        return found | {"sasl_plain_username": "anyone", "sasl_plain_password": bearer}
    return found | {"sasl_oauth_token_provider": Given(bearer)}


def make(gateway, *names):
    admin = AdminClient(settings(gateway, token()))
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(patient(WAIT_S))


def produce(config, topic):
    """Returns: the errors of the records."""
    errors, noted = [], []
    producer = Producer(
        {**config, "error_cb": noted.append, "message.timeout.ms": int(patient(WAIT_S) * 1000)}
    )
    for value in VALUES:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(patient(WAIT_S)) == 0
    return [each for each in errors if each is not None]


def consume(config, topic):
    consumer = Consumer({**config, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([Place(topic, 0, OFFSET_BEGINNING)])
        found = []
        while len(found) < len(VALUES):
            some = consumer.consume(len(VALUES) - len(found), timeout=patient(WAIT_S))
            assert some
            for message in some:
                assert message.error() is None, message.error()
                found.append(message.value())
        consumer.commit(offsets=[Place(topic, 0, 10)], asynchronous=False)
        return found
    finally:
        consumer.close()


def consume_nothing(config, topic):
    """Commit an offset of a group."""
    consumer = Consumer({**config, "group.id": "g"})
    consumer.commit(offsets=[Place(topic, 0, 0)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_both_clients_log_in_by_both_mechanisms(gateway, mechanism):
    config = settings(gateway, token(), mechanism)
    assert await asyncio.to_thread(produce, config, "flights") == []
    assert await asyncio.to_thread(consume, config, "flights") == VALUES
    async with AIOKafkaProducer(**options(gateway, token(), mechanism)) as producer:
        await producer.send_and_wait("flights", b'{"by":"aiokafka"}')
    async with AIOKafkaConsumer(**options(gateway, token(), mechanism)) as consumer:
        consumer.assign([TopicPartition("flights", 0)])
        await consumer.seek_to_beginning()
        async with asyncio.timeout(patient(WAIT_S)):
            assert (await consumer.getone()).value == VALUES[0]


async def refused(error, config):
    """Have aiokafka fail to connect."""
    producer = AIOKafkaProducer(**config)
    try:
        with pytest.raises(error):
            await producer.start()
    finally:
        await producer.stop()


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_tokens_that_do_not_verify_are_refused(gateway, mechanism):
    for bad in (token(key=OTHER), token(lifetime_s=-60), "none"):
        await refused(KafkaError, options(gateway, bad, mechanism))
    admin = AdminClient(settings(gateway, token(key=OTHER)))
    with pytest.raises(Exception, match=r"_TRANSPORT|_TIMED_OUT|_AUTHENTICATION"):
        await asyncio.to_thread(admin.list_topics, timeout=2)


async def test_reader_reads_and_does_not_append(gateway):
    assert await asyncio.to_thread(produce, settings(gateway, token()), "flights") == []
    config = settings(gateway, token(READER))
    (error, *_) = await asyncio.to_thread(produce, config, "flights")
    assert error.name() == "TOPIC_AUTHORIZATION_FAILED"
    assert await asyncio.to_thread(consume, config, "flights") == VALUES
    async with AIOKafkaProducer(**options(gateway, token(READER))) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("flights", b"{}")
    admin = AdminClient(config)
    creation = admin.create_topics([NewTopic("more", 1, 1)])["more"]
    with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
        await asyncio.to_thread(creation.result, patient(WAIT_S))


async def test_topics_beyond_the_selector_are_not_seen(gateway):
    bearer = token(Capability.ALL, "name:prefix=topic/flights/")
    admin = AdminClient(settings(gateway, bearer))
    listed = await asyncio.to_thread(admin.list_topics, timeout=patient(WAIT_S))
    assert list(listed.topics) == ["flights"]
    for name in ("secret", "nothing"):  # there is no telling them apart
        deletion = admin.delete_topics([name])[name]
        with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
            await asyncio.to_thread(deletion.result, patient(WAIT_S))
        (error, *_) = await asyncio.to_thread(produce, settings(gateway, bearer), name)
        assert error.name() == "TOPIC_AUTHORIZATION_FAILED"
    groups = await asyncio.to_thread(admin.list_consumer_groups().result, patient(WAIT_S))
    assert groups.valid == []
    async with wire_of(gateway, bearer) as wire:
        answer = await wire.call("delete_groups", 1, groups_names=("g",))
        assert answer.results[0].error_code is ErrorCode.group_authorization_failed
        answered = await wire.fetch("secret", 0)
        assert answered.error_code is ErrorCode.topic_authorization_failed


class wire_of:  # noqa: N801  a context manager
    """A connection that has logged in, or tried to."""

    def __init__(self, gateway, bearer):
        self._client = WireClient.to(gateway.port)
        self._bearer = bearer

    async def __aenter__(self):
        wire = await self._client.__aenter__()
        await wire.call("sasl_handshake", 1, mechanism="PLAIN")
        self.answer = await log_in(wire, self._bearer)
        return wire

    async def __aexit__(self, *exc_info):
        await self._client.__aexit__(*exc_info)


async def log_in(wire, bearer):
    return await wire.call("sasl_authenticate", 2, auth_bytes=b"\0me\0" + bearer.encode())


async def test_nothing_is_served_before_the_login(gateway):
    assert gateway._apis.keys() == DECIDED  # each handler asks what the client may do
    for api in gateway._apis.values():
        if api.key not in (17, 18, 36):
            async with WireClient.to(gateway.port) as wire:
                wire.send_frame(b"%c%c%c%c\0\0\0\1\0\0\0" % (0, api.key, 0, api.least))
                await wire.ended()
    async with WireClient.to(gateway.port) as wire:
        assert (await wire.call("api_versions", 0)).error_code is ErrorCode.none
        wire.send_bytes((1 << 20).to_bytes(4, "big"))  # more than a login has
        await wire.ended()


async def test_refusals_have_a_text_and_end_the_connection(gateway):
    async with WireClient.to(gateway.port) as wire:
        refused = await wire.call("sasl_handshake", 1, mechanism="GSSAPI")
        assert refused.error_code is ErrorCode.unsupported_sasl_mechanism
        assert refused.mechanisms == ("PLAIN", "OAUTHBEARER")
    for bearer, text in (
        (token(key=OTHER), "signature is invalid"),
        (token(lifetime_s=-60), "token is expired"),
        ("", "expected a user name, and a token"),
    ):
        login = wire_of(gateway, bearer)
        async with login as wire:
            assert login.answer.error_code is ErrorCode.sasl_authentication_failed
            assert text in login.answer.error_message
            await wire.ended()


async def test_old_handshake_is_followed_by_a_bare_login(gateway):
    async with WireClient.to(gateway.port) as wire:
        await wire.call("sasl_handshake", 0, mechanism="PLAIN")
        wire.send_frame(b"\0me\0" + token().encode())
        async with asyncio.timeout(patient(WAIT_S)):
            assert await wire._reader.readexactly(4) == b"\0\0\0\0"
        assert (await wire.produce("flights", batch_of(b"{}"))).error_code is ErrorCode.none
    async with WireClient.to(gateway.port) as wire:
        await wire.call("sasl_handshake", 0, mechanism="PLAIN")
        wire.send_frame(b"\0me\0nothing")
        await wire.ended()


async def test_connection_ends_with_its_token_unless_it_logs_in_again(gateway):
    short_s = 1 - int(LEEWAY_S)  # good for a moment more, as clocks may differ
    login = wire_of(gateway, token(lifetime_s=short_s + 2))
    async with login as wire, wire_of(gateway, token(lifetime_s=short_s + 2)) as other:
        assert 0 < login.answer.session_lifetime.total_seconds() <= 8
        await other.call("sasl_handshake", 1, mechanism="PLAIN")
        again = await log_in(other, token())
        assert again.session_lifetime.total_seconds() > 60
        await wire.ended()
        assert (await other.fetch("flights", 0, wait_s=0)).error_code is ErrorCode.none
    login = wire_of(gateway, token(lifetime_s=short_s + 2))
    async with login as wire:  # a fetch does not outlive the token
        began = asyncio.get_running_loop().time()
        await wire.fetch("flights", 0, wait_s=18)
        assert asyncio.get_running_loop().time() - began < 10
        await wire.ended()


async def test_librdkafka_logs_in_again_on_its_connection(gateway):
    given = []

    def give(_):
        given.append(token(lifetime_s=2))
        return given[-1], SystemClock().unix_s() + 2

    errors = []
    config = settings(gateway, "", "OAUTHBEARER") | {"oauth_cb": give, "error_cb": errors.append}

    def produce_until_expired():
        producer = Producer(config)
        clock = SystemClock()
        end = clock.monotonic() + 2 * (2 + LEEWAY_S)
        while clock.monotonic() < end:
            producer.produce("flights", b"{}", on_delivery=lambda error, _: noted.append(error))
            assert producer.flush(patient(WAIT_S)) == 0

    noted = []
    await asyncio.to_thread(produce_until_expired)
    assert set(noted) == {None}
    assert len(given) > 2
    assert errors == []


async def test_reader_may_not_end_the_transaction_of_another(gateway):
    async with wire_of(gateway, token()) as owner:
        begun = await owner.call(
            "init_producer_id",
            4,
            transactional_id="t",
            transaction_timeout=timedelta(seconds=60),
            producer_id=-1,
            producer_epoch=-1,
        )
        claimed = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        await owner.call(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=(
                owner.entity(
                    "add_partitions_to_txn",
                    3,
                    "AddPartitionsToTxnTopic",
                    name="secret",
                    partitions=(0,),
                ),
            ),
        )
        ending = {"transactional_id": "t", **claimed, "committed": True}
        for bearer in (token(READER), token(Capability.ALL, "name:prefix=topic/flights/")):
            async with wire_of(gateway, bearer) as other:
                refused = (await other.call("end_txn", 3, **ending)).error_code
                assert refused in (
                    ErrorCode.transactional_id_authorization_failed,
                    ErrorCode.topic_authorization_failed,
                )
        assert (await owner.call("end_txn", 3, **ending)).error_code is ErrorCode.none


async def test_keys_that_admit_all_ask_for_no_login(local_brokers):
    async with (
        gateway_of(await local_brokers.start(auth_keys=f"{KEY} AA=="), auto_create=True) as gateway,
        WireClient.to(gateway.port) as wire,
    ):
        found = await wire.call("metadata", 4, topics=None, allow_auto_topic_creation=False)
        assert found.topics == ()
        login = wire_of(gateway, token(key=OTHER))
        async with login:
            assert login.answer.error_code is ErrorCode.sasl_authentication_failed


async def test_without_keys_any_login_is_taken(local_brokers):
    async with gateway_of(await local_brokers.start(), auto_create=True) as gateway:
        assert await asyncio.to_thread(produce, settings(gateway, "any"), "flights") == []


@pytest.mark.parametrize("asks_clients", [False, True])
async def test_port_has_the_certificate_of_the_broker(local_brokers, tmp_path, asks_clients):
    authority = CertificateAuthority(tmp_path)
    served, shown = authority.issue("broker"), authority.issue("client")
    tls = {"server_cert_file": served.cert, "server_cert_key_file": served.key}
    tls |= {"peer_ca_file": authority.ca}
    if asks_clients:
        tls |= {
            "server_ca_file": authority.ca,
            "peer_cert_file": shown.cert,
            "peer_cert_key_file": shown.key,
        }
    broker = await local_brokers.start(auth_keys=KEY, **tls)
    async with gateway_of(broker, auto_create=True) as gateway:
        config = settings(gateway, token()) | {"security.protocol": "SASL_SSL"}
        config["ssl.ca.location"] = str(authority.ca)
        if asks_clients:
            with pytest.raises(Exception, match=r"_TRANSPORT|_TIMED_OUT|_SSL"):
                await asyncio.to_thread(AdminClient(config).list_topics, timeout=2)
            config["ssl.certificate.location"] = str(shown.cert)
            config["ssl.key.location"] = str(shown.key)
        assert await asyncio.to_thread(produce, config, "flights") == []
        assert await asyncio.to_thread(consume, config, "flights") == VALUES
        context = ssl.create_default_context(cafile=authority.ca)
        if asks_clients:
            context.load_cert_chain(shown.cert, shown.key)
        tls = {"security_protocol": "SASL_SSL", "ssl_context": context}
        async with AIOKafkaProducer(**options(gateway, token()) | tls) as producer:
            await producer.send_and_wait("flights", b'{"by":"aiokafka"}')
        await refused(KafkaConnectionError, options(gateway, token()))  # a plain client


async def test_offset_is_deleted_by_readers_of_its_topic_alone(gateway):
    await asyncio.to_thread(consume_nothing, settings(gateway, token()), "secret")
    topics = next(part._gateway.topics for part in gateway.parts if hasattr(part, "_gateway"))
    for bearer, code in (
        (token(READER, "name:prefix=topic/flights/"), ErrorCode.topic_authorization_failed),
        (token(READER), ErrorCode.none),
    ):
        topics.forget()  # so that no listing is at hand, which says whose they are
        async with wire_of(gateway, bearer) as wire:
            part = wire.entity(
                "offset_delete", 0, "OffsetDeleteRequestPartition", partition_index=0
            )
            topic = wire.entity(
                "offset_delete", 0, "OffsetDeleteRequestTopic", name="secret", partitions=(part,)
            )
            answer = await wire.call("offset_delete", 0, group_id="g", topics=(topic,))
        assert answer.error_code is ErrorCode.none
        assert answer.topics[0].partitions[0].error_code is code
