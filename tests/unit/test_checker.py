"""The checker finds every kind of planted anomaly, explains it briefly, and finds nothing else.

Long because one test looks whether each kind is planted by the others of this file.
"""

from __future__ import annotations

import math

import pytest

from gazette_platform.protocol import LabelSelector, LabelSet
from tests.checker import ANOMALIES, check_history
from tests.checker.history import (
    Append,
    FinalContent,
    History,
    Outcome,
    Payload,
    Piece,
    Poll,
    payload_bytes,
)

JOURNAL = "a/journal"
SIZE = 32
WRONG_OFFSET = "WrongAppendOffset: the write head is elsewhere"


def content(tag, length=SIZE):
    return payload_bytes(0, Payload(tag, length))


class Story:
    """Writes a history by hand. Instants are numbers, one unit an operation by default."""

    def __init__(self):
        self.history = History()
        self.now = 0.0
        self.bytes = b""

    def append(self, tag, outcome="ok", *, begin=None, at=None, process="w1", data=None, **fields):
        """An append; an ok one is put where the story stands, unless `begin` says otherwise."""
        data = content(tag) if data is None else data
        start, end = at or (self.now, self.now + 0.5)
        self.now = max(self.now, start) + 1
        outcome = Outcome(outcome)
        if outcome is Outcome.OK:
            where = len(self.bytes) if begin is None else begin
            fields = {"begin": where, "end": where + len(data)} | fields
            if begin is None:
                self.bytes += data
        op = Append(
            id=len(self.history.appends),
            process=process,
            journal=JOURNAL,
            content=data,
            payload=Payload(tag, SIZE) if tag else None,
            invoked_at=start,
            completed_at=end,
            outcome=outcome,
            **fields,
        )
        self.history.appends.append(op)
        return op

    def poll(self, *pieces, offset=None, stream=1, at=None, keep=True, **fields):
        """A poll that got pieces: (begin, end) of the bytes so far, or (begin, bytes)."""
        start, end = at or (self.now, self.now + 0.5)
        self.now = max(self.now, start) + 1
        got = tuple(
            Piece.of(b, self.bytes[b:e] if isinstance(e, int) else e, keep=keep) for b, e in pieces
        )
        if offset is None:
            offset = got[0].begin if got else 0
        op = Poll(
            id=1000 + len(self.history.polls),
            process=f"r{stream}",
            journal=JOURNAL,
            stream=stream,
            offset=offset,
            invoked_at=start,
            completed_at=end,
            outcome=fields.pop("outcome", Outcome.OK),
            pieces=got,
            **fields,
        )
        self.history.polls.append(op)
        return op

    def check(self, *, final=None, begin=0):
        data = self.bytes if final is None else final
        self.history.finals[JOURNAL] = FinalContent(JOURNAL, begin, data)
        return check_history(self.history)


@pytest.fixture
def story():
    return Story()


def found(report):
    return sorted(anomaly.name for anomaly in report.anomalies)


def only(report, name, *operations):
    """Assert that one anomaly was found, of this name, explained by these operations."""
    assert found(report) == [name], str(report)
    (anomaly,) = report.anomalies
    assert sorted(op.id for op in anomaly.operations) == sorted(op.id for op in operations)
    assert report.shortest is anomaly
    text = str(anomaly)
    assert text.startswith(f"{name} (")
    assert len(text.splitlines()) == 1 + len(operations)


# ------------------------------------------------------------------ what is allowed


def test_appends_in_sequence_and_their_reads_are_valid(story):
    story.append("a")
    story.append("b")
    story.poll((0, 20))
    story.poll((20, 40), (40, 64))
    report = story.check()
    assert report.is_valid, str(report)
    assert (report.appends_ok, report.polls, report.bytes_read, report.unseen) == (2, 2, 64, 0)


def test_concurrent_appends_may_lie_in_any_order(story):
    story.append("b", at=(0, 10))
    story.append("a", at=(0, 5), process="w2")
    assert story.check().is_valid


def test_unknown_append_may_exist_or_not(story):
    story.append("a", "unknown")
    story.append("b", "unknown")
    report = story.check(final=content("b"))
    assert report.is_valid
    assert (report.appends_unknown, report.unknown_visible) == (2, 1)


@pytest.mark.parametrize(("outcome", "attempts"), [("unknown", 3), ("ok", 3)])
def test_retried_append_may_exist_as_often_as_attempted(story, outcome, attempts):
    story.append("a", outcome, attempts=attempts)
    assert story.check(final=3 * content("a")).is_valid


