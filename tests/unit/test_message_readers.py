"""Readers of messages over content in pieces: what they give, where they stand, what they refuse."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import DataError, Desynchronized, OffsetJump
from gazette_platform.message import (
    CommittedReader,
    CsvFraming,
    Flags,
    JsonFraming,
    ProtoFraming,
    SequencerCheckpoint,
    UncommittedReader,
    build_uuid,
    frame_fixed,
    read_committed,
    read_uncommitted,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from tests.benches.fake_broker import FakeBroker, Fault

A, B, C = (bytes([n]) * 6 for n in (1, 3, 5))
OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
JSON = JsonFraming()
JOURNAL = "a/journal;meta"


def line(producer, clock, flags):
    return JSON.encode(JSON.stamp({"n": clock}, build_uuid(producer, clock, flags)))


class Pieces:
    """Content from an offset on, in pieces of `size`."""

    journal = JOURNAL

    def __init__(self, content, begin=0, end=None, *, size=17):
        self.content = content[: len(content) if end is None else end]
        self.offset = begin
        self.size = size
        self.closed = 0
        self.gate = None
        self.asked = asyncio.Event()

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.gate is not None:
            self.asked.set()
            await self.gate.wait()
        if self.offset >= len(self.content):
            raise StopAsyncIteration
        begin = self.offset
        self.offset = min(begin + self.size, len(self.content))
        return memoryview(self.content)[begin : self.offset]

    async def aclose(self):
        self.closed += 1


class Listed:
    """Pieces as listed, with their offsets."""

    journal = JOURNAL

    def __init__(self, *pieces):
        self.pieces = list(pieces)
        self.offset = 0

    async def __anext__(self):
        if not self.pieces:
            raise StopAsyncIteration
        offset, piece = self.pieces.pop(0)
        self.offset = offset + len(piece)
        return piece


def uncommitted(content, framing=JSON, **cut):
    return UncommittedReader(Pieces(content, **cut), framing)


class Committed:
    """A committed reader of content, and what it read again."""

    def __init__(self, content, *, ring_size=8192, checkpoint=None, size=17):
        self.replays = []
        self.again = []

        def replay(wanted):
            self.replays.append(wanted)
            pieces = Pieces(content, wanted.begin, wanted.end, size=size)
            self.again.append(pieces)
            return UncommittedReader(pieces, JSON)

        begin = 0 if checkpoint is None else checkpoint.offsets.get(JOURNAL, 0)
        self.first = Pieces(content, begin, size=size)
        self.reader = CommittedReader(
            UncommittedReader(self.first, JSON),
            replay,
            ring_size=ring_size,
            checkpoint=checkpoint,
        )


async def anext_of(reader):
    return await anext(reader)


async def numbers(reader):
    return [one.message["n"] async for batch in reader for one in batch]


CONTENT = b"".join(
    line(*one)
    for one in [
        (A, 1, OUT),
        (A, 2, CONT),
        (B, 3, CONT),
        (A, 4, CONT),
        (A, 4, CONT),
        (C, 5, OUT),
        (A, 6, ACK),
        (A, 7, CONT),
        (B, 8, ACK),
        (A, 9, CONT),
    ]
)


async def test_mr1_uncommitted_readers_see_all_and_committed_ones_what_is_acknowledged():
    assert await numbers(uncommitted(CONTENT)) == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9]
    committed = Committed(CONTENT)
    assert await numbers(committed.reader) == [1, 5, 2, 4, 6, 3, 8]
    assert committed.replays == []


@pytest.mark.parametrize("size", [1, 10, 97, 5000])
async def test_envelopes_say_where_messages_lie(size):
    reader = uncommitted(CONTENT, size=size)
    at = 0
    async for batch in reader:
        assert batch
        for one in batch:
            assert (one.journal, one.begin) == (JOURNAL, at)
            assert JSON.encode(one.message) == CONTENT[one.begin : one.end]
            assert one.uuid.clock == one.message["n"]
            at = one.end
        assert reader.offset == at
    assert at == len(CONTENT)


async def test_mr3_empty_pieces_do_no_harm():
    first = line(A, 1, OUT)
    cuts = [(0, b""), (0, first[:5]), *[(5, b"")] * 100, (5, first[5:]), (len(first), b"")]
    reader = UncommittedReader(Listed(*cuts), JSON)
    assert await numbers(reader) == [1]
    assert reader.offset == len(first)


async def test_mr4_a_jump_is_reported_and_read_over(caplog):
    first, second = line(A, 1, OUT), line(A, 2, OUT)
    reader = UncommittedReader(
        Listed((50, first + first[:7]), (900, second), (900 + len(second), second)), JSON
    )
    with caplog.at_level(logging.WARNING):
        batches = [batch async for batch in reader]
    assert [[one.begin for one in batch] for batch in batches] == [[50], [900], [900 + len(second)]]
    assert len(caplog.records) == 1
    assert f"from offset {50 + len(first)} to 900 are gone" in caplog.text


@pytest.mark.parametrize("framing", [JSON, CsvFraming(), ProtoFraming()])
async def test_mr5_an_end_within_a_message_is_unexpected(framing):
    content = {JsonFraming: b"{}\n{}", CsvFraming: b'%s,"\n', ProtoFraming: frame_fixed(b"")[:-1]}[
        type(framing)
    ]
    reader = uncommitted(content, framing)
    with pytest.raises(DataError, match=rf"^{JOURNAL}: unexpected EOF: .* at offset [03]$"):
        [batch async for batch in reader]
    with pytest.raises(DataError, match="unexpected EOF"):
        await anext(reader)


async def test_messages_before_a_bad_one_come_first_and_those_after_it_next():
    good = line(A, 1, OUT)
    reader = uncommitted(good + b"nope\n" + b'{"UUID":1}\n' + good, size=5000)
    assert [one.begin for one in await anext(reader)] == [0]
    assert reader.offset == len(good) + 5  # it is consumed, and raises next
    with pytest.raises(
        DataError, match=rf"the message at offset {len(good)}: the line is not JSON"
    ):
        await anext(reader)
    with pytest.raises(DataError, match=rf"at offset {len(good) + 5}: UUID is not a UUID but int"):
        await anext(reader)
    assert [one.begin for one in await anext(reader)] == [len(good) + 16]
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_garbage_between_frames_is_reported_and_left_behind():
    reader = uncommitted(frame_fixed(b"a") + b"xyz" + frame_fixed(b"b"), ProtoFraming(), size=100)
    assert [one.message for one in await anext(reader)] == [b"a"]
    with pytest.raises(Desynchronized, match="the message at offset 9: detected de-sync"):
        await anext(reader)
    assert [(one.begin, one.message) for one in await anext(reader)] == [(12, b"b")]


async def test_content_without_an_end_of_a_message_is_given_up():
    class Endless:
        journal, offset = JOURNAL, 0

        async def __anext__(self):
            self.offset += 1 << 22
            return bytes(1 << 22)

    with pytest.raises(Desynchronized, match=r"no message ends within .* application/x-ndjson"):
        await anext(UncommittedReader(Endless(), JSON))


@pytest.mark.parametrize("ring_size", [1, 3, 4])
@pytest.mark.parametrize("size", [17, 5000])
async def test_mp3_transactions_larger_than_the_ring_are_read_again(ring_size, size):
    committed = Committed(CONTENT, ring_size=ring_size, size=size)
    assert await numbers(committed.reader) == [1, 5, 2, 4, 6, 3, 8]
    frame = len(line(A, 1, OUT))
    begins = [2 * frame] if ring_size == 4 else [frame, 2 * frame]
    assert [one.begin for one in committed.replays] == begins
    assert [again.closed for again in committed.again] == [1] * len(committed.again)
    await committed.reader.aclose()
    assert committed.first.closed == 1


@pytest.mark.parametrize("ring_size", [1, 8192])
@pytest.mark.parametrize("size", [17, 5000])
async def test_checkpoint_continues_after_what_was_returned(ring_size, size):
    reader = Committed(CONTENT, ring_size=ring_size, size=size).reader
    every = await numbers(reader)
    for count in range(8):
        first = Committed(CONTENT, ring_size=ring_size, size=size)
        batches = []
        async for batch in first.reader:
            batches.append(batch)
            if len(batches) >= count:
                break
        found = [one.message["n"] for batch in batches for one in batch]
        checkpoint = first.reader.checkpoint() if batches else SequencerCheckpoint()
        again = Committed(CONTENT, ring_size=ring_size, checkpoint=checkpoint, size=size)
        assert found + await numbers(again.reader) == every


async def test_a_replay_that_ends_early_is_an_error():
    def short(wanted):
        return uncommitted(CONTENT, begin=wanted.begin, end=wanted.begin + 2 * len(line(A, 1, OUT)))

    reader = CommittedReader(uncommitted(CONTENT), short, ring_size=1)
    with pytest.raises(
        DataError, match=r"reading a transaction again, from offset \d+ to \d+, ended at"
    ):
        await numbers(reader)


async def test_ms16_a_replay_that_fails_can_be_gone_on_with_from_the_checkpoint():
    def failing(wanted):
        return UncommittedReader(Listed((wanted.begin, b"nope\n")), JSON)

    reader = CommittedReader(uncommitted(CONTENT), failing, ring_size=1)
    assert [one.message["n"] for one in await anext(reader)] == [1]
    assert [one.message["n"] for one in await anext(reader)] == [5]
    for _ in range(2):  # who goes on gets no rest of that transaction
        with pytest.raises(DataError, match="not JSON"):
            await anext(reader)
    again = Committed(CONTENT, ring_size=1, checkpoint=reader.checkpoint())
    assert await numbers(again.reader) == [2, 4, 6, 3, 8]


async def test_who_is_closed_in_the_middle_of_a_replay_closes_that_too():
    committed = Committed(CONTENT, ring_size=1)
    while not committed.again:
        await anext(committed.reader)
    assert [again.closed for again in committed.again] == [0]
    await committed.reader.aclose()
    assert [again.closed for again in committed.again] == [1]
    assert committed.first.closed == 1


async def test_a_reader_that_is_cancelled_goes_on(tasks):
    committed = Committed(CONTENT, size=40)
    gate = committed.first.gate = asyncio.Event()
    waiting = tasks.spawn(anext_of(committed.reader), name="read")
    await committed.first.asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await numbers(committed.reader) == [1, 5, 2, 4, 6, 3, 8]


async def test_a_replay_waits_for_a_broker_that_does_not_know_all_of_it_yet():
    async with FakeBroker() as broker:
        broker.journal("a/journal", CONTENT)
        async with (
            AsyncClient(ClientConfig(address=broker.address)) as client,
            await read_committed(client, "a/journal", framing=JSON, ring_size=1) as reader,
        ):
            assert [one.message["n"] for one in await anext(reader)] == [1, 5]
            behind = Fault(status=pb.OFFSET_NOT_YET_AVAILABLE)
            broker.fail("Read", behind, behind)
            async with asyncio.timeout(60):
                assert await numbers(reader) == [2, 4, 6, 3, 8]
            assert not broker.faults["Read"]


async def test_partly_pruned_transaction_is_not_delivered_in_part():
    frame = len(line(A, 1, OUT))
    async with FakeBroker() as broker:
        pruned = broker.journal("a/journal", CONTENT[: 4 * frame])
        async with (
            AsyncClient(ClientConfig(address=broker.address)) as client,
            await read_committed(
                client, "a/journal", framing=JSON, ring_size=1, block=True
            ) as reader,
        ):
            assert [one.message["n"] for one in await anext(reader)] == [1]
            del pruned.content[: 2 * frame]
            pruned.begin = 2 * frame
            await broker.extend("a/journal", line(A, 5, ACK))
            for _ in range(2):  # who goes on gets no rest of it
                with pytest.raises(OffsetJump, match=f"from {frame} to {2 * frame}"):
                    await anext(reader)
            # A reader of all content reads what is not committed, too.
            async with await read_uncommitted(client, "a/journal", framing=JSON) as every:
                assert await numbers(every) == [3, 4, 5]
