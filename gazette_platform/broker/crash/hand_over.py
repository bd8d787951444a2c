"""Waits until other brokers have taken the journals of one that leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_platform.allocator import member

if TYPE_CHECKING:
    import asyncio

    from gazette_platform.allocator import Allocator, Announcement
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.etcd import Lease

__all__ = ["say_leaving", "wait_handed_over"]

_WORDS: Final = member.Words("journals", "broker", "persisting", "broker.drain-timeout")


async def say_leaving(
    context: BrokerContext, announcement: Announcement, lease: Lease, *, timeout_s: float | None
) -> None:
    """Say in etcd that we leave; see `member.say_leaving`, whose errors and cancellation it has."""
    await member.say_leaving(
        context.space, announcement, lease, clock=context.clock, timeout_s=timeout_s
    )


async def wait_handed_over(
    context: BrokerContext,
    allocator: Allocator,
    allocating: asyncio.Task[None],
    lease: Lease,
    *,
    timeout_s: float | None,
) -> None:
    """Wait until no journal is assigned to us; see `member.wait_handed_over`. Cancellation: safe."""
    await member.wait_handed_over(
        context.space,
        allocator,
        allocating,
        lease,
        clock=context.clock,
        timeout_s=timeout_s,
        words=_WORDS,
    )
