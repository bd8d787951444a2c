"""List, watch and apply journals, list their fragments, and keep savepoints (named offsets of journals).

A listing is one revision of etcd. A watch that breaks resumes at the revision of its last snapshot.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from gazette_platform.client.results import (
    FragmentListing,
    FragmentPage,
    JournalListing,
    ListSnapshot,
    Savepoint,
)
from gazette_platform.client.transport import Repeat, UnaryCall, UnaryMethod, ask, may_repeat
from gazette_platform.client.wire import decoded
from gazette_platform.errors import (
    CallFailed,
    DataError,
    GazetteError,
    SavepointExists,
    SavepointNotFound,
    TransportError,
    status_error,
)
from gazette_platform.protocol import (
    HISTORY,
    Fragment,
    Header,
    JournalChange,
    JournalSpec,
    LabelSelector,
    Route,
    Status,
    created_list,
    created_map,
    history_bits,
    strip_meta,
    validate_apply_response,
    validate_fragments_response,
    validate_list_response,
)
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, protocol_pb2 as pb
from gazette_platform.serving.interface import RpcFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from google.protobuf.message import Message

    from gazette_platform.client.transport import Transport
    from gazette_platform.serving.interface import OutgoingCall

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

    Broken watches are resumed at the revision of the last snapshot, so that none is reported twice.
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
    """The message of a snapshot that follows those `before`.

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
    # An empty list of changes is sent too: it validates that the broker answers.
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


# ------------------------------------------------------------------ savepoints

M = TypeVar("M", bound="Message")

_PUT: Final = UnaryMethod(
    path="/gazette_platform.Admin/PutSavepoint",
    response=admin_pb.PutSavepointResponse,
    capability=Capability.APPLY,
    repeat=Repeat.IF_UNSENT,
)
_GET: Final = UnaryMethod(
    path="/gazette_platform.Admin/GetSavepoint",
    response=admin_pb.GetSavepointResponse,
    capability=Capability.LIST,
)
_LIST: Final = UnaryMethod(
    path="/gazette_platform.Admin/ListSavepoints",
    response=admin_pb.ListSavepointsResponse,
    capability=Capability.LIST,
)
_DELETE: Final = UnaryMethod(
    path="/gazette_platform.Admin/DeleteSavepoint",
    response=admin_pb.DeleteSavepointResponse,
    capability=Capability.APPLY,
    repeat=Repeat.IF_UNSENT,
)


async def put_savepoint(
    transport: Transport,
    name: str,
    offsets: Mapping[str, int],
    created: Mapping[str, int],
    *,
    replace: bool,
) -> Savepoint:
    """Store a savepoint.

    Args:
        created: of journals of `offsets`, as listings have it. The broker adds the others as of now.

    Raises: SavepointExists. Cancellation: may be stored or not.
    """
    listed = created_list(offsets, created)
    savepoint = admin_pb.Savepoint(name=name, offsets=dict(offsets), created=listed)
    request = admin_pb.PutSavepointRequest(savepoint=savepoint, replace=replace)
    return _savepoint((await _ask(transport, _PUT, request)).savepoint)


async def get_savepoint(transport: Transport, name: str) -> Savepoint:
    """A savepoint. Raises: SavepointNotFound. Cancellation: safe."""
    request = admin_pb.GetSavepointRequest(name=name)
    return _savepoint((await _ask(transport, _GET, request)).savepoint)


class SavedPlace(NamedTuple):
    """What a savepoint has of a journal."""

    offset: int
    created: int
    """Which journal the offset belongs to (`protocol.offsets`); 0: not known."""


async def savepoint_place(transport: Transport, name: str, journal: str) -> SavedPlace:
    """Return the offset that a savepoint has of a journal.

    Raises: SavepointNotFound: there is no such savepoint, or it says nothing of the journal.
    Cancellation: safe.
    """
    savepoint, bare = await get_savepoint(transport, name), strip_meta(journal)
    offset = savepoint.offsets.get(bare)
    if offset is None:
        raise SavepointNotFound(
            f"savepoint {name} says nothing of {journal} (`gazctl savepoints get {name}` shows "
            "what it names; a journal that came later is read from 0)"
        )
    return SavedPlace(offset, savepoint.created.get(bare, 0))


async def list_savepoints(transport: Transport, prefix: str) -> list[Savepoint]:
    """All savepoints whose names begin so, without offsets. Cancellation: safe."""
    response = await _ask(transport, _LIST, admin_pb.ListSavepointsRequest(prefix=prefix))
    return [_savepoint(found) for found in response.savepoints]


async def delete_savepoint(transport: Transport, name: str) -> None:
    """Forget a savepoint. Raises: SavepointNotFound. Cancellation: may be deleted or not."""
    _ = await _ask(transport, _DELETE, admin_pb.DeleteSavepointRequest(name=name))


async def _ask(transport: Transport, method: UnaryMethod[M], request: Message) -> M:
    """Ask any broker.

    Raises: SavepointExists, SavepointNotFound; TransportError: whether a change was made is unknown.
    """

    def read(response: M) -> M:
        transport.learn("", response.header)  # type: ignore[attr-defined]
        return response

    call = UnaryCall(method=method, request=request, what=method.path.rpartition("/")[2])
    try:
        return await ask(transport, call, read)
    except CallFailed as err:
        if err.code == "NOT_FOUND":
            raise SavepointNotFound(err.details) from err
        if err.code == "ALREADY_EXISTS":
            raise SavepointExists(err.details) from err
        raise


def _savepoint(message: admin_pb.Savepoint) -> Savepoint:
    return Savepoint(
        name=message.name,
        offsets=dict(sorted(message.offsets.items())),
        created=created_map(message.offsets, message.created),
        created_at=datetime.fromtimestamp(message.created_at, UTC),
        journals=message.journals,
    )
