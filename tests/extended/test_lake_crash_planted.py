"""Registrars of `make lake-crash` are killed where it is planned, and what is planted in them is found.

Servers are stand-ins here. Registrars are processes, and are killed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from lake_stand_ins import ask_files, stand_in_world

from tests.lake_crash.plan import (
    Case,
    Fault,
    Lose,
    Prune,
    Store,
    Tick,
)
from tests.lake_crash.runner import LakeCrashConfig, run_lake_crash

STAND_INS = "tests.benches.lake_stand_ins:install"


def case_of(*steps, theme="plain"):
    return Case(0, theme, ("file",), steps)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with stand_in_world(tmp_path_factory.mktemp("lake-crash") / "world") as world:
        yield world


def run(world, database, *cases, plant="", is_aimed=False):
    said = []
    config = LakeCrashConfig(
        database=database,
        cases=cases,
        engines={"files": ask_files},
        is_aimed=is_aimed,
        plant=",".join(filter(None, [STAND_INS, plant])),
        # Some never come to rest.
        settle_s=1.0 if plant else 180.0,
        settle_ticks=12 if plant else 30,
    )
    result = run_lake_crash(config, world, say=said.append, show=lambda text: None)
    return result, "\n".join(said)


@pytest.mark.timeout(600)
def test_registrars_are_killed_where_it_is_planned(world):
    faults = [
        Fault("killed before", 3),
        Fault("killed after", 12),
        Fault("broken after", 9),
        Fault("killed before", 2, "dagster"),
    ]
    stored = [Store(n % 2, n // 2, n // 2 + 1, "05") for n in range(len(faults))]
    steps = [step for pair in zip(stored, map(tick_with, faults), strict=True) for step in pair]
    result, said = run(world, "killed", case_of(*steps))
    assert result.is_ok, said
    assert result.faults == 4
    (facts,) = result.facts
    lives = "\n".join(facts.calls).split("\n\n")
    ends = [life.splitlines() for life in lives if "! " in life]
    begun = [[name for name in life if not name.endswith(".")] for life in ends]
    at = [next(n for n, name in enumerate(life) if name.startswith("! ")) for life in begun]
    assert at[:3] == [3, 12, 9]
    last = begun[3][: at[3]]
    assert [name.split()[0] for name in last].count("dagster") == 2
    assert last[-1].startswith("dagster ")
    modes = [name.split()[1:3] for life in ends for name in life if name.startswith("! ")]
    assert modes == [fault.mode.split() for fault in faults]
    # Nothing comes after a kill, and after an answer that was lost the sensor goes on.
    assert [life[-1].startswith("! ") for life in ends] == [True, True, False, True]
    assert result.pairs.wrong.total() == 4
    assert result.pairs.wrong.keys() < result.pairs.seen
    assert set(result.pairs.left) == result.pairs.seen - result.pairs.wrong.keys()


def tick_with(fault):
    return Tick(2, fault)


HISTORIES = {
    "killed": [Store(0, 0, 2, "05"), Tick(2, Fault("killed before", 1, "dagster event"))],
    "cursor lost": [Store(0, 0, 2, "05"), Tick(2), Lose("cursor")],
    "partial": [Store(0, 0, 4, "05"), Store(0, 4, 7, "05"), Store(0, 2, 7, "05")],
    "late": [Store(0, 0, 2, "05"), Store(0, 4, 6, "05"), Tick(2), Store(0, 2, 4, "05")],
    "prune": [Store(0, 0, 2, "05"), Store(0, 2, 4, "06"), Tick(2), Prune(0, 0, 2)],
}
# What is wrong with the registrar, in which history that shows, and how.
PLANTS = {
    "tell_nothing_again": ("killed", "nothing, where it has"),
    "count_again": ("cursor lost", "the account of"),
    "tell_all_again": ("cursor lost", "the same twice"),
    "hide_nothing": ("partial", "exact: part="),
    "jump_holes": ("late", "the account of"),
    "never_shrink": ("prune", "the account of"),
    "drop_untold": ("prune", "but it is not there"),
    "keep_partitions": ("prune", "Dagster still has partition"),
}


@pytest.mark.timeout(600)
def test_histories_without_plants_are_ok(world):
    cases = [
        replace(case_of(*steps, theme=theme), number=number)
        for number, (theme, steps) in enumerate(HISTORIES.items())
    ]
    result, said = run(world, "unplanted", *cases)
    assert result.is_ok, said
    assert result.summary == (
        "lake-crash: ok seed=7 cases=5 committed=19 raw=24 events_lost=0 lost=0 doubled=0"
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_found(world, plant):
    theme, found = PLANTS[plant]
    case = case_of(*HISTORIES[theme], theme=theme)
    result, said = run(world, plant, case, plant=f"tests.benches.lake_plants:{plant}")
    assert not result.is_ok
    assert found in said
