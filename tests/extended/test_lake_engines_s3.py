"""Raw and Iceberg tables on a real S3 server, in the real engines: both see the same rows."""

from __future__ import annotations

import os

import pytest
from bucket_files import BucketFiles, put
from object_servers import need_go

from gazette_platform.lake import (
    Auditor,
    JournalCursor,
    Registrar,
    Repairer,
    StoreRoots,
    ensure_views,
    excluded_files,
    parse_table_spec,
)
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.rollups import parse_rollup
from gazette_platform.lake.rollups.engines import SparkEngine, TrinoEngine
from gazette_platform.lake.rollups.running import RollupRunner
from gazette_platform.lake.settings import S3Access

# The first test pays for the start of four servers.
pytestmark = [
    pytest.mark.s3,
    pytest.mark.hive,
    pytest.mark.trino,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

SPEC = """
name: engines_s3.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=a%3Db+c"


@pytest.fixture(scope="module", autouse=True)
def keys(lake_bucket):
    """Those of the server, as Spark's JVM and this process find them; nothing of this machine's user."""
    need_go("GAZETTE_VERSITYGW")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                patch.delenv(name)
        for name, value in lake_bucket[1].items():
            patch.setenv(name, value)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(autouse=True)
def no_tables_left(metastore):
    yield
    with metastore.connect() as session:
        for database in ("engines_s3", "rollups_s3"):
            for table in session.tables(database):
                session.drop_table(database, table)


def lines(begin, end):
    return b"".join(b'{"id":%d}\n' % (n % 10) for n in range(begin, end))


def test_tables_on_s3_in_both_engines(tmp_path, lake_bucket, metastore, trino, spark):
    store, _ = lake_bucket
    files = BucketFiles(tmp_path / "fragments", store)

    def append(begin, end, hour):
        return files.append(JOURNAL, lines(begin, end), postfix=f"hour={hour:02}", begin=9 * begin)

    def ask(table):
        """Rows and their sum by hour, which both engines must agree on."""
        sql = f"SELECT hour, count(*), sum(id) FROM engines_s3.{table} GROUP BY 1 ORDER BY 1"
        in_trino = trino.query(sql.replace("engines_s3.", "hive.engines_s3."))
        assert [tuple(row) for row in spark.sql(sql).collect()] == in_trino
        return in_trino

    append(0, 10, 5)
    append(10, 30, 6)
    spec, roots = parse_table_spec(SPEC), StoreRoots({})
    registrar = Registrar(files, metastore, roots)
    report = registrar.tick(spec, {})
    assert report.errors == []
    assert [u.rows_added for u in report.updates] == [10, 20]
    assert ask("events") == [(5, 10, 45), (6, 20, 90)]
    paths = trino.query('SELECT DISTINCT "$path" FROM hive.engines_s3.events WHERE hour = 6')
    assert [path.startswith(f"s3://lake/raw/{JOURNAL}/hour=06/") for (path,) in paths] == [True]

    # A file that brokers do not list, in a directory that engines read: rows are seen twice.
    files.forget(append(2, 6, 6))
    put(store, f"{JOURNAL}/hour=06/_not_seen", b"{}")
    assert ask("events")[1] == (6, 24, 90 + 2 + 3 + 4 + 5)
    auditor, repairer = Auditor(files, roots), Repairer(files, roots)
    with metastore.connect() as session:
        table = session.table("engines_s3", "events")
        findings = auditor.audit(session, table, JOURNAL, lists_objects=True).findings
        ensure_views(session, spec, table, excluded_files(findings))
        assert ask("events_exact") == [(5, 10, 45), (6, 20, 90)]
        repair = repairer.repair(session, table, findings, {JOURNAL: JournalCursor(270)})
    assert [m.rows for m in repair.moved] == [4]
    assert ask("events") == [(5, 10, 45), (6, 20, 90)]

    # Iceberg tables there, written by either engine and read by both.
    location = "s3://lake/raw/.gazette/warehouse/rollups_s3"
    trino.query(f"CREATE SCHEMA iceberg.rollups_s3 WITH (location = '{location}')")
    trino.query(
        "CREATE TABLE iceberg.rollups_s3.by_hour AS "
        "SELECT hour, count(*) AS n FROM hive.engines_s3.events GROUP BY hour"
    )
    spark.sql("INSERT INTO iceberg.rollups_s3.by_hour SELECT 7, 1L")
    sql = "SELECT hour, n FROM iceberg.rollups_s3.by_hour ORDER BY hour"
    assert trino.query(sql) == [(5, 10), (6, 20), (7, 1)]
    assert [tuple(row) for row in spark.sql(sql).collect()] == [(5, 10), (6, 20), (7, 1)]


ROLLUP = """
-- name: rollups_s3.{0}
-- sources: [engines_s3.events]
-- slices: [hour]
--
SELECT hour, count(*) AS n, sum(id) AS total FROM events GROUP BY hour
"""


def test_rollups_on_s3_by_both_engines(tmp_path, lake_bucket, metastore, trino, spark):
    store, _ = lake_bucket
    files = BucketFiles(tmp_path / "fragments", store)
    spec, roots = parse_table_spec(SPEC), StoreRoots({})
    tables = IcebergTables(
        metastore, "s3://lake/raw/.gazette/rolled", S3Access.of(store, {}).iceberg()
    )
    engines = {"trino": TrinoEngine(trino), "spark": SparkEngine(spark)}
    rollups = {name: parse_rollup(ROLLUP.format(name).lstrip(), engine=name) for name in engines}

    def append(begin, end, hour):
        files.append("events/part=1", lines(begin, end), postfix=f"hour={hour:02}", begin=9 * begin)
        report = Registrar(files, metastore, roots).tick(spec, {})
        assert report.errors == []
        with metastore.connect() as session:
            ensure_views(session, spec, report.definition, {})

    def made():
        found = []
        for name, one in rollups.items():
            report = RollupRunner(metastore, tables, engines[name]).run(one)
            sql = f"SELECT hour, n, total FROM iceberg.rollups_s3.{name} ORDER BY hour"
            in_trino = trino.query(sql)
            spark.catalog.refreshTable(f"iceberg.rollups_s3.{name}")
            assert [tuple(row) for row in spark.sql(sql).collect()] == in_trino
            found.append(([hour for (hour,) in report.made], in_trino))
        assert found[0] == found[1]
        return found[0]

    append(0, 10, 5)
    append(10, 30, 6)
    assert made() == (["5", "6"], [(5, 10, 45), (6, 20, 90)])
    append(30, 31, 6)
    assert made() == (["6"], [(5, 10, 45), (6, 21, 90)])
    assert made()[0] == []
