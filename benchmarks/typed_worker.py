"""The worker of typed runs over fragments on disk: what the product does of a task, in this process, without brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchmarks.typed_data import JOURNAL
from benchmarks.typed_source import fragments_of
from benchmarks.typed_table import COLUMNS, UUID_FIELD
from gazette_platform.client import ClientConfig, FragmentListing
from gazette_platform.client.read.extents import Extent
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.iceberg_types import new_partition_spec, new_schema
from gazette_platform.lake.typed.planning.ranges import Task
from gazette_platform.lake.typed.planning.rounds import Order
from gazette_platform.lake.typed.runs.jobs import Job
from gazette_platform.lake.typed.runs.working import carry_out
from gazette_platform.lake.typed.tables.quarantine import quarantine_schema

if TYPE_CHECKING:
    from benchmarks.typed_source import Options

__all__ = ["work"]

# Of the table's columns, those that specs call otherwise than Spark.
_KINDS: Final = {"timestamp": ("timestamptz", "iso")}


def work(options: Options) -> int:
    """Make files of all fragments, a task each, one after the other. Returns: records that were set aside."""
    columns = []
    for each in COLUMNS:
        kind, form = _KINDS.get(each.spark, (each.spark, ""))
        columns.append(TypedColumn(name=each.name, key=each.key, type=kind, format=form))
    spec = TypedSpec(
        name="typed.orders",
        source="raw.orders",
        uuid=(UUID_FIELD, "uuid"),
        columns=tuple(columns),
        partitions=tuple(map(parse_partition, options.partitions.split())),
    )
    schema = new_schema(spec)
    job = Job(
        spec=spec,
        schema=schema.model_dump_json(),
        partitions=new_partition_spec(spec, schema).model_dump_json(),
        location=options.target.as_uri(),
        quarantine_schema=quarantine_schema().model_dump_json(),
        quarantine_location=options.notes.as_uri(),
        io_properties={},
        client=ClientConfig(file_root=options.root),
    )
    return sum(carry_out(job, order).quarantined for order in _orders(options))


def _orders(options: Options) -> list[Order]:
    orders = []
    for fragment in fragments_of(options.root):
        stored = replace(fragment, backing_store="file:///")
        listing = FragmentListing(stored, f"file:///{fragment.content_path}")
        extent = Extent(JOURNAL, fragment.begin, fragment.end, listing)
        orders.append(Order(journal=JOURNAL, task=Task((extent,))))
    return orders
