"""Whether a disk is quick enough for an event loop to wait for it."""

from __future__ import annotations

import math
from typing import Final, final

__all__ = ["SLOW_S", "DiskPace"]

SLOW_S: Final = 0.02
"""Seconds. A small write that takes longer makes a disk a slow one."""

_PAUSE_S = 1.0


@final
class DiskPace:
    """Whether the event loop may wait for small writes and reads of spools.

    The page cache takes them in microseconds, less than a hop to a thread costs. But a disk that falls
    behind makes them wait, and those of a few journals would then hold up all else, among it the renewal
    of the lease. So threads make them for a while once one was slow.

    Attributes:
        slow_until: monotonic seconds at which the event loop may wait again; threads may set it.
    """

    def __init__(self) -> None:
        self.slow_until = -math.inf

    def on_slow(self, now: float) -> None:
        """Take note that a small write took more than `SLOW_S`."""
        self.slow_until = now + _PAUSE_S
