"""Files beside a typed table, at `<location>.gazette/`, that its snapshots name: states and lists of quarantined files.

They are not within the table's location, where engines would remove them as orphans. So our own maintenance removes
the files that no snapshot names any more.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from pyarrow.fs import (  # type: ignore[import-untyped]
    FileSelector,
    FileType,
)
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.publishing import PROGRESS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from gazette_platform.lake.iceberg.catalog import TableHandle

STATE: Final = "gazette.state"
"""Property of a snapshot: path of the file with the state after it."""
QUARANTINE: Final = "gazette.quarantine"
"""Property of a snapshot: path of the list of files that the run has quarantined; absent: none."""


def write_side_file(location: str, kind: str, content: bytes, io: FileIO | None = None) -> str:
    """Write a file beside the table at `location`, under a new name. Returns: its path.

    Raises: LakeError: it cannot be written.
    """
    # Never write to an existing name: an attempt that lost the fence would overwrite what a
    # published snapshot names.
    path = f"{location}.gazette/{uuid.uuid4()}.{kind}"
    files = io if io is not None else load_file_io({}, path)
    try:
        # It is written before the snapshot that names it. After a crash in between no snapshot
        # names the file, and maintenance removes it.
        with files.new_output(path).create() as stream:
            stream.write(content)
    except OSError as err:
        raise LakeError(
            f"cannot write {path}, beside the table ({err}): see that the place can be written, and run again"
        ) from err
    return path


def read_side_file(io: FileIO, path: str, name: str) -> bytes:
    """Read a file that a snapshot of table `name` names.

    Raises: LakeError: it is gone, or cannot be read.
    """
    try:
        with io.new_input(path).open() as stream:
            return bytes(stream.read())
    except OSError as err:
        raise LakeError(
            f"cannot read {path}, which a snapshot of {name} names ({err}): if it is gone, fetch it from a "
            "backup, or roll the table and its tag "
            f"{PROGRESS} back to a snapshot whose file exists, and what came after it is read again"
        ) from err


def unnamed_files(handle: TableHandle, *, now_s: float, older_than_s: float) -> list[str]:
    """Return the files beside a table that no snapshot names and that can be removed.

    A run writes them before it publishes, so a snapshot may still come to name a young file.

    Args:
        handle: of the typed table.
        now_s: unix seconds, of the clock of the store that holds them.
        older_than_s: seconds; longer than any run takes.

    Returns: their paths, sorted; nothing, if there is no such table.
    Raises: LakeError: the place cannot be listed.
    """
    loaded = handle.load()
    if loaded is None:
        return []
    # This load gives the location only. What is named is asked after the listing, below.
    folder = f"{loaded.metadata.location}.gazette"
    scheme, netloc, path = PyArrowFileIO.parse_location(folder, loaded.io.properties)
    arrow = (
        loaded.io
        if isinstance(loaded.io, PyArrowFileIO)
        else PyArrowFileIO(properties=loaded.io.properties)
    )
    try:
        found = arrow.fs_by_scheme(scheme, netloc).get_file_info(
            # A table that was never published has no such folder.
            FileSelector(path, allow_not_found=True)
        )
    except OSError as err:
        raise LakeError(
            f"cannot list {folder}, beside {handle.name} ({err}): see that the place can be read"
        ) from err
    # Load again after the listing: a file that a run has published meanwhile is kept.
    after = handle.load()
    if after is None:
        return []
    # Compare names without folders: they are uuids, and engines may write the same location as
    # `s3://` or `s3a://`.
    named = {
        summary.additional_properties.get(key, "").rpartition("/")[2]
        for summary in (snapshot.summary for snapshot in after.metadata.snapshots)
        if summary is not None
        for key in (STATE, QUARANTINE)
    }
    return sorted(
        f"{folder}/{file.base_name}"
        for file in found
        if file.type == FileType.File
        and file.base_name not in named
        # A run that has not published yet may have written it. Age is by the store's clock: one
        # that is ahead here would delete files of running runs.
        and file.mtime.timestamp() < now_s - older_than_s
    )
