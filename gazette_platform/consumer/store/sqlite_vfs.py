"""A VFS of SQLite: files are those of the operating system, and what is written is recorded.

Reads, locks and names go to the VFS of unix. Recorded are databases, journals and write-ahead logs;
temporary files are not. A sync does nothing: it is the recovery log that makes things durable.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, final

import apsw
from typing_extensions import override

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from gazette_platform.consumer.store.sqlite_tape import Tape

__all__ = ["RecordedVFS"]

_RECORDED: Final = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL


@final
class RecordedVFS(apsw.VFS):
    """Opens files of one database, which a tape records.

    Attributes:
        vfs_name: for `apsw.Connection`.
        database: the file of the database, once it was opened.
    """

    def __init__(self, vfs_name: str, tape: Tape) -> None:
        super().__init__(vfs_name, "")
        self.vfs_name = vfs_name
        self.database: RecordedFile | None = None
        self._tape = tape

    @override
    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None or not flags[0] & _RECORDED:
            return apsw.VFSFile("", name, flags)
        file = RecordedFile(self._tape, name, flags)
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            self.database = file
        return file

    @override
    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, False)
        self._tape.remove(filename)


@final
class RecordedFile(apsw.VFSFile):
    """A file whose writes are recorded."""

    def __init__(self, tape: Tape, name: str | apsw.URIFilename, flags: list[int]) -> None:
        path = name if isinstance(name, str) else name.filename()
        is_there = os.path.exists(path)  # noqa: PTH110  a name of SQLite's
        super().__init__("", name, flags)
        self._tape = tape
        self._file = tape.open(path, is_there=is_there)

    @override
    def xWrite(self, data: Buffer, offset: int) -> None:
        super().xWrite(data, offset)
        self._tape.write(self._file, bytes(data), offset)

    @override
    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._tape.truncate(self._file, newsize, self.xRead)

    @override
    def xSync(self, flags: int) -> None:
        """Nothing."""
