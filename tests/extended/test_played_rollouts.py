"""Rolling updates, node drains and the loss of a zone, played on processes: no append fails, no byte is lost."""

from __future__ import annotations

import itertools

import pytest

from gazette_platform.testing.waiting import patient
from tests.rollouts import Play, RolloutConfig, run_rollouts

pytestmark = [pytest.mark.etcd]


async def played(config):
    said = []
    result = await run_rollouts(config, say=said.append)
    said_all = "\n".join(itertools.chain(said, result.lines, [result.summary]))
    assert result.state == "ok", said_all
    assert [one.play for one in result.figures] == list(config.plays), said_all
    return {one.play: one for one in result.figures}, result, said_all


@pytest.mark.timeout(600)
async def test_six_brokers_in_three_zones_hardly_stall(sturdy_etcd_binary, tmp_path):
    config = RolloutConfig(
        etcd_binary=sturdy_etcd_binary,
        zones="aabbcc",
        plays=[
            Play.ROLLING_UPDATE,
            Play.SHORT_GRACE,
            Play.NODE_DRAIN,
            Play.NODE_DRAIN_EMPTY,
            Play.ZONE_LOSS,
        ],
        outage_s=10.0,
        min_ready_s=0.0,
        folder=tmp_path,
    )
    figures, result, said_all = await played(config)
    for one in figures.values():
        assert one.longest_stall_s < patient(8), said_all
    drains = [s for play in (Play.ROLLING_UPDATE, Play.NODE_DRAIN) for s in result.stops[play]]
    assert len(drains) == 8, said_all
    assert all(stop.has_drained for stop in drains), said_all
    # These had no time to: what they held was in their volumes.
    assert not any(stop.has_drained for stop in result.stops[Play.SHORT_GRACE]), said_all


@pytest.mark.timeout(600)
async def test_three_brokers_stall_only_while_one_is_away(sturdy_etcd_binary, tmp_path):
    """Journals of three replicas wait for the third; clients with their default settings are patient."""
    config = RolloutConfig(
        etcd_binary=sturdy_etcd_binary,
        zones="abc",
        plays=[Play.ROLLING_UPDATE, Play.NODE_DRAIN_EMPTY, Play.ZONE_LOSS],
        outage_s=10.0,
        folder=tmp_path,
    )
    figures, _, said_all = await played(config)
    assert figures[Play.ZONE_LOSS].longest_stall_s > config.outage_s / 2, said_all  # there was load
    assert figures[Play.ROLLING_UPDATE].longest_stall_s < patient(20), said_all
