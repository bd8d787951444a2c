"""The harness of `make lake-crash` itself: what it plays and expects, and that it finds what is planted.

What kills processes is in extended/test_lake_crash_planted.py.
"""

from __future__ import annotations

from collections import Counter

import pytest

from gazette_platform.errors import SetupError
from tests.benches.seeded_cases import numbers_of
from tests.lake_crash.oracle import (
    Numbers,
    Piece,
    expected,
    gone,
    listed,
    numbers,
    pieces,
)
from tests.lake_crash.plan import (
    MODES,
    THEMES,
    Case,
    Live,
    Prune,
    Store,
    Tick,
    make_case,
)
from tests.lake_crash.verdict import (
    EXACT,
    RAW,
    Account,
    Told,
    Verdict,
    judge_accounts,
    judge_events,
    judge_rows,
    unrepaired,
)

CASES = range(4 * len(THEMES))


# ------------------------------------------------------------------------- plan


def test_all_themes_stores_and_modes_have_their_turn():
    cases = [make_case(7, n) for n in CASES]
    assert Counter(case.theme for case in cases) == dict.fromkeys(THEMES, 4)
    assert {case.stores[0] for case in cases} == {"file", "s3", "lying"}
    assert {case.stores for case in cases if case.theme == "cutover"} == {
        ("file", "s3"),
        ("s3", "file"),
        ("file", "file"),
        ("s3", "s3"),
    }
    ticks = [step for case in cases for step in case.steps if isinstance(step, Tick)]
    assert {tick.fault.mode for tick in ticks if tick.fault is not None} == set(MODES)


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


def test_what_was_pruned_is_not_expected():
    case = case_of(
        Store(0, 0, 2, "05"),
        Store(0, 2, 4, "05"),
        Store(1, 0, 2, "05"),
        Live(0, 1),
        Prune(0, 0, 3),
        Prune(1, 0, 9),
        Store(0, 5, 6, "05"),
        Prune(0, 4, 9),
    )
    assert gone(case) == [Piece(0, 0, 2, "05"), Piece(0, 4, 5, "09")]
    found = expected(case, {(0, 2, 4): "05", (1, 0, 2): "05", (0, 5, 6): "05"})
    assert found.pruned == 3
    assert found.committed == {0: numbers([2, 3, 5]), 1: numbers([0, 1])}
    assert found.raw == {(0, "05"): numbers([2, 3, 5]), (1, "05"): numbers([0, 1])}


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
HOUR = "05"
FIRST = Told("0-30", 2, 2)
LAST = Told("0-45", 3, 1)


def told(*events, partitions=(HOUR,)):
    verdict = Verdict()
    accounts = {HOUR: Account(3, 2, 45, "0-45")}
    judge_events(verdict, "t", accounts, {HOUR: events} if events else {}, frozenset(partitions))
    return verdict


def test_events_that_add_up_are_ok():
    assert told(FIRST, LAST).is_ok
    moved = Told("0-45", 5, 3), Told("0-45", 3, -2, is_repair=True)
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


def test_partitions_are_compared_too():
    assert told(FIRST, LAST, partitions=()).problems == [f"t: Dagster has no partition {HOUR}"]
    more = told(FIRST, LAST, partitions=(HOUR, "0/05"))
    assert more.problems == ["t: Dagster still has partition 0/05"]
    assert more.events_lost == 1


def test_times_are_sums_of_accounts():
    wanted = expected(case_of(Store(0, 0, 3, "05")), {(0, 0, 3): "05"})
    verdict, account = Verdict(), Account(3, 2, 45, "0-45")
    judge_accounts(verdict, "t", wanted, {KEY: account}, {HOUR: account})
    assert verdict.is_ok
    judge_accounts(verdict, "t", wanted, {KEY: account}, {HOUR: account._replace(rows=7)})
    assert verdict.problems == ["t: hour 05 has 7 rows, of [3]"]


def test_dropped_partition_was_reported_empty():
    events = {HOUR: [FIRST, Told("empty", 0, -2)]}
    verdict = Verdict()
    judge_events(verdict, "t", {}, events, frozenset())
    assert verdict.is_ok
    judge_events(verdict, "t", {}, {HOUR: [FIRST]}, frozenset())
    assert verdict.events_lost == 1


def test_accounts_are_compared_with_what_is_expected():
    wanted = expected(case_of(Store(0, 0, 3, "05")), {(0, 0, 3): "05"})

    def problems(**accounts):
        verdict = Verdict()
        found = {f"part=0/hour={k[1:]}": a for k, a in accounts.items()}
        times = {k[1:]: a for k, a in accounts.items()}
        judge_accounts(verdict, "t", wanted, found, times)
        return verdict.problems

    good, empty = Account(3, 1, 45, "0-45"), Account(0, 0, 0, "empty")
    assert problems(h05=good) == []
    assert problems() == ["t: the account of part=0/hour=05 has 0 rows, where 3 are"]
    wrong = problems(h05=good._replace(rows=4))
    assert wrong == ["t: the account of part=0/hour=05 has 4 rows, where 3 are"]
    assert problems(h05=good, h06=empty) == ["t: part=0/hour=06 holds nothing, and was not dropped"]


# --------------------------------------------------------------------- the command


def test_cases_are_named_by_numbers_and_ranges():
    assert numbers_of("3,8-10,9") == [3, 8, 9, 10]
    for wrong in ("", "a", "3-", "-3", "9-8"):
        with pytest.raises(SetupError, match="--case"):
            numbers_of(wrong)


def test_repair_that_changes_accounts_is_a_problem():
    before = {"part=0/hour=05": Account(3, 2, 33, "a"), "part=0/hour=06": Account(1, 1, 11, "b")}
    assert unrepaired("s.t", before, before) == []
    renamed = {key: account._replace(version="c") for key, account in before.items()}
    assert unrepaired("s.t", before, renamed) == []
    after = before | {"part=0/hour=05": Account(2, 1, 22, "a")}
    (problem,) = unrepaired("s.t", before, after)
    assert problem.startswith(
        "s.t: part=0/hour=05: a repair changed 2 counted fragments with 3 rows"
    )
    del after["part=0/hour=06"]
    assert len(unrepaired("s.t", before, after)) == 2
