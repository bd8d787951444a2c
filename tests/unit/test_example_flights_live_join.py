"""The example flights-live: what its tour takes for right, and what for wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.flights_live import tables
from examples.flights_live.tables import Told
from examples.flights_live.tour import QUESTIONS, Report

TOLD = Told(
    raw_lines=14,
    raw_flights=12,
    typed=10,
    planes_wrong=0,
    rollups={"lines": 12, "planes": 10, "routes": 10},
)


def report(**changes):
    right = {
        "played": 10,
        "committed": 10,
        "appended": 12,
        "trino": TOLD,
        "spark": TOLD,
        "agreed": list(QUESTIONS),
    }
    return Report(**right | changes)


def both(**changes):
    told = replace(TOLD, **changes)
    return {"trino": told, "spark": told}


def test_report_says_what_came_of_it():
    assert report().is_ok
    assert report().line() == (
        "flights-live: ok played=10 enriched=10 taken_back=2 trino=10 spark=10 rollups=3"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"committed": 9},
        {"committed": 11},
        {"trino": None, "spark": None},
        {"spark": replace(TOLD, typed=9)},
        {"agreed": list(QUESTIONS)[:1]},
        both(typed=9),
        both(typed=11),
        both(raw_flights=11),
        both(planes_wrong=1),
        both(rollups={"lines": 12, "planes": 9, "routes": 10}),
        both(rollups={"lines": 10, "planes": 10, "routes": 10}),
        both(rollups={}),
    ],
)
def test_missing_or_doubled_rows_are_not_a_success(changes):
    wrong = report(**changes)
    assert not wrong.is_ok
    assert wrong.line().startswith("flights-live: FAILED ")


def test_engines_that_differ_in_one_answer_do_not_agree():
    def engine(last):
        def ask(sql):
            if "flights_live.enriched" in sql:
                return [(14, 12)]
            if sql == tables.load("typed"):
                return [(10, 0)]
            if sql == tables.load("rollups"):
                return [("lines", 3, 12), ("planes", 2, 10), ("routes", 5, 10)]
            return [("EWR", True, 7, last if sql == tables.load("late_planes") else 1.0)]

        return ask

    for spark, expected in ((engine(3.5), True), (engine(3.6), False)):
        compared = Report(played=10, committed=10, appended=12)
        compared.compare(engine(3.5), spark)
        assert compared.is_ok is expected
