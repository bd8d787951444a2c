"""Benchmarks of the lake: what they publish, and ticks of the sensor over it."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from dagster import DagsterInstance
from rich.console import Console
from sensor_platform import SensorPlatform

from benchmarks import lake_backlog, lake_sensor, lake_ticks, procfs
from benchmarks.lake_backlog import Backlog, count_pruned, register_backlog
from benchmarks.lake_freshness import FLUSH_INTERVAL_S
from benchmarks.lake_sensor import PlatformTicks, SensorTicks
from benchmarks.lake_ticks import IdleTables, measure_idle_ticks
from benchmarks.lake_typed import TYPED_EVERY_S, TYPED_FRESHNESS_TABLES, typed_spec
from benchmarks.report import lake_table
from benchmarks.targets import LAKE_TARGETS
from benchmarks.typed_table import COLUMNS
from gazette_platform.errors import LakeError, SetupError
from gazette_platform.lake import read_spec_folder
from gazette_platform.ops.clock import SystemClock
from gazette_platform.resources import LakeResource
from gazette_platform.sensors.cursor import SensorCursor

CLOCK = SystemClock()
SMALL = Backlog(journals=2, hours=30, fragments=2, rows=3)


@pytest.fixture
def platform(tmp_path):
    with DagsterInstance.ephemeral() as instance:
        yield SensorPlatform(tmp_path, instance)


@pytest.fixture
def ticks(platform):
    lake = LakeResource(tables=str(platform.tables), store_roots=platform.files.roots)
    resources = {"broker": platform, "metastore": platform, "lake": lake, "other": None}
    return SensorTicks(resources, platform.instance, CLOCK)


def test_a_backlog_has_each_record_once_in_files_as_brokers_lay_them_out(tmp_path):
    ends = SMALL.store(tmp_path)
    assert (SMALL.partitions, SMALL.files, SMALL.records) == (60, 120, 360)
    ids = []
    for journal, end in ends.items():
        paths = sorted((tmp_path / journal).rglob("*.gz"), key=lambda path: path.name)
        assert len(paths) == 60
        spans = [tuple(int(part, 16) for part in path.name.split("-")[:2]) for path in paths]
        assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == end
        for number, path in enumerate(paths):
            assert path.parent == tmp_path / journal / SMALL.folder(number // 2)
            records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
            assert len(records) == 3
            ids += [record["id"] for record in records]
    assert sorted(ids) == list(range(360))
    assert SMALL.hour(25) == ("2026-01-02", "01")
    of_hour = [
        json.loads(line)["id"]
        for path in tmp_path.rglob("append_date=2026-01-02/append_hour=01/*.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    assert sorted(of_hour) == sorted(n for part in SMALL.ids(25) for n in part)


def test_a_backlog_is_registered_when_dagster_knows_all_of_it(platform, ticks):
    ends = {}
    for journal, folder, content in SMALL.contents():
        ends[journal] = platform.files.append(journal, content, postfix=folder).end
    found = register_backlog(SMALL, ends, ticks, platform.tables, CLOCK)
    assert 0 < found["lake_backlog_tick_s_max"] <= found["lake_backlog_10k_fragments_s"]
    assert found["lake_backlog_ticks"] >= 1
    assert len(platform.instance.get_dynamic_partitions("bench.backlog")) == SMALL.hours
    assert platform.metastore.partitions_added == 60


def test_a_backlog_that_is_not_registered_is_told(platform, ticks, monkeypatch):
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


def test_idle_ticks_come_after_those_that_register(platform, ticks):
    idle = IdleTables(tables=3, journals=2)
    for table in idle.names():
        for journal in idle.journals_of(table):
            platform.files.append(journal, lake_ticks._LINE, postfix="hour=01")
    idle.write_specs(platform.tables)
    # A session of its own: processes of another one that end take their time with them.
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, start_new_session=True) as broker:
        found = measure_idle_ticks(idle, ticks, CLOCK, pids={"broker": broker.pid})
        broker.communicate()
    assert idle.are_registered(ticks)
    assert 0 < found["lake_tick_idle_100_tables_p50_s"] <= found["lake_tick_idle_100_tables_s"]
    assert found["lake_tick_idle_broker_cpu_s"] >= 0  # the kernel counts in ticks of 10 ms
    assert platform.metastore.partitions_added == 6


def test_cpu_of_a_session_is_that_of_all_its_processes():
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    script = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn + 'input()'!r}], stdin=0)\n"
        f"{burn}print(flush=True); child.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        leader.stdout.readline()
        deadline = CLOCK.monotonic() + 60
        while procfs.session_cpu_s(leader.pid) < 0.55 and CLOCK.monotonic() < deadline:
            time.sleep(0.05)
        assert procfs.cpu_s(leader.pid) < procfs.session_cpu_s(leader.pid)
        assert procfs.session_cpu_s(leader.pid) >= 0.55
        leader.stdin.close()
    with pytest.raises(SetupError):
        procfs.session_cpu_s(leader.pid)


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


def test_tables_that_are_not_registered_in_time_are_told(platform, ticks, monkeypatch):
    monkeypatch.setattr(lake_ticks, "_SETTLE_TIMEOUT_S", 0.0)
    with pytest.raises(LakeError, match="not registered within"):
        measure_idle_ticks(IdleTables(tables=1, journals=1), ticks, CLOCK, pids={})


class Told:
    """A Dagster whose daemon has done some ticks of two sensors; times are seconds."""

    def __init__(self, *ticks):
        self.ticks = ticks

    def all_instigator_state(self):
        cursor = SimpleNamespace(cursor=SensorCursor().dump())
        names = ("catalog", "fragments")
        return [
            SimpleNamespace(
                instigator_name=name,
                instigator_origin_id=name,
                selector_id="s",
                sensor_instigator_data=cursor,
            )
            for name in names
        ]

    def get_ticks(self, origin, selector, *, after, limit):
        assert (origin, selector) == ("fragments", "s")
        newest_first = sorted(self.ticks, key=lambda tick: -tick.timestamp)
        return [tick for tick in newest_first if tick.timestamp > after][:limit]


def ended(begun, at, *, is_failure=False):
    return SimpleNamespace(timestamp=begun, end_timestamp=at, is_failure=is_failure, error="why")


def test_ticks_of_a_platform_are_taken_once_each_as_they_end():
    now = CLOCK.unix_s() + 1
    told = Told(ended(now - 100, now - 99), ended(now, now + 2), ended(now + 3, now + 8))
    ticks = PlatformTicks(told, CLOCK)
    assert [round(ticks.tick().elapsed_s) for _ in range(2)] == [2, 5]
    told.ticks = (*told.ticks, ended(now + 10, None), ended(now + 9, now + 10, is_failure=True))
    with pytest.raises(LakeError, match="failed: why"):
        ticks.tick()
    assert ticks.registered("s.a") == {}


def test_a_platform_without_ticks_is_told(monkeypatch):
    monkeypatch.setattr(lake_sensor, "_TICK_TIMEOUT_S", 0.3)
    with pytest.raises(LakeError, match="no tick"):
        PlatformTicks(Told(ended(CLOCK.unix_s() + 9, None)), CLOCK).tick()


def test_targets_of_the_lake_are_those_of_its_promises():
    limits = {target.name: target.limit for target in LAKE_TARGETS}
    assert len(limits) == len(LAKE_TARGETS)
    # Seconds and sizes are bounded from above, rates from below.
    assert {each.name for each in LAKE_TARGETS if not each.is_upper} == {"typed_mb_per_s_per_core"}
    assert limits["lake_freshness_s"] == FLUSH_INTERVAL_S + 8


def test_figures_of_the_lake_stand_beside_their_targets():
    out = io.StringIO()
    figures = {"lake_sql_first_answer_s": 0.61, "lake_flush_s": 2.5, "tail_p50_ms": 1.0}
    figures |= {"typed_x1_s": 9.0, "typed_rss_gb": 1.9}
    Console(file=out, width=100).print(lake_table(figures | {"lake_flush_p50_s": 2.0}))
    rows = [line.split() for line in out.getvalue().splitlines() if line.split()[:1]]
    assert rows[-5:] == [
        ["lake_flush_p50_s", "2"],
        ["lake_flush_s", "2.5", "≤", "5"],
        ["lake_sql_first_answer_s", "0.61", "≤", "1"],
        ["typed_rss_gb", "1.9", "≤", "3.2"],
        ["typed_x1_s", "9"],
    ]


def test_specs_of_typed_tables_that_are_measured_are_good(tmp_path):
    for name, text in ({"warm.yaml": typed_spec("warm")} | TYPED_FRESHNESS_TABLES).items():
        (tmp_path / name).write_text(text)
    found = read_spec_folder(tmp_path)
    assert not found.refused
    warm, live = (found.specs[f"bench.{name}"].typed for name in ("warm", "live"))
    assert [each.name for each in warm.columns] == [each.name for each in COLUMNS]
    assert live.every_s == TYPED_EVERY_S


def test_memory_of_a_family_is_that_of_the_processes_of_a_session_below_this_one():
    before = procfs.family_rss_mb()
    code = "x = bytearray(200 << 20); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        child.stdout.readline()
        assert procfs.family_rss_mb() > before + 190
        child.stdin.close()
    with subprocess.Popen([sys.executable, "-c", code], **pipes, start_new_session=True) as other:
        other.stdout.readline()
        assert procfs.family_rss_mb() < before + 100
        other.stdin.close()
