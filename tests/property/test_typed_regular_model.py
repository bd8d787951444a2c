"""What is committed of regular producers, by columns, against the sequencer, message by message."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from typed_logs import (
    ACK,
    CONT,
    OUT,
    PRODUCERS,
    UNKNOWN,
    between,
    honest,
    hostile,
    laid_out,
    rings,
    table_of,
)

from gazette_platform.lake.typed.planning import screening
from gazette_platform.lake.typed.planning.columnar_sequencer import Regular, regular_of
from gazette_platform.lake.typed.planning.screening import sequence
from gazette_platform.lake.typed.planning.state import JournalState, Producer


def nothing_of(_, messages):
    """All is left to the sequencer."""
    none = pa.array([], pa.int64())
    return Regular(none, none, pa.array(range(messages.num_rows), pa.int64()), {}, 0, 0, 0)


def screened(log, state, end, ring_size):
    told = []

    def reread(begin, stop):
        return table_of(between(log, begin, stop))

    messages = table_of(between(log, state.offset, end))
    found = sequence(state, messages, reread, end=end, ring_size=ring_size, warn=told.append)
    return found, sorted(told)


def compare(steps, cuts, ring_size):
    """Ranges one after the other, each by both ways: rows, their order, states, counts and reports."""
    log = laid_out(steps)
    ends = [0, *(one.end for one in log)]
    state = JournalState()
    for end in sorted({ends[cut % len(ends)] for cut in cuts} | {ends[-1]}):
        found, told = screened(log, state, end, ring_size)
        with patch.object(screening, "regular_of", nothing_of):
            slowly, meant = screened(log, state, end, ring_size)
        assert told == meant
        assert found.begin.to_pylist() == slowly.begin.to_pylist()
        assert found.row.to_pylist() == slowly.row.to_pylist()
        assert found.reread == slowly.reread
        assert found.state == slowly.state
        state = found.state


cuts = st.lists(st.integers(0, 40), max_size=4)


@given(hostile, cuts, rings)
def test_whatever_producers_do_it_is_what_the_sequencer_says(steps, cuts, ring_size):
    compare(steps, cuts, ring_size)


@given(honest(), cuts, rings)
def test_so_it_is_of_producers_that_behave(steps, cuts, ring_size):
    compare(steps, cuts, ring_size)


def decided(*steps, known=None):
    """Of messages `(producer, clock, flags)`, rows that are kept, and those that are left to the sequencer."""
    log = laid_out([(*step, 1) for step in steps])
    found = regular_of(known or {}, table_of(log).combine_chunks())
    return sorted(found.kept.to_pylist()), found.others.to_pylist()


def test_repeated_transactions_and_messages_need_no_sequencer():
    one = [(0, 1, OUT), (1, 5, CONT), (0, 2, CONT), (1, 6, CONT), (0, 3, ACK), (1, 7, ACK)]
    assert decided(*one) == ([0, 1, 2, 3], [])
    # Appended once more, ACK and all; a span that is cut off waits.
    twice = [*one, (0, 2, CONT), (0, 3, ACK), (1, 8, CONT), (1, 8, CONT), (2, 0, ACK)]
    assert decided(*twice) == ([0, 1, 2, 3, 10], [])


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param([(0, 3, CONT), (0, 4, OUT)], id="a transaction that is given up"),
        pytest.param([(0, 3, CONT), (0, 3, OUT)], id="a message that gives one up, and goes back"),
        pytest.param([(0, 3, CONT), (0, 2, ACK)], id="a transaction that is taken back"),
        pytest.param([(0, 1, ACK)], id="an ACK that goes back"),
        pytest.param([(0, 3, UNKNOWN)], id="flags that mean nothing"),
    ],
)
def test_producers_that_do_otherwise_are_left_to_the_sequencer_and_they_alone(odd):
    steps = [(0, 2, OUT), (1, 5, CONT), *odd, (1, 6, ACK)]
    rows = [0, *range(2, 2 + len(odd))]
    assert decided(*steps) == ([1], rows)


def test_what_ends_a_transaction_that_was_open_is_left_to_the_sequencer_and_no_more():
    known = {PRODUCERS[0]: Producer(1, 0, 2)}
    steps = [(0, 4, CONT), (1, 7, OUT), (0, 5, ACK), (0, 6, CONT), (0, 7, ACK), (0, 7, ACK)]
    assert decided(*steps, known=known) == ([1, 3], [0, 2])
    # It restarted: its producer was thought to be further.
    known = {PRODUCERS[0]: Producer(9, 0, 2)}
    assert decided(*steps, known=known) == ([1], [0, 2, 3, 4, 5])
