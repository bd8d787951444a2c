"""Screening of a journal in runs and tasks, against one sequencer that reads it from end to end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from hypothesis import given, strategies as st
from typed_logs import (
    ACK,
    CONT,
    OUT,
    PRODUCERS,
    between,
    blocks,
    hostile,
    laid_out,
    parts_of,
    plain,
    plans,
    rings,
    table_of,
    uninterrupted,
)

from gazette_platform.lake.typed.planning.screening import (
    Again,
    Plain,
    Sequenced,
    TaskScreen,
    TaskSummary,
    join,
    sequence,
)
from gazette_platform.lake.typed.planning.state import JournalState

if TYPE_CHECKING:
    from gazette_platform.message import Envelope


@dataclass
class Runs:
    """Runs over a journal: what a driver and its tasks do, with nothing that is read or written."""

    log: list[Envelope]
    ring_size: int = 8
    block: int = 3
    ways: Counter = field(default_factory=Counter)
    reread: list[tuple[int, int]] = field(default_factory=list)

    def task(self, begin, end, known=None):
        """Rows that a task keeps, by offset, and its summary, which has been sent through bytes."""
        screen, messages, kept = TaskScreen(begin, known), between(self.log, begin, end), []
        for first in range(0, len(messages), self.block):
            block = messages[first : first + self.block]
            mask = screen.take(parts_of(block))
            masked = [True] * len(block) if mask is None else mask.to_pylist()
            kept += [one.begin for one, keeps in zip(block, masked, strict=True) if keeps]
        return kept, TaskSummary.parse(screen.summary(end).dump())

    def run(self, state, cuts):
        """One run over tasks between `cuts`; the first is the state's offset."""
        spans = list(pairwise(cuts))
        done = [self.task(begin, end) for begin, end in spans]
        verdict = join(state, [summary for _, summary in done])
        if isinstance(verdict, Again):
            self.ways["again"] += 1
            for number, known in verdict.known.items():
                done[number] = self.task(*spans[number], known)
            verdict = join(state, [summary for _, summary in done])
        assert not isinstance(verdict, Again), "reported once, a task keeps nothing that is known"
        plain = verdict.first if isinstance(verdict, Sequenced) else len(done)
        rows = [begin for kept, _ in done[:plain] for begin in kept]
        if isinstance(verdict, Plain):
            self.ways["plain"] += 1
            return verdict.state, rows
        self.ways["sequenced"] += 1
        return self.in_order(verdict.state, rows, cuts[-1])

    def in_order(self, state, rows, end):
        messages = table_of(between(self.log, state.offset, end))

        def reread(begin, stop):
            self.reread.append((begin, stop))
            return table_of(between(self.log, begin, stop))

        found = sequence(
            state, messages, reread, end=end, ring_size=self.ring_size, warn=lambda _: None
        )
        # Rows and offsets say the same.
        begins = messages.column("begin").to_pylist()
        for row, begin in zip(found.row.to_pylist(), found.begin.to_pylist(), strict=True):
            assert begin < state.offset if row is None else begins[row] == begin
        return found.state, rows + found.begin.to_pylist()


def waiting_of(log, state, ends):
    """How many messages wait in each producer's open transaction, by where runs ended: each knows of its own alone."""
    found = {}
    for name, one in state.producers.items():
        span = [
            message
            for message in log
            if message.uuid.producer == name and message.uuid.flags == CONT
            if one.begin >= 0 and message.begin >= one.begin and message.uuid.clock > 0
        ]
        found[name] = 0
        for begin, end in pairwise(ends):
            newest = one.last_ack
            for clock in (m.uuid.clock for m in span if begin <= m.begin < end):
                found[name] += clock > newest
                newest = max(newest, clock)
    return found


def check(log, plan, **options):
    """All runs of `plan` over `log`; their rows and state are those of one sequencer. Returns: all states."""
    runs, state, rows = Runs(log, **options), JournalState(), []
    states = [state]
    ends = [0, *(one.end for one in log)]
    for length, tasks, dies in plan:
        cuts = [e for e in ends if e >= state.offset][: length + 1]
        inner = cuts[1:-1]
        cuts = [cuts[0], *(c for n, c in enumerate(inner) if n in tasks), *cuts[1:][-1:]]
        behind, found = runs.run(state, cuts)
        if not dies:
            state, rows = behind, rows + found
            states.append(state)
    behind, found = runs.run(
        state, [e for e in ends if e >= state.offset][:: max(1, len(ends))] + ends[-1:]
    )
    state, rows = behind, rows + found
    states.append(state)
    wanted, producers = uninterrupted(log)
    assert rows == wanted
    assert len(rows) == len(set(rows))
    assert state.offset == ends[-1]
    assert {n: (p.last_ack, p.begin) for n, p in state.producers.items()} == {
        p.producer: (p.last_ack, p.begin) for p in producers
    }
    counts = state.counts
    assert (counts.messages, counts.committed) == (len(log), len(rows))
    assert counts.acks == sum(m.uuid.flags == ACK and m.uuid.clock > 0 for m in log)
    assert counts.waiting == sum(p.waiting for p in state.producers.values())
    waiting = waiting_of(log, state, [one.offset for one in states])
    assert {name: one.waiting for name, one in state.producers.items()} == waiting
    assert min(counts.duplicates, counts.taken_back, counts.waiting) >= 0
    return runs, states


@given(hostile, plans, rings, blocks)
def test_rows_of_any_runs_are_those_of_one_read(steps, plan, ring_size, block):
    check(laid_out(steps), plan, ring_size=ring_size, block=block)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=40), plans, blocks)
def test_rising_clocks_take_the_plain_way_and_nothing_is_done_again(ticks, plan, block):
    clocks = [0, 0, 0]
    steps = []
    for who, step in ticks:
        clocks[who] += 1 + step
        steps.append((who, clocks[who], OUT, 1))
    runs, _ = check(laid_out(steps), plan, block=block)
    assert set(runs.ways) == {"plain"}
    assert runs.ways["plain"] == len(plan) + 1


@given(plain(0, 1, 2, 3, 4, 5, 2**63 - 1, 2**63, 2**64 - 1))
def test_screen_by_columns_keeps_what_it_would_one_by_one(steps):
    log = laid_out(steps)
    whole = TaskScreen(0, {PRODUCERS[0]: 3})
    mask = whole.take(parts_of(log))
    single, kept = TaskScreen(0, {PRODUCERS[0]: 3}), []
    for one in log:
        found = single.take(parts_of([one]))
        kept.append(found is None or found[0].as_py())
    assert (mask is None and all(kept)) or (mask is not None and mask.to_pylist() == kept)
    assert whole.summary(9) == single.summary(9)
    assert whole.summary(9).duplicates == (0 if mask is None else pc.sum(pc.invert(mask)).as_py())