def test_pruned_content_is_not_lost(story):
    story.append("a")
    story.append("b")
    story.poll((SIZE, 2 * SIZE), offset=0)
    assert story.check(final=content("b"), begin=SIZE).is_valid


def test_equal_contents_are_told_apart_by_where_they_were_acknowledged(story):
    story.append("", data=b"same\n")
    story.append("", "unknown", data=b"same\n")
    story.append("", data=b"same\n")
    assert story.check().is_valid
    assert story.check(final=3 * b"same\n").is_valid
    assert found(story.check(final=4 * b"same\n")) == ["duplicate"]


def test_head_that_readers_wait_at_gives_no_pieces(story):
    story.poll(offset=0, write_head=0)
    story.append("a")
    story.poll((0, SIZE), write_head=SIZE)
    assert story.check().is_valid


def test_read_from_the_head_begins_at_any_head_of_the_time(story):
    story.append("a", at=(0, 1))
    story.append("b", at=(2, 9))
    story.append("c", at=(5, 6), process="w2")
    story.poll((SIZE, 3 * SIZE), offset=-1, at=(4, 9), write_head=3 * SIZE)
    story.poll((2 * SIZE, 3 * SIZE), offset=-1, at=(4, 9), write_head=3 * SIZE, stream=2)
    report = story.check()
    assert report.is_valid, str(report)


def test_content_that_begins_with_another_one(story):
    short, long, rest = content("a")[:20], content("a")[:24], content("b")
    story.append("", "unknown", data=long + b"more", at=(0, 9))
    story.append("", "unknown", data=short, at=(0, 9))
    story.append("", "unknown", data=long[20:] + b"more" + rest, at=(0, 9))
    report = story.check(final=long + b"more" + rest)
    assert report.is_valid, str(report)
    assert report.unknown_visible == 2


def test_refusal_at_an_offset_that_was_not_the_head(story):
    story.append("a", at=(0, 1))
    story.append("b", "fail", offset=5, error=WRONG_OFFSET, at=(2, 3))
    story.append("c", "fail", offset=SIZE, error=WRONG_OFFSET, at=(4, 6))
    story.append("d", at=(5, 7), process="w2")
    assert story.check().is_valid


def test_refusal_while_another_append_was_given_up(story):
    story.append("a", at=(0, 1))
    story.append("b", "unknown", at=(2, 3))
    story.append("c", "fail", offset=SIZE, error=WRONG_OFFSET, at=(4, 6))
    assert story.check().is_valid


def test_head_as_of_the_begin_of_a_stream(story):
    story.poll((0, 0), offset=0, write_head=0, at=(0, 1))
    story.append("a", at=(2, 3))
    story.poll((0, SIZE), write_head=SIZE, at=(4, 5))
    story.append("b", at=(6, 7))
    story.append("c", at=(6, 7))
    story.poll((SIZE, 2 * SIZE), write_head=2 * SIZE, at=(8, 9))
    assert story.check().is_valid


def test_tail_that_waits_where_nothing_comes(story):
    story.append("a", at=(0, 1))
    story.poll(offset=SIZE, at=(2, math.inf), outcome=Outcome.UNKNOWN)
    story.poll(offset=-1, at=(2, math.inf), outcome=Outcome.UNKNOWN, stream=2)
    story.append("b", "fail", error="NotAllowed", at=(1000, 1001))
    assert story.check().is_valid


# ------------------------------------------------------------------ appends


def test_lost_write_at_the_end(story):
    story.append("a")
    lost = story.append("b")
    only(story.check(final=content("a")), "lost-write", lost)


def test_loss_beyond_what_was_deleted(story):
    ops = [story.append(tag) for tag in "abc"]
    story.history.pruned[JOURNAL] = 32
    assert story.check(final=story.bytes[32:], begin=32).is_valid
    only(story.check(final=story.bytes[64:], begin=64), "lost-write", ops[1])


def test_lost_write_that_another_took_the_place_of(story):
    lost = story.append("a")
    other = story.append("b", "unknown", at=(0, 1), process="w2")
    only(story.check(final=content("b")), "lost-write", lost, other)


def test_duplicate_of_an_acknowledged_append(story):
    op = story.append("a")
    only(story.check(final=2 * content("a")), "duplicate", op)


def test_duplicate_beyond_the_attempts_of_an_unknown_append(story):
    op = story.append("a", "unknown", attempts=2)
    only(story.check(final=3 * content("a")), "duplicate", op)


