"""Unforeseen errors: contained where they arise, logged, and counted; and back-off between attempts.

The owner of a call, a journal, a store or a key lets an unforeseen error end that one thing, and
reports it here. So a fault in our code costs one answer, and not the process and all that it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar, final

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from gazette_platform.ops.clock import Clock


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


_log = logging.getLogger(__name__)

# Few, because each error keeps its traceback, and with it all that the frames refer to.
_RECENT_MAX = 8


@final
class Faults:
    """Where the parts of one process report what they did not foresee.

    Args:
        count: called with each: the kind of thing that it ended, such as ``call`` or ``journal``.

    Attributes:
        reported: how many there were.
        recent: the latest of them, the last one last.
    """

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        self._count = count
        self.reported = 0
        self.recent: deque[BaseException] = deque(maxlen=_RECENT_MAX)

    @property
    def last(self) -> BaseException | None:
        """The latest of them; None without any."""
        return self.recent[-1] if self.recent else None

    def report(self, kind: str, what: str, error: BaseException) -> None:
        """Log an error with its traceback, and count it.

        Args:
            kind: of few: a label of a metric.
            what: names the thing, and what becomes of it.
        """
        self.reported += 1
        self.recent.append(error)
        self._count(kind)
        _log.error("%s: unforeseen %s: %s", what, type(error).__name__, error, exc_info=error)

    @contextlib.contextmanager
    def contained(self, kind: str, what: str) -> Iterator[None]:
        """Report what the block raises, and continue after it. Cancellation passes through."""
        try:
            yield
        except Exception as err:  # noqa: BLE001  this is the one place for it
            self.report(kind, what, err)


LINES_MAX: Final = 10
"""Lines that are logged of a period."""

PERIOD_S: Final = 60.0


@final
class SparingLog:
    """Passes texts on, up to `LINES_MAX` in each `PERIOD_S`. Of further ones it logs the number later.

    Args:
        write: logs a text.
        clock: gives the time.
    """

    def __init__(self, write: Callable[[str], None], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self._ends_s = clock.monotonic() + PERIOD_S
        self._count = 0

    def __call__(self, text: str) -> None:
        """Log a text, or count it."""
        now_s = self._clock.monotonic()
        if now_s >= self._ends_s:
            if self._count > LINES_MAX:
                self._write(f"{self._count - LINES_MAX} more were not logged before")
            self._ends_s, self._count = now_s + PERIOD_S, 0
        self._count += 1
        if self._count <= LINES_MAX:
            self._write(text)
        elif self._count == LINES_MAX + 1:
            self._write(f"more like these are not logged for {self._ends_s - now_s:.0f} s")
