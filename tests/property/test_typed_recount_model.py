"""What the thorough check of completeness takes for committed, against one sequencer that reads the journal from end to end."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st
from typed_logs import between, honest, hostile, laid_out, table_of, uninterrupted

from gazette_platform.client.read.extents import Extent
from gazette_platform.lake.typed.planning.ranges import BackfillRange, Task
from gazette_platform.lake.typed.planning.rounds import Done
from gazette_platform.lake.typed.planning.state import JournalState
from gazette_platform.lake.typed.recount import committed_spans

JOURNAL = "a/journal"


def tasks_of(ends, begin, end):
    cuts = [begin, *(at for at in ends if begin < at < end), end]
    spans = [(low, high) for low, high in itertools.pairwise(cuts) if low < high]
    return tuple(Task((Extent(JOURNAL, low, high),)) for low, high in spans)


def check(log, data):
    """Each message is reported once, in the span that it is in, and if and only if it is committed."""
    ends = [0, *(one.end for one in log)]
    begin, end = sorted([data.draw(st.sampled_from(ends)), data.draw(st.sampled_from(ends))])
    if begin == end:
        return
    cuts = data.draw(st.sets(st.sampled_from(ends)))
    bounds = sorted(cuts)
    wanted = BackfillRange(
        journal=JOURNAL,
        begin=begin,
        end=end,
        start=JournalState(),
        before=tasks_of(bounds, 0, begin),
        tasks=tasks_of(bounds, begin, end),
        follow=tasks_of(bounds, end, ends[-1]),
    )
    looked = []

    def look(tasks):
        looked.extend(tasks)
        return [Done(messages=table_of(between(log, t.begin, t.end)), end=t.end) for t in tasks]

    spans = list(
        committed_spans(
            wanted,
            look,
            lambda low, high: tasks_of(bounds, low, high),
            tasks_at_a_time=data.draw(st.integers(1, 3)),
        )
    )
    rows, _ = uninterrupted(log)
    told = []
    at = begin
    for span in spans:
        assert (span.begin, at) == (at, span.begin)
        found = span.committed.to_pylist()
        assert all(span.begin <= offset < span.end for offset in found)
        told += found
        at = span.end
    assert at == end
    assert sorted(told) == sorted(offset for offset in rows if begin <= offset < end)


@given(honest(), st.data())
def test_producers_that_tick(steps, data):
    check(laid_out(steps), data)


@given(hostile, st.data())
def test_anything_at_all(steps, data):
    check(laid_out(steps), data)
