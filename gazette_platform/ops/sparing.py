"""Logs what others can make happen at any rate: a few lines a minute, and how many more there were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.ops.clock import Clock

__all__ = ["LINES_MAX", "PERIOD_S", "SparingLog"]

LINES_MAX: Final = 10
"""Lines that are logged of a period."""

PERIOD_S: Final = 60.0


@final
class SparingLog:
    """Passes texts on, up to `LINES_MAX` in each `PERIOD_S`. Of further ones it tells the number later.

    Args:
        write: logs a text.
        clock: tells the time.
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
