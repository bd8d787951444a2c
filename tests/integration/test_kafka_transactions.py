"""Transactions of librdkafka at gateways: they end as a whole, once, and all readers agree what was committed."""

from __future__ import annotations

import asyncio
import json
import random

import confluent_kafka as ck
import pytest
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode
from typed_logs import table_of

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.kafka.coordinator.group_store import GroupStore
from gazette_platform.kafka.coordinator.live_transactions import TxnStore
from gazette_platform.kafka.coordinator.transactions import TxnState, add_to, end_transaction
from gazette_platform.kafka.inspection import Cluster
from gazette_platform.lake.typed.planning.screening import sequence
from gazette_platform.lake.typed.planning.state import JournalState
from gazette_platform.message import Flags, JsonFraming, read_committed, read_uncommitted
from gazette_platform.message.uuid import clock_of, new_producer_id, uuid_text
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalChange,
    JournalSpec,
    LabelSet,
)
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

PARTITIONS = 3
WAIT_S = 20.0
FRAMING = JsonFraming(uuid_field="_meta.uuid")


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        yield client


async def make_topic(client, topic, **labels):
    """Returns: the journals of its partitions."""
    specs = [
        JournalSpec(
            name=f"topic/{topic}/part={number:03}",
            replication=1,
            labels=LabelSet.of(
                {
                    "kafka.topic": topic,
                    "kafka.partition": str(number),
                    "content-type": "application/x-ndjson",
                    **labels,
                }
            ),
            fragment=FragmentSpec(
                length=1 << 20,
                codec=CompressionCodec.NONE,
                stores=("file:///",),
                refresh_interval_ns=1_000_000_000,
            ),
        )
        for number in range(PARTITIONS)
    ]
    await client.apply([JournalChange(spec) for spec in specs])
    return [spec.name for spec in specs]


@pytest.fixture
async def journals(client):
    return await make_topic(client, "flights")


@pytest.fixture
async def gateway(broker, journals):
    async with gateway_of(broker) as gateway:
        yield gateway


def producer_of(gateway, transactional_id, **settings):
    """A producer that is ready to begin transactions. Blocks."""
    producer = ck.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{gateway.port}",
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
            **settings,
        }
    )
    producer.init_transactions(patient(WAIT_S))
    return producer


def send(producer, *numbers, topic="flights"):
    for number in numbers:
        value = json.dumps({"n": number}).encode()
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(patient(WAIT_S)) == 0


