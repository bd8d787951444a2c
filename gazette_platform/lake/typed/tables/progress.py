"""Progress of a typed table, as the table itself records it, whatever process ran it.

A snapshot of a run says what it holds, and how it came about. So what Dagster shows of a table is taken from the table, and
is the same for a run of Dagster's, for a process that goes on without end, and after Dagster's home was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.catalog.publishing import RUN, head_of, summary_of
from gazette_platform.lake.typed.tables.table import typed_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.lake.typed.catalog.doors import Loaded
    from gazette_platform.lake.typed.planning.state import TypedState
    from gazette_platform.lake.typed.tables.table import TypedTable

__all__ = [
    "COMPLETE_AT",
    "OLDEST_AT",
    "READ_BYTES",
    "SECONDS",
    "TypedProgress",
    "measures",
    "read_progress",
]

COMPLETE_AT: Final = "gazette.complete-at"
"""Property of a snapshot: what was acknowledged before this instant (ISO 8601, UTC) is in the table. Absent: something
was left to later runs."""
READ_BYTES: Final = "gazette.read-bytes"
"""Property of a snapshot: uncompressed bytes of journals that its run has read."""
SECONDS: Final = "gazette.seconds"
"""Property of a snapshot: from the begin of its run until it was to be published."""
OLDEST_AT: Final = "gazette.oldest-at"
"""Property of a snapshot: clock of the oldest message that its run committed, of journals that were read before (ISO
8601, UTC). Absent: there was none, or messages have no clocks."""


def measures(
    *, read_bytes: int, seconds: float, complete_at: datetime | None, oldest_at: datetime | None
) -> dict[str, str]:
    """Properties of the snapshot of a run."""
    found = {READ_BYTES: str(read_bytes), SECONDS: f"{seconds:.3f}"}
    if complete_at is not None:
        found[COMPLETE_AT] = complete_at.isoformat()
    if oldest_at is not None:
        found[OLDEST_AT] = oldest_at.isoformat()
    return found


@final
@dataclass(frozen=True, kw_only=True)
class TypedProgress:
    """A typed table, by its newest run and its newest snapshot."""

    name: str
    """``schema.table``."""
    metadata: TableMetadata
    state: TypedState
    snapshot_id: int
    """Of the newest run."""
    published_at: datetime
    """When that was. Aware, UTC."""
    run: str
    """Name of its publication."""
    is_replacing: bool
    """Whether existing rows were made again: the state need not show that they changed."""
    rows: int | None
    """In the table; None: rows were deleted beside their files, and only readers know."""
    files: int
    stored_bytes: int
    complete_at: datetime | None = None
    """What was acknowledged before is in the table; None: something was left. Aware, UTC."""
    read_bytes: int | None = None
    """Of the newest run, as are the next ones; None: it does not say."""
    seconds: float | None = None
    freshness_s: float | None = None
    """Seconds from the clock of its oldest message until that was a row."""

    @property
    def version(self) -> str:
        """Text that changes when rows do, and not when the table is looked after."""
        digest = self.state.digest
        return f"{digest}-{self.snapshot_id:x}" if self.is_replacing else digest


def read_progress(loaded: Loaded, name: str) -> TypedProgress | None:
    """What a table says.

    Args:
        loaded: the table.
        name: ``schema.table``.

    Returns: None: nothing was published to it yet.
    Raises: LakeError: it is not a typed table, its state cannot be read, or its snapshot's properties were edited.
        TypedProgressGone, TypedRolledBack: a person
        has to look.
    """
    table = typed_table(loaded, name)
    metadata = loaded.metadata
    snapshot = metadata.snapshot_by_id(table.start) if table.start is not None else None
    if snapshot is None:
        return None
    try:
        return _progress(table, snapshot)
    except (ValueError, TypeError, OverflowError) as err:
        raise LakeError(
            f"snapshot {snapshot.snapshot_id} of {name} has a property that no run has set ({str(err)[:200]}): the next run that "
            "reads something sets all of them"
        ) from err


def _progress(table: TypedTable, snapshot: Snapshot) -> TypedProgress:
    """What a table says in a snapshot. Raises: ValueError, TypeError, OverflowError: it makes no sense."""
    metadata = table.metadata
    told = summary_of(metadata, snapshot.snapshot_id)
    head = summary_of(metadata, head_of(metadata))
    published_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    oldest_at = _instant(told, OLDEST_AT)
    return TypedProgress(
        name=table.name,
        metadata=metadata,
        state=table.state,
        snapshot_id=snapshot.snapshot_id,
        published_at=published_at,
        run=told.get(RUN, ""),
        is_replacing=snapshot.summary is not None and snapshot.summary.operation.value != "append",
        rows=_rows(head),
        files=int(head.get("total-data-files", 0)),
        stored_bytes=int(head.get("total-files-size", 0)),
        complete_at=_instant(told, COMPLETE_AT),
        read_bytes=int(told[READ_BYTES]) if READ_BYTES in told else None,
        seconds=float(told[SECONDS]) if SECONDS in told else None,
        freshness_s=None
        if oldest_at is None
        # Clocks of producers may be ahead.
        else max(0.0, (published_at - oldest_at).total_seconds()),
    )


def _rows(head: Mapping[str, str]) -> int | None:
    deletes = (head.get(key, "0") for key in ("total-position-deletes", "total-equality-deletes"))
    return None if any(one != "0" for one in deletes) else int(head.get("total-records", 0))


def _instant(told: Mapping[str, str], key: str) -> datetime | None:
    return datetime.fromisoformat(told[key]) if key in told else None
