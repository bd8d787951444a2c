"""The Kafka gateway by its protocol: what producers and consumers are answered, and what is in the journal."""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import replace
from datetime import timedelta

import orjson
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.kafka.calls.sequences import txn_producer
from gazette_platform.message.uuid import Flags, parse_uuid, uuid_text
from gazette_platform.protocol import JournalChange, JournalFlag, LabelSet
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

LARGE = 200_000
TOPIC = "flights"
JOURNAL = "topic/flights/part=000"


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def gateway(broker):
    async with gateway_of(broker, auto_create=True) as gateway:
        yield gateway


@pytest.fixture
async def wire(gateway):
    async with WireClient.to(gateway.port) as wire:
        topic = wire.entity("metadata", 4, "MetadataRequestTopic", name=TOPIC)
        await wire.call("metadata", 4, topics=(topic,), allow_auto_topic_creation=True)
        yield wire


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        yield client


def values_of(records):
    return [record.value for record in DefaultRecordBatch(bytes(records))] if records else []


async def test_versions_are_listed_also_to_clients_of_the_future(wire):
    listed = {
        each.api_key: each
        for each in (
            await wire.call(
                "api_versions", 3, client_software_name="t", client_software_version="1"
            )
        ).api_keys
    }
    assert (listed[0].min_version, listed[0].max_version) == (0, 12)
    assert {1, 2, 3, 18, 19, 20, 32, 37, 60} <= set(listed)
    wire.send_frame(struct.pack(">hhih", 18, 99, 7, -1))
    number, refused = await wire.answer("api_versions", 0)
    assert (number, refused.error_code) == (7, ErrorCode.unsupported_version)
    assert {each.api_key for each in refused.api_keys} == set(listed)


