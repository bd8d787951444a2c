"""Deletions that a table of changes keeps, so that older messages that come later bring no row back.

The tag `DELETES` is at a snapshot of the table that holds deletions alone, of all runs. Each run adds files to it; many small
ones are put together, which engines do for the branch main only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyiceberg.table.refs import SnapshotRef

from gazette_platform.lake.typed.files.history import TableHistory
from gazette_platform.lake.typed.files.writing import RowWriter
from gazette_platform.lake.typed.files.written import data_file_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.lake.typed.catalog.doors import Loaded

__all__ = ["DELETES", "deletes_of", "with_deletes", "written_with_deletes"]

DELETES: Final = "gazette-deletes"
"""Tag of a snapshot that holds deletions alone, of all runs. It moves with what is published."""

_MAIN: Final = "main"
_SMALL_BYTES: Final = 8 << 20
# So many are put together; of a table with many partitions, once there are so many of each.
_SMALL_MAX: Final = 100
_SMALL_OF_EACH_MAX: Final = 4


def deletes_of(metadata: TableMetadata) -> int | None:
    """Return the snapshot that holds the deletions of all runs, and nothing else; None: there were none."""
    found = metadata.refs.get(DELETES)
    return found.snapshot_id if found is not None else None


def with_deletes(loaded: Loaded) -> Loaded | None:
    """Return the table as it would be with the kept deletions, and nothing else; None: there are none."""
    at = deletes_of(loaded.metadata)
    if at is None:
        return None
    refs = {_MAIN: SnapshotRef.model_validate({"snapshot-id": at, "type": "branch"})}
    update = {"current_snapshot_id": at, "refs": refs}
    return replace(loaded, metadata=loaded.metadata.model_copy(update=update))


def written_with_deletes(deletes: Loaded, files: Sequence[DataFile]) -> Snapshot:
    """Write a snapshot of the kept deletions, and of more.

    Args:
        deletes: as `with_deletes` gives it.
        files: of more deletions.

    Raises: LakeError: a file cannot be read, or written.
    """
    history = TableHistory(deletes)
    small = [task for task in history.files if task.file.file_size_in_bytes < _SMALL_BYTES]
    partitions = {(task.file.spec_id, task.file.partition) for task in small}
    transaction = deletes.table.transaction()
    update = transaction.update_snapshot(branch=_MAIN)
    if len(small) < max(_SMALL_MAX, _SMALL_OF_EACH_MAX * len(partitions)):
        with update.merge_append() as append:
            for file in files:
                append.append_data_file(file)
        return transaction.table_metadata.snapshots[-1]
    metadata = deletes.metadata
    writer = RowWriter(deletes.io, metadata.location, metadata.schema(), metadata.spec())
    for task in small:
        for batch in history.batches(task, history.schema.names):
            writer.add(pa.Table.from_batches([batch]).cast(writer.schema))
    with update.overwrite() as overwrite:
        for task in small:
            overwrite.delete_data_file(task.file)
        for file in (*(data_file_of(one, metadata) for one in writer.close()), *files):
            overwrite.append_data_file(file)
    return transaction.table_metadata.snapshots[-1]
