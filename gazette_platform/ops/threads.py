"""Blocking calls in a named, bounded pool of threads."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

__all__ = ["run_in"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


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
            running.exception()  # looked at: asyncio would log it as one that nobody handles
        raise
