"""Tells a machine that is starved from a fault: two clocks that should tick, and when they did not.

A process of its own that does nothing but tick says when it was late: then no process of this
machine can be blamed for being late. A ticker in the event loop of the run says when that loop was:
then its clients are to blame, not the brokers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, final

from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.machine import MachineWatch, Stall, starved_s

if TYPE_CHECKING:
    from gazette_platform.ops.clock import Clock

__all__ = ["Stall", "Watchdog", "starved_s"]

_TICK_S = 0.05
# Python processes on a machine that is merely busy are late by less.
_LATE_S = 0.25


@final
class Watchdog:
    """Watches while it is entered.

    Attributes:
        machine: the process that ticks.
        stalls: so far, of both clocks, in the order in which they ended.
    """

    def __init__(self, clock: Clock) -> None:
        self.machine = MachineWatch()
        self.stalls: list[Stall] = self.machine.stalls
        self._clock = clock
        self._tasks = TaskGroup("watchdog")

    @property
    def pid(self) -> int:
        """The process that ticks; 0 if it does not run."""
        return self.machine.pid

    async def __aenter__(self) -> Self:
        self.machine.__enter__()
        self._tasks.spawn(self._tick(), name="loop")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.machine.__exit__()
        await self._tasks.close()

    async def _tick(self) -> None:
        last = self._clock.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._clock.monotonic()
            if now - last - _TICK_S > _LATE_S:
                self.stalls.append(Stall("clients", last, now))
            last = now
