"""State of a shard in a local RocksDB, which is kept in a recovery log by what changes of its files.

For many keys, in any order: a commit records what it writes, and not pages around it. Of 1,000 counts among
1,000,000 keys that are read, and written again, 18 KiB, where SQLite records 4 to 6 MiB.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast, final

from rocksdict import BlockBasedOptions, Checkpoint as Snapshot, Options, Rdict, WriteBatch
from typing_extensions import override

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store.base import Commits, ShardStore, check_files, check_recorder
from gazette_platform.errors import ApplicationFailed, DataError, StoreError
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterator

    from gazette_platform.client import Dependency
    from gazette_platform.consumer.recoverylog import Recorder


# ------------------------------------------------------------------ the store

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_CHECKPOINT_KEY: Final = b"\x00\x12checkpoint\x00\x01"
_FIRST_KEY: Final = b"\x01"
_SNAPSHOT: Final = ".snapshot"  # no name of RocksDB's
# Of files of rows. Gazette's consumers are built with RocksDB 7.8, which reads none of version 6.
_FORMAT_VERSION: Final = 5
# A longer manifest restarts, so that it does not stretch over the log.
_MANIFEST_BYTES_MAX: Final = 128 << 10


def _default_options() -> Options:
    options = Options(raw_mode=True)
    options.set_max_background_jobs(2)
    tables = BlockBasedOptions()
    tables.set_format_version(_FORMAT_VERSION)
    options.set_block_based_table_factory(tables)
    return options


@final
class RocksDBStore(ShardStore):
    """Values of the application, by key.

    Changes are kept in memory up to the commit, which writes them at once; `get` and `scan` see them.
    Keys that begin with a zero byte are the store's.

    A commit records the growth of the write-ahead log. When that has grown by `log_bytes_max`, RocksDB
    is asked to write it to files of rows in the background, and the first commit after that waits for a
    checkpoint of RocksDB and records what it has changed; so does the first commit at all. Calls of
    RocksDB hold up the interpreter: opening, and these checkpoints, by some 10 to 100 ms.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        options: Options | None = None,
        log_bytes_max: int = 16 << 20,
    ) -> None:
        """Keep state in the directory of `recorder`.

        Args:
            options: in raw mode, without column families, merges or a folder for logs. They are changed. By
                default files of rows have format version 5, which Gazette's consumers read.
            log_bytes_max: of the write-ahead log that a player has to write again.
        """
        check_recorder(recorder, "RocksDBStore")
        self._recorder = recorder
        self._directory = Path(recorder.directory)
        self._options = options or _default_options()
        self._options.create_if_missing(True)
        self._options.set_max_manifest_file_size(_MANIFEST_BYTES_MAX)
        # A log that is written over would not grow, and its growth is what a commit records.
        self._options.set_recycle_log_file_num(0)
        self._log_bytes_max = log_bytes_max
        self._changes: dict[bytes, bytes | None] = {}
        self._files: RecordedFiles | None = None
        self._db: Rdict | None = None
        self._is_flushing = False
        self._disk = ThreadPoolExecutor(1, f"rocksdb {recorder.log}")
        self._commits = Commits(recorder.log)

    async def read(self, call: Callable[[Rdict], _T]) -> _T:
        """Return what ``call(db)`` returns, of what is committed: call its `get` and `items`.

        Waits for a commit that is under way, so also for brokers that are away: give it a deadline. `call` runs
        on the event loop's thread, and uses `db` only until it returns.

        Raises:
            StoreError: the last commit has failed.
            ApplicationFailed: the store was not restored, or is destroyed.
            Exception: what `call` raises.

        Cancellation: safe.
        """
        return await self._commits.between(lambda: call(self.db))

    @property
    def db(self) -> Rdict:
        """The database, to be read. It does not have changes that were not committed.

        Raises: ApplicationFailed: it was not restored, or is destroyed.
        """
        if self._db is None:
            raise ApplicationFailed(
                f"{self._directory}: no state was restored, or it was given back"
            )
        return self._db

    # ------------------------------------------------------------------ the application's

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        if key in self._changes:
            return self._changes[key]
        value: bytes | None = self.db.get(key)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key. Raises: ApplicationFailed: the key is the store's."""
        self._change(key, value)

    def delete(self, key: bytes) -> None:
        """Have no value of a key. Raises: ApplicationFailed: the key is the store's."""
        self._change(key, None)

    def _change(self, key: bytes, value: bytes | None) -> None:
        if key < _FIRST_KEY:
            raise ApplicationFailed(
                f"{self._directory}: {key!r} is not the application's (give it a first byte that is not zero)"
            )
        self._changes[key] = value

    def scan(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, ascending, as they are at the call.

        Args:
            begin: first key.
            end: after the last one; None: all.
        """
        # The batch is in memory until the commit, so rows of the database are merged with it.
        begin = max(begin, _FIRST_KEY)
        changed = sorted(
            item
            for item in self._changes.items()
            if begin <= item[0] and (not end or item[0] < end)
        )
        items = self.db.items(from_key=begin)
        stored = cast("Iterator[tuple[bytes, bytes]]", items)  # in raw mode
        if end is not None:
            last = end
            stored = itertools.takewhile(lambda item: item[0] < last, stored)
        hidden = {key for key, _ in changed}
        kept = (item for item in stored if item[0] not in hidden)
        set_ = ((key, value) for key, value in changed if value is not None)
        return heapq.merge(kept, set_)

    # ------------------------------------------------------------------ restore

    @override
    async def restore_checkpoint(self) -> Checkpoint:
        self._changes.clear()
        if self._db is None:
            self._db = await run_in(self._disk, self._open)
        self._commits.restored()
        return Checkpoint.decode(self._db.get(_CHECKPOINT_KEY) or b"")

    def _open(self) -> Rdict:
        check_files(self._directory, "RocksDBStore")
        try:
            settle(self._recorder)
            self._files = RecordedFiles(self._recorder)
            return Rdict(str(self._directory), self._options)
        except Exception as err:  # rocksdict raises no other
            raise DataError(
                f"{self._directory} cannot be restored: {err} (are the options right? or recover from a "
                "backup of the hints)"
            ) from err

    # ------------------------------------------------------------------ commits

    @override
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        db, files = self.db, self._files
        assert files is not None  # as it is open
        # The database has the batch at once, and the log only after what the commit depends on. If that fails, the
        # shard fails, and whoever plays the log never sees the batch.
        self._recorder.gate(after)
        batch = WriteBatch(raw_mode=True)
        for key, value in self._changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(_CHECKPOINT_KEY, checkpoint.encode())
        try:
            db.write(batch)
            is_recorded = files.record_growth()
        except Exception as err:  # rocksdict raises no other
            raise self._failed(err) from err
        self._changes.clear()
        return self._commits.start(lambda: self._commit(files, is_recorded=is_recorded))

    async def _commit(self, files: RecordedFiles, *, is_recorded: bool) -> None:
        if not is_recorded or self._is_snapshot_due(files):
            try:
                await run_in(self._disk, self._record_snapshot, files)
            except Exception as err:  # as above
                raise self._failed(err) from err
            self._is_flushing = False
        await self._recorder.barrier()

    def _is_snapshot_due(self, files: RecordedFiles) -> bool:
        if files.log_bytes < self._log_bytes_max:
            return False
        if not self._is_flushing:
            # RocksDB flushes before it makes a checkpoint. Asked now, it does so while commits go on.
            self._is_flushing = True
            self.db.flush(wait=False)
            return False
        # A slow disk must not let the log grow without end: at twice the limit, the commit waits.
        return files.are_logs_flushed() or files.log_bytes >= 2 * self._log_bytes_max

    def _record_snapshot(self, files: RecordedFiles) -> None:
        place = self._directory / _SNAPSHOT
        try:
            Snapshot(self.db).create_checkpoint(str(place))
            files.record_snapshot(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _failed(self, err: Exception) -> StoreError:
        return StoreError(
            f"{self._directory}: the commit failed: {type(err).__name__}: {err} (is the local disk full?)"
        )

    # ------------------------------------------------------------------ end

    @override
    async def roll_back(self) -> None:
        self._changes.clear()

    @override
    async def destroy(self) -> None:
        await self._commits.close()
        db, self._db = self._db, None
        try:
            await run_in(self._disk, self._give_back, db)
        except Exception as err:  # noqa: BLE001  rocksdict raises no other
            _log.warning("%s: left behind: %s", self._directory, err)
        finally:
            self._disk.shutdown(wait=False)

    def _give_back(self, db: Rdict | None) -> None:
        if db is not None:
            db.close()
        shutil.rmtree(self._directory)


# ------------------------------------------------------------------ recorded files

# Files of RocksDB, recorded by what has changed of them since they were recorded last.
#
# RocksDB does not report when it writes. What is recorded is therefore looked up at commits, in two ways:
#
# - *Growth* of write-ahead logs, at each commit. What was recorded before and the logs after it are a
#   whole database, whatever RocksDB has made of its own files meanwhile.
# - A *snapshot*, which a checkpoint of RocksDB is: files of rows are linked, and do not change. Those
#   that the snapshot adds are recorded first, then the manifest, and then `CURRENT`, which names it. Both take
#   the place of the former ones by renames: part of what a manifest has grown by may name files that
#   are gone already, and one that grew would stretch over all of the recovery log. What the snapshot
#   does not have is removed last.
#
# So a player that stops at any operation has a whole database: that of the former commit, or of the last
# one. If it stops within a rename, `settle` ends it.

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
        # In this order any cut of the recovery log is a whole database: what a manifest names is recorded before it,
        # and removed after its successor.
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
        # The same name and size are the same content: a manifest only grows.
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
