"""The sequencer, outcome by outcome, and the scenarios of Gazette's.

Long because one log in memory serves all of them.
"""

from __future__ import annotations

import tracemalloc

import pytest

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message import (
    Envelope,
    Flags,
    Outcome,
    ProducerState,
    ReplayRange,
    Sequencer,
    SequencerCheckpoint,
    UuidParts,
)
from gazette_platform.message.sequencer import PRUNE_HORIZON

A, B, C = (bytes([n]) * 6 for n in (1, 3, 5))
OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
JOURNAL = "a/journal"
FRAME_BYTES = 10


class Log:
    """A journal in memory, which a sequencer reads."""

    def __init__(self, *, ring_size=8192, checkpoint=None):
        self.messages: list[Envelope] = []
        self.warnings: list[str] = []
        self.replays: list[ReplayRange] = []
        self.sequencer = self.restored(checkpoint, ring_size)

    def restored(self, checkpoint, ring_size=8192):
        self.sequencer = Sequencer(
            ring_size=ring_size, checkpoint=checkpoint, warn=self.warnings.append
        )
        return self.sequencer

    def append(self, producer, clock, flags, journal=JOURNAL):
        begin = self.messages[-1].end if self.messages else 0
        envelope = Envelope(
            journal, begin, begin + FRAME_BYTES, UuidParts(producer, clock, flags), clock
        )
        self.messages.append(envelope)
        return envelope

    def queue(self, producer, clock, flags, journal=JOURNAL):
        """Append a message, and queue it. Returns: the outcome."""
        return self.sequencer.queue(self.append(producer, clock, flags, journal))

    def deliver(self):
        """Clocks of all that is to be used now."""
        return [envelope.uuid.clock for envelope in self.stepped()]

    def stepped(self):
        sequencer = self.sequencer
        if sequencer.replay is not None:
            self.replays.append(sequencer.replay)
            for envelope in self.within(sequencer.replay):
                if sequencer.offer(envelope):
                    yield sequencer.dequeued
                    sequencer.step()
            sequencer.end_replay()
        while sequencer.dequeued is not None:
            yield sequencer.dequeued
            sequencer.step()

    def within(self, wanted):
        return [
            one
            for one in self.messages
            if one.journal == wanted.journal and wanted.begin <= one.begin and one.end <= wanted.end
        ]

    def run(self, *steps):
        """Outcomes and delivered clocks of `(producer, clock, flags)`."""
        return [(self.queue(*step), self.deliver()) for step in steps]

    def state(self, producer, journal=JOURNAL):
        for one in self.sequencer.checkpoint(horizon=None).producers:
            if (one.journal, one.producer) == (journal, producer):
                return one.last_ack, one.begin
        return None


def held_in_ring(log):
    return sum(map(len, filter(None, log.sequencer._ring)))


def test_each_outcome_comes_from_its_row():
    log = Log()
    assert log.run(
        (A, 10, OUT),
        (A, 10, OUT),
        (A, 9, OUT),
        (A, 9, CONT),
        (A, 10, CONT),
        (A, 11, CONT),
        (A, 11, CONT),
        (A, 13, CONT),
        (A, 12, CONT),
        (A, 14, ACK),
        (A, 14, ACK),
        (A, 15, ACK),
        (A, 14, ACK),
        (A, 15, CONT),
        (A, 16, OUT),
    ) == [
        (Outcome.OUTSIDE_COMMIT, [10]),
        (Outcome.OUTSIDE_ALREADY_ACKED, []),
        (Outcome.OUTSIDE_ALREADY_ACKED, []),
        (Outcome.CONTINUE_ALREADY_ACKED, []),
        (Outcome.CONTINUE_ALREADY_ACKED, []),
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.CONTINUE_RING_CLOCK_LARGER, []),
        (Outcome.CONTINUE_EXTEND_SPAN, []),
        (Outcome.CONTINUE_RING_CLOCK_LARGER, []),
        (Outcome.ACK_COMMIT_RING, [11, 13, 14]),
        (Outcome.ACK_ROLLBACK, []),
        (Outcome.ACK_EMPTY, [15]),
        (Outcome.ACK_ROLLBACK, []),
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.OUTSIDE_COMMIT, [16]),
    ]
    assert log.sequencer.offsets == {JOURNAL: 15 * FRAME_BYTES}
    assert log.replays == []


