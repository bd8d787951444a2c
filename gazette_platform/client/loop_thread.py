"""An event loop on a thread of its own, for synchronous callers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, final

import uvloop

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")
_JOIN_TIMEOUT_S = 10.0


@final
class LoopThread:
    """Runs coroutines for any number of threads. In a forked child it is closed: make it after the fork.

    Attributes:
        closed_why: the reason for callers, once it is closed.
    """

    def __init__(self, name: str) -> None:
        self.closed_why = "is closed"
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
