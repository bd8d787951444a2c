"""Crashes of registration on real servers: nothing is lost, and what is planted is found by the engines."""

from __future__ import annotations

import pytest
from object_servers import need_go

from tests.lake_crash.plan import THEMES, make_case
from tests.lake_crash.runner import LakeCrashConfig, run_lake_crash
from tests.lake_crash.world import open_world

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.etcd,
    pytest.mark.s3,
    pytest.mark.hive,
    pytest.mark.trino,
    pytest.mark.spark,
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# Files that overlap in two ways, and two registrars.
CASES = (2, 3, 6)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    need_go("GAZETTE_VERSITYGW")
    with open_world(tmp_path_factory.mktemp("lake-crash"), print) as opened:
        yield opened


@pytest.mark.timeout(900)
def test_crashes_lose_nothing(world):
    said = []
    cases = [make_case(7, number) for number in CASES]
    config = LakeCrashConfig(seed=7, cases=cases)
    result = run_lake_crash(config, world, say=said.append, show=lambda text: None)
    told = "\n".join([*said, result.summary])
    assert result.is_ok, told
    assert result.summary.startswith(f"lake-crash: ok seed=7 cases={len(CASES)} "), told
    assert {case.stores[0] for case in cases} == {"file", "s3"}
    # A quarter of what is planned mostly, and one for each pair of calls.
    assert result.faults >= 7 + len(result.pairs.seen) // 2, told
    assert result.pairs.left == [], told


@pytest.mark.timeout(600)
def test_rows_that_engines_see_twice_are_found(world):
    """A registrar whose exact views leave no file out."""
    said = []
    config = LakeCrashConfig(
        database="planted",
        cases=[make_case(7, THEMES.index("partial"))],
        plant="tests.benches.lake_plants:hide_nothing",
    )
    result = run_lake_crash(config, world, say=said.append, show=lambda text: None)
    assert result.verdict.doubled > 0, said
    for engine in ("trino", "spark"):
        assert f"{engine}, exact: part=" in "\n".join(said)
    assert "duckdb" not in "\n".join(said)
    assert result.summary.startswith("lake-crash: FAILED seed=7 cases=1 ")
