"""The tail of a typed table as a data source of PySpark: a partition for each order that makes rows of it.

It is what `typed_orders` is for runs, but rows come back. A task keeps those of its order on the disk of its machine until the order is
carried out: what is damaged fails it before a row is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from typing_extensions import override

from gazette_platform.spark.typed_orders import OrderPartition, OrderTasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

__all__ = ["PlannedTail", "TailReader", "as_spark_has_it", "tail_source_of"]

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
