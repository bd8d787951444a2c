"""Spark as the workers of typed runs: local, a cluster, or behind Spark Connect.

    driver     `source_of(job, orders)` makes a class, which is all that Spark takes; it travels as a pickle
    planner    a Python process beside the driver's JVM makes it a `PlannedOrders`, and gets a partition of each order
    task       a Python worker of an executor carries one order out

Nothing of a job or an order is an option or a column: Spark shows these in plans and logs. Only workers, who have to
in any case, import what reads and writes.

Upserts are one statement of Spark, whose result is staged. Calls of Spark end when a signal comes (`interruptible`).
"""

from __future__ import annotations

import re
import threading
import uuid
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import pyarrow as pa  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from typing_extensions import override

from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.spec.types import spark_ddl
from gazette_platform.lake.typed.planning.last_rows import changes_of, is_later, last_of_each
from gazette_platform.lake.typed.runs import jobs
from gazette_platform.lake.typed.runs.working import discard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from gazette_platform.lake.spec.types import ColumnType
    from gazette_platform.lake.typed.planning.rounds import Done, Order
    from gazette_platform.lake.typed.runs.jobs import Job
    from gazette_platform.lake.typed.tables.upserts import Merge

SPARKS: Final = PySparkException, Py4JError, OSError
"""What calls of Spark raise."""

# Tasks that are asked to end do within seconds, if what they wait for does.
_INTERRUPT_S: Final = 30.0

_T = TypeVar("_T")


def interruptible(session: SparkSession, call: Callable[[], _T]) -> _T:
    """What `call` gives. It runs in a thread of its own: calls of Spark do not end when a signal comes.

    Args:
        session: runs its Spark jobs, which end with this.
    """
    tag = f"gazette-{uuid.uuid4().hex}"
    future: Future[_T] = Future()

    def run() -> None:
        try:
            session.addTag(tag)
            future.set_result(call())
        except BaseException as err:  # noqa: BLE001  the waiting thread raises it
            future.set_exception(err)

    thread = InheritableThread(target=run, session=session, name="gazette-spark", daemon=True)
    thread.start()
    try:
        return future.result()
    except BaseException:
        if not future.done():
            with suppress(*SPARKS):
                session.interruptTag(tag)
            thread.join(_INTERRUPT_S)
        raise


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
    """Carries orders out, and returns the result of each. Arguments: of `OrderTasks`."""

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


# So many rows are looked for by their values; of more only the smallest and the largest are given.
_FEW: Final = 500
_BYTES: Final = frozenset({"string", "binary"})
# Of a UUID Spark thinks as of a text, and engines have not always agreed on which is larger.
_UNTOLD: Final = frozenset({"uuid", "boolean"})

_STAGE: Final = "spark.wap.id"
_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."

_MERGE: Final = """
MERGE INTO {table} AS t
USING ({last}) AS s
ON {conditions}
{deleting}WHEN MATCHED AND {later}
  THEN UPDATE SET *
WHEN NOT MATCHED{living} THEN INSERT *
"""
_DELETING: Final = "WHEN MATCHED AND {later} AND {deletes} THEN DELETE\n"


# What is set is of the session, and so of all that it does meanwhile.
_merge_turn = threading.Lock()


