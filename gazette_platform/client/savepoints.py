"""Savepoints: offsets of journals under names, kept by `gazette_platform.Admin`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from gazette_platform.client.results import Savepoint
from gazette_platform.client.unary import Repeat, UnaryCall, UnaryMethod, ask
from gazette_platform.errors import CallFailed, SavepointExists, SavepointNotFound
from gazette_platform.protocol import created_list, created_map, strip_meta
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from gazette_platform.client.transport import Transport

__all__ = [
    "SavedPlace",
    "delete_savepoint",
    "get_savepoint",
    "list_savepoints",
    "put_savepoint",
    "savepoint_place",
]

M = TypeVar("M", bound="Message")

_PUT: Final = UnaryMethod(
    path="/gazette_platform.Admin/PutSavepoint",
    response=pb.PutSavepointResponse,
    capability=Capability.APPLY,
    repeat=Repeat.IF_UNSENT,
)
_GET: Final = UnaryMethod(
    path="/gazette_platform.Admin/GetSavepoint",
    response=pb.GetSavepointResponse,
    capability=Capability.LIST,
)
_LIST: Final = UnaryMethod(
    path="/gazette_platform.Admin/ListSavepoints",
    response=pb.ListSavepointsResponse,
    capability=Capability.LIST,
)
_DELETE: Final = UnaryMethod(
    path="/gazette_platform.Admin/DeleteSavepoint",
    response=pb.DeleteSavepointResponse,
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
    savepoint = pb.Savepoint(name=name, offsets=dict(offsets), created=listed)
    request = pb.PutSavepointRequest(savepoint=savepoint, replace=replace)
    return _savepoint((await _ask(transport, _PUT, request)).savepoint)


async def get_savepoint(transport: Transport, name: str) -> Savepoint:
    """A savepoint. Raises: SavepointNotFound. Cancellation: safe."""
    request = pb.GetSavepointRequest(name=name)
    return _savepoint((await _ask(transport, _GET, request)).savepoint)


class SavedPlace(NamedTuple):
    """What a savepoint has of a journal."""

    offset: int
    created: int
    """Which journal the offset belongs to (`protocol.identity`); 0: not known."""


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
    response = await _ask(transport, _LIST, pb.ListSavepointsRequest(prefix=prefix))
    return [_savepoint(found) for found in response.savepoints]


async def delete_savepoint(transport: Transport, name: str) -> None:
    """Forget a savepoint. Raises: SavepointNotFound. Cancellation: may be deleted or not."""
    _ = await _ask(transport, _DELETE, pb.DeleteSavepointRequest(name=name))


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


def _savepoint(message: pb.Savepoint) -> Savepoint:
    return Savepoint(
        name=message.name,
        offsets=dict(sorted(message.offsets.items())),
        created=created_map(message.offsets, message.created),
        created_at=datetime.fromtimestamp(message.created_at, UTC),
        journals=message.journals,
    )
