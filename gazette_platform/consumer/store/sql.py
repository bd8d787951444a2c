"""State of a shard in a database that exists already, and that other programs may read and write.

The database keeps state and checkpoint in one commit, and fences: of two processes that have one shard,
the one that restored first cannot commit. Engines are SQLAlchemy's, and their calls have deadlines; any
engine whose calls end by themselves will do.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, final

from sqlalchemy import (
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)
from sqlalchemy.schema import CreateTable
from typing_extensions import override

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store.base import Commits, ShardStore, all_succeeded
from gazette_platform.errors import (
    ApplicationFailed,
    DataError,
    Fenced,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.ops.extras import bounded_connection
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy.engine import URL, Connection, Dialect, Engine

    from gazette_platform.client import Dependency


# ------------------------------------------------------------------ databases

ANSWER_S: Final = 30.0
"""Default seconds within which a database answers: as long as a busy one needs for a commit."""

IDLE_LEASES: Final = 3
"""Leases after which PostgreSQL ends a transaction in which nothing is asked, unless `sql_engine` got another limit.

A process that hangs, or whose machine is cut off, holds its locks until then, and the next owner of its shard waits
for them. So the limit follows the lease (`ConsumerConfig.etcd_lease_s`), after which a shard gets its next owner. It
is longer than the lease, because a transaction waits between messages, and for appends while brokers are away. One
that is ended meanwhile fails its shard, which starts again; so keep the limit well above `max_txn_duration`.
"""

IDLE_S_MIN: Final = 10.0
"""The shortest limit that follows a lease, in seconds."""

# The limit of an engine that follows the lease: one of its execution options. Until the lease is known, that of the
# default lease.
_IDLE_OPTION: Final = "gazette_idle_s"
_IDLE_S: Final = 60.0
CONNECT_S: Final = 10
# SQLSTATE: a connection failed; serialization, deadlock; too few resources; a lock was not free; an operator, a shutdown or
# a deadline ended it; errors of the system; a transaction was idle for too long.
_PASSING_STATES: Final = ("08", "40", "53", "55P03", "57", "58", "25P03")
# Too many connections, shutdown, time-out of a lock, deadlock, a query was ended or timed out, no connection.
_PASSING_OF_MYSQL: Final = frozenset(
    {1040, 1053, 1205, 1213, 1317, 1927, 1969, 2002, 2003, 2006, 2013, 2055, 3024, 4031}
)
_PASSING_OF_SQLITE: Final = frozenset({5, 6})  # busy, locked
# A key of MySQL has a length; and names are compared byte by byte, not as words of a language.
_NAME: Final = Text().with_variant(mysql.VARCHAR(700, collation="utf8mb4_bin"), "mysql", "mariadb")
CHECKPOINTS: Final = Table(
    "gazette_checkpoints",
    MetaData(),
    Column("shard_fqn", _NAME, primary_key=True, nullable=False),
    Column("fence", Integer, nullable=False),
    Column(
        "checkpoint",
        LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
        nullable=False,
    ),
)
"""What all shards of a database have committed, as Gazette's `SQLStore` has it."""


def sql_engine(
    url: str | URL,
    *,
    answer_s: float = ANSWER_S,
    idle_s: float | None = None,
    connections_max: int = 64,
) -> Engine:
    """An engine that the stores of a process share. Whoever makes it disposes of it.

    Args:
        url: of SQLAlchemy; ``postgresql://`` and ``mysql://``, ``mariadb://`` are by psycopg and PyMySQL, if it
            names no other driver. Of others calls have no deadline.
        answer_s: seconds to wait for an answer. The connection is closed then, and the call fails. Includes
            that for locks that others hold.
        idle_s: seconds after which PostgreSQL ends a transaction in which nothing is asked; None: as the lease of the
            process says (`IDLE_LEASES`). Set it for long transactions.
        connections_max: at least one for each shard, and two if their transactions overlap; more wait.

    Raises: ValidationError: not a URL of a database.
    """
    pool: dict[str, Any] = {
        "pool_pre_ping": True,  # a database that was started again has dropped what was connected
        "pool_size": connections_max,
        "max_overflow": 0,
        "pool_timeout": answer_s,
    }
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgresql+psycopg"):
            return _postgres(parsed.set(drivername="postgresql+psycopg"), answer_s, idle_s, pool)
        if parsed.drivername in ("mysql", "mariadb"):
            parsed = parsed.set(drivername=f"{parsed.drivername}+pymysql")
        return create_engine(parsed, connect_args=_arguments(parsed, answer_s), **pool)
    except SQLAlchemyError as err:
        raise ValidationError(f"not a URL of a database ({err})", path="url") from err