def test_outcomes_have_the_names_of_gazettes_metrics():
    assert {str(one) for one in Outcome} == {
        "outsideAlreadyAcked",
        "outsideCommit",
        "continueAlreadyAcked",
        "continueRingClockLarger",
        "continueBeginSpan",
        "continueExtendSpan",
        "ackRollback",
        "ackEmpty",
        "ackCommitRing",
        "ackCommitReplay",
    }


def test_ms1_spans_that_leave_the_ring_keep_their_begin():
    log = Log(ring_size=5)
    log.run((A, 1, CONT), (B, 2, CONT), (A, 3, CONT), (B, 4, CONT), (A, 5, CONT))
    # The sixth takes the slot of A's first.
    assert log.run((B, 6, CONT)) == [(Outcome.CONTINUE_EXTEND_SPAN, [])]
    assert (log.state(A), log.state(B)) == ((0, 0), (1, 10))
    # And A's ACK the one of B's first.
    assert log.run((A, 7, ACK)) == [(Outcome.ACK_COMMIT_REPLAY, [1, 3, 5, 7])]
    assert log.replays == [ReplayRange(JOURNAL, 0, 20)]
    assert log.state(B) == (1, 10)
    assert log.run((B, 8, ACK)) == [(Outcome.ACK_COMMIT_REPLAY, [2, 4, 6, 8])]
    assert log.replays[1:] == [ReplayRange(JOURNAL, 10, 30)]
    # What was used leaves its slots to others.
    span = [(C, clock, CONT) for clock in (10, 11, 12, 13)]
    log.run(*span)
    assert log.run((C, 14, ACK)) == [(Outcome.ACK_COMMIT_RING, [10, 11, 12, 13, 14])]


def test_ms1_a_ring_that_wrapped_holds_the_newest():
    log = Log(ring_size=3)
    for clock in range(1, 11):
        log.queue(A, clock, CONT)
    assert log.run((A, 11, ACK)) == [(Outcome.ACK_COMMIT_REPLAY, list(range(1, 12)))]
    # The ACK has one of the three slots.
    assert log.replays == [ReplayRange(JOURNAL, 0, 80)]


def test_ms2_duplicates_within_a_span_come_once():
    log = Log()
    log.run((A, 1, CONT), (A, 2, CONT), (A, 1, CONT), (A, 2, CONT), (A, 3, CONT))
    assert log.run((A, 4, ACK), (A, 4, ACK)) == [
        (Outcome.ACK_COMMIT_RING, [1, 2, 3, 4]),
        (Outcome.ACK_ROLLBACK, []),
    ]


def test_ms3_an_ack_without_a_span_comes_alone():
    log = Log()
    assert log.run((A, 5, ACK), (B, 1, CONT), (A, 6, ACK)) == [
        (Outcome.ACK_EMPTY, [5]),
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.ACK_EMPTY, [6]),
    ]


def test_ms4_an_ack_drops_what_has_larger_clocks():
    log = Log()
    log.run((A, 1, CONT), (A, 2, CONT), (A, 3, CONT), (A, 4, CONT))
    assert log.run((A, 2, ACK)) == [(Outcome.ACK_COMMIT_RING, [1, 2, 2])]
    assert log.state(A) == (2, -1)
    assert log.run((A, 3, CONT), (A, 5, ACK)) == [
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.ACK_COMMIT_RING, [3, 5]),
    ]


