"""A Spark cluster as others run it: a master, a worker and its executors, each with a process of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lake_bench import FragmentFiles
from lake_servers import spark_session
from spark_servers import spark_cluster

from gazette_platform.lake import Registrar, StoreRoots, ensure_views, parse_table_spec
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.engines import SparkEngine
from gazette_platform.lake.rollups.running import RollupRunner

# The first test pays for the start of the servers.
pytestmark = [
    pytest.mark.hive,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# Not the address that a local Spark is given.
DRIVER_HOST = "127.0.0.2"
SPEC = """
name: own.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
"""

SUMS = RollupSpec(
    name="made.sums",
    engine="spark",
    sql="SELECT hour, sum(id) AS total FROM events GROUP BY hour",
    sources={"events": "own.events"},
    slices=("hour",),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """URL of a master with one worker."""
    with spark_cluster(tmp_path_factory.mktemp("own-spark")) as url:
        yield url


def test_executors_read_raw_tables_and_write_rollups(cluster, lake_settings, metastore, tmp_path):
    files = FragmentFiles(tmp_path / "fragments")
    for hour in range(3):
        content = "".join(f'{{"id": {n}}}\n' for n in range(10)).encode()
        files.append("events/part=0", content, postfix=f"hour={hour:02}")
    properties = tmp_path / "spark.conf"
    properties.write_text(
        f"spark.driver.host {DRIVER_HOST}\nspark.driver.bindAddress {DRIVER_HOST}\n"
        "spark.executor.memory 512m\nspark.sql.shuffle.partitions 3\n"
    )
    spec = parse_table_spec(SPEC)
    report = Registrar(files, metastore, StoreRoots(files.roots)).tick(spec, {})
    with metastore.connect() as session:
        ensure_views(session, spec, report.definition, {})
    settings = replace(
        lake_settings,
        store="",
        s3_jars="",
        spark_master=cluster,
        spark_properties=str(properties),
    )
    with spark_session(settings) as spark:
        counted = spark.sql("SELECT hour, sum(id) FROM own.events_exact GROUP BY 1 ORDER BY 1")
        assert [tuple(row) for row in counted.collect()] == [("00", 45), ("01", 45), ("02", 45)]
        tables = IcebergTables(metastore, settings.warehouse)
        made = RollupRunner(metastore, tables, SparkEngine(spark)).run(SUMS)
        assert (len(made.made), made.rows_total) == (3, 3)
        summed = spark.sql("SELECT sum(total) FROM iceberg.made.sums").collect()
        assert tuple(summed[0]) == (135,)
        context = spark.sparkContext
        assert context.master == cluster
        # The driver, and an executor elsewhere that has found it.
        known = context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(",").split(",")
        assert len(known) == 2
        assert any(each.startswith(DRIVER_HOST) for each in known)
        assert context.getConf().get("spark.sql.shuffle.partitions") == "3"
        spark.sql("DROP TABLE iceberg.made.sums")
    with metastore.connect() as session:
        for name in ("events_exact", "events"):
            session.drop_table("own", name)