def test_overlapping_acknowledgements(story):
    first = story.append("a")
    second = story.append("b", begin=10, at=(0, 1), process="w2")
    report = story.check()
    assert "inconsistent-offsets" in found(report)
    overlap = next(a for a in report.anomalies if a.name == "inconsistent-offsets")
    assert overlap.operations == (first, second)


def test_acknowledgement_at_another_offset_than_the_bytes(story):
    story.append("a")
    moved = story.append("b", begin=5 * SIZE)
    only(story.check(final=content("a") + content("b")), "inconsistent-offsets", moved)


def test_acknowledgement_of_another_length(story):
    op = story.append("a", end=SIZE + 4)
    report = story.check()
    assert "inconsistent-offsets" in found(report)
    assert report.shortest.operations == (op,)


@pytest.mark.parametrize("outcome", ["ok", "unknown"])
def test_append_at_another_offset_than_asked(story, outcome):
    story.append("a")
    op = story.append("b", outcome, offset=5)
    only(story.check(final=content("a") + content("b")), "inconsistent-offsets", op)


def test_copy_of_an_append_at_another_offset_than_asked(story):
    story.append("a")
    op = story.append("b", offset=SIZE, attempts=2)
    only(story.check(final=content("a") + 2 * content("b")), "inconsistent-offsets", op)


def test_acknowledgement_with_the_digest_of_other_bytes(story):
    op = story.append("a", sha1=b"x" * 20)
    only(story.check(), "inconsistent-offsets", op)


def test_failed_append_that_exists(story):
    story.append("a")
    op = story.append("b", "fail", error="NotAllowed")
    only(story.check(final=content("a") + content("b")), "G1a", op)


@pytest.mark.parametrize("part", [slice(20), slice(10, 25), slice(20, SIZE)])
def test_part_of_an_append_exists(story, part):
    story.append("a")
    op = story.append("b", "unknown")
    only(story.check(final=content("a") + content("b")[part]), "G0", op)


def test_mixed_appends(story):
    one = story.append("a", "unknown", at=(0, 1))
    two = story.append("b", "unknown", at=(0, 1), process="w2")
    mixed = content("a")[:20] + content("b")[:18] + content("a")[20:] + content("b")[18:]
    report = story.check(final=mixed)
    assert set(found(report)) == {"G0"}
    assert set(report.anomalies[0].operations) == {one, two}


def test_bytes_without_an_append(story):
    story.append("a")
    report = story.check(final=content("a") + b"garbage that no client wrote")
    assert found(report) == ["unexpected"]
    assert "[32, 60)" in str(report)


def test_order_of_one_process(story):
    second = story.append("b", at=(5, 6))
    first = story.append("a", at=(0, 1))
    only(story.check(), "nonmonotonic-send", first, second)


def test_order_of_two_processes_in_real_time(story):
    second = story.append("b", at=(5, 6), process="w2")
    first = story.append("a", at=(0, 1))
    only(story.check(), "G0-realtime", first, second)


def test_unknown_append_before_what_had_ended(story):
    early = story.append("b", "unknown", at=(5, 6), process="w2")
    story.bytes = content("b")
    first = story.append("a", at=(0, 1))
    only(story.check(), "G0-realtime", first, early)


def test_barrier_at_an_offset_that_was_passed(story):
    first = story.append("a", at=(0, 1))
    barrier = story.append("", data=b"", begin=0, at=(5, 6), process="w2")
    only(story.check(), "G0-realtime", first, barrier)


def test_barrier_beyond_the_end(story):
    story.append("a", at=(0, 1))
    barrier = story.append("", data=b"", begin=2 * SIZE, at=(2, 3))
    only(story.check(), "inconsistent-offsets", barrier)


def test_barrier_inside_an_append(story):
    inside = story.append("a", at=(0, 9))
    barrier = story.append("", data=b"", begin=5, at=(0, 9), process="w2")
    only(story.check(), "inconsistent-offsets", inside, barrier)


def test_acknowledgement_at_a_negative_offset(story):
    story.append("a", at=(2, 3))
    op = story.append("", data=b"", begin=-7, at=(0, 1))
    only(story.check(), "inconsistent-offsets", op)


def test_refusal_at_what_was_the_head(story):
    last = story.append("a", at=(0, 1))
    op = story.append("b", "fail", offset=SIZE, error=WRONG_OFFSET, at=(2, 3))
    story.append("c", at=(4, 5))
    report = story.check()
    assert found(report) == ["wrong-refusal"], str(report)
    only(report, "wrong-refusal", last, op)