def test_ms5_a_rollback_drops_the_span_of_its_producer_alone():
    log = Log()
    log.run((A, 1, ACK), (A, 2, CONT), (B, 3, CONT), (A, 4, CONT), (B, 5, CONT))
    assert log.run((A, 1, ACK)) == [(Outcome.ACK_ROLLBACK, [])]
    assert log.warnings == []
    assert (log.state(A), log.state(B)) == ((1, -1), (2, 20))
    assert log.run((A, 6, CONT), (B, 7, ACK), (A, 8, ACK)) == [
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.ACK_COMMIT_RING, [3, 5, 7]),
        (Outcome.ACK_COMMIT_RING, [6, 8]),
    ]


def test_ms6_two_producers_each_have_their_replay():
    log = Log(ring_size=2)
    log.run((A, 1, CONT), (B, 2, CONT), (A, 3, CONT), (B, 4, CONT), (A, 5, CONT), (B, 6, CONT))
    assert log.run((A, 7, ACK), (B, 8, ACK)) == [
        (Outcome.ACK_COMMIT_REPLAY, [1, 3, 5, 7]),
        (Outcome.ACK_COMMIT_REPLAY, [2, 4, 6, 8]),
    ]


def test_ms7_replays_may_hold_duplicates_and_messages_of_others():
    log = Log(ring_size=1)
    log.run((A, 3, ACK))
    log.run(
        (A, 4, CONT),
        (B, 5, CONT),
        (A, 4, CONT),
        (A, 3, OUT),
        (C, 9, OUT),
        (A, 6, CONT),
        (A, 4, CONT),
        (A, 3, CONT),
        (A, 9, CONT),
    )
    assert log.run((A, 7, ACK)) == [(Outcome.ACK_COMMIT_REPLAY, [4, 6, 7])]
    assert log.replays == [ReplayRange(JOURNAL, 10, 100)]


def test_ms8_an_ack_below_all_of_the_ring_commits_what_is_replayed():
    log = Log(ring_size=3)
    log.run(*[(A, clock, CONT) for clock in (1, 2, 5, 6, 7)])
    assert log.run((A, 3, ACK)) == [(Outcome.ACK_COMMIT_REPLAY, [1, 2, 3])]
    log.run((A, 5, CONT), (A, 6, CONT))
    assert log.run((A, 4, ACK)) == [(Outcome.ACK_COMMIT_RING, [4])]


def test_ms9_clocks_may_be_used_again_after_a_reset():
    log = Log()
    log.run((A, 1, CONT), (A, 2, CONT), (A, 5, ACK), (A, 6, CONT))
    assert log.run((A, 3, ACK)) == [(Outcome.ACK_ROLLBACK, [])]
    assert len(log.warnings) == 1
    assert "takes back messages up to clock 5" in log.warnings[0]
    assert log.run((A, 4, CONT), (A, 5, ACK)) == [
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.ACK_COMMIT_RING, [4, 5]),
    ]


@pytest.mark.parametrize("ring_size", [0, 1])
def test_ms10_a_ring_of_one_works_by_replays(ring_size):
    log = Log(ring_size=ring_size)
    assert log.run((A, 1, CONT), (A, 2, CONT), (A, 3, ACK), (B, 4, CONT), (B, 5, ACK)) == [
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.CONTINUE_EXTEND_SPAN, []),
        (Outcome.ACK_COMMIT_REPLAY, [1, 2, 3]),
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.ACK_COMMIT_REPLAY, [4, 5]),
    ]


def test_ms11_messages_outside_of_transactions():
    log = Log()
    log.run((A, 1, CONT), (A, 2, CONT))
    # It comes at once, and ends the transaction that its producer had begun.
    assert log.run((A, 3, OUT), (A, 3, OUT), (A, 4, ACK)) == [
        (Outcome.OUTSIDE_COMMIT, [3]),
        (Outcome.OUTSIDE_ALREADY_ACKED, []),
        (Outcome.ACK_EMPTY, [4]),
    ]
    assert len(log.warnings) == 1
    assert "offset 20 of producer 010101010101" in log.warnings[0]
    assert "that began at offset 0" in log.warnings[0]
    assert log.run((A, 5, 0x2AA), (A, 5, 3)) == [
        (Outcome.OUTSIDE_COMMIT, [5]),
        (Outcome.OUTSIDE_ALREADY_ACKED, []),
    ]
    assert "flags 0x2aa mean nothing" in log.warnings[1]
    # Others are not concerned.
    log.run((B, 6, CONT), (A, 7, OUT))
    assert log.run((B, 8, ACK)) == [(Outcome.ACK_COMMIT_RING, [6, 8])]


