"""State of a shard in a database that is there already, and that others may read and write too."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, final

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from typing_extensions import override

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store.base import ShardStore
from gazette_platform.consumer.store.commits import Commits, all_succeeded
from gazette_platform.consumer.store.sql_database import (
    CHECKPOINTS,
    let_idle_limit_follow,
    sql_error,
    sql_may_pass,
)
from gazette_platform.errors import (
    ApplicationFailed,
    DataError,
    Fenced,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy.engine import Connection, Engine

    from gazette_platform.client import Dependency

__all__ = ["SQLStore"]

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
        """Whether nobody has ended it."""
        return self._begun.is_active

    def commit(self) -> None:
        """Commit, and give the connection back. Raises: SQLAlchemyError: it may be committed or not."""
        self._begun.commit()
        self.connection.close()

    def drop(self) -> None:
        """Roll back, unless it has ended, and give the connection back. Never raises."""
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
    commits, but reads what was there before, or waits for rows that the former one has changed. Not for
    SQLite, which has one writer.

    Attributes:
        cache: for the application; the store leaves it alone.
    """

    keeps_files = False

    def __init__(self, engine: Engine, shard_fqn: str, *, overlaps: bool = False) -> None:
        """Make a store; nothing is asked yet.

        Args:
            engine: as `sql_engine` makes them. The table of checkpoints is there: see `create_tables`.
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
        """Fence whoever was there before. In a thread."""
        is_ours = _COLUMNS.shard_fqn == self._shard
        try:
            with self._engine.begin() as connection:
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
            is_ours = (_COLUMNS.shard_fqn == self._shard) & (_COLUMNS.fence == fence)
            done = transaction.connection.execute(
                update(CHECKPOINTS).where(is_ours).values(checkpoint=raw)
            )
            if done.rowcount != 1:
                raise Fenced(
                    f"{what}, for another process has restored the shard: its fence is {fence} no more (stop "
                    "this one; nothing that it commits is kept any more)"
                )
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
