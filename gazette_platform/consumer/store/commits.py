"""What stores share about commits: what one has to wait for, and who owns it while it is under way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, final

from gazette_platform.client import AppendTicket
from gazette_platform.errors import DependencyFailed, GazetteError, StoreError
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from gazette_platform.client import Dependency

__all__ = ["Commits", "all_succeeded"]

_T = TypeVar("_T")


async def all_succeeded(after: Collection[Dependency]) -> None:
    """Wait until each of these has succeeded.

    Raises: DependencyFailed: one failed, or was cancelled. Of several, the first in their order.
    Cancellation: safe; they go on.
    """
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
