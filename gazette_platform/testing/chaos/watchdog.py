"""Tells a machine that is starved from a fault: two clocks that should tick, and when they did not.

A process of its own that does nothing but tick says when it was late: then no process of this
machine can be blamed for being late. A ticker in the event loop of the run says when that loop was:
then its clients are to blame, not the brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.ops.clock import Clock

__all__ = ["Stall", "Watchdog", "starved_s"]

_TICK_S = 0.05
# Python processes on a machine that is merely busy are late by less.
_LATE_S = 0.25

_TICKER = """
import os, sys, time
tick, late = float(sys.argv[1]), float(sys.argv[2])
last, parent = time.monotonic(), os.getppid()
while os.getppid() == parent:
    time.sleep(tick)
    now = time.monotonic()
    if now - last - tick > late:
        print(last, now, flush=True)
    last = now
"""


@dataclass(frozen=True, slots=True)
class Stall:
    """A span in which nothing ran that should have."""

    who: str
    """``machine``, or ``clients``: the event loop of the run."""
    begin: float
    """Monotonic seconds."""
    end: float

    @property
    def length_s(self) -> float:
        """Seconds."""
        return self.end - self.begin


@final
class Watchdog:
    """Watches while it is entered.

    Attributes:
        stalls: so far, in the order in which they ended.
    """

    def __init__(self, clock: Clock) -> None:
        self.stalls: list[Stall] = []
        self._clock = clock
        self._tasks = TaskGroup("watchdog")
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process that ticks; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _TICKER,
            str(_TICK_S),
            str(_LATE_S),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        self._tasks.spawn(self._listen(self._process), name="process")
        self._tasks.spawn(self._tick(), name="loop")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self._tasks.close()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            begin, end = map(float, line.split())
            self.stalls.append(Stall("machine", begin, end))

    async def _tick(self) -> None:
        last = self._clock.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._clock.monotonic()
            if now - last - _TICK_S > _LATE_S:
                self.stalls.append(Stall("clients", last, now))
            last = now


def starved_s(stalls: Iterable[Stall], begin: float, end: float) -> float:
    """Seconds within a span in which the machine or the clients stalled, each counted once."""
    overlapping = (s for s in stalls if s.end > begin and s.begin < end)
    spans = sorted((max(s.begin, begin), min(s.end, end)) for s in overlapping)
    total, at = 0.0, begin
    for first, last in spans:
        if last > at:
            total += last - max(first, at)
            at = last
    return total
