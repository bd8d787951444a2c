"""Screening of typed tables, case by case; at random it is in the properties."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from gazette_platform.errors import DataError, LakeError
from gazette_platform.lake.typed.planning.screening import (
    Again,
    Clocks,
    Plain,
    Sequenced,
    TaskScreen,
    TaskSummary,
    join,
    sequence,
)
from gazette_platform.lake.typed.planning.state import Counts, JournalState, Producer
from gazette_platform.message.sequencer import PRUNE_HORIZON
from gazette_platform.message.uuid import NO_UUID, Flags, build_uuid, parse_uuid_column

OUT, CONT, ACK = map(int, Flags)
A, B = b"\x01first", b"\x01other"
CLOCK = 1 << 60


def parts(*messages):
    """Columns of `(producer, clock, flags)`, out of their UUIDs as they lie in records."""
    texts = [str(build_uuid(*one)) if one[1] else None for one in messages]
    return parse_uuid_column(pa.array(texts, pa.string()))


def table(*messages, first=0):
    """The same with offsets: ten bytes each."""
    columns = parts(*messages)
    begins = [first + 10 * n for n in range(len(messages))]
    return pa.table(
        {
            **{name: columns.field(name) for name in ("producer", "clock", "flags")},
            "begin": pa.array(begins, pa.int64()),
            "end": pa.array([begin + 10 for begin in begins], pa.int64()),
        }
    )


def task(begin, *messages, known=None):
    screen = TaskScreen(begin, known)
    screen.take(parts(*messages))
    return screen.summary(begin + 10 * len(messages))


def nothing(begin, end):
    raise AssertionError(f"{begin} to {end} was read again")


# ------------------------------------------------------------------ tasks


@pytest.mark.parametrize(
    ("messages", "kept", "clocks"),
    [
        pytest.param([], None, {}, id="nothing"),
        pytest.param(
            [(A, 5, OUT), (B, 1, OUT), (A, 6, OUT)], None, {A: (5, 6), B: (1, 1)}, id="new"
        ),
        pytest.param([(A, 5, OUT), (A, 5, OUT)], [1, 0], {A: (5, 5)}, id="twice"),
        pytest.param(
            [(A, 5, OUT), (A, 6, OUT), (B, 9, OUT), (A, 5, OUT), (A, 6, OUT), (A, 7, OUT)],
            [1, 1, 1, 0, 0, 1],
            {A: (5, 7), B: (9, 9)},
            id="an append that came again",
        ),
        pytest.param([NO_UUID, NO_UUID, (A, 5, OUT)], None, {A: (5, 5)}, id="no UUIDs"),
        pytest.param(
            [NO_UUID, (A, 5, OUT), NO_UUID, (A, 4, OUT)], [1, 1, 1, 0], {A: (5, 5)}, id="some UUIDs"
        ),
        pytest.param([NO_UUID], None, {}, id="only no UUIDs"),
        pytest.param(
            [(A, 2**64 - 1, OUT), (A, 1, OUT)], [1, 0], {A: (2**64 - 1,) * 2}, id="64 bits"
        ),
    ],
)
def test_task_keeps_what_is_new_within_it(messages, kept, clocks):
    screen = TaskScreen(0)
    mask = screen.take(parts(*messages))
    assert (mask if mask is None else [int(one) for one in mask.to_pylist()]) == kept
    summary = screen.summary(99)
    assert summary.clocks == {name: Clocks(*each) for name, each in clocks.items()}
    assert summary.duplicates == (0 if kept is None else kept.count(0))
    assert (summary.messages, summary.is_plain, summary.end) == (len(messages), True, 99)


def test_task_that_learns_what_is_known_drops_it():
    screen = TaskScreen(0, {A: 5, B: 9})
    mask = screen.take(parts((A, 4, OUT), (A, 6, OUT), (B, 9, OUT)))
    assert mask.to_pylist() == [False, True, False]
    assert screen.summary(30).clocks == {A: Clocks(6, 6)}


def test_blocks_of_a_task_know_of_each_other():
    screen = TaskScreen(0)
    assert screen.take(parts((A, 5, OUT), (B, 5, OUT))) is None
    assert screen.take(parts((A, 5, OUT), (A, 8, OUT))).to_pylist() == [False, True]
    assert screen.summary(40).clocks == {A: Clocks(5, 8), B: Clocks(5, 5)}


@pytest.mark.parametrize("flags", [CONT, ACK])
def test_transactions_are_not_plain_and_no_later_block_makes_them_so(flags):
    screen = TaskScreen(0)
    screen.take(parts((A, 5, OUT), (A, 6, flags)))
    assert not screen.is_plain
    screen.take(parts((A, 7, OUT)))
    assert not screen.summary(30).is_plain


def test_flags_without_meaning_are_plain_and_counted():
    screen = TaskScreen(0)
    assert screen.take(parts((A, 5, 682), (A, 6, OUT))) is None
    assert (screen.is_plain, screen.summary(20).odd_flags) == (True, 1)


def test_without_a_clock_flags_mean_nothing():
    names = ["producer", "clock", "flags"]
    columns = [
        pa.array([A], pa.binary(6)),
        pa.array([0], pa.uint64()),
        pa.array([ACK], pa.uint16()),
    ]
    screen = TaskScreen(0)
    assert screen.take(pa.StructArray.from_arrays(columns, names)) is None
    assert screen.is_plain


def test_summary_goes_through_bytes():
    summary = task(7, (A, 2**64 - 1, OUT), (B, 1, 682))
    assert TaskSummary.parse(summary.dump()) == summary


@pytest.mark.parametrize("again", [0, 50])
def test_no_step_of_python_is_taken_for_each_message(again):
    """Calls of functions, also of those in C, for a hundred messages and for a hundred thousand."""

    def calls(count):
        clocks = [*range(1, count + 1 - again), *range(1, again + 1)]
        columns = [
            pa.array([A, B] * (count // 2), pa.binary(6)),
            pa.array(clocks, pa.uint64()),
            pa.array([OUT] * count, pa.uint16()),
        ]
        given = pa.StructArray.from_arrays(columns, ["producer", "clock", "flags"])
        screen, counted = TaskScreen(0), [0]

        def count_call(*_):
            counted[0] += 1

        sys.setprofile(count_call)
        try:
            screen.take(given)
        finally:
            sys.setprofile(None)
        assert screen.summary(1).duplicates == again
        return counted[0]

    few = calls(100)
    assert 0 < calls(100_000) <= few + 20


# ------------------------------------------------------------------ the driver


def test_plain_tasks_are_joined_as_they_are():
    before = JournalState(offset=100, producers={A: Producer(3)}, counts=Counts(messages=5))
    tasks = [
        task(100, (A, 4, OUT), (A, 4, OUT)),
        task(120),
        task(120, NO_UUID, (A, 5, OUT), (B, 1, OUT)),
    ]
    assert join(before, tasks) == Plain(
        JournalState(
            offset=150,
            producers={A: Producer(5), B: Producer(1)},
            counts=Counts(messages=10, committed=4, duplicates=1),
        )
    )


def test_task_that_kept_earlier_messages_learns_what_is_known():
    before = JournalState(producers={A: Producer(3)})
    first, second = [(A, 3, OUT), (B, 7, OUT)], [(B, 7, OUT), (A, 9, OUT)]
    tasks = [task(0, *first), task(20, *second)]
    verdict = join(before, tasks)
    assert verdict == Again({0: {A: 3}, 1: {B: 7}})
    tasks = [task(0, *first, known=verdict.known[0]), task(20, *second, known=verdict.known[1])]
    joined = join(before, tasks)
    assert isinstance(joined, Plain)
    assert joined.state.counts == Counts(messages=4, committed=2, duplicates=2)


def test_tasks_before_the_first_transaction_are_used():
    tasks = [task(0, (A, 1, OUT)), task(10, (A, 2, CONT)), task(20, (A, 3, OUT))]
    assert join(JournalState(), tasks) == Sequenced(
        JournalState(offset=10, producers={A: Producer(1)}, counts=Counts(messages=1, committed=1)),
        1,
    )


def test_plain_message_drops_the_open_transaction_of_its_producer():
    known = {A: Producer(3, 40, 2), B: Producer(3, 50, 1)}
    before = JournalState(offset=100, producers=known, counts=Counts(messages=3))
    told = join(before, [task(100, (A, 4, OUT), (B, 2, OUT), known={B: 3})])
    assert isinstance(told, Plain)
    assert told.state.producers == {A: Producer(4), B: Producer(3, 50, 1)}
    assert told.state.counts == Counts(messages=5, committed=1, duplicates=1, taken_back=2)
    assert told.state.counts.waiting == 1


@pytest.mark.parametrize("begins", [(10,), (0, 0), (0, 20)])
def test_tasks_that_do_not_follow_each_other_are_refused(begins):
    with pytest.raises(LakeError, match="one task is missing or duplicated"):
        join(JournalState(), [task(begin, (A, 1 + n, OUT)) for n, begin in enumerate(begins)])


# ------------------------------------------------------------------ in order


def test_transaction_that_began_in_a_former_run_is_read_again_from_its_begin():
    before = JournalState(
        offset=30, producers={A: Producer(1, 10, 2)}, counts=Counts(messages=3, committed=1)
    )
    former = table((A, 2, CONT), (A, 3, CONT), first=10)
    asked = []

    def reread(begin, end):
        asked.append((begin, end))
        return former

    now = table((B, 1, OUT), (A, 4, CONT), (A, 5, CONT), (A, 4, ACK), first=30)
    found = sequence(before, now, reread, end=70, ring_size=1)
    assert asked == [(10, 30)]
    assert found.reread == ((10, 30),)
    assert found.begin.to_pylist() == [30, 10, 20, 40]
    assert found.row.to_pylist() == [0, None, None, 1]
    assert found.state.producers == {A: Producer(4), B: Producer(1)}
    # The one with a larger clock than the ACK was taken back.
    assert found.state.counts == Counts(messages=7, committed=5, acks=1, taken_back=1)


def test_transaction_that_is_never_acknowledged_costs_no_reading():
    before = JournalState(offset=30, producers={A: Producer(1, 10, 2)}, counts=Counts(messages=2))
    found = sequence(before, table((B, 1, CONT), (B, 2, ACK), first=30), nothing, end=50)
    assert found.begin.to_pylist() == [30]
    assert found.state.producers[A] == Producer(1, 10, 2)
    assert found.state.open_begin == 10
    assert found.state.counts.waiting == 2


def test_message_without_a_clock_drops_no_transaction_whoever_it_says_it_is_of():
    messages = table((A, 1, CONT), (A, 2, OUT), (A, 2, ACK))
    clocks = pa.array([1, 0, 2], pa.uint64())
    messages = messages.set_column(messages.schema.get_field_index("clock"), "clock", clocks)
    found = sequence(JournalState(), messages, nothing, end=30)
    assert found.begin.to_pylist() == [10, 0]
    assert found.state.counts == Counts(messages=3, committed=2, acks=1)
    found = sequence(JournalState(), messages.slice(0, 2), nothing, end=20)
    assert found.state.counts == Counts(messages=2, committed=1)
    assert found.state.producers == {A: Producer(0, 0, 1)}


def test_message_of_an_open_transaction_that_comes_again_waits_in_a_later_run_and_is_a_row_once():
    """No clock of an open transaction is known to a later run, as it is to none that goes on at a checkpoint."""
    one, again = table((A, 2, CONT)), table((A, 2, CONT), first=10)
    first = sequence(JournalState(), one, nothing, end=10).state
    second = sequence(first, again, nothing, end=20).state
    assert second.producers == {A: Producer(1, 0, 2)}
    assert second.counts == Counts(messages=2)
    ack = table((A, 3, ACK), first=20)
    last = sequence(second, ack, lambda *_: pa.concat_tables([one, again]), end=30)
    assert last.begin.to_pylist() == [0]
    assert last.state.counts == Counts(messages=3, committed=1, taken_back=1, acks=1)
    # By one run it is known for what it is.
    once = sequence(JournalState(), pa.concat_tables([one, again, ack]), nothing, end=30)
    assert once.begin.to_pylist() == [0]
    assert once.state.counts == Counts(messages=3, committed=1, duplicates=1, acks=1)


@pytest.mark.parametrize("gone", [table(first=10), table((A, 2, CONT), first=10)])
def test_transaction_with_a_missing_part_is_not_committed(gone):
    before = JournalState(offset=30, producers={A: Producer(1, 10, 2)})
    with pytest.raises(DataError, match="again, from offset 10 to 30, ended at"):
        sequence(before, table((A, 4, ACK), first=30), lambda *_: gone, end=40)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param(0, 40, id="before the range"),
        pytest.param(19, 40, id="a byte before it"),
        pytest.param(20, 35, id="beyond"),
    ],
)
def test_messages_outside_of_the_range_are_refused(begin, end):
    with pytest.raises(DataError, match=r"out of order|ends at offset 35 has messages up to 40"):
        sequence(
            JournalState(offset=20), table((A, 1, OUT), (A, 2, CONT), first=begin), nothing, end=end
        )


def test_what_should_not_be_is_reported():
    told = []
    messages = table((A, 5, OUT), (A, 4, ACK), (B, 1, 682))
    sequence(JournalState(), messages, nothing, end=30, warn=told.append)
    assert ["takes back" in told[0], "mean nothing" in told[1]] == [True, True]


def test_range_without_messages_moves_the_offset():
    found = sequence(JournalState(offset=20), table(), nothing, end=25)
    assert (found.state.offset, len(found.begin), len(found.row)) == (25, 0, 0)


def test_span_of_a_producer_that_was_silent_for_a_day_outlives_any_number_of_runs():
    """The sequencer's own pruning forgets it: a state has no clock of an open span."""
    clock = CLOCK + PRUNE_HORIZON + 1600
    state = JournalState(offset=0, producers={A: Producer(CLOCK)})
    state = sequence(state, table((A, clock, CONT), (B, clock, OUT)), nothing, end=20).state
    for run in range(3):
        begin = state.offset
        state = sequence(
            state, table((B, clock + 1 + run, OUT), first=begin), nothing, end=begin + 10
        ).state
        joined = join(state, [task(begin + 10, (B, clock + 100 + run, OUT))])
        assert isinstance(joined, Plain | Again)
    span = table((A, clock, CONT), (B, clock, OUT), *((B, clock + 1 + n, OUT) for n in range(3)))
    ack = table((A, clock + 160, ACK), first=state.offset)
    found = sequence(state, ack, lambda *_: span, end=state.offset + 10)
    assert found.begin.to_pylist() == [0]


@pytest.mark.parametrize("is_plain", [True, False])
def test_producers_that_are_a_day_behind_are_forgotten_by_either_way(is_plain):
    before = JournalState(producers={A: Producer(CLOCK)})
    new = (B, CLOCK + PRUNE_HORIZON + 1, OUT)
    if is_plain:
        joined = join(before, [task(0, new)])
        assert isinstance(joined, Plain)
        state = joined.state
    else:
        state = sequence(before, table(new), nothing, end=10).state
    assert state.producers == {B: Producer(new[1])}
