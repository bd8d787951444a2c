"""The tail of a typed table as a data source of PySpark: a partition for each order that makes rows of it.

It is what `typed_orders` is for runs, but rows come back. A task keeps those of its order on the disk of its machine until the order is
carried out: what is damaged fails it before a row is seen.

What `typed_view` gives, made of Spark's tables and of a data source for the tail.

A typed table with all that is behind it, as a data frame: rows that runs have published, and the tail.
"""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from typing_extensions import override

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec.folder import load_table_specs, or_meant
from gazette_platform.lake.spec.types import spark_ddl
from gazette_platform.lake.typed.iceberg_types import spec_type
from gazette_platform.lake.typed.planning.last_rows import view_of
from gazette_platform.lake.typed.runs import jobs
from gazette_platform.lake.typed.runs.tail import pin_tail, settle_tail
from gazette_platform.ops import platforms
from gazette_platform.ops.extras import required
from gazette_platform.spark.typed_workers import SPARKS, OrderPartition, OrderTasks, SparkWorkers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.typed.runs.tail import PinnedTail

_UUID = pa.uuid()
# Digits of a UUID between its hyphens.
_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))


@final
class PlannedTail(DataSource):
    """What the planner has.

    Args:
        ddl: the schema, as Spark reads it.
        job: dumped.
        orders: dumped, each.
    """

    def __init__(self, ddl: str, job: bytes, orders: Sequence[bytes]) -> None:
        super().__init__({})
        self._ddl = ddl
        self._job = job
        self._orders = orders

    @override
    def schema(self) -> str:
        return self._ddl

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        # As of `PlannedOrders`: or each task would get all orders.
        orders, self._orders = self._orders, ()
        return TailReader(self._job, orders)


def tail_source_of(name: str, ddl: str, job: bytes, orders: Sequence[bytes]) -> type[DataSource]:
    """The data source of these, to be registered.

    Args:
        name: for `format`.
        ddl, job, orders: as of `PlannedTail`.
    """

    class Tail(DataSource):
        @classmethod
        @override
        def name(cls) -> str:
            return name

        @override
        def schema(self) -> str:
            return ddl

        @override
        def __reduce__(self) -> Any:
            return PlannedTail, (ddl, job, orders)

    return Tail


@final
class TailReader(OrderTasks):
    """Gives the rows that orders make. Arguments: of `OrderTasks`."""

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OrderPartition):
            return  # Spark's own, where there is no order
        # Only workers, who have to, import what reads.
        from gazette_platform.lake.typed.runs import jobs  # noqa: PLC0415
        from gazette_platform.lake.typed.runs.tail import rows_of_order  # noqa: PLC0415

        for batch in rows_of_order(jobs.parse_job(self._job), jobs.parse_order(partition.order)):
            columns = [as_spark_has_it(column) for column in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, batch.schema.names)


def as_spark_has_it(array: pa.Array) -> pa.Array:
    """Values with texts for UUIDs, at any depth."""
    kind = array.type
    if kind == _UUID:
        return _texts(array)
    if not _has_uuids(kind):
        return array
    if pa.types.is_struct(kind):
        fields = [as_spark_has_it(array.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(
            fields, [field.name for field in kind], mask=array.is_null()
        )
    if pa.types.is_list(kind):
        # Of nulls there may be values, too.
        array = pa.concat_arrays([array])
        values = as_spark_has_it(array.values)
        return pa.ListArray.from_arrays(_offsets(array), values, mask=array.is_null())
    array = pa.concat_arrays([array])
    return pa.MapArray.from_arrays(
        _offsets(array), array.keys, as_spark_has_it(array.items), mask=array.is_null()
    )


def _has_uuids(kind: pa.DataType) -> bool:
    below = (kind.field(at).type for at in range(kind.num_fields))
    return kind == _UUID or any(map(_has_uuids, below))


def _offsets(array: Any) -> pa.Int32Array:
    return pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, array.buffers()[1]])


def _texts(array: Any) -> pa.StringArray:
    """UUIDs with hyphens: no step of Python for each."""
    raw = pa.concat_arrays([pc.fill_null(array.storage, bytes(16))])
    digits = pa.py_buffer(memoryview(raw.buffers()[1])[: 16 * len(raw)].hex().encode())
    whole = pa.Array.from_buffers(pa.binary(32), len(raw), [None, digits])
    parts = [pc.binary_slice(whole, begin, end).cast(pa.binary()) for begin, end in _PARTS]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"-", pa.binary())).cast(pa.string())
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string()))


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


def typed_view(
    spark: SparkSession,
    table: str,
    *,
    tables: str | Path | Iterable[TableSpec] | None = None,
    client: Client | None = None,
    settings: LakeSettings | None = None,
) -> DataFrame:
    """A typed table as of now: its rows, and those that the next run would publish, each message once.

    The table and write heads are pinned at once, and however often the frame is used, it has the same rows; the tail is read
    again each time. Of a table with a `key` it has the last message of each. Records of the tail that cannot be rows are
    made are left out. A table that no run has made yet is all tail.

    To find out which messages are rows, Spark reads the tail once. The frame works as long as the session does, maintenance has
    not expired the snapshot, and brokers hold the content.

    Args:
        spark: a session with the catalog of typed tables, classic or of Spark Connect, as typed runs have.
        table: the typed table, or its raw one, as ``schema.table``.
        tables: the folder of table specs, or specs; default: the settings'.
        client: stays its caller's to close; default: one for the settings' brokers, with what else gazctl's variables say.
        settings: where brokers, specs and the catalog are; default: of the environment, or of the platform that runs if it
            names none.

    Raises: ValidationError: there is no such spec. SetupError: a setting is missing. LakeError: the catalog or Spark cannot be
        reached, or there is more behind the table than is read at once: let a run publish it. DataError, TransportError: journals
        cannot be read.
    """
    required("pyiceberg", extra="lake", by="typed tables")
    from gazette_platform.spark.typed_frames import typed_frame  # noqa: PLC0415  sources go without it

    environment = platforms.complete(os.environ) if settings is None else dict(os.environ)
    broker = settings.broker if settings else ""
    settings = settings or LakeSettings.from_environment(environment)
    raw = _spec_of(table, settings.required("tables") if tables is None else tables)
    if client is not None:
        return typed_frame(spark, raw, client, settings)
    address = broker or environment.get("BROKER_ADDRESS") or settings.required("broker")
    config = ClientConfig.from_environment(
        environment, address=address, file_root=settings.file_root
    )
    with Client(config) as own:
        return typed_frame(spark, raw, own, settings)


def _spec_of(table: str, tables: str | Path | Iterable[TableSpec]) -> TableSpec:
    """The raw table's spec. Raises: ValidationError: there is none, or it has no typed table."""
    if isinstance(tables, str | Path):
        specs, errors = load_table_specs(Path(tables))
        refused = f"; refused: {next(iter(errors.values()))}" if errors else ""
    else:
        specs, refused = {spec.name: spec for spec in tables}, ""
    typed = {spec.typed.name: spec for spec in specs.values() if spec.typed is not None}
    found = typed.get(table) or specs.get(table)
    if found is None:
        known = {*typed, *(spec.name for spec in typed.values())}
        raise ValidationError(
            f"no spec is of a typed table {table}{refused}{or_meant([table], known)}", path="table"
        )
    if found.typed is None:
        raise ValidationError(f"the spec of {table} has no section `typed:`", path="table")
    return found
