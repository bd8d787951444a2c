"""A publisher over an append service: clocks, transactions, and what becomes of errors."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import msgspec
import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.publisher import TransactionPublisher
from gazette_platform.errors import JournalNotFound, ValidationError
from gazette_platform.message import (
    Flags,
    JsonFraming,
    Mapped,
    MessageClock,
    Publisher,
    SequencerCounts,
    clock_of,
    read_committed,
    register_framing,
)
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import JournalSpec, LabelSet
from gazette_platform.testing.waiting import turns
from tests.benches.fake_broker import FakeBroker, Fault

PRODUCER = bytes.fromhex("070203040506")
NDJSON = "application/x-ndjson"
JSON = JsonFraming()


def by_name(message):
    return Mapped(message["to"], message.get("as", NDJSON))


@asynccontextmanager
async def publishing(clock=None, **bounds):
    async with FakeBroker() as broker:
        for name in ("a/one", "a/two"):
            broker.journal(name)
        async with AsyncClient(ClientConfig(address=broker.address)) as client:
            service = client.append_service(**bounds)
            yield broker, client, Publisher(service, by_name, clock, producer=PRODUCER)


def parts(broker, journal):
    lines = bytes(broker.journals[journal].content).splitlines()
    return [JSON.uuid_of(JSON.decoder().decode(line)) for line in lines]


def clocks(broker, journal):
    return [(each.clock, each.flags) for each in parts(broker, journal)]


async def test_mp2_a_transaction_of_two_journals_has_the_clocks_of_the_contract():
    async with publishing() as (broker, _, publisher):
        for name in ("a/one", "a/two"):
            await publisher.publish_uncommitted({"to": name})
        intents = publisher.build_acks()
        assert [each.journal for each in intents] == ["a/one", "a/two"]
        assert publisher.build_acks() == []
        await publisher.append_acks(intents)
        assert clocks(broker, "a/one") == [(160, Flags.CONTINUE_TXN), (480, Flags.ACK_TXN)]
        assert clocks(broker, "a/two") == [(320, Flags.CONTINUE_TXN), (640, Flags.ACK_TXN)]
        assert {each.producer for each in parts(broker, "a/one")} == {PRODUCER}


async def test_mp2_a_journal_has_one_ack_a_transaction_in_the_order_of_the_first_messages():
    async with publishing() as (_broker, _, publisher):
        for name in ("a/two", "a/one", "a/two"):
            await publisher.publish_uncommitted({"to": name})
        assert [each.journal for each in publisher.build_acks()] == ["a/two", "a/one"]
        ticket = await publisher.publish_uncommitted({"to": "a/one"})
        assert [each.journal for each in publisher.build_acks()] == ["a/one"]
        await ticket


@pytest.mark.parametrize("ring_size", [3, 8])
async def test_mp3_a_committed_message_overtakes_a_transaction_that_outgrows_the_ring(ring_size):
    async with publishing() as (broker, client, publisher):
        spec = JournalSpec("a/one", 1, LabelSet.of(**{"content-type": NDJSON}))
        broker.journals["a/one"].spec = spec
        other = Publisher(publisher.service, by_name, None, producer=bytes([9]) * 6)
        for n in range(5):
            await publisher.publish_uncommitted({"to": "a/one", "n": n})
            if n == 1:
                await other.publish_committed({"to": "a/one", "n": 100})
        await publisher.append_acks(publisher.build_acks())
        counts = SequencerCounts()
        reader = await read_committed(client, "a/one", ring_size=ring_size, counts=counts)
        async with reader:
            found = [each.message async for batch in reader for each in batch]
        assert [each["n"] for each in found if "n" in each] == [100, 0, 1, 2, 3, 4]
        assert bool(counts.replayed) is (ring_size == 3)


async def test_clocks_rise_in_each_journal_however_many_tasks_publish():
    async with publishing(ManualClock(), buffer_bytes_max=2000) as (broker, _, publisher):

        async def publish(task):
            for n in range(20):
                ticket = await publisher.publish_committed({"to": "a/one", "task": task, "n": n})
                if n % 3 == 0:
                    await ticket

        await asyncio.gather(*(publish(task) for task in range(30)))
        await turns()
        await publisher.service.flush()
        found = [clock for clock, _ in clocks(broker, "a/one")]
        assert len(found) == 600
        assert found == sorted(set(found))
        assert max(broker.append_sizes) < 3000


async def test_mp1_the_clock_follows_the_time_and_never_goes_back():
    clock = ManualClock(datetime(2026, 1, 2, tzinfo=UTC))
    async with publishing(clock) as (broker, _, publisher):
        await publisher.publish_committed({"to": "a/one"})
        clock.advance(10)
        await publisher.publish_committed({"to": "a/one"})
        clock.advance(-100)
        await (await publisher.publish_committed({"to": "a/one"}))
        begin = clock_of(int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 10**9)
        ten_s = 10 * 10**7 << 4
        assert [at - begin for at, _ in clocks(broker, "a/one")] == [
            160,
            ten_s + 160,
            ten_s + 320,
        ]


async def test_acks_may_be_appended_again_and_an_append_that_came_twice_counts_once():
    async with publishing() as (broker, client, publisher):
        spec = JournalSpec("a/one", 1, LabelSet.of(**{"content-type": NDJSON}))
        broker.journals["a/one"].spec = spec
        lost = Fault(code=grpc.StatusCode.UNKNOWN, after_commit=True)
        broker.fail("Append", lost)
        await (await publisher.publish_uncommitted({"to": "a/one", "n": 1}))
        await (await publisher.publish_uncommitted({"to": "a/one", "n": 2}))
        intents = publisher.build_acks()
        for _ in range(2):
            await publisher.append_acks(intents)
        await (await publisher.publish_uncommitted({"to": "a/one", "n": 3}))
        assert len(parts(broker, "a/one")) == 6
        async with await read_committed(client, "a/one") as reader:
            found = [each.message async for batch in reader for each in batch]
        assert [each["n"] for each in found if "n" in each] == [1, 2]


async def test_mp1_what_cannot_be_published_takes_no_place():
    async with publishing() as (broker, _, publisher):
        with pytest.raises(ValidationError, match="unrecognized content-type"):
            await publisher.publish_uncommitted({"to": "a/one", "as": "image/png"})
        with pytest.raises(ValidationError, match="Journal"):
            await publisher.publish_uncommitted({"to": "no name!"})
        with pytest.raises((ValidationError, TypeError)):
            await publisher.publish_uncommitted({"to": "a/one", "n": object()})
        ticket = await publisher.publish_committed({"to": "no/journal"})
        with pytest.raises(JournalNotFound):
            await ticket
        with pytest.raises(JournalNotFound):
            await publisher.publish_uncommitted({"to": "no/journal"})
        assert publisher.build_acks() == []
        await publisher.service.flush("a/one")
        assert clocks(broker, "a/one") == []


class Limited(msgspec.Struct):
    """Says itself what may be published."""

    n: int = 0
    UUID: str = ""

    def validate(self):
        assert not self.UUID  # it gets one later
        if self.n > 9:
            raise ValidationError(f"n is {self.n}, of at most 9")


class Parsed(msgspec.Struct):
    """With a class method of that name, which is to make one of something else, as models of pydantic have."""

    UUID: str = ""

    @classmethod
    def validate(cls, value):
        raise AssertionError(value)


async def test_mp1_a_message_that_is_not_valid_is_neither_mapped_nor_published():
    mapped = []

    def mapping(message):
        mapped.append(message.n)
        return Mapped("a/one", NDJSON)

    framing = JsonFraming(message_type=Limited)
    async with publishing() as (broker, client, former):
        publisher = Publisher(former.service, mapping, None, framing=framing)
        with pytest.raises(ValidationError, match="n is 10, of at most 9"):
            await publisher.publish_committed(Limited(10))
        for to in (None, mapping, Mapped("a/one", NDJSON)):
            with pytest.raises(ValidationError, match="n is 11"):
                await publisher.publish_uncommitted(Limited(11), to=to)
        assert (mapped, publisher.build_acks()) == ([], [])
        await publisher.publish_committed(Limited(9))
        await publisher.publish_uncommitted(Limited(8), to=mapping)
        await publisher.append_acks(publisher.build_acks())
        assert mapped == [9, 8]
        # What was refused has taken no clock.
        assert [clock for clock, _ in clocks(broker, "a/one")] == [160, 320, 480]

        spec = JournalSpec("a/two", 1, LabelSet.of(**{"content-type": NDJSON}))
        broker.journals["a/two"].spec = spec
        register_framing(framing)
        try:
            of_shard = TransactionPublisher(client, former.service, ManualClock())
            for to in ("a/two", lambda _: pytest.fail("it was mapped")):
                with pytest.raises(ValidationError, match="n is 12"):
                    await of_shard.publish(to, Limited(12))
            assert of_shard.build_acks() == []
            await of_shard.publish("a/two", Limited(7))
            [ack] = of_shard.build_acks()
        finally:
            register_framing(JSON)
        assert ack.journal == "a/two"
        assert len(ack.content.splitlines()) == 1


async def test_a_class_method_named_validate_is_not_called():
    async with publishing() as (broker, _, former):
        publisher = Publisher(
            former.service,
            lambda _: Mapped("a/one", NDJSON),
            None,
            framing=JsonFraming(message_type=Parsed),
        )
        await (await publisher.publish_committed(Parsed()))
        assert len(parts(broker, "a/one")) == 1


class Untold(msgspec.Struct):
    to: str  # without a default, so that no message for an ACK can be made
    UUID: str = ""


async def test_a_message_is_not_accepted_if_its_transaction_could_not_be_acknowledged():
    async with publishing() as (broker, _, former):
        publisher = Publisher(
            former.service,
            lambda message: Mapped(message.to, "application/x-ndjson"),
            None,
            framing=JsonFraming(message_type=Untold),
        )
        with pytest.raises(ValidationError, match="no message for an ACK"):
            await publisher.publish_uncommitted(Untold("a/one"))
        await former.service.flush()
        assert bytes(broker.journals["a/one"].content) == b""
        assert publisher.build_acks() == []


class FailsAtTimes:
    """JSON that cannot be written now and then."""

    def __init__(self):
        self.is_failing = False

    def __getattr__(self, name):
        return getattr(JSON, name)

    def encode(self, message):
        if self.is_failing:
            raise ValidationError("cannot be written")
        return JSON.encode(message)


async def test_a_transaction_whose_acks_could_not_be_made_stays_open():
    async with publishing() as (broker, _, former):
        framing = FailsAtTimes()
        publisher = Publisher(former.service, by_name, None, framing=framing)
        for name in ("a/one", "a/two"):
            await publisher.publish_uncommitted({"to": name})
        framing.is_failing = True
        with pytest.raises(ValidationError, match="cannot be written"):
            publisher.build_acks()
        framing.is_failing = False
        intents = publisher.build_acks()
        assert [each.journal for each in intents] == ["a/one", "a/two"]
        await publisher.append_acks(intents)
        for name in ("a/one", "a/two"):
            assert [flags for _, flags in clocks(broker, name)] == [
                Flags.CONTINUE_TXN,
                Flags.ACK_TXN,
            ]


async def test_mp1_a_clock_of_the_callers_own_is_used():
    async with publishing() as (broker, _, publisher):
        own = Publisher(
            publisher.service, by_name, None, message_clock=MessageClock(1600), framing=JSON
        )
        await (await own.publish_committed({"to": "a/one", "as": "image/png"}))
        assert clocks(broker, "a/one") == [(1760, Flags.OUTSIDE_TXN)]
        assert len(own.producer) == 6
        assert own.producer != Publisher(publisher.service, by_name, None).producer