@pytest.mark.parametrize("flags", [OUT, CONT, ACK, 7])
def test_ms11_messages_without_uuid_always_come_and_are_not_tracked(flags):
    log = Log()
    log.run((bytes(6), 1, CONT))
    assert log.run((bytes(6), 0, flags), (bytes(6), 0, flags)) == [
        (Outcome.OUTSIDE_COMMIT, [0]),
        (Outcome.OUTSIDE_COMMIT, [0]),
    ]
    assert log.state(bytes(6)) == (0, 0)
    assert log.sequencer.offsets == {JOURNAL: 30}
    assert log.warnings == []


@pytest.mark.parametrize("ring_size", [1, 2, 8])
def test_ms12_what_comes_after_a_checkpoint_is_the_same(ring_size):
    log = Log(ring_size=ring_size)
    log.run((A, 1, CONT), (B, 2, CONT), (C, 3, CONT), (C, 4, ACK), (A, 5, CONT))
    checkpoint = log.sequencer.checkpoint()
    assert checkpoint == SequencerCheckpoint(
        offsets={JOURNAL: 50},
        producers=(
            ProducerState(JOURNAL, A, 0, 0),
            ProducerState(JOURNAL, B, 1, 10),
            ProducerState(JOURNAL, C, 4, -1),
        ),
    )
    later = [(B, 6, CONT), (B, 7, ACK), (A, 8, CONT), (C, 4, OUT), (A, 9, ACK), (C, 9, OUT)]
    goes_on = [delivered for _, delivered in log.run(*later)]
    assert goes_on == [[], [2, 6, 7], [], [], [1, 5, 8, 9], [9]]
    del log.messages[5:]
    log.restored(checkpoint, ring_size)
    assert [delivered for _, delivered in log.run(*later)] == goes_on
    assert log.replays[-2] == ReplayRange(JOURNAL, 10, 60 if ring_size == 1 else 50)


@pytest.mark.parametrize("ring_size", [1, 3, 8])
@pytest.mark.parametrize("used", range(5))
def test_ms13_a_checkpoint_within_a_span_goes_on_at_what_was_not_used(ring_size, used):
    log = Log(ring_size=ring_size)
    log.run((A, 1, CONT), (B, 2, CONT), (A, 3, CONT), (A, 4, CONT), (A, 9, CONT))
    log.queue(A, 5, ACK)
    stepping = log.stepped()
    first = [next(stepping).uuid.clock for _ in range(used + 1)][:-1] if used < 4 else log.deliver()
    # The last one that came was not used yet.
    checkpoint = log.sequencer.checkpoint()
    assert checkpoint.offsets == {JOURNAL: 50 if used < 4 else 60}
    (state,) = (one for one in checkpoint.producers if one.producer == A)
    assert (state.last_ack, state.begin) == [(0, 0), (1, 20), (3, 30), (4, -1), (5, -1)][used]
    sequencer = log.restored(checkpoint, ring_size)
    assert not sequencer.has_pending
    rest = []
    for envelope in log.messages:
        if envelope.begin >= checkpoint.offsets[JOURNAL]:
            sequencer.queue(envelope)
            rest += log.deliver()
    assert first + rest == [1, 3, 4, 5]
    assert rest == [1, 3, 4, 5][used:]
    assert log.state(A) == (5, -1)
    assert log.run((B, 6, ACK))[0][1] == [2, 6]


