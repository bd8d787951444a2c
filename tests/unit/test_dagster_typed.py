"""Typed tables in Dagster: what exists of each, how they hang together, and when they are run."""

from datetime import UTC, datetime, timedelta

import pytest
from dagster import (
    AssetMaterialization,
    AssetSelection,
    Definitions,
    IdentityPartitionMapping,
    evaluate_automation_conditions,
)
from dagster_instances import new_instance
from msgspec import structs
from typed_world import spec

from gazette_platform.assets import (
    SOURCES_KEY,
    raw_asset_specs,
    raw_checks,
    table_key,
    typed_definitions,
)
from gazette_platform.assets.checks import check_evaluations, sources_mark
from gazette_platform.assets.maintenance import UpkeepEngine
from gazette_platform.assets.typed import fragments_at
from gazette_platform.assets.typed_events import (
    TypedSources,
    backfill_key,
    column_lineage,
    fresh_within_s,
    typed_key,
)
from gazette_platform.client import FragmentListing
from gazette_platform.lake import Finding, LakeSettings, parse_table_spec
from gazette_platform.lake.spec.typed import TypedColumn
from gazette_platform.protocol import Fragment
from gazette_platform.resources import platform_resources

RAW = parse_table_spec(
    "{name: raw.flights, selector: 'name:prefix=raw/', format: json, columns: [{name: n, type: bigint}, "
    "{name: k, type: string}], partitions: [{name: hour, as: append_hour, type: int}], fresh_within: 1h}"
)
SPEC = spec()
EVERY = structs.replace(SPEC, every_s=30.0)
NIGHTLY = structs.replace(SPEC, cron="0 3 * * *")
NOON = datetime(2026, 1, 2, 12, 0, 30, tzinfo=UTC)


def definitions(wanted=SPEC, **options):
    return Definitions.merge(
        Definitions(
            assets=raw_asset_specs([RAW]),
            asset_checks=raw_checks([RAW]),
            resources=platform_resources(LakeSettings()),
        ),
        typed_definitions([(RAW, wanted)], **options),
    )


@pytest.fixture
def instance():
    with new_instance() as made:
        yield made


def test_objects_of_a_typed_table():
    made = definitions(spark="spark", upkeep=UpkeepEngine("spark", "spark"))
    repository = made.get_repository_def()
    graph = repository.asset_graph
    keys = {
        key.to_user_string(): (
            sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
            graph.get(key).group_name,
            sorted(graph.get(key).kinds),
            graph.get(key).is_executable,
            sorted(graph.get(key).pools or ()),
        )
        for key in graph.get_all_asset_keys()
        if key.path[0] in ("typed", "backfills", "maintenance")
    }
    assert keys == {
        "typed/flights": (["raw/flights"], "typed", ["iceberg", "pyspark"], True, ["iceberg.typed.flights"]),
        "typed/flights_quarantine": (["raw/flights"], "typed", ["iceberg"], False, []),
        "backfills/typed/flights": (["raw/flights"], "typed", ["iceberg", "pyspark"], True, ["iceberg.typed.flights"]),
        "maintenance/typed/flights": (
            ["typed/flights"], "maintenance", ["iceberg", "pyspark"], True, ["iceberg.maintenance"],
        ),
    }  # fmt: skip
    checks = [key for key in graph.asset_check_keys if key.asset_key == typed_key(SPEC)]
    assert {key.name: graph.get(key).blocking for key in checks} == {
        "complete": True,
        "quarantine": False,
        "fresh": False,
    }
    # What the UI needs to offer to execute a check by itself.
    for key in checks:
        assert graph.get_execution_set_asset_and_check_keys(key) == {key}
    jobs = sorted(j.name for j in repository.get_all_jobs() if not j.name.startswith("__"))
    assert jobs == ["typed__flights_backfill_job", "typed__flights_job", "typed_maintenance"]
    assert [(s.name, s.minimum_interval_seconds) for s in repository.sensor_defs] == [
        ("typed_automation", 30)
    ]
    assert [(s.name, s.cron_schedule) for s in repository.schedule_defs] == [
        ("typed_maintenance_schedule", "47 3 * * *")
    ]


def test_backfills_have_the_partitions_of_the_raw_table():
    graph = definitions().get_repository_def().asset_graph
    key, raw = backfill_key(SPEC), table_key("raw.flights")
    assert graph.get(key).partitions_def == graph.get(raw).partitions_def
    assert isinstance(graph.get_partition_mapping(key, raw), IdentityPartitionMapping)
    # Rows of a key are not of single messages, so that no time of them could be made again.
    keyed = structs.replace(SPEC, key=("n",))
    assert key not in definitions(keyed).get_repository_def().asset_graph.get_all_asset_keys()


def fragment(journal, postfix):
    return FragmentListing(Fragment(journal, 0, 9, path_postfix=postfix, backing_store="file:///"))


