"""What a journal does by the clock: close its fragments, and list its stores."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, final

from gazette_platform.ops.durations import SECOND_NS

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup

__all__ = ["FLUSH_RETRY_S", "FlushTimer", "RefreshTimer"]


# Flush windows end at multiples of the interval, so at the same time for all journals, as in Gazette.
# Spreading the ends keeps thousands of fragments from being persisted at the same instant.
_FLUSH_JITTER_S = 2.0

FLUSH_RETRY_S: Final = 0.25

_MISSED_PAUSE_S: Final = 5.0
"""Seconds until we look again at a window that ended while appends were under way. They may close its
fragment by themselves."""


@final
class FlushTimer:
    """Fires at the end of the flush window of one journal's open fragment.

    Args:
        flush: closes that fragment. Returns whether that is settled; if not, it is called again
            shortly.

    Attributes:
        interval_ns: length of the window; 0: there is none.
        is_set: whether it is going to fire.
    """

    def __init__(
        self, flush: Callable[[], bool], *, interval_ns: int, clock: Clock, rng: random.Random
    ) -> None:
        self._flush = flush
        self._clock = clock
        self._rng = rng
        self._handle: asyncio.TimerHandle | None = None
        self.interval_ns = interval_ns
        self.is_set = False

    @property
    def due_in_s(self) -> float | None:
        """Seconds until it fires; None: it does not."""
        return _due_in_s(self._handle)

    def set(self, first_append_at: datetime | None) -> None:
        """Fire once the window ends in which the open fragment was begun.

        Args:
            first_append_at: when it was begun; None: it is empty.
        """
        self.stop()
        if self.interval_ns <= 0 or first_append_at is None:
            return
        interval_s = self.interval_ns / SECOND_NS
        ends_at_s = (first_append_at.timestamp() // interval_s + 1) * interval_s
        left_s = max(0.0, ends_at_s - self._clock.now().timestamp())
        self._set(left_s + self._rng.uniform(0, _FLUSH_JITTER_S))

    def stop(self) -> None:
        """Do not fire any more."""
        self.is_set = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self, delay_s: float) -> None:
        self.is_set = True
        self._handle = asyncio.get_running_loop().call_later(delay_s, self.fire)

    def fire(self) -> None:
        """Close the fragment now, or try again shortly."""
        self.stop()
        if not self._flush():
            self._set(FLUSH_RETRY_S)


@final
class RefreshTimer:
    """Has the stores of one journal listed, one listing after the other.

    Args:
        refresh: lists them. Returns the seconds until the next listing; None: there is none.
    """

    def __init__(
        self, journal: str, refresh: Callable[[], Awaitable[float | None]], *, tasks: TaskGroup
    ) -> None:
        self._journal = journal
        self._refresh = refresh
        self._tasks = tasks
        self._handle: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._missed_at = -math.inf

    @property
    def due_in_s(self) -> float | None:
        """Seconds until it fires; None: it does not."""
        return _due_in_s(self._handle)

    def soon(self, delay_s: float = 0.0) -> None:
        """List them in `delay_s` seconds instead of when the next listing was due."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if not self._is_stopped:
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def missed(self) -> None:
        """List them now, unless that was asked for just now.

        A listing that names what is gone must not make each read of it a request that costs money.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._missed_at + _MISSED_PAUSE_S:
            self._missed_at = now_s
            self.soon()

    def stop(self) -> None:
        """Start no more listings. One that is under way ends by itself."""
        self._is_stopped = True
        self.soon()

    def _fire(self) -> None:
        self._handle = None
        if not self._is_stopped:
            self._tasks.spawn(self.run(), name=f"refresh {self._journal}")

    async def run(self) -> None:
        """List them now. Cancellation: safe."""
        delay_s = await self._refresh()
        if delay_s is not None:
            self.soon(delay_s)


def _due_in_s(handle: asyncio.TimerHandle | None) -> float | None:
    return None if handle is None else handle.when() - asyncio.get_running_loop().time()
