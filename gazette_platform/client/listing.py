"""Journals and fragments: listing, watching, applying."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gazette_platform.client.results import (
    FragmentListing,
    FragmentPage,
    JournalListing,
    ListSnapshot,
    StoreHealth,
)
from gazette_platform.client.unary import Repeat, UnaryCall, UnaryMethod, ask, may_repeat
from gazette_platform.client.wire import decoded
from gazette_platform.errors import (
    CallFailed,
    DataError,
    GazetteError,
    TransportError,
    status_error,
)
from gazette_platform.protocol import (
    HISTORY,
    BrokerSpec,
    Fragment,
    Header,
    JournalChange,
    JournalSpec,
    LabelSelector,
    Route,
    Status,
    history_bits,
    validate_apply_response,
    validate_fragments_response,
    validate_health_response,
    validate_list_response,
)
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.serving.interface import RpcFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from gazette_platform.client.transport import Transport
    from gazette_platform.serving.interface import OutgoingCall

__all__ = [
    "apply_changes",
    "apply_request",
    "check_store",
    "fragment_page",
    "list_brokers",
    "list_journals",
    "list_response",
    "refused_stores",
    "watch_journals",
]

_APPLY: Final = UnaryMethod(
    path="/protocol.Journal/Apply",
    response=pb.ApplyResponse,
    capability=Capability.APPLY,
    repeat=Repeat.IF_UNSENT,
    validate=validate_apply_response,
)
_FRAGMENTS: Final = UnaryMethod(
    path="/protocol.Journal/ListFragments",
    response=pb.FragmentsResponse,
    capability=Capability.READ,
    validate=validate_fragments_response,
)
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


async def list_journals(transport: Transport, selector: LabelSelector) -> ListSnapshot:
    """All journals that match, at one revision. Cancellation: safe."""
    patience = transport.patience()
    while True:
        try:
            snapshot = await _list_once(transport, selector)
        except GazetteError as err:
            if not may_repeat(err):
                raise
            await patience.wait(err)
        else:
            for journal in snapshot:
                transport.routes.update(journal.name, journal.route)
            return snapshot


async def _list_once(transport: Transport, selector: LabelSelector) -> ListSnapshot:
    wire = transport.wire()
    call = wire.list(
        pb.ListRequest(selector=selector.to_pb()).SerializeToString(),
        transport.auth.metadata(Capability.LIST, selector),
        timeout_s=transport.config.call_timeout_s,
    )
    messages: list[pb.ListResponse] = []
    try:
        with wire:
            while (raw := await call.next()) is not None:
                messages.append(_decoded(raw, messages))
            history = await _history(call)
    except RpcFailed as err:
        raise transport.failed(err, wire, "", "list of journals") from err
    finally:
        call.cancel()
    return _snapshot(transport, messages, history)


async def watch_journals(
    transport: Transport, selector: LabelSelector
) -> AsyncGenerator[ListSnapshot, None]:
    """The journals that match, now and after every change, for as long as it is iterated.

    Broken watches are resumed at the revision of the last snapshot, so that none is told twice.
    Cancellation: safe; ends the RPC.
    """
    patience = transport.patience()
    last: Header | None = None
    while True:
        request = pb.ListRequest(selector=selector.to_pb(), watch=True)
        if last is not None:
            request.watch_resume.CopyFrom(last.to_pb())
        wire = transport.wire()
        if await wire.connected():
            patience.connected()
        metadata = transport.auth.metadata(Capability.LIST, selector)
        call = wire.list(request.SerializeToString(), metadata)
        messages: list[pb.ListResponse] = []
        error: GazetteError = TransportError("watch of journals: the broker ended the stream")
        try:
            with wire:
                while (raw := await call.next()) is not None:
                    message = _decoded(raw, messages)
                    if messages and _ends_snapshot(message):
                        snapshot = _snapshot(transport, messages, await _history(call))
                        messages = []
                        _require_newer(snapshot.header, last)
                        last = snapshot.header
                        patience.progressed()
                        yield snapshot
                    else:
                        messages.append(message)
        except RpcFailed as err:
            error = transport.failed(err, wire, "", "watch of journals")
            if not may_repeat(error):
                raise error from err
        finally:
            call.cancel()
        await patience.wait(error)


def _decoded(raw: bytes, before: Sequence[pb.ListResponse]) -> pb.ListResponse:
    """The message of a snapshot that comes behind those `before`.

    Each is checked as it comes: a long listing checked at once would hold up the event loop.
    """
    return decoded(pb.ListResponse, raw, partial(validate_list_response, continuation=bool(before)))


def _ends_snapshot(message: pb.ListResponse) -> bool:
    """Whether it is the empty message behind a snapshot of a watch.

    Go writes the header of every response, present though it says nothing.
    """
    return not message.journals and not message.header.etcd.revision and message.status == pb.OK


def _require_newer(header: Header, last: Header | None) -> None:
    if last is not None and header.etcd.revision <= last.etcd.revision:
        raise DataError(
            f"watch of journals: revision {header.etcd.revision} is not above "
            f"the {last.etcd.revision} that the watch resumed at"
        )


async def _history(call: OutgoingCall) -> int:
    """What the broker said, ahead of a listing, of the history of etcd."""
    return history_bits((await call.greeting()).get(HISTORY, ""))


def _snapshot(
    transport: Transport, messages: Sequence[pb.ListResponse], history: int
) -> ListSnapshot:
    if not messages:
        raise DataError("validating broker response: a listing without any message")
    first, *rest = messages
    if first.status != pb.OK:
        raise status_error(Status.from_wire(first.status).name, "list of journals")
    header = transport.learn("", first.header)
    for message in rest:
        if not message.journals:
            raise DataError("validating broker response: an empty continuation of a listing")
    return ListSnapshot(
        tuple(_listing(each, history) for message in messages for each in message.journals), header
    )


def _listing(journal: pb.ListResponse.Journal, history: int) -> JournalListing:
    return JournalListing(
        spec=JournalSpec.from_pb(journal.spec),
        mod_revision=journal.mod_revision,
        create_revision=journal.create_revision,
        route=Route.from_pb(journal.route),
        history=history,
    )


def list_response(snapshot: ListSnapshot) -> pb.ListResponse:
    """The response that `snapshot` came in, as one message."""
    return pb.ListResponse(
        header=snapshot.header.to_pb(),
        journals=[
            pb.ListResponse.Journal(
                spec=journal.spec.to_pb(),
                mod_revision=journal.mod_revision,
                create_revision=journal.create_revision,
                route=journal.route.to_pb(),
            )
            for journal in snapshot
        ],
    )


def apply_request(changes: Sequence[JournalChange]) -> pb.ApplyRequest:
    """The request of one transaction."""
    request = pb.ApplyRequest()
    for change in changes:
        entry = request.changes.add(expect_mod_revision=change.revision)
        if change.spec is not None:
            entry.upsert.CopyFrom(change.spec.to_pb())
        else:
            entry.delete = change.delete
    return request


async def apply_changes(
    transport: Transport, changes: Sequence[JournalChange], *, batch_size: int = 0
) -> int:
    """Create, update and delete journals.

    Args:
        batch_size: changes a transaction; 0 makes all of them in one. Batches before one that fails
            stay applied.

    Returns: revision of etcd after the last transaction.
    Raises: EtcdTransactionFailed: a revision was not as expected; its batch changed nothing.
    """
    size = batch_size or max(1, len(changes))
    revision = 0
    # An empty list of changes is sent too: it validates that the broker is there.
    for begin in range(0, max(1, len(changes)), size):
        revision = await _apply_once(transport, changes[begin : begin + size])
    return revision


async def _apply_once(transport: Transport, changes: Sequence[JournalChange]) -> int:
    def read(response: pb.ApplyResponse) -> int:
        header = transport.learn("", response.header)
        if response.status != pb.OK:
            names = ", ".join(change.name for change in changes[:3])
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise status_error(Status.from_wire(response.status).name, f"applying {names}{more}")
        transport.applied(header.etcd.revision)
        return header.etcd.revision

    apply = UnaryCall(
        method=_APPLY,
        request=apply_request(changes),
        what="apply of journals",
        claim=changes[0].name if len(changes) == 1 else "",
    )
    return await ask(transport, apply, read)


async def fragment_page(
    transport: Transport,
    journal: str,
    *,
    begin_mod_time: int = 0,
    end_mod_time: int = 0,
    next_page_token: int = 0,
    page_limit: int = 0,
    ttl_s: float = 0,
) -> FragmentPage:
    """One page of a journal's fragments; arguments as of `FragmentQuery`."""
    request = pb.FragmentsRequest(
        journal=journal,
        begin_mod_time=begin_mod_time,
        end_mod_time=end_mod_time,
        next_page_token=next_page_token,
        page_limit=page_limit,
    )
    if ttl_s > 0:
        request.signatureTTL.FromMilliseconds(int(ttl_s * 1000))
    fragments = UnaryCall(
        method=_FRAGMENTS,
        request=request,
        what=f"list of fragments of {journal}",
        journal=journal,
    )
    return await ask(transport, fragments, partial(_fragment_page, transport, journal))


def _fragment_page(
    transport: Transport, journal: str, response: pb.FragmentsResponse
) -> FragmentPage:
    header = transport.learn(journal, response.header)
    if response.status != pb.OK:
        raise status_error(Status.from_wire(response.status).name, journal=journal)
    return FragmentPage(
        fragments=tuple(
            FragmentListing(Fragment.from_pb(entry.spec), entry.signed_url)
            for entry in response.fragments
        ),
        next_page_token=response.next_page_token,
        header=header,
    )


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

    Brokers open no connection for it. Of Gazette's own, which have no such call, none is told.

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
