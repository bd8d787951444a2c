"""Messages through a real broker: transactions, what is read of them, and where to go on."""

import asyncio

import pytest

from gazette_platform.client import Change, Client, ClientConfig, read_store
from gazette_platform.errors import DataError, JournalNotFound, ValidationError
from gazette_platform.message import (
    Flags,
    JsonFraming,
    MessageClock,
    MessageIterator,
    SequencerCounts,
    UncommittedReader,
    build_uuid,
    framing_of,
    new_producer_id,
    read_committed,
    read_uncommitted,
)
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.waiting import patient

pytestmark = pytest.mark.etcd
OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN


class Publisher:
    """Appends messages one by one, so that each offset is known."""

    def __init__(self, client, journal, content_type="application/x-ndjson"):
        self.client = client
        self.journal = journal
        self.framing = framing_of(content_type)
        self.producer = new_producer_id()
        self.clock = MessageClock()
        self.ends = [0]

    async def create(self):
        spec = JournalSpec(
            name=self.journal,
            replication=1,
            labels=LabelSet.of(("content-type", self.framing.content_type)),
            fragment=FragmentSpec(
                length=1 << 20,
                codec=CompressionCodec.NONE,
                stores=("file:///",),
                refresh_interval_ns=SECOND_NS,
            ),
        )
        await self.client.apply([Change(spec)])
        return self

    async def publish(self, message, flags):
        stamped = self.framing.stamp(message, build_uuid(self.producer, self.clock.tick(), flags))
        done = await self.client.append(self.journal, self.framing.encode(stamped))
        self.ends.append(done.end)


@pytest.fixture
async def rides(client, names):
    """A journal with one message that is committed, and a transaction of three that has its ACK."""
    publisher = await Publisher(client, names.journal()).create()
    await publisher.publish({"n": 0}, OUT)
    for number in (1, 2, 3):
        await publisher.publish({"n": number}, CONT)
    await publisher.publish({"n": "ack"}, ACK)
    await publisher.publish({"n": 4}, CONT)
    return publisher


async def numbers(reader):
    return [one.message["n"] async for batch in reader for one in batch]


async def test_mr1_readers_of_a_journal_see_what_they_are_to(client, rides):
    async with await read_uncommitted(client, rides.journal) as reader:
        assert await numbers(reader) == [0, 1, 2, 3, "ack", 4]
        assert reader.offset == rides.ends[-1]
    async with await read_uncommitted(
        client, f"{rides.journal};mine", rides.ends[2], end_offset=rides.ends[4]
    ) as reader:
        (batch,) = [batch async for batch in reader]
        assert [(one.journal, one.begin, one.end) for one in batch] == [
            (f"{rides.journal};mine", rides.ends[2], rides.ends[3]),
            (f"{rides.journal};mine", rides.ends[3], rides.ends[4]),
        ]
    for ring_size, replayed in ((1, {rides.journal: 3}), (8192, {})):
        counts = SequencerCounts()
        async with await read_committed(
            client, rides.journal, ring_size=ring_size, counts=counts
        ) as reader:
            assert await numbers(reader) == [0, 1, 2, 3, "ack"]
            checkpoint = reader.checkpoint()
        assert (sum(counts.queued.values()), counts.replayed) == (6, replayed)
    await rides.publish({"n": "ack"}, ACK)
    async with await read_committed(client, rides.journal, checkpoint=checkpoint) as reader:
        assert await numbers(reader) == [4, "ack"]


async def test_mr2_journals_without_messages_are_refused(client, rides, names):
    for read in (read_uncommitted, read_committed):
        with pytest.raises(JournalNotFound, match=names.journal("missing")):
            await read(client, names.journal("missing"))
    bare = JournalSpec(
        name=names.journal("bare"),
        replication=1,
        fragment=FragmentSpec(
            length=1 << 20, codec=CompressionCodec.NONE, refresh_interval_ns=SECOND_NS
        ),
    )
    await client.apply([Change(bare)])
    with pytest.raises(ValidationError, match="one label content-type"):
        await read_uncommitted(client, names.journal("bare"))
    async with await read_uncommitted(
        client, names.journal("bare"), framing=JsonFraming()
    ) as reader:
        assert await numbers(reader) == []


async def test_mr5_an_end_offset_within_a_message_is_an_error(client, rides):
    async with await read_uncommitted(
        client, rides.journal, end_offset=rides.ends[2] - 3
    ) as reader:
        assert [one.message["n"] for one in await anext(reader)] == [0]
        with pytest.raises(DataError, match=f"unexpected EOF: .* at offset {rides.ends[1]}"):
            await anext(reader)


async def test_a_reader_that_blocks_gets_transactions_as_they_are_committed(client, rides):
    async with (
        asyncio.timeout(patient(30)),
        await read_committed(client, rides.journal, rides.ends[5], block=True) as reader,
    ):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.2)
        await rides.publish({"n": 5}, CONT)
        await rides.publish({"n": "ack"}, ACK)
        assert [one.message["n"] for one in await anext(reader)] == [4, 5, "ack"]


async def test_threads_read_messages_alike(shared, client, rides):
    def read():
        with Client(ClientConfig(address=shared.address)) as sync:
            reader = sync.run(read_committed(sync.asynchronous, rides.journal))
            with MessageIterator(sync, reader) as batches:
                found = [one.message["n"] for batch in batches for one in batch]
            return found, reader.checkpoint().offsets

    found, offsets = await asyncio.to_thread(read)
    assert found == [0, 1, 2, 3, "ack"]
    assert offsets == {rides.journal: rides.ends[-1]}


async def test_messages_are_read_out_of_a_store_alone(shared, client, rides):
    await client.flush(f"name={rides.journal}")
    content = read_store(f"file://{shared.fragments}/", rides.journal)
    async with UncommittedReader(content, JsonFraming()) as reader:
        found = [(one.message["n"], one.end) async for batch in reader for one in batch]
    assert found == [*zip([0, 1, 2, 3, "ack", 4], rides.ends[1:], strict=True)]


async def test_csv_journals_hold_messages_too(client, names):
    publisher = await Publisher(client, names.journal("csv"), "text/csv").create()
    await publisher.publish(["", "a", "b,c\nd"], CONT)
    await publisher.publish(publisher.framing.acknowledgement(["", "a", "b"]), ACK)
    async with await read_committed(client, names.journal("csv")) as reader:
        found = [one.message[1:] async for batch in reader for one in batch]
    assert found == [["a", "b,c\nd"], ["", ""]]


async def test_messages_are_read_from_a_savepoint(client, rides, names):
    """A checkpoint that knows the journal is the better memory of the two."""
    await client.create_savepoint(
        names.journal("second"), offsets={rides.journal: rides.ends[1]}, replace=True
    )
    begins = [
        [envelope.begin async for batch in reader for envelope in batch]
        for reader in (
            await read_uncommitted(client, rides.journal, from_savepoint=names.journal("second")),
            await read_committed(client, rides.journal, from_savepoint=names.journal("second")),
        )
    ]
    assert [found[0] for found in begins] == [rides.ends[1]] * 2
    done = await read_committed(client, rides.journal)
    async for _ in done:
        pass
    again = await read_committed(
        client, rides.journal, checkpoint=done.checkpoint(), from_savepoint=names.journal("second")
    )
    assert [batch async for batch in again] == []
