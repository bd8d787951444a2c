"""Progress of a typed table, as the table itself records it, whatever process ran it; and rollbacks of it.

A snapshot of a run says what it holds, and how it came about. So Dagster shows the same for a run of Dagster, for a process
that runs without end, and after Dagster's home was lost. `FormerStates` are those of snapshots that have not expired.

Runs refuse a table whose rows and tag disagree (`publishing.require_progress`), since only a person knows which of the two
counts. `accept_rollback` is the answer that the rows do: the tag moves to the newest state among the ancestors of what readers
see. The next run reads on from there, so what came after it is read again, as far as journals still hold it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from pyiceberg.table.update import AssertTableUUID

from gazette_platform.errors import LakeError, TypedProgressGone, TypedRolledBack
from gazette_platform.lake.iceberg.publishing import (
    RUN,
    STATE,
    head_of,
    loaded_from,
    progress_of,
    read_side_file,
    require_progress,
    still_at,
    still_headed,
    summary_of,
    updates_moving,
)
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.tables.table import typed_table
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.client.read.extents import JournalSnapshot
    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.typed.planning.state import JournalState
    from gazette_platform.lake.typed.tables.table import TypedTable

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


@final
class FormerStates:
    """States of a table, read as they are asked for, each once. A continuous table has thousands.

    Args:
        table: as it is now.
    """

    def __init__(self, table: TypedTable) -> None:
        self._table = table
        metadata = table.metadata
        snapshots = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
        told = [summary_of(metadata, one.snapshot_id).get(STATE, "") for one in snapshots]
        self._paths = [path for path in told if path]
        self._known: dict[str, TypedState] = {}

    def before(self, wanted: Mapping[str, Sequence[tuple[int, int]]]) -> list[TypedState]:
        """The newest states before ranges of journals, as `plan_backfill` takes them, and that of the table.

        Each has such journals alone that the table has read farther. Of a table that was rolled back, states of what
        came behind are passed over.

        Raises: LakeError: a state cannot be read.
        """
        found = [self._table.state]
        for journal, ranges in sorted(wanted.items()):
            for begin, _ in ranges:
                now = self._table.state.journals.get(journal)
                shared_to = 0 if now is None else now.shared_to
                state = self._newest(journal, (shared_to, begin))
                one = state.journals.get(journal) if state is not None else None
                if one is not None and now is not None and one.offset <= min(begin, now.offset):
                    found.append(TypedState({journal: one}))
        return found

    def _newest(self, journal: str, place: tuple[int, int]) -> TypedState | None:
        """Offsets only grow from snapshot to snapshot of one journal, so few have to be looked at.

        When the table restarted a journal, offsets began again, and what they share with the former one grew.
        """
        index = bisect_right(self._paths, place, key=lambda path: self._place(path, journal))
        return self._read(self._paths[index - 1]) if index else None

    def _place(self, path: str, journal: str) -> tuple[int, int]:
        state = self._read(path).journals.get(journal)
        return (-1, -1) if state is None else (state.shared_to, state.offset)

    def _read(self, path: str) -> TypedState:
        if path not in self._known:
            content = read_side_file(self._table.io, path, self._table.name)
            self._known[path] = TypedState.decode(content, where=path)
        return self._known[path]


@final
@dataclass(frozen=True, kw_only=True)
class Rollback:
    """What a table is, and what it would be once its rollback is accepted."""

    name: str
    """``schema.table``."""
    loaded: Loaded
    to: int
    """The snapshot that the tag would move to."""
    before: TypedState
    """What the tag says was read; empty, if there is no tag."""
    after: TypedState
    """What was read up to `to`."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """What of a journal would be read again. Of a journal that was made again nothing can be."""

    journal: str
    begin: int
    end: int
    lost_bytes: int
    """The missing part of these."""


def look_at_rollback(handle: TableHandle) -> Rollback | None:
    """Return what accepting a rollback would do; None: rows and tag agree.

    Raises: LakeError: the table is not there, or none of the snapshots that readers see has a state.
    """
    loaded = loaded_from(handle)
    metadata = loaded.metadata
    try:
        require_progress(metadata, handle.name)
    except (TypedRolledBack, TypedProgressGone):
        pass
    else:
        return None
    snapshot = metadata.current_snapshot()
    while snapshot is not None and STATE not in summary_of(metadata, snapshot.snapshot_id):
        snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
    if snapshot is None:
        raise LakeError(
            f"{handle.name}: no snapshot that readers see says how far the table had come, as those before it have expired: "
            f"roll the table to one that has the property `{STATE}`, or drop it, and a run makes it again"
        )
    at = progress_of(metadata)
    return Rollback(
        name=handle.name,
        loaded=loaded,
        to=snapshot.snapshot_id,
        before=TypedState() if at is None else _state_at(loaded, at, handle.name),
        after=_state_at(loaded, snapshot.snapshot_id, handle.name),
    )


def accept_rollback(handle: TableHandle, rollback: Rollback) -> None:
    """Move the tag.

    Raises: CommitFailedException: the table has changed meanwhile. LakeError: the catalog cannot be reached.
    """
    metadata = rollback.loaded.metadata
    _, tag = updates_moving(rollback.to)
    required = (
        AssertTableUUID(uuid=metadata.table_uuid),
        still_headed(metadata),
        still_at(metadata, progress_of(metadata)),
    )
    handle.commit(rollback.loaded, required, (tag,))


def reread(rollback: Rollback, journals: Iterable[JournalSnapshot]) -> list[Reread]:
    """Return what would be read again, by journal. A journal that no longer exists is lost as a whole.

    Args:
        journals: as brokers report them, with fragments from where `rollback.after` has come.
    """
    now = {each.name: each for each in journals}
    found = []
    for name, one in sorted(rollback.before.journals.items()):
        for begin, end, is_former in _between(rollback.after.journals.get(name), one):
            if begin >= end:
                continue
            is_gone = is_former or name not in now or is_another(one.created, now[name].created)
            holes = ((begin, end),) if is_gone else now[name].missing(begin, end)
            lost = sum(high - low for low, high in holes)
            found.append(Reread(journal=name, begin=begin, end=end, lost_bytes=lost))
    return found


def _between(former: JournalState | None, one: JournalState) -> list[tuple[int, int, bool]]:
    """What was read of a journal between two states: begin, end, and whether of a former one of its name."""
    if former is None:
        return [(0, one.offset, False)]
    if not is_another(former.created, one.created):
        return [(former.offset, one.offset, False)]
    return [(former.offset, one.shared_to, True), (0, one.offset, False)]


def _state_at(loaded: Loaded, snapshot_id: int, name: str) -> TypedState:
    path = summary_of(loaded.metadata, snapshot_id).get(STATE, "")
    if not path:
        return TypedState()  # it has expired, or the tag was set by hand
    return TypedState.decode(read_side_file(loaded.io, path, name), where=path)
