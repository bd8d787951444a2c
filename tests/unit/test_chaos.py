"""The pure parts of a chaos run: plans, payloads, unavailability, and who is to blame."""

from __future__ import annotations

import math

import pytest

from gazette_platform.testing.waiting import VARIABLE
from tests.chaos import ALL_KINDS, WorkloadConfig, make_plan
from tests.chaos.availability import Gap, gaps_of, longest_by_kind
from tests.chaos.plan import FaultKind
from tests.chaos.verdict import ChaosResult, Evidence, reasons
from tests.chaos.writers import WriterKind, kind_of
from tests.checker import Anomaly, Report
from tests.checker.history import Append, History, Outcome
from tests.harness import Stall, starved_s

ZONES = {"broker-1": "a", "broker-2": "a", "broker-3": "b", "broker-4": "b", "broker-5": "c"}
JOURNALS = ("a/one", "a/two", "a/three")
PLAN_7 = [
    "    3.0 s  aged-holders",
    "   21.1 s  one-way broker-3 for 8.8 s",
    "   28.2 s  spool-full broker-4 for 2.4 s",
]


def plan(seed=7, duration_s=600.0, kinds=ALL_KINDS, lease_s=6.0, replication=3):
    return make_plan(
        seed,
        duration_s=duration_s,
        zones=ZONES,
        lease_s=lease_s,
        replication=replication,
        journals=JOURNALS,
        kinds=kinds,
    )


