"""What `typed_view` gives, made of Spark's tables and of a data source for the tail."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.planning.last_rows import view_of
from gazette_platform.lake.typed.runs import jobs
from gazette_platform.lake.typed.runs.tail import pin_tail, settle_tail
from gazette_platform.lake.typed.schema.iceberg_types import spec_type
from gazette_platform.lake.typed_spec.columns import spark_ddl
from gazette_platform.spark.interrupting import SPARKS
from gazette_platform.spark.typed_tail import tail_source_of
from gazette_platform.spark.typed_workers import SparkWorkers

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame, SparkSession

    from gazette_platform.client import Client
    from gazette_platform.lake.settings import LakeSettings
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.lake.typed.runs.tail import PinnedTail

__all__ = ["typed_frame"]

_log = logging.getLogger(__name__)


def typed_frame(
    spark: SparkSession, raw: TableSpec, client: Client, settings: LakeSettings
) -> DataFrame:
    """A view of the typed table that a raw table's spec has. See `gazette_platform.spark.typed_view`."""
    assert raw.typed is not None  # it was looked for
    catalog = typed_catalog(settings)
    pinned = pin_tail(catalog.handle(raw.typed.name), raw.typed, raw, client)
    for hole in pinned.holes:
        _log.warning(
            "%s: the view does not have all of %s: %s (`gazctl lake check %s` says more)",
            raw.typed.name,
            hole.journal,
            hole.kind,
            raw.typed.name,
        )
    try:
        name = f"{catalog.name}.{raw.typed.name}"
        history = _snapshot(spark, name, pinned, pinned.snapshot_id)
        if history is not None and pinned.is_empty:
            return history
        tail = _tail(spark, pinned)
        if history is None and not pinned.key:
            return tail
        if history is None:
            history = tail.limit(0)
        names = [field.name for field in pinned.schema.fields]
        deletes = _deletes(spark, name, pinned)
        query = view_of(
            names,
            pinned.key,
            "{history}",
            "{tail}",
            _quoted,
            changes=raw.typed.changes,
            deletes="" if deletes is None else "{deletes}",
        )
        kept = {} if deletes is None else {"deletes": deletes}
        return spark.sql(query, None, history=history, tail=tail, **kept)
    except SPARKS as err:
        told = str(err).partition("\n")[0]
        raise LakeError(f"Spark could not make the view of {raw.typed.name}: {told}") from err


def _deletes(spark: SparkSession, name: str, pinned: PinnedTail) -> DataFrame | None:
    """Deletions that runs have kept; their snapshot may be older than some of the columns."""
    if pinned.deletes is None:
        return None
    return _snapshot(spark, name, pinned, pinned.deletes.metadata.current_snapshot_id)


def _snapshot(
    spark: SparkSession, name: str, pinned: PinnedTail, snapshot_id: int | None
) -> DataFrame | None:
    if snapshot_id is None:
        return None
    table = ".".join(map(_quoted, name.split(".")))
    # Catalogs may cache tables, and then know of no new snapshots.
    spark.sql(f"REFRESH TABLE {table}")
    columns = ", ".join(_quoted(field.name) for field in pinned.schema.fields)
    return spark.sql(f"SELECT {columns} FROM {table} VERSION AS OF {snapshot_id}")  # noqa: S608  names of ours


def _tail(spark: SparkSession, pinned: PinnedTail) -> DataFrame:
    """Rows of the tail, by a data source of their own name: frames are looked up by it whenever they are used."""
    workers = SparkWorkers(spark)
    found = settle_tail(pinned, lambda orders: workers.carry_out(pinned.job, orders))
    name = f"gazette_typed_tail_{uuid.uuid4().hex}"
    orders = [jobs.dump_order(order) for order in found.orders]
    ddl = _ddl(pinned.schema)
    spark.dataSource.register(tail_source_of(name, ddl, jobs.dump_job(pinned.job), orders))
    return spark.read.format(name).load()


def _ddl(schema: Schema) -> str:
    return ", ".join(
        f"{_quoted(field.name)} {spark_ddl(spec_type(field.field_type))}" for field in schema.fields
    )


def _quoted(name: str) -> str:
    return f"`{name}`"
