"""Waits until other brokers have taken the journals of one that leaves."""

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

# Seconds between two lines of the log that say what a drain waits for.
_REPORT_S = 10.0

_POLL_S = 0.1

# Seconds to wait for journals that others hand over to us. They come in less than one, unless
# something holds them up.
_AWAITED_S = 5.0

# Seconds for our mirror of etcd to show what was written there.
_MIRROR_S = 15.0


def deadline(clock: Clock, lease: Lease, timeout_s: float | None) -> Callable[[], bool]:
    """A function that tells whether `timeout_s` have passed, or our lease has ended with all our keys."""
    began = clock.monotonic()

    def is_over() -> bool:
        is_late = timeout_s is not None and clock.monotonic() - began >= timeout_s
        return is_late or lease.remaining_s <= 0

    return is_over


async def say_leaving(
    context: BrokerContext, announcement: Announcement, lease: Lease, *, timeout_s: float | None
) -> None:
    """Say in etcd that we leave; try as often as it takes.

    We alone know the registers of a journal without other replicas. Another broker gets them only by
    taking over while we still serve. A broker that is alone in its cluster tries only once.

    Args:
        timeout_s: seconds; None: for as long as we are a member.

    Raises: EtcdError: etcd has failed all that time.
    Cancellation: leaves open whether it was said.
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
    """Wait until no journal is assigned to us, or until nobody can take them and time is up.

    The wait also ends with our lease: nobody takes over from a broker that is no member any more, and
    etcd may be away.

    When all brokers leave at once, the last ones wait for the journals of the others to come to them.
    If they left sooner, nobody would be there to say where those journals end.

    Args:
        allocating: a task that ends once we are no member any more.
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