def test_plan_follows_from_the_seed():
    assert plan() == plan()
    assert plan(seed=8) != plan()
    # A seed that was reported must find the same faults in a year.
    assert [str(fault) for fault in plan()[:3]] == PLAN_7


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("duration_s", [1.0, 60.0, 200.0])
def test_short_plan_has_every_kind(seed, duration_s):
    assert {fault.kind for fault in plan(seed, duration_s)} == set(ALL_KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_pauses_outlast_the_lease_and_hiccups_do_not(seed):
    for fault in plan(seed):
        if fault.kind is FaultKind.PAUSE:
            assert fault.duration_s >= 7.2
        if fault.kind is FaultKind.ETCD_AWAY:
            assert fault.duration_s >= 6.6
        if fault.kind in (FaultKind.ETCD_RESTART, FaultKind.HICCUP):
            assert fault.duration_s <= 2.4
        if fault.kind is FaultKind.ETCD_RESTART:
            assert fault.targets == ()


# ------------------------------------------------------------------ availability


def append(invoked_at, completed_at, outcome="ok", journal="a/journal", error=""):
    return Append(
        id=0,
        process="w",
        journal=journal,
        content=b"x",
        invoked_at=invoked_at,
        completed_at=completed_at,
        outcome=Outcome(outcome),
        error=error,
    )


def test_gap_lasts_from_the_first_attempt_to_the_next_success():
    history = History(
        appends=[
            append(0, 0.1),
            append(1, 2, "unknown"),
            append(2, 3, "fail", error="NotAllowed"),
            append(3, 5),
            append(6, 6.1),
        ]
    )
    assert gaps_of(history) == [Gap("a/journal", 1, 5)]


def test_refusal_of_the_request_is_not_a_gap():
    history = History(appends=[append(0, 0.1, "fail", error="RegisterMismatch: x"), append(9, 9.1)])
    assert gaps_of(history) == []


def test_journal_that_never_came_back_is_unavailable_to_the_end():
    history = History(
        appends=[append(1, 2, "unknown"), append(3, math.inf, "unknown"), append(8, 9, journal="b")]
    )
    assert gaps_of(history) == [Gap("a/journal", 1, 9), Gap("b", 8, 9)]


def test_longest_gap_of_each_kind():
    gaps = [Gap("a", 1, 2), Gap("a", 11, 14), Gap("b", 12, 13), Gap("b", 22, 22.5)]
    longest = longest_by_kind(gaps, [(10.0, "kill"), (20.0, "drain"), (30.0, "pause")])
    assert longest == {"none": gaps[0], "kill": gaps[1], "drain": gaps[3]}


def test_starved_time_is_counted_once():
    stalls = [
        Stall("machine", 1, 3),
        Stall("clients", 2, 4),
        Stall("machine", 6, 7),
        Stall("machine", 20, 30),
    ]
    assert starved_s(stalls, 0, 10) == 4
    assert starved_s(stalls, 2.5, 6.5) == 2
    assert starved_s([], 0, 10) == 0


# ------------------------------------------------------------------ the verdict

TOOK_PART = dict.fromkeys(
    [
        *map(kind_of, range(16)),
        *("tail", "batch", "direct", "http"),
        *("flushes", "spec changes", "suspensions", "head resets", "prunes"),
    ],
    1,
)


def evidence(**fields):
    defaults = {
        "duration_s": 60.0,
        "lease_s": 6.0,
        "workload": WorkloadConfig(),
        "planned": [FaultKind.KILL, FaultKind.RESET],
        "inflicted": [FaultKind.RESET, FaultKind.KILL],
        "took_part": TOOK_PART,
    }
    return Evidence(**(defaults | fields))


def why(report=None, longest=None, stalls=(), **fields):
    report = report or Report(operations=2000, appends_ok=1000, bytes_read=1)
    return reasons(evidence(**fields), report, longest or {}, stalls)


def test_run_that_did_something_and_showed_nothing_is_ok():
    assert why() == []
    assert why(longest={"kill": Gap("a", 0, 20)}) == []


def without(*names):
    return {who: count for who, count in TOOK_PART.items() if who not in names}


def test_long_run_has_a_streamed_append_that_ended_well():
    long = Report(operations=2000, appends_ok=1000, bytes_read=1)
    (reason,) = why(report=long, duration_s=120.0)
    assert reason == "there were no streamed appends"
    assert why(report=long, duration_s=120.0, took_part=TOOK_PART | {"streamed appends": 1}) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"trouble": "a journal takes no appends"}, "a journal takes no appends"),
        ({"findings": ["a flush lied"]}, "a flush lied"),
        ({"ended": ["broker-1 ended by itself"]}, "broker-1 ended by itself"),
        ({"unforeseen": ["broker-1 logged: KeyError"]}, "broker-1 logged: KeyError"),
        ({"planned": [], "inflicted": []}, "there were no faults"),
        ({"inflicted": [FaultKind.KILL]}, "planned, and never begun: reset"),
        ({"report": Report(appends_ok=50, bytes_read=1)}, "only 50 appends were acknowledged"),
        ({"report": Report(appends_ok=1000, bytes_read=0)}, "readers got nothing"),
        ({"took_part": without("direct")}, "direct readers got nothing"),
        ({"took_part": without("flushes")}, "there were no flushes"),
        ({"took_part": without(WriterKind.BATCHING)}, "no writes of an append writer"),
        ({"longest": {"kill": Gap("a/b", 10, 100)}}, "a/b took no appends for 90.0 s (kill)"),
        (
            {
                "report": Report(
                    appends_ok=1000, bytes_read=1, anomalies=[Anomaly("lost-write", "a", "b")]
                )
            },
            "1 anomalies",
        ),
    ],
)
def test_run_that_proved_nothing_or_too_much_is_not_ok(monkeypatch, fields, text):
    monkeypatch.setenv(VARIABLE, "1")  # which limits follow
    (reason,) = why(**fields)
    assert text in reason


def test_what_cannot_be_here_is_excused():
    left_out = {FaultKind.KILL: "why"}
    assert why(inflicted=[FaultKind.RESET], left_out=left_out) == []
    stalls = [Stall("machine", 20, 60)]
    assert why(longest={"kill": Gap("a", 10, 100)}, stalls=stalls) == []


def result(**fields):
    defaults = {
        "seed": 7,
        "faults": 3,
        "report": Report(operations=10, appends_ok=9),
        "longest": {"drain": Gap("a", 1, 2.25)},
        "stalls": (),
        "folder": None,
    }
    return ChaosResult(**(defaults | fields))


def test_summary_says_how_it_went():
    line = "seed=7 ops=10 faults=3 anomalies=0 longest_unavailable_s=1.2"
    assert result().summary == f"chaos: ok {line}"
    failed = result(reasons=["readers got nothing\nat all", "and so on"])
    assert not failed.is_ok
    assert failed.summary == f"chaos: FAILED {line}: readers got nothing (and 1 more)"
