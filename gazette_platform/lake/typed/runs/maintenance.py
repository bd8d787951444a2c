"""Maintenance of a typed table and its quarantine: merge small files, remove old snapshots and unreferenced files.

Optimizing, expiring and removing orphans are procedures of an engine. Progress of a typed table is a tag, which none of them touches,
so runs go on after all of it, and beside it. What engines do not know is done here, in this order:

1. *Quarantine is settled first.* Records that the newest run has set aside are in files that only a list beside the table
   names: orphans to every engine.
2. *Whoever began long ago is fenced.* Files of workers are orphans until they are published, and publishing looks at no
   file. A run that was held up for longer than orphans are kept would publish files that are gone, if no run has
   published since it began. So an empty run is published then, from the state that there is: it moves the tag. Amendments,
   which go on top of runs, write their files up to `LATE_S` before what they are fenced by.
3. *Files beside the table* that no snapshot names any more, states and lists, are removed as orphans are.

A table that is written every few seconds has thousands of snapshots a day, and every metadata file lists them all. So they
expire by number as well as by age.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import LakeError, TableFenced
from gazette_platform.lake.catalog_settings import ICEBERG
from gazette_platform.lake.iceberg.metastore import deleting
from gazette_platform.lake.iceberg.publishing import (
    QUARANTINE,
    RUN,
    head_of,
    progress_of,
    publish_files,
    require_progress,
    summary_of,
)
from gazette_platform.lake.iceberg.snapshots import (
    RETAINED_S,
    maintenance_statements,
    unnamed_files,
)
from gazette_platform.lake.typed.runs.amending import LATE_S
from gazette_platform.lake.typed.tables.progress import OLDEST_AT, READ_BYTES, SECONDS
from gazette_platform.lake.typed.tables.quarantine import settle_quarantine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.rollups.engines import RollupEngine

ORPHANS_S: Final = 24 * 3600.0
"""Seconds for which unreferenced files are kept: longer than any run takes. The least that Spark allows."""

_SNAPSHOTS_MAX: Final = 2000
# Readers of an old snapshot, and runs that replace rows, have that long at least.
_SNAPSHOTS_S_MIN: Final = 6 * 3600.0
# Clocks of catalogs, stores and this process may differ.
_CLOCKS_S: Final = 3600.0
# Properties of snapshots that are ours.
_OURS: Final = "gazette."
# Of these, what is of the run that published one, and not of the table: an empty run has read nothing.
_OF_A_RUN: Final = frozenset((RUN, QUARANTINE, READ_BYTES, SECONDS, OLDEST_AT))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What was done to one table."""

    name: str
    """``schema.table``."""
    files_before: int = 0
    files: int = 0
    bytes_before: int = 0
    """Of data files, as they are stored."""
    bytes: int = 0
    snapshots_before: int = 0
    snapshots: int = 0
    orphans: int | None = None
    """Unreferenced files that were removed; None: the engine does not say."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TypedMaintenance:
    """What was done to a typed table and to its quarantine."""

    table: Upkeep
    quarantine: Upkeep | None
    """None: there is no such table."""
    is_fenced: bool
    """Whether an empty run was published, so that whoever began long ago is refused."""
    side_files: int
    """Files beside the table that were removed."""
    undeleted: tuple[str, ...] = ()
    """Those that could not be, with the reason; tried again next time."""


def maintain_typed(
    handle: TableHandle,
    quarantine: TableHandle,
    engine: RollupEngine,
    *,
    now_s: float,
    catalog: str = ICEBERG,
    orphans_s: float = ORPHANS_S,
    snapshots_max: int = _SNAPSHOTS_MAX,
) -> TypedMaintenance | None:
    """Look after a typed table and its quarantine.

    Args:
        handle: of the typed table.
        quarantine: of its quarantine table, which need not exist.
        engine: that has both in a catalog.
        now_s: unix seconds.
        catalog: what the engine calls that.
        orphans_s: as `ORPHANS_S`.
        snapshots_max: how many snapshots are kept, if they are old enough.

    Returns: what was done; None: nothing was published to it yet.
    Raises: LakeError: the engine or the catalog cannot be reached, or refused; what was done before holds.
        TypedRolledBack, TypedProgressGone: a person has to look.
    """
    loaded = handle.load()
    if loaded is None or progress_of(loaded.metadata) is None:
        return None
    # Optimized, and expired, it would not be seen any more that it was rolled back.
    require_progress(loaded.metadata, handle.name)
    has_quarantine = quarantine.load() is not None
    if has_quarantine:
        # Only now, behind the look at the table: what was pending then is settled.
        settle_quarantine(handle, quarantine)
    is_fenced = fence_before(handle, loaded, now_s - orphans_s + LATE_S + _CLOCKS_S)
    names = [handle, quarantine] if has_quarantine else [handle]
    done = [
        _kept_up(
            one,
            engine,
            catalog,
            now_s=now_s,
            orphans_s=orphans_s,
            snapshots_s=keeping_s(_metadata(one), now_s, snapshots_max),
        )
        for one in names
    ]
    stale = unnamed_files(handle, now_s=now_s, older_than_s=orphans_s)
    undeleted = tuple(deleting(lambda _: loaded.io, stale))
    return TypedMaintenance(
        table=done[0],
        quarantine=done[1] if has_quarantine else None,
        is_fenced=is_fenced,
        side_files=len(stale) - len(undeleted),
        undeleted=undeleted,
    )


def fence_before(handle: TableHandle, loaded: Loaded, began_s: float) -> bool:
    """See that no run that began before an instant can publish any more.

    Args:
        handle: of the table.
        loaded: the table, to which something was published. Its quarantine was settled since it was loaded.
        began_s: unix seconds.

    Returns: whether an empty run was published; else another run has published since.
    Raises: LakeError, TypedRolledBack, TypedProgressGone: as `publish_files` does.
    """
    start = progress_of(loaded.metadata)
    assert start is not None  # the caller has looked
    snapshot = loaded.metadata.snapshot_by_id(start)
    if snapshot is not None and snapshot.timestamp_ms / 1000 >= began_s:
        return False
    # What the newest run says of the table holds on: nothing was read since. What it quarantined is settled.
    told = summary_of(loaded.metadata, start).items()
    same = {key: value for key, value in told if key.startswith(_OURS) and key not in _OF_A_RUN}
    try:
        publish_files(handle, start, [], uuid.uuid4().hex, same)
    except TableFenced:
        return False  # another run has, at this moment
    return True


def keeping_s(metadata: TableMetadata, now_s: float, snapshots_max: int = _SNAPSHOTS_MAX) -> float:
    """For how many seconds snapshots are to be kept, so that not too many are."""
    ages = sorted(now_s - one.timestamp_ms / 1000 for one in metadata.snapshots)
    by_number = ages[snapshots_max - 1] if len(ages) > snapshots_max else RETAINED_S
    return min(RETAINED_S, max(_SNAPSHOTS_S_MIN, by_number))


def _kept_up(
    handle: TableHandle,
    engine: RollupEngine,
    catalog: str,
    *,
    now_s: float,
    orphans_s: float,
    snapshots_s: float,
) -> Upkeep:
    before = _metadata(handle)
    if engine.dialect == "trino":
        snapshots_s = orphans_s = RETAINED_S  # the least that it allows
    rows: Sequence[object] = ()
    for statement in maintenance_statements(
        engine.dialect,
        handle.name,
        now_s=now_s,
        snapshots_s=snapshots_s,
        orphans_s=orphans_s,
        catalog=catalog,
    ):
        rows = engine.execute(statement)
    after = _metadata(handle)
    files, size = _stored(after)
    files_before, size_before = _stored(before)
    return Upkeep(
        name=handle.name,
        files_before=files_before,
        files=files,
        bytes_before=size_before,
        bytes=size,
        snapshots_before=len(before.snapshots),
        snapshots=len(after.snapshots),
        # Spark's procedure gives a row of each.
        orphans=len(rows) if engine.dialect == "spark" else None,
    )


def _metadata(handle: TableHandle) -> TableMetadata:
    loaded = handle.load()
    if loaded is None:
        raise LakeError(f"{handle.name} was dropped while it was looked after")
    return loaded.metadata


def _stored(metadata: TableMetadata) -> tuple[int, int]:
    """Data files and their bytes, as the newest snapshot says."""
    told = summary_of(metadata, head_of(metadata))
    return int(told.get("total-data-files", 0)), int(told.get("total-files-size", 0))
