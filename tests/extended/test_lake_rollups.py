"""Rollups in the real engines: made by either, read by both, fenced by the metastore.

The rollups are those of the demo, run as Dagster's assets, over fragments that the registrar registers.
"""

import json
import os
import threading
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from dagster import DagsterInstance, ResourceDefinition, RunConfig, materialize
from lake_bench import FragmentFiles
from trino import dbapi

from gazette_platform.assets import RollupConfig, rollup_asset
from gazette_platform.errors import LakeError, RollupFenced
from gazette_platform.lake import (
    Auditor,
    Registrar,
    StoreRoots,
    ensure_exact_view,
    excluded_files,
    parse_table_spec,
)
from gazette_platform.lake.rollups import PythonRollup, load_rollup_specs, rollup
from gazette_platform.lake.rollups.engines import SparkEngine, TrinoEngine
from gazette_platform.lake.rollups.iceberg import IcebergTables
from gazette_platform.lake.rollups.maintenance import maintain
from gazette_platform.lake.rollups.running import RollupRunner
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA
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
    text = request.config.rootpath / "gazette_platform/embedded/demo/flights.table.yaml"
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
                for f in auditor.audit(session, spec, table, p.journal).findings
            ]
            ensure_exact_view(session, spec, table, excluded_files(found))
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
            (check,) = result.get_asset_check_evaluations()
        found = event.step_materialization_data.materialization
        return {
            **{key: value.value for key, value in found.metadata.items()},
            "complete": check.passed,
            "version": found.tags["dagster/data_version"],
        }

    return execute


def in_spark(spark, sql):
    return [tuple(row) for row in spark.sql(sql).collect()]


ROUTES = (
    "SELECT origin, dest, month, flights, cancelled, dep_delay_avg "
    "FROM iceberg.rollups.route_by_month ORDER BY 1, 2, 3"
)
DELAYS = (
    "SELECT month, flights, cancelled, delayed, dep_delay_avg "
    "FROM iceberg.rollups.delays_by_month ORDER BY 1"
)


def origins(metadata):
    """What a run tells of the table's columns: of which assets' columns each is made."""
    return {
        column: [f"{dep.asset_key.to_user_string()}.{dep.column_name}" for dep in deps]
        for column, deps in metadata["dagster/column_lineage"].deps_by_column.items()
    }


def snapshots(trino, name):
    sql = f'SELECT count(*) FROM iceberg.rollups."{name}$snapshots"'
    return trino.query(sql)[0][0]


def test_rollup_in_trino_makes_only_what_changed(flights, run, specs, trino, spark):
    flights("JFK", (1, "LAX", 10), (1, "LAX", 20), (1, "LAX", None), (2, "SFO", -5))
    flights("EWR", (1, "IAH", 0))
    first = run(specs["route_by_month"])
    assert (first["slices_made"], first["slices"], first["rows_made"]) == (2, 2, 3)
    assert (first["dagster/row_count"], first["complete"]) == (3, True)
    assert first["table"] == "http://sql/iceberg.rollups.route_by_month"
    types = {c.name: c.type for c in first["dagster/column_schema"].columns}
    assert list(types)[:2] == ["origin", "dest"]
    assert (types["origin"], types["flights"]) == ("string", "bigint")
    assert origins(first) == {
        **{column: [f"flights/flights.{column}"] for column in ("origin", "dest", "year", "month")},
        "flights": [],
        "cancelled": ["flights/flights.dep_time"],
        "dep_delay_avg": ["flights/flights.dep_delay"],
        "arr_delay_avg": ["flights/flights.arr_delay"],
    }
    assert set(first["covers"]) == {"flights/origin=EWR/part=000", "flights/origin=JFK/part=000"}
    expected = [
        ("EWR", "IAH", 1, 1, 0, 0.0),
        ("JFK", "LAX", 1, 3, 1, 15.0),
        ("JFK", "SFO", 2, 1, 0, -5.0),
    ]
    assert trino.query(ROUTES) == expected
    assert in_spark(spark, ROUTES) == expected

    again = run(specs["route_by_month"])
    assert (again["slices_made"], again["version"]) == (0, first["version"])
    assert snapshots(trino, "route_by_month") == 1

    flights("JFK", (1, "LAX", 30), (3, "BOS", 1), hour="06")
    kept = trino.query(
        'SELECT file_path FROM iceberg.rollups."route_by_month$files" '
        "WHERE partition.origin = 'EWR'"
    )
    third = run(specs["route_by_month"])
    assert (third["slices_made"], third["dagster/row_count"]) == (1, 4)
    assert third["version"] != first["version"]
    expected = [
        ("EWR", "IAH", 1, 1, 0, 0.0),
        ("JFK", "BOS", 3, 1, 0, 1.0),
        ("JFK", "LAX", 1, 4, 1, 20.0),
        ("JFK", "SFO", 2, 1, 0, -5.0),
    ]
    assert trino.query(ROUTES) == expected
    spark.catalog.refreshTable("iceberg.rollups.route_by_month")
    assert in_spark(spark, ROUTES) == expected
    now = trino.query('SELECT file_path FROM iceberg.rollups."route_by_month$files"')
    assert set(kept) <= set(now)


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


