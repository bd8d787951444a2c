"""Which journal a message goes to, and how a producer publishes it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import msgspec
import pytest

from gazette_platform.client import AsyncClient, ClientConfig, JournalListing, ListSnapshot
from gazette_platform.consumer.application import TransactionPublisher
from gazette_platform.errors import JournalNotFound, ValidationError
from gazette_platform.message import (
    Flags,
    JsonFraming,
    Mapped,
    MessageClock,
    Publisher,
    SequencerCounts,
    clock_of,
    fnv1a32,
    modulo,
    modulo_mapping,
    random_mapping,
    read_committed,
    register_framing,
    rendezvous,
    rendezvous_mapping,
)
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import EtcdHeader, Header, JournalSpec, LabelSet, Route
from gazette_platform.testing.waiting import turns
from tests.benches.fake_broker import FakeBroker, Fault

JOURNALS = [b"a/topic/part-%03d" % n for n in range(500)]


@pytest.mark.parametrize(
    ("key", "by_modulo", "by_rendezvous"),
    [(b"", 2, 4), (b"a", 5, 5), (b"hello", 2, 3), (b"user-42", 6, 4)],
)
def test_mm1_mapping_among_seven_journals_is_gazettes(key, by_modulo, by_rendezvous):
    assert modulo(key, 7) == by_modulo
    assert rendezvous(key, [fnv1a32(name) for name in JOURNALS[:7]]) == by_rendezvous


@pytest.mark.parametrize(
    ("key", "by_modulo", "by_rendezvous"),
    [
        ("It always", 119, 21),
        ("seems", 54, 179),
        ("impossible", 308, 50),
        ("until", 97, 13),
        ("it is done.", 179, 337),
        ("- Nelson Mandela", 437, 29),
        ("Shall I compare", 84, 110),
        ("thee to", 300, 395),
    ],
)
@pytest.mark.parametrize("count", [400, 500])
def test_mm1_mm2_mapping_among_many_journals_is_gazettes(key, by_modulo, by_rendezvous, count):
    assert modulo(key.encode(), 443) == by_modulo
    hashes = [fnv1a32(name) for name in JOURNALS[:count]]
    assert rendezvous(key.encode(), hashes) == by_rendezvous


def test_mapping_needs_a_journal():
    for call in (lambda: modulo(b"a", 0), lambda: rendezvous(b"a", [])):
        with pytest.raises(ValidationError, match="empty ListResponse"):
            call()


def snapshot(count, content_type="text/csv"):
    labels = LabelSet.of(("content-type", content_type)) if content_type else LabelSet()
    specs = [JournalSpec(name.decode(), labels=labels) for name in JOURNALS[:count]]
    listed = tuple(JournalListing(spec, 1, 1, Route()) for spec in specs)
    return ListSnapshot(listed, Header(None, Route(), EtcdHeader(1, 1, 1, 1)))


def test_mappings_name_the_journal_and_its_content_type():
    seven = snapshot(7)
    by_modulo = modulo_mapping(str.encode, lambda: seven)
    by_rendezvous = rendezvous_mapping(str.encode, lambda: seven)
    assert by_modulo("user-42") == Mapped("a/topic/part-006", "text/csv")
    assert by_rendezvous("user-42") == Mapped("a/topic/part-004", "text/csv")
    bare = snapshot(1, content_type="")
    assert modulo_mapping(str.encode, lambda: bare)("x") == Mapped("a/topic/part-000", "")


def test_mm2_mappings_follow_the_listing_of_now():
    now = [snapshot(400)]
    asked = []

    def partitions():
        asked.append(now[0])
        return now[0]

    by_rendezvous = rendezvous_mapping(str.encode, partitions)
    by_modulo = modulo_mapping(str.encode, partitions)
    names = "It always", "seems", "thee to"
    before = [by_rendezvous(name) for name in names]
    assert [one.journal[-3:] for one in before] == ["021", "179", "395"]
    moved = by_modulo("seems")
    now[0] = snapshot(500)
    assert [by_rendezvous(name) for name in names] == before
    assert by_modulo("seems") != moved
    now[0] = snapshot(100)
    assert by_rendezvous("thee to") != before[2]
    assert len(asked) == 9


def test_mm3_random_mapping_hits_all():
    three = snapshot(3)
    mapping = random_mapping(lambda: three, random.Random(7))
    hits = Counter(mapping(None).journal for _ in range(300))
    assert len(hits) == 3
    assert min(hits.values()) > 50


def test_mappings_need_a_journal():
    none = snapshot(0)
    for mapping in (
        modulo_mapping(str.encode, lambda: none),
        rendezvous_mapping(str.encode, lambda: none),
        random_mapping(lambda: none, random.Random(7)),
    ):
        with pytest.raises(ValidationError, match="empty ListResponse"):
            mapping("a")


@pytest.mark.parametrize("mapping_of", [modulo_mapping, rendezvous_mapping])
@pytest.mark.parametrize("key", [None, "text", 7])
def test_a_key_that_is_not_bytes_is_reported_with_what_to_do(mapping_of, key):
    """It was a TypeError about operands of ^ before."""
    mapping = mapping_of(lambda message: message["key"], lambda: snapshot(2))
    with pytest.raises(ValidationError, match=rf"must be bytes, .* gave {key!r} \(encode it"):
        mapping({"key": key})
    assert mapping({"key": bytearray(b"a")}) == mapping({"key": b"a"})


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
