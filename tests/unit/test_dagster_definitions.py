"""The Dagster definitions: a snapshot of what there is, and that all of it loads."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dagster import AssetKey, AssetMaterialization, DagsterInstance, build_schedule_context

from gazette_platform.assets import SOURCE_KEY, delays_by_month, route_by_month
from gazette_platform.assets.checks import check_evaluations
from gazette_platform.assets.freshness import noted_version, source_version
from gazette_platform.assets.rollups import FLIGHTS, of_origin
from gazette_platform.assets.schedules import stale_partitions
from gazette_platform.definitions import build_definitions
from gazette_platform.lake import Finding, LakeSettings

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "gazette_platform" / "embedded" / "demo"


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "flights.yaml").write_text((DEMO / "flights.table.yaml").read_text())
    (tmp_path / "broken.yaml").write_text("name: [")
    jar = tmp_path / "iceberg.jar"
    jar.touch()
    return LakeSettings(
        broker="http://127.0.0.1:1",
        metastore="thrift://127.0.0.1:1",
        trino="http://127.0.0.1:1",
        tables=str(tmp_path),
        warehouse="file:///warehouse",
        iceberg_jar=str(jar),
        store_roots={"file:///": "file:///fragments/"},
    )


def test_snapshot(settings):
    repository = build_definitions(settings).get_repository_def()
    graph = repository.asset_graph
    assert {
        key.to_user_string(): (
            sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
            graph.get(key).group_name,
            sorted(graph.get(key).kinds),
            graph.get(key).is_executable,
        )
        for key in graph.get_all_asset_keys()
    } == {
        "journals/flights/flights": ([], "journals", ["gazette"], False),
        "flights/flights": (["journals/flights/flights"], "raw", ["hive", "json"], False),
        "rollups/route_by_month": (["flights/flights"], "rollups", ["iceberg", "trino"], True),
        "rollups/delays_by_month": (["flights/flights"], "rollups", ["iceberg", "pyspark"], True),
    }
    assert sorted(
        job.name for job in repository.get_all_jobs() if not job.name.startswith("__")
    ) == [
        "delays_by_month",
        "route_by_month",
    ]
    assert {
        s.name: (s.minimum_interval_seconds, s.default_status.value) for s in repository.sensor_defs
    } == {"fragments": (3, "RUNNING"), "catalog": (5, "RUNNING")}
    assert {
        s.name: (s.cron_schedule, s.default_status.value) for s in repository.schedule_defs
    } == {
        "delays_by_month_schedule": ("* * * * *", "RUNNING"),
        "route_by_month_schedule": ("* * * * *", "RUNNING"),
    }
    assert graph.get(FLIGHTS).partitions_def.name == "flights.flights"
    assert {
        key.to_user_string(): policy.fail_window.to_timedelta().total_seconds() / 3600
        for key in graph.get_all_asset_keys()
        if (policy := graph.get(key).freshness_policy)
    } == {
        "flights/flights": 24,
        "rollups/route_by_month": 25,
        "rollups/delays_by_month": 25,
    }
    assert {
        (key.asset_key.to_user_string(), key.name, graph.get(key).blocking)
        for key in graph.asset_check_keys
    } == {
        ("flights/flights", name, True)
        for name in ("no_gap", "no_overlap", "counts_agree", "fits_spec")
    }


def test_rollups_are_there_if_their_engine_is(settings):
    from dataclasses import replace

    repository = build_definitions(replace(settings, trino="", iceberg_jar="")).get_repository_def()
    assert sorted(key.path[0] for key in repository.asset_graph.get_all_asset_keys()) == [
        "flights",
        "journals",
    ]


def test_workspace_names_the_definitions():
    (entry,) = yaml.safe_load((REPOSITORY / "workspace.yaml").read_text())["load_from"]
    assert entry["python_module"]["module_name"] == "gazette_platform.definitions"


def test_definitions_need_no_server_to_load():
    code = "import gazette_platform.definitions as d; print(len(d.defs.load_fn().sensors))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={},
        timeout=120,
        check=True,
    )
    assert run.stdout.strip() == "2"


# ----------------------------------------------------------------------------- staleness


@pytest.fixture
def instance():
    with DagsterInstance.ephemeral() as made:
        yield made


def materialize(instance, key, partition, metadata=None):
    instance.report_runless_asset_event(
        AssetMaterialization(key, partition=partition, metadata=metadata or {})
    )


def test_source_version_follows_its_part(instance):
    assert source_version(instance, FLIGHTS) == ""
    materialize(instance, FLIGHTS, "origin=JFK/part=000/append_hour=5")
    jfk = source_version(instance, FLIGHTS, lambda key: of_origin("JFK", key))
    assert len(jfk) == 16
    assert source_version(instance, FLIGHTS, lambda key: of_origin("EWR", key)) == ""
    materialize(instance, FLIGHTS, "origin=EWR/part=000/append_hour=5")
    assert source_version(instance, FLIGHTS, lambda key: of_origin("JFK", key)) == jfk
    materialize(instance, FLIGHTS, "origin=JFK/part=000/append_hour=5")
    assert source_version(instance, FLIGHTS, lambda key: of_origin("JFK", key)) != jfk


def test_source_version_follows_the_overlap_check_while_it_is_red(instance):
    def check(kind):
        found = [Finding(kind=kind, journal="j", begin=0, end=9, text="twice")] if kind else []
        return tell(found)

    def tell(found):
        for evaluation in check_evaluations("flights.flights", found):
            instance.report_runless_asset_event(evaluation)
        return source_version(instance, FLIGHTS)

    materialize(instance, FLIGHTS, "origin=JFK/part=000")
    unchecked = source_version(instance, FLIGHTS)
    assert check(None) == check("gap") == unchecked
    assert check("overlap") != unchecked
    assert check(None) == unchecked
    # Nothing is known to be wrong with what could not be looked at.
    unseen = Finding(
        kind="overlap", journal="j", begin=0, end=9, text="?", is_error=False, is_checked=False
    )
    assert tell([unseen]) == unchecked


def test_origin_is_matched_whole():
    assert of_origin("JFK", "origin=JFK/part=000")
    assert not of_origin("JFK", "origin=JFKX/part=000")


def test_stale_partitions_are_those_whose_source_moved(instance):
    assert stale_partitions(instance, route_by_month) == []
    assert stale_partitions(instance, delays_by_month) == []
    for origin in ("JFK", "LGA"):
        materialize(instance, FLIGHTS, f"origin={origin}/part=000")
    assert stale_partitions(instance, route_by_month) == ["JFK", "LGA"]
    assert len(stale_partitions(instance, delays_by_month)) == 12
    version = source_version(instance, FLIGHTS, lambda key: of_origin("JFK", key))
    materialize(instance, AssetKey(["rollups", "route_by_month"]), "JFK", {SOURCE_KEY: version})
    assert noted_version(instance, route_by_month.key, "JFK") == version
    assert stale_partitions(instance, route_by_month) == ["LGA"]
    everything = source_version(instance, FLIGHTS)
    for month in range(1, 12):
        materialize(instance, delays_by_month.key, f"2013-{month:02}-01", {SOURCE_KEY: everything})
    assert stale_partitions(instance, delays_by_month) == ["2013-12-01"]
    materialize(instance, FLIGHTS, "origin=EWR/part=000")
    assert stale_partitions(instance, route_by_month) == ["EWR", "LGA"]
    assert len(stale_partitions(instance, delays_by_month)) == 12


@pytest.fixture
def kept_instance(tmp_path_factory):
    with DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


def test_schedule_skips_and_requests(kept_instance, settings):
    instance = kept_instance
    repository = build_definitions(settings).get_repository_def()
    schedule = repository.get_schedule_def("route_by_month_schedule")
    context = build_schedule_context(instance=instance, repository_def=repository)
    result = schedule.evaluate_tick(context)
    assert result.skip_message == "Nothing is new in flights.flights."
    materialize(instance, FLIGHTS, "origin=EWR/part=000")
    materialize(instance, FLIGHTS, "origin=JFK/part=000")
    (request,) = schedule.evaluate_tick(context).run_requests
    assert request.tags["dagster/asset_partition_range_start"] == "EWR"
    assert request.tags["dagster/asset_partition_range_end"] == "JFK"
    instance.create_run_for_job(repository.get_job("route_by_month"))
    result = schedule.evaluate_tick(context)
    assert "is under way" in result.skip_message