@pytest.mark.parametrize("name", ["route_by_month", "delays_by_arrival"])
def test_what_did_not_change_is_not_read_again(flights, files, run, specs, trino, name):
    """A file that would fail any query which reads it stands for all that has not changed."""
    flights("EWR", (1, "IAH", 0))
    run(specs[name])
    (path,) = (files.root / "flights/origin=EWR").rglob("*.gz")
    path.write_bytes(b"\x1f\x8b\x08\x00 not gzip at all")
    flights("JFK", (1, "LAX", 10), hour="06")
    assert run(specs[name])["slices_made"] == 1
    assert trino.query(f"SELECT sum(flights) FROM iceberg.rollups.{name}") == [(2,)]
    # The other way round it would have been noticed.
    with pytest.raises(Exception, match=r"(?i)gzip|zlib|fail"):
        run(specs[name], force=True)
    assert trino.query(f"SELECT sum(flights) FROM iceberg.rollups.{name}") == [(2,)]


@pytest.mark.parametrize("name", ["route_by_month", "delays_by_arrival"])
def test_rows_of_overlapping_files_are_read_once(flights, files, run, specs, trino, name):
    flights("JFK", (1, "LAX", 10), (1, "LAX", 20))
    run(specs[name])
    count = f"SELECT sum(flights) FROM iceberg.rollups.{name}"
    assert trino.query(count) == [(2,)]
    content = flight(1, "JFK", "LAX", 10)
    postfix = "append_date=2026-01-02/append_hour=05"
    files.forget(files.append("flights/origin=JFK/part=000", content, postfix=postfix, begin=0))
    flights("JFK", (2, "SFO", 5), hour="07")
    assert trino.query("SELECT count(*) FROM hive.flights.flights") == [(4,)]
    run(specs[name])
    assert trino.query(count) == [(3,)]


def test_pruned_content_stays_unless_the_spec_follows(flights, run, specs, trino, metastore):
    report = flights("JFK", (1, "LAX", 10))
    flights("JFK", (2, "SFO", 5), hour="06")
    flights("EWR", (2, "SFO", 5), hour="06")
    run(specs["route_by_month"])
    before = trino.query(ROUTES)
    with metastore.connect() as session:
        table = session.table("flights", "flights")
        session.drop_partition(table, report.updates[0].values)
    idle = run(specs["route_by_month"])
    assert (idle["slices_made"], idle["complete"]) == (0, True)
    # A slice that lost content cannot take new content without shrinking: told, and left.
    with metastore.connect() as session:
        for values in (p.values for p in session.partitions(table)):
            if values[0] == "JFK":
                session.drop_partition(table, values)
    left = run(specs["route_by_month"])
    assert (left["slices_made"], trino.query(ROUTES)) == (0, before)
    follows = msgspec.structs.replace(specs["route_by_month"], retention="follow")
    gone = run(follows)
    assert (gone["slices_dropped"], gone["slices"]) == (1, 1)
    assert trino.query(ROUTES) == [("EWR", "SFO", 2, 1, 0, 5.0)]


