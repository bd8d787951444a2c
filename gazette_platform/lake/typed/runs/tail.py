"""Typed rows of what no run has published yet: with those of the table, all there is, each message once.

The seam is the table's state: its rows are those of messages before the offsets, and producers, that it says; the tail is
what a run would write next. Nothing is changed.

    pin       the table, and then heads of journals: content up to then is in the view, and nothing else
    settle    the rounds of a run, which say which messages are rows; here, or by workers elsewhere

The table comes first, so that what is published meanwhile is in the tail, and not in the table as it was pinned.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: TC002
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema

from gazette_platform.errors import DataError, LakeError, TransportError
from gazette_platform.lake.typed.iceberg_types import arrow_schema, new_schema
from gazette_platform.lake.typed.planning.ranges import Limits, plan_run
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.runs.jobs import Job
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.runs.running import work_ranges
from gazette_platform.lake.typed.runs.working import attempt, carry_out
from gazette_platform.lake.typed.tables.quarantine import quarantine_schema
from gazette_platform.lake.typed.tables.table import require_ours, typed_table
from gazette_platform.lake.typed.tables.upserts import with_deletes
from gazette_platform.lake.typed.tables.writing import CountedRows, RowSpool, SpooledRows
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from gazette_platform.client import Client
    from gazette_platform.client.read.extents import JournalSnapshot
    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.ranges import Hole, RunPlan
    from gazette_platform.lake.typed.planning.rounds import Done, Order
    from gazette_platform.lake.typed.runs.working import Sink
    from gazette_platform.lake.typed.tables.writing import SpooledBatch
    from gazette_platform.ops.clock import Clock

# At 25 MB/s of a core, minutes.
_TAIL_BYTES: Final = 8 << 30
_TASK_BYTES: Final = 32 << 20
# As many as a tail of that size may have tasks, of one journal or of many.
_TASKS_MAX: Final = 1 << 16


@final
@dataclass(frozen=True, kw_only=True)
class PinnedTail:
    """A typed table at an instant, and where its tail is."""

    loaded: Loaded | None
    """The table whose rows come before: it has to be read as it is here. None: there is none yet."""
    schema: Schema
    """Of its rows, and of the tail's."""
    before: TypedState
    """The seam: of the table."""
    journals: tuple[JournalSnapshot, ...]
    plan: RunPlan
    job: Job
    """What workers need to know. It has no location, so that they write nothing."""
    asked_at: datetime
    """All that was acknowledged before is in the view, except what follows `holes`. Aware, UTC."""

    @property
    def snapshot_id(self) -> int | None:
        """The table's snapshot whose rows come before; None: it has none."""
        return None if self.loaded is None else self.loaded.metadata.current_snapshot_id

    @property
    def deletes(self) -> Loaded | None:
        """The table as it would be with the deletions that runs have kept, and nothing else; None: there are none."""
        return None if self.loaded is None else with_deletes(self.loaded)

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns, whose last message counts; empty: each message is a row."""
        ids = self.schema.identifier_field_ids
        return tuple(field.name for field in self.schema.fields if field.field_id in ids)

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Bytes that no broker or store holds. Messages after them are not rows, as no run converts them."""
        return self.plan.holes

    @property
    def is_empty(self) -> bool:
        """Whether the table has all there is."""
        return not self.plan.ranges


@final
@dataclass(frozen=True, slots=True)
class TailOrders:
    """Which messages of a tail are rows, as orders: carried out, they give these rows, any number of times."""

    orders: tuple[Order, ...]
    quarantined: int
    """Records of the tail that cannot be rows."""


