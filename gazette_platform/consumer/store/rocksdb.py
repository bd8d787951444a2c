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
from gazette_platform.consumer.store.base import ShardStore, check_recorder
from gazette_platform.consumer.store.commits import Commits
from gazette_platform.consumer.store.files import check_files
from gazette_platform.consumer.store.rocksdb_files import RecordedFiles, settle
from gazette_platform.errors import ApplicationFailed, DataError, StoreError
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterator

    from gazette_platform.client import Dependency
    from gazette_platform.consumer.recoverylog import Recorder

__all__ = ["RocksDBStore"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_CHECKPOINT_KEY: Final = b"\x00\x12checkpoint\x00\x01"
_FIRST_KEY: Final = b"\x01"
_SNAPSHOT: Final = ".snapshot"  # no name of RocksDB's

# Of files of rows. Gazette's consumers are built with RocksDB 7.8, which reads none of version 6.
_FORMAT_VERSION: Final = 5

# A manifest that is longer begins anew, so that it does not stretch over the log.
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
    is asked to write it to files of rows in the background, and the first commit behind that waits for a
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
            end: behind the last one; None: all.
        """
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
            # A checkpoint would have us wait for this.
            self._is_flushing = True
            self.db.flush(wait=False)
            return False
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
