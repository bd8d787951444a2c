"""Closed loops: a number of workers, each with one call under way at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.figures import percentile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from gazette_platform.ops.clock import Clock

__all__ = ["Load", "closed_loop", "together"]


@dataclass(frozen=True, slots=True)
class Load:
    """What a closed loop got done."""

    elapsed_s: float
    """From the first call's begin to the last one's end."""
    latencies_s: list[float]
    """Of each call, in order of their ends."""

    @property
    def per_s(self) -> float:
        """Calls a second."""
        return len(self.latencies_s) / self.elapsed_s

    def latency_ms(self, share: float) -> float:
        """Percentile of the latencies."""
        return percentile(self.latencies_s, share) * 1e3


async def together(worker: Callable[[], Coroutine[None, None, None]], count: int) -> None:
    """Run `count` of a worker until all are done.

    Raises: the first error of one; the others are cancelled then.
    """
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(count):
                workers.create_task(worker())
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


async def closed_loop(
    work: Callable[[], Awaitable[object]], clock: Clock, *, concurrency: int, window_s: float
) -> Load:
    """Call `work` from `concurrency` workers until `window_s` seconds are over.

    Each worker makes one call at least, and ends the one that is under way at the end.

    Raises: what `work` raises; the other workers are cancelled then.
    """
    latencies: list[float] = []
    begun = clock.monotonic()
    deadline = begun + window_s

    async def worker() -> None:
        while True:
            at = clock.monotonic()
            await work()
            now = clock.monotonic()
            latencies.append(now - at)
            if now >= deadline:
                return

    await together(worker, concurrency)
    return Load(clock.monotonic() - begun, latencies)
