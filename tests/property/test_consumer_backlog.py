"""Batches of committed messages: cut anywhere, and restored, each is consumed once and in its order."""

from __future__ import annotations

from collections import deque

from hypothesis import given, strategies as st

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.transaction import Backlog, count_as_unused
from gazette_platform.message import (
    NO_UUID,
    Envelope,
    Flags,
    Outcome,
    Sequencer,
    SequencerCheckpoint,
    UuidParts,
)

PRODUCERS = [bytes([number] * 6) for number in (1, 3, 5)]
JOURNALS = ("a/one", "a/two")
NONE = UuidParts(*NO_UUID)


@st.composite
def journals(draw):
    """What lies in two journals, in the order in which it is read, and is read again."""
    ends = dict.fromkeys(JOURNALS, 0)
    clocks = dict.fromkeys(PRODUCERS, 0)
    last_acks: dict[tuple[str, bytes], int] = {}
    found: list[Envelope[int]] = []
    for number in range(draw(st.integers(1, 40))):
        journal = draw(st.sampled_from(JOURNALS))
        producer = draw(st.sampled_from(PRODUCERS))
        flags = draw(st.sampled_from([*Flags, Flags.CONTINUE_TXN, None, "rollback", "twice"]))
        key = journal, producer
        earlier = [each for each in found if each.journal == journal]
        if flags is None:
            uuid = NONE
        elif flags == "rollback":
            # A producer that was restarted acknowledges again what it had acknowledged last.
            uuid = UuidParts(producer, last_acks.get(key, 1), int(Flags.ACK_TXN))
            if key not in last_acks:
                continue
        elif flags == "twice":
            # An append was made twice.
            if not earlier or earlier[-1].uuid.flags == Flags.ACK_TXN:
                continue
            uuid = earlier[-1].uuid
        else:
            clocks[producer] += draw(st.integers(2, 20))
            uuid = UuidParts(producer, clocks[producer], int(flags))
            if flags == Flags.ACK_TXN:
                last_acks[key] = uuid.clock
            elif flags == Flags.OUTSIDE_TXN:
                last_acks.pop(key, None)
        begin = ends[journal]
        ends[journal] = begin + 10
        found.append(Envelope(journal, begin, begin + 10, uuid, number))
    return found


def one_by_one(content):
    """What a sequencer gives of it."""
    sequencer, given_ = Sequencer(), []
    for envelope in content:
        sequencer.queue(envelope)
        assert sequencer.replay is None
        while sequencer.dequeued is not None:
            given_.append(sequencer.dequeued)
            sequencer.step()
    return given_


class Primary:
    """Consumes `content` from a checkpoint on, in batches."""

    def __init__(self, content, checkpoint, *, size, ring_size):
        self.sequencer = Sequencer(checkpoint=checkpoint, ring_size=ring_size)
        self.backlog = Backlog(self.sequencer, size=size)
        self.content = content
        begins = checkpoint.offsets
        self.entries = deque(each for each in content if each.begin >= begins.get(each.journal, 0))

    def gather(self):
        """Messages to consume now; empty: all were."""
        while True:
            self.backlog.gather(self.entries)
            if self.backlog.has_message:
                return self.backlog.messages
            wanted = self.sequencer.replay
            if wanted is None:
                return []
            self.backlog.offer(
                each
                for each in self.content
                if each.journal == wanted.journal and wanted.begin <= each.begin < wanted.end
            )
            self.sequencer.end_replay()


@given(data=st.data(), content=journals())
def test_each_message_is_consumed_once_wherever_it_is_cut_and_restored(data, content):
    expected = one_by_one(content)
    zero = [each for each in expected if each.uuid.clock == 0]
    size, ring_size = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([2, 64]))
    primary = Primary(content, SequencerCheckpoint(), size=size, ring_size=ring_size)
    consumed: list[Envelope[int]] = []
    while messages := primary.gather():
        used = data.draw(st.integers(1, len(messages)), label="used")
        consumed += messages[:used]
        copied = [*messages]
        primary.backlog.used(used)
        assert messages == copied  # an application may have kept them
        if data.draw(st.booleans(), label="restores"):
            checkpoint = Checkpoint.decode(Checkpoint(primary.backlog.checkpoint()).encode()).read
            primary = Primary(content, checkpoint, size=size, ring_size=ring_size)

    def of(envelopes):
        by_key = {}
        for each in envelopes:
            if each.uuid.clock:
                key = (each.journal, each.uuid.producer)
                by_key.setdefault(key, []).append((each.uuid.clock, each.uuid.flags))
        return by_key

    assert of(consumed) == of(expected)
    # Messages without a clock are delivered at least once.
    assert {each.begin for each in zero} <= {each.begin for each in consumed}


def test_what_is_left_over_is_not_counted_as_used():
    def envelope(journal, number, producer, flags, clock=None):
        uuid = UuidParts(PRODUCERS[producer], number if clock is None else clock, int(flags))
        return Envelope(journal, number * 10, number * 10 + 10, uuid, number)

    content = [
        envelope("a/one", 1, 0, Flags.CONTINUE_TXN),
        envelope("a/one", 2, 1, Flags.OUTSIDE_TXN),
        envelope("a/two", 3, 0, Flags.OUTSIDE_TXN),
        envelope("a/one", 4, 0, Flags.CONTINUE_TXN),
        envelope("a/one", 5, 0, Flags.ACK_TXN),
        envelope("a/one", 6, 2, Flags.OUTSIDE_TXN, clock=0),
        envelope("a/one", 7, 0, Flags.CONTINUE_TXN),
    ]
    sequencer = Sequencer()
    backlog = Backlog(sequencer)
    backlog.gather(deque(content))
    assert [each.message for each in backlog.messages] == [2, 3, 1, 4, 5, 6]
    assert sequencer.has_pending
    backlog.used(3)
    checkpoint = backlog.checkpoint()
    assert checkpoint.offsets == {"a/one": 50, "a/two": 40}
    states = {(each.journal, each.producer[0]): each[2:] for each in checkpoint.producers}
    assert states == {("a/one", 1): (3, 40), ("a/one", 3): (2, -1), ("a/two", 1): (3, -1)}
    backlog.used(3)
    assert backlog.checkpoint().offsets == {"a/one": 80, "a/two": 40}
    assert count_as_unused(checkpoint, []) is checkpoint
    assert sequencer.queue(content[-1]) is Outcome.CONTINUE_RING_CLOCK_LARGER
