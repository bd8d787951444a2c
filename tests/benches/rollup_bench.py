"""A raw table that grows, rollups of it, and runs of them in a process that has no engine."""

import json
from dataclasses import replace as replaced
from types import SimpleNamespace

import pyarrow as pa
import pytest
from dagster import materialize
from lake_bench import FragmentFiles, MemoryMetastore
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from gazette_platform.lake import Registrar, StoreRoots, ensure_views, parse_table_spec
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.running import RollupRunner
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA
from gazette_platform.ops.clock import ManualClock

__all__ = ["SUMS", "Lake", "told"]

RAW = """
name: shop.orders
selector: name:prefix=orders/
format: json
columns: [{name: n, type: bigint}]
partitions: [{name: hour, type: int}]
"""
SUMS = RollupSpec(
    name="rollups.sums",
    engine="trino",
    sql="select * from orders",
    sources={"orders": "shop.orders"},
    slices=("shop", "hour"),
)
TYPES = {"shop": StringType(), "hour": IntegerType()}


class CountingEngine:
    """Makes of each slice one row that says how often it was asked for it."""

    def __init__(self, tables):
        self.tables = tables
        self.asked = []
        self.before_commit = lambda: None
        self.rows = {}

    def stage(self, staging, spec, sources, slices, *, is_first):
        self.asked.append(list(slices))
        made = self.rows.setdefault(staging.name, [])
        assert is_first is not bool(made)
        made += [(*values, len(self.asked)) for values in slices]
        if not is_first:
            self.tables.forget(STAGING_SCHEMA, staging.name)
        fields = [
            NestedField(i, name, TYPES[name], required=False)
            for i, name in enumerate(spec.slices, 1)
        ]
        schema = Schema(*fields, NestedField(len(fields) + 1, "asked", LongType(), required=False))
        partitions = PartitionSpec(
            *(
                PartitionField(f.field_id, 999 + f.field_id, IdentityTransform(), f.name)
                for f in fields
            )
        )
        location = f"{staging.location}/{len(self.asked)}"
        metadata = new_table_metadata(schema, partitions, UNSORTED_SORT_ORDER, location, {})
        table = Table(
            (STAGING_SCHEMA, staging.name), metadata, "", load_file_io({}), NoopCatalog("none")
        )
        transaction = table.transaction()
        arrow = schema.as_arrow()
        columns = [
            pa.array([int(v) if f.type != pa.large_string() else v for v in column], f.type)
            for f, column in zip(arrow, zip(*made, strict=True), strict=True)
        ]
        transaction.append(pa.table(columns, schema=arrow))
        metadata = transaction.table_metadata
        path = self.tables.write_metadata(metadata, 0)
        assert self.tables.create(STAGING_SCHEMA, staging.name, metadata, path)
        self.before_commit()


class Lake:
    """A raw table that grows, and a rollup of it."""

    def __init__(self, folder):
        self.metastore = MemoryMetastore()
        self.files = FragmentFiles(folder / "fragments")
        self.tables = IcebergTables(self.metastore, (folder / "warehouse").as_uri())
        self.engine = CountingEngine(self.tables)
        self.clock = ManualClock()
        self.spec = parse_table_spec(RAW)
        self.registrar = Registrar(self.files, self.metastore, StoreRoots(self.files.roots))

    def publish(self, *places, excluded=None):
        for shop, hour in places:
            self.files.append(
                f"orders/shop={shop}",
                json.dumps({"n": 1}).encode() + b"\n",
                postfix=f"hour={hour:02}",
            )
        report = self.registrar.tick(self.spec, {})
        assert report.errors == []
        with self.metastore.connect() as session:
            ensure_views(session, self.spec, report.definition, excluded or {})

    def prune(self, shop, hour):
        with self.metastore.connect() as session:
            table = session.table("shop", "orders")
            session.drop_partition(table, (shop, str(hour)))

    def empty(self, shop, hour):
        with self.metastore.connect() as session:
            table = session.table("shop", "orders")
            (found,) = session.partitions_of(table, [(shop, str(hour))]).values()
            state = PartitionState(journal=f"orders/shop={shop}")
            session.alter_partitions(table, [replaced(found, parameters=state.to_parameters())])

    def delete_file(self, shop, hour):
        """The first file of an hour goes."""
        folder = self.files.root / f"orders/shop={shop}/hour={hour:02}"
        min(folder.iterdir()).unlink()

    def lose_store(self, journal):
        """Its folder is gone, as when nothing is mounted there."""
        folder = self.files.root / journal
        folder.rename(f"{folder}.away")

    def bring_store_back(self, journal):
        folder = self.files.root / journal
        folder.with_name(f"{folder.name}.away").rename(folder)

    def runner(self, **options):
        return RollupRunner(self.metastore, self.tables, self.engine, clock=self.clock, **options)

    def run(self, spec=SUMS, *, is_forced=False, **options):
        self.engine.asked.clear()
        return self.runner(**options).run(spec, is_forced=is_forced)

    def rows(self, name="sums"):
        table = self.tables.load("rollups", name)
        found = StaticTable.from_metadata(table.metadata_location).scan().to_arrow().to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def staged(self):
        with self.metastore.connect() as session:
            return session.tables(STAGING_SCHEMA)


def told(lake, asset, instance):
    """Runs a rollup as its asset; returns what its event and its check report."""
    services = SimpleNamespace(catalogs=None, query=lambda *_: pytest.fail("replaced"))
    resources = {
        "metastore": SimpleNamespace(client=lambda: lake.metastore),
        "lake": SimpleNamespace(iceberg_tables=lambda _: lake.tables, table_page=lambda _: {}),
        "trino": services,
        "spark": services,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gazette_platform.assets.rollups.engine_of", lambda *_: lake.engine)
        result = materialize([asset], instance=instance, resources=resources)
    assert result.success
    (event,) = result.get_asset_materialization_events()
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert all(check.passed for name, check in checks.items() if name == "query_fits")
    check = checks["slices_complete"]
    return event.step_materialization_data.materialization.metadata, check.passed
