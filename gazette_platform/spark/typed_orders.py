"""Orders of a typed run as a data source of PySpark: a partition for each, and a row that says what came of it.

    driver     `source_of(job, orders)` makes a class, which is all that Spark takes; it travels as a pickle
    planner    a Python process beside the driver's JVM makes it a `PlannedOrders`, and gets a partition of each order
    task       a Python worker of an executor carries one order out

Nothing of a job or an order is an option or a column: Spark shows these in plans and logs. Only workers, who have to
in any case, import what reads and writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from typing_extensions import override

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

__all__ = ["NAME", "OrderPartition", "OrderTasks", "OrdersReader", "PlannedOrders", "source_of"]

NAME: Final = "gazette_typed_orders"

# Of a row: what is longer comes in parts, so that no server of Connect and no heap has it whole.
_PART_BYTES: Final = 4 << 20


class _Orders(DataSource):
    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def schema(self) -> str:
        return "number int, is_error boolean, content binary"


@final
class PlannedOrders(_Orders):
    """What the planner has.

    Args:
        job: dumped.
        orders: dumped, each.
    """

    def __init__(self, job: bytes, orders: Sequence[bytes]) -> None:
        super().__init__({})
        self._job = job
        self._orders = orders

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        # Spark sends the source and its reader to every task: without this each would get all orders.
        orders, self._orders = self._orders, ()
        return OrdersReader(self._job, orders)


def source_of(job: bytes, orders: Sequence[bytes]) -> type[DataSource]:
    """The data source of these, to be registered. Job and orders are dumped ones."""

    class Orders(_Orders):
        @override
        def __reduce__(self) -> Any:
            return PlannedOrders, (job, orders)

    return Orders


@final
class OrderPartition(InputPartition):
    """An order, and its place among all."""

    def __init__(self, number: int, order: bytes) -> None:
        super().__init__(number)
        self.number = number
        self.order = order


class OrderTasks(DataSourceReader):
    """A task for each order, which has no other.

    Args:
        job: dumped.
        orders: dumped; only the planner has them.
    """

    def __init__(self, job: bytes, orders: Sequence[bytes]) -> None:
        self._job = job
        self._orders = orders

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job, "_orders": ()}

    @override
    def partitions(self) -> list[InputPartition]:
        return [OrderPartition(number, order) for number, order in enumerate(self._orders)]


@final
class OrdersReader(OrderTasks):
    """Carries orders out, and tells what came of each. Arguments: of `OrderTasks`."""

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OrderPartition):
            return  # Spark's own, where there is no order
        is_error, content = self._carried_out(partition.order)
        for at in range(0, len(content), _PART_BYTES):
            row = {
                "number": pa.array([partition.number], pa.int32()),
                "is_error": pa.array([is_error], pa.bool_()),
                "content": pa.array([content[at : at + _PART_BYTES]], pa.binary()),
            }
            yield pa.record_batch(row)

    def _carried_out(self, order: bytes) -> tuple[bool, bytes]:
        """What came of it, or an error of ours, which Spark would try again, and bury in traces of Java's."""
        from gazette_platform.lake.typed.runs import jobs  # noqa: PLC0415  see the module
        from gazette_platform.lake.typed.runs.working import attempt  # noqa: PLC0415  likewise

        try:
            return False, jobs.dump_done(
                attempt(jobs.parse_job(self._job), jobs.parse_order(order))
            )
        except GazetteError as err:
            return True, jobs.dump_error(err)
