"""Rollbacks of typed tables that a person accepts.

Runs refuse a table whose rows and tag disagree (`publishing.require_progress`), since only a person knows which of the two
counts. `accept_rollback` is the answer that the rows do: the tag moves to the newest state among the ancestors of what readers
see. The next run reads on from there, so what came after it is read again, as far as journals still hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from pyiceberg.table.update import AssertTableUUID

from gazette_platform.errors import LakeError, TypedProgressGone, TypedRolledBack
from gazette_platform.lake.iceberg.publishing import (
    STATE,
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
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.client.read.extents import JournalSnapshot
    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.typed.planning.state import JournalState


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