def test_ms13_a_checkpoint_before_a_message_outside_of_transactions_reads_it_again():
    log = Log()
    log.queue(A, 1, OUT)
    checkpoint = log.sequencer.checkpoint()
    assert checkpoint.offsets == {JOURNAL: 0}
    assert log.restored(checkpoint).queue(log.messages[0]) == Outcome.OUTSIDE_COMMIT
    assert log.deliver() == [1]


def test_ms14_duplicates_on_both_sides_of_a_checkpoint_come_once():
    log = Log()
    log.run((A, 1, CONT), (A, 2, CONT), (A, 3, CONT))
    log.restored(log.sequencer.checkpoint())
    assert log.run((A, 2, CONT), (A, 3, CONT), (A, 4, CONT), (A, 5, ACK)) == [
        (Outcome.CONTINUE_EXTEND_SPAN, []),
        (Outcome.CONTINUE_EXTEND_SPAN, []),
        (Outcome.CONTINUE_EXTEND_SPAN, []),
        (Outcome.ACK_COMMIT_REPLAY, [1, 2, 3, 4, 5]),
    ]
    assert log.replays == [ReplayRange(JOURNAL, 0, 30)]


@pytest.mark.parametrize(("horizon", "kept"), [(20, "ABC"), (19, "BC"), (0, "C"), (None, "ABC")])
def test_ms15_producers_that_lag_behind_are_forgotten(horizon, kept):
    log = Log()
    log.run((A, 100, OUT), (B, 101, OUT), (C, 120, OUT))
    # Of another journal, where it is the newest.
    log.queue(A, 50, OUT, journal="b/journal")
    log.deliver()
    for _ in range(2):
        states = log.sequencer.checkpoint(horizon=horizon).producers
        named = {one.producer for one in states if one.journal == JOURNAL}
        assert named == {{"A": A, "B": B, "C": C}[name] for name in kept}
        assert [one.producer for one in states if one.journal == "b/journal"] == [A]


def test_producer_whose_clock_is_a_day_behind_is_named_once():
    log, ahead = Log(), PRUNE_HORIZON + 100
    log.run((A, 50, OUT), (B, ahead, OUT))
    assert log.warnings == [], "a backlog may be of several days"
    for clock in (51, 52):
        log.sequencer.checkpoint()
        assert log.state(A) is None
        log.run((A, clock, OUT), (C, ahead, OUT))
    (told,) = log.warnings
    assert (
        f"offset {2 * FRAME_BYTES} of producer {A.hex()}: its clock is more than 24 hours" in told
    )


def test_very_old_acknowledgement_causes_no_warning():
    log = Log()
    log.run((B, PRUNE_HORIZON + 100, OUT))
    log.sequencer.checkpoint()
    log.run((A, 50, ACK))
    assert log.warnings == []


def test_ms15_a_transaction_that_goes_on_is_kept_however_long_it_takes():
    log = Log()
    log.run((A, 1, CONT), (A, 100, CONT), (B, 110, OUT))
    log.sequencer.checkpoint(horizon=20)
    assert log.run((A, 111, CONT), (A, 112, ACK)) == [
        (Outcome.CONTINUE_EXTEND_SPAN, []),
        (Outcome.ACK_COMMIT_RING, [1, 100, 111, 112]),
    ]


def test_clock_ahead_of_reader_lets_no_repeat_through():
    """One host that is a day ahead has no messages of others counted twice, as after a lost answer."""
    log = Log()
    log.run((B, 500, OUT), (A, 100, OUT))
    log.restored(log.sequencer.checkpoint(horizon=20, now=101))
    assert log.run((A, 100, OUT)) == [(Outcome.OUTSIDE_ALREADY_ACKED, [])]
    log.sequencer.checkpoint(horizon=20, now=121)
    assert log.state(A) is None  # silent for long, by the reader's own clock


