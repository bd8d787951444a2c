"""Tables of the example flights-live: what its consumer publishes, as Trino and Spark have it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from examples.flights_live import tables
from examples.flights_live.application import FlightsLive
from examples.flights_live.data import dataset, flights_of, planes_of
from examples.flights_live.messages import FLIGHTS, PLANES
from examples.flights_live.player import play
from examples.flights_live.tour import Report, published
from gazette_platform.consumer.protocol.shard_yaml import parse_shard_changes
from gazette_platform.lake import ensure_exact_view, parse_table_spec
from gazette_platform.lake.rollups import load_rollup_specs
from gazette_platform.lake.rollups.engines import SparkEngine, TrinoEngine
from gazette_platform.lake.rollups.iceberg import IcebergTables
from gazette_platform.lake.rollups.running import RollupRunner
from gazette_platform.yaml_specs import parse_journal_tree

# The first test of a run pays for the start of three servers.
pytestmark = [
    pytest.mark.etcd,
    pytest.mark.hive,
    pytest.mark.trino,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # PySpark leaves the sockets over which it collects rows to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

FOLDER = Path(tables.__file__).parent
COUNT = 2000


@pytest.fixture(scope="module")
def flights():
    """Read before brokers start: it takes longer than their leases on a busy machine."""
    return flights_of(dataset(), COUNT)


@pytest.fixture(autouse=True)
def no_tables_left(metastore):
    yield
    with metastore.connect() as session:
        for database in ("flights_live", "typed", "rollups"):
            for table in session.tables(database):
                session.drop_table(database, table)


@pytest.fixture
def gazctl(local_brokers, lake_settings, tmp_path):
    """Runs a command on the lake, whose fragments are those of the brokers."""

    async def run(broker, *arguments):
        environment = {
            "BROKER_ADDRESS": broker,
            "GAZETTE_BROKER_ADDRESS": broker,
            "GAZETTE_METASTORE_URI": lake_settings.metastore,
            "GAZETTE_WAREHOUSE": lake_settings.warehouse,
            "GAZETTE_TABLES": str(tmp_path / "tables"),
            "GAZETTE_LAKE_STORE_ROOTS": json.dumps(
                {"file:///": f"file://{local_brokers.fragments}/"}
            ),
        }
        (tmp_path / "tables").mkdir(exist_ok=True)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "gazette_platform.cli.gazctl", *arguments],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def make_rollups(metastore, lake_settings, trino, spark):
    """Makes each rollup by its engine, as Dagster would."""
    specs, errors = load_rollup_specs(FOLDER / "rollups")
    assert errors == {}
    made_of = IcebergTables(metastore, lake_settings.warehouse)

    def make():
        spec = parse_table_spec((FOLDER / "table.yaml").read_text())
        with metastore.connect() as session:
            raw = session.table("flights_live", "enriched")
            ensure_exact_view(session, spec, raw, {})
        for one in specs.values():
            engine = TrinoEngine(trino) if one.engine == "trino" else SparkEngine(spark)
            RollupRunner(metastore, made_of, engine).run(one)
        return {one.engine for one in specs.values()}

    return make


async def enrich(consumers, prefix, flights):
    """Have flights enriched while a consumer is killed."""
    client = consumers.client
    await client.apply(parse_journal_tree((FOLDER / "journals.yaml").read_text()))
    first = await consumers.start(FlightsLive())
    changes = parse_shard_changes((FOLDER / "shards.yaml").read_text())
    specs = [replace(each.spec, hint_prefix=f"{prefix}-hints") for each in changes]
    await consumers.create_shards(*specs)
    await play(client, PLANES, planes_of(dataset()))
    await consumers.wait_through()
    async with asyncio.TaskGroup() as playing:
        playing.create_task(play(client, FLIGHTS, flights, per_second=COUNT))
        await asyncio.sleep(0.5)
        await consumers.crash(first)
        await consumers.start(FlightsLive())
    for spec in specs:
        await consumers.wait_primary(spec.id)
    await consumers.wait_through()


async def test_both_engines_have_each_flight_once(
    flights, local_consumers, etcd_prefix, gazctl, make_rollups, trino, spark, monkeypatch
):
    # So that the raw table has what is taken back, of small transactions as well.
    monkeypatch.setattr("gazette_platform.consumer.publisher._HELD_BYTES_MAX", 0)
    client = local_consumers.client
    await enrich(local_consumers, etcd_prefix, [replace(each) for each in flights])
    await gazctl(client.config.address, "lake", "apply", str(FOLDER / "table.yaml"))
    told = await gazctl(client.config.address, "lake", "flush", "flights_live.enriched")
    assert f"typed.flights_live: {COUNT} row(s), 0 quarantined" in told
    assert await asyncio.to_thread(make_rollups) == {"trino", "spark"}

    report = Report(played=COUNT)
    report.committed, report.appended = await published(client)
    in_spark = tables.in_spark(spark)
    await asyncio.to_thread(report.compare, trino.query, in_spark)
    assert report.is_ok, report
    assert report.line().startswith(f"flights-live: ok played={COUNT} enriched={COUNT} taken_back=")

    routes = (
        "SELECT origin, dest, sum(flights) FROM iceberg.rollups.flights_live_routes GROUP BY 1, 2"
    )
    expected = Counter((each.origin, each.dest) for each in flights)
    for query in (trino.query, in_spark):
        rows = await asyncio.to_thread(query, routes)
        assert {(origin, dest): count for origin, dest, count in rows} == expected


def test_data_are_the_first_flights_of_the_year_and_their_planes():
    data = dataset()
    flights, planes = flights_of(data, 1000), planes_of(data)
    assert (len(flights), len(planes)) == (1000, 3322)
    first = flights[0]
    assert (first.departs_at, first.carrier, first.flight) == ("2013-01-01T10:15:00Z", "UA", 1545)
    assert {each.tailnum for each in flights} & {each.tailnum for each in planes}
