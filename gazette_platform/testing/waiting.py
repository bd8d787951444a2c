"""Waits of tests and harnesses: polls with a deadline, scaled by one factor.

Every limit of a test ("ready", "eventually", a hard end) is written for an idle machine with two cores. On a
busy one, set ``GAZETTE_TEST_PATIENCE=4`` to make each of them four times as long. A limit never decides what is
right: a test whose condition holds early ends early, at any patience.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "VARIABLE",
    "TooLate",
    "block_for",
    "core_wait",
    "eventually",
    "pass_time",
    "patient",
    "stays",
    "turns",
    "wait_until",
]

VARIABLE: Final = "GAZETTE_TEST_PATIENCE"
_DEADLINE_S: Final = 20.0
_POLL_S: Final = 0.01


class TooLate(SetupError):
    """Something did not happen within its limit of time.

    Args:
        text: the message.
        waited: share of that time in which the process was ready to run and had no core, from 0 to 1.
    """

    def __init__(self, text: str, *, waited: float = 0.0) -> None:
        super().__init__(text)
        self.waited = waited


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
    condition: Callable[[], Any],
    *,
    timeout_s: float = _DEADLINE_S,
    poll_s: float = _POLL_S,
    what: str = "",
) -> Any:
    """Poll until `condition()`, which may be a coroutine function, is true. Return its value.

    Args:
        condition: called again and again; what it raises is raised.
        timeout_s: seconds until it fails, before `patient` scales them.
        poll_s: seconds between two calls.
        what: is wrong if it never is true; for the error.

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
            raise TimeoutError(f"not so after {limit_s:g} s: {what or condition}")
        await asyncio.sleep(poll_s)


def wait_until(
    condition: Callable[[], Any],
    *,
    timeout_s: float = _DEADLINE_S,
    poll_s: float = _POLL_S,
    what: str = "",
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
            raise TimeoutError(f"not so after {limit_s:g} s: {what or condition}")
        time.sleep(poll_s)


async def turns(count: int = 1) -> None:
    """Let the event loop run what is ready, `count` times.

    For tests of code whose tasks only wait for each other. Code that waits for a thread, a file or a socket
    needs `eventually`.
    """
    for _ in range(count):
        await asyncio.sleep(0)


async def stays(condition: Callable[[], Any], *, for_s: float, poll_s: float = _POLL_S) -> None:
    """Check that `condition()`, which may be a coroutine function, is true all the time.

    For what must not happen, where neither a clock of the test nor a state of the code shows that it had its
    chance. Passes only after `for_s`, so prefer those.

    Args:
        condition: called again and again; what it raises is raised.
        for_s: how long it must be true, before `patient` scales it.
        poll_s: seconds between two calls.

    Raises: AssertionError: it was false.
    Cancellation: safe.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    limit_s = patient(for_s)
    while True:
        passed_s = loop.time() - start
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if not held:
            raise AssertionError(f"no longer so after {passed_s:.3f} s: {condition}")
        if passed_s >= limit_s:
            return
        await asyncio.sleep(poll_s)


async def pass_time(seconds: float) -> None:
    """Let time pass because the play says so, and for nothing else.

    For a stand-in that is slow, a fault that lasts, a load with pauses, a harness that does something again and
    again. A test that waits for something uses `eventually`, `turns` or an event.

    Args:
        seconds: as they are; `patient` does not scale them.

    Cancellation: safe.
    """
    await asyncio.sleep(seconds)


def block_for(seconds: float) -> None:
    """Block this thread because the play says so: `pass_time` without an event loop.

    Also for code that wrongly holds an event loop, and for a process that hangs.
    """
    time.sleep(seconds)


def core_wait(pid: int) -> tuple[float, float]:
    """Return the seconds that the first thread of a process has run, and has waited for a core.

    Both are 0 where the system does not count them, and for a process that has ended.
    """
    with contextlib.suppress(OSError, ValueError):
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(ran) / 1e9, int(waited) / 1e9
    return 0.0, 0.0
