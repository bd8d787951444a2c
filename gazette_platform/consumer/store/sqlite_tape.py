"""What SQLite does to its files, as operations of a recovery log.

Writes are gathered up to 128 KiB while they adjoin, and recorded in the order in which they were made, of
all files together. The log knows no truncation: a file that shrinks to nothing, or a log that begins
again, is a new file, so that its former content needs no reading any more.

The database itself is written at random for as long as it lives, and whoever plays it would need the
log from its first write on. So it is *renewed*: its content is recorded once more as a new file beside it,
some of it after each commit, and writes to what is copied already are recorded in both. The new file
takes the place of the old one in the log once it is whole. On disk nothing moves. What a player that stops
at any operation has is one whole database at least, and `settle` chooses it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, final

import apsw
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from gazette_platform.consumer.recoverylog import Recorder

BUFFER_BYTES_MAX: Final = 128 << 10
"""Of adjoining writes that make one operation."""

RENEWED_SUFFIX: Final = "-renewed"
"""Of the path at which a database is recorded once more."""

# How a write-ahead log begins, in both orders of bytes. SQLite writes it when it starts over at the front.
_WAL_MAGICS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


@final
class TapedFile:
    """A file that is recorded.

    Attributes:
        path: absolute.
        fnode: what the log knows it by.
        recorded_bytes: its size as players have it.
    """

    __slots__ = ("fnode", "path", "recorded_bytes")

    def __init__(self, path: str, fnode: int, recorded_bytes: int) -> None:
        self.path = path
        self.fnode = fnode
        self.recorded_bytes = recorded_bytes


@final
class _Renewal:
    """A database that is being recorded once more.

    Attributes:
        copied_bytes: from its begin on, as they are in both files.
    """

    __slots__ = ("copied_bytes", "fnode", "path")

    def __init__(self, path: str, fnode: int) -> None:
        self.path = path
        self.fnode = fnode
        self.copied_bytes = 0


@final
class Tape:
    """Records what is done to the files of one database. From one thread.

    Attributes:
        recorded_bytes: of content that was recorded so far.
        begun_anew: how often a file was written from its front again.
    """

    def __init__(self, recorder: Recorder, database: str) -> None:
        """Record files beside `database`, an absolute path in the recorder's directory."""
        self.recorded_bytes = 0
        self.begun_anew = 0
        self._recorder: Recorder | None = recorder
        self._database = database
        self._files: dict[str, TapedFile] = {}
        self._renewal: _Renewal | None = None
        self._held = bytearray()
        self._held_file: TapedFile | None = None
        self._held_begin = 0

    # ------------------------------------------------------------------ what SQLite does

    def open(self, path: str, *, is_there: bool) -> TapedFile:
        """A file is opened; it is made if it is not there."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = TapedFile(path, 0, 0)
            if self._recorder is not None:
                self._flush_held()
                if is_there:
                    file.fnode = self._recorder.open(path)
                    file.recorded_bytes = os.stat(path).st_size  # noqa: PTH116  a name of SQLite's
                else:
                    file.fnode = self._recorder.create(path)
        return file

    def write(self, file: TapedFile, content: bytes, offset: int) -> None:
        """Bytes are written at an offset."""
        # A log that SQLite writes from its front again would need all of its former content read by players.
        if offset == 0 and content[:4] in _WAL_MAGICS and file.path != self._database:
            self._begin_anew(file)
        end = self._held_begin + len(self._held)
        if file is not self._held_file or offset != end or len(self._held) >= BUFFER_BYTES_MAX:
            self._flush_held()
            self._held_file, self._held_begin = file, offset
        self._held += content
        file.recorded_bytes = max(file.recorded_bytes, offset + len(content))

    def truncate(self, file: TapedFile, size: int, read: Callable[[int, int], bytes]) -> None:
        """A file is cut, or made longer.

        Args:
            read: gives bytes of the file, by their number and offset.
        """
        if size > file.recorded_bytes:
            # SQLite cuts a database to its size behind a checkpoint, and pages at its end that are free
            # may never have been written. A file that is shorter than it says is corrupt to it.
            self.write(file, b"\x00", size - 1)
        elif size < file.recorded_bytes and file.path != self._database:
            # The first page of a database says how long it is; a longer one does no harm.
            self._begin_anew(file)
            for offset in range(0, size, BUFFER_BYTES_MAX):
                self.write(file, read(min(BUFFER_BYTES_MAX, size - offset), offset), offset)

    def remove(self, path: str) -> None:
        """A file is deleted."""
        self._flush_held()
        if self._files.pop(path, None) is not None and self._recorder is not None:
            self._recorder.remove(path)

    def size_of(self, path: str) -> int:
        """Bytes of a file as players have it; 0 if there is none."""
        file = self._files.get(path)
        return 0 if file is None else file.recorded_bytes

    def flush(self) -> None:
        """Have all that was done recorded."""
        self._flush_held()

    def end(self) -> None:
        """Record nothing more."""
        self._recorder = None
        self._held.clear()

    # ------------------------------------------------------------------ renewing the database

    @property
    def is_renewing(self) -> bool:
        """Whether the database is being recorded once more."""
        return self._renewal is not None

    def span_bytes(self) -> int:
        """How much of the log is needed for the database, from where it begins to be recorded."""
        assert self._recorder is not None
        return self._recorder.span_bytes(self._database)

    def renew(self, bytes_max: int, size: int, read: Callable[[int, int], bytes]) -> None:
        """Begin to record the database once more, or go on.

        Args:
            bytes_max: how much to copy at most.
            size: of the database on disk.
            read: gives bytes of it, by their number and offset.
        """
        recorder = self._recorder
        assert recorder is not None
        self._flush_held()  # to both files, up to what was copied before
        if self._renewal is None:
            path = self._database + RENEWED_SUFFIX
            self._renewal = _Renewal(path, recorder.create(path))
        renewal = self._renewal
        until = min(size, renewal.copied_bytes + bytes_max)
        while renewal.copied_bytes < until:
            offset = renewal.copied_bytes
            content = read(min(BUFFER_BYTES_MAX, until - offset), offset)
            recorder.write(renewal.fnode, offset, content)
            self.recorded_bytes += len(content)
            renewal.copied_bytes += len(content)
        # Only now: until the copy is whole a player needs the former file.
        if renewal.copied_bytes >= size:
            recorder.rename(renewal.path, self._database)
            file = self._files[self._database]
            file.fnode, file.recorded_bytes = renewal.fnode, renewal.copied_bytes
            self._renewal = None

    # ------------------------------------------------------------------ what is held

    def _begin_anew(self, file: TapedFile) -> None:
        """Have a new and empty file in place of one that is written from the front again."""
        self._flush_held()
        self.begun_anew += 1
        if file.recorded_bytes and self._recorder is not None:
            file.fnode = self._recorder.create(file.path)
        file.recorded_bytes = 0

    def _flush_held(self) -> None:
        file, content, begin = self._held_file, self._held, self._held_begin
        if not content or file is None:
            return
        self._held = bytearray()
        if (recorder := self._recorder) is None:
            return
        recorder.write(file.fnode, begin, memoryview(content))
        self.recorded_bytes += len(content)
        # Both files have to agree in what is copied. The rest of the write is copied later, with its page.
        renewal = self._renewal
        if renewal is not None and file.path == self._database:
            copied = memoryview(content)[: max(0, renewal.copied_bytes - begin)]
            if copied:
                recorder.write(renewal.fnode, begin, copied)
                self.recorded_bytes += len(copied)


def settle(recorder: Recorder, database: str) -> None:
    """Of files that were played, keep the database that is whole, before anybody opens it.

    One that was being recorded once more takes its place only when it is whole, and then the former one
    is removed first.

    Raises: OSError.
    """
    renewed = database + RENEWED_SUFFIX
    if not os.path.exists(renewed):  # noqa: PTH110  names of SQLite's are texts
        return
    if os.path.exists(database):  # noqa: PTH110
        os.unlink(renewed)  # noqa: PTH108
        recorder.remove(renewed)
    else:
        os.rename(renewed, database)  # noqa: PTH104
        recorder.rename(renewed, database)


# ------------------------------------------------------------------ the VFS

# A VFS of SQLite: files are those of the operating system, and what is written is recorded.
#
# Reads, locks and names go to the VFS of unix. Recorded are databases, journals and write-ahead logs;
# temporary files are not. A sync does nothing: it is the recovery log that makes things durable.

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