def test_acknowledged_append_of_an_unread_journal(story):
    op = story.append("a")
    only(check_history(story.history), "unseen", op)


# ------------------------------------------------------------------ reads


def test_read_that_leaves_content_out(story):
    story.append("a")
    one, two = story.poll((0, 10)), story.poll((12, SIZE), offset=10)
    only(story.check(), "poll-skip", one, two)


def test_read_that_begins_too_late(story):
    story.append("a")
    poll = story.poll((5, SIZE), offset=0)
    only(story.check(), "poll-skip", poll)


def test_read_of_a_journal_whose_begin_is_not_known(story):
    """As when a run broke off before its end: what the reader was led past may have been pruned."""
    story.append("a", "unknown")
    story.poll((32, content("b")), offset=0)
    assert check_history(story.history).is_valid


def test_read_that_goes_back(story):
    story.append("a")
    one, two = story.poll((0, 10)), story.poll((9, SIZE), offset=10)
    only(story.check(), "nonmonotonic-poll", one, two)


def test_broker_that_went_back_and_was_refused(story):
    story.append("a")
    poll = story.poll(offset=9, outcome=Outcome.FAIL, error="DataError: invalid ReadResponse")
    only(story.check(), "nonmonotonic-poll", poll)


def test_poll_whose_pieces_leave_content_out(story):
    story.append("a")
    poll = story.poll((0, 10), (12, SIZE))
    only(story.check(), "int-poll-skip", poll)


def test_poll_whose_pieces_go_back(story):
    story.append("a")
    poll = story.poll((0, 10), (8, SIZE))
    only(story.check(), "int-nonmonotonic-poll", poll)


def test_streams_are_judged_apart(story):
    story.append("a")
    story.poll((0, 20), stream=1)
    story.poll((0, 10), stream=2)
    story.poll((20, SIZE), stream=1)
    assert story.check().is_valid


def test_read_of_a_failed_append(story):
    op = story.append("b", "fail", error="NotAllowed", at=(0, 1))
    poll = story.poll((0, content("b")))
    kept = story.append("a")
    only(story.check(), "G1a", op, poll, kept)


def test_read_of_what_was_never_committed(story):
    op = story.append("b", "unknown", at=(0, 1))
    poll = story.poll((0, content("b")[:20]))
    only(story.check(), "precommitted-read", op, poll)


def test_read_of_what_another_append_replaced(story):
    story.append("first")
    op = story.append("b", "unknown", at=(1, 2), process="w2")
    poll = story.poll((10, story.bytes[10:] + content("b")[:18]), at=(2, 3))
    kept = story.append("a", at=(3, 4))
    only(story.check(), "precommitted-read", op, poll, kept)


def test_write_head_that_was_never_reached(story):
    story.append("a")
    poll = story.poll(offset=0, write_head=SIZE + 1)
    only(story.check(), "precommitted-read", poll)


def test_head_below_what_was_acknowledged(story):
    op = story.append("a", at=(0, 1))
    poll = story.poll(offset=0, write_head=0, at=(2, 3))
    only(story.check(), "stale-head", op, poll)


def test_head_below_the_content_that_came_with_it(story):
    story.append("a")
    poll = story.poll((0, 32), write_head=31, at=(0, 1))
    only(story.check(), "stale-head", poll)


def test_read_of_what_an_earlier_attempt_left_elsewhere(story):
    """It was never committed there, and is acknowledged at another place."""
    story.append("b")
    seen = story.append("a", attempts=2)
    poll = story.poll((0, content("a")), at=(0, 5))
    only(story.check(), "precommitted-read", seen, story.history.appends[0], poll)


def test_read_that_begins_inside_what_was_never_committed(story):
    story.append("a")
    lost = story.append("b", "unknown")
    poll = story.poll((32, content("b")[7:]), at=(1, 5))
    only(story.check(final=content("a")), "precommitted-read", lost, poll)


def test_head_that_goes_back_within_a_stream(story):
    story.append("a", at=(0, 9))
    one = story.poll((0, SIZE), write_head=SIZE, at=(1, 2))
    two = story.poll(offset=SIZE, write_head=0, at=(3, 4))
    only(story.check(), "nonmonotonic-head", one, two)


def test_head_that_covers_what_was_not_invoked(story):
    poll = story.poll(offset=0, write_head=SIZE, at=(0, 1))
    op = story.append("a", at=(2, 3))
    only(story.check(), "G1c-realtime", poll, op)


