"""Rounds of a run over a journal, with workers in memory, against one sequencer that reads it from end to end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from typed_logs import (
    ACK,
    CONT,
    OUT,
    UNKNOWN,
    between,
    blocks,
    honest,
    hostile,
    laid_out,
    parts_of,
    plain,
    plans,
    rings,
    table_of,
    uninterrupted,
)

from gazette_platform.client import FragmentListing
from gazette_platform.client.read.extents import Extent, snapshot_of
from gazette_platform.errors import DataError, LakeError
from gazette_platform.lake.typed.planning import rounds, screening
from gazette_platform.lake.typed.planning.ranges import (
    JournalRange,
    Task,
    plan_backfill,
)
from gazette_platform.lake.typed.planning.rounds import BackfillRounds, Done, JournalRounds, Kind
from gazette_platform.lake.typed.planning.screening import TaskScreen
from gazette_platform.lake.typed.planning.state import JournalState, TypedState
from gazette_platform.protocol import Fragment

JOURNAL = "a/journal"


def task_of(begin, end):
    return Task((Extent(JOURNAL, begin, end),))


def is_bad(message):
    return message.begin % 5 == 3


class Workers:
    """Carry out orders on a log in memory. What they write is lists of offsets."""

    def __init__(self, log, *, block, group_messages, ring_size, tells_messages):
        self.log = log
        self.block = block
        self.group_messages = group_messages
        self.ring_size = ring_size
        self.tells_messages = tells_messages
        self.kinds = []

    def work(self, order):
        messages = between(self.log, order.task.begin, order.task.end)
        self.kinds.append(order.kind)
        match order.kind:
            case Kind.LOOK:
                return Done(messages=table_of(messages), end=order.task.end)
            case Kind.KEEP:
                wanted = order.keep.to_pylist()
                assert wanted == sorted(set(wanted))
                kept = [one for one in messages if one.begin in wanted]
                assert len(kept) == len(wanted), "what is kept exists"
                return self.written(kept)
        screen, kept = TaskScreen(order.task.begin, order.known), []
        for first in range(0, len(messages), self.block):
            block = messages[first : first + self.block]
            mask = screen.take(parts_of(block))
            masked = [True] * len(block) if mask is None else mask.to_pylist()
            kept += [one for one, keeps in zip(block, masked, strict=True) if keeps]
        looked = table_of(messages) if self.tells_messages and not screen.is_plain else None
        kept = kept if order.writes else []
        return self.written(kept, screen.summary(order.task.end), looked)

    def written(self, kept, summary=None, looked=None):
        bad = sum(map(is_bad, kept))
        output = [one.begin for one in kept]
        return Done(
            summary=summary,
            messages=looked,
            typed=len(kept) - bad,
            quarantined=bad,
            output=output or None,
        )

    def tasks_of(self, begin, end):
        """What lies before the range, in tasks of other bounds than it was once read in."""
        bounds = sorted({begin, end, *(one.begin for one in self.log if one.begin % 7 == 0)})
        bounds = [at for at in bounds if begin <= at <= end]
        return [task_of(*span) for span in pairwise(bounds)]

    def run(self, state, cuts):
        """One run: its state, offsets of its rows, and what was written in vain."""
        tasks = tuple(task_of(*span) for span in pairwise(cuts))
        turns = JournalRounds(
            state,
            JournalRange(JOURNAL, tasks),
            tasks_of=self.tasks_of,
            look=lambda orders: [self.work(order) for order in orders],
            group_messages=self.group_messages,
            ring_size=self.ring_size,
        )
        written = []
        for _ in range(6):
            if not turns.orders:
                break
            done = [self.work(order) for order in turns.orders]
            written += [one.output for one in done if one.output is not None]
            turns.take(done)
        assert not turns.orders, "there are few rounds"
        assert sorted(map(id, written)) == sorted(map(id, [*turns.outputs, *turns.discarded]))
        found = [begin for output in turns.outputs for begin in output]
        committed = [one for one in self.log if one.begin in found and one.begin >= cuts[0]]
        clocks = [one.uuid.clock for one in committed if one.uuid.clock]
        assert turns.oldest_clock == (None if state is None else min(clocks, default=None))
        return turns.state, found


def check(log, plan, **options):
    """Runs of `plan` over `log`, and a last one of all that is left: each row comes once. Returns: all states, too."""
    workers, state, rows, states = Workers(log, **options), None, [], []
    ends = [0, *(one.end for one in log)]
    for length, inner, dies in [*plan, (len(log), set(), False)]:
        reached = state.offset if state else 0
        left = [end for end in ends if end >= reached][: length + 1]
        cuts = [cut for n, cut in enumerate(left) if n in (0, len(left) - 1) or n - 1 in inner]
        if len(cuts) < 2:
            continue
        behind, found = workers.run(state, cuts)
        if not dies:
            state, rows = behind, rows + found
            states.append(state)
    wanted, producers = uninterrupted(log)
    assert sorted(rows) == sorted(wanted)
    if state is None:
        assert not log
        return workers, states
    assert state.offset == ends[-1]
    assert {n: (p.last_ack, p.begin) for n, p in state.producers.items()} == {
        p.producer: (p.last_ack, p.begin) for p in producers
    }
    assert state.counts.messages == len(log)
    assert state.counts.quarantined == sum(begin % 5 == 3 for begin in wanted)
    assert TypedState({JOURNAL: state}).unaccounted == {}
    return workers, states


groups = st.sampled_from([1, 3, 1000])


def backfilled(workers, known, begin, end, *, sizes):
    """Offsets of the rows that a backfill makes, and whether a transaction is open after it.

    Args:
        known: states of runs, the last one that of the table.
        sizes: of pieces, and of those that follow.
    """
    log = workers.log
    listed = tuple(
        FragmentListing(Fragment(JOURNAL, one.begin, one.end, backing_store="file:///", mod_time=1))
        for one in log
    )
    journal = snapshot_of(JOURNAL, listed, log[-1].end, begin=0)
    states = [TypedState({JOURNAL: one}) for one in known]
    plan = plan_backfill(states, [journal], {JOURNAL: [(begin, end)]}, task_bytes=5)
    rows, is_open = [], False
    for wanted in plan.ranges:
        turns = BackfillRounds(
            wanted,
            known[-1].offset,
            tasks_of=workers.tasks_of,
            look=lambda orders: [workers.work(order) for order in orders],
            piece_bytes=sizes[0],
            follow_bytes=sizes[1],
            group_messages=workers.group_messages,
            ring_size=workers.ring_size,
        )
        written = []
        while turns.rounds is not None:
            while turns.rounds.orders:
                done = [workers.work(order) for order in turns.rounds.orders]
                written += [one.output for one in done if one.output is not None]
                turns.rounds.take(done)
            turns.go_on()
        assert sorted(map(id, written)) == sorted(map(id, [*turns.outputs, *turns.discarded]))
        found = [begin for output in turns.outputs for begin in output]
        assert (turns.typed, turns.quarantined) == (
            len(found) - sum(begin % 5 == 3 for begin in found),
            sum(begin % 5 == 3 for begin in found),
        )
        rows += found
        is_open = is_open or turns.is_open
    return rows, is_open


@given(
    hostile | honest(), plans, rings, blocks, groups, st.booleans(),
    st.tuples(st.integers(0, 40), st.integers(1, 20)), st.tuples(st.integers(1, 30), st.integers(1, 9)),
    st.data(),
)  # fmt: skip
def test_backfill_makes_the_rows_of_its_range_and_no_others(
    steps, plan, ring, block, group, tells, span, sizes, data
):
    """From any states that are still there, in any pieces, and as far as the table has come."""
    log = laid_out(steps)
    options = {"ring_size": ring, "block": block, "group_messages": group, "tells_messages": tells}
    workers, states = check(log, plan, **options)
    if not log:
        return
    states = states[: data.draw(st.integers(1, len(states)))]
    kept = data.draw(st.sets(st.sampled_from(range(len(states)))))
    known = [states[n] for n in sorted({*kept, len(states) - 1})]
    reached = known[-1].offset
    ends = [0, *(one.end for one in log)]
    begin = ends[min(span[0], len(log) - 1)]
    end = ends[min(ends.index(begin) + span[1], len(log))]
    rows, is_open = backfilled(workers, known, begin, end, sizes=sizes)
    wanted, producers = uninterrupted([one for one in log if one.end <= reached])
    assert sorted(rows) == [row for row in sorted(wanted) if begin <= row < end]
    if begin < reached:
        assert is_open == any(0 <= one.begin < min(end, reached) for one in producers)


@given(hostile, plans, rings, blocks, groups, st.booleans())
def test_rows_of_any_runs_are_those_of_one_read(steps, plan, ring, block, group, tells):
    check(
        laid_out(steps),
        plan,
        ring_size=ring,
        block=block,
        group_messages=group,
        tells_messages=tells,
    )


@given(plain(0, *range(1, 9)), plans, blocks)
def test_plain_journals_are_never_looked_at(steps, plan, block):
    workers, _ = check(
        laid_out(steps), plan, ring_size=5, block=block, group_messages=3, tells_messages=False
    )
    assert set(workers.kinds) <= {Kind.PLAIN}


def rounds_over(log, cuts):
    tasks = tuple(task_of(*span) for span in pairwise(cuts))
    return JournalRounds(
        None, JournalRange(JOURNAL, tasks), tasks_of=lambda *_: (), look=lambda orders: orders
    )


@pytest.mark.parametrize("flags", [OUT, UNKNOWN, CONT])
def test_what_workers_wrote_has_to_be_what_is_committed(flags):
    log = laid_out([(0, 5, flags, 10), (0, 6, OUT, 10)])
    workers = Workers(log, block=9, group_messages=9, ring_size=9, tells_messages=True)
    turns = rounds_over(log, [0, 20])

    def run():
        while turns.orders:
            done = [workers.work(order) for order in turns.orders]
            turns.take([Done(summary=one.summary, messages=one.messages) for one in done])

    with pytest.raises(LakeError, match="nothing was published"):
        run()


@pytest.mark.parametrize("more", [{"typed": 2}, {"quarantined": 1}])
def test_workers_wrote_no_more_than_is_committed(more):
    log = laid_out([(0, 5, OUT, 10)])
    workers = Workers(log, block=9, group_messages=9, ring_size=9, tells_messages=True)
    turns = rounds_over(log, [0, 10])
    with pytest.raises(LakeError, match="nothing was published"):
        turns.take([replace(workers.work(order), **more) for order in turns.orders])


def test_all_that_was_written_for_a_journal_that_is_given_up_was_in_vain():
    """What is kept of plain tasks, what others report, and what came of orders just now."""
    log = laid_out([(0, 1, OUT, 10), (0, 2, CONT, 10), (0, 3, ACK, 10)])
    workers = Workers(log, block=9, group_messages=9, ring_size=9, tells_messages=True)
    turns = rounds_over(log, [0, 10, 20, 30])
    screened = [workers.work(order) for order in turns.orders]
    turns.take(screened)
    assert turns.outputs == [[0]]
    kept = [workers.work(order) for order in turns.orders]
    turns.drop(kept)
    written = [one.output for one in (*screened, *kept) if one.output is not None]
    assert sorted(turns.discarded) == sorted(written)
    assert (turns.outputs, turns.orders) == ([], [])


def test_what_has_to_be_read_again_and_cannot_be_is_reported():
    log = laid_out(TRANSACTIONS)
    workers, (state,) = read_by_runs(log, [0, 20], tells_messages=True)
    turns = JournalRounds(
        state,
        JournalRange(JOURNAL, (task_of(20, 50),)),
        tasks_of=workers.tasks_of,
        look=lambda orders: [Done(failure="the store is gone") for _ in orders],
        ring_size=1,
    )
    done = [workers.work(order) for order in turns.orders]
    with pytest.raises(DataError, match="the store is gone"):
        turns.take(done)


def test_a_new_journal_begins_where_its_range_does():
    log = [one for one in laid_out([(0, 5, OUT, 10), (0, 6, OUT, 10)]) if one.begin]
    workers = Workers(log, block=9, group_messages=9, ring_size=9, tells_messages=True)
    state, rows = workers.run(None, [10, 20])
    assert (state.offset, state.counts.lost_bytes, rows) == (20, 0, [10])


@pytest.mark.parametrize(
    ("state", "lost"), [(None, 30), (JournalState(offset=5), 25), (JournalState(offset=0), 30)]
)
def test_bytes_that_were_given_up_are_counted(state, lost):
    wanted = JournalRange(JOURNAL, (task_of(30, 40),), ((state.offset if state else 0, 30),))
    turns = JournalRounds(state, wanted, tasks_of=lambda *_: (), look=list)
    log = [laid_out([(0, 5, OUT, 30), (0, 6, OUT, 10)])[1]]
    workers = Workers(log, block=9, group_messages=9, ring_size=9, tells_messages=True)
    turns.take([workers.work(order) for order in turns.orders])
    assert (turns.state.offset, turns.state.counts.lost_bytes) == (40, lost)
    assert turns.outputs == [[30]]


def test_first_task_learns_the_former_state():
    log = laid_out([(0, clock, OUT, 10) for clock in (1, 2, 2, 3)])
    workers = Workers(log, block=9, group_messages=9, ring_size=9, tells_messages=False)
    state, _ = workers.run(None, [0, 20])
    workers.kinds.clear()
    behind, rows = workers.run(state, [20, 30, 40])
    assert (rows, len(workers.kinds), behind.counts.duplicates) == ([30], 2, 1)


def test_sequencer_is_given_as_many_messages_as_fit(monkeypatch):
    """Of transactions that cross groups the former messages are still known: no task is looked at twice."""
    sizes = []

    def counted(state, messages, *arguments, **options):
        sizes.append(messages.num_rows)
        return screening.sequence(state, messages, *arguments, **options)

    monkeypatch.setattr(rounds, "sequence", counted)
    steps = [(n % 2, n + 1, CONT, 10) for n in range(10)] + [(0, 20, ACK, 10), (1, 21, ACK, 10)]
    log = laid_out(steps)
    workers = Workers(log, block=9, group_messages=5, ring_size=1, tells_messages=False)
    cuts = [*range(0, 120, 20), 120]
    state, rows = workers.run(None, cuts)
    assert sorted(rows) == [one.begin for one in log[:10]]
    assert state.counts.acks == 2
    assert sizes == [4, 4, 4]
    assert workers.kinds.count(Kind.LOOK) == len(cuts) - 1


def test_task_that_reports_its_messages_at_once_is_not_looked_at():
    log = laid_out([(0, 1, CONT, 10), (0, 2, ACK, 10)])
    workers = Workers(log, block=9, group_messages=9, ring_size=9, tells_messages=True)
    _, rows = workers.run(None, [0, 10, 20])
    assert (rows, workers.kinds) == ([0], [Kind.PLAIN, Kind.PLAIN, Kind.KEEP])


TRANSACTIONS = [
    (0, 1, CONT, 10),
    (1, 1, OUT, 10),
    (0, 2, CONT, 10),
    (1, 2, OUT, 10),
    (0, 3, ACK, 10),
]


def read_by_runs(log, cuts, **more):
    """Workers that have read a journal in such runs, and the state after each."""
    options = {"block": 9, "group_messages": 9, "ring_size": 9, "tells_messages": False} | more
    workers, states = Workers(log, **options), [None]
    for span in pairwise(cuts):
        states.append(workers.run(states[-1], list(span))[0])
    return workers, states[1:]


@pytest.mark.parametrize(
    ("reached", "rows", "is_open"), [(20, [10], True), (30, [10], True), (40, [10], True), (50, [10, 0], False)]
)  # fmt: skip
def test_backfill_follows_transactions_to_where_the_table_has_come(reached, rows, is_open):
    workers, states = read_by_runs(laid_out(TRANSACTIONS), [0, reached])
    assert backfilled(workers, states, 0, 20, sizes=(99, 10)) == (rows, is_open)


def test_what_follows_becomes_no_rows_though_it_is_plain():
    log = laid_out([(0, 1, CONT, 10), (1, 1, OUT, 10), (1, 2, OUT, 10), (0, 2, ACK, 10)])
    workers, states = read_by_runs(log, [0, 40])
    assert backfilled(workers, states, 0, 20, sizes=(99, 10)) == ([10, 0], False)


def test_what_follows_is_read_until_transactions_have_ended():
    log = laid_out([*TRANSACTIONS, *((1, clock, OUT, 10) for clock in range(3, 20))])
    workers, states = read_by_runs(log, [0, log[-1].end])
    looked = []
    workers.work = lambda order, work=workers.work: looked.append(order.task.end) or work(order)
    assert backfilled(workers, states, 0, 20, sizes=(99, 10)) == ([10, 0], False)
    assert max(looked) == 50


def test_rows_outside_of_the_range_are_not_even_written():
    log = laid_out([(0, clock, OUT, 10) for clock in range(1, 10)])
    workers, states = read_by_runs(log, [0, 90])
    written = []
    workers.written = lambda kept, *more, write=workers.written: (
        written.extend(kept) or write(kept, *more)
    )
    assert backfilled(workers, states, 40, 60, sizes=(20, 10)) == ([40, 50], False)
    assert [one.begin for one in written] == [40, 50]


def test_transaction_without_an_end_is_reported():
    log = laid_out(TRANSACTIONS)
    workers, (state,) = read_by_runs(log, [0, 50])
    listed = [
        FragmentListing(Fragment(JOURNAL, *span, backing_store="file:///", mod_time=1))
        for span in ((0, 20), (40, 50))
    ]
    journal = snapshot_of(JOURNAL, listed, 50)
    (wanted,) = plan_backfill(
        [TypedState({JOURNAL: state})], [journal], {JOURNAL: [(0, 20)]}
    ).ranges
    turns = BackfillRounds(
        wanted, 50, tasks_of=workers.tasks_of, look=lambda orders: [*map(workers.work, orders)]
    )
    while turns.rounds.orders:
        turns.rounds.take([workers.work(order) for order in turns.rounds.orders])
    with pytest.raises(LakeError, match="no broker or store holds what follows offset 20"):
        turns.go_on()
