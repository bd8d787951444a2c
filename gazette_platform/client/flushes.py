"""Flushes of journals, also of those at brokers of Gazette's own, which have no call for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from gazette_platform.client.appender import AppendOptions, Content, append
from gazette_platform.client.listing import fragment_page, list_journals
from gazette_platform.client.unary import UnaryCall, UnaryMethod, ask_once
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    GazetteError,
    JournalNotFound,
    Suspended,
    TransportError,
    status_error,
)
from gazette_platform.protocol import (
    AppendSuspend,
    LabelSelector,
    LabelSet,
    Status,
    SuspendLevel,
)
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as pb

if TYPE_CHECKING:
    from gazette_platform.client.transport import Transport

__all__ = ["flush_journal"]

_FLUSH: Final = UnaryMethod(
    path="/gazette_platform.Admin/Flush",
    response=pb.FlushResponse,
    capability=Capability.APPEND,
    needs_primary=True,
)
# How often we look at a journal of a Go broker, which does not report when it has flushed.
_POLL_S = 0.25


async def flush_journal(transport: Transport, journal: str, *, timeout_s: float) -> int:
    """Close the open fragment of a journal, and wait until its store holds all of it.

    Args:
        timeout_s: seconds for all attempts.

    Returns: the offset below which all is in the store.
    Raises: StatusError: the journal cannot be flushed, as it is. TransportError: it was not
        persisted in time, or brokers did not answer.
    Cancellation: the fragment is closed all the same, or will be.
    """
    what = f"flush of {journal}"
    deadline = transport.clock.monotonic() + timeout_s
    patience = transport.patience(timeout_s=timeout_s)
    while True:
        left_s = deadline - transport.clock.monotonic()
        if left_s <= 0:
            raise _late(what, timeout_s)
        try:
            return await _flush_once(transport, journal, what, left_s)
        except CallUnanswered as err:
            raise _late(what, timeout_s) from err
        except CallFailed as err:
            if err.code != "UNIMPLEMENTED":
                raise
            return await _flush_by_suspending(transport, journal, what, left_s)
        except GazetteError as err:
            if not err.retriable:
                raise
            await patience.wait(err)


def _late(what: str, timeout_s: float) -> TransportError:
    return TransportError(
        f"{what}: not all is in the store within {timeout_s:g} s (`gazctl journals store-health` "
        "shows the state of the store, the log of the journal's broker the failure; brokers keep trying)"
    )


async def _flush_once(transport: Transport, journal: str, what: str, timeout_s: float) -> int:
    request = pb.FlushRequest(journal=journal)
    flush = UnaryCall(
        method=_FLUSH, request=request, what=what, journal=journal, timeout_s=timeout_s
    )
    response = await ask_once(transport, flush)
    transport.learn(journal, response.header)
    status = Status.from_wire(response.status)
    if status is not Status.OK:
        raise status_error(status.name, journal=journal)
    return response.end


async def _flush_by_suspending(
    transport: Transport, journal: str, what: str, timeout_s: float
) -> int:
    """Flush a journal of a broker of Gazette's own, which has no call for it.

    Such a broker closes the open fragment when the journal is suspended, so we suspend it and resume it
    at once. A journal that was suspended before stays suspended.
    """
    level = await _suspend_level(transport, journal)
    if level is SuspendLevel.FULL:
        return 0  # it is empty, or all of it is in the store
    end = 0
    if level is SuspendLevel.NONE:
        empty = Content(b"")
        # The answer says that it is suspended, which is what was asked for.
        with contextlib.suppress(Suspended):
            now = AppendOptions(suspend=AppendSuspend.SUSPEND_NOW)
            await append(transport, journal, empty, now)
        resume = AppendOptions(suspend=AppendSuspend.SUSPEND_RESUME)
        end = (await append(transport, journal, empty, resume)).end
    try:
        async with asyncio.timeout(timeout_s):
            return await _persisted(transport, journal, end)
    except TimeoutError as err:
        raise _late(what, timeout_s) from err


async def _suspend_level(transport: Transport, journal: str) -> SuspendLevel:
    selector = LabelSelector(include=LabelSet.of(name=journal))
    for found in await list_journals(transport, selector):
        return found.spec.suspend_level
    raise JournalNotFound(journal=journal)


async def _persisted(transport: Transport, journal: str, end: int) -> int:
    """Look at fragments until all below `end` are in the store; 0: all there are."""
    token = head = 0
    while True:
        page = await fragment_page(transport, journal, next_page_token=token)
        open_at = None
        for listed in page.fragments:
            fragment = listed.fragment
            if not listed.is_persisted and (end == 0 or fragment.begin < end):
                open_at = fragment.begin
                break
            head = max(head, fragment.end)
        if open_at is not None:
            token = open_at
            await asyncio.sleep(_POLL_S)
        elif page.next_page_token:
            token = page.next_page_token
        else:
            return end or head
