"""Owned tasks: every background task belongs to a group that outlives and ends it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["TaskGroup"]

_log = logging.getLogger(__name__)


@final
class TaskGroup:
    """Background tasks of one owner.

    Unlike ``asyncio.TaskGroup`` it is not a scope: its owner calls `spawn` over its life and
    `close` once at its end. A task that fails is logged at once and kept as `failure`, and
    `failed` is set so that a supervisor can stop the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coro: Coroutine[Any, Any, Any], *, name: str = "") -> asyncio.Task[Any]:
        """Run `coro` as a task of this group. After `close` it is not started but closed."""
        if self._closed:
            coro.close()
            raise RuntimeError(f"task group {self._name} is closed")
        loop = asyncio.get_running_loop()
        task = loop.create_task(coro, name=f"{self._name}/{name}" if name else self._name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("task %s failed: %s", task.get_name(), error, exc_info=error)
            if self.failure is None:
                self.failure = error
            self.failed.set()

    async def join(self) -> None:
        """Wait until no task is left. Cancellation: safe, the tasks go on."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self, *, timeout_s: float = 10.0) -> None:
        """Cancel every task and wait for them.

        Args: timeout_s: seconds to wait; tasks that resist are logged by name and given up.
        """
        self._closed = True
        current = asyncio.current_task()
        tasks = {t for t in self._tasks if t is not current}
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=timeout_s)
            for task in pending:
                _log.warning("task %s did not end within %s s", task.get_name(), timeout_s)
