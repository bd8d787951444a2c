"""A typed table's life in Dagster, on a real broker, metastore and Spark: run, told, checked, looked after."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from dagster import (
    AssetCheckEvaluation,
    DagsterInstance,
    ResourceDefinition,
    RunConfig,
    materialize,
)

from gazette_platform.assets.rollups import rollup_asset
from gazette_platform.assets.typed import typed_asset
from gazette_platform.assets.typed_backfill import BackfillConfig, backfill_asset
from gazette_platform.assets.typed_keys import backfill_key, maintenance_key, typed_key
from gazette_platform.assets.typed_maintenance import UpkeepEngine, maintenance_asset
from gazette_platform.client import Change, Client, ClientConfig
from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.engines import SparkEngine
from gazette_platform.lake.rollups.iceberg import IcebergTables
from gazette_platform.lake.typed.catalog.catalogs import HiveTables
from gazette_platform.lake.typed.checks.completeness import check_counts
from gazette_platform.lake.typed.checks.recount import Recounter
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.lake.typed_spec import TypedColumn, TypedSpec
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    LabelSet,
)
from gazette_platform.resources import BrokerResource, LakeResource, MetastoreResource
from gazette_platform.sensors.typed import TypedPorts, run_typed_tick
from tests.typed_crash.messages import JournalLog, Writer

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.hive,
    pytest.mark.spark,
    pytest.mark.timeout(400),  # the first test pays for the start of servers
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

JOURNALS = ("typed_dagster/part=0", "typed_dagster/part=1")
RAW = parse_table_spec(
    "{name: raw_dagster.events, selector: 'name:prefix=typed_dagster/', format: json, "
    "columns: [{name: n, type: bigint}, {name: k, type: string}]}"
)
SPEC = TypedSpec(
    name="typed_dagster.events",
    source=RAW.name,
    uuid=("_meta", "uuid"),
    columns=(
        TypedColumn(name="n", type="bigint", key="n"),
        TypedColumn(name="k", type="string", key="k"),
    ),
)
ROLLUP = RollupSpec(
    name="typed_dagster.parts",
    engine="spark",
    sql="SELECT _journal, count(*) AS n FROM events GROUP BY _journal",
    sources={"events": SPEC.name},
)


@dataclass
class Platform:
    """Servers, a Dagster, and what was appended."""

    client: Client
    spark: Any
    tables: HiveTables
    resources: dict[str, Any]
    instance: DagsterInstance
    logs: dict[str, JournalLog] = field(default_factory=dict)
    writers: dict[str, Writer] = field(default_factory=dict)

    def append(self, *acts, batches=4):
        """Batches of producers to each journal."""
        for name in JOURNALS:
            log = self.logs.setdefault(name, JournalLog())
            writer = self.writers.setdefault(name, Writer(Random(name)))
            for _ in range(batches):
                begin = log.head
                content = log.add(writer.batch(acts), has_late=False)
                if content:
                    self.client.append(name, content, offset=begin)

    def expected(self):
        """How many rows and quarantined records there are to be, and of which journals."""
        found = {name: log.expected() for name, log in self.logs.items()}
        return (
            sum(len(one.rows) for one in found.values()),
            sum(len(one.quarantined) for one in found.values()),
        )

    def materialize(self, *assets, selection=None, partition=None, compare_only=False):
        """Metadata by asset, and checks by name."""
        config = {asset.op.name: BackfillConfig(compare_only=True) for asset in assets}
        result = materialize(
            assets,
            instance=self.instance,
            resources=self.resources,
            selection=selection,
            partition_key=partition,
            run_config=RunConfig(config) if compare_only else None,
        )
        assert result.success
        events = [
            e.step_materialization_data.materialization
            for e in result.get_asset_materialization_events()
        ]
        metadata = {
            e.asset_key.to_user_string(): {k: v.value for k, v in e.metadata.items()}
            for e in events
        }
        return metadata, {c.check_name: c for c in result.get_asset_check_evaluations()}

    def tick(self):
        """What the sensor tells."""
        outcome = run_typed_tick(
            TypedPorts(
                instance=self.instance,
                tables=self.tables,
                behind=lambda *_: SimpleNamespace(
                    bytes=0, journals=0, stored_at=None, holes=(), unreadable={}
                ),
                trino_catalog="iceberg",
                table_page=lambda _: {},
                is_over=lambda: False,
                now_s=SystemClock().unix_s,
            ),
            [(RAW, SPEC)],
            "",
        )
        assert outcome.problems == []
        for event in outcome.events:
            self.instance.report_runless_asset_event(event)
        return [e for e in outcome.events if not isinstance(e, AssetCheckEvaluation)]

    def doors(self):
        return self.tables.door(SPEC.name), self.tables.door(f"{SPEC.name}_quarantine")

    def run_beside(self):
        """A run that Dagster knows nothing of."""
        return TypedRunner(self.tables, LocalWorkers(), self.client).run(SPEC, RAW)


@pytest.fixture
def platform(start_servers, metastore, lake_settings, spark):
    (server,) = start_servers("a", lease_s=20.0)
    config = ClientConfig(address=server.address, file_root=server.fragments)
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=SECOND_NS,
    )
    labels = LabelSet.of(("content-type", "application/x-ndjson"))
    tables = HiveTables(IcebergTables(metastore, lake_settings.warehouse))
    with Client(config) as client, DagsterInstance.ephemeral() as instance:
        client.apply(
            [
                Change(JournalSpec(name=name, replication=1, fragment=fragment, labels=labels))
                for name in JOURNALS
            ]
        )
        yield Platform(
            client=client,
            spark=spark,
            tables=tables,
            resources={
                "broker": BrokerResource(address=server.address, file_root=str(server.fragments)),
                "metastore": MetastoreResource(uri=lake_settings.metastore),
                "lake": LakeResource(tables="", warehouse=lake_settings.warehouse),
                "spark": ResourceDefinition.hardcoded_resource(
                    SimpleNamespace(spark_session=spark)
                ),
            },
            instance=instance,
        )
    with metastore.connect() as session:
        for table in session.tables("typed_dagster"):
            session.drop_table("typed_dagster", table)


def age(path: Path, days: float) -> None:
    """Let a file be as old as that."""
    then = (SystemClock().now() - timedelta(days=days)).timestamp()
    os.utime(path, (then, then))


def test_a_typed_table_is_run_told_checked_and_looked_after(platform):
    platform.append("out", "continue", "odd")
    platform.append("ack", batches=2)
    asset = typed_asset(RAW, SPEC)
    rollup = rollup_asset(ROLLUP)
    metadata, checks = platform.materialize(asset, rollup)
    rows, quarantined = platform.expected()
    assert rows
    assert quarantined
    told = metadata["typed_dagster/events"]
    assert (told["dagster/row_count"], told["rows_added"]) == (rows, rows)
    assert (told["quarantined"], told["bytes_left"]) == (quarantined, 0)
    assert metadata["typed_dagster/events_quarantine"]["dagster/row_count"] == quarantined
    assert {name: c.passed for name, c in checks.items() if name != "slices_complete"} == {
        "complete": True,
        "quarantine": False,
        "fresh": True,
    }
    # What it made is a source like others.
    assert metadata["typed_dagster/parts"]["dagster/row_count"] == len(JOURNALS)
    # The run has told all of it; what others do the sensor tells, in the same words.
    assert platform.tick() == []
    platform.append("out", "again")
    report = platform.run_beside()
    (event,) = platform.tick()
    assert event.asset_key == typed_key(SPEC)
    assert event.metadata["rows_added"].value == report.counts.typed
    assert event.metadata["read_bytes"].value == report.read_bytes > 0
    assert event.metadata["freshness_s"].value > 0

    _upkeep_loses_nothing(platform, asset)
    _thorough_check_finds_what_is_lost(platform)
    _backfill_heals_it(platform)


def _upkeep_loses_nothing(platform, asset):
    door, _ = platform.doors()
    location = Path(urlsplit(door.load().metadata.location).path)
    orphan = next(location.glob("data/**/*.parquet")).with_name("orphan.parquet")
    orphan.write_bytes(b"of a run that died")
    age(orphan, 2)
    upkeep = maintenance_asset(SPEC, UpkeepEngine("spark", "spark"))
    metadata, _ = platform.materialize(asset, upkeep, selection=[upkeep])
    done = metadata[maintenance_key(SPEC).to_user_string()]
    assert done["files"] < done["files_before"]
    assert done["orphans_removed"] == 1
    assert not orphan.exists()
    platform.append("out", "continue", "ack", "rollback")
    _, checks = platform.materialize(asset)
    assert checks["complete"].passed
    assert check_counts(*platform.doors()).rows == platform.expected()[0]


def _thorough_check_finds_what_is_lost(platform):
    counter = Recounter(platform.tables, LocalWorkers(), platform.client)
    found = counter.recount(SPEC, RAW)
    assert (found.findings, found.notes) == ((), ())
    engine = SparkEngine(platform.spark)
    name = f"iceberg.{SPEC.name}"
    ((journal, begin),) = engine.execute(
        f"SELECT _journal, max(_begin) FROM {name} WHERE _journal LIKE '%part=1' GROUP BY _journal"
    )
    engine.execute(f"DELETE FROM {name} WHERE _journal = '{journal}' AND _begin = {begin}")
    # Its total is right again, and a row stands in for the one that is lost.
    engine.execute(
        f"INSERT INTO {name} SELECT n, k, _journal, _begin, _end, _uuid FROM {name} "
        f"WHERE _journal = '{journal}' ORDER BY _begin LIMIT 1"
    )
    assert check_counts(*platform.doors()).is_complete
    lost, doubled = counter.recount(SPEC, RAW, journals=[journal]).findings
    assert (lost.journal, lost.begin, lost.lost) == (journal, begin, 1)
    assert (doubled.journal, doubled.doubled) == (journal, 1)


def _backfill_heals_it(platform):
    platform.client.flush("name:prefix=typed_dagster/")
    platform.instance.add_dynamic_partitions(RAW.name, ["all"])
    backfill, key = backfill_asset(RAW, SPEC), backfill_key(SPEC).to_user_string()
    _, checks = platform.materialize(backfill, partition="all", compare_only=True)
    assert not checks["complete"].passed
    metadata, checks = platform.materialize(backfill, partition="all")
    assert checks["complete"].passed
    assert (metadata[key]["rows"], metadata[key]["healed"]) == (platform.expected()[0], 0)
    (event,) = platform.tick()
    # As many rows as before, and others.
    assert event.metadata["rows_added"].value == 0
