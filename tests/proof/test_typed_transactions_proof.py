"""Transactions that span runs of a typed table, and what has to be kept for them.

See docs/internals/typed-tables.md. Runs are the smallest that there can be: read what is committed behind the
state of the snapshot, stage it with the state after it, publish.
"""

import asyncio
import random
import uuid

import pytest
from typed_commits import MetastoreHandle, SparkTable, progress_of, publish
from typed_state import dump_state, parse_state, read_state, write_state

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.message import (
    Flags,
    MessageClock,
    build_uuid,
    framing_of,
    new_producer_id,
    read_committed,
)
from gazette_platform.message.sequencer import (
    PRUNE_HORIZON,
    Envelope,
    Outcome,
    ProducerState,
    Sequencer,
    SequencerCheckpoint,
)
from gazette_platform.message.uuid import UuidParts
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.servers import BrokerServer

OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
JSON = framing_of("application/x-ndjson")
JOURNALS = ("typed/part=000", "typed/part=001")


# ------------------------------------------------------------------ runs


class Producer:
    """Appends messages of one producer, one by one."""

    def __init__(self, client):
        self._client = client
        self._producer = new_producer_id()
        self._clock = MessageClock()

    async def publish(self, journal, flags, *numbers):
        for number in numbers:
            identity = build_uuid(self._producer, self._clock.tick(), flags)
            message = JSON.stamp({"n": number}, identity)
            await self._client.append(journal, JSON.encode(message))

    async def ack(self, *journals):
        for journal in journals:
            await self.publish(journal, ACK, -1)


class Runs:
    """Runs of a typed table over journals."""

    def __init__(self, client, table, handle):
        self._client = client
        self._table = table
        self._handle = handle

    async def __call__(self, *, dies=False):
        """Read, stage and publish. Returns: the state after it, and how many messages were read again."""
        now = await asyncio.to_thread(self._handle.load)
        start = progress_of(now.metadata)
        state = self.state_of(now, start)
        numbers, behind = [], []
        for journal in JOURNALS:
            found, at = await self._committed(journal, state)
            numbers += found
            behind.append(at)
        after = SequencerCheckpoint(
            offsets={k: v for one in behind for k, v in one.offsets.items()},
            producers=tuple(p for one in behind for p in one.producers),
        )
        path = write_state(now.io, now.metadata.location, after)
        staged = await asyncio.to_thread(self._table.stage, numbers or [-1], gazette_state=path)
        if not dies:
            await asyncio.to_thread(publish, self._handle, start, staged)
        return after

    async def _committed(self, journal, state):
        one = SequencerCheckpoint(
            offsets={journal: state.offsets.get(journal, 0)},
            producers=tuple(p for p in state.producers if p.journal == journal),
        )
        # A ring of one message: all else of a span is read again, from its begin on.
        reader = await read_committed(self._client, journal, checkpoint=one, ring_size=1)
        async with reader:
            found = [
                each.message["n"] async for batch in reader for each in batch
                if each.uuid.flags != ACK
            ]  # fmt: skip
            return found, reader._sequencer.checkpoint(horizon=None)

    def state_of(self, loaded, at):
        if at is None:
            return SequencerCheckpoint()
        summary = loaded.metadata.snapshot_by_id(at).summary
        return read_state(loaded.io, summary["gazette.state"])