@pytest.mark.parametrize("ahead", ["before", "meanwhile"])
def test_a_clock_that_is_wrong_by_days_loses_no_message(ahead):
    """Of hosts whose clocks differ by more than the horizon, any may be right."""
    log = Log()
    if ahead == "before":
        log.run((B, 500, OUT))
    log.run((A, 1, CONT), (C, 2, OUT))
    log.sequencer.checkpoint(horizon=20)
    if ahead == "meanwhile":
        log.run((B, 500, OUT))
    for clock in (3, 4):
        log.run((C, clock, OUT))
        log.sequencer.checkpoint(horizon=20)
    assert log.run((A, 5, CONT), (A, 6, ACK))[-1] == (Outcome.ACK_COMMIT_RING, [1, 5, 6])


def test_a_transaction_that_a_producer_begins_after_long_silence_outlives_any_number_of_checkpoints():
    """A checkpoint has no clock of an open transaction, only the one that was committed before it."""
    log = Log()
    log.run((A, 1, OUT), (A, 100, CONT), (B, 110, OUT))
    for clock in (111, 112, 113):
        log.restored(log.sequencer.checkpoint(horizon=20))
        log.run((B, clock, OUT))
    assert log.run((A, 200, ACK))[-1] == (Outcome.ACK_COMMIT_REPLAY, [100, 200])


def test_a_transaction_that_a_checkpoint_said_is_open_is_forgotten_when_nothing_comes_for_long():
    """Or those of producers that died would be in checkpoints for ever."""
    log = Log()
    log.run((A, 100, CONT), (B, 110, OUT))
    log.restored(log.sequencer.checkpoint(horizon=20))
    for clock, known in ((120, {A, B}), (140, {A, B}), (141, {B})):
        log.run((B, clock, OUT))
        found = log.sequencer.checkpoint(horizon=20).producers
        assert {each.producer for each in found} == known


def test_ms15_a_producer_that_was_forgotten_restarts():
    log = Log(ring_size=3)
    log.run((A, 1, CONT))
    for clock, held in ((200, 1), (205, 1), (210, 1), (211, 0)):
        log.run((B, clock, OUT))
        log.sequencer.checkpoint(horizon=10)
        assert held_in_ring(log) == held
    assert log.run((A, 2, ACK), (A, 3, CONT), (A, 4, CONT), (A, 5, ACK)) == [
        (Outcome.ACK_EMPTY, [2]),
        (Outcome.CONTINUE_BEGIN_SPAN, []),
        (Outcome.CONTINUE_EXTEND_SPAN, []),
        (Outcome.ACK_COMMIT_RING, [3, 4, 5]),
    ]


def test_ms15_the_producer_that_is_delivered_is_not_forgotten():
    log = Log()
    log.run((B, 200, OUT), (A, 1, CONT), (A, 2, CONT))
    log.queue(A, 3, ACK)
    log.sequencer.step()
    assert log.state(A) == (1, 20)
    log.sequencer.checkpoint(horizon=10)
    assert log.state(A) == (1, 20)
    assert log.deliver() == [2, 3]


def test_ms16_a_replay_has_to_be_of_the_range():
    log = Log(ring_size=1)
    log.run((B, 1, CONT), (A, 2, CONT), (A, 3, CONT), (A, 4, CONT))
    log.queue(A, 5, ACK)
    sequencer, messages = log.sequencer, log.messages
    assert sequencer.replay == ReplayRange(JOURNAL, 10, 40)
    with pytest.raises(DataError, match="replay of a/journal gave a message of b/journal"):
        sequencer.offer(messages[1]._replace(journal="b/journal"))
    with pytest.raises(DataError, match="from 0 to 10, outside of 10 to 40"):
        sequencer.offer(messages[0])
    with pytest.raises(DataError, match="from 40 to 50, outside of 10 to 40"):
        sequencer.offer(messages[4])
    assert sequencer.offer(messages[1])
    assert sequencer.dequeued == messages[1]
    sequencer.step()
    with pytest.raises(DataError, match="from 10 to 20, outside of 20 to 40"):
        sequencer.offer(messages[1])
    # A reader that fails leaves a state from which another one can go on.
    assert log.state(A) == (2, 20)
    assert sequencer.offer(messages[2])
    sequencer.step()
    assert sequencer.offer(messages[3])
    sequencer.step()
    sequencer.end_replay()
    assert log.deliver() == [5]