def _arguments(url: URL, answer_s: float) -> dict[str, Any]:
    """The deadlines for a driver. Raises: ValidationError: SQLite without a file."""
    if url.drivername.endswith("+pymysql"):
        return {
            "connect_timeout": min(CONNECT_S, max(1, round(answer_s))),
            "read_timeout": answer_s,
            "write_timeout": answer_s,
            "charset": "utf8mb4",
        }
    if url.get_backend_name() != "sqlite":
        return {}
    if url.database in (None, "", ":memory:"):
        raise ValidationError(
            "expected a file of SQLite: what is in memory no other owner of the shard sees (or take a "
            "MemoryStore)",
            path="url",
        )
    return {"timeout": answer_s}


def let_idle_limit_follow(engine: Engine, lease_s: float) -> None:
    """Have PostgreSQL end transactions in which nothing is asked, some time after a lease of that length.

    Connections are opened again if the limit of the engine changes. Engines with a limit of their own, and those of
    other databases, stay as they are.
    """
    idle_s = max(IDLE_S_MIN, IDLE_LEASES * lease_s)
    # The limit is set where a connection begins. Setting it per transaction would cost a round trip each.
    if engine.get_execution_options().get(_IDLE_OPTION, idle_s) != idle_s:
        engine.update_execution_options(**{_IDLE_OPTION: idle_s})
        engine.dispose()


def _postgres(url: URL, answer_s: float, idle_s: float | None, pool: dict[str, Any]) -> Engine:
    given = url.query.get("options", ())
    named = [given] if isinstance(given, str) else list(given)
    more = {
        "connect_timeout": str(min(CONNECT_S, max(1, round(answer_s)))),
        "application_name": "gazette-platform",
        # The server is to give up as well what we have given up: a statement must not go on with its locks.
        "options": " ".join([f"-c statement_timeout={round(answer_s * 1000)}", *named]),
    }
    engine = create_engine(url.update_query_dict(more), **pool)
    if idle_s is None:
        engine.update_execution_options(**{_IDLE_OPTION: _IDLE_S})
    connection = bounded_connection(answer_s)

    def connect(_dialect: Any, _record: Any, arguments: Any, named: Any) -> Any:
        limit_s = engine.get_execution_options()[_IDLE_OPTION] if idle_s is None else idle_s
        idle = f"-c idle_in_transaction_session_timeout={round(limit_s * 1000)}"
        return connection.connect(*arguments, **(named | {"options": f"{idle} {named['options']}"}))

    event.listen(engine, "do_connect", connect)
    return engine


def checkpoints_ddl(dialect: Dialect) -> str:
    """The statement that makes the table of checkpoints, for those who make tables by themselves."""
    return str(CreateTable(CHECKPOINTS, if_not_exists=True).compile(dialect=dialect)).strip()


def create_tables(engine: Engine) -> None:
    """Make the table of checkpoints, if there is none. Blocks: call it before the event loop runs, or in a thread.

    Raises: StoreError: it cannot be made.
    """
    try:
        with engine.begin() as connection:
            connection.execute(CreateTable(CHECKPOINTS, if_not_exists=True))
    except SQLAlchemyError as err:
        try:
            if inspect(engine).has_table(CHECKPOINTS.name):
                return  # another process has made it at the same time: `IF NOT EXISTS` is not atomic in PostgreSQL
        except SQLAlchemyError:
            pass  # the first error says more
        raise sql_error(f"the table {CHECKPOINTS.name} cannot be made", err) from err


