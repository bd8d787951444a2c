"""Turns: every table gets one, whatever the others need; and what a tick leaves to the next."""

import pytest
from dagster import AssetCheckEvaluation
from dagster_instances import new_instance
from hypothesis import given, strategies as st
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.assets.checks import is_red
from gazette_platform.lake import (
    Auditor,
    FitChecker,
    Registrar,
    Repairer,
    Shrinker,
    SpecFolder,
    StoreRoots,
    parse_table_spec,
)
from gazette_platform.lake.raw.audits.fit import value_scanner
from gazette_platform.sensors.audits import AuditState, TableAudits
from gazette_platform.sensors.cursor import SensorCursor, following, in_turn
from gazette_platform.sensors.events import InstanceTold
from gazette_platform.sensors.fragments import TickPorts, run_tick
from gazette_platform.sensors.prunes import Retention

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
        self.instance = instance
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

    def tick(self, tables=99, *, audits=False):
        """With `audits` there is time left for these once tables had theirs."""
        self.files.calls.clear()

        def is_full():
            asked = {selector for kind, selector, _ in self.files.calls if kind == "journals"}
            return len(asked) > tables - 1 and self.is_at_a_table()

        is_over = is_full if not audits else lambda: False

        ports = TickPorts(
            registrar=Registrar(self.files, self.metastore, self.roots),
            audits=TableAudits(
                Auditor(self.files, self.roots),
                Repairer(self.files, self.roots),
                FitChecker(self.files, self.roots),
                self.metastore,
            ),
            retention=Retention(Shrinker(self.files, self.roots), self.metastore),
            told=self.told,
            is_over=is_over,
            is_late=is_full,
        )
        outcome = run_tick(ports, SpecFolder(self.specs), self.cursor)
        for event in outcome.events:
            self.instance.report_runless_asset_event(event)
        self.cursor = SensorCursor.parse(outcome.cursor.dump())
        return outcome

    def is_at_a_table(self):
        """Whether something was listed of the last table already."""
        return bool(self.files.calls) and self.files.calls[-1][0] != "journals"


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        yield Platform(tmp_path, 4, instance)


def registered(outcome):
    return sorted({e.asset_key.path[-1] for e in outcome.events if "fragments_added" in e.metadata})


def test_each_table_gets_its_turn_when_a_tick_has_time_for_one(platform):
    for n in range(4):
        platform.append(f"t{n}")
    found = [registered(platform.tick(tables=1)) for _ in range(5)]
    assert found == [["t0"], ["t1"], ["t2"], ["t3"], []]
    assert not platform.tick().cursor.turn


def test_data_and_its_red_check_are_reported_by_one_tick(platform):
    """Rollups run on data whose check is not red."""
    for n in range(4):
        platform.append(f"t{n}", b'{"id":1}\n{"id":"x"}\n')
    for n in range(4):
        outcome = platform.tick(tables=1, audits=True)
        assert registered(outcome) == [f"t{n}"]
        assert [e.asset_key.path[-1] for e in outcome.events if is_red_of_fit(e)] == [f"t{n}"]


def is_red_of_fit(event):
    return (
        isinstance(event, AssetCheckEvaluation)
        and event.check_name == "fits_spec"
        and is_red(event)
    )


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


def test_audits_end_with_the_tick_and_the_round_goes_on_where_it_stood(tmp_path):
    """Each may take a second; a tick of seventeen of them would be given up, with all that it reported."""
    files, metastore = FragmentFiles(tmp_path), MemoryMetastore()
    roots = StoreRoots(files.roots)
    spec = parse_table_spec(
        "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [{name: id, type: bigint}]}"
    )
    audits = TableAudits(
        Auditor(files, roots), Repairer(files, roots), FitChecker(files, roots), metastore
    )
    for part in range(6):
        files.append(f"a/part={part}", b'{"id":1}\n', postfix="hour=05")
    report = Registrar(files, metastore, roots).tick(spec, {})
    state, audited, per_tick = AuditState(journal="a/part=3"), [], []
    for _ in range(7):
        files.calls.clear()
        outcome = audits.run(spec, report, state, is_over=lambda: True)
        state = outcome.state
        audited.append(state.journal)
        per_tick.append(len(files.calls))
        report.updates.clear()
    assert per_tick == [1] * 7
    # The first tick has time for a journal that changed, and leaves the round where it is.
    assert audited == [f"a/part={n}" for n in (3, 4, 5, 0, 1, 2, 3)]


def test_fragment_that_cannot_be_taken_hides_nothing_after_it(platform):
    """It is awaited for as long as brokers list it. The sweep is elsewhere meanwhile."""
    platform.append("t0")
    platform.files.append("t0/part=0", b'{"id":1}\n', postfix="other=1")
    for hour in ("06", "07"):
        platform.append("t0", hour=hour)
    platform.tick()
    assert platform.cursor.registered.tables["s.t0"]["t0/part=0"].holes == ((9, 18),)
    with platform.metastore.connect() as session:
        session.drop_partition(session.table("s", "t0"), ("0", "06"))
    platform.append("t0", hour="07")
    red = []
    for _ in range(len(platform.specs)):
        events = platform.tick().events
        red += [
            e for e in events if getattr(e, "check_name", "") == "counts_agree" and not e.passed
        ]
    assert red
    assert "hour=06" in red[0].description


def test_unforeseen_error_of_one_table_holds_up_no_other(platform, monkeypatch):
    for n in range(4):
        platform.append(f"t{n}")

    def scanner(spec):
        if spec.name == "s.t1":
            raise ZeroDivisionError("by no means")
        return value_scanner(spec)

    monkeypatch.setattr("gazette_platform.lake.raw.partition_updates.value_scanner", scanner)
    outcome = platform.tick()
    assert registered(outcome) == ["t0", "t2", "t3"]
    assert "s.t1: unexpected ZeroDivisionError: by no means (this is a bug" in outcome.text
    monkeypatch.undo()
    assert registered(platform.tick()) == ["t1"]
