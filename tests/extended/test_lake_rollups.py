"""Rollups in the real engines: made by either, read by both, fenced by the metastore.

The rollups are those of the demo, run as Dagster's assets, over fragments that the registrar registers.
"""

import json
import os
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dagster import DagsterInstance, ResourceDefinition, RunConfig, materialize
from lake_bench import FragmentFiles
from trino import dbapi

from gazette_platform.assets import RollupConfig, rollup_asset
from gazette_platform.lake import (
    Auditor,
    Registrar,
    StoreRoots,
    ensure_views,
    excluded_files,
    parse_table_spec,
)
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.rollups import PythonRollup, load_rollup_specs, rollup
from gazette_platform.lake.rollups.engines import SparkEngine, TrinoEngine
from gazette_platform.lake.rollups.running import RollupRunner
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA
from gazette_platform.lake.rollups.table import maintain
from gazette_platform.ops.clock import SystemClock
from gazette_platform.resources import LakeResource, MetastoreResource, TrinoResource

# The first test pays for the start of three servers.
pytestmark = [
    pytest.mark.hive,
    pytest.mark.trino,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def flight(month, origin, dest, delay):
    record = {"year": 2013, "month": month, "day": 1, "origin": origin, "dest": dest, "hour": 5}
    if delay is not None:
        record |= {"dep_time": 500, "dep_delay": delay, "arr_delay": delay + 1}
    return json.dumps(record).encode() + b"\n"


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def flights(request, files, metastore):
    text = request.config.rootpath / "gazette_platform/platform/demo/flights.table.yaml"
    spec = parse_table_spec(text.read_text())
    registrar = Registrar(files, metastore, StoreRoots(files.roots))

    def publish(origin, *records, hour="05"):
        if records:
            files.append(
                f"flights/origin={origin}/part=000",
                b"".join(flight(month, origin, *rest) for month, *rest in records),
                postfix=f"append_date=2026-01-02/append_hour={hour}",
            )
        report = registrar.tick(spec, {})
        assert report.errors == []
        auditor = Auditor(files, StoreRoots(files.roots))
        with metastore.connect() as session:
            table = session.table("flights", "flights")
            found = [
                f
                for p in report.journals
                for f in auditor.audit(session, table, p.journal).findings
            ]
            ensure_views(session, spec, table, excluded_files(found))
        return report

    return publish


@pytest.fixture
def tables(metastore, lake_settings):
    return IcebergTables(metastore, lake_settings.warehouse)


@pytest.fixture(autouse=True)
def no_tables_left(metastore):
    yield
    with metastore.connect() as session:
        assert session.tables(STAGING_SCHEMA) == []
        for database in ("flights", "rollups"):
            for table in session.tables(database):
                session.drop_table(database, table)


@pytest.fixture
def specs(request):
    found, errors = load_rollup_specs(request.config.rootpath / "sql" / "demo")
    assert errors == {}
    return {spec.table: spec for spec in found.values()}


@pytest.fixture
def run(lake_settings, trino, spark):
    """Runs a rollup as its asset; returns the metadata of the materialization."""

    class Lazy:
        spark_session = spark

    def execute(one, *, force=False):
        made = rollup_asset(one)
        with DagsterInstance.ephemeral() as instance:
            result = materialize(
                [made],
                instance=instance,
                resources={
                    "trino": TrinoResource(uri=lake_settings.trino),
                    "metastore": MetastoreResource(uri=lake_settings.metastore),
                    "lake": LakeResource(
                        tables="",
                        warehouse=lake_settings.warehouse,
                        table_url="http://sql/{catalog}.{schema}.{table}",
                    ),
                    "spark": ResourceDefinition.hardcoded_resource(Lazy()),
                },
                run_config=RunConfig({made.op.name: RollupConfig(force=force)}),
            )
            assert result.success
            (event,) = result.get_asset_materialization_events()
            checks = {
                check.check_name: check.passed for check in result.get_asset_check_evaluations()
            }
            assert checks.get("query_fits", True)  # functions do not have it
        found = event.step_materialization_data.materialization
        return {
            **{key: value.value for key, value in found.metadata.items()},
            "complete": checks["slices_complete"],
            "version": found.tags["dagster/data_version"],
        }

    return execute


def in_spark(spark, sql):
    return [tuple(row) for row in spark.sql(sql).collect()]


DELAYS = (
    "SELECT month, flights, cancelled, delayed, dep_delay_avg "
    "FROM iceberg.rollups.delays_by_month ORDER BY 1"
)


def origins(metadata):
    """Return the lineage that a run reports: the source columns of each column of the table."""
    return {
        column: [f"{dep.asset_key.to_user_string()}.{dep.column_name}" for dep in deps]
        for column, deps in metadata["dagster/column_lineage"].deps_by_column.items()
    }


def snapshots(trino, name):
    sql = f'SELECT count(*) FROM iceberg.rollups."{name}$snapshots"'
    return trino.query(sql)[0][0]


def test_rollup_in_spark_and_one_of_it_in_trino(flights, run, specs, trino, spark):
    flights("JFK", (1, "LAX", 10), (1, "LAX", 20), (1, "LAX", None), (2, "SFO", -5))
    first = run(specs["delays_by_arrival"])
    assert (first["slices_made"], first["rows_made"]) == (1, 2)
    of_raw = origins(first)
    assert list(of_raw) == [c.name for c in first["dagster/column_schema"].columns]
    assert of_raw["append_hour"] == ["flights/flights.append_hour"]
    assert of_raw["delayed"] == of_raw["dep_delay_sum"] == ["flights/flights.dep_delay"]
    assert origins(run(specs["delays_by_month"]))["dep_delay_avg"] == [
        "rollups/delays_by_arrival.dep_delay_sum",
        "rollups/delays_by_arrival.departed",
    ]
    expected = [(1, 3, 1, 1, 15.0), (2, 1, 0, 0, -5.0)]
    assert trino.query(DELAYS) == expected
    assert in_spark(spark, DELAYS) == expected
    assert run(specs["delays_by_arrival"])["slices_made"] == 0
    assert run(specs["delays_by_month"])["slices_made"] == 0

    flights("JFK", (2, "SFO", 5), (3, "SFO", 5), hour="06")
    assert run(specs["delays_by_arrival"])["slices_made"] == 1
    assert run(specs["delays_by_month"])["slices_made"] == 1
    expected = [(1, 3, 1, 1, 15.0), (2, 2, 0, 0, 0.0), (3, 1, 0, 0, 5.0)]
    assert trino.query(DELAYS) == expected
    assert in_spark(spark, DELAYS) == expected


def test_function_of_data_frames(flights, run, spark, trino):
    @rollup(name="rollups.by_dest", sources=["flights.flights"], slices=["origin"])
    def by_dest(flights):
        return flights.groupBy("origin", "dest").count()

    assert isinstance(by_dest, PythonRollup)
    flights("JFK", (1, "LAX", 10), (1, "LAX", 20))
    flights("EWR", (1, "IAH", 0))
    assert run(by_dest)["slices_made"] == 2
    sql = "SELECT * FROM iceberg.rollups.by_dest ORDER BY 1"
    assert trino.query(sql) == [("EWR", "IAH", 1), ("JFK", "LAX", 2)]
    flights("JFK", (1, "LAX", 1), hour="07")
    assert run(by_dest)["slices_made"] == 1
    assert trino.query(sql) == [("EWR", "IAH", 1), ("JFK", "LAX", 3)]
    assert run(by_dest)["slices_made"] == 0


# ------------------------------------------------------------------ the fence


def test_of_many_who_swap_at_once_exactly_one_does(flights, specs, trino, tables, metastore):
    flights("JFK", (1, "LAX", 10))
    RollupRunner(metastore, tables, TrinoEngine(trino)).run(specs["route_by_month"])
    for turn in range(3):
        table = tables.load("rollups", "route_by_month")
        paths = [tables.write_metadata(table.metadata, 100 * turn + n) for n in range(8)]
        won = []

        def swap(path, table=table, won=won):
            if tables.swap(table, path):
                won.append(path)

        threads = [threading.Thread(target=swap, args=(path,)) for path in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(won) == 1
        assert tables.load("rollups", "route_by_month").metadata_location == won[0]


def test_metastore_refuses_who_has_looked_too_early(flights, specs, trino, tables, metastore):
    """Without any lock: what the metastore compares is enough."""
    flights("JFK", (1, "LAX", 10))
    RollupRunner(metastore, tables, TrinoEngine(trino)).run(specs["route_by_month"])
    table = tables.load("rollups", "route_by_month")
    first, second = (tables.write_metadata(table.metadata, n) for n in (7, 8))
    with metastore.connect() as session:
        client = session._client
        get_table = client.get_table

        def looked_early(*arguments):
            found = get_table(*arguments)
            client.get_table = get_table
            with metastore.connect() as other:
                assert other._swap("rollups", "route_by_month", table.metadata_location, first)
            return found

        client.get_table = looked_early
        assert not session._swap("rollups", "route_by_month", table.metadata_location, second)
    assert tables.load("rollups", "route_by_month").metadata_location == first


# ------------------------------------------------------------------ maintenance


def age(location, days):
    """Make all files below a location older. Returns: how many there are."""
    found = [path for path in Path(location.removeprefix("file://")).rglob("*") if path.is_file()]
    then = SystemClock().unix_s() - days * 86400
    for path in found:
        os.utime(path, (then, then))
    return len(found)


def without_least_retention(settings):
    """Runs statements of Trino in a session that lets anything expire."""
    address = urlsplit(settings.trino)
    names = ("expire_snapshots_min_retention", "remove_orphan_files_min_retention")

    def execute(sql):
        connection = dbapi.connect(
            host=address.hostname,
            port=address.port,
            user="gazette",
            session_properties={f"iceberg.{name}": "0s" for name in names},
        )
        try:
            connection.cursor().execute(sql).fetchall()
        finally:
            connection.close()

    return execute


@pytest.mark.parametrize("name", ["route_by_month", "delays_by_arrival"])
def test_maintenance_keeps_what_the_table_holds_and_covers(
    flights, specs, trino, spark, tables, metastore, lake_settings, name
):
    spec = specs[name]
    if name == "route_by_month":
        engine, execute = TrinoEngine(trino), without_least_retention(lake_settings)
    else:
        engine = SparkEngine(spark)
        execute = engine.execute
    runner = RollupRunner(metastore, tables, engine)
    for delay in (10, 20, 30):
        flights("JFK", (1, "LAX", delay))
        flights("EWR", (2, "IAH", delay))
        runner.run(spec)
    sql = f"SELECT * FROM iceberg.rollups.{name} ORDER BY 1, 2, 3, 4"  # which is all of a row's key
    before = trino.query(sql)
    table = tables.load("rollups", name)
    files_before = age(table.metadata.location, 10)
    retained_s = 0.0 if name == "route_by_month" else 25 * 3600.0
    done = maintain(
        tables, engine.dialect, execute, spec, now_s=SystemClock().unix_s(), retained_s=retained_s
    )
    assert done.undeleted == ()
    if name == "route_by_month":
        assert (done.snapshots_before, done.snapshots) == (3, 1)
    # The staging tables' own metadata were orphans.
    assert age(table.metadata.location, 10) < files_before
    assert trino.query(sql) == before
    spark.catalog.refreshTable(f"iceberg.rollups.{name}")
    assert len(in_spark(spark, sql)) == len(before)
    assert runner.run(spec).made == []
    flights("JFK", (1, "LAX", 40))
    assert len(runner.run(spec).made) == 1
    (total,) = trino.query(f"SELECT sum(flights) FROM iceberg.rollups.{name}")
    assert total == (7,)
