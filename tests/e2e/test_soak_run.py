"""Stream-sum under faults: no sum is wrong, missing or there twice, and what is planted is found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.benches.postgres_server import find_postgres
from tests.soak.plan import Kind
from tests.soak.runner import SoakConfig, run_soak

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

FAULTY = Path(__file__).with_name("faulty_summers")


async def soak(config):
    said = []
    result = await run_soak(config, say=said.append)
    return result, "\n".join([*said, *result.reasons, result.summary])


@pytest.mark.timeout(500)
async def test_a_minute_of_faults_loses_and_doubles_nothing(sturdy_etcd_binary, tmp_path):
    result, told = await soak(
        SoakConfig(
            etcd_binary=sturdy_etcd_binary,
            postgres=find_postgres(),
            seed=7,
            duration_s=60,
            lease_s=4.0,
            folder=tmp_path / "soak",
        )
    )
    assert result.is_ok, told
    postgres = "" if find_postgres() else "left_out=1 "
    assert re.fullmatch(
        rf"soak: ok seed=7 {postgres}streams=\d+ faults=\d+ wrong=0 late_s_max=\d+\.\d",
        result.summary,
    )
    assert result.faults[Kind.JUMP_CLOCK], told
    assert bool(result.faults[Kind.RESTART_POSTGRES]) is not bool(postgres), told
    assert result.faults.total() >= 4, told
    assert result.streams >= 100, told


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "kinds", "has_postgres", "found"),
    [
        ("double_counting", (Kind.RESET,), False, "sums are wrong"),
        ("doubled_sums", (Kind.RESET,), False, "sums are duplicated"),
        ("doubled_tallies", (Kind.RESET,), False, "its shard does not count exactly once"),
        (
            "trusted_clocks",
            (Kind.JUMP_CLOCK, Kind.LOSE_ANSWERS),
            True,
            "messages were lost, or were delivered twice",
        ),
        (
            "torn_commits",
            (Kind.KILL_CONSUMERS,),
            True,
            "messages were lost, or were delivered twice",
        ),
    ],
)
async def test_what_is_planted_is_found(
    sturdy_etcd_binary, tmp_path, plant, kinds, has_postgres, found
):
    result, told = await soak(
        SoakConfig(
            etcd_binary=sturdy_etcd_binary,
            postgres=find_postgres() if has_postgres else None,
            seed=7,
            duration_s=20,
            lease_s=4.0,
            kinds=kinds,
            programs=[(sys.executable, str(FAULTY / f"{plant}.py"))],
            folder=tmp_path / "soak",
        )
    )
    assert not result.is_ok, told
    left_out = "" if has_postgres and find_postgres() else "left_out=1 "
    assert result.summary.startswith(f"soak: FAILED seed=7 {left_out}streams=")
    assert ("left out: shards on PostgreSQL" in told) is bool(left_out)
    assert found in "\n".join(result.reasons), told
