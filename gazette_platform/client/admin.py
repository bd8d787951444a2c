"""Upkeep of journals and brokers: flush, reset of a write head, checks of stores, members of the cluster.

These are calls of `gazette_platform.Admin`. Where Gazette's own brokers have no such call, a flush
suspends and resumes the journal instead, and lists of brokers are empty.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from gazette_platform.client.journals import fragment_page, list_journals
from gazette_platform.client.results import AwaitedBroker, HeadState, StoreHealth
from gazette_platform.client.transport import Repeat, UnaryCall, UnaryMethod, ask, ask_once
from gazette_platform.client.write.append import AppendOptions, Content, append
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    GazetteError,
    JournalNotFound,
    SpoolsAwaited,
    Suspended,
    TransportError,
    status_error,
)
from gazette_platform.protocol import (
    AppendSuspend,
    BrokerSpec,
    LabelSelector,
    LabelSet,
    ProcessId,
    Status,
    SuspendLevel,
    validate_health_response,
)
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.client.transport import Transport

_FLUSH: Final = UnaryMethod(
    path="/gazette_platform.Admin/Flush",
    response=admin_pb.FlushResponse,
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
    request = admin_pb.FlushRequest(journal=journal)
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


# ------------------------------------------------------------------ reset of a write head

_RESET_HEAD: Final = UnaryMethod(
    path="/gazette_platform.Admin/ResetHead",
    response=admin_pb.ResetHeadResponse,
    capability=Capability.APPLY,  # it may give up content that was acknowledged to others
    repeat=Repeat.IF_RETRIABLE,
    needs_primary=True,
)


async def reset_head(
    transport: Transport, journal: str, *, dry_run: bool = False, give_up: bool = False
) -> HeadState:
    """Let appends go on, unless brokers are awaited; see `AsyncClient.reset_head`.

    Args:
        dry_run: only report the state.
        give_up: do it even if brokers are awaited.

    Returns: how it was before, and the head of now.
    Raises: CallFailed: UNIMPLEMENTED: a broker of Gazette's own. StatusError, TransportError.
    Cancellation: leaves open whether it was done.
    """
    request = admin_pb.ResetHeadRequest(
        journal=journal,
        min_etcd_revision=transport.min_revision(),
        dry_run=dry_run,
        give_up=give_up,
    )

    def read(response: admin_pb.ResetHeadResponse) -> HeadState:
        transport.learn(journal, response.header)
        status = Status.from_wire(response.status)
        if status is not Status.OK:
            raise status_error(status.name, response.store_health_error, journal=journal)
        awaited = (
            AwaitedBroker(ProcessId.from_pb(one.id).name, one.is_running)
            for one in response.awaited
        )
        return HeadState(response.head, response.was_refused, tuple(awaited))

    reset = UnaryCall(
        method=_RESET_HEAD, request=request, what=f"reset of the head of {journal}", journal=journal
    )
    return await ask(transport, reset, read)


def awaiting(journal: str, state: HeadState) -> SpoolsAwaited:
    """The error of a reset that would give up content."""
    who = ", ".join(one.name for one in state.awaited)
    return SpoolsAwaited(
        f"{journal}: content from {state.head} on that only spools of {who} hold would be given up "
        "(start one of these with its spool; or, if they are lost, give it up: with give_up, or "
        "`gazctl journals reset-head --yes`)"
    )


# ------------------------------------------------------------------ stores and brokers

_STORE_HEALTH: Final = UnaryMethod(
    path="/protocol.Journal/FragmentStoreHealth",
    response=pb.FragmentStoreHealthResponse,
    # Who may apply a journal may check a store that none names yet.
    capability=Capability.READ | Capability.APPLY,
    validate=validate_health_response,
)
_CHECK_STORES: Final = UnaryMethod(
    path="/gazette_platform.Admin/CheckStores",
    response=admin_pb.CheckStoresResponse,
    capability=Capability.APPLY,
)
_LIST_BROKERS: Final = UnaryMethod(
    path="/gazette_platform.Admin/ListBrokers",
    response=admin_pb.ListBrokersResponse,
    capability=Capability.APPLY,
)
# As many as brokers take in one call.
_STORES_AT_A_TIME: Final = 256


async def check_store(
    transport: Transport, store: str, *, check_delete_prefix: str | None = None
) -> StoreHealth:
    """Ask a broker whether it can use a fragment store; see `AsyncClient.store_health`."""
    request = pb.FragmentStoreHealthRequest(
        fragment_store=store,
        check_delete=check_delete_prefix is not None,
        check_delete_prefix=check_delete_prefix or "",
    )

    def read(response: pb.FragmentStoreHealthResponse) -> StoreHealth:
        transport.was_connected = True
        if response.status not in (pb.OK, pb.FRAGMENT_STORE_UNHEALTHY):
            raise status_error(Status.from_wire(response.status).name, store)
        return StoreHealth(store, response.status == pb.OK, response.store_health_error)

    check = UnaryCall(
        method=_STORE_HEALTH,
        request=request,
        what=f"health check of {store}",
        # A first check and the probes have a minute each at the broker.
        timeout_s=max(transport.config.call_timeout_s, 180.0),
    )
    return await ask(transport, check, read)


async def refused_stores(transport: Transport, stores: Sequence[str]) -> dict[str, str]:
    """Fragment stores that no journal can be kept in, however long one waits, each with the reason.

    Brokers open no connection for it. Gazette's own have no such call, so they add none.

    Cancellation: safe.
    """
    refused: dict[str, str] = {}
    for begin in range(0, len(stores), _STORES_AT_A_TIME):
        some = stores[begin : begin + _STORES_AT_A_TIME]
        check = UnaryCall(
            method=_CHECK_STORES,
            request=admin_pb.CheckStoresRequest(stores=some),
            what="check of fragment stores",
        )
        try:
            refused |= await ask(transport, check, partial(_refused, transport))
        except CallFailed as err:
            if err.code != "UNIMPLEMENTED":
                raise
            return {}
    return refused


def _refused(transport: Transport, response: admin_pb.CheckStoresResponse) -> dict[str, str]:
    transport.learn("", response.header)
    return {one.store: one.reason for one in response.refused}


async def list_brokers(transport: Transport) -> tuple[BrokerSpec, ...]:
    """Ask a broker for the members of its cluster.

    Returns: none for brokers of Gazette's own, which have no such call.
    Cancellation: safe.
    """
    members = UnaryCall(
        method=_LIST_BROKERS, request=admin_pb.ListBrokersRequest(), what="list of brokers"
    )
    try:
        return await ask(transport, members, partial(_brokers, transport))
    except CallFailed as err:
        if err.code != "UNIMPLEMENTED":
            raise
        return ()


def _brokers(
    transport: Transport, response: admin_pb.ListBrokersResponse
) -> tuple[BrokerSpec, ...]:
    transport.learn("", response.header)
    return tuple(BrokerSpec.from_pb(one) for one in response.brokers)
