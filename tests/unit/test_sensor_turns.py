"""Turns: every table gets one, whatever the others need; and what a tick leaves to the next."""

import pytest
from dagster import DagsterInstance
from hypothesis import given, strategies as st
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.lake import (
    Auditor,
    FitChecker,
    Registrar,
    Repairer,
    SpecFolder,
    StoreRoots,
    parse_table_spec,
)
from gazette_platform.sensors.audits import TableAudits
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.fragments import TickPorts, run_tick
from gazette_platform.sensors.told import InstanceTold
from gazette_platform.sensors.turns import following, in_turn

names = st.sets(st.text("abc", min_size=1, max_size=3), min_size=1).map(sorted)


@given(names, st.text("abc", max_size=3))
def test_turns_begin_where_the_last_tick_ended(all_names, first):
    found = in_turn(all_names, first)
    assert sorted(found) == all_names
    expected = first if first in all_names else following(all_names, first)
    assert found[0] == expected


@given(names, st.text("abc", max_size=3))
def test_each_name_follows_once_in_a_round(all_names, last):
    seen = []
    for _ in all_names:
        last = following(all_names, last)
        seen.append(last)
    assert sorted(seen) == all_names
    assert following(all_names, last, is_again=True) == last
    assert not following([], last)


class Platform:
    """Some tables; `tick` runs the sensor's work with `tables` of them in time."""

    def __init__(self, root, count, instance):
        self.files = FragmentFiles(root)
        self.metastore = MemoryMetastore()
        self.told = InstanceTold(instance)
        self.cursor = SensorCursor()
        self.specs = {
            f"s.t{n}": parse_table_spec(
                f"{{name: s.t{n}, selector: 'name:prefix=t{n}/', format: json, "
                "columns: [{name: id, type: bigint}]}"
            )
            for n in range(count)
        }
        self.roots = StoreRoots(self.files.roots)

    def append(self, table, content=b'{"id":1}\n', hour="05"):
        return self.files.append(f"{table}/part=0", content, postfix=f"hour={hour}")

    def tick(self, tables=99):
        self.files.calls.clear()

        def is_over():
            asked = {selector for kind, selector, _ in self.files.calls if kind == "journals"}
            return len(asked) > tables - 1 and self.is_at_a_table()

        ports = TickPorts(
            registrar=Registrar(self.files, self.metastore, self.roots),
            audits=TableAudits(
                Auditor(self.files, self.roots),
                Repairer(self.files, self.roots),
                FitChecker(self.files, self.roots),
                self.metastore,
            ),
            told=self.told,
            is_over=is_over,
        )
        outcome = run_tick(ports, SpecFolder(self.specs), self.cursor)
        self.cursor = SensorCursor.parse(outcome.cursor.dump())
        return outcome

    def is_at_a_table(self):
        """Whether something was listed of the last table already."""
        return bool(self.files.calls) and self.files.calls[-1][0] != "journals"


@pytest.fixture
def platform(tmp_path):
    with DagsterInstance.ephemeral() as instance:
        yield Platform(tmp_path, 4, instance)


def registered(outcome):
    return sorted({e.asset_key.path[-1] for e in outcome.events if "fragments_added" in e.metadata})


def test_each_table_gets_its_turn_when_a_tick_has_time_for_one(platform):
    for n in range(4):
        platform.append(f"t{n}")
    found = [registered(platform.tick(tables=1)) for _ in range(5)]
    assert found == [["t0"], ["t1"], ["t2"], ["t3"], []]
    assert not platform.tick().cursor.turn


def test_old_fragments_of_all_tables_are_looked_at_in_turn(platform):
    for n in range(4):
        platform.append(f"t{n}")
    platform.tick()
    swept = []
    for _ in range(8):
        swept.append(platform.cursor.swept)
        platform.tick()
    assert sorted(swept[:4]) == sorted(swept[4:]) == list(platform.specs)


def test_a_table_with_a_problem_holds_up_no_round(platform):
    for n in range(4):
        platform.append(f"t{n}", b"no json\n" if n == 1 else b'{"id":1}\n')
    found = [platform.tick() for _ in range(3)]
    assert registered(found[0]) == ["t0", "t2", "t3"]
    assert all("t1/part=0" in outcome.text for outcome in found)
    swept = set()
    for _ in range(4):
        swept.add(platform.tick().cursor.swept)
    assert swept == set(platform.specs)
