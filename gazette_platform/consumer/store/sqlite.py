"""State of a shard in a local database of SQLite, which is kept in a recovery log page by page.

It is the database ``primary.db`` in the recorder's directory, in write-ahead mode and locked for this
process, so that there is no file of shared memory. A player that stops within a commit has the former
state and part of a write-ahead log, which SQLite passes over: any cut of the recovery log is the state of
one commit. Without a journal it would be torn pages.

Measured of 60 transactions, each of 1,000 upserts of random keys: what one records, in how many operations,
and CPU time. The database has 0.1 MiB, or 10.4 MiB:

    journal_mode           10,000 keys                1,000,000 keys
    WAL, up to 4 MiB       106 KiB    1   2.2 ms      6.2 MiB   353   19 ms
    WAL, up to 62 MiB      104 KiB    1   1.4 ms      3.9 MiB    32   15 ms
    TRUNCATE               207 KiB    3   2.2 ms      6.7 MiB   592   26 ms
    MEMORY, or OFF         105 KiB    1   1.5 ms      3.4 MiB   563   17 ms

MEMORY records least, each page once, and is whole only where all of a commit is: a log could not be mended
that ends elsewhere. TRUNCATE records each page as it was, too. The write-ahead log records each page
once, and again when it is moved into the database, which is the rarer the longer the log may get: it may
be of four times the database, within 4 and 64 MiB. With the store around it, which records its database
again at times, a commit takes 2 ms and 106 KiB, or 17 to 20 ms and 4.8 MiB.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, final

import apsw
from typing_extensions import override

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store.base import Commits, ShardStore, check_files, check_recorder
from gazette_platform.consumer.store.sqlite_tape import RecordedVFS, Tape, settle
from gazette_platform.errors import ApplicationFailed, DataError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gazette_platform.client import Dependency
    from gazette_platform.consumer.recoverylog import Recorder

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS gazette_checkpoint (
    rowid INTEGER PRIMARY KEY DEFAULT 0 CHECK (rowid = 0), checkpoint BLOB)
"""

# Length of a write-ahead log after which it is moved into the database.
_WAL_FACTOR: Final = 4  # of the size of the database
_WAL_BYTES_MIN: Final = 4 << 20
_WAL_BYTES_MAX: Final = 64 << 20

# A database is renewed once it needs this many times its size of the log. The copy is then a third of
# what is recorded besides; and as two bytes are copied for each that is recorded, it is whole before
# half of its size more has come.
_SPAN_FACTOR: Final = 3
_COPIED_PER_BYTE: Final = 2
_COPIED_BYTES_MIN: Final = 128 << 10

_REFUSED_PRAGMAS: Final = frozenset(
    {"journal_mode", "locking_mode", "synchronous", "wal_autocheckpoint", "wal_checkpoint"}
)


