"""Benchmarks of the lake: what they publish, and ticks of the sensor over it."""

from __future__ import annotations

import gzip

import pytest
from dagster_instances import new_instance
from sensor_platform import SensorPlatform

from benchmarks import lake_backlog, lake_ticks
from benchmarks.lake_backlog import Backlog, count_pruned, register_backlog
from benchmarks.lake_sensor import SensorTicks
from benchmarks.lake_ticks import IdleTables, measure_idle_ticks
from gazette_platform.errors import LakeError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.resources import LakeResource

CLOCK = SystemClock()
SMALL = Backlog(journals=2, hours=30, fragments=2, rows=3)


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        yield SensorPlatform(tmp_path, instance)


@pytest.fixture
def ticks(platform):
    lake = LakeResource(tables=str(platform.tables), store_roots=platform.files.roots)
    resources = {"broker": platform, "metastore": platform, "lake": lake, "other": None}
    return SensorTicks(resources, platform.instance, CLOCK)


def test_a_backlog_that_is_not_registered_is_reported(platform, ticks, monkeypatch):
    monkeypatch.setattr(lake_backlog, "_REGISTERED_TIMEOUT_S", 0.0)
    with pytest.raises(LakeError, match="not registered within"):
        register_backlog(SMALL, {"backlog/part=000": 1}, ticks, platform.tables, CLOCK)


class Answers:
    """A Trino that counts right, and reads all files for that."""

    def __init__(self, root):
        self.root = root

    def query(self, sql):
        if "$path" in sql:
            return [(str(path),) for path in self.root.rglob("*.gz")]
        ids = SMALL.ids(15) if "WHERE" in sql else [range(SMALL.records)]
        return [(sum(map(len, ids)), sum(map(sum, ids)))]


def test_a_query_that_reads_files_of_other_hours_is_seen(tmp_path, monkeypatch):
    SMALL.store(tmp_path)
    trino = Answers(tmp_path)
    with pytest.raises(LakeError, match="are of 120 files, which has 4"):
        count_pruned(SMALL, trino, tmp_path, CLOCK)
    own = [p for p in tmp_path.rglob("*.gz") if SMALL.folder(15) in str(p)]
    monkeypatch.setattr(
        Answers,
        "query",
        lambda _, sql, query=trino.query: [(str(p),) for p in own] if "$p" in sql else query(sql),
    )
    with pytest.raises(LakeError, match="does not see that files are spoiled"):
        count_pruned(SMALL, trino, tmp_path, CLOCK)
    assert all(gzip.decompress(path.read_bytes()) for path in own)
    monkeypatch.setattr(Answers, "query", lambda *_: [(SMALL.records, 1)])
    with pytest.raises(LakeError, match="expected"):
        count_pruned(SMALL, trino, tmp_path, CLOCK)


def test_ticks_that_are_not_idle_are_refused(platform, ticks, monkeypatch):
    idle = IdleTables(tables=1, journals=1)
    (table,) = idle.names()
    (journal,) = idle.journals_of(table)
    platform.files.append(journal, lake_ticks._LINE, postfix="hour=01")
    idle.write_specs(platform.tables)
    run = ticks.tick

    def and_more():
        found = run()
        platform.files.append(journal, lake_ticks._LINE, postfix="hour=01")
        return found

    monkeypatch.setattr(lake_ticks, "_settle", lambda *_: None)
    monkeypatch.setattr(SensorTicks, "tick", lambda _: and_more())
    with pytest.raises(LakeError, match="should have been idle"):
        measure_idle_ticks(idle, ticks, CLOCK, pids={})
