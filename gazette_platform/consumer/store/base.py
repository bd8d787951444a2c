"""What a store of a shard has to do, and what stores share.

`Commits` orders commits: one is under way at a time, and each waits for the appends that it depends on.
`check_files` recognizes files of another kind of store, so that no store begins empty beside them.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, final

from gazette_platform.client import AppendTicket
from gazette_platform.errors import (
    ApplicationFailed,
    DataError,
    DependencyFailed,
    GazetteError,
    StoreError,
    StoreUnavailable,
)
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from gazette_platform.client import Dependency
    from gazette_platform.consumer.protocol import Checkpoint
    from gazette_platform.consumer.recoverylog import Recorder


def check_recorder(recorder: Recorder | None, store: str) -> None:
    """Raises: ApplicationFailed: there is none, as the shard has no recovery log."""
    if recorder is None:
        raise ApplicationFailed(
            f"a {store} keeps its files in a recovery log, and this shard has none: give its spec a "
            "recovery_log_prefix and a hint_prefix, or keep state in a SQLStore"
        )


class ShardStore(ABC):
    """State of one shard, and the checkpoint up to which it reflects what was read.

    A store with a recovery log keeps local files, and records each operation on them; it is durable,
    and fenced, as the log is. A *remote* store has no log: its database keeps state and checkpoint, and
    it fences by itself. All is called on the event loop's thread, one call at a time:

        restore_checkpoint -> (the application changes state -> start_commit)* -> destroy

    The state changes already while a commit that was started is not done yet; only the next
    `start_commit` waits for it.

    Source: Gazette's `consumer.Store`.

    Attributes:
        keeps_files: whether its state is in the files that a recorder records. If not, a log with files is refused.
    """

    keeps_files: ClassVar[bool] = True

    def follow_lease(self, lease_s: float) -> None:  # noqa: B027  to be overridden
        """Learn how long the lease of the process lasts, before the first restore.

        If the process hangs for that long, another one gets the shard. A remote store should not hold its locks
        much longer.
        """

    @abstractmethod
    async def restore_checkpoint(self) -> Checkpoint:
        """The checkpoint of the last commit; an empty one if there was none.

        Changes of state that were not committed are dropped. A remote store fences: commits of whoever
        restored before us fail from here on.

        Raises: GazetteError: there is state, and it cannot be read.
        Cancellation: safe.
        """

    @abstractmethod
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        """Commit all changes of state since the last call, and the checkpoint, at once or not at all.

        Not called before the former commit is done.

        Args:
            checkpoint: replaces the former one.
            after: appends, or other futures, which all have to succeed before anything may become
                durable. The commit fails if one of them does.

        Returns: done once the commit is durable. It fails with `Fenced` if another process has taken the
            shard over, and with another `GazetteError` if the commit is not, or may not be, durable.
        Raises: GazetteError: the commit cannot be started.
        Cancellation: of the future is none of the caller's business; commits go on.
        """

    async def roll_back(self) -> None:  # noqa: B027  to be overridden
        """Drop what is not committed: the shard has failed, and its store may still be asked.

        Called when no callback of the application runs. The store is not restored again.
        """

    @staticmethod
    def may_pass(error: Exception) -> bool:
        """Whether the shard, which failed with `error`, may succeed if it starts again soon.

        If so, its process starts it again, with growing pauses. Otherwise it stays FAILED.
        """
        return isinstance(error, StoreUnavailable)

    @abstractmethod
    async def destroy(self) -> None:
        """Give back what is held, and delete local files. Once, when the store is no longer used.

        Changes that were not committed are lost. Never raises: it logs errors, and goes on.

        Cancellation: files may stay behind.
        """


# ------------------------------------------------------------------ commits

_T = TypeVar("_T")


async def all_succeeded(after: Collection[Dependency]) -> None:
    """Wait until each of these has succeeded.

    Raises: DependencyFailed: one failed, or was cancelled. Of several, the first in their order.
    Cancellation: safe; they go on.
    """
    # One after the other, so that of several failures the caller always sees the same one.
    for need in after:
        error: BaseException | None = None
        if isinstance(need, AppendTicket):
            try:
                await need
            except GazetteError as err:
                error = err
        else:
            if not need.done():
                await asyncio.wait([need])
            # Asked for, and not raised: a cancelled future must not look as if this task had been cancelled.
            error = asyncio.CancelledError() if need.cancelled() else need.exception()
        if error is not None:
            raise DependencyFailed(
                f"nothing is committed, for what the commit was to follow has failed ({error!r}): "
                "the shard has to restart from the former one"
            ) from error


@final
class Commits:
    """The commits of one store: tasks that are known, and futures that say how they ended."""

    def __init__(self, name: str) -> None:
        """Name a store, for logs."""
        self._name = name
        self._tasks = TaskGroup(f"store {name}")
        self._is_busy = self._is_closed = False
        self._error: BaseException | None = None
        self._waiting: list[Callable[[], None]] = []

    def restored(self) -> None:
        """Forget a commit that failed: the store was restored."""
        self._error = None

    async def between(
        self, call: Callable[[], _T], *, is_ready: Callable[[], bool] = lambda: True
    ) -> _T:
        """Return what `call` returns, called once no commit is under way, before another one begins.

        Args:
            call: does not wait.
            is_ready: asked now, and when a commit has ended or `tell()` is called, until it is true, or `close` is called.

        Raises: StoreError: the last commit has failed. Exception: what `call` raises.
        Cancellation: safe.
        """
        result: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        # Called where a commit ends, and not by a task that wakes up later: the shard may start its next commit in the
        # same step, and reads would wait for ever beside a busy one.
        def attempt() -> None:
            if result.done():
                return
            waits = self._is_busy or (
                self._error is None and not self._is_closed and not is_ready()
            )
            if waits:
                self._waiting.append(attempt)
                return
            if self._error is not None:
                result.set_exception(self._failed())
                return
            try:
                result.set_result(call())
            except Exception as err:  # noqa: BLE001  the caller gets it
                result.set_exception(err)

        attempt()
        return await result

    def tell(self) -> None:
        """Attempt what waits in `between` once more."""
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            attempt()

    def _failed(self) -> StoreError:
        error = StoreError(
            f"{self._name}: its last commit has failed, so that what it has may never be committed: ask again once "
            "the shard has started again"
        )
        error.__cause__ = self._error
        return error

    def _end(self, error: BaseException | None) -> None:
        self._is_busy, self._error = False, error
        self.tell()

    def start(self, commit: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        """Run `commit`. Returns: how it ends; to cancel the future changes nothing of the commit.

        Raises: RuntimeError: closed.
        """
        # A future beside the task: a caller that is cancelled cancels what it awaits, and a commit that was begun must
        # end in one way or the other.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_busy = True

        async def run() -> None:
            try:
                await commit()
            except Exception as err:  # noqa: BLE001  the future has it
                self._end(err)
                if not future.done():
                    future.set_exception(err)
            else:
                self._end(None)
                if not future.done():
                    future.set_result(None)

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                self._end(asyncio.CancelledError())
            if not future.done():  # it was cancelled, maybe before it had begun
                future.set_exception(
                    StoreError(
                        f"{self._name}: the store was destroyed before its commit was done, which may be "
                        "durable or not: go on with what the next owner restores"
                    )
                )
                future.exception()  # the waiter may have gone

        self._tasks.spawn(run(), name="commit").add_done_callback(ended)
        return future

    async def close(self) -> None:
        """End the commit that is under way, if any, and take no more. Its future fails. What waits is made."""
        await self._tasks.close()
        self._is_closed = True
        self.tell()


# ------------------------------------------------------------------ names of files

_GAZETTES: Final = "SQLite store of Gazette's Go consumers"

# Whole names, of all that each store and its engine may write: an unknown name beside them is the application's.
_FILES: Final = {
    "SQLiteStore": re.compile(r"primary\.db.*"),
    "JSONFileStore": re.compile(r"(state|next)\.json"),
    "RocksDBStore": re.compile(
        r"(CURRENT|MANIFEST-\d+)(\.next)?|IDENTITY|LOCK|LOG(\.old\..*)?|OPTIONS-.*|\d+\.(sst|blob|log|dbtmp)"
    ),
    _GAZETTES: re.compile(r"pageDB"),
}

_NAMED_MAX: Final = 4


def check_files(directory: str | Path, store: str) -> None:
    """Check that what a recovery log gave is of a kind of store, before that opens it.

    An application may record files of its own beside those of its store.

    Raises: DataError: another store wrote the files. The shard would consume and publish everything again.
        OSError: the directory cannot be read.
    """
    # Names with a leading dot are this process's own: staged files, and snapshots of RocksDB.
    names = sorted(each.name for each in Path(directory).iterdir() if each.name[0] != ".")
    foreign = [name for name in names if not _FILES[store].fullmatch(name)]
    looks = [kind for kind, files in _FILES.items() if any(map(files.fullmatch, foreign))]
    # Files that no store is known to write are the application's, if files of this store exist as well.
    if not foreign or (not looks and len(foreign) < len(names)):
        return
    named = ", ".join(foreign[:_NAMED_MAX]) + (", …" if len(foreign) > _NAMED_MAX else "")
    told = f"They look like those of a {' and a '.join(looks)}. " if looks else ""
    raise DataError(
        f"{directory} has files that a {store} does not write ({named}). {told}With a {store} the shard would "
        "begin with empty state, and publish everything again. Open the store that wrote them, or give the "
        "shard another recovery_log_prefix and hint_prefix to restart it"
    )
