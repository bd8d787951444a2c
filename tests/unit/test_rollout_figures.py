"""Figures of plays, from histories that are made up."""

from __future__ import annotations

from tests.checker.history import Append, FinalContent, History, Outcome
from tests.rollouts.run import Figures, figures_of

BEGINS = [(10.0, "one"), (20.0, "two"), (30.0, "end")]


def append(number, at, took_s, content, begin, outcome=Outcome.OK, process="writer-01"):
    return Append(
        id=number,
        process=process,
        journal="a/journal",
        content=content,
        invoked_at=at,
        completed_at=at + took_s,
        outcome=outcome,
        begin=begin,
        end=begin + len(content),
    )


def test_figures_by_play_name_what_stalled_failed_and_was_lost():
    history = History(
        appends=[
            append(1, 5.0, 9.0, b"before", 0),
            append(2, 11.0, 0.5, b"two", 6),
            append(3, 19.0, 4.0, b"three", 9),
            append(4, 21.0, 1.0, b"gone", 14),
            append(5, 22.0, 60.0, b"x", 0, Outcome.UNKNOWN),
            append(6, 22.0, 60.0, b"x", 0, Outcome.FAIL),
            append(7, 23.0, 50.0, b"", 0, process="final"),
            append(8, 31.0, 9.0, b"later", 0),
        ],
        finals={"a/journal": FinalContent("a/journal", 0, b"beforetwothreeGONE")},
    )
    assert figures_of(history, BEGINS) == [
        Figures("one", 10.0, 2, 0, 4.0, "a/journal", 8, 0),
        Figures("two", 10.0, 3, 2, 1.0, "a/journal", 4, 4),
    ]


def test_journal_that_cannot_be_read_is_lost():
    history = History(appends=[append(1, 11.0, 1.0, b"content", 0)])
    assert [one.lost_bytes for one in figures_of(history, BEGINS)] == [7, 0]
    assert [one.appends for one in figures_of(history, BEGINS)] == [1, 0]
