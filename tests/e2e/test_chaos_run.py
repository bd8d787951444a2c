"""Chaos on a real cluster: nothing is lost that should not be, and what is lost is found."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from tests.chaos import (
    ALL_KINDS,
    ChaosConfig,
    FaultKind,
    WorkloadConfig,
    run_chaos,
)

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

# To mount disks, and to trace processes.
NEEDS_RIGHTS = {
    FaultKind.STORE_FULL,
    FaultKind.SPOOL_FULL,
    FaultKind.AGED_HOLDERS,
    FaultKind.SLOW_DISK,
}

FAULTY = Path(__file__).with_name("faulty_brokers")


@pytest.mark.timeout(600)
async def test_a_minute_of_chaos_shows_no_anomaly(sturdy_etcd_binary, tmp_path):
    said = []
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        # Of those that have room for all kinds in few episodes: each costs time to mend.
        seed=10,
        duration_s=60,
        # Short, and few processes, so that a minute has room for every kind of fault.
        lease_s=4.0,
        zones="aabc",
        workload=WorkloadConfig(replication=3),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=said.append)
    told = "\n".join(itertools.chain(said, result.reasons, [str(result.report)]))
    assert result.is_ok, told
    begun = {kind for kind in FaultKind if result.inflicted.get(kind)}
    # That needs an etcd of three members, which has a test of its own.
    missing = set(ALL_KINDS) - begun - {FaultKind.ETCD_LEADER}
    # The run says why; nothing else may be.
    assert missing <= set(result.left_out) & NEEDS_RIGHTS, (missing, told)
    assert result.report.appends_ok > 1000, told
    assert result.report.bytes_read > 100_000, told


@pytest.mark.timeout(300)
async def test_another_leader_of_etcd_goes_unnoticed(sturdy_etcd_binary, tmp_path):
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        etcd_members=3,
        seed=7,
        duration_s=15,
        zones="ab",
        kinds=[FaultKind.ETCD_LEADER],
        workload=WorkloadConfig(replication=2, journals=4, writers=4, readers=2, has_upkeep=False),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=lambda text: None)
    assert result.is_ok, (result.reasons, str(result.report))
    assert result.faults >= 1


@pytest.mark.timeout(300)
async def test_loss_is_found_and_explained(sturdy_etcd_binary, tmp_path):
    """The control: journals of one replica do lose what was not persisted with their only spool."""
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        seed=1,
        duration_s=20,
        zones="ab",
        lease_s=2.0,
        kinds=[FaultKind.SPOOL_LOST],
        workload=WorkloadConfig(replication=1, journals=6, writers=4, readers=2, has_upkeep=False),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=lambda text: None)
    assert not result.is_ok
    assert "lost-write" in {anomaly.name for anomaly in result.report.anomalies}
    explained = (tmp_path / "chaos" / "explanation.txt").read_text()
    assert explained.startswith("chaos: FAILED seed=1 ")
    assert "the shortest explanation:" in explained


@pytest.mark.timeout(300)
async def test_broker_that_waits_for_one_replica_only_is_found(sturdy_etcd_binary, tmp_path):
    """It loses what it acknowledged with those replicas that had it."""
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        seed=7,
        duration_s=15,
        zones="abc",
        lease_s=2.0,
        kinds=[FaultKind.LAST_REPLICA],
        workload=WorkloadConfig(replication=3, journals=4, writers=8, readers=4, has_upkeep=False),
        broker_program=(sys.executable, str(FAULTY / "under_replicating.py")),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=lambda text: None)
    assert not result.is_ok
    names = {anomaly.name for anomaly in result.report.anomalies}
    # A journal that ends before what was acknowledged may show it to a reader alone.
    assert names & {"lost-write", "inconsistent-offsets", "stale-head"}, result.reasons


@pytest.mark.timeout(300)
async def test_broker_without_a_fence_is_found(sturdy_etcd_binary, tmp_path):
    """It wakes up, and gives offsets away that others gave away while it slept."""
    for seed in range(7, 12):
        config = ChaosConfig(
            etcd_binary=sturdy_etcd_binary,
            seed=seed,
            duration_s=10,
            zones="ab",
            lease_s=2.0,
            kinds=[FaultKind.STALE_PRIMARY],
            workload=WorkloadConfig(
                replication=2, journals=4, writers=4, readers=2, has_upkeep=False
            ),
            broker_program=(sys.executable, str(FAULTY / "unfenced.py")),
            folder=tmp_path / f"chaos-{seed}",
        )
        result = await run_chaos(config, say=lambda text: None)
        # Where etcd's news came before the appends that waited, even it knew.
        if not result.is_ok:
            break
    anomalies = result.report.anomalies
    assert {anomaly.name for anomaly in anomalies} & {"lost-write", "inconsistent-offsets"}
    assert all("chaos-fenced/" in anomaly.journal for anomaly in anomalies), result.reasons


@pytest.mark.timeout(300)
async def test_broker_that_loses_what_it_rolled_is_found(sturdy_etcd_binary, tmp_path):
    """All of it can be read for as long as the broker runs; the store alone lacks it."""
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        seed=7,
        duration_s=8,
        zones="ab",
        lease_s=2.0,
        kinds=[FaultKind.RESET],
        workload=WorkloadConfig(
            replication=1,
            journals=4,
            writers=8,
            readers=2,
            fragment_length=2 << 10,
            has_upkeep=False,
        ),
        broker_program=(sys.executable, str(FAULTY / "roll_losing.py")),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=lambda text: None)
    assert not result.is_ok
    assert "the store of chaos/journal-" in "".join(result.reasons), result.reasons


@pytest.mark.timeout(300)
async def test_broker_that_logs_unforeseen_error_is_found(sturdy_etcd_binary, tmp_path):
    """Its clients see nothing of it."""
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        seed=7,
        duration_s=8,
        zones="ab",
        lease_s=4.0,
        kinds=[FaultKind.RESET],
        workload=WorkloadConfig(replication=2, journals=4, writers=4, readers=2, has_upkeep=False),
        broker_program=(sys.executable, str(FAULTY / "stumbling.py")),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=lambda text: None)
    assert not result.is_ok
    assert result.reasons[0].startswith("broker-1 logged an unforeseen error: ")
    assert "unforeseen KeyError: 'stumbled'" in result.reasons[0]
    assert not result.report.anomaly_count, str(result.report)
