"""Files beside a table, at `<location>.gazette/`, that its snapshots name.

A typed table has states and lists of quarantined files, and a rollup has covers. They are not within the table's
location, where engines would remove them as orphans. So our own maintenance removes the files that no snapshot names
any more (`maintenance.unnamed_files`).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from pyiceberg.io import load_file_io

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.publishing import PROGRESS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

STATE: Final = "gazette.state"
"""Property of a snapshot: path of the file with the state after it."""
QUARANTINE: Final = "gazette.quarantine"
"""Property of a snapshot: path of the list of files that the run has quarantined; absent: none."""
COVERS: Final = "gazette.covers"
"""Property of a snapshot of a rollup: path of the file that says what the table covers."""
NAMED_BY: Final = (STATE, QUARANTINE, COVERS)
"""Properties that name files beside a table."""


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
