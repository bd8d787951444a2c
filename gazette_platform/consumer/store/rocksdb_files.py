"""Files of RocksDB, recorded by what has changed of them since they were recorded last.

RocksDB does not report when it writes. What is recorded is therefore looked up at commits, in two ways:

- *Growth* of write-ahead logs, at each commit. What was recorded before and the logs after it are a
  whole database, whatever RocksDB has made of its own files meanwhile.
- A *snapshot*, which a checkpoint of RocksDB is: files of rows are linked, and do not change. Those
  that the snapshot adds are recorded first, then the manifest, and then `CURRENT`, which names it. Both take
  the place of the former ones by renames: part of what a manifest has grown by may name files that
  are gone already, and one that grew would stretch over all of the recovery log. What the snapshot
  does not have is removed last.

So a player that stops at any operation has a whole database: that of the former commit, or of the last
one. If it stops within a rename, `settle` ends it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.consumer.recoverylog import Recorder

__all__ = ["RecordedFiles", "settle"]

_CURRENT: Final = "CURRENT"
_NEXT_SUFFIX: Final = ".next"  # no name of RocksDB's
_MANIFEST: Final = "MANIFEST-"
_LOG_SUFFIX: Final = ".log"
_ROWS_SUFFIXES: Final = (".sst", ".blob")

_PIECE_BYTES: Final = 1 << 20

# Inode, time of the last change, and size: of files of rows, whose names RocksDB may reuse after a crash.
_Identity = tuple[int, int, int]


@final
class RecordedFiles:
    """What of a directory of RocksDB is recorded. From one thread at a time.

    Attributes:
        log_bytes: of write-ahead logs that were recorded since the last snapshot.
        has_snapshot: whether what is recorded is of the database that is open now: its logs may grow.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Continue with the existing files, which were played, before RocksDB opens them."""
        self.log_bytes = 0
        self.has_snapshot = False
        self._recorder = recorder
        self._directory = Path(recorder.directory)
        self._names: set[str] = set()  # all that is recorded
        self._rows: dict[str, _Identity] = {}
        self._logs: dict[str, int] = {}  # sizes, of the database that is open
        self._manifest = ("", 0)
        for path in self._directory.iterdir():
            if _is_recorded(path.name):
                self._names.add(path.name)
                if path.suffix in _ROWS_SUFFIXES:
                    self._rows[path.name] = _identity(path)

    # ------------------------------------------------------------------ logs

    def record_growth(self) -> bool:
        """Record what was appended to write-ahead logs. Nothing may be written meanwhile.

        Returns: whether that was all: if not, only a snapshot has what was written.
        Raises: OSError.
        """
        if not self.has_snapshot:
            return False
        last = max(self._logs, default="")
        found = sorted(name for name in _names(self._directory) if name.endswith(_LOG_SUFFIX))
        new = [name for name in found if name > last]
        # A log begins when one has ended, by a write or a flush. Of two, the first may be gone again.
        if len(new) > 1:
            return False
        try:
            if last in found:
                self._grow_log(last, self._directory)
            for name in new:
                self._begin(name)
                self._logs[name] = 0
                self._grow_log(name, self._directory)
        except FileNotFoundError:  # a flush that ended a moment ago has deleted it
            return False
        return True

    def are_logs_flushed(self) -> bool:
        """Whether RocksDB has deleted all logs but the last since it was asked to flush them."""
        former = sorted(self._logs)[:-1]
        return bool(former) and not any((self._directory / name).exists() for name in former)

    def _grow_log(self, name: str, directory: Path) -> None:
        begin = self._logs[name]
        end = self._write(name, directory / name, begin)
        self._logs[name] = end
        self.log_bytes += end - begin

    # ------------------------------------------------------------------ snapshots

    def record_snapshot(self, snapshot: Path) -> None:
        """Record the files of a checkpoint of RocksDB. Raises: OSError."""
        names = sorted(filter(_is_recorded, _names(snapshot)))
        for name in names:
            if name.endswith(_ROWS_SUFFIXES):
                identity = _identity(snapshot / name)
                if self._rows.get(name) != identity:
                    self._begin(name)
                    self._write(name, snapshot / name, 0)
                    self._rows[name] = identity
        logs = [name for name in names if name.endswith(_LOG_SUFFIX)]
        self._logs = {name: self._logs[name] for name in logs if name in self._logs}
        for name in logs:
            if name not in self._logs:
                self._begin(name)
                self._logs[name] = 0
            self._grow_log(name, snapshot)
        self._record_manifest(snapshot)
        for name in self._names.difference(names):
            self._names.remove(name)
            self._rows.pop(name, None)
            self._recorder.remove(self._path(name))
        self.log_bytes = 0
        self.has_snapshot = True

    def _record_manifest(self, snapshot: Path) -> None:
        current = (snapshot / _CURRENT).read_bytes()
        name = current.decode().strip()
        manifest = (name, (snapshot / name).stat().st_size)
        if manifest == self._manifest:
            return
        self._replace(name, snapshot / name)
        if name != self._manifest[0]:
            self._replace(_CURRENT, snapshot / _CURRENT)
        self._manifest = manifest

    # ------------------------------------------------------------------ operations

    def _begin(self, name: str) -> None:
        self._recorder.create(self._path(name))
        self._names.add(name)

    def _replace(self, name: str, source: Path) -> None:
        """Record a file in place of an existing one, by a rename."""
        self._begin(name + _NEXT_SUFFIX)
        self._write(name + _NEXT_SUFFIX, source, 0)
        self._recorder.rename(self._path(name + _NEXT_SUFFIX), self._path(name))
        self._names.remove(name + _NEXT_SUFFIX)
        self._names.add(name)

    def _write(self, name: str, source: Path, offset: int) -> int:
        """Record what a file has from an offset on. Returns: where that ends."""
        fnode = self._recorder.open(self._path(name))
        for piece in _pieces(source, offset):
            self._recorder.write(fnode, offset, piece)
            offset += len(piece)
        return offset

    def _path(self, name: str) -> str:
        return str(self._directory / name)


def settle(recorder: Recorder) -> None:
    """Of files that were played, end or undo a commit that was cut short, before RocksDB opens them.

    Raises: OSError.
    """
    directory = Path(recorder.directory)
    current = directory / _CURRENT
    for path in sorted(directory.glob("*" + _NEXT_SUFFIX)):
        place = path.with_name(path.name.removesuffix(_NEXT_SUFFIX))
        # At the first commit, CURRENT may not be written yet.
        if place.exists() or (place == current and not path.read_bytes().endswith(b"\n")):
            path.unlink()
            recorder.remove(str(path))
        else:
            path.rename(place)
            recorder.rename(str(path), str(place))
    if not current.exists():
        # Of the first commit, which has not come to its end.
        for path in filter(lambda each: _is_recorded(each.name), sorted(directory.iterdir())):
            path.unlink()
            recorder.remove(str(path))


def _is_recorded(name: str) -> bool:
    """Whether RocksDB needs a file. Options are those of the application; the rest is for people."""
    return (
        name == _CURRENT
        or name.startswith(_MANIFEST)
        or name.endswith((_LOG_SUFFIX, *_ROWS_SUFFIXES))
    )


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(_PIECE_BYTES):
            yield piece
