"""Waits until others have taken the journals of a broker that leaves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_platform.allocator import Allocator
    from gazette_platform.broker.context import BrokerContext

__all__ = ["wait_handed_over"]

_log = logging.getLogger(__name__)

# How often a drain says what it waits for.
_REPORT_S = 10.0

_POLL_S = 0.1

# What others hand over comes in less than a second, or something holds it up.
_AWAITED_S = 5.0


async def wait_handed_over(
    context: BrokerContext,
    allocator: Allocator,
    allocating: asyncio.Task[None],
    *,
    timeout_s: float | None,
) -> None:
    """Wait until no journal is assigned to us, or nobody can take them and time is up.

    Of brokers that all leave, those that keep journals to the last wait for what the others have: it
    comes to them, and who left before could not say where it ends.

    Args: allocating: it ends when we are no member any more. timeout_s: seconds; None: for ever.
    Cancellation: safe.
    """
    clock = context.clock
    began = reported = clock.monotonic()
    while not allocating.done():
        status = allocator.drain_status()
        if status.assigned == 0:
            return
        now = clock.monotonic()
        is_awaited = status.is_awaited and now - began < _AWAITED_S
        is_last = not status.can_complete and not is_awaited
        is_late = timeout_s is not None and (is_last or now - began > timeout_s)
        # Whoever waits for others to take over has to have others.
        if is_late or len(context.space.state.members) == 1:
            _log.info(
                "no broker can take over %d journals; persisting and leaving", status.assigned
            )
            return
        if now - reported >= _REPORT_S:
            reported = now
            _log.warning(
                "draining: %d journals are still assigned to this broker, and %s",
                status.assigned,
                "others are taking over"
                if status.can_complete
                else "no other broker has room (start one, or set --broker.drain-timeout)",
            )
        await asyncio.sleep(_POLL_S)
