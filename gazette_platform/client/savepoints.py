"""Savepoints: offsets of journals under names, kept by `gazette_platform.Admin`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from gazette_platform.client.results import Savepoint
from gazette_platform.client.wire import CALL_ERRORS, decoded
from gazette_platform.errors import SavepointExists, SavepointNotFound
from gazette_platform.protocol import strip_meta
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

    from gazette_platform.client.transport import Transport

__all__ = [
    "delete_savepoint",
    "get_savepoint",
    "list_savepoints",
    "put_savepoint",
    "savepoint_offset",
]

M = TypeVar("M", bound="Message")

_SERVICE = "/gazette_platform.Admin/"


async def put_savepoint(
    transport: Transport, name: str, offsets: Mapping[str, int], *, replace: bool
) -> Savepoint:
    """Store a savepoint. Raises: SavepointExists. Cancellation: may be stored or not."""
    request = pb.PutSavepointRequest(
        savepoint=pb.Savepoint(name=name, offsets=dict(offsets)), replace=replace
    )
    response = await _call(
        transport, "PutSavepoint", request, pb.PutSavepointResponse, Capability.APPLY
    )
    return _savepoint(response.savepoint)


async def get_savepoint(transport: Transport, name: str) -> Savepoint:
    """A savepoint. Raises: SavepointNotFound. Cancellation: safe."""
    request = pb.GetSavepointRequest(name=name)
    response = await _call(
        transport, "GetSavepoint", request, pb.GetSavepointResponse, Capability.LIST
    )
    return _savepoint(response.savepoint)


async def savepoint_offset(transport: Transport, name: str, journal: str) -> int:
    """The offset that a savepoint has of a journal.

    Raises: SavepointNotFound: there is no such savepoint, or it says nothing of the journal.
    Cancellation: safe.
    """
    offset = (await get_savepoint(transport, name)).offsets.get(strip_meta(journal))
    if offset is None:
        raise SavepointNotFound(
            f"savepoint {name} says nothing of {journal} (`gazctl savepoints get {name}` shows "
            "what it names; a journal that came later is read from 0)"
        )
    return offset


async def list_savepoints(transport: Transport, prefix: str) -> list[Savepoint]:
    """All savepoints whose names begin so, without offsets. Cancellation: safe."""
    request = pb.ListSavepointsRequest(prefix=prefix)
    response = await _call(
        transport, "ListSavepoints", request, pb.ListSavepointsResponse, Capability.LIST
    )
    return [_savepoint(found) for found in response.savepoints]


async def delete_savepoint(transport: Transport, name: str) -> None:
    """Forget a savepoint. Raises: SavepointNotFound. Cancellation: may be deleted or not."""
    request = pb.DeleteSavepointRequest(name=name)
    await _call(
        transport,
        "DeleteSavepoint",
        request,
        pb.DeleteSavepointResponse,
        Capability.APPLY,
    )


async def _call(
    transport: Transport,
    method: str,
    request: Any,
    response_class: type[M],
    capability: Capability,
) -> M:
    """Ask any broker.

    Raises: SavepointExists, SavepointNotFound; TransportError: whether a change was made is unknown.
    """
    is_read = capability is Capability.LIST
    patience = transport.patience()
    while True:
        wire = transport.wire()
        may_be_sent = not is_read and await wire.connected()
        call = wire.channel.unary_unary(
            f"{_SERVICE}{method}",
            request_serializer=type(request).SerializeToString,
        )
        try:
            with wire:
                raw = await call(
                    request,
                    timeout=transport.config.call_timeout_s,
                    metadata=transport.auth.metadata(capability, ""),
                )
        except CALL_ERRORS as err:
            if isinstance(err, grpc.aio.AioRpcError):
                if err.code() is grpc.StatusCode.NOT_FOUND:
                    raise SavepointNotFound(err.details()) from err
                if err.code() is grpc.StatusCode.ALREADY_EXISTS:
                    raise SavepointExists(err.details()) from err
            error = transport.failed(err, wire, "", method)
            # After it was sent, the next attempt may be refused just because this one was applied.
            if not error.retriable or may_be_sent:
                raise error from err
            await patience.wait(error)
        else:
            response = decoded(response_class, raw)
            transport.learn("", response.header)  # type: ignore[attr-defined]
            return response


def _savepoint(message: pb.Savepoint) -> Savepoint:
    return Savepoint(
        name=message.name,
        offsets=dict(sorted(message.offsets.items())),
        created_at=datetime.fromtimestamp(message.created_at, UTC),
        journals=message.journals,
    )