def test_fragments_of_a_partition_are_those_of_its_time_in_all_journals():
    is_wanted = fragments_at(RAW, ["5", "6"])
    found = [
        (journal, postfix)
        for journal in ("raw/part=0", "raw/part=1")
        for postfix in ("hour=05", "hour=5", "hour=06", "hour=15", "_aside/hour=05")
        if is_wanted(fragment(journal, postfix))
    ]
    assert found == [
        (journal, postfix)
        for journal in ("raw/part=0", "raw/part=1")
        for postfix in ("hour=05", "hour=5", "hour=06", "_aside/hour=05")
    ]


def test_a_table_without_times_is_one_partition():
    raw = structs.replace(RAW, partitions=())
    assert fragments_at(raw, ["all"])(fragment("raw/part=0", ""))
    assert not fragments_at(raw, ["5"])(fragment("raw/part=0", ""))


def test_without_an_engine_a_table_is_run_in_process_and_not_looked_after():
    repository = definitions().get_repository_def()
    graph = repository.asset_graph
    assert graph.get(typed_key(SPEC)).kinds == {"iceberg", "python"}
    assert repository.schedule_defs == []


def test_what_goes_on_without_end_is_not_run_by_dagster():
    repository = definitions(EVERY).get_repository_def()
    node = repository.asset_graph.get(typed_key(EVERY))
    assert (node.automation_condition, node.is_executable) == (None, True)
    assert repository.sensor_defs == []
    assert "gazctl lake run --continuous" in node.description


def test_what_a_store_has_is_a_row_within_a_minute_or_as_the_raw_table_says():
    assert fresh_within_s(RAW, EVERY) == 90
    assert fresh_within_s(RAW, structs.replace(EVERY, every_s=5.0)) == 60
    assert fresh_within_s(RAW, SPEC) == 3600


def test_columns_come_from_those_of_the_raw_table_that_have_their_key_or_segment():
    wanted = structs.replace(
        SPEC,
        columns=(
            TypedColumn(name="number", type="bigint", key="n"),
            TypedColumn(name="at_hour", type="int", segment="hour"),
            TypedColumn(name="part", type="string", segment="part"),
            TypedColumn(name="more", type="string", key="more"),
        ),
    )
    deps = column_lineage(RAW, wanted).deps_by_column
    assert {name: [dep.column_name for dep in of] for name, of in deps.items()} == {
        "number": ["n"],
        "at_hour": ["append_hour"],
        "part": ["part"],
    }


class Daemon:
    """Evaluates the condition of the table, tick after tick."""

    def __init__(self, instance, wanted=SPEC):
        self.instance = instance
        self.spec = wanted
        self.made = definitions(wanted)
        self.cursor = None
        self.at = NOON

    def asks(self, *, after_s=60):
        self.at += timedelta(seconds=after_s)
        found = evaluate_automation_conditions(
            self.made,
            self.instance,
            AssetSelection.assets(typed_key(self.spec)),
            evaluation_time=self.at,
            cursor=self.cursor,
        )
        self.cursor = found.cursor
        return bool(found.get_num_requested(typed_key(self.spec)))

    def register(self):
        self.instance.report_runless_asset_event(
            AssetMaterialization(table_key("raw.flights"), partition="5")
        )

    def run(self):
        mark = sources_mark(self.instance, TypedSources.of(self.spec))
        self.instance.report_runless_asset_event(
            AssetMaterialization(typed_key(self.spec), metadata={SOURCES_KEY: mark})
        )


def test_a_table_is_run_when_its_raw_table_has_changed_and_at_most_once_a_minute(instance):
    daemon = Daemon(instance)
    assert not daemon.asks()
    daemon.register()
    assert daemon.asks()
    assert not daemon.asks(after_s=10)
    daemon.run()
    assert not daemon.asks()
    daemon.register()
    assert daemon.asks()


def test_a_changed_spec_has_a_table_run(instance):
    daemon = Daemon(instance)
    daemon.register()
    daemon.run()
    assert not daemon.asks()
    daemon.spec = structs.replace(SPEC, unknown="quarantine")
    daemon.made = definitions(daemon.spec)
    assert daemon.asks()


def test_red_checks_of_the_raw_table_are_in_nobodys_way(instance):
    """Runs read journals, and what is wrong with records is what quarantine is for."""
    daemon = Daemon(instance)
    daemon.register()
    for evaluation in check_evaluations(
        "raw.flights", [Finding(kind="fit", journal="a", begin=0, end=9, text="?")]
    ):
        instance.report_runless_asset_event(evaluation)
    assert daemon.asks()


def test_a_table_with_a_schedule_waits_for_it(instance):
    daemon = Daemon(instance, NIGHTLY)
    daemon.asks()
    daemon.register()
    assert not daemon.asks()
    assert daemon.asks(after_s=15 * 3600)
