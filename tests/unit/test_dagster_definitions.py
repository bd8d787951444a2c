"""The Dagster definitions: a snapshot of what exists, and that all of it loads."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from dagster import (
    AllPartitionMapping,
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    Definitions,
    evaluate_automation_conditions,
)
from dagster_instances import new_instance

from gazette_platform.assets import SOURCES_KEY, rollup_definitions, rollup_key, table_key
from gazette_platform.assets.automation import rollup_condition
from gazette_platform.assets.checks import CHECKS_POOL, check_evaluations, noted_mark, sources_mark
from gazette_platform.definitions import build_definitions
from gazette_platform.errors import SetupError
from gazette_platform.lake import Finding, LakeSettings
from gazette_platform.lake.catalog_settings import TrinoCatalogs
from gazette_platform.lake.rollups import RollupSpec, read_rollup_folder, rollup
from gazette_platform.resources import platform_resources

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "gazette_platform" / "platform" / "demo"
FLIGHTS = table_key("flights.flights")


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
        rollups=str(REPOSITORY / "sql" / "demo"),
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
        "table_specs": ([], "raw", ["yaml"], False),
        "rollup_specs": ([], "rollups", ["sql"], False),
        "journals/flights/flights": ([], "journals", ["gazette"], False),
        "flights/flights": (["journals/flights/flights"], "raw", ["hive", "json"], False),
        "typed/flights": (["flights/flights"], "typed", ["iceberg", "pyspark"], True),
        "typed/flights_quarantine": (["flights/flights"], "typed", ["iceberg"], False),
        "backfills/typed/flights": (["flights/flights"], "typed", ["iceberg", "pyspark"], True),
        "maintenance/typed/flights": (
            ["typed/flights"],
            "maintenance",
            ["iceberg", "pyspark"],
            True,
        ),
        "rollups/route_by_month": (["flights/flights"], "rollups", ["iceberg", "trino"], True),
        "rollups/delays_by_arrival": (["flights/flights"], "rollups", ["iceberg", "pyspark"], True),
        "rollups/delays_by_month": (
            ["rollups/delays_by_arrival"],
            "rollups",
            ["iceberg", "trino"],
            True,
        ),
    }
    assert sorted(
        job.name for job in repository.get_all_jobs() if not job.name.startswith("__")
    ) == [
        "rollup_maintenance",
        "rollups__delays_by_arrival_job",
        "rollups__delays_by_month_job",
        "rollups__route_by_month_job",
        "typed__flights_backfill_job",
        "typed__flights_job",
        "typed_maintenance",
    ]
    assert {
        s.name: (s.minimum_interval_seconds, s.default_status.value) for s in repository.sensor_defs
    } == {
        "fragments": (3, "RUNNING"),
        "typed": (20, "RUNNING"),
        "catalog": (5, "RUNNING"),
        "typed_automation": (30, "RUNNING"),
        "rollup_automation": (30, "RUNNING"),
    }
    assert {
        s.name: (s.cron_schedule, s.default_status.value) for s in repository.schedule_defs
    } == {
        "rollup_maintenance_schedule": ("17 3 * * *", "RUNNING"),
        "typed_maintenance_schedule": ("47 3 * * *", "RUNNING"),
    }


def test_snapshot_of_checks(settings):
    graph = build_definitions(settings).get_repository_def().asset_graph
    assert graph.get(FLIGHTS).partitions_def.name == "flights.flights"
    assert {
        key.to_user_string(): policy.fail_window.to_timedelta().total_seconds() / 3600
        for key in graph.get_all_asset_keys()
        if (policy := graph.get(key).freshness_policy)
    } == {
        "flights/flights": 24,
        "typed/flights": 24,
        "rollups/route_by_month": 25,
        "rollups/delays_by_arrival": 25,
        "rollups/delays_by_month": 25,
    }
    assert {
        (key.asset_key.to_user_string(), key.name, graph.get(key).blocking)
        for key in graph.asset_check_keys
    } == {
        *(
            ("flights/flights", name, name != "keeps_up")
            for name in ("no_gap", "no_overlap", "counts_agree", "fits_spec", "keeps_up")
        ),
        ("typed/flights", "complete", True),
        ("typed/flights", "quarantine", False),
        ("typed/flights", "fresh", False),
        ("backfills/typed/flights", "complete", False),
        ("table_specs", "specs_are_good", False),
        ("rollup_specs", "specs_are_good", False),
        *(
            (f"rollups/{name}", check, False)
            for name in ("delays_by_arrival", "delays_by_month", "route_by_month")
            for check in ("slices_complete", "query_fits")
        ),
    }
    # What the UI needs to offer to execute a check by itself.
    for key in graph.asset_check_keys:
        assert graph.get_execution_set_asset_and_check_keys(key) == {key}


def test_a_rollup_depends_on_all_partitions_of_a_raw_table(settings):
    graph = build_definitions(settings).get_repository_def().asset_graph
    key = rollup_key("rollups.route_by_month")
    assert isinstance(graph.get_partition_mapping(key, FLIGHTS), AllPartitionMapping)


def test_table_whose_spec_is_refused_exists_with_its_check(settings):
    from pathlib import Path

    (Path(settings.tables) / "lost.yaml").write_text("name: s.lost\nselector: [")
    graph = build_definitions(settings).get_repository_def().asset_graph
    lost = AssetKey(["s", "lost"])
    assert graph.get(lost).group_name == "raw"
    assert [(k.name, k.asset_key) for k in graph.asset_check_keys if k.asset_key == lost] == [
        ("keeps_up", lost)
    ]


def test_sensors_name_the_assets_that_they_fill(settings):
    """The page of an asset shows these sensors, and not that no automation was found for it."""
    repository = build_definitions(settings).get_repository_def()
    graph = repository.asset_graph
    fills = {
        s.name: {key.to_user_string() for key in s.asset_selection.resolve(graph)}
        for s in repository.sensor_defs
        if s.asset_selection is not None
    }
    rollups = {"delays_by_arrival", "delays_by_month", "route_by_month"}
    assert fills == {
        "fragments": {"table_specs", "flights/flights", "journals/flights/flights"},
        "typed": {"typed/flights", "typed/flights_quarantine"},
        "typed_automation": {"typed/flights"},
        "rollup_automation": {f"rollups/{name}" for name in rollups},
    }


def test_each_of_several_sensors_names_the_tables_that_it_fills(settings):
    from dataclasses import replace

    (Path(settings.tables) / "other.yaml").write_text(
        "{name: s.other, selector: name=a, format: json, columns: [{name: id, type: int}]}"
    )
    repository = build_definitions(replace(settings, fragment_sensors=4)).get_repository_def()
    fills = [
        key.to_user_string()
        for s in repository.sensor_defs
        if s.name.startswith("fragments") and s.asset_selection is not None
        for key in s.asset_selection.resolve(repository.asset_graph)
    ]
    assert sorted(fills) == [
        *("flights/flights", "journals/flights/flights"),
        *("journals/s/other", "s/other", "table_specs"),
    ]


def test_column_list_marks_partition_columns(settings):
    graph = build_definitions(settings).get_repository_def().asset_graph

    def marked(name):
        columns = graph.get(table_key(name)).metadata["dagster/column_schema"].columns
        return {c.name: c.constraints.other[0] for c in columns if c.constraints.other}

    assert marked("flights.flights") == dict.fromkeys(
        ["origin", "part", "append_date", "append_hour"], "partition column"
    )
    assert marked("typed.flights") == {"departs_at": "partition: month(departs_at)"}


def test_rollup_is_described_by_its_header_and_its_query(settings):
    graph = build_definitions(settings).get_repository_def().asset_graph
    paragraphs = graph.get(rollup_key("rollups.route_by_month")).description.split("\n\n")
    header, query, made = paragraphs
    spec = read_rollup_folder(settings.rollups, ()).specs["rollups.route_by_month"]
    assert header == spec.comment
    assert query.startswith("Grain: one row")
    assert made == (
        "Trino builds it from `flights.flights`, as soon as one changes. Each value of `origin` is a slice."
    )
    bare = RollupSpec(
        name="r.bare", engine="spark", sql="select 1", sources={"a": "s.a", "b": "s.b"}
    )
    (asset,) = rollup_definitions([bare]).assets
    assert asset.specs_by_key[rollup_key("r.bare")].description == (
        "Spark builds it from `s.a`, `s.b`, as soon as one changes."
    )


def test_pages_say_who_fills_a_table(settings):
    graph = build_definitions(settings).get_repository_def().asset_graph
    first, *_, last = graph.get(FLIGHTS).description.splitlines()
    assert first == "Departures from New York City in 2013, as published."
    assert last.startswith("Raw table of the journals `name:prefix=flights/`. You do not run it: a")
    journals = graph.get(AssetKey(["journals", "flights", "flights"])).description
    for name in ("`flights.flights`", "`write_head`", "`registered`", "`lag_bytes`"):
        assert name in journals


def test_a_condition_says_in_words_how_often_it_is_looked_at(settings):
    graph = build_definitions(settings).get_repository_def().asset_graph
    condition = graph.get(rollup_key("rollups.route_by_month")).automation_condition
    assert condition.get_label() == "sources changed, at most once a minute"
    nightly = rollup_condition(carriers.spec)
    assert nightly.get_label() == "sources changed, when 0 3 * * * has passed"


def test_rollups_exist_if_their_engine_does(settings):
    from dataclasses import replace

    def made(**changes):
        repository = build_definitions(replace(settings, **changes)).get_repository_def()
        graph = repository.asset_graph
        return {
            k.path[1]
            for k in graph.get_all_asset_keys()
            if graph.get(k).is_executable and k.path[0] == "rollups"
        }

    assert made(trino="", iceberg_jar="") == set()
    assert made(iceberg_jar="") == {"route_by_month", "delays_by_month"}
    assert made(trino="") == {"delays_by_arrival"}
    assert made(rollups="") == set()


def test_assets_go_by_the_names_of_trinos_catalogs(settings):
    from dataclasses import replace

    other = replace(settings, trino_catalogs=TrinoCatalogs(hive="raw-lake", iceberg="lake"))
    graph = build_definitions(other).get_repository_def().asset_graph
    named = {
        key.path[1]: graph.get(key).metadata["dagster/table_name"]
        for key in (FLIGHTS, rollup_key("rollups.route_by_month"))
    }
    assert named == {
        "flights": "raw-lake.flights.flights",
        "route_by_month": "lake.rollups.route_by_month",
    }


def test_spark_that_is_not_configured_is_reported_when_it_is_used():
    spark = platform_resources(LakeSettings())["spark"]
    with pytest.raises(SetupError, match="set GAZETTE_METASTORE_URI"):
        _ = spark.spark_session


def test_rollup_of_the_name_of_a_raw_table_is_refused_and_no_other(settings, tmp_path):
    from dataclasses import replace

    (tmp_path / "trino").mkdir()
    for name in ("flights.flights", "flights.other"):
        text = f"-- name: {name}\n-- sources: {{x: r.a}}\nselect * from x"
        (tmp_path / "trino" / f"{name}.sql").write_text(text)
    definitions = build_definitions(replace(settings, rollups=str(tmp_path)))
    graph = definitions.get_repository_def().asset_graph
    assert not graph.get(FLIGHTS).is_executable
    assert graph.get(AssetKey(["flights", "other"])).is_executable
    assert list(definitions.resources["lake"].rollup_folder().errors) == ["flights.flights"]


@rollup(name="mine.carriers", sources=["flights.flights"], slices=["origin"], cron="0 3 * * *")
def carriers(flights):
    """Flights of each carrier."""
    return flights.groupBy("origin", "carrier").count()


def test_rollups_may_be_functions(settings):
    definitions = Definitions.merge(
        rollup_definitions([carriers]), Definitions(resources=platform_resources(settings))
    )
    repository = definitions.get_repository_def()
    node = repository.asset_graph.get(AssetKey(["mine", "carriers"]))
    assert (node.parent_keys, node.kinds) == ({FLIGHTS}, {"pyspark", "iceberg"})
    assert node.code_version == carriers.spec.code_version
    assert "0 3 * * *" in node.automation_condition.get_label()
    assert "rollup_automation" in {s.name for s in repository.sensor_defs}


def test_definitions_of_a_hundred_tables_load_in_seconds(settings):
    """5 s on a machine of its own; four times as long on a slow one."""
    columns = "".join(f"  - {{name: c{n}, type: bigint, comment: x}}\n" for n in range(30))
    for n in range(100):
        text = f"name: s.t{n}\nselector: name:prefix=t{n}/\nformat: json\ncolumns:\n{columns}"
        (Path(settings.tables) / f"t{n}.yaml").write_text(text)
    begun = time.process_time()
    repository = build_definitions(settings).get_repository_def()
    keys = repository.asset_graph.asset_check_keys
    taken_s = time.process_time() - begun
    assert (
        len(keys) == 101 * 5 + 1 + 7 + 4
    )  # of tables, of their folder, of rollups, and of a typed table
    assert taken_s < 20


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
    assert run.stdout.strip() == "3"


# ----------------------------------------------------------------------------- staleness


ROUTES = RollupSpec(
    name="rollups.route_by_month",
    engine="trino",
    sql="select * from flights",
    sources={"flights": "flights.flights"},
)
LATER = RollupSpec(
    name="rollups.later", engine="trino", sql="x", sources={"r": "rollups.route_by_month"}
)


@pytest.fixture
def instance():
    with new_instance() as made:
        yield made


def materialize(instance, key, partition=None, metadata=None, tags=None):
    instance.report_runless_asset_event(
        AssetMaterialization(key, partition=partition, metadata=metadata or {}, tags=tags)
    )


def test_mark_follows_each_materialization_of_a_raw_table(instance):
    assert sources_mark(instance, ROUTES) == ""
    materialize(instance, FLIGHTS, "JFK/000/5")
    first = sources_mark(instance, ROUTES)
    assert len(first) == 16
    assert sources_mark(instance, ROUTES) == first
    materialize(instance, FLIGHTS, "JFK/000/5")
    assert sources_mark(instance, ROUTES) != first


def test_mark_follows_overlaps_and_not_what_a_green_check_counts(instance):
    materialize(instance, FLIGHTS, "JFK/000/5")
    first = sources_mark(instance, ROUTES)

    def mark_after(text, *, passed):
        instance.report_runless_asset_event(
            AssetCheckEvaluation(
                asset_key=FLIGHTS, check_name="no_overlap", passed=passed, description=text
            )
        )
        return sources_mark(instance, ROUTES)

    assert mark_after("1 record", passed=True) == mark_after("2 records", passed=True) == first
    assert mark_after("two files hold the same", passed=False) != first


def test_mark_follows_the_code(instance):
    materialize(instance, FLIGHTS, "JFK/000/5")
    fields = {name: getattr(ROUTES, name) for name in ROUTES.__struct_fields__}
    marks = {
        sources_mark(instance, RollupSpec(**fields | change))
        for change in ({}, {"sql": "select 1"}, {"retention": "follow"}, {"cron": "0 0 * * *"})
    }
    assert len(marks) == 3


def test_mark_follows_what_a_rollup_covers_not_its_runs(instance):
    key = rollup_key("rollups.route_by_month")
    assert sources_mark(instance, LATER) == ""
    materialize(instance, key, tags={"dagster/data_version": "one"})
    first = sources_mark(instance, LATER)
    materialize(instance, key, tags={"dagster/data_version": "one"})
    assert sources_mark(instance, LATER) == first
    materialize(instance, key, tags={"dagster/data_version": "two"})
    assert sources_mark(instance, LATER) != first


def test_mark_follows_the_overlap_check_while_it_is_red(instance):
    def check(kind):
        found = [Finding(kind=kind, journal="j", begin=0, end=9, text="twice")] if kind else []
        return tell(found)

    def tell(found):
        for evaluation in check_evaluations("flights.flights", found):
            instance.report_runless_asset_event(evaluation)
        return sources_mark(instance, ROUTES)

    materialize(instance, FLIGHTS, "JFK/000")
    unchecked = sources_mark(instance, ROUTES)
    assert check(None) == check("gap") == unchecked
    assert check("overlap") != unchecked
    assert check(None) == unchecked
    # Nothing is known to be wrong with what could not be looked at.
    unseen = Finding(
        kind="overlap", journal="j", begin=0, end=9, text="?", is_error=False, is_checked=False
    )
    assert tell([unseen]) == unchecked


def test_a_rollup_of_the_definitions_rests_once_its_mark_is_noted(instance, settings):
    """With the very spec that the definitions have."""

    def asked(cursor=None):
        result = evaluate_automation_conditions(
            definitions, instance, AssetSelection.assets(key), cursor=cursor
        )
        return result.get_num_requested(key)

    definitions = build_definitions(settings)
    spec = read_rollup_folder(settings.rollups, ()).specs["rollups.route_by_month"]
    key = rollup_key(spec.name)
    assert asked() == 0
    materialize(instance, FLIGHTS, "EWR/000")
    assert asked() == 1
    mark = sources_mark(instance, spec)
    assert noted_mark(instance, key) == ""
    materialize(instance, key, metadata={SOURCES_KEY: mark})
    assert noted_mark(instance, key) == mark
    assert asked() == 0
    materialize(instance, FLIGHTS, "EWR/000")
    assert asked() == 1


def test_every_op_that_asks_a_server_has_a_pool(settings):
    """Without one `gazette up` could limit only all runs together."""
    servers = {"broker", "metastore", "trino", "spark"}
    repository = build_definitions(settings).get_repository_def()
    graph = repository.asset_graph
    found = {}
    for job in repository.get_all_jobs():
        for node in job.all_node_defs:
            if servers & set(getattr(node, "required_resource_keys", ())):
                found[node.name] = node.pool
    assert {pool for pool in found.values() if pool != CHECKS_POOL} == {
        "iceberg.maintenance",
        "iceberg.rollups.delays_by_arrival",
        "iceberg.rollups.delays_by_month",
        "iceberg.rollups.route_by_month",
        "iceberg.typed.flights",
    }
    checks = [key for key in graph.asset_check_keys if key.asset_key == FLIGHTS]
    assert len([pool for pool in found.values() if pool == CHECKS_POOL]) >= len(checks) == 5