def test_read_from_the_head_that_precedes_what_was_acknowledged(story):
    op = story.append("a", at=(0, 1))
    poll = story.poll((SIZE - 5, SIZE), offset=-1, at=(2, 3))
    only(story.check(), "nonmonotonic-poll", op, poll)


def test_read_from_the_head_that_leaves_content_out(story):
    told = story.poll(offset=-1, write_head=0, at=(0, 1))
    story.append("a", at=(2, 3))
    story.append("b", at=(4, 5))
    poll = story.poll((SIZE, 2 * SIZE), offset=-1, at=(6, 7), write_head=2 * SIZE)
    only(story.check(), "poll-skip", told, poll)


@pytest.mark.parametrize("offset", [0, -1])
@pytest.mark.parametrize("ended_at", [1001, math.inf])
def test_tail_that_does_not_get_what_was_acknowledged(story, offset, ended_at):
    outcome = Outcome.UNKNOWN if ended_at == math.inf else Outcome.FAIL
    poll = story.poll(offset=offset, at=(0, ended_at), outcome=outcome, error="CancelledError")
    op = story.append("a", at=(1, 2))
    story.append("b", "fail", error="NotAllowed", at=(1001, 1002))
    only(story.check(), "stuck-read", op, poll)


def test_tail_where_content_is_deleted_may_wait(story):
    story.append("a", at=(0, 1))
    story.poll(offset=0, at=(2, 200), outcome=Outcome.FAIL, error="cancelled")
    story.history.pruned[JOURNAL] = 32
    assert story.check(final=b"", begin=32).is_valid
    story.history.pruned[JOURNAL] = 0
    assert found(story.check()) == ["stuck-read"]


@pytest.mark.parametrize("keep", [True, False])
def test_pruned_content_that_was_read_is_what_was_acknowledged(story, keep):
    story.append("a")
    op = story.append("b")
    story.append("c")
    story.poll((0, 2 * SIZE), keep=keep)
    story.poll((0, 3 * SIZE), stream=2, keep=keep)
    assert story.check(final=content("c"), begin=2 * SIZE).is_valid
    wrong = story.poll((SIZE, content("x") + content("c")), stream=3, keep=keep)
    only(story.check(final=content("c"), begin=2 * SIZE), "inconsistent-offsets", op, wrong)


def test_pruned_content_that_no_reader_learnt_of_is_not_compared(story):
    story.append("a", "unknown", at=(0, 1))
    story.bytes = content("a")
    story.append("b")
    story.poll((0, SIZE), (SIZE, 2 * SIZE))
    story.poll((0, 2 * SIZE), stream=2)
    assert story.check(final=content("b"), begin=SIZE).is_valid


def test_kept_bytes_that_differ_after_what_was_pruned(story):
    story.append("a")
    story.append("b")
    story.poll((SIZE - 4, 2 * SIZE), offset=SIZE - 4)
    assert story.check(final=content("b"), begin=SIZE).is_valid
    wrong = content("a")[-4:] + content("b")[:-2] + b"?!"
    poll = story.poll((SIZE - 4, wrong), offset=SIZE - 4, stream=2)
    only(story.check(final=content("b"), begin=SIZE), "inconsistent-offsets", poll)


def test_readers_that_differ(story):
    one = story.append("a", at=(0, 5))
    two = story.append("b", at=(0, 5), process="w2")
    poll = story.poll((0, content("b")))
    only(story.check(), "inconsistent-offsets", one, two, poll)


def test_read_of_changed_bytes(story):
    kept = story.append("a")
    poll = story.poll((0, b"?" * 10))
    only(story.check(), "inconsistent-offsets", kept, poll)


def test_read_that_differs_by_digest_only(story):
    kept = story.append("a")
    poll = story.poll((0, b"?" * 10), keep=False)
    only(story.check(), "inconsistent-offsets", kept, poll)


def test_read_beyond_the_end_by_digest_only(story):
    poll = story.poll((0, b"?" * 10), keep=False)
    only(story.check(), "precommitted-read", poll)


def test_read_of_the_future(story):
    op = story.append("a", at=(10, 11))
    poll = story.poll((0, SIZE), at=(1, 2))
    only(story.check(), "G1c-realtime", op, poll)


