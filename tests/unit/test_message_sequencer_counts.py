"""What a sequencer did, in the metrics of Gazette's consumers."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gazette_platform.message import (
    Envelope,
    Flags,
    Outcome,
    Sequencer,
    SequencerCounts,
    UuidParts,
)

A, B = b"\1" * 6, b"\3" * 6
OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN


def envelope(index, producer, clock, flags, journal="a/one"):
    return Envelope(journal, index * 10, index * 10 + 10, UuidParts(producer, clock, flags), None)


@pytest.fixture
def counts():
    return SequencerCounts()


def run(sequencer, envelopes):
    for one in envelopes:
        sequencer.queue(one)
        if sequencer.replay is not None:
            for again in envelopes:
                if sequencer.replay.begin <= again.begin < sequencer.replay.end:
                    while sequencer.offer(again):
                        sequencer.step()
                        break
            sequencer.end_replay()
        while sequencer.dequeued is not None:
            sequencer.step()


def test_each_message_is_counted_by_its_flags_and_outcome(counts):
    messages = [
        envelope(0, A, 10, OUT),
        envelope(1, A, 10, OUT),  # again
        envelope(2, A, 20, CONT),
        envelope(3, B, 20, CONT),
        envelope(4, A, 30, CONT),
        envelope(5, A, 40, ACK),  # the ring of two holds the last of A's span, but not the first
        envelope(6, A, 50, 5, "a/two"),  # flags without meaning
        envelope(7, b"", 0, OUT),
    ]
    run(Sequencer(ring_size=2, counts=counts, warn=lambda _: None), messages)
    assert counts.queued == {
        ("a/one", OUT, Outcome.OUTSIDE_COMMIT): 2,
        ("a/one", OUT, Outcome.OUTSIDE_ALREADY_ACKED): 1,
        ("a/one", CONT, Outcome.CONTINUE_BEGIN_SPAN): 2,
        ("a/one", CONT, Outcome.CONTINUE_EXTEND_SPAN): 1,
        ("a/one", ACK, Outcome.ACK_COMMIT_REPLAY): 1,
        ("a/two", 5, Outcome.OUTSIDE_COMMIT): 1,
    }
    assert counts.replayed == {"a/one": 2}  # those of B between them are read again, too


def test_they_are_reported_by_the_names_and_labels_of_gazette(counts):
    registry = CollectorRegistry()
    registry.register(counts)
    run(Sequencer(counts=counts), [envelope(0, A, 10, OUT), envelope(1, A, 20, ACK)])
    run(
        Sequencer(counts=counts, warn=lambda _: None),
        [envelope(0, A, 10, 5), envelope(0, A, 20, OUT, 'b"')],
    )
    counts.replayed["a/one"] += 3
    assert generate_latest(registry).decode().splitlines() == [
        "# HELP gazette_sequencer_queued Messages that were sequenced.",
        "# TYPE gazette_sequencer_queued untyped",
        'gazette_sequencer_queued{flag="OUTSIDE_TXN",journal="a/one",outcome="outsideCommit"} 1.0',
        'gazette_sequencer_queued{flag="ACK_TXN",journal="a/one",outcome="ackEmpty"} 1.0',
        'gazette_sequencer_queued{flag="5",journal="a/one",outcome="outsideCommit"} 1.0',
        'gazette_sequencer_queued{flag="OUTSIDE_TXN",journal="b\\"",outcome="outsideCommit"} 1.0',
        "# HELP gazette_sequencer_replay Messages that were read a second time.",
        "# TYPE gazette_sequencer_replay untyped",
        'gazette_sequencer_replay{journal="a/one"} 3.0',
    ]
