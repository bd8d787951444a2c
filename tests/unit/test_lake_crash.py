"""The harness of `make lake-crash` itself: what it plays and expects, and that it finds what is planted.

Servers are stand-ins here. Registrars are processes all the same, and killed for real.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from lake_stand_ins import ask_files, stand_in_world

from tests.lake_crash.oracle import Numbers, content, expected, listed, numbers, pieces
from tests.lake_crash.plan import MODES, THEMES, Case, Fault, Live, Store, Tick, make_case
from tests.lake_crash.runner import LakeCrashConfig, run_lake_crash
from tests.lake_crash.verdict import (
    EXACT,
    RAW,
    Account,
    Told,
    Verdict,
    judge_events,
    judge_rows,
)

STAND_INS = "tests.benches.lake_stand_ins:install"
CASES = range(4 * len(THEMES))


# ------------------------------------------------------------------------- plan


def test_a_plan_follows_from_its_seed():
    assert [make_case(7, n) for n in CASES] == [make_case(7, n) for n in CASES]
    assert make_case(7, 0) != make_case(8, 0)


def test_all_themes_stores_and_modes_have_their_turn():
    cases = [make_case(7, n) for n in CASES]
    assert Counter(case.theme for case in cases) == dict.fromkeys(THEMES, 4)
    assert {case.stores[0] for case in cases} == {"file", "s3"}
    assert {case.stores for case in cases if case.theme == "cutover"} >= {("file", "s3")}
    ticks = [step for case in cases for step in case.steps if isinstance(step, Tick)]
    assert {tick.fault.mode for tick in ticks if tick.fault is not None} == set(MODES)
    assert {kind for n in CASES for kind in make_case(7, n, has_s3=False).stores} == {"file"}


@pytest.mark.parametrize("theme", ["spanning", "twin"])
def test_in_object_stores_no_file_takes_the_place_of_one_that_nobody_knows(theme):
    """The sensor lists no folders there, so that the file would stay in queries."""
    cases = [make_case(7, number) for number in CASES]
    for case in (c for c in cases if c.theme == theme and c.stores == ("s3",)):
        known, stored = [], []
        for step in case.steps:
            if isinstance(step, Store):
                within = [s for s in stored if step.begin <= s.begin and s.end <= step.end]
                assert all(s in known for s in within if s.journal == step.journal)
                stored.append(step)
            elif isinstance(step, Tick) and step.fault is None:
                known = list(stored)


def test_each_call_of_a_tick_is_the_last_one_in_two_cases():
    first = THEMES.index("each call")
    cases = [make_case(7, number) for number in (first, first + len(THEMES))]
    steps = [step for case in cases for step in case.steps if isinstance(step, Tick)]
    lives = {step.fault.at for step in steps if step.ticks == 1}
    assert lives == set(range(1, 36))


@pytest.mark.parametrize("number", CASES)
def test_a_history_leaves_no_hole_and_appends_where_all_ends(number):
    """Else records would be missing for ever, or a broker be asked to append over a fragment."""
    case = make_case(7, number)
    for journal in range(case.journals):
        reach, stored = 0, set()
        for piece in (p for p in pieces(case) if p.journal == journal):
            stored |= set(range(piece.begin, piece.end))
            reach = max(reach, piece.end)
        assert stored == set(range(reach))


# ----------------------------------------------------------------------- oracle


def case_of(*steps, theme="plain"):
    return Case(0, theme, ("file",), steps)


def test_what_others_hold_is_not_expected_twice():
    case = case_of(
        Store(0, 0, 2, "05"),
        Store(0, 2, 4, "06"),
        Live(0, 1),
        Store(0, 2, 6, "07"),
        Store(1, 0, 1, "05"),
        Store(1, 0, 1, "06"),
    )
    assert listed(pieces(case)) == {(0, 0, 2), (0, 2, 6), (1, 0, 1)}
    found = expected(case, {(0, 0, 2): "05", (0, 2, 6): "07", (1, 0, 1): "06"})
    assert found.committed == {0: numbers([0, 1, 2, 3, 4, 5]), 1: numbers([0])}
    assert found.raw == {
        (0, "05"): numbers([0, 1]),
        (0, "07"): numbers([2, 3, 4, 5]),
        (1, "06"): numbers([0]),
    }


def test_what_cannot_be_moved_is_expected_twice():
    case = case_of(
        Store(0, 0, 2, "05"), Store(0, 2, 4, "05"), Store(0, 1, 4, "06"), theme="partial"
    )
    found = expected(case, {})
    assert found.committed[0] == Numbers(4, 4, 4_000_006)
    assert found.raw == {(0, "05"): numbers([0, 1, 2, 3]), (0, "06"): numbers([1, 2, 3])}
    assert found.is_overlapping


def test_records_have_one_length():
    assert {len(content(n, n + 1)) for n in (0, 9, 10, 99_999)} == {15}


# ---------------------------------------------------------------------- verdict

ROWS = numbers([0, 1, 2])
GOOD = {("t", kind, 0, "05"): ROWS for kind in (RAW, EXACT)}


def judged(answer, *, engine="trino"):
    verdict = Verdict()
    wanted = expected(case_of(Store(0, 0, 3, "05")), {(0, 0, 3): "05"})
    judge_rows(verdict, "t", wanted, {engine: answer})
    return verdict


@pytest.mark.parametrize("engine", ["trino", "duckdb"])
def test_right_answers_are_ok(engine):
    verdict = judged(GOOD | {("other", RAW, 0, "05"): numbers([7])}, engine=engine)
    assert verdict.is_ok, verdict
    assert verdict.summary(7, 1) == (
        "lake-crash: ok seed=7 cases=1 committed=3 raw=3 events_lost=0 lost=0 doubled=0"
    )


@pytest.mark.parametrize(
    ("kind", "rows", "lost", "doubled"),
    [
        (RAW, numbers([0, 1]), 1, 0),
        (EXACT, numbers([0, 1]), 1, 0),
        (RAW, numbers([0, 1, 2, 2]), 0, 1),
        (EXACT, numbers([0, 1, 2, 2]), 0, 1),
        (RAW, numbers([0, 1, 1]), 1, 0),
        (RAW, numbers([0, 1, 3]), 0, 0),
        (EXACT, Numbers(), 3, 0),
    ],
    ids=["lost", "lost in the view", "twice", "twice in the view", "both", "another", "none"],
)
def test_wrong_answers_are_not(kind, rows, lost, doubled):
    verdict = judged(GOOD | {("t", kind, 0, "05"): rows})
    assert not verdict.is_ok
    assert (verdict.lost, verdict.doubled) == (lost, doubled)
    assert "part=0/hour=05" in verdict.problems[-1]
    assert verdict.summary(7, 1).startswith("lake-crash: FAILED seed=7 cases=1 committed=3 raw=")


def test_rows_in_another_hour_are_wrong():
    verdict = judged({("t", kind, 0, "06"): ROWS for kind in (RAW, EXACT)})
    assert (verdict.lost, verdict.doubled) == (3, 3)


KEY = "part=0/hour=05"
FIRST = Told("0-30", 2, 2)
LAST = Told("0-45", 3, 1)


def told(*events, rows=3, partitions=(KEY,)):
    verdict = Verdict()
    wanted = expected(case_of(Store(0, 0, 3, "05")), {(0, 0, 3): "05"})
    account = Account(rows, 2, 45, "0-45")
    judge_events(
        verdict, "t", wanted, {KEY: account}, {KEY: events} if events else {}, frozenset(partitions)
    )
    return verdict


def test_events_that_add_up_are_ok():
    assert told(FIRST, LAST).is_ok
    moved = Told("0-45", 5, 3), Told("0-45", 3, None)
    assert told(FIRST, *moved).is_ok


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([], "nothing, where it has 3 rows"),
        ([FIRST], "at last, where it has 3 rows"),
        ([FIRST, Told("0-45", 3, 2)], "which makes 3"),
        ([FIRST, LAST, Told("0-45", 3, 0)], "the same twice"),
        ([FIRST, Told("0-45", 4, 2)], "at last, where it has 3 rows"),
    ],
    ids=["none", "not the last", "sum", "twice", "other number"],
)
def test_events_that_do_not_are_lost(events, problem):
    verdict = told(*events)
    assert verdict.events_lost == 1
    assert problem in verdict.problems[0]


def test_accounts_and_partitions_are_compared_too():
    assert "the account of part=0/hour=05 has 4 rows" in told(FIRST, LAST, rows=4).problems[0]
    assert told(FIRST, LAST, partitions=()).problems == [f"t: Dagster has no partition {KEY}"]


def test_what_was_dropped_was_told_to_hold_nothing():
    events = {KEY: [FIRST, Told("empty", 0, None)]}
    verdict = Verdict()
    judge_events(verdict, "t", expected(case_of(), {}), {}, events, frozenset())
    assert verdict.is_ok
    judge_events(verdict, "t", expected(case_of(), {}), {}, {KEY: [FIRST]}, frozenset())
    assert verdict.events_lost == 1


# -------------------------------------------------------------------- registrars


def run(folder, *cases, plant=""):
    said = []
    with stand_in_world(folder / "world") as world:
        config = LakeCrashConfig(
            cases=cases,
            engines={"files": ask_files},
            plant=",".join(filter(None, [STAND_INS, plant])),
            settle_s=1.0 if plant else 180.0,  # some never come to rest
        )
        result = run_lake_crash(config, world, say=said.append, show=lambda text: None)
    return result, "\n".join(said)


def simple(theme, number, *faults):
    """A short case with faults of one's own."""
    case = make_case(7, THEMES.index(theme), has_s3=False)
    ticks = iter(faults)
    steps = [
        replace(step, fault=next(ticks, None)) if isinstance(step, Tick) else step
        for step in case.steps
    ]
    return replace(case, number=number, steps=tuple(steps))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_registrars_are_killed_where_it_is_planned(tmp_path):
    faults = [Fault("killed before", 3), Fault("killed after", 12), Fault("broken after", 9)]
    result, said = run(tmp_path, simple("plain", 0, *faults))
    assert result.is_ok, said
    assert result.faults == 3
    (facts,) = result.facts
    lives = "\n".join(facts.calls).split("\n\n")
    ends = [life.splitlines() for life in lives if "! " in life]
    begun = [[name for name in life if not name.endswith(".")] for life in ends]
    at = [next(n for n, name in enumerate(life) if name.startswith("! ")) for life in begun]
    assert at == [3, 12, 9]
    modes = [name.split()[1:3] for life in ends for name in life if name.startswith("! ")]
    assert modes == [["killed", "before"], ["killed", "after"], ["broken", "after"]]
    # Nothing comes after a kill, and after an answer that was lost the sensor goes on.
    assert [life[-1].startswith("! ") for life in ends] == [True, True, False]
    assert sum(result.gaps.values()) == 3


PLANTS = {
    "tell_nothing_again": ("plain", "nothing, where it has"),
    "count_again": ("cursor lost", "the account of"),
    "tell_all_again": ("plain", "the same twice"),
    "hide_nothing": ("partial", "exact: part="),
    "jump_holes": ("late", "the account of"),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_found(tmp_path, plant):
    theme, found = PLANTS[plant]
    # The first of them between accounts and events.
    case = simple(theme, 0, Fault("killed after", 20))
    result, said = run(tmp_path, case, plant=f"tests.benches.lake_plants:{plant}")
    assert not result.is_ok
    assert found in said
