"""Crashes of runs of typed tables on real servers: each message exists once, and what is planted is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benches.typed_plants import PLANTS
from tests.typed_crash.plan import SLOW, THEMES, make_case
from tests.typed_crash.runner import run_typed_crash
from tests.typed_crash.world import open_world

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.etcd,
    pytest.mark.hive,
    pytest.mark.spark,
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with open_world(tmp_path_factory.mktemp("typed-crash"), print) as opened:
        yield opened


@pytest.mark.timeout(900)
def test_crashes_lose_and_double_nothing(world):
    """A case of each theme; the whole seed has two, and aims at tables with keys and at amendments, too."""
    said = []
    cases = [make_case(7, number) for number in range(len(THEMES))]
    cases = [
        replace(case, is_aimed=not (case.is_keyed or case.amends))
        for case in cases
        if case.theme not in SLOW
    ]
    result = run_typed_crash(7, cases, world, say=said.append, show=lambda text: None)
    told = "\n".join([*said, result.summary])
    assert result.is_ok, told
    assert result.summary.startswith(f"typed-crash: ok seed=7 cases={len(cases)} "), told
    assert [pair for pair in result.pairs.left if " of " not in str(pair)] == [], told
    outcomes = {outcome for each in result.facts for outcome in each.outcomes}
    assert outcomes >= {"published", "idle", "TableFenced", "LakeError"}, told
    assert result.verdict.quarantined > 0, told


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_found(world, plant):
    case, found = PLANTS[plant]
    said = []
    result = run_typed_crash(
        7,
        [case],
        world,
        say=said.append,
        show=lambda text: None,
        database="planted",
        plant=f"tests.benches.typed_plants:{plant}",
    )
    assert not result.is_ok, said
    assert getattr(result.verdict, found) > 0, said
    assert result.summary.startswith("typed-crash: FAILED seed=7 cases=1 ")
