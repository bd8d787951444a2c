"""Back-off between attempts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["backoff_s", "insist"]

T = TypeVar("T")

# Gazette's clients use these steps for all retries; ours keep them so that mixed fleets behave alike.
_STEPS_S = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0)


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


async def insist(call: Callable[[], Awaitable[T]], *, is_over: Callable[[], bool]) -> T:
    """Call until it succeeds, or fails for good, or nobody waits any more.

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
