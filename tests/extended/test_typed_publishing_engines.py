"""Typed tables in a real metastore: what engines read of published files, and what is published beside their work."""

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from msgspec import structs
from typed_commits import SparkTable
from typed_files import write_rows
from typed_world import JOURNAL, row, spec

from gazette_platform.lake.engines.ddl import mount_statement
from gazette_platform.lake.iceberg.catalog import MetastoreHandle
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.iceberg.publishing import publish_files
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.tables.table import open_table
from gazette_platform.lake.typed.tables.writing import data_file_of

pytestmark = [
    pytest.mark.hive,
    pytest.mark.spark,
    pytest.mark.timeout(400),  # the first test pays for the start of three servers
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


class Engines:
    """A typed table of a metastore, and engines that see it."""

    def __init__(self, spark, metastore, warehouse):
        self.name = f"typed.t{uuid.uuid4().hex[:8]}"
        self.spark = SparkTable(spark, self.name)
        self._warehouse = warehouse
        self._metastore = metastore

    def handle(self, metastore=None):
        tables = IcebergTables(metastore or self._metastore, self._warehouse)
        return MetastoreHandle(tables, self.name)

    def open(self, wanted=None):
        tables = IcebergTables(self._metastore, self._warehouse)
        wanted = structs.replace(wanted or spec(), name=self.name)
        location = tables.new_location(*self.name.split("."))
        return open_table(self.handle(), wanted, location)

    def numbers(self):
        return self.spark.numbers()


@pytest.fixture
def engines(spark, metastore, lake_settings):
    made = Engines(spark, metastore, lake_settings.warehouse)
    yield made
    made.spark.sql(f"DROP TABLE IF EXISTS {made.spark.full_name} PURGE")


ROW = {
    "price": Decimal("-12.50"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
    "day": date(2026, 1, 2),
    "id": uuid.UUID(int=7).bytes,
    "ok": True,
    "raw": b"\xff",
    "tags": ["a", None],
    "extra": [("a", 1)],
    "place": {"zip": "1", "lines": [1, 2]},
}
COLUMNS = (
    "n bigint", "k string", "price decimal(10,2)", "at timestamptz", "day date", "id uuid", "ok boolean",
    "raw binary", "tags array<string>", "extra map<string,bigint>", "place struct<zip:string,lines:array<int>>",
)  # fmt: skip


@pytest.fixture
def parted(engines):
    """A table by day with a row of two of them each, one of nulls."""
    table = engines.open(spec(COLUMNS, partitions=(parse_partition("day(at)"),)))
    rows = {date(2026, 1, 2): row(1, **ROW), date(2026, 1, 3): row(2), None: row(3)}
    rows[date(2026, 1, 3)]["at"] = datetime(2026, 1, 3, tzinfo=UTC)
    written = [write_rows(table.metadata, [one], [day]) for day, one in rows.items()]
    files = [data_file_of(one, table.metadata) for one in written]
    publish_files(engines.handle(), None, files, "one", {})
    return engines


def test_spark_reads_values_of_all_types_and_prunes(parted):
    table = parted.spark
    ((found,),) = table.sql(
        f"SELECT struct(price, at, day, id, ok, raw, tags, extra, place, _journal, _uuid) FROM {table.full_name} "
        "WHERE at < TIMESTAMP '2026-01-03 00:00:00'"
    )
    assert found.price == Decimal("-12.50")
    assert found.id == str(uuid.UUID(int=7))
    assert (found.day, found.ok, bytes(found.raw), found.tags) == (
        date(2026, 1, 2), True, b"\xff", ["a", None],
    )  # fmt: skip
    assert (found.extra, found.place.lines) == ({"a": 1}, [1, 2])
    assert (found._journal, found._uuid) == (JOURNAL, str(uuid.UUID(int=1)))
    files = table.sql(f"SELECT partition.at_day, record_count FROM {table.full_name}.files")
    assert set(files) == {(date(2026, 1, 2), 1), (date(2026, 1, 3), 1), (None, 1)}
    assert table.numbers() == [1, 2, 3]


def test_spark_reads_what_a_statement_mounts(parted):
    copy = SparkTable(parted.spark.session, f"{parted.name}_copy")
    text = mount_statement(copy.name, parted.handle().load().metadata_location, "spark")
    for statement in text.replace("other.", "iceberg.").split(";\n")[:-1]:
        copy.sql(statement)
    assert copy.numbers() == parted.numbers() == [1, 2, 3]
    # Whatever is done to it leaves the table's files.
    copy.sql(f"DROP TABLE {copy.full_name}")
    assert parted.numbers() == [1, 2, 3]


@pytest.mark.trino
def test_trino_reads_values_of_all_types_and_prunes(parted, trino):
    name = f"iceberg.{parted.name}"
    assert trino.query(
        "SELECT price, to_unixtime(at), day, CAST(id AS varchar), ok, raw, tags[1], element_at(extra, 'a'), "
        f"place.lines[2], _journal, CAST(_uuid AS varchar) FROM {name} WHERE at < TIMESTAMP '2026-01-03 00:00 UTC'"
    ) == [(
        Decimal("-12.50"), ROW["at"].timestamp(), date(2026, 1, 2), str(uuid.UUID(int=7)), True, b"\xff", "a", 1,
        2, JOURNAL, str(uuid.UUID(int=1)),
    )]  # fmt: skip
    schema, _, table = parted.name.partition(".")
    found = trino.query(
        f'SELECT partition.at_day, record_count FROM iceberg.{schema}."{table}$partitions"'
    )
    assert set(found) == {(date(2026, 1, 2), 1), (date(2026, 1, 3), 1), (None, 1)}
    wanted = trino.query(f"SELECT n FROM {name} WHERE _uuid = UUID '{uuid.UUID(int=2)}'")
    assert wanted == [(2,)]
