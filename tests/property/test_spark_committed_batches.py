"""A stream of committed messages has the same ones wherever its batches end, and however often it is started again."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("pyarrow")

from gazette_platform.message import Flags, Sequencer, build_uuid
from gazette_platform.message.sequencer import (
    PRUNE_HORIZON,
    Envelope,
    ProducerState,
    SequencerCheckpoint,
)
from gazette_platform.message.uuid import NO_UUID, UuidParts, parse_uuid
from gazette_platform.spark.frames import JsonFrames
from gazette_platform.spark.progress import INITIAL, offset_of, producers_of
from gazette_platform.spark.reading import Range, _line_block
from gazette_platform.spark.source import ProducerStates

JOURNAL = "a/b"
FRAMES = JsonFrames(("_meta", "uuid"))
PRODUCERS = (b"\x01aaaaa", b"\x03bbbbb")

uuids = st.builds(
    UuidParts, st.sampled_from(PRODUCERS), st.integers(1, 12), st.sampled_from([0, 1, 1, 1, 2, 7])
)
# Lines whose UUID cannot be read, or that have none.
odd = st.sampled_from(
    [b"{}", b"x", b"", b'{"_meta":1}', b'{"_meta":{"uuid":1}}', b'{"_meta":{"uuid":"x"}}', b'{"_meta":null}']
)  # fmt: skip
messages = st.lists(st.one_of(uuids, uuids, odd), max_size=30)


def lines_of(listed):
    found = []
    for number, one in enumerate(listed):
        if isinstance(one, bytes):
            found.append(one + b"\n")
        else:
            record = {"n": number, "_meta": {"uuid": str(build_uuid(*one))}}
            found.append(json.dumps(record).encode() + b"\n")
    return found


def envelopes_of(lines):
    found, begin = [], 0
    decode = FRAMES.decoder().decode
    for line in lines:
        found.append(Envelope(JOURNAL, begin, begin + len(line), decode(line).uuid, None))
        begin += len(line)
    return found


def committed(envelopes, begin, end, producers=()):
    """Where the messages begin that a task gives of [begin, end), in order; by the reader's own rules."""
    offsets = {JOURNAL: begin}
    sequencer = Sequencer(
        ring_size=3, checkpoint=SequencerCheckpoint(offsets=offsets, producers=producers)
    )
    found = []

    def use():
        uuid = sequencer.dequeued.uuid
        if uuid.flags != Flags.ACK_TXN or not uuid.clock:
            found.append(sequencer.dequeued.begin)
        sequencer.step()

    for envelope in envelopes:
        if not begin <= envelope.begin < end:
            continue
        sequencer.queue(envelope)
        if (wanted := sequencer.replay) is not None:
            for again in envelopes:
                if wanted.begin <= again.begin < wanted.end and sequencer.offer(again):
                    use()
            sequencer.end_replay()
        while sequencer.dequeued is not None:
            use()
    return found


@given(messages, st.data())
def test_batches_have_what_one_batch_of_all_has(listed, data):
    lines = lines_of(listed)
    envelopes = envelopes_of(lines)
    ends = [0, *(each.end for each in envelopes)]
    cuts = data.draw(st.sets(st.sampled_from(ends)))
    found, offset = [], INITIAL
    for begin, end in pairwise(sorted({0, *cuts, ends[-1]})):
        known = producers_of(offset, is_committed=True).get(JOURNAL, ())
        found += committed(envelopes, begin, end, known)
        one = Range(journal=JOURNAL, content_type="", begin=begin, end=end, producers=known)
        states = ProducerStates(one)
        at = begin
        # Blocks end anywhere, too.
        while at < end:
            stop = data.draw(st.sampled_from([e for e in ends if at < e <= end]))
            content = b"".join(
                line for line, each in zip(lines, envelopes, strict=True) if at <= each.begin < stop
            )
            states.take_lines(_line_block(JOURNAL, at, content), FRAMES)
            at = stop
        # As in a checkpoint.
        offset = json.loads(json.dumps(offset_of({JOURNAL: end}, None, {JOURNAL: states.states()})))
    assert found == committed(envelopes, 0, ends[-1])


@given(messages)
def test_columns_of_uuids_are_those_of_lines_by_themselves(listed):
    lines = lines_of(listed)
    parts = FRAMES.parts(b"".join(lines))
    alone = [each.uuid for each in envelopes_of(lines)]
    if parts is None:
        assert any(isinstance(one, bytes) for one in listed)
    else:
        columns = (parts.field(name).to_pylist() for name in ("producer", "clock", "flags"))
        assert [UuidParts(*row) for row in zip(*columns, strict=True)] == alone
    wanted = [NO_UUID if isinstance(one, bytes) else one for one in listed]
    assert alone == [parse_uuid(build_uuid(*one)) for one in wanted]


A, B = PRODUCERS
KNOWN = ProducerState(JOURNAL, A, 5, 40)
"""Its transaction is open."""


@pytest.mark.parametrize(
    ("listed", "known"),
    [
        ([UuidParts(A, 6, 0)], {A: (6, -1)}),  # which drops the transaction
        ([UuidParts(A, 5, 0), UuidParts(A, 3, 0)], {A: (5, 40)}),  # both existed before
        ([UuidParts(A, 7, 0), UuidParts(A, 4, 0)], {A: (7, -1)}),
        ([UuidParts(B, 2, 0), UuidParts(B, 1, 7)], {A: (5, 40), B: (2, -1)}),
        ([b"{}", b"x"], {A: (5, 40)}),
        ([b"{}", b'{"_meta":null}'], {A: (5, 40)}),  # without a producer
    ],
)
def test_blocks_without_transactions_leave_what_their_messages_by_themselves_do(listed, known):
    lines = lines_of(listed)
    one = Range(journal=JOURNAL, content_type="", begin=90, end=999, producers=(KNOWN,))
    together, alone = ProducerStates(one), ProducerStates(one)
    together.take_lines(_line_block(JOURNAL, 90, b"".join(lines)), FRAMES)
    at = 90
    for envelope, line in zip(envelopes_of(lines), lines, strict=True):
        alone.take([envelope._replace(begin=at, end=at + len(line))])
        at += len(line)
    for states in (together, alone):
        assert {p.producer: (p.last_ack, p.begin) for p in states.states()} == known


def test_transaction_after_a_day_of_silence_is_known_after_its_batch():
    now = 2 * PRUNE_HORIZON
    listed = [
        UuidParts(A, 1, 0),
        UuidParts(A, now, 1),
        UuidParts(B, now, 0),
        UuidParts(A, now + 1, 2),
    ]
    lines, (*_, last) = lines_of(listed), envelopes_of(lines_of(listed))
    states = ProducerStates(Range(journal=JOURNAL, content_type="", begin=0, end=last.begin))
    for envelope, line in zip(envelopes_of(lines)[:3], lines, strict=False):
        states.take_lines(_line_block(JOURNAL, envelope.begin, line), FRAMES)
    behind = states.states()
    assert {p.producer: p.begin for p in behind} == {A: len(lines[0]), B: -1}
    found = committed(envelopes_of(lines), last.begin, last.end, behind)
    assert found == [len(lines[0])]
    # Once it has ended, whoever is silent for a day is forgotten.
    quiet = ProducerStates(Range(journal=JOURNAL, content_type="", begin=0, end=last.begin))
    quiet.take_lines(_line_block(JOURNAL, 0, lines[0] + lines[2]), FRAMES)
    assert [p.producer for p in quiet.states()] == [B]
