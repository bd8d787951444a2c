"""A backlog of many small fragments, on real servers: bounded ticks, and a query that reads its hour only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dagster import DagsterInstance

from benchmarks.lake_backlog import Backlog, count_pruned, register_backlog
from benchmarks.lake_sensor import SensorTicks
from gazette_platform.client import Client, ClientConfig
from gazette_platform.ops.clock import SystemClock

pytestmark = [pytest.mark.etcd, pytest.mark.hive, pytest.mark.trino]

# Smaller than that of `make bench-lake`, and yet more than one tick registers of a table.
BACKLOG = Backlog(journals=10, hours=6, fragments=36, rows=5)
# What is promised, and half of it more for a machine that is busy with other things.
TICK_S_MAX = 30 * 1.5


@pytest.mark.timeout(300)
def test_a_backlog_is_registered_by_bounded_ticks_and_an_hour_of_it_is_read_alone(
    start_servers, lake_settings, metastore, trino, tmp_path
):
    (server,) = start_servers("a")
    tables, clock = tmp_path / "tables", SystemClock()
    tables.mkdir()
    settings = replace(
        lake_settings,
        broker=server.address,
        tables=str(tables),
        store_roots={"file:///": f"file://{server.fragments}/"},
    )
    ends = BACKLOG.store(server.fragments)
    with Client(ClientConfig(address=server.address)) as client:
        BACKLOG.publish(client, clock)
    with DagsterInstance.ephemeral() as instance:
        ticks = SensorTicks.of(settings, instance, clock)
        figures = register_backlog(BACKLOG, ends, ticks, tables, clock)
    assert figures["lake_backlog_ticks"] > 1
    assert figures["lake_backlog_tick_s_max"] < TICK_S_MAX
    with metastore.connect() as session:
        table = session.table("bench", "backlog")
        assert len(session.partition_names(table)) == BACKLOG.partitions
    found = count_pruned(BACKLOG, trino, server.fragments, clock)
    assert found["lake_backlog_pruned_files"] == 360