@pytest.mark.parametrize("name", [None, ""])
async def test_topic_is_described_by_its_id(wire, name):
    # Java's client leaves the name empty, others say null.
    async def described(**wanted):
        topic = wire.entity("metadata", 12, "MetadataRequestTopic", **wanted)
        answer = await wire.call(
            "metadata",
            12,
            topics=(topic,),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        return answer.topics[0]

    by_name = await described(name=TOPIC, topic_id=None)
    assert await described(name=name, topic_id=by_name.topic_id) == by_name


async def test_offsets_are_those_of_last_bytes(wire, client):
    first = await wire.produce(TOPIC, batch_of(b'{"a":1}', b'{"a":22}'))
    assert first.error_code == ErrorCode.none
    content = await client.read(JOURNAL).read()
    lines = content.splitlines(keepends=True)
    assert [orjson.loads(line)["a"] for line in lines] == [1, 22]
    assert first.base_offset == len(lines[0]) - 1
    found = await wire.fetch(TOPIC, 0)
    assert found.high_watermark == len(content)
    batch = DefaultRecordBatch(bytes(found.records))
    assert [(each.offset, each.value) for each in batch] == [
        (len(lines[0]) - 1, b'{"a":1}'),
        (len(content) - 1, b'{"a":22}'),
    ]
    assert batch.next_offset == len(content)


async def test_fetch_inside_a_record_gives_that_record(wire):
    produced = await wire.produce(TOPIC, batch_of(b'{"a":1}', b'{"a":2}', b'{"a":3}'))
    first = produced.base_offset
    for offset in (0, 1, 30, first):
        assert values_of((await wire.fetch(TOPIC, offset)).records)[0] == b'{"a":1}'
    for offset in (first + 1, first + 2, first + 60):
        assert values_of((await wire.fetch(TOPIC, offset)).records)[0] == b'{"a":2}'


async def test_journal_of_others_is_read_from_any_byte(wire, client):
    uuid = uuid_text(b"\1\2\3\4\5\6", 1 << 60, Flags.OUTSIDE_TXN).encode()
    values = [
        b"text",
        b"",
        b'{"a":',
        b"\x00\xff\xfe",
        b'{"_meta":{"uuid":"%s","ts":12' % uuid,
        b"{}",
    ]
    content = b"".join(value + b"\n" for value in values)
    await client.append(JOURNAL, content + b"not ended")
    begin = 0
    for number, value in enumerate(values):
        end = begin + len(value) + 1
        for offset in range(begin, end):
            found = await wire.fetch(TOPIC, offset)
            assert values_of(found.records) == values[number:]
            assert found.high_watermark == len(content) + len(b"not ended")
        begin = end
    for offset in (begin, begin + 3, begin + len(b"not ended")):
        found = await wire.fetch(TOPIC, offset, wait_s=0.01)
        assert (found.error_code, values_of(found.records)) == (ErrorCode.none, [])
    await client.append(JOURNAL, b", but now\n")
    assert values_of((await wire.fetch(TOPIC, begin + 3)).records) == [b"not ended, but now"]


async def test_fetches_that_do_not_wait_get_a_record_from_inside_it(wire):
    produced = await wire.produce(TOPIC, batch_of(b'{"a":1}'))

    async def found():
        part = await wire.fetch(TOPIC, produced.base_offset, wait_s=0.0)
        return values_of(part.records) == [b'{"a":1}']

    await eventually(found, timeout_s=10.0)


async def test_largest_record_is_read_back_however_its_line_grows(broker):
    async with (
        gateway_of(broker, record_bytes_max=LARGE) as small,
        WireClient.to(small.port) as wire,
    ):
        config = wire.entity(
            "create_topics", 7, "CreatableTopicConfig", name="kafka.form", value="envelope"
        )
        await create(wire, "large", configs=(config,))
        size = 2 * LARGE - len(batch_of(b"\1" * LARGE))
        too_large = await wire.produce("large", batch_of(b"\1" * (size + 1)))
        assert too_large.error_code == ErrorCode.message_too_large
        values = [b"\1" * size, b"\xff" * size, b'"' * size]
        for value in values:
            assert (await wire.produce("large", batch_of(value))).error_code == ErrorCode.none
        found, offset = [], 0
        while len(found) < len(values):
            part = await wire.fetch("large", offset)
            assert part.error_code == ErrorCode.none
            batch = DefaultRecordBatch(bytes(part.records))
            found += [each.value for each in batch]
            offset = batch.next_offset
        assert found == values
        last = await wire.fetch("large", offset - 1)
        assert values_of(last.records) == values[-1:]


async def test_fetch_is_bounded_and_gives_at_least_one_record(wire):
    for number in range(5):
        await wire.produce(TOPIC, batch_of(b'{"a":%d}' % number))
    offset, found = 0, []
    for _ in range(5):
        part = await wire.fetch(TOPIC, offset, size=10)
        found += values_of(part.records)
        offset = DefaultRecordBatch(bytes(part.records)).next_offset
    assert found == [b'{"a":%d}' % number for number in range(5)]
    assert values_of((await wire.fetch(TOPIC, offset, wait_s=0.01)).records) == []


async def test_fetch_waits_for_what_is_produced(gateway, wire):
    async with WireClient.to(gateway.port) as other:
        waiting = asyncio.ensure_future(wire.fetch(TOPIC, 0, wait_s=15.0))  # noqa: TID251  a second client
        produced = await other.produce(TOPIC, batch_of(b'{"a":1}'))
        assert values_of((await waiting).records) == [b'{"a":1}']
        waiting = asyncio.ensure_future(  # noqa: TID251  a second client
            wire.fetch(TOPIC, produced.base_offset + 1, wait_s=15.0)
        )
        await other.produce(TOPIC, batch_of(b'{"a":2}'))
        assert values_of((await waiting).records) == [b'{"a":2}']


async def test_offset_out_of_range(wire):
    assert (await wire.fetch(TOPIC, 1000)).error_code == ErrorCode.offset_out_of_range
    assert (await wire.fetch("none", 0)).error_code == ErrorCode.unknown_topic_or_partition
    assert (await wire.fetch(TOPIC, 0, index=7)).error_code == ErrorCode.unknown_topic_or_partition


async def test_pipelined_batches_keep_their_order(wire, client):
    for number in range(50):
        await wire.send(
            "produce", 9, wire.produce_request(TOPIC, (0, batch_of(b'{"a":%d}' % number)))
        )
    offsets = [(await wire.produced()).base_offset for _ in range(50)]
    assert offsets == sorted(offsets)
    lines = (await client.read(JOURNAL).read()).splitlines()
    assert [orjson.loads(line)["a"] for line in lines] == list(range(50))
    clocks = [parse_uuid(orjson.loads(line)["_meta"]["uuid"]).clock for line in lines]
    assert clocks == sorted(clocks)


async def test_bad_record_is_named_and_nothing_is_appended(wire, client):
    refused = await wire.produce(TOPIC, batch_of(b'{"a":1}', b"text", b'{"a":2}\n'))
    assert refused.error_code == ErrorCode.invalid_record
    assert [each.batch_index for each in refused.record_errors] == [1, 2]
    assert "form envelope" in refused.record_errors[0].batch_index_error_message
    assert await client.write_head(JOURNAL) == 0
    assert (await wire.produce(TOPIC, batch_of(b"{}")[:-1])).error_code == ErrorCode.invalid_record
    assert (
        await wire.produce("no topic", batch_of(b"{}"))
    ).error_code == ErrorCode.unknown_topic_or_partition


async def test_acks_0_is_not_answered(wire, client):
    await wire.send("produce", 9, wire.produce_request(TOPIC, (0, batch_of(b"{}")), acks=0))
    assert (await wire.produce(TOPIC, batch_of(b"{}"))).error_code == ErrorCode.none
    assert len((await client.read(JOURNAL).read()).splitlines()) == 2


async def test_last_batches_of_a_producer_that_closes_are_appended(gateway, wire, client):
    async with WireClient.to(gateway.port) as other:
        for _ in range(30):
            await other.send(
                "produce", 9, other.produce_request(TOPIC, (0, batch_of(b"{}")), acks=0)
            )

    async def are_there():
        return (await client.read(JOURNAL).read()).count(b"\n") == 30

    await eventually(are_there, timeout_s=10.0)


# ------------------------------------------------------------------ idempotent producers


def numbered(sequence, *values, epoch=0, producer_id=7, **options):
    return batch_of(*values, producer_id=producer_id, epoch=epoch, sequence=sequence, **options)


async def test_batch_that_is_sent_again_is_not_appended_again(gateway, broker, wire, client):
    first = await wire.produce(TOPIC, numbered(0, b'{"a":1}', b'{"a":2}'))
    again = await wire.produce(TOPIC, numbered(0, b'{"a":1}', b'{"a":2}'))
    assert (again.error_code, again.base_offset) == (ErrorCode.none, first.base_offset)
    second = await wire.produce(TOPIC, numbered(2, b'{"a":3}'))
    older = await wire.produce(TOPIC, numbered(0, b'{"a":1}', b'{"a":2}'))
    assert (older.error_code, older.base_offset) == (ErrorCode.none, first.base_offset)
    async with gateway_of(broker) as other, WireClient.to(other.port) as elsewhere:
        again = await elsewhere.produce(TOPIC, numbered(2, b'{"a":3}'))
        assert (again.error_code, again.base_offset) == (ErrorCode.none, second.base_offset)
        assert (
            await elsewhere.produce(TOPIC, numbered(3, b'{"a":4}'))
        ).error_code == ErrorCode.none
    # The first gateway learns from the registers what went through the other.
    assert (await wire.produce(TOPIC, numbered(4, b'{"a":5}'))).error_code == ErrorCode.none
    lines = (await client.read(JOURNAL).read()).splitlines()
    assert [orjson.loads(line)["a"] for line in lines] == [1, 2, 3, 4, 5]


async def test_gap_and_old_epoch_are_refused(wire, client):
    await wire.produce(TOPIC, numbered(0, b"{}", epoch=3))
    assert (
        await wire.produce(TOPIC, numbered(2, b"{}", epoch=3))
    ).error_code == ErrorCode.out_of_order_sequence_number
    assert (
        await wire.produce(TOPIC, numbered(1, b"{}", epoch=2))
    ).error_code == ErrorCode.invalid_producer_epoch
    assert (
        await wire.produce(TOPIC, numbered(1, b"{}", epoch=4))
    ).error_code == ErrorCode.out_of_order_sequence_number
    assert (await wire.produce(TOPIC, numbered(0, b"{}", epoch=4))).error_code == ErrorCode.none
    assert len((await client.read(JOURNAL).read()).splitlines()) == 2


async def set_flags(client, flags):
    (listed,) = await client.list(f"name={JOURNAL}")
    await client.apply([JournalChange(replace(listed.spec, flags=flags), revision=-1)])


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_batch_after_one_that_failed_waits_for_it(wire, client, is_forgotten):
    """Producers send up to five batches ahead; the first is sent again after those that follow it."""
    for number in range(80, 80 + 70 * is_forgotten):
        await wire.produce(TOPIC, numbered(0, b"{}", producer_id=number))
    before = await client.write_head(JOURNAL)
    await set_flags(client, JournalFlag.O_RDONLY)
    failed = await wire.produce(TOPIC, numbered(0, b'{"a":1}'))
    assert failed.error_code != ErrorCode.none
    await set_flags(client, JournalFlag.O_RDWR)
    ahead = await wire.produce(TOPIC, numbered(1, b'{"a":2}'))
    assert ahead.error_code == ErrorCode.out_of_order_sequence_number
    for number in range(2):
        again = await wire.produce(TOPIC, numbered(number, b'{"a":%d}' % (number + 1)))
        assert again.error_code == ErrorCode.none
    lines = (await client.read(JOURNAL, before).read()).splitlines()
    assert [orjson.loads(line)["a"] for line in lines] == [1, 2]


async def test_sequence_numbers_wrap(wire, client):
    last = (1 << 31) - 2
    begun = LabelSet.of({"kafka.seq.7": f"0.{last}.0.0"})
    await client.append(JOURNAL, b"begun\n", union_registers=begun)
    assert (await wire.produce(TOPIC, numbered(last, b"{}", b"{}"))).error_code == ErrorCode.none
    assert (await wire.produce(TOPIC, numbered(0, b"{}"))).error_code == ErrorCode.none


async def test_producer_that_was_longest_silent_is_forgotten(wire, client):
    for number in range(70):
        produced = await wire.produce(TOPIC, numbered(0, b"{}", producer_id=number))
        assert produced.error_code == ErrorCode.none
    registers = (await client.append(JOURNAL, b"")).registers
    kept = {int(label.name.rpartition(".")[2]) for label in registers if ".seq." in label.name}
    assert kept == set(range(6, 70))
    again = await wire.produce(TOPIC, numbered(1, b"{}", producer_id=3))
    assert again.error_code == ErrorCode.none


async def test_other_writers_may_append_to_the_journal(wire, client):
    for number in range(6):
        produced = await wire.produce(TOPIC, numbered(2 * number, b'{"a":1}', b'{"a":2}'))
        assert produced.error_code == ErrorCode.none
        await client.append(JOURNAL, b'{"b":%d}\n' % number)
    assert await uncommitted(wire, 18) == [
        value for number in range(6) for value in (b'{"a":1}', b'{"a":2}', b'{"b":%d}' % number)
    ]


async def test_registers_refuse_what_another_gateway_appends_meanwhile(
    gateway, broker, wire, client, monkeypatch
):
    """Other writers move the end until the lane names no offset any more; then registers alone say what was appended."""
    ours = next(part._gateway for part in gateway.parts if hasattr(part, "_gateway")).client
    append, batch, elsewhere_at = ours.append, numbered(0, b'{"a":1}'), []
    async with gateway_of(broker) as other, WireClient.to(other.port) as elsewhere:

        async def late_append(journal, content, **options):
            if content and options["offset"]:
                await client.append(JOURNAL, b"{}\n")
            elif content and not elsewhere_at:
                elsewhere_at.append((await elsewhere.produce(TOPIC, batch)).base_offset)
            return await append(journal, content, **options)

        await client.append(JOURNAL, b"{}\n")
        monkeypatch.setattr(ours, "append", late_append)
        produced = await wire.produce(TOPIC, batch)
    assert (produced.error_code, [produced.base_offset]) == (ErrorCode.none, elsewhere_at)
    assert (await client.read(JOURNAL).read()).count(b'"a":1') == 1


# ------------------------------------------------------------------ transactions in one journal


class Transactional:
    """A producer with transactions, by its calls."""

    def __init__(self, wire, name):
        self.wire = wire
        self.name = name
        self.id = self.epoch = -1
        self.sequence = 0

    async def begin(self):
        """Become the producer of this name."""
        found = await self.wire.call(
            "init_producer_id",
            4,
            transactional_id=self.name,
            transaction_timeout=timedelta(seconds=60),
            producer_id=-1,
            producer_epoch=-1,
        )
        assert found.error_code == ErrorCode.none
        self.id, self.epoch = found.producer_id, found.producer_epoch
        return self

    async def send(self, value):
        """Add the partition, and send a record. Returns: the code of the answer."""
        wire = self.wire
        topic = wire.entity(
            "add_partitions_to_txn", 3, "AddPartitionsToTxnTopic", name=TOPIC, partitions=(0,)
        )
        added = await wire.call(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=(topic,),
        )
        code = added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        assert code == ErrorCode.none
        return await self.send_late(value)

    async def send_late(self, value):
        """Send a record, as a producer that does not know that its time is over."""
        options = {"producer_id": self.id, "epoch": self.epoch, "transactional": True}
        batch = numbered(self.sequence, value, **options)
        produced = await self.wire.produce(TOPIC, batch, transactional_id=self.name)
        self.sequence += 1
        return produced.error_code

    async def end(self, *, commit):
        """Commit or abort, and wait until that is done."""
        while True:
            ended = await self.wire.call(
                "end_txn",
                3,
                transactional_id=self.name,
                producer_id=self.id,
                producer_epoch=self.epoch,
                committed=commit,
            )
            if ended.error_code != ErrorCode.concurrent_transactions:
                assert ended.error_code == ErrorCode.none
                return


async def committed(wire, offset=0):
    """What follows `offset`, and the last stable offset."""
    found = []
    while True:
        part = await wire.fetch(TOPIC, offset, isolation=1, wait_s=0.3)
        assert part.error_code == ErrorCode.none
        if not part.records:
            return found, part.last_stable_offset
        found += values_of(part.records)
        offset = DefaultRecordBatch(bytes(part.records)).next_offset


async def uncommitted(wire, count):
    """The first records."""
    found, offset = [], 0
    while len(found) < count:
        part = await wire.fetch(TOPIC, offset)
        found += values_of(part.records)
        offset = DefaultRecordBatch(bytes(part.records)).next_offset
    return found


async def test_transactions_are_hidden_until_they_end(wire, client):
    one = await Transactional(wire, "one").begin()
    two = await Transactional(wire, "two").begin()
    await wire.produce(TOPIC, batch_of(b'{"n":0}'))
    begin = await client.write_head(JOURNAL)
    assert await one.send(b'{"n":1}') == ErrorCode.none
    assert await two.send(b'{"n":2}') == ErrorCode.none
    await wire.produce(TOPIC, batch_of(b'{"n":3}'))
    found, stable = await committed(wire)
    assert found == [b'{"n":0}']
    assert stable == begin
    assert len(await uncommitted(wire, 4)) == 4
    await two.end(commit=False)
    await one.end(commit=True)
    found = await eventually_committed(wire, 3)
    assert found == [b'{"n":0}', b'{"n":1}', b'{"n":3}']
    head = await client.write_head(JOURNAL)
    assert (await committed(wire, head)) == ([], head)
    assert len(await uncommitted(wire, 4)) == 4


async def test_fetch_of_committed_records_waits_for_the_end_of_a_transaction(gateway, wire):
    producer = await Transactional(wire, "one").begin()
    assert await producer.send(b'{"n":1}') == ErrorCode.none
    async with WireClient.to(gateway.port) as reader:
        waiting = asyncio.ensure_future(  # noqa: TID251  a second client
            reader.fetch(TOPIC, 0, isolation=1, wait_s=15.0)
        )
        # It looks at what is undecided, and has no answer.
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        await producer.end(commit=True)
        assert values_of((await waiting).records) == [b'{"n":1}']


async def eventually_committed(wire, count):
    found, offset = [], 0
    while len(found) < count:
        part = await wire.fetch(TOPIC, offset, isolation=1)
        if part.records:
            found += values_of(part.records)
            offset = DefaultRecordBatch(bytes(part.records)).next_offset
    return found


async def test_our_own_readers_agree_about_transactions(wire, client):
    producer = await Transactional(wire, "one").begin()
    for number, commits in enumerate((True, False, True)):
        while (await producer.send(b'{"n":%d}' % number)) == ErrorCode.concurrent_transactions:
            producer.sequence -= 1
        await producer.end(commit=commits)
    assert await eventually_committed(wire, 2) == [b'{"n":0}', b'{"n":2}']
    lines = [orjson.loads(line) for line in (await client.read(JOURNAL).read()).splitlines()]
    parts = [parse_uuid(line["_meta"]["uuid"]) for line in lines]
    assert {part.producer for part in parts} == {txn_producer(producer.id, producer.epoch)}
    assert [part.flags for part in parts] == [Flags.CONTINUE_TXN, Flags.ACK_TXN] * 3
    assert parts[1].clock > parts[0].clock
    assert parts[3].clock < parts[2].clock
    assert parts[5].clock > parts[4].clock > parts[2].clock


async def test_producer_whose_name_another_took_is_fenced(wire):
    former = await Transactional(wire, "one").begin()
    assert await former.send(b'{"n":0}') == ErrorCode.none
    following = await Transactional(wire, "one").begin()
    assert await former.send_late(b'{"n":1}') == ErrorCode.producer_fenced
    assert await following.send(b'{"n":2}') == ErrorCode.none
    await following.end(commit=True)
    assert await eventually_committed(wire, 1) == [b'{"n":2}']


async def test_plain_topic_holds_no_transactions(gateway, wire):
    config = wire.entity(
        "create_topics", 7, "CreatableTopicConfig", name="kafka.meta", value="none"
    )
    await create(wire, "plain", configs=(config,))
    batch = numbered(0, b"{}", transactional=True)
    refused = await wire.produce("plain", batch, transactional_id="one")
    assert refused.error_code == ErrorCode.invalid_record
    assert (await wire.produce("plain", batch_of(b'{"a":1}'))).error_code == ErrorCode.none
    assert values_of((await wire.fetch("plain", 0)).records) == [b'{"a":1}']


async def create(wire, name, *, configs=(), partitions=1):
    topic = wire.entity(
        "create_topics",
        7,
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=(),
        configs=configs,
    )
    found = await wire.call(
        "create_topics", 7, topics=(topic,), timeout=timedelta(seconds=5), validate_only=False
    )
    return found.topics[0]


# ------------------------------------------------------------------ hostile clients


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 3) + b"\0\0\0",
        struct.pack(">ihhi", 8, 0, 9, 1),
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhi", 8, 3, 99, 1),
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
    ],
)
async def test_client_that_breaks_the_protocol_is_disconnected(gateway, wire, data):
    async with WireClient.to(gateway.port) as bad:
        bad.send_bytes(data)
        await bad.ended()
    assert (await wire.produce(TOPIC, batch_of(b"{}"))).error_code == ErrorCode.none


@pytest.mark.parametrize("seed", range(4))
async def test_no_request_of_random_bytes_is_an_unforeseen_error(gateway, wire, seed):
    """The brokers of the test fail it if one is."""
    listed = (await wire.call("api_versions", 0)).api_keys
    rng = random.Random(seed)
    for each in listed:
        for version in {each.min_version, each.max_version}:
            async with WireClient.to(gateway.port) as bad:
                for size in (0, 4, 30):
                    body = bytes(rng.choice((0, 0, 0, 1, 2, 255, 116)) for _ in range(size))
                    bad.send_frame(struct.pack(">hhih", each.api_key, version, 1, 0) + body)
                bad.send_bytes(struct.pack(">i", -1))
                await bad.ended()
    assert (await wire.produce(TOPIC, batch_of(b"{}"))).error_code == ErrorCode.none