def sql_error(what: str, error: SQLAlchemyError) -> StoreError:
    """What a database said, without the statement and its values."""
    # SQLAlchemy adds the statement and its parameters, which may be anybody's data: they do not belong in a status.
    said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    kind = StoreUnavailable if sql_may_pass(error) else StoreError
    return kind(f"{what}: {type(error).__name__}: {said}")


def sql_may_pass(error: BaseException | None) -> bool:
    """Whether the same transaction may succeed soon, by what the database says of an error or of a cause of it.

    It is away or starts again, has too many connections, broke a deadlock, cannot serialize, or has waited too
    long for a lock.
    """
    while error is not None:
        if isinstance(error, InterfaceError | PoolTimeoutError):
            return True
        if isinstance(error, DBAPIError):
            return error.connection_invalidated or _cause_may_pass(error)
        error = error.__cause__
    return False


def _cause_may_pass(error: DBAPIError) -> bool:
    said: Any = error.orig
    sqlstate, sqlite = getattr(said, "sqlstate", None), getattr(said, "sqlite_errorcode", None)
    if type(said).__module__.startswith("pymysql"):  # whose states are too general
        return bool(said.args) and said.args[0] in _PASSING_OF_MYSQL
    if sqlstate is not None:
        return str(sqlstate).startswith(_PASSING_STATES)
    if sqlite is not None:
        return sqlite & 0xFF in _PASSING_OF_SQLITE  # the rest says more of the kind
    return isinstance(error, OperationalError)  # of a connection, or of a driver that has no codes


_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_COLUMNS: Final = CHECKPOINTS.c
FORMER_S: Final = 300.0
"""Seconds for which a thread waits for the former commit: as long as brokers may well be away."""


@final
class _Transaction:
    """A connection, and the one transaction of it."""

    def __init__(self, engine: Engine) -> None:
        """Begin. Blocks. Raises: SQLAlchemyError: the database cannot be reached."""
        self.connection = engine.connect()
        self._begun = self.connection.begin()

    @property
    def is_active(self) -> bool:
        """Whether it has not been ended."""
        return self._begun.is_active

    def commit(self) -> None:
        """Commit, and give the connection back. Raises: SQLAlchemyError: it may be committed or not."""
        self._begun.commit()
        self.connection.close()

    def drop(self) -> None:
        """Roll back, unless it has ended, and give the connection back. Never raises."""
        # Closing rolls back what is open, so the pool never hands out a connection with our locks.
        try:
            self.connection.close()
        except SQLAlchemyError as err:
            _log.info("a connection was lost as a transaction was rolled back: %s", err)