def test_lag_of_readers_is_measured(story):
    story.append("a", at=(0, 1))
    story.append("b", at=(1, 2))
    story.append("c", at=(2, 3))
    story.poll((0, SIZE), at=(0, 4))
    story.poll((SIZE, 2 * SIZE), at=(4, 9))
    report = story.check()
    assert report.worst_realtime_lag_s == 7
    assert report.unseen == 1


# ------------------------------------------------------------------ registers

ME, YOU = LabelSet.of(owner="me"), LabelSet.of(owner="you")
IF_ME, IF_YOU = (LabelSelector.parse(f"owner={who}") for who in ("me", "you"))
MISMATCH = "RegisterMismatch: the journal's registers differ"


def test_registers_that_compare_and_set(story):
    story.append("a", union=ME, registers=ME)
    story.append("b", check=IF_ME, union=YOU, registers=YOU)
    story.append("c", "fail", check=IF_ME, error=MISMATCH)
    story.append("d", check=IF_YOU, subtract=ME, registers=YOU)
    story.append("e", check=IF_YOU, subtract=YOU, registers=LabelSet())
    story.append("f", check=IF_ME, registers=LabelSet())
    report = story.check()
    assert report.is_valid, str(report)


def test_both_of_two_that_compared_and_set(story):
    story.append("a", union=ME)
    one = story.append("b", check=IF_ME, union=YOU, at=(5, 9))
    two = story.append("c", check=IF_ME, union=YOU, at=(5, 9), process="w2")
    only(story.check(), "nonlinearizable", one, two)


def test_unknown_append_that_was_applied_though_registers_differ(story):
    setter = story.append("a", union=YOU)
    op = story.append("b", "unknown", check=IF_ME)
    only(story.check(final=content("a") + content("b")), "nonlinearizable", setter, op)


def test_change_of_registers_that_was_forgotten(story):
    setter = story.append("a", union=ME, registers=ME)
    op = story.append("b", registers=LabelSet())
    only(story.check(), "nonlinearizable", setter, op)


def test_report_names_lost_registers(story):
    story.append("a", union=ME, registers=ME)
    story.append("b", check=IF_YOU, union=YOU, registers=YOU)
    assert "registers lost" in str(story.check())


def test_report_of_broken_check_names_no_lost_registers(story):
    other = LabelSet.of(other="x")
    story.append("a", union=ME, registers=ME)
    story.append("b", check=IF_YOU, union=other, registers=ME.union(other))
    assert "registers lost" not in str(story.check())


def test_barrier_that_should_have_been_refused(story):
    setter = story.append("a", union=ME)
    op = story.append("", data=b"", check=IF_YOU)
    only(story.check(), "nonlinearizable", setter, op)


def test_refusal_without_reason(story):
    setter = story.append("a", union=ME)
    op = story.append("b", "fail", check=IF_ME, error=MISMATCH)
    story.append("c", union=YOU)
    only(story.check(), "nonlinearizable", setter, op)


def test_refusal_because_of_a_concurrent_change(story):
    story.append("a", union=ME)
    story.append("b", "fail", check=IF_ME, error=MISMATCH, at=(5, 9), process="w2")
    story.append("c", union=YOU, at=(6, 10))
    assert story.check().is_valid


def test_refusal_before_registers_were_forgotten_without_content(story):
    setter = story.append("a", union=YOU, registers=YOU)
    story.append("b", "fail", check=IF_ME, error=MISMATCH)
    barrier = story.append("", data=b"", registers=LabelSet())
    only(story.check(), "nonlinearizable", setter, barrier)


def test_refusal_while_a_change_was_given_up(story):
    story.append("a", union=ME)
    story.append("b", "unknown", union=YOU)
    story.append("c", "fail", check=IF_ME, error=MISMATCH)
    assert story.check().is_valid


def test_registers_from_before_the_history_count(story):
    story.append("a", check=IF_ME)
    story.history.finals[JOURNAL] = FinalContent(JOURNAL, 0, story.bytes, YOU)
    assert found(check_history(story.history)) == ["nonlinearizable"]


# ------------------------------------------------------------------ the report


def test_every_anomaly_is_planted_by_a_test_of_this_file():
    from pathlib import Path

    text = Path(__file__).read_text()
    assert [name for name in ANOMALIES if f'"{name}"' not in text] == []


def test_anomalies_of_one_name_are_counted_beyond_the_first_few(story):
    for number in range(9):
        story.append(f"a{number}")
    report = story.check(final=b"")
    assert len(report.anomalies) == 5
    assert report.anomaly_count == 9
    assert "and 4 more of lost-write" in str(report)