@final
class SQLiteStore(ShardStore):
    """Tables of the application, by all that SQLite's SQL has.

    `db` has the open transaction's changes too: it is for the callbacks of the application. Pages and other
    calls ask by `read`.

    `db` is within a transaction always, of what the next commit commits: savepoints may be used, and `BEGIN`,
    `COMMIT`, `ROLLBACK`, `ATTACH` and changes of the journal are refused. A statement that has the
    transaction rolled back (``ON CONFLICT ROLLBACK``) makes the next commit fail. Statements run on the
    thread of the event loop, and so do commits: what takes seconds holds up other shards.

    A page that was changed is recorded whole: related rows should be near to each other by their key.
    Pages that were changed and do not fit into the cache are recorded before the commit, and are not of
    the state without it.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        schema: str = "",
        pragmas: str = "",
        cache_bytes: int = 64 << 20,
        span_bytes_min: int = 32 << 20,
    ) -> None:
        """Keep state in the directory of `recorder`.

        Args:
            schema: statements that are run at each restore, as part of the first commit.
            pragmas: statements that are run before all else, outside of any transaction: of
                ``foreign_keys``, or, for a database that is not there yet, ``page_size``, ``auto_vacuum``.
            cache_bytes: of pages in memory.
            span_bytes_min: of the log that may be needed for the database, beside `_SPAN_FACTOR` times
                its size, before it is recorded again.
        """
        check_recorder(recorder, "SQLiteStore")
        self._recorder = recorder
        self._schema = schema
        self._pragmas = pragmas
        self._cache_bytes = cache_bytes
        self._span_bytes_min = span_bytes_min
        self._path = os.path.join(recorder.directory, "primary.db")  # noqa: PTH118  for SQLite
        self._tape = Tape(recorder, self._path)
        self._vfs: RecordedVFS | None = None
        self._db: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._read_of = 0  # which write-ahead log the reader has read: `Tape.begun_anew`
        self._is_ours = False
        self._commits = Commits(recorder.log)
        # Whether this store has committed, and changes that were made before the open transaction.
        self._has_committed = False
        self._changes_before = 0

    @property
    def db(self) -> apsw.Connection:
        """The database. Raises: ApplicationFailed: it was not restored, or is destroyed."""
        if self._db is None:
            raise ApplicationFailed(f"{self._path}: no state was restored, or it was given back")
        return self._db

    async def read(self, call: Callable[[apsw.Connection], _T]) -> _T:
        """Return what ``call(connection)`` returns, of what is committed.

        Waits for a commit that is under way, so also for brokers that are away: give it a deadline. The connection
        is read-only, and for `call` alone, which runs on the event loop's thread. The first read after a
        commit also reads the write-ahead log, which takes some 5 ms for each MiB (up to 64).

        Raises:
            StoreError: the last commit has failed.
            ApplicationFailed: the store was not restored, or is destroyed.
            Exception: what `call` raises.

        Cancellation: safe.
        """
        return await self._commits.between(
            lambda: self._ask(call),
            is_ready=lambda: self._has_committed or not self._is_changed(),
        )

    def _is_changed(self) -> bool:
        return self.db.total_changes() != self._changes_before

    def _ask(self, call: Callable[[apsw.Connection], _T]) -> _T:
        db = self.db
        if self._has_committed:
            if self._read_of != self._tape.begun_anew:
                self._close_reader()
            if self._reader is None:
                self._reader = _open_committed(self._path)
                self._read_of = self._tape.begun_anew
            return call(self._reader)
        # What is committed may not have the schema yet, which is committed with the first transaction.
        db.execute("PRAGMA query_only = 1").fetchall()
        try:
            return call(db)
        finally:
            db.execute("PRAGMA query_only = 0").fetchall()

    # ------------------------------------------------------------------ restore

    @override
    async def restore_checkpoint(self) -> Checkpoint:
        try:
            if self._db is None:
                self._db = self._open()
            self._begin()
            row = self.db.execute("SELECT checkpoint FROM gazette_checkpoint").fetchone()
        except (apsw.Error, OSError) as err:
            raise DataError(
                f"{self._path} cannot be restored: {type(err).__name__}: {err} (is the schema right? or recover "
                "from a backup of the hints)"
            ) from err
        self._commits.restored()
        return Checkpoint() if row is None else Checkpoint.decode(row[0])

    def _begin(self) -> None:
        """Begin a transaction in place of the open one, with the schema."""
        self._has_committed = False
        if self.db.in_transaction:
            self._run("ROLLBACK")
        self._run("BEGIN")
        self._run(_TABLE)
        if self._schema:
            self._run(self._schema)
        self._changes_before = self.db.total_changes()

    def _open(self) -> apsw.Connection:
        check_files(self._recorder.directory, "SQLiteStore")
        settle(self._recorder, self._path)
        self._vfs = RecordedVFS(f"gazette-{id(self):x}", self._tape)
        db = apsw.Connection(self._path, vfs=self._vfs.vfs_name)
        # The files are deleted after the close: moving the log into the database would be recorded for nothing.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Exclusive before the first use of the log: no file of shared memory is made then. No syncs: the recovery log
        # makes things durable. Checkpoints are left to `_tidy`, between two transactions.
        db.execute(self._pragmas).fetchall()
        for pragma in (
            "locking_mode = EXCLUSIVE",
            "journal_mode = WAL",
            "synchronous = OFF",
            "wal_autocheckpoint = 0",
            f"cache_size = -{self._cache_bytes >> 10}",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        # The authorizer refuses `COMMIT` when it is compiled. After a statement has rolled the transaction back, SQLite
        # commits each statement by itself, without a checkpoint: the hook refuses that.
        db.authorizer = self._authorize
        db.set_commit_hook(lambda: not self._is_ours)
        return db

    def _authorize(self, action: int, first: str | None, *_others: str | None) -> int:
        if self._is_ours:
            return apsw.SQLITE_OK
        is_refused = action in (
            apsw.SQLITE_TRANSACTION,
            apsw.SQLITE_ATTACH,
            apsw.SQLITE_DETACH,
        ) or (action == apsw.SQLITE_PRAGMA and (first or "").lower() in _REFUSED_PRAGMAS)
        if is_refused:
            what = {apsw.SQLITE_TRANSACTION: first, apsw.SQLITE_PRAGMA: f"PRAGMA {first}"}
            raise ApplicationFailed(
                f"{self._path}: {what.get(action, 'ATTACH or DETACH')} is refused: the store commits state and checkpoint "
                "together, in one transaction and one database. Take a part back by a savepoint (`with db:`)"
            )
        return apsw.SQLITE_OK

    def _run(self, sql: str, bindings: tuple[bytes, ...] | None = None) -> None:
        """Run what the application may not."""
        self._is_ours = True
        try:
            # A statement of ours that was kept would be had by the application unasked.
            self.db.execute(sql, bindings, can_cache=False).fetchall()
        finally:
            self._is_ours = False

    # ------------------------------------------------------------------ commits

    @override
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        if not self.db.in_transaction:
            raise ApplicationFailed(
                f"{self._path}: a statement has rolled the transaction back (ON CONFLICT ROLLBACK, RAISE(ROLLBACK), "
                "or a full disk); use savepoints to take part of it back"
            )
        # Pages that did not fit into the cache are recorded before the gate. Without a commit record SQLite passes them
        # over, so they may be in the log whether the commit succeeds or not.
        self._close_reader()
        self._tape.flush()
        self._recorder.gate(after)
        recorded_bytes = self._tape.recorded_bytes
        try:
            self._run("REPLACE INTO gazette_checkpoint VALUES (0, ?)", (checkpoint.encode(),))
            self._run("COMMIT")
            # Between two transactions, because SQLite moves nothing out of its log within one.
            self._tidy(recorded_bytes)
            self._run("BEGIN")
        except apsw.ConstraintError as err:
            raise ApplicationFailed(f"{self._path}: the commit breaks a constraint: {err}") from err
        except (apsw.Error, OSError) as err:
            raise StoreError(
                f"{self._path}: the commit failed: {type(err).__name__}: {err} (is the local disk full?)"
            ) from err
        self._tape.flush()
        self._has_committed = True
        return self._commits.start(self._recorder.barrier)

    def _tidy(self, recorded_bytes: int) -> None:
        """Keep short what of the log is needed, by work in proportion to the commit.

        Args:
            recorded_bytes: before the commit.
        """
        assert self._vfs is not None
        database = self._vfs.database
        assert database is not None
        tape, size = self._tape, database.xFileSize()
        if tape.size_of(self._path + "-wal") >= min(
            max(_WAL_FACTOR * size, _WAL_BYTES_MIN), _WAL_BYTES_MAX
        ):
            try:
                self._run("PRAGMA wal_checkpoint(PASSIVE)")
            except (apsw.BusyError, apsw.LockedError):
                return  # the application is reading rows still: after a later commit
            size = database.xFileSize()
        tape.flush()
        if not size:
            return
        is_due = tape.span_bytes() > _SPAN_FACTOR * size + self._span_bytes_min
        if tape.is_renewing or is_due:
            copied = _COPIED_PER_BYTE * (tape.recorded_bytes - recorded_bytes)
            tape.renew(max(copied, _COPIED_BYTES_MIN), size, database.xRead)

    # ------------------------------------------------------------------ end

    @override
    async def roll_back(self) -> None:
        # Reads that wait for a connection without uncommitted changes may go on then.
        if self._db is not None:
            self._begin()
            self._commits.tell()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(True)

    @override
    async def destroy(self) -> None:
        # First of all: the log belongs to the next owner, and nothing of the close may be recorded.
        self._tape.end()
        db, self._db = self._db, None
        try:
            self._close_reader()
            if db is not None:
                db.close(True)
            if self._vfs is not None:
                self._vfs.unregister()
            await self._commits.close()
            await asyncio.to_thread(shutil.rmtree, self._recorder.directory)
        except (apsw.Error, OSError) as err:
            _log.warning("%s: left behind: %s", Path(self._path).parent, err)


def _open_committed(path: str) -> apsw.Connection:
    """Open what is committed, as of now, beside the connection that has the database locked.

    It takes no locks, and finds by the write-ahead log's checksums what is committed. So it is good for as long
    as nothing is written to the database, from the end of a commit to the begin of the next one, and the log
    does not restart: a transaction that outgrows the cache restarts it if all of it is in the database.
    """
    reader = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY, vfs="unix-none")
    reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    reader.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    return reader
