"""What stores share about commits: what one has to wait for, and who owns it while it is under way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, final

from gazette_platform.client import AppendTicket
from gazette_platform.errors import DependencyFailed, GazetteError, StoreError
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from gazette_platform.client import Dependency

__all__ = ["Commits", "all_succeeded"]


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
                "the shard has to begin anew from the former one"
            ) from error


@final
class Commits:
    """The commits of one store: tasks that are known, and futures that say how they ended."""

    def __init__(self, name: str) -> None:
        """Name a store, for logs."""
        self._name = name
        self._tasks = TaskGroup(f"store {name}")

    def start(self, commit: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        """Run `commit`. Returns: how it ends; to cancel the future changes nothing of the commit.

        Raises: RuntimeError: closed.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await commit()
            except Exception as err:  # noqa: BLE001  whoever has the future is told
                if not future.done():
                    future.set_exception(err)
            else:
                if not future.done():
                    future.set_result(None)

        def ended(_: asyncio.Task[None]) -> None:
            if not future.done():  # it was cancelled, maybe before it had begun
                future.set_exception(
                    StoreError(
                        f"{self._name}: the store was destroyed before its commit was done, which may be "
                        "durable or not: go on with what the next owner restores"
                    )
                )
                future.exception()  # nobody need be there any more

        self._tasks.spawn(run(), name="commit").add_done_callback(ended)
        return future

    async def close(self) -> None:
        """End the commit that is under way, if any, and take no more. Its future fails."""
        await self._tasks.close()
