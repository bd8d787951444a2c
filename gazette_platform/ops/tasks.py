"""Concurrency within one event loop: owned tasks, bounded fan-out, threads, fair turns, a watch over the loop; and loops for synchronous callers.

Every task belongs to a `TaskGroup`, so a failure surfaces and a shutdown ends it. `side_by_side` asks
one question of many subjects, a few at a time. `run_in` moves a blocking call to a pool of threads and
outlasts cancellation, because a thread cannot be stopped half-way through a file. `Turns` keeps long
computations from holding up calls that take microseconds. `Closing` and `Aclosing` close themselves when they are left, however that is.
`LoopWatch` reports what blocks a loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, Self, TypeVar, final
from weakref import WeakKeyDictionary

from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.ops.faults import backoff_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
    from concurrent.futures import Executor
    from types import FrameType, TracebackType

    from gazette_platform.ops.faults import Faults


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
    reported there: their owner has to make sure that no caller waits for their results in vain.
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
            ends_by: the errors that end it for good, and the owner with it.
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


S = TypeVar("S")
T = TypeVar("T")


async def side_by_side(
    ask: Callable[[S], Awaitable[T]], subjects: Iterable[S], *, at_a_time: int
) -> list[T]:
    """What `ask` gives for each of `subjects`, in their order.

    Args:
        ask: called once for each; what it raises ends all.
        subjects: those to ask, `at_a_time` at a time.

    Raises: what the first that failed raises. Cancellation: cancels all that are asked.
    """
    slots = asyncio.Semaphore(at_a_time)

    async def one(subject: S) -> T:
        async with slots:
            return await ask(subject)

    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(one(subject)) for subject in subjects]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in asked]


_P = ParamSpec("_P")


async def run_in(
    executor: Executor, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """What `call` returns, made in a thread of `executor`.

    Raises: what `call` raises.
    Cancellation: takes effect only once the call has ended, so that no thread still works on files
        which its caller has given up.
    """
    loop = asyncio.get_running_loop()
    running = loop.run_in_executor(executor, lambda: call(*args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):  # cancelled again: we go on waiting
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # looked at: asyncio would log it as unhandled
        raise


@final
class Interrupted(GazetteError):
    """What was waited for does not matter any more."""


@final
class Interrupt:
    """Ends one task's waits once `fire` was called; it is never taken back.

    A wait is what is awaited in a ``with`` statement of it.
    """

    __slots__ = ("_waiting", "is_fired")

    def __init__(self) -> None:
        self.is_fired = False
        self._waiting: asyncio.Task[object] | None = None

    def fire(self) -> None:
        """End the wait under way, and all later ones. Idempotent."""
        if not self.is_fired:
            self.is_fired = True
            if self._waiting is not None:
                self._waiting.cancel()

    def __enter__(self) -> None:
        """Begin a wait. Raises: Interrupted: `fire` was called."""
        if self.is_fired:
            raise Interrupted("interrupted")
        self._waiting = asyncio.current_task()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """End it. Raises: Interrupted: `fire` was called meanwhile."""
        waiting, self._waiting = self._waiting, None
        # Unless the task was cancelled by its owner at the same time.
        is_ours = self.is_fired and kind is asyncio.CancelledError
        if is_ours and waiting is not None and waiting.uncancel() == 0:
            raise Interrupted("interrupted") from None

    async def wait(self, work: Coroutine[object, object, T]) -> T:
        """Await `work`.

        Raises: Interrupted: `fire` was called; `work` was cancelled, or not begun.
        Cancellation: cancels `work`.
        """
        if self.is_fired:
            work.close()
        with self:
            return await work


def is_cancelled() -> bool:
    """Whether a `CancelledError` is the caller's own: its task was cancelled.

    Else what it awaits was cancelled, such as a call whose channel was closed: an error, like others.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


# Short compared with the time of an append, long compared with the cost of a switch.
_TURN_S: Final = 0.01

# Seconds that a computation may take before it has to wait for its first turn; nearly all have ended by
# then. Short, because one round of the loop may run those of many callers.
_FIRST_S: Final = 0.001


@final
class Turns:
    """Lets others go on in between: `take` it in each round of a loop.

    In each round of the event loop one computation has its turn, however many there are: a thousand
    of them are slow, and delay no other.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _FIRST_S

    async def take(self) -> None:
        """Return at once, or when our next turn comes if this one is over. Cancellation: safe."""
        if self._loop.time() >= self._until:
            queue = _queues.get(self._loop)
            if queue is None:
                queue = _queues[self._loop] = _Queue()
            await queue.turn()
            self._until = self._loop.time() + _TURN_S


@final
class _Queue:
    """Computations of one event loop that wait for their turn, first come, first served.

    It has no reference to the loop: that would keep its own entry in `_queues` alive for ever.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._next)
        await waiter

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._next)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