@pytest.fixture(scope="module")
def broker(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/test-typed-proof") as server:
        yield server


@pytest.mark.etcd
@pytest.mark.hive
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
async def test_transaction_over_three_runs_comes_once(broker, spark, metastore, lake_settings):
    table = SparkTable(spark, f"proof.t{uuid.uuid4().hex[:8]}")
    await asyncio.to_thread(table.create)
    handle = MetastoreHandle(IcebergTables(metastore, lake_settings.warehouse), table.name)
    async with AsyncClient(ClientConfig(address=broker.address)) as client:
        await client.apply([Change(journal_spec(name)) for name in JOURNALS])
        runs = Runs(client, table, handle)
        long, short, never = (Producer(client) for _ in range(3))
        first, second = JOURNALS

        await long.publish(first, CONT, 1, 2)
        await short.publish(first, OUT, 10)
        await long.publish(second, CONT, 3)
        state = await runs()
        assert numbers_of(table) == [10]
        assert sorted(p.begin >= 0 for p in state.producers) == [False, True, True]

        await long.publish(first, CONT, 4)
        await never.publish(second, CONT, 90)
        await short.publish(first, CONT, 11, 12)
        await short.ack(first)
        await runs(dies=True)  # between staging and publishing
        await runs()
        assert numbers_of(table) == [10, 11, 12]
        await asyncio.to_thread(table.optimize)
        await asyncio.to_thread(table.expire)

        await long.ack(*JOURNALS)
        await runs(dies=True)
        state = await runs()
        assert numbers_of(table) == [1, 2, 3, 4, 10, 11, 12]
        again = await runs()
        assert numbers_of(table) == [1, 2, 3, 4, 10, 11, 12]
        assert again == state
        # As if it had been read in one go: what is open still is.
        assert [p.journal for p in state.producers if p.begin >= 0] == [second]
        for journal in JOURNALS:
            _, whole = await runs._committed(journal, SequencerCheckpoint())
            assert whole.offsets[journal] == state.offsets[journal]
            assert set(whole.producers) == {p for p in state.producers if p.journal == journal}


def journal_spec(name):
    return JournalSpec(
        name=name,
        replication=1,
        labels=LabelSet.of(("content-type", JSON.content_type)),
        fragment=FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.NONE,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
        ),
    )


def numbers_of(table):
    return [number for number in table.numbers() if number >= 0]


# ------------------------------------------------------------------ what is kept of producers


@pytest.mark.parametrize("horizon", [PRUNE_HORIZON, None])
def test_span_of_a_producer_that_was_silent_for_a_day_is_kept(horizon):
    """A checkpoint has no clock of an open span: taken twice, the span must not look old."""
    silent, busy = b"\x01silnt", b"\x01busy!"
    start = SequencerCheckpoint(
        offsets={"j": 0}, producers=(ProducerState("j", silent, 1 << 60, -1),)
    )
    clock = (1 << 60) + PRUNE_HORIZON + 1600

    def one(producer, clock, flags, begin):
        return Envelope("j", begin, begin + 10, UuidParts(producer, clock, flags), None)

    run: Sequencer[None] = Sequencer(checkpoint=start)
    run.queue(one(silent, clock, CONT, 0))
    run.queue(one(busy, clock, OUT, 10))
    run.step()
    run = Sequencer(checkpoint=run.checkpoint(horizon=horizon))
    run = Sequencer(checkpoint=run.checkpoint(horizon=horizon))
    assert run.queue(one(silent, clock + 160, ACK, 20)) == Outcome.ACK_COMMIT_REPLAY


def random_state(producers, journals, in_each):
    source = random.Random(7)
    names = [source.randbytes(6) for _ in range(producers)]
    day = 24 * 3600 * 1_000_000
    found = []
    for number in range(journals):
        chosen = names if in_each == producers else source.sample(names, in_each)
        found += [
            ProducerState(
                f"lake/events/region=eu/part={number:03d}",
                name,
                0x1E9CC5F83FC2F810 + 160 * source.randrange(day),
                source.randrange(1 << 40) if source.random() < 0.01 else -1,
            )
            for name in chosen
        ]
    offsets = {one.journal: source.randrange(1 << 40) for one in found}
    return SequencerCheckpoint(offsets=offsets, producers=tuple(sorted(found)))


@pytest.mark.parametrize(
    ("producers", "journals", "in_each", "bytes_max"),
    [
        pytest.param(10, 1, 10, 2_000, id="10-states"),
        pytest.param(10_000, 100, 100, 140_000, id="10k-states"),
        pytest.param(10_000, 100, 10_000, 8_000_000, id="1M-states"),
    ],
)
def test_state_of_many_producers_is_so_large(
    record_property, producers, journals, in_each, bytes_max
):
    state = random_state(producers, journals, in_each)
    content = dump_state(state)
    record_property("bytes", len(content))
    assert bytes_max / 4 < len(content) < bytes_max
    assert parse_state(content) == state