def test_calls_out_of_turn_are_refused():
    log = Log(ring_size=1)
    sequencer = log.sequencer
    with pytest.raises(ValidationError, match="no message to step from"):
        sequencer.step()
    with pytest.raises(ValidationError, match="no message of a replay"):
        sequencer.offer(log.append(A, 1, CONT))
    with pytest.raises(ValidationError, match="no replay is under way"):
        sequencer.end_replay()
    sequencer.queue(log.messages[0])
    log.queue(A, 2, ACK)
    with pytest.raises(ValidationError, match="step through what is committed"):
        log.queue(A, 3, CONT)
    assert sequencer.offer(log.messages[0])
    for call in (sequencer.end_replay, lambda: sequencer.offer(log.messages[0])):
        with pytest.raises(ValidationError):
            call()


def test_spans_are_pending_until_their_ack_or_a_checkpoint():
    log = Log()
    sequencer = log.sequencer
    assert not sequencer.has_pending
    log.run((A, 1, CONT), (B, 2, CONT))
    assert sequencer.has_pending
    log.run((A, 3, ACK))
    assert sequencer.has_pending
    log.run((B, 1, ACK))
    assert not sequencer.has_pending
    log.run((A, 4, CONT))
    sequencer.checkpoint()
    assert not sequencer.has_pending
    log.run((A, 5, CONT))
    assert not sequencer.has_pending
    log.run((A, 6, ACK), (A, 7, CONT))
    assert sequencer.has_pending
    log.run((A, 8, OUT))
    assert not sequencer.has_pending


def test_sources_of_one_journal_are_apart():
    log = Log()
    log.queue(A, 1, CONT, journal="a/journal;one")
    log.queue(A, 1, CONT, journal="a/journal;two")
    assert log.queue(A, 2, ACK, journal="a/journal;two") == Outcome.ACK_COMMIT_RING
    assert [one.journal for one in log.stepped()] == ["a/journal;two"] * 2
    assert log.sequencer.offsets == {"a/journal;one": 10, "a/journal;two": 30}
    assert log.state(A, "a/journal;one") == (0, 0)


def test_a_checkpoint_whose_span_begins_at_the_ack_needs_no_replay():
    """As other implementations may write one, when only the ACK was not used yet."""
    checkpoint = SequencerCheckpoint(
        offsets={JOURNAL: 0}, producers=(ProducerState(JOURNAL, A, 1, 0),)
    )
    log = Log(checkpoint=checkpoint)
    assert log.run((A, 2, ACK)) == [(Outcome.ACK_COMMIT_RING, [2])]


def test_the_ring_holds_no_message_that_was_delivered():
    log = Log(ring_size=4)
    log.run((A, 1, CONT), (A, 2, CONT), (A, 3, ACK), (B, 4, CONT), (B, 2, ACK))
    assert held_in_ring(log) == 0


def test_an_ack_may_have_the_clock_of_what_it_commits():
    """It is not taken for a rollback when it is read again."""
    log = Log()
    log.run((A, 1, CONT), (A, 2, CONT))
    log.queue(A, 2, ACK)
    log.sequencer.step()
    log.sequencer.step()
    assert log.sequencer.dequeued == log.messages[2]
    log.restored(log.sequencer.checkpoint())
    assert log.sequencer.queue(log.messages[2]) == Outcome.ACK_EMPTY
    assert log.deliver() == [2]


def test_a_ring_takes_memory_as_it_is_used():
    tracemalloc.start()
    try:
        log = Log(ring_size=1 << 22)
        log.queue(A, 1 << 4, CONT)
        log.queue(A, 2 << 4, ACK)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.deliver() == [1 << 4, 2 << 4]
    assert peak_bytes < 1 << 20
