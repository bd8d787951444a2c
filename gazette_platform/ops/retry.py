"""Back-off between attempts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar, final

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


T = TypeVar("T")

# Gazette's clients use these steps for all retries; ours keep them so that mixed fleets behave alike.
_STEPS_S = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0)

RESTART_STEPS_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before the first, second … restart of a process that ended."""

_STEADY_S: Final = 120.0


def backoff_s(attempt: int, steps_s: Sequence[float] = _STEPS_S) -> float:
    """Seconds to wait before attempt number `attempt`, where the first retry is 0.

    Args:
        attempt: retries so far; negative: do not wait.
        steps_s: seconds before each retry; the last holds for all that follow.

    >>> [backoff_s(n) for n in (-1, 0, 1, 2, 4, 6, 99)]
    [0.0, 0.05, 0.05, 0.1, 1.0, 5.0, 5.0]
    >>> [backoff_s(n, (0.0, 2.0)) for n in (-1, 0, 1, 2)]
    [0.0, 0.0, 2.0, 2.0]
    """
    return steps_s[min(attempt, len(steps_s) - 1)] if attempt >= 0 else 0.0


@final
class Restarts:
    """Counts the restarts of one process, and decides how long to wait before each.

    A process that ran for two minutes begins with the shortest wait again.

    >>> restarts = Restarts((0.0, 2.0))
    >>> [restarts.next_delay_s(ran_s) for ran_s in (1.0, 1.0, 1.0, 300.0)]
    [0.0, 2.0, 2.0, 0.0]

    Args:
        steps_s: seconds before each restart; the last holds for all that follow.

    Attributes:
        count: restarts since it last ran for long.
    """

    def __init__(self, steps_s: Sequence[float] = RESTART_STEPS_S) -> None:
        self._steps_s = steps_s
        self.count = 0

    def next_delay_s(self, ran_s: float) -> float:
        """Return the seconds to wait before the next start of a process that ran for `ran_s` seconds."""
        if ran_s > _STEADY_S:
            self.count = 0
        self.count += 1
        return backoff_s(self.count - 1, self._steps_s)


async def insist(call: Callable[[], Awaitable[T]], *, is_over: Callable[[], bool]) -> T:
    """Call until it succeeds, or fails for good, or is no longer awaited.

    Args:
        is_over: asked after each failure that is retriable: whether that was the last attempt.
    Raises: the error of the last attempt. Cancellation: as `call`.
    """
    attempt = 0
    while True:
        try:
            return await call()
        except GazetteError as err:
            if not err.retriable or is_over():
                raise
        await asyncio.sleep(backoff_s(attempt))
        attempt += 1
