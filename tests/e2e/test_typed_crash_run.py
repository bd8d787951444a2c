"""Crashes of runs of typed tables on real servers: each message is there once, and what is planted is found."""

from __future__ import annotations

import pytest

from tests.typed_crash.plan import THEMES, make_case
from tests.typed_crash.runner import run_typed_crash
from tests.typed_crash.world import open_world

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.etcd,
    pytest.mark.hive,
    pytest.mark.spark,
    pytest.mark.slow,
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with open_world(tmp_path_factory.mktemp("typed-crash"), print) as opened:
        yield opened


@pytest.mark.timeout(900)
def test_crashes_lose_and_double_nothing(world):
    """A case of each theme; the whole seed has three."""
    said = []
    cases = [make_case(7, number) for number in range(len(THEMES))]
    result = run_typed_crash(7, cases, world, say=said.append, show=lambda text: None)
    told = "\n".join([*said, result.summary])
    assert result.is_ok, told
    assert result.summary.startswith(f"typed-crash: ok seed=7 cases={len(THEMES)} "), told
    assert result.pairs.left == [], told
    assert result.faults >= len(result.pairs.seen), told
    outcomes = {outcome for each in result.facts for outcome in each.outcomes}
    assert outcomes >= {"published", "idle", "TypedFenced", "LakeError"}, told
    assert result.verdict.quarantined > 0, told


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "theme", "found"),
    [
        ("keep_no_fence", "zombie", "doubled"),
        ("publish_again", "broken", "doubled"),
        ("settle_nothing", "drift", "lost"),
        ("forget_producers", "zombie", "doubled"),
    ],
)
def test_what_is_planted_is_found(world, plant, theme, found):
    said = []
    result = run_typed_crash(
        7,
        [make_case(7, THEMES.index(theme))],
        world,
        say=said.append,
        show=lambda text: None,
        database=plant,
        plant=f"tests.benches.typed_plants:{plant}",
        is_aimed=False,  # what is planned is enough
    )
    assert not result.is_ok, said
    assert getattr(result.verdict, found) > 0, said
    assert result.summary.startswith("typed-crash: FAILED seed=7 cases=1 ")
