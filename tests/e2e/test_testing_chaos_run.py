"""Chaos on a real cluster: nothing is lost that should not be, and what is lost is found."""

from __future__ import annotations

import itertools

import pytest

from gazette_platform.testing.chaos import ChaosConfig, FaultKind, WorkloadConfig, run_chaos

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.slow]

REPLICATION = 3


@pytest.mark.timeout(300)
async def test_a_minute_of_chaos_shows_no_anomaly(sturdy_etcd_binary, tmp_path):
    said = []
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        seed=7,
        duration_s=60,
        workload=WorkloadConfig(replication=REPLICATION),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=said.append)
    told = "\n".join(itertools.chain(said, [result.trouble, str(result.report)]))
    assert result.is_ok, told
    assert result.faults >= 3, told
    assert result.report.appends_ok > 1000, told
    assert result.report.bytes_read > 100_000, told


@pytest.mark.timeout(300)
async def test_loss_is_found_and_explained(sturdy_etcd_binary, tmp_path):
    """The control: journals of one replica do lose what a killed broker had not persisted."""
    config = ChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        seed=1,
        duration_s=20,
        zones="ab",
        lease_s=2.0,
        kinds=[FaultKind.KILL],
        workload=WorkloadConfig(replication=1, journals=6, writers=4, readers=2),
        folder=tmp_path / "chaos",
    )
    result = await run_chaos(config, say=lambda text: None)
    assert not result.is_ok
    assert "lost-write" in {anomaly.name for anomaly in result.report.anomalies}
    explained = (tmp_path / "chaos" / "explanation.txt").read_text()
    assert explained.startswith("chaos: FAILED seed=1 ")
    assert "the shortest explanation:" in explained
