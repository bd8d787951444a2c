"""Typed rows of what no run has published yet: with those of the table, all there is, each message once.

The seam is the table's state: its rows are those of messages before the offsets, and producers, that it says; the tail is
what a run would write next, made in this process and kept in memory. Nothing is changed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema

from gazette_platform.lake.typed.iceberg_types import arrow_schema, new_schema
from gazette_platform.lake.typed.jobs import Job
from gazette_platform.lake.typed.journals import journals_now
from gazette_platform.lake.typed.quarantined import quarantine_schema
from gazette_platform.lake.typed.ranges import Limits, plan_run
from gazette_platform.lake.typed.running import work_ranges
from gazette_platform.lake.typed.state import TypedState
from gazette_platform.lake.typed.table import typed_table
from gazette_platform.lake.typed.working import attempt
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gazette_platform.client import Client
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.lake.typed.doors import Door, Loaded
    from gazette_platform.lake.typed.ranges import Hole
    from gazette_platform.lake.typed.working import Sink
    from gazette_platform.lake.typed_spec.spec import TypedSpec
    from gazette_platform.ops.clock import Clock

__all__ = ["TypedTail", "read_tail"]

# Rows of that much content are some times as large in Arrow.
_TAIL_BYTES: Final = 1 << 30
_TASK_BYTES: Final = 32 << 20


@final
@dataclass(frozen=True, kw_only=True)
class TypedTail:
    """What comes behind a table's rows."""

    loaded: Loaded | None
    """The table whose rows come before: it has to be read as it is here. None: there is none yet."""
    rows: pa.Table
    """In the table's columns, without what is bad; by journal."""
    before: TypedState
    """The seam: of the table."""
    state: TypedState
    """Behind the tail."""
    quarantined: int
    """Records of the tail of which no row can be made."""
    asked_at: datetime
    """What was acknowledged before is there, unless the rest says otherwise. Aware, UTC."""
    left_bytes: int
    """Content that was too much for memory: let a run publish it first."""
    holes: tuple[Hole, ...]
    unreadable: Mapping[str, str]


def read_tail(
    door: Door,
    spec: TypedSpec,
    raw: TableSpec,
    client: Client,
    *,
    bytes_max: int = _TAIL_BYTES,
    threads: int = 1,
    clock: Clock | None = None,
) -> TypedTail:
    """The tail of a table, as of now.

    Args:
        door: of the table, which need not be there.
        spec: of the table. Columns that are new in it are not there before a run has made them.
        raw: says which journals there are.
        client: of brokers.
        bytes_max: of content that is read, uncompressed.
        threads: that read.
        clock: tells when heads were asked for.

    Raises: LakeError: the catalog cannot be reached, or the table is none of ours. TransportError: nor brokers.
    """
    loaded = door.load()
    table = None if loaded is None else typed_table(loaded, door.name)
    before = TypedState() if table is None else table.state
    schema = new_schema(spec) if table is None else table.schema
    now = client.run(
        journals_now(client.asynchronous, raw.label_selector, before, clock or SystemClock())
    )
    limits = Limits(run_bytes=bytes_max, task_bytes=_TASK_BYTES)
    plan = plan_run(before, now.journals, limits)
    job = Job(
        spec=spec,
        schema=schema.model_dump_json(),
        partitions=UNPARTITIONED_PARTITION_SPEC.model_dump_json(),
        location="",
        quarantine_schema=quarantine_schema().model_dump_json(),
        quarantine_location="",
        io_properties={},
        client=client.config,
    )
    with ThreadPoolExecutor(threads, thread_name_prefix="typed-tail") as pool:
        rounds, failed = work_ranges(
            before,
            now.journals,
            plan.ranges,
            lambda orders: list(pool.map(lambda order: attempt(job, order, _held), orders)),
            _TASK_BYTES,
        )
    read = [one for name, one in rounds.items() if name not in failed]
    outputs = [output for one in read for output in one.outputs]
    state = before.with_journals({n: one.state for n, one in rounds.items() if n not in failed})
    tables = [arrow_schema(schema).empty_table(), *(rows for one in outputs for rows in one.files)]
    return TypedTail(
        loaded=loaded,
        rows=pa.concat_tables(tables),
        before=before,
        state=state,
        quarantined=state.counts.quarantined - before.counts.quarantined,
        asked_at=now.asked_at,
        left_bytes=plan.left_bytes,
        holes=plan.holes,
        unreadable={**now.unreadable, **failed},
    )


def _held(job: Job) -> tuple[Sink, Sink]:
    return _HeldRows(job.schema), _HeldRows(job.quarantine_schema)


@final
class _HeldRows:
    """Rows that stay in memory. A `Sink`."""

    def __init__(self, schema: str) -> None:
        self.schema = arrow_schema(Schema.model_validate_json(schema))
        self.rows = 0
        self._held: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """See `Sink`."""
        self.rows += rows.num_rows
        self._held.append(rows)

    def close(self) -> tuple[Any, ...]:
        """See `Sink`. Returns: tables."""
        return tuple(one for one in self._held if one.num_rows)

    def abort(self) -> None:
        """See `Sink`."""
        self.rows, self._held = 0, []
