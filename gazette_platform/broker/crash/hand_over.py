"""Waits until others have taken the journals of a broker that leaves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gazette_platform.ops.retry import insist

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.allocator import Allocator, Announcement
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.etcd import Lease
    from gazette_platform.ops.clock import Clock

__all__ = ["deadline", "say_leaving", "wait_handed_over"]

_log = logging.getLogger(__name__)

# How often a drain says what it waits for.
_REPORT_S = 10.0

_POLL_S = 0.1

# What others hand over comes in less than a second, or something holds it up.
_AWAITED_S = 5.0

# For our mirror of etcd to show what was written there.
_MIRROR_S = 15.0


def deadline(clock: Clock, lease: Lease, timeout_s: float | None) -> Callable[[], bool]:
    """Tells whether `timeout_s` have passed or our lease has ended, and with it all our keys."""
    began = clock.monotonic()

    def is_over() -> bool:
        is_late = timeout_s is not None and clock.monotonic() - began >= timeout_s
        return is_late or lease.remaining_s <= 0

    return is_over


async def say_leaving(
    context: BrokerContext, announcement: Announcement, lease: Lease, *, timeout_s: float | None
) -> None:
    """Say in etcd that we leave, as often as it takes.

    The registers of a journal without another replica are known to us alone: others get them only by
    taking over while we still serve. A broker that is alone in its cluster tries only once.

    Args:
        timeout_s: seconds; None: for as long as we are a member.

    Raises: EtcdError: etcd has failed for so long. Cancellation: leaves open whether it was said.
    """
    is_late = deadline(context.clock, lease, timeout_s)

    def is_over() -> bool:
        return is_late() or len(context.space.state.members) == 1

    await insist(announcement.set_exiting, is_over=is_over)
    # We look at our mirror of etcd to see who can take over, so it has to show that we are leaving.
    await context.space.wait_for_revision(announcement.revision, timeout_s=_MIRROR_S)


async def wait_handed_over(
    context: BrokerContext,
    allocator: Allocator,
    allocating: asyncio.Task[None],
    lease: Lease,
    *,
    timeout_s: float | None,
) -> None:
    """Wait until no journal is assigned to us, or nobody can take them and time is up.

    It also ends with our lease: nobody takes over from a broker that is no member any more, and etcd
    may be away.

    When all brokers leave at once, the last ones wait for the journals of the others, which come to
    them: a broker that had left earlier could not say where those journals end.

    Args:
        allocating: ends when we are no member any more.
        timeout_s: seconds; None: for ever.

    Cancellation: safe.
    """
    clock = context.clock
    began = reported = clock.monotonic()
    while not allocating.done():
        status = allocator.drain_status()
        if status.assigned == 0:
            return
        if lease.remaining_s <= 0:
            _log.error(
                "the lease of this broker has run out with %d journals assigned to it; persisting "
                "and leaving",
                status.assigned,
            )
            return
        now = clock.monotonic()
        is_awaited = status.is_awaited and now - began < _AWAITED_S
        is_last = not status.can_complete and not is_awaited
        is_late = timeout_s is not None and (is_last or now - began > timeout_s)
        # The only member has nobody to wait for.
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