@final
class SparkMerger:
    """Merges by a session, classic or of Spark Connect. See `gazette_platform.lake.typed.tables.upserts.Merger`.

    Args:
        session: with the tables' catalog. No other code may write with it meanwhile: that would be staged, too.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def merge(self, merge: Merge) -> None:
        """See `Merger`. An interrupt ends what Spark does."""
        session = self._session
        table = ".".join(_quoted(name) for name in (merge.catalog, *merge.table.split(".")))
        settings = {f"{_PROPERTY}{name}": value for name, value in merge.properties.items()}
        # Values of keys are given as texts.
        settings |= {_STAGE: merge.attempt, "spark.sql.session.timeZone": "UTC"}

        def merged() -> None:
            # Catalogs may cache tables, and then know of no new snapshots.
            session.sql(f"REFRESH TABLE {table}")
            # What truncates the table is about keys that are nowhere in the run.
            truncates = _truncates(session, table, merge)
            near = [] if truncates else _near(session, table, merge)
            session.sql(_statement(table, merge, near, truncates=truncates)).collect()

        try:
            with _merge_turn, _set(session, settings):
                interruptible(session, merged)
        except SPARKS as err:
            why = err.java_exception if isinstance(err, Py4JJavaError) else err
            told = str(why).partition("\n\nJVM stacktrace:")[0].partition("\n\tat ")[0]
            raise LakeError(
                f"Spark could not merge into {merge.table}, and nothing was published: {told}"
            ) from err


def _statement(table: str, merge: Merge, near: Sequence[str], *, truncates: bool) -> str:
    equal = [f"t.{_quoted(name)} = s.{_quoted(name)}" for name in merge.key]
    changes = merge.changes
    source, later = f"{table} VERSION AS OF {merge.upserts}", is_later(_quoted, changes)
    deleting = living = ""
    if changes is not None:
        deletes = changes.deletes(_quoted, "s.")
        deleting = _DELETING.format(later=later, deletes=deletes)
        living = f" AND NOT {deletes}"
        source = f"({_changes(table, source, merge, near, truncates=truncates)})"
    return _MERGE.format(
        table=table,
        last=last_of_each(source, list(merge.key), _quoted, changes),
        conditions=" AND ".join([*equal, *near]),
        later=later,
        deleting=deleting,
        living=living,
    )


def _changes(table: str, new: str, merge: Merge, near: Sequence[str], *, truncates: bool) -> str:
    """What is merged of a table of changes: also deletions of earlier runs, whose keys may be in this one."""
    assert merge.changes is not None
    deletes = ""
    if merge.deletes is not None:
        wanted = " AND ".join(near)
        if wanted:
            wanted = f" WHERE ({wanted}) OR {merge.changes.truncates(_quoted, 't.')}"
        deletes = f"(SELECT * FROM {table} VERSION AS OF {merge.deletes} AS t{wanted})"  # noqa: S608 (names of ours)
    return changes_of(
        merge.columns,
        list(merge.key),
        _quoted,
        merge.changes,
        new=new,
        deletes=deletes,
        target=table if truncates else "",
    )


def _truncates(session: SparkSession, table: str, merge: Merge) -> bool:
    """Whether a new message deletes all rows."""
    if merge.changes is None or not merge.changes.is_envelope:
        return False
    condition = merge.changes.truncates(_quoted)
    query = f"SELECT 1 FROM {table} VERSION AS OF {merge.upserts} WHERE {condition} LIMIT 1"  # noqa: S608 (names of ours)
    return bool(session.sql(query).collect())


def _near(session: SparkSession, table: str, merge: Merge) -> list[str]:
    """Conditions that each row of the table meets whose key is in the run.

    They follow from the keys' being equal. Spark does not see that, and would look at all files, and sort all keys.
    """
    told = {name: kind for name, kind in merge.key.items() if kind.name not in _UNTOLD}
    if not told:
        return []
    source = f"{table} VERSION AS OF {merge.upserts}"
    if merge.rows <= _FEW:
        texts = ", ".join(_text(_quoted(name), kind) for name, kind in told.items())
        rows = session.sql(f"SELECT DISTINCT {texts} FROM {source}").collect()  # noqa: S608 (names of ours)
        return [
            f"t.{_quoted(name)} IN ({', '.join(sorted({_literal(row[at], kind) for row in rows}))})"
            for at, (name, kind) in enumerate(told.items())
        ]
    texts = ", ".join(
        _text(f"{bound}({_quoted(name)})", kind)
        for name, kind in told.items()
        for bound in ("min", "max")
    )
    (row,) = session.sql(f"SELECT {texts} FROM {source}").collect()  # noqa: S608 (names of ours)
    return [
        f"t.{_quoted(name)} BETWEEN {_literal(row[2 * at], kind)} AND {_literal(row[2 * at + 1], kind)}"
        for at, (name, kind) in enumerate(told.items())
    ]


def _text(value: str, kind: ColumnType) -> str:
    """An expression whose value `_literal` writes as a literal."""
    return f"hex({value})" if kind.name in _BYTES else f"CAST({value} AS STRING)"


def _literal(text: str, kind: ColumnType) -> str:
    return f"CAST({'X' if kind.name in _BYTES else ''}'{text}' AS {spark_ddl(kind)})"


@contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, was)


def _quoted(name: str) -> str:
    return f"`{name}`"


# Servers of Spark Connect take messages of up to 128 MiB.
_ORDERS_BYTES_MAX: Final = 64 << 20
# Spark finds data sources by name, so that one set of orders is under way in a process.
_turn = threading.Lock()


@final
class SparkWorkers:
    """Has Spark carry out orders, each in a task of its own, as many side by side as it has cores.

    A task whose worker is killed is tried again by Spark, on a cluster up to `spark.task.maxFailures` times, and
    locally as often as the master says (``local[N,4]``). An error that a worker reports is not: the client has tried
    again what may pass.

    Args:
        session: whose Python workers have this package, of this release. The caller stops it.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def merger(self) -> SparkMerger:
        """See `Workers`."""
        return SparkMerger(self._session)

    def carry_out(self, job: Job, orders: Sequence[Order]) -> list[Done]:
        """See `Workers`. An interrupt ends the tasks that are under way.

        Raises: LakeError, also: Spark cannot be reached, or its workers end, or lack this package.
        """
        sent = jobs.dump_job(job)
        done: list[Done] = []
        errors: list[GazetteError] = []
        for group in _groups([jobs.dump_order(order) for order in orders]):
            for is_error, content in self._answers(job, sent, group):
                if is_error:
                    errors.append(jobs.parse_error(content))
                else:
                    done.append(jobs.parse_done(content))
            if errors:
                # What others have written would be left to maintenance.
                for one in done:
                    discard(job, one.output)
                raise errors[0]
        return done

    def _answers(self, job: Job, sent: bytes, orders: Sequence[bytes]) -> list[tuple[bool, bytes]]:
        """Of each order, in their order, whether it is an error, and what."""

        def collect() -> pa.Table:
            sources = self._session.dataSource
            sources.register(source_of(sent, orders))
            try:
                return self._session.read.format(NAME).load().toArrow()
            finally:
                # Sessions hold what was registered last, with all that opens brokers and stores.
                sources.register(source_of(b"", ()))

        try:
            with _turn:
                rows = interruptible(self._session, collect)
        except SPARKS as err:
            raise LakeError(
                f"Spark did not carry out the orders of {job.spec.name}: {_why(err)}"
            ) from err
        parts: list[list[bytes]] = [[] for _ in orders]
        errors = [False] * len(orders)
        for row in rows.to_pylist():
            errors[row["number"]] |= row["is_error"]
            parts[row["number"]].append(row["content"])
        return list(zip(errors, map(b"".join, parts), strict=True))


def _groups(orders: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Orders that travel together."""
    group: list[bytes] = []
    size = 0
    for order in orders:
        if group and size + len(order) > _ORDERS_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(order)
        size += len(order)
    if group:
        yield group


def _why(error: Exception) -> str:
    """What is wrong at the root, in a line, and what to do: Spark gives traces of two languages."""
    text = str(error)
    if (missing := re.search(r"No module named '(gazette_platform[\w.]*|\w+)", text)) is not None:
        return (
            f"its Python workers have no {missing[1]}: install this release of gazette-platform[spark,lake] for the "
            "Python that executors run (PYSPARK_PYTHON)"
        )
    if "Python worker exited unexpectedly" in text or "ExecutorLostFailure" in text:
        return (
            "its workers ended before they were done, each time that it tried again: were they killed, for want of "
            "memory? Give them more, or fewer cores; see the logs of executors"
        )
    # Of the last trace of Python, what it ends with.
    *_, last = text.rpartition("Traceback (most recent call last):")
    found = re.search(r"^\S.*", last.lstrip("\n"), re.MULTILINE)
    return text.partition("\n")[0] if found is None else found[0]