class _HasClose(Protocol):
    def close(self) -> None: ...


class _HasAsyncClose(Protocol):
    async def close(self) -> None: ...


class _HasAclose(Protocol):
    async def aclose(self) -> None: ...


class Closing:
    """Of a class that has `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _HasClose,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing:
    """Of a class whose `close` is a coroutine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: _HasAsyncClose,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Aclosing:
    """Of a class that has `aclose`, as iterators are closed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: _HasAclose,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


_JOIN_TIMEOUT_S = 10.0


@final
class LoopThread:
    """Runs coroutines for any number of threads. In a forked child it is closed: make it after the fork.

    Attributes:
        closed_why: the reason for callers, once it is closed.
    """

    def __init__(self, name: str) -> None:
        self.closed_why = "is closed"
        import uvloop  # noqa: PLC0415  most users of this module have a loop already

        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_closed = False
        self._posting = threading.Lock()
        self._thread.start()
        _all.add(self)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` on the loop and wait for it; an interrupt of the caller cancels it.

        Raises: what `coro` raises. ValidationError: closed, or called on the loop itself.
        """
        if self._is_closed or threading.current_thread() is self._thread:
            coro.close()
            state = self.closed_why if self._is_closed else "cannot wait for its own event loop"
            raise ValidationError(f"the client {state}")
        future = asyncio.run_coroutine_threadsafe(coro, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ValidationError("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def post(self, callback: Callable[..., object], *args: object) -> bool:
        """Call `callback` on the loop, some time. Returns: False, after `close`: it is not called."""
        if self._is_closed:
            return False
        with self._posting:  # so that what is posted comes before the loop is stopped
            if not self._is_closed:
                self._loop.call_soon_threadsafe(callback, *args)
            return not self._is_closed

    def close(self) -> None:
        """Stop the loop and its thread. What still runs on it is abandoned."""
        if self._is_closed:
            return
        with self._posting:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT_S)


_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _forked() -> None:
    """In the child of a fork, where the threads of its parent do not run."""
    for loop in _all:
        loop._is_closed = True  # noqa: SLF001  ours
        loop.closed_why = "does not work in a fork of its process: make one after the fork"


os.register_at_fork(after_in_child=_forked)


async def next_or_none(source: AsyncIterator[T]) -> T | None:
    """The next of `source`, which gives no None; None at its end. For `LoopThread.run`."""
    return await anext(source, None)


# Where frames are not an application's: what blocks is its call of them. An application may be installed as libraries are.
_OURS: Final = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
_LIBRARIES: Final = (*_OURS, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


@final
class LoopWatch:
    """Watches the event loop that it is made in, from a thread: `start` it, and in the end `stop` it.

    A process that is stopped as a whole stops the thread too, so that it is not taken for a blocked loop.

    Args:
        limit_s: seconds without a turn of the loop, after which it counts as blocked.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beaten_at = time.monotonic()
        self._where = ""
        self._said, self._said_at = "", 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread, which takes a moment."""
        self._stopped.set()
        self._thread.join()

    def said(self, within_s: float) -> str:
        """Describe the last time that the loop was blocked, if that ended within so many seconds; or ""."""
        self._beat()
        return self._said if self._said and time.monotonic() - self._said_at < within_s else ""

    def _watch(self) -> None:
        pause_s = self._limit_s / 4
        while not self._stopped.is_set():
            asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._beat)
            if self._stopped.wait(pause_s):
                return
            now_s = time.monotonic()
            was_paused = now_s - asked_at > self._limit_s
            if now_s - self._beaten_at > self._limit_s and not was_paused and not self._where:
                self._where = _place(sys._current_frames().get(self._loop_thread))  # noqa: SLF001

    def _beat(self) -> None:
        """On the loop: it has a turn."""
        now_s = time.monotonic()
        blocked_s, self._beaten_at = now_s - self._beaten_at, now_s
        where, self._where = self._where, ""
        if where:
            self._said, self._said_at = (
                f"{where} blocked its event loop for {blocked_s:.0f} s",
                now_s,
            )
            _log.warning(
                "%s: all else of the process waited, its lease too (run long work in a thread, as by "
                "`asyncio.to_thread`)",
                self._said,
            )


def _place(frame: FrameType | None) -> str:
    """Where a thread is, as an application's author would look for it."""
    stack = traceback.extract_stack(frame)
    own, loose = (
        [each for each in stack if not each.filename.startswith(others)]
        for others in (_LIBRARIES, _OURS)
    )
    at = (own or loose or stack)[-1]
    return f"{at.name} at {Path(at.filename).name}:{at.lineno}"
