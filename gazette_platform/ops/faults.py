"""Unforeseen errors: contained where they arise, logged, and counted.

The owner of a call, a journal, a store or a key lets an unforeseen error end that one thing, and
reports it here. So a fault in our code costs one answer, and not the process and all that it serves.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_platform.ops.clock import Clock

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
