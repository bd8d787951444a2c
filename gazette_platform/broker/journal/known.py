"""How a broker comes to know all that a journal holds, before it tells where that ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gazette_platform.broker.journal.gaps import KNOWN_WAIT_S
from gazette_platform.broker.wire.interface import NotNow
from gazette_platform.client.wire import ASK_ANOTHER

if TYPE_CHECKING:
    from gazette_platform.broker.journal.replica import Replica

__all__ = ["check_fence", "wait_known", "wait_synced"]


# Seconds that a reader waits for a head which is not older than the one that it may have been told.
_SYNC_WAIT_S = 1.0


async def wait_synced(replica: Replica) -> None:
    """Wait a moment for a new primary to hear from its replicas: it may know of less than they tell.

    No longer: what it has can be read while a replica is away. An end is told by `wait_known` alone.

    Cancellation: safe.
    """
    if _is_to_sync(replica):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_WAIT_S):
                await _wait_synced(replica)


async def wait_known(replica: Replica, *, timeout_s: float) -> None:
    """Wait until a primary has synced with its replicas, and the stores hold what precedes it.

    Else a read would end before content that was acknowledged, as if there were no more.

    Raises: RpcFailed: UNAVAILABLE: that is still not so after a while: ask again; or we may not speak
        for the journal any more.
    Cancellation: safe.
    """
    index = replica.index
    try:
        async with asyncio.timeout(timeout_s or KNOWN_WAIT_S):
            await _wait_synced(replica)
            while not index.first_refresh.is_set() or replica.is_filling:
                if not await index.wait_change():
                    return
    except TimeoutError as err:
        if _is_to_sync(replica):
            what = "its primary is new, and has not heard from all replicas yet"
        elif not index.first_refresh.is_set():
            what = "its stores are not listed yet (`gazctl journals store-health` tells why)"
        elif replica.hole_end > replica.noted_head:
            what = f"another broker has content before {replica.hole_end} that is not stored yet"
        else:
            # Nobody may be about to store what precedes a head that was noted: a journal that was
            # suspended while it was empty looks the same.
            what = ""
        if what:
            raise NotNow(f"{replica.name}: {what}") from err
    check_fence(replica)


def check_fence(replica: Replica) -> None:
    """Call before an end is told: others may have taken over, and acknowledged more.

    Raises: RpcFailed: UNAVAILABLE: we may not speak for the journal any more.
    """
    if replica.refusal:
        raise NotNow(f"{replica.name}: {replica.refusal}", ASK_ANOTHER)


def _is_to_sync(replica: Replica) -> bool:
    # A lone one has nobody to hear from: it need not wait until its route is told.
    is_new = not replica.is_synced and len(replica.route.members) > 1
    return replica.is_primary and is_new and not replica.is_closed


async def _wait_synced(replica: Replica) -> None:
    changed = asyncio.Event()
    replica.watchers.add(changed.set)
    try:
        while _is_to_sync(replica):
            changed.clear()
            await changed.wait()
    finally:
        replica.watchers.discard(changed.set)