@final
class SQLStore(ShardStore):
    """State in tables of a PostgreSQL, a MySQL or MariaDB, or a file of SQLite; without a recovery log.

    A transaction of the shard is one of the database, in which the checkpoint is committed, too. It is
    fenced by a number in the row of the shard's checkpoint: each restore raises it, and a commit fails
    whose number is not the row's any more. The engine is shared by all shards, and outlives them.

    The application works on a plain `Connection`, and never ends its transaction by itself. Calls block,
    so they are made in a thread: ``await store.run(call, …)`` has ``call(connection, …)`` made in one of
    the store's. Code that is in a thread already may call `transaction` for the connection. On the event
    loop's thread it is refused: a statement might wait there for a row that the commit under way has
    locked, and that waits for the loop.

    A transaction begins with the first such call, once the former one is committed, so that it sees what
    that one has written. `overlaps` lets it begin before, as Gazette's do: the shard consumes while it
    commits, but reads the former rows, or waits for rows that the former one has changed. Not for
    SQLite, which has one writer.

    Attributes:
        cache: for the application; the store leaves it alone.
    """

    keeps_files = False

    def __init__(self, engine: Engine, shard_fqn: str, *, overlaps: bool = False) -> None:
        """Make a store; nothing is asked yet.

        Args:
            engine: as `sql_engine` makes them. The table of checkpoints exists: see `create_tables`.
            shard_fqn: whose row it is: the shard's ID, and what makes it unique in the database.
            overlaps: whether a transaction may begin while the former one commits.

        Raises: ValidationError: no name, or overlapping transactions in SQLite.
        """
        if not shard_fqn:
            raise ValidationError("expected the name of a shard", path="shard_fqn")
        if overlaps and engine.dialect.name == "sqlite":
            raise ValidationError(
                "transactions cannot overlap in SQLite, which has one writer", path="overlaps"
            )
        self.cache: Any = None
        self._engine = engine
        self._shard = shard_fqn
        self._overlaps = overlaps
        self._commits = Commits(shard_fqn)
        # One thread each: calls of the application come one after the other, and a commit beside them.
        self._work = ThreadPoolExecutor(1, f"store {shard_fqn}")
        self._committing = ThreadPoolExecutor(1, f"commits {shard_fqn}")
        self._fence = 0
        self._current: _Transaction | None = None
        self._former: _Transaction | None = None  # that of the last commit
        # That no commit is under way: for threads, and for tasks.
        self._is_free, self._has_become_free = threading.Event(), asyncio.Event()
        self._free()
        self._has_failed = False

    # ------------------------------------------------------------------ of the application

    async def run(
        self,
        call: Callable[Concatenate[Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """What ``call(connection, …)`` returns, made in a thread within the current transaction.

        Calls of several tasks are made one after the other. Give what is read out of `call` as values:
        results of the connection are for its thread.

        Raises:
            StoreError: the former commit has failed, or the database cannot be reached.
            Exception: what `call` raises. The transaction is not to be gone on with.

        Cancellation: takes effect only once a `call` that has begun has ended.
        """
        if not self._overlaps:
            await self._has_become_free.wait()
        return await run_in(
            self._work, lambda: call(self._transaction().connection, *args, **kwargs)
        )

    async def read(self, call: Callable[[Connection], _T]) -> _T:
        """Return what ``call(connection)`` returns, in a thread, of what is committed, on a connection of its own.

        Raises: Exception: what `call` raises. Cancellation: takes effect only once `call` has ended.
        """

        def ask() -> _T:
            with self._engine.connect() as connection:
                return call(connection)

        return await asyncio.to_thread(ask)

    def transaction(self) -> Connection:
        """The connection of the current transaction, which is begun if there is none. In a thread.

        Use it from one thread at a time. Blocks, also until the former commit is done.

        Raises:
            ApplicationFailed: called on the thread of an event loop.
            StoreError: the former commit has failed, or is not done after `FORMER_S`; or the database
                cannot be reached.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ApplicationFailed(
                f"{self._shard}: a transaction would block the event loop, which its former commit may wait "
                "for: use `await store.run(call)`, or call it in a thread"
            )
        if not self._overlaps and not self._is_free.wait(FORMER_S):
            raise StoreUnavailable(
                f"{self._shard}: the former commit is not done after {FORMER_S:g} s: see whether brokers "
                "take appends"
            )
        return self._transaction().connection

    def _transaction(self) -> _Transaction:
        """In a thread."""
        if self._has_failed:
            raise StoreError(
                f"{self._shard}: a commit has failed, and nothing can be based upon it: restore the shard"
            )
        if not self._fence:
            raise ValidationError(f"{self._shard}: nothing is changed before it was restored")
        if self._current is None:
            try:
                self._current = _Transaction(self._engine)
            except SQLAlchemyError as err:
                raise sql_error(f"{self._shard}: no transaction can be begun", err) from err
        return self._current

    # ------------------------------------------------------------------ of the shard

    @override
    def follow_lease(self, lease_s: float) -> None:
        let_idle_limit_follow(self._engine, lease_s)

    @override
    async def restore_checkpoint(self) -> Checkpoint:
        await self._drop()
        raw = await run_in(self._committing, self._restore)
        self._has_failed = False
        try:
            return Checkpoint.decode(raw)
        except ValidationError as err:
            raise DataError(
                f"{self._shard}: the checkpoint in {CHECKPOINTS.name} is none: {err}"
            ) from err

    def _restore(self) -> bytes:
        """Fence the former owner. In a thread."""
        is_ours = _COLUMNS.shard_fqn == self._shard
        try:
            with self._engine.begin() as connection:
                # The update comes first, because it locks the row: of two owners that restore at once, the second waits,
                # and reads the number that the first one has set.
                raised = update(CHECKPOINTS).where(is_ours).values(fence=_COLUMNS.fence + 1)
                connection.execute(raised)
                found = connection.execute(
                    select(_COLUMNS.fence, _COLUMNS.checkpoint).where(is_ours)
                ).one_or_none()
                if found is None:
                    first = {"shard_fqn": self._shard, "fence": 1, "checkpoint": b""}
                    connection.execute(insert(CHECKPOINTS).values(**first))
            self._fence, raw = (1, b"") if found is None else found
        except IntegrityError as err:
            raise Fenced(
                f"{self._shard}: another process has restored the shard for the first time at the same "
                "moment (stop this one)"
            ) from err
        except SQLAlchemyError as err:
            raise sql_error(
                f"{self._shard}: no checkpoint can be restored (is the database up, and has it the table "
                f"{CHECKPOINTS.name}? see create_tables)",
                err,
            ) from err
        return bytes(raw)

    @override
    async def roll_back(self) -> None:
        self._has_failed = True
        await self._drop()  # others wait for its locks

    @override
    @staticmethod
    def may_pass(error: Exception) -> bool:
        return ShardStore.may_pass(error) or sql_may_pass(error)

    @override
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        if not self._fence:
            raise ValidationError(f"{self._shard}: nothing is committed before it was restored")
        if not self._is_free.is_set():
            raise ValidationError(f"{self._shard}: the former commit is not done yet")
        # Detached at once: with `overlaps` the next transaction begins while this one commits.
        raw, fence = checkpoint.encode(), self._fence
        self._former, self._current = self._current, None
        self._is_free.clear()
        self._has_become_free.clear()
        return self._commits.start(lambda: self._commit(fence, raw, after))

    async def _commit(self, fence: int, raw: bytes, after: Collection[Dependency]) -> None:
        try:
            await all_succeeded(after)
            await run_in(self._committing, self._finish, fence, raw)
        except BaseException:
            self._has_failed = True
            await self._drop_former()
            raise
        finally:
            # After a failure, too: who waits in a thread then gets its error, and not a deadline.
            self._free()

    def _finish(self, fence: int, raw: bytes) -> None:
        """Commit with the checkpoint. In a thread."""
        what = f"{self._shard}: the transaction is not committed"
        transaction = self._former
        try:
            if transaction is None:
                transaction = self._former = _Transaction(self._engine)
            if not transaction.is_active:
                raise ApplicationFailed(
                    f"{what} with its checkpoint, for the application has ended it: leave that to the store"
                )
            # Compared and set in the transaction of the state: another owner that restores waits for this row, or has
            # raised the number and lets this transaction change no row.
            is_ours = (_COLUMNS.shard_fqn == self._shard) & (_COLUMNS.fence == fence)
            done = transaction.connection.execute(
                update(CHECKPOINTS).where(is_ours).values(checkpoint=raw)
            )
            if done.rowcount != 1:
                raise Fenced(
                    f"{what}, for another process has restored the shard: its fence is {fence} no more (stop "
                    "this one; nothing that it commits is kept any more)"
                )
            # The connection may break after the database has committed, and before we learn of it.
            what = f"{self._shard}: the transaction may be committed or not"
            transaction.commit()
        except SQLAlchemyError as err:
            raise sql_error(what, err) from err
        finally:
            if transaction is not None:
                transaction.drop()

    def _free(self) -> None:
        self._is_free.set()
        self._has_become_free.set()

    async def _drop(self) -> None:
        # On its own thread: a call of the application may still use the connection, and drivers are not thread-safe.
        current, self._current = self._current, None
        if current is not None:
            await run_in(self._work, current.drop)

    async def _drop_former(self) -> None:
        if self._former is not None:
            await run_in(self._committing, self._former.drop)

    @override
    async def destroy(self) -> None:
        await self._commits.close()
        self._free()
        await self._drop_former()  # its commit may have been ended before it began
        await self._drop()
        self._work.shutdown(wait=False)
        self._committing.shutdown(wait=False)