def consume(gateway, *, isolation="read_committed", topic="flights"):
    """The numbers in all partitions up to their ends, in order. Blocks."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{gateway.port}",
            "group.id": "none",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([ck.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
        found, ended = [], set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(patient(WAIT_S))
            assert message is not None, f"only the partitions {ended} ended"
            if message.error() is None:
                found.append(json.loads(message.value())["n"])
            else:
                assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        return sorted(found)
    finally:
        consumer.close()


async def committed(gateway):
    return await asyncio.to_thread(consume, gateway)


async def test_commit_shows_all_and_abort_nothing(gateway):
    def work():
        producer = producer_of(gateway, "t")
        producer.begin_transaction()
        send(producer, 0, 1, 2, 3)
        assert consume(gateway) == []
        assert consume(gateway, isolation="read_uncommitted") == [0, 1, 2, 3]
        producer.commit_transaction(patient(WAIT_S))
        assert consume(gateway) == [0, 1, 2, 3]
        producer.begin_transaction()
        send(producer, 4, 5, 6, 7)
        producer.abort_transaction(patient(WAIT_S))
        producer.begin_transaction()
        send(producer, 8)
        producer.commit_transaction(patient(WAIT_S))
        assert consume(gateway) == [0, 1, 2, 3, 8]
        assert consume(gateway, isolation="read_uncommitted") == list(range(9))

    await asyncio.to_thread(work)


async def test_next_self_fences_the_zombie(gateway):
    def work():
        zombie = producer_of(gateway, "t")
        zombie.begin_transaction()
        send(zombie, 0, 1)
        following = producer_of(gateway, "t")
        zombie.produce("flights", b'{"n":2}', partition=2)
        with pytest.raises(ck.KafkaException) as caught:
            zombie.commit_transaction(patient(WAIT_S))
        assert caught.value.args[0].code() in (
            ck.KafkaError._FENCED,
            ErrorCode.producer_fenced,
            ErrorCode.invalid_producer_epoch,
        )
        following.begin_transaction()
        send(following, 3)
        following.commit_transaction(patient(WAIT_S))
        assert consume(gateway) == [3]

    await asyncio.to_thread(work)


async def test_open_transaction_is_aborted_after_its_time(gateway):
    producer = await asyncio.to_thread(
        producer_of, gateway, "t", **{"transaction.timeout.ms": 6000, "message.timeout.ms": 6000}
    )
    producer.begin_transaction()
    await asyncio.to_thread(send, producer, 0, 1, 2)
    async with Cluster("127.0.0.1", gateway.port) as cluster:
        (listed,) = await cluster.transactions()
        assert (listed.transactional_id, listed.state) == ("t", "Ongoing")
        assert listed.partitions == ("flights/0", "flights/1", "flights/2")

        async def is_over():
            (one,) = await cluster.transactions()
            return one.state == "CompleteAbort"

        await eventually(is_over, timeout_s=WAIT_S)
    with pytest.raises(ck.KafkaException):
        await asyncio.to_thread(producer.commit_transaction, patient(WAIT_S))
    assert await committed(gateway) == []


@pytest.mark.parametrize("commit", [True, False])
async def test_another_gateway_writes_what_was_decided(broker, client, journals, commit):
    async with gateway_of(broker) as first:
        producer = await asyncio.to_thread(producer_of, first, "t")
        producer.begin_transaction()
        await asyncio.to_thread(send, producer, 0, 1, 2)
    # As if the coordinator had crashed right after its decision.
    etcd = broker.context.etcd
    prefix = broker.config.etcd_prefix
    store = TxnStore(etcd, prefix, GroupStore(etcd, prefix, tasks=broker.context.tasks))
    stored = await store.load("t")
    claimed = stored.transaction.producer_id, stored.transaction.epoch
    decided = end_transaction(stored.transaction, claimed, commit=commit)
    await store.save("t", decided, stored.revision)
    async with gateway_of(broker) as second:

        async def is_over():
            return (await store.load("t")).transaction.state

        wanted = TxnState.COMPLETE_COMMIT if commit else TxnState.COMPLETE_ABORT
        await eventually(lambda: _is(is_over, wanted), timeout_s=WAIT_S)
        assert await committed(second) == ([0, 1, 2] if commit else [])


async def lose_registers(client, journal):
    """As if the journal had been suspended, or deleted and made again over its fragments."""
    found = (await client.append(journal, b"")).registers
    uuid = uuid_text(new_producer_id(), clock_of(1), Flags.ACK_TXN)
    line = b'{"_meta":{"uuid":"%s"}}\n' % uuid.encode()
    await client.append(journal, line, subtract_registers=found)


@pytest.mark.parametrize("commit", [True, False])
async def test_transaction_ends_as_decided_though_registers_are_lost(
    gateway, client, journals, commit
):
    producer = await asyncio.to_thread(producer_of, gateway, "t")
    producer.begin_transaction()
    await asyncio.to_thread(send, producer, 0, 1, 2)
    for journal in journals:
        await lose_registers(client, journal)
    end = producer.commit_transaction if commit else producer.abort_transaction
    await asyncio.to_thread(end, patient(WAIT_S))
    expected = [0, 1, 2] if commit else []
    assert await committed(gateway) == expected
    by_client = [await numbers_of_client(client, journal) for journal in journals]
    by_tables = [await numbers_of_typed_table(client, journal) for journal in journals]
    assert by_client == by_tables
    assert sorted(n for numbers in by_client for n in numbers) == expected


async def test_batch_outside_of_an_open_transaction_does_not_commit_it(gateway):
    producer = await asyncio.to_thread(producer_of, gateway, "t")
    producer.begin_transaction()
    await asyncio.to_thread(send, producer, 0)
    async with (
        Cluster("127.0.0.1", gateway.port) as cluster,
        WireClient.to(gateway.port) as wire,
    ):
        (listed,) = await cluster.transactions()
        batch = batch_of(b'{"n":7}', producer_id=listed.producer_id, epoch=0, sequence=1)
        part = await wire.produce("flights", batch)
        assert part.error_code is ErrorCode.invalid_txn_state
    await asyncio.to_thread(producer.abort_transaction, patient(WAIT_S))
    assert await committed(gateway) == []


async def test_node_that_coordinated_before_does_not_answer_from_memory(broker, gateway):
    """Another node began a transaction since; this one was stopped for a minute, and did not see that."""
    producer = await asyncio.to_thread(producer_of, gateway, "t")
    producer.begin_transaction()
    await asyncio.to_thread(send, producer, 0)
    await asyncio.to_thread(producer.commit_transaction, patient(WAIT_S))
    etcd, prefix = broker.context.etcd, broker.config.etcd_prefix
    store = TxnStore(etcd, prefix, GroupStore(etcd, prefix, tasks=broker.context.tasks))
    stored = await store.load("t")
    claimed = stored.transaction.producer_id, stored.transaction.epoch
    following = add_to(stored.transaction, claimed, journals=("topic/flights/part=000",), now_ms=1)
    await store.save("t", following, stored.revision)
    end = {"transactional_id": "t", "producer_id": claimed[0], "producer_epoch": claimed[1]}
    async with WireClient.to(gateway.port) as wire:
        answer = await wire.call("end_txn", 3, committed=True, **end)
        assert answer.error_code is ErrorCode.not_coordinator
        assert (await store.load("t")).transaction == following
        answer = await wire.call("end_txn", 3, committed=True, **end)
        assert answer.error_code is ErrorCode.none
    assert (await store.load("t")).transaction.state is TxnState.COMPLETE_COMMIT


async def test_group_of_a_transaction_alone_is_listed(gateway):
    """A client that assigns its partitions itself joins no group, and commits only in transactions."""
    producer = await asyncio.to_thread(producer_of, gateway, "t")
    async with WireClient.to(gateway.port) as wire, Cluster("127.0.0.1", gateway.port) as cluster:
        producer.begin_transaction()
        (listed,) = await cluster.transactions()
        claimed = {"producer_id": listed.producer_id, "producer_epoch": 0}
        fields = {"transactional_id": "t", "group_id": "alone", **claimed}
        assert (await wire.call("add_offsets_to_txn", 3, **fields)).error_code is ErrorCode.none
        part = wire.entity(
            "txn_offset_commit",
            3,
            "TxnOffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topic = wire.entity(
            "txn_offset_commit",
            3,
            "TxnOffsetCommitRequestTopic",
            name="flights",
            partitions=(part,),
        )
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        answer = await wire.call("txn_offset_commit", 3, topics=(topic,), **fields, **member)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        assert [one.group_id for one in (await wire.call("list_groups", 3)).groups] == ["alone"]


async def _is(ask, wanted):
    return await ask() is wanted


@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_of_a_group_follow_the_transaction(gateway, commit):
    def work():
        consumer = ck.Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{gateway.port}",
                "group.id": "g",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        producer = producer_of(gateway, "t")
        producer.begin_transaction()
        send(producer, 0)
        place = ck.TopicPartition("flights", 0)
        producer.send_offsets_to_transaction(
            [ck.TopicPartition("flights", 0, 42)],
            consumer.consumer_group_metadata(),
            patient(WAIT_S),
        )
        if commit:
            producer.commit_transaction(patient(WAIT_S))
        else:
            producer.abort_transaction(patient(WAIT_S))
        (found,) = consumer.committed([place], patient(WAIT_S))
        consumer.close()
        return found.offset

    assert await asyncio.to_thread(work) == (42 if commit else ck.OFFSET_INVALID)


async def test_topic_of_plain_records_takes_no_transaction(gateway, client):
    await make_topic(client, "plain", **{"kafka.meta": "none"})

    def work():
        producer = producer_of(gateway, "t")
        producer.begin_transaction()
        producer.produce("plain", b'{"n":1}', partition=0)
        with pytest.raises(ck.KafkaException):
            producer.commit_transaction(patient(WAIT_S))
        producer.abort_transaction(patient(WAIT_S))

    await asyncio.to_thread(work)
    assert await client.write_head("topic/plain/part=000") == 0


def play(gateways, seed):
    """Producers at two gateways that commit, abort, and are fenced. Returns: what was committed. Blocks."""
    drawn = random.Random(seed)
    producers = {}
    expected = []
    for number in range(0, 400, 10):
        name = drawn.choice("xyz")
        if name not in producers or drawn.random() < 0.15:
            # A producer that another one replaces may have left a transaction open.
            producers[name] = producer_of(drawn.choice(gateways), name)
        producer = producers[name]
        producer.begin_transaction()
        numbers = range(number, number + drawn.randint(1, 9))
        send(producer, *numbers)
        fate = drawn.random()
        if fate < 0.6:
            producer.commit_transaction(patient(WAIT_S))
            expected += numbers
        elif fate < 0.85:
            producer.abort_transaction(patient(WAIT_S))
        else:
            producers[name] = producer_of(drawn.choice(gateways), name)
    for name in producers:
        producer_of(gateways[0], name)
    return sorted(expected)


async def numbers_of_typed_table(client, journal):
    """What a typed table takes of a journal."""
    async with await read_uncommitted(client, journal, framing=FRAMING) as reader:
        log = [one async for batch in reader for one in batch]

    def reread(begin, end):
        return table_of([one for one in log if begin <= one.begin < end])

    end = log[-1].end if log else 0
    screened = sequence(JournalState(), table_of(log), reread, end=end)
    rows = set(screened.begin.to_pylist())
    return [one.message["n"] for one in log if one.begin in rows]


async def numbers_of_client(client, journal):
    """What `read_committed` of the Python client gives."""
    async with await read_committed(client, journal, framing=FRAMING) as reader:
        return [
            one.message["n"]
            async for batch in reader
            for one in batch
            if one.uuid.flags != Flags.ACK_TXN
        ]


@pytest.mark.timeout(120)
async def test_all_readers_agree_what_was_committed(local_brokers, broker, client, journals):
    other = await local_brokers.start()
    async with gateway_of(broker) as one, gateway_of(other) as two:
        expected = await asyncio.to_thread(play, [one, two], 7)
        assert len(expected) > 50
        assert await committed(one) == expected
        assert await committed(two) == expected
        everything = await asyncio.to_thread(consume, two, isolation="read_uncommitted")
        assert len(everything) > len(expected)
    by_client = [await numbers_of_client(client, journal) for journal in journals]
    by_tables = [await numbers_of_typed_table(client, journal) for journal in journals]
    assert by_client == by_tables
    assert sorted(n for numbers in by_client for n in numbers) == expected


async def test_last_stable_offset_is_the_end_though_less_was_read_so_far(gateway, client, journals):
    """A consumer takes its own place for the end of the partition if the answer says that all after it is undecided."""
    async with WireClient.to(gateway.port) as wire:
        for n in range(3):
            await wire.produce("flights", batch_of(b'{"n":%d}' % n))
        head = await client.write_head(journals[0])
        at_once = await wire.fetch("flights", 0, isolation=1, wait_s=0.0)
        first_only = await wire.fetch("flights", 0, isolation=1, size=1)
    assert [part.last_stable_offset for part in (at_once, first_only)] == [head, head]
