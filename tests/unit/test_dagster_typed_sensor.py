"""What is reported to Dagster about typed tables: whatever differs from its last event, whoever ran them."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetMaterialization,
    asset,
    materialize,
)
from dagster_instances import new_instance
from msgspec import structs
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from typed_files import write_rows
from typed_world import JOURNAL, World, row, spec

from gazette_platform.assets.checks import is_red, newest_evaluations
from gazette_platform.assets.typed_events import quarantine_key, told_typed, typed_key
from gazette_platform.errors import TransportError
from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.iceberg.publishing import PROGRESS, publish_files
from gazette_platform.lake.typed.planning.ranges import Hole, HoleKind
from gazette_platform.lake.typed.planning.state import Counts, JournalState
from gazette_platform.lake.typed.runs.journals import Behind
from gazette_platform.lake.typed.tables.progress import measures
from gazette_platform.lake.typed.tables.quarantine import write_list
from gazette_platform.lake.typed.tables.table import state_properties, write_state
from gazette_platform.lake.typed.tables.writing import data_file_of
from gazette_platform.ops.clock import SystemClock
from gazette_platform.sensors.typed import TypedPorts, run_typed_tick

pytestmark = pytest.mark.long

RAW = parse_table_spec(
    "{name: raw.flights, selector: 'name:prefix=raw/', format: json, columns: [{name: n, type: bigint}, "
    "{name: k, type: string}], fresh_within: 1h}"
)
SPEC = spec()


class Platform:
    """Typed tables in a catalog on disk, and a Dagster that gets their events."""

    def __init__(self, folder, instance):
        self.world = World(folder)
        self.instance = instance
        self.behind = Behind()
        self.cursor = ""
        self.problems = []

    def publish(self, ns, *, bad=0, **told):
        """A run by another program."""
        handle, table = self.world.open()
        quarantine = self.world.quarantine()
        counts = Counts(
            messages=len(ns) + bad, committed=len(ns) + bad, typed=len(ns), quarantined=bad
        )
        before = table.state.journals.get(JOURNAL, JournalState())
        after = JournalState(offset=before.offset + 100, counts=before.counts + counts)
        state = table.state.with_journals({JOURNAL: after})
        rows = [
            {"_journal": JOURNAL, "_begin": n, "_end": n + 1, "reason": "?", "raw": b"{"}
            for n in range(bad)
        ]
        listed = write_list(
            table.location,
            [write_rows(quarantine.load().metadata, rows)] if rows else [],
            table.io,
        )
        path = write_state(table.location, state, table.io)
        properties = state_properties(state, path=path, run=f"{ns}", quarantine=listed)
        told = {
            "read_bytes": 1_000_000,
            "seconds": 2.0,
            "complete_at": None,
            "oldest_at": None,
        } | told
        files = [data_file_of(write_rows(table.metadata, [row(n) for n in ns]), table.metadata)]
        publish_files(handle, table.start, files, f"{ns}", {**properties, **measures(**told)})

    def tick(self, *pairs):
        """Events of a tick, which Dagster keeps."""

        def behind(_raw, _spec):
            if isinstance(self.behind, Exception):
                raise self.behind
            return self.behind

        outcome = run_typed_tick(
            TypedPorts(
                instance=self.instance,
                tables=SimpleNamespace(handle=self.world.handle),
                behind=behind,
                trino_catalog="iceberg",
                table_page=lambda _: {},
                is_over=lambda: False,
                now_s=SystemClock().unix_s,
            ),
            pairs or [(RAW, SPEC)],
            self.cursor,
        )
        self.cursor, self.problems = outcome.cursor, outcome.problems
        for event in outcome.events:
            self.instance.report_runless_asset_event(event)
        return outcome.events

    def told(self, *pairs):
        """What a tick reported about tables."""
        events = [e for e in self.tick(*pairs) if isinstance(e, AssetMaterialization)]
        return {e.asset_key.to_user_string(): values_of(e) for e in events}

    def checks(self):
        """What each check of the table says by now: its colour, and why."""
        keys = [e.asset_check_key for e in self.tick() if isinstance(e, AssetCheckEvaluation)]
        newest = newest_evaluations(self.instance, keys)
        return {key.name: (is_red(e), e.passed, e.description) for key, e in newest.items()}


def values_of(event):
    return {name: value.value for name, value in event.metadata.items()}


@pytest.fixture
def instance():
    with new_instance() as made:
        yield made


@pytest.fixture
def platform(tmp_path, instance):
    made = Platform(tmp_path, instance)
    yield made
    for catalog in made.world.catalogs:
        catalog.close()


def test_what_was_published_is_reported_once_with_figures_and_columns(platform):
    assert platform.told() == {}
    now = SystemClock().now()
    platform.publish([1, 2], complete_at=now, oldest_at=now - timedelta(seconds=5))
    (table, quarantine) = platform.told().values()
    assert (table["dagster/row_count"], table["rows_added"], table["journals"]) == (2, 2, 1)
    assert table["mb_per_s"] == 0.5
    assert 5 <= table["freshness_s"] < 60
    assert table["offsets"] == f"{JOURNAL}: 100"
    assert [c.name for c in table["dagster/column_schema"].columns][:3] == ["n", "k", "_journal"]
    (dep,) = table["dagster/column_lineage"].deps_by_column["n"]
    assert (dep.asset_key.to_user_string(), dep.column_name) == ("raw/flights", "n")
    assert quarantine["dagster/row_count"] == 0
    assert platform.told() == {}
    platform.publish([3])
    told = platform.told()
    assert list(told) == ["typed/flights"]
    assert (told["typed/flights"]["dagster/row_count"], told["typed/flights"]["rows_added"]) == (
        3,
        1,
    )


def test_dagster_that_lost_its_home_gets_all_again(platform):
    platform.publish([1, 2])
    platform.tick()
    with new_instance() as other:
        platform.instance = other
        assert platform.told()["typed/flights"]["rows_added"] == 2


def test_events_of_others_are_looked_past(platform):
    platform.publish([1, 2])
    platform.tick()
    platform.instance.report_runless_asset_event(AssetMaterialization(typed_key(SPEC)))
    assert platform.told() == {}
    platform.publish([3])
    assert platform.told()["typed/flights"]["rows_added"] == 1


def test_what_a_run_of_dagsters_is_at_is_left_to_it(platform):
    told = []

    @asset(key=typed_key(SPEC))
    def run():
        platform.publish([1, 2])
        told.append(platform.tick())
        # It would report it now.

    materialize([run], instance=platform.instance)
    assert told == [[]]
    assert platform.told()["typed/flights"]["rows_added"] == 2


def test_upkeep_is_not_news(platform):
    platform.publish([1, 2])
    platform.tick()
    table = platform.world.handle().load().token
    table.overwrite(table.scan().to_arrow())
    assert platform.told() == {}


def test_quarantined_records_are_reported_and_turn_their_check_yellow_then_red(platform):
    platform.publish(range(1000), bad=1)
    checks = platform.checks()
    assert checks["quarantine"][:2] == (False, False)
    assert "1 record is no rows" in checks["quarantine"][2]
    assert checks["complete"] == (
        False,
        True,
        "1,001 messages committed: 1,000 are rows, 1 in quarantine, 0 lost, 0 twice.",
    )
    assert told_typed(platform.instance, quarantine_key(SPEC)).rows == 1
    platform.publish([2000], bad=99)
    assert platform.checks()["quarantine"][:2] == (True, False)


def test_rows_that_no_run_published_turn_a_blocking_check_red(platform):
    platform.publish([1, 2])
    assert platform.checks()["complete"][1]
    table = platform.world.handle().load().token
    table.append(table.scan().to_arrow())
    (red, _, why) = platform.checks()["complete"]
    assert red
    assert "has 4 of 2, 2 rows too many" in why
    (event,) = [e for e in platform.tick() if isinstance(e, AssetCheckEvaluation)] or [None]
    assert event is None  # it is reported once


def test_a_table_that_does_not_say_how_far_it_has_come_is_red(platform):
    platform.publish([1, 2])
    platform.tick()
    handle = platform.world.handle()
    loaded = handle.load()
    handle.commit(loaded, (), (RemoveSnapshotRefUpdate(ref_name=PROGRESS),))
    (red, _, why) = platform.checks()["complete"]
    assert red
    assert PROGRESS in why


def test_what_a_store_has_for_long_and_holes_turn_freshness_red(platform):
    platform.publish([1])
    assert platform.checks()["fresh"][1]
    now = int(SystemClock().unix_s())
    platform.behind = Behind(bytes=9, journals=1, stored_at=now - 60)
    assert platform.checks() == {}
    platform.behind = Behind(bytes=9, journals=1, stored_at=now - 7200)
    (red, _, why) = platform.checks()["fresh"]
    assert red
    assert "content of 1 journal since" in why
    platform.behind = Behind(holes=(Hole(JOURNAL, 5, 9, HoleKind.PRUNED),))
    assert "stands still before offset 5: pruned" in platform.checks()["fresh"][2]


def test_publications_are_reported_while_brokers_are_away(platform):
    platform.behind = TransportError("no broker")
    platform.publish([1])
    assert platform.told()["typed/flights"]["rows_added"] == 1
    assert platform.problems == ["typed.flights: no broker"]


def test_a_table_with_a_problem_holds_up_no_other(platform):
    platform.publish([1])
    broken = structs.replace(SPEC, name="broken")  # no schema.table: the catalog refuses it
    told = platform.told((RAW, broken), (RAW, SPEC))
    assert told["typed/flights"]["rows_added"] == 1
    assert len(platform.problems) >= 1
    assert all(problem.startswith("broken: ") for problem in platform.problems)


def test_tables_are_looked_at_thoroughly_in_turn(platform):
    other = structs.replace(SPEC, name="typed.other")
    turns = []
    for _ in range(3):
        platform.tick((RAW, SPEC), (RAW, other))
        turns.append(platform.cursor)
    assert turns == ["typed.flights", "typed.other", "typed.flights"]
