"""Owned tasks: every background task belongs to a group that outlives and ends it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar, final

from gazette_platform.errors import GazetteError
from gazette_platform.ops.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gazette_platform.ops.faults import Faults

__all__ = ["TaskGroup"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# Seconds after which a loop that has not failed counts its failures from zero again.
_WELL_S = 60.0


@final
class TaskGroup:
    """Background tasks of one owner.

    Unlike ``asyncio.TaskGroup`` it is not a scope: its owner calls `spawn` over its life and
    `close` once at its end. A task that fails is logged at once. What else becomes of it depends on
    the owner: without `faults` it is kept as `failure`, and `failed` is set so that a supervisor can
    stop the process. With `faults` this is so for essential tasks only, and the errors of others are
    reported there: their owner has to make sure that nobody waits for their results in vain.
    """

    def __init__(self, name: str, *, faults: Faults | None = None) -> None:
        self._name = name
        self._faults = faults
        self._tasks: set[asyncio.Task[Any]] = set()
        self._essential: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more tasks."""
        return self._closed

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self, coro: Coroutine[Any, Any, _T], *, name: str = "", is_essential: bool = False
    ) -> asyncio.Task[_T]:
        """Run `coro` as a task of this group. After `close` it is not started but closed.

        Args:
            is_essential: whether the owner cannot go on once it has failed.
        """
        if self._closed:
            coro.close()
            raise RuntimeError(f"task group {self._name} is closed")
        loop = asyncio.get_running_loop()
        task = loop.create_task(coro, name=f"{self._name}/{name}" if name else self._name)
        self._tasks.add(task)
        if is_essential or self._faults is None:
            self._essential.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(
        self,
        run: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str,
        ends_by: tuple[type[Exception], ...] = (),
    ) -> asyncio.Task[None]:
        """Spawn `run` as an essential task, and run it again, after a pause, when it fails.

        Args:
            ends_by: the errors by which it fails for good, and the owner with it.
        """
        return self.spawn(self._keep(run, name, ends_by), name=name, is_essential=True)

    async def _keep(
        self,
        run: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        ends_by: tuple[type[Exception], ...],
    ) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            try:
                return await run()
            except ends_by:
                raise
            except Exception as err:
                if self._faults is None:
                    raise
                failures = 0 if loop.time() - began > _WELL_S else failures + 1
                pause_s = backoff_s(failures)
                self._faults.report(
                    "loop", f"{self._name}/{name}: begins again in {pause_s:g} s", err
                )
            await asyncio.sleep(pause_s)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        is_essential = task in self._essential
        self._essential.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._faults is not None and not is_essential:
            self._faults.report("task", f"task {task.get_name()} failed", error)
            return
        # What we raise says all that there is to know; of anything else one has to know where it arose.
        trace = None if isinstance(error, GazetteError) else error
        _log.error("task %s failed: %s", task.get_name(), error, exc_info=trace)
        if self.failure is None:
            self.failure = error
        self.failed.set()

    async def join(self) -> None:
        """Wait until no task is left. Cancellation: safe, the tasks go on."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self, *, timeout_s: float = 10.0) -> None:
        """Cancel every task and wait for them.

        Args:
            timeout_s: seconds; tasks that resist are logged by name and given up.
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