@pytest.mark.parametrize("name", ["route_by_month", "delays_by_arrival"])
@pytest.mark.parametrize("retention", ["keep", "follow"])
def test_a_store_that_is_away_is_waited_for(flights, files, run, specs, trino, name, retention):
    """Engines read absent directories as empty: what was made of them would never be made again."""
    spec = msgspec.structs.replace(specs[name], retention=retention)
    flights("JFK", (1, "LAX", 10))
    flights("EWR", (1, "IAH", 0))
    folder = files.root / "flights/origin=EWR"
    away = folder.rename(files.root / "away")
    assert trino.query("SELECT count(*) FROM hive.flights.flights") == [(1,)]
    first = run(spec)
    assert not first["complete"]
    away.rename(folder)
    assert run(spec)["complete"]
    assert trino.query(f"SELECT sum(flights) FROM iceberg.rollups.{name}") == [(2,)]


def test_other_code_and_columns_replace_the_table_in_one_commit(flights, run, specs, trino, spark):
    flights("JFK", (1, "LAX", 10), (2, "SFO", -5))
    flights("EWR", (1, "IAH", 0))
    for name in ("route_by_month", "delays_by_arrival"):
        run(specs[name])
        spec = specs[name]
        other = msgspec.structs.replace(
            spec, sql=spec.sql.replace("count(*) AS flights", "'x' AS note, count(*) AS flights")
        )
        found = run(other)
        assert found["slices_made"] == found["slices"]
        sql = f"SELECT DISTINCT note, flights FROM iceberg.rollups.{name} WHERE flights = 1"
        assert trino.query(sql) == [("x", 1)]
        spark.catalog.refreshTable(f"iceberg.rollups.{name}")
        assert in_spark(spark, sql) == [("x", 1)]
        assert run(other)["slices_made"] == 0
        assert snapshots(trino, name) == 1


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


class Held:
    """An engine whose run is held up, after it made its slices, until others are through."""

    def __init__(self, engine, others):
        self.engine = engine
        self.others = others

    def stage(self, *arguments, **options):
        self.engine.stage(*arguments, **options)
        others, self.others = self.others, lambda: None
        others()


@pytest.mark.parametrize("name", ["route_by_month", "delays_by_arrival"])
def test_zombie_cannot_put_a_table_back(flights, specs, trino, spark, tables, metastore, name):
    engine = TrinoEngine(trino) if name == "route_by_month" else SparkEngine(spark)
    spec = specs[name]
    flights("JFK", (1, "LAX", 10))
    RollupRunner(metastore, tables, engine).run(spec)
    flights("JFK", (1, "LAX", 20))

    def others():
        flights("JFK", (1, "LAX", 30))
        RollupRunner(metastore, tables, engine).run(spec)

    with pytest.raises(RollupFenced):
        RollupRunner(metastore, tables, Held(engine, others)).run(spec)
    assert trino.query(f"SELECT sum(flights) FROM iceberg.rollups.{name}") == [(3,)]
    assert RollupRunner(metastore, tables, engine).run(spec).made == []


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


def test_query_that_the_engine_refuses_is_told_and_changes_nothing(
    flights, specs, trino, spark, tables, metastore
):
    flights("JFK", (1, "LAX", 10))
    for name, engine in (
        ("route_by_month", TrinoEngine(trino)),
        ("delays_by_arrival", SparkEngine(spark)),
    ):
        spec = msgspec.structs.replace(specs[name], sql="SELECT no_such FROM flights")
        with pytest.raises(LakeError, match="no_such"):
            RollupRunner(metastore, tables, engine).run(spec)
        assert tables.load("rollups", name) is None


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
