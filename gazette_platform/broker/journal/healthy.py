"""Waits until the store of a journal's fragments is well, before anything is appended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_platform.ops.clock import Clock
    from gazette_platform.stores import ActiveStore

__all__ = ["wait_healthy"]

# Appends wait for a store that is not well until so many checks of it failed in a row, or it has been so
# for so many seconds, as one that answers nothing. Clients wait 30 s for an answer, and would never be
# get the reason. It is counted from when the store failed: checks of one that is away for long are 100 s apart.
_HEALTH_CHECKS_MAX = 5
_UNHEALTHY_S = 20.0
# A store that is back shall take appends again at once: one that needs it asks for a check, and waits
# for the answer of a store that answers.
_ASKED_S = 0.5


async def wait_healthy(store: ActiveStore, clock: Clock) -> str:
    """Wait until a store is well. Returns: "", or why it stays unhealthy. Cancellation: safe."""
    health = store.health
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(health.since_s + _UNHEALTHY_S - clock.monotonic()):
            while health.error is not None and health.failures <= _HEALTH_CHECKS_MAX:
                health = await store.wait_health_change(health)
    if health.error is not None and store.ask_check():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ASKED_S):
                health = await store.wait_health_change(health)
    return "" if health.error is None else f"fragment store {store.url} unhealthy: {health.error}"
