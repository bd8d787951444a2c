"""Waits until a broker knows all that a journal holds, before it gives a reader the journal's end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gazette_platform.broker.journal.gaps import KNOWN_WAIT_S
from gazette_platform.serving.interface import ASK_ANOTHER, NotNow

if TYPE_CHECKING:
    from gazette_platform.broker.journal.replica import Replica

__all__ = ["check_fence", "wait_known", "wait_synced"]


# Seconds that a reader waits for a new primary to know a head no older than one it saw before.
_SYNC_WAIT_S = 1.0


async def wait_synced(replica: Replica) -> None:
    """Wait a moment for a new primary to hear from its replicas, which may know of more than it does.

    It waits no longer than that, because what it has can be read even while a replica is away.
    Code that reports the journal's end has to call `wait_known` first.

    Cancellation: safe.
    """
    if replica.is_primary and _is_to_sync(replica):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_WAIT_S):
                await _wait_synced(replica)


async def wait_known(replica: Replica, *, timeout_s: float, offset: int = -1) -> bool:
    """Wait until a primary has synced its replicas, us among them, and stores have what precedes ours.

    Before that, a read could end below content that was acknowledged, as if there were no more. That
    goes for a new replica, too: while the journal has no primary, reads cannot be forwarded.

    Args:
        timeout_s: seconds; 0: `KNOWN_WAIT_S`.
        offset: where a read goes on as soon as there is content, whatever else is not known; -1: nowhere.

    Returns: False: there is content at `offset`, and the rest may not be known yet.
    Raises: RpcFailed: UNAVAILABLE: it is not so yet, and the caller is to ask again; or we may not
        speak for the journal any more.
    Cancellation: safe.
    """
    index = replica.index

    def is_known() -> bool:
        if _is_to_sync(replica) or not index.first_refresh.is_set():
            return False
        # A read that continues after what is missing there does not need it: our spool has seen all since.
        return not replica.is_filling or offset >= replica.hole.end

    def look() -> None:
        index.wake()

    replica.watchers.add(look)
    try:
        async with asyncio.timeout(timeout_s or KNOWN_WAIT_S):
            while not is_known():
                if offset >= 0 and index.covers(offset, offset + 1):
                    return False
                if not await index.wait_change():
                    return True
    except TimeoutError as err:
        if _is_to_sync(replica):
            what = replica.awaiting or "its primary is new, and has not heard from all replicas yet"
        elif not index.first_refresh.is_set():
            what = "its stores are not listed yet (`gazctl journals store-health` says why)"
        elif replica.hole.end > replica.noted_head:
            what = f"another broker has content before {replica.hole.end} that is not stored yet"
        else:
            # The gap lies below the head that the spec notes. Maybe no broker has content to store
            # there: a journal that was suspended while it was empty looks the same.
            what = ""
        if what:
            raise NotNow(f"{replica.name}: {what}") from err
    finally:
        replica.watchers.discard(look)
    check_fence(replica)
    return True


def check_fence(replica: Replica) -> None:
    """Refuse to report where a journal ends if other brokers may have taken over, and acknowledged more.

    Raises: RpcFailed: UNAVAILABLE: we may not speak for the journal any more.
    """
    if replica.refusal:
        raise NotNow(f"{replica.name}: {replica.refusal}", ASK_ANOTHER)


def _is_to_sync(replica: Replica) -> bool:
    # A lone one, too: content may be in a spool of a broker that is away, or be about to be found here.
    return not replica.is_synced and not replica.is_closed


async def _wait_synced(replica: Replica) -> None:
    changed = asyncio.Event()
    replica.watchers.add(changed.set)
    try:
        while _is_to_sync(replica):
            changed.clear()
            await changed.wait()
    finally:
        replica.watchers.discard(changed.set)
