"""What a journal needs before it goes on here: the spools of an earlier process, and a healthy store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gazette_platform.errors import GazetteError
from gazette_platform.ops.retry import backoff_s
from gazette_platform.serving.interface import NotNow

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.spool.journal_spool import JournalSpool
    from gazette_platform.broker.spool.recovery import RecoveredTenure
    from gazette_platform.fragment.index import Index
    from gazette_platform.ops.clock import Clock
    from gazette_platform.stores import ActiveStore

_log = logging.getLogger(__name__)

# Seconds after which a replica that waits for the first listing sees that it is to close.
_LISTED_POLL_S = 0.5


class _Replica(Protocol):
    """What is needed of a replica."""

    name: str
    create_revision: int
    is_closed: bool
    index: Index
    spool: JournalSpool


async def adopt(replica: _Replica, context: BrokerContext) -> None:
    """Go on where an earlier process ended, unless the journal went on without it.

    The spool must not be written until that is known. Cancellation: safe.
    """
    async with replica.spool.lock:
        if replica.spool.tenure or (found := await _take(replica, context)) is None:
            return
        if replica.is_closed:
            context.leftovers.add(found)
            return
        _log.info("%s: goes on at %d, where it ended", replica.name, found.end)
        gaps = found.gaps
        await replica.spool.adopt(found)
    if gaps:
        await _tell_lost(replica, gaps, context)


async def _take(replica: _Replica, context: BrokerContext) -> RecoveredTenure | None:
    """Take what the journal may go on with. Asks etcd for as long as we have the journal."""
    failures = 0
    while not replica.is_closed:
        try:
            return await context.leftovers.take(
                replica.name, replica.create_revision, partial(_stored_end, replica)
            )
        except GazetteError as err:
            _log.warning("%s: what was left of its spool waits: %s", replica.name, err)
        await asyncio.sleep(backoff_s(failures))
        failures += 1
    return None


async def _stored_end(replica: _Replica) -> int:
    """Where the store ends, once it was listed. Raises: NotNow: the replica closes."""
    while not replica.index.first_refresh.is_set():
        if replica.is_closed:
            raise NotNow(f"{replica.name}: it leaves this broker")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTED_POLL_S):
                await replica.index.first_refresh.wait()
    return replica.index.summary.end


async def _tell_lost(
    replica: _Replica, gaps: list[tuple[int, int]], context: BrokerContext
) -> None:
    """Log which of the spans that a spool lacks no store has, once that is known."""
    await replica.index.first_refresh.wait()
    for begin, end in gaps:
        if not replica.is_closed and not replica.index.covers(begin, end):
            _log.error(
                "%s: content [%d, %d) is neither in the spool that goes on nor in a store (are files of %s "
                "missing?)",
                replica.name,
                begin,
                end,
                context.config.spool_dir,
            )


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
