"""Covers as files beside a rollup's table, which its snapshots name."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.side_files import write_side_file
from gazette_platform.lake.rollups.covers import Covers

if TYPE_CHECKING:
    from gazette_platform.lake.iceberg.metastore import IcebergTable, IcebergTables

COVERS: Final = "gazette.covers"
"""Property of a snapshot, and of the table: path of the file that says what the table covers."""


def covers_path(table: IcebergTable) -> str:
    """Return where the newest snapshot, or else one before it, says what the table covers; or nothing.

    Snapshots of maintenance do not say it. If the one that did has expired, the table's property does. Of a table that
    was rolled back only its own snapshots count.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = table.snapshot
    while snapshot is not None:
        summary = snapshot.summary
        path = summary.additional_properties.get(COVERS, "") if summary is not None else ""
        if path:
            return path
        snapshot = by_id.get(snapshot.parent_snapshot_id or 0)
    noted = table.metadata.properties.get(COVERS, "") if table.snapshot is not None else ""
    return "" if noted in paths_of(table) else noted


def paths_of(table: IcebergTable) -> set[str]:
    """Return what all snapshots of the table name."""
    return {
        snapshot.summary.additional_properties.get(COVERS, "")
        for snapshot in table.metadata.snapshots
        if snapshot.summary is not None
    }


def read_covers(tables: IcebergTables, table: IcebergTable | None) -> Covers:
    """Return what a rollup covers; nothing, if it has not been made yet.

    Raises: LakeError: the table is not a rollup, or the file cannot be read.
    """
    if table is None or table.snapshot is None:
        return Covers()
    path = covers_path(table)
    if not path:
        raise LakeError(
            f"{table.full_name} exists, but does not say what it covers: it is not a rollup, or was "
            "rolled back to before it was one; drop it, or use another name"
        )
    try:
        with tables.io(path).new_input(path).open() as stream:
            return Covers.parse(gzip.decompress(stream.read()))
    except (OSError, EOFError) as err:
        raise LakeError(f"cannot read what {table.full_name} covers, at {path}: {err}") from err


def write_covers(tables: IcebergTables, location: str, covers: Covers) -> str:
    """Write covers beside the table at `location`. Returns: the path.

    Raises: LakeError: the file cannot be written.
    """
    # Without a suffix `.gz`: Arrow would compress the file once more.
    content = gzip.compress(covers.dump().encode(), mtime=0)
    return write_side_file(location, "covers", content, tables.io(location))
