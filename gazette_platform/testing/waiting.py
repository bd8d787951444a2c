"""Waits of tests and harnesses: polls with a deadline, scaled by one factor.

Every limit of a test ("ready", "eventually", a hard end) is written for an idle machine with two cores. On a
busy one, set ``GAZETTE_TEST_PATIENCE=4`` to make each of them four times as long. A limit never decides what is
right: a test whose condition holds early ends early, at any patience.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import time
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["VARIABLE", "eventually", "patient", "turns", "wait_until"]

VARIABLE: Final = "GAZETTE_TEST_PATIENCE"
_DEADLINE_S: Final = 20.0
_POLL_S: Final = 0.01


def patient(seconds: float) -> float:
    """Scale a limit by ``GAZETTE_TEST_PATIENCE`` (default 1).

    Args:
        seconds: the limit on an idle machine with two cores.

    Raises: SetupError: the variable is not a positive number.
    """
    text = os.environ.get(VARIABLE, "").strip() or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not (0 < factor < math.inf):
        raise SetupError(f"{VARIABLE}={text} is not a positive number; set it to 1, 2 or 4")
    return seconds * factor


async def eventually(
    condition: Callable[[], Any], *, timeout_s: float = _DEADLINE_S, poll_s: float = _POLL_S
) -> Any:
    """Poll until `condition()`, which may be a coroutine function, is true. Return its value.

    Args:
        condition: called again and again; what it raises is raised.
        timeout_s: seconds until it fails, before `patient` scales them.
        poll_s: seconds between two calls.

    Raises: TimeoutError: it was not true in time.
    Cancellation: safe.
    """
    loop = asyncio.get_running_loop()
    limit_s = patient(timeout_s)
    deadline = loop.time() + limit_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if loop.time() > deadline:
            raise TimeoutError(f"not so after {limit_s:g} s: {condition}")
        await asyncio.sleep(poll_s)


def wait_until(
    condition: Callable[[], Any], *, timeout_s: float = _DEADLINE_S, poll_s: float = _POLL_S
) -> Any:
    """Poll until `condition()` is true, without an event loop. Return its value.

    Same arguments and errors as `eventually`.
    """
    limit_s = patient(timeout_s)
    deadline = time.monotonic() + limit_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {limit_s:g} s: {condition}")
        time.sleep(poll_s)


async def turns(count: int = 1) -> None:
    """Let the event loop run what is ready, `count` times.

    For tests of code whose tasks only wait for each other. Code that waits for a thread, a file or a socket
    needs `eventually`.
    """
    for _ in range(count):
        await asyncio.sleep(0)