@final
class SpooledTail:
    """Rows of a tail, on the local disk.

    Args:
        spool: has them.
        places: of those that are rows in the end.
        quarantined: records of the tail that cannot be rows.
    """

    def __init__(self, spool: RowSpool, places: Sequence[SpooledBatch], quarantined: int) -> None:
        self.quarantined = quarantined
        self._spool = spool
        self._places = places

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the table's columns, a block at a time; from any thread, any number of times.

        Raises: LakeError: the disk fails.
        """
        return self._spool.read(self._places)

    def close(self) -> None:
        """Forget them."""
        self._spool.close()


def pin_tail(
    handle: TableHandle,
    spec: TypedSpec,
    raw: TableSpec,
    client: Client,
    *,
    bytes_max: int = _TAIL_BYTES,
    is_whole: bool = False,
    clock: Clock | None = None,
) -> PinnedTail:
    """The table as of now, and what of its journals is behind it.

    Args:
        handle: of the table, which need not exist.
        spec: of the table. Columns that are new in it are not there before a run has made them.
        raw: says which journals there are.
        client: of brokers.
        bytes_max: of content behind the table, uncompressed.
        is_whole: whether the tail is all that journals hold, as if the table had no rows.
        clock: dates the heads.

    Raises: LakeError: the catalog cannot be reached, the table is not ours, or there is more after it than
        `bytes_max`. SchemaMismatch: it is of another raw table, or another `uuid`. TransportError: brokers cannot be
        reached, or report nothing about a journal.
    """
    loaded = handle.load()
    if loaded is not None:
        require_ours(loaded, spec, handle.name)
    table = None if loaded is None else typed_table(loaded, handle.name)
    # State and rows come from one load. Two loads could have a publication in between, whose rows
    # would be missing or doubled.
    before = TypedState() if table is None or is_whole else table.state
    schema = new_schema(spec) if table is None else table.schema
    now = client.run(
        journals_now(client.asynchronous, raw.label_selector, before, clock or SystemClock())
    )
    # A run leaves such a journal out. A query must not: its result would look complete.
    if now.unreadable:
        journal, why = min(now.unreadable.items())
        raise TransportError(f"{spec.name}: brokers report nothing about {journal} now: {why}")
    limits = Limits(run_bytes=bytes_max, task_bytes=_TASK_BYTES, tasks_max=_TASKS_MAX)
    plan = plan_run(before, now.journals, limits)
    # Never a silent part: a view that ends somewhere would differ from query to query.
    if plan.left_bytes and not is_whole:
        size = sum(one.end - one.begin for one in plan.ranges) + plan.left_bytes
        raise LakeError(
            f"{spec.name}: {size} bytes of journals are behind it, which is more than is read at once ({bytes_max}): "
            f"let a run publish them (`gazctl lake run {spec.name}`)"
        )
    job = Job(
        spec=spec,
        # Unpartitioned and without locations: nothing is written below the table, so a reader needs
        # no right to write.
        schema=schema.model_dump_json(),
        partitions=UNPARTITIONED_PARTITION_SPEC.model_dump_json(),
        location="",
        quarantine_schema=quarantine_schema().model_dump_json(),
        quarantine_location="",
        io_properties={},
        client=client.config,
    )
    return PinnedTail(
        loaded=loaded,
        schema=schema,
        before=before,
        journals=now.journals,
        plan=plan,
        job=job,
        asked_at=now.asked_at,
    )


def settle_tail(
    pinned: PinnedTail, carry_out: Callable[[Sequence[Order]], Sequence[Done]]
) -> TailOrders:
    """Have workers find out which messages of a tail are rows.

    Args:
        carry_out: as of `Workers`, with the job of `pinned`: rows are counted, and go nowhere.

    Raises: DataError: a journal's content cannot be read. LakeError: as `carry_out`.
    """

    def noted(orders: Sequence[Order]) -> list[Done]:
        """What a round gives is what its orders give when they are carried out again."""
        done = carry_out(orders)
        return [
            # Keep orders, not rows: Spark carries them out where it reads, any number of times,
            # with the same rows.
            replace(one, output=order) if one.typed else one
            for order, one in zip(orders, done, strict=True)
        ]

    outputs, quarantined = _settled(pinned, noted)
    return TailOrders(tuple(outputs), quarantined)


def spool_tail(pinned: PinnedTail, *, threads: int = 1) -> SpooledTail:
    """Read a tail in this process. Memory: blocks of some megabytes for each thread; rows are on the local disk.

    Args:
        threads: that read.

    Raises: DataError: a journal's content cannot be read. LakeError: the disk is full, or fails; the journal's name has
        no value for a column.
    """
    spool = RowSpool(arrow_schema(pinned.schema))
    sinks = _spooling(spool)
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="typed-tail") as pool:

            def read(orders: Sequence[Order]) -> list[Done]:
                return list(pool.map(lambda order: attempt(pinned.job, order, sinks), orders))

            outputs, quarantined = _settled(pinned, read)
    # Also on Ctrl-C: the spool is on the local disk.
    except BaseException:
        spool.close()
        raise
    return SpooledTail(spool, [place for one in outputs for place in one.files], quarantined)


def rows_of_order(job: Job, order: Order) -> Iterator[pa.RecordBatch]:
    """Rows that one of `TailOrders` makes, a block at a time, once it is carried out; they are on the local disk till then.

    Raises: as `carry_out`.
    """
    with closing(RowSpool(arrow_schema(Schema.model_validate_json(job.schema)))) as spool:
        done = carry_out(job, order, _spooling(spool))
        yield from spool.read(done.output.files if done.output is not None else ())


def _spooling(spool: RowSpool) -> Callable[[Job], tuple[Sink, Sink]]:
    def sinks(_: Job) -> tuple[Sink, Sink]:
        return SpooledRows(spool), CountedRows(arrow_schema(quarantine_schema()))

    return sinks


def _settled(
    pinned: PinnedTail, carry_out: Callable[[Sequence[Order]], Sequence[Done]]
) -> tuple[list[Any], int]:
    """What orders gave that have rows, and how many records are none."""
    rounds, failed = work_ranges(
        pinned.before, pinned.journals, pinned.plan.ranges, carry_out, _TASK_BYTES
    )
    # As above: rows without one journal would look like all rows.
    if failed:
        journal, why = min(failed.items())
        raise DataError(f"{pinned.job.spec.name}: {journal} cannot be read now: {why}")
    state = pinned.before.with_journals({name: one.state for name, one in rounds.items()})
    quarantined = state.counts.quarantined - pinned.before.counts.quarantined
    return [each for one in rounds.values() for each in one.outputs], quarantined
