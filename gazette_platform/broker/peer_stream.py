"""Replicate streams to peers, in bytes; what they raise is `RpcFailed`, with Gazette's texts."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.broker.peers import Peers
    from gazette_platform.protocol import ProcessId

__all__ = ["PeerStream", "open_replicate"]

T = TypeVar("T")

_REPLICATE = "/protocol.Journal/Replicate"


class PeerStream(Protocol):
    """A Replicate stream to one peer."""

    async def write(self, raw: bytes) -> None:
        """Send a message. Raises: RpcFailed: the stream broke."""
        ...

    async def read(self) -> bytes | None:
        """The next message; None at the end. Raises: RpcFailed: the stream broke."""
        ...

    async def done_writing(self) -> None:
        """Tell the peer that nothing more comes. Raises: RpcFailed: the stream broke."""
        ...

    def cancel(self) -> None:
        """Give the stream up."""
        ...


def open_replicate(peers: Peers, journal: str, peer: ProcessId, endpoint: str) -> PeerStream:
    """Begin a Replicate stream about `journal`; connects by itself.

    Raises: RpcFailed: nobody knows where the peer is.
    """
    if not endpoint:
        raise RpcFailed(Code.UNAVAILABLE, f"broker {peer}has no endpoint in etcd")
    method = peers.channel(endpoint).stream_stream(_REPLICATE)
    call = method(metadata=peers.metadata(Capability.REPLICATE, journal))
    return _GrpcStream(call, partial(peers.on_failure, endpoint))


@final
class _GrpcStream:
    """A stream of gRPC's."""

    __slots__ = ("_call", "_on_failure")

    def __init__(self, call: Any, on_failure: Callable[[str], None]) -> None:
        self._call = call
        self._on_failure = on_failure

    async def write(self, raw: bytes) -> None:
        await self._of_call(self._call.write(raw))

    async def read(self) -> bytes | None:
        raw = await self._of_call(self._call.read())
        if raw is not aio.EOF:
            return bytes(raw)
        if await self._call.code() is not grpc.StatusCode.OK:
            raise await self._failed(None)
        return None

    async def done_writing(self) -> None:
        await self._of_call(self._call.done_writing())

    async def _of_call(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except (grpc.RpcError, aio.UsageError, asyncio.InvalidStateError) as err:
            raise await self._failed(err) from err
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not we, but the call was cancelled: its channel was closed, since the peer has left.
            raise RpcFailed(Code.UNAVAILABLE, "the peer has left the cluster") from None

    def cancel(self) -> None:
        self._call.cancel()

    async def _failed(self, err: Exception | None) -> RpcFailed:
        if self._call.done():
            code, details = await self._call.code(), await self._call.details()
        else:
            code, details = grpc.StatusCode.UNKNOWN, str(err)
        self._on_failure(details or "")
        known = _CODES.get(code, Code.UNKNOWN)
        return RpcFailed(known, f"rpc error: code = {_camel(code.name)} desc = {details or ''}")


_CODES = {getattr(grpc.StatusCode, code.value): code for code in Code}


def _camel(name: str) -> str:
    """A code as Go spells it.

    >>> _camel("DEADLINE_EXCEEDED")
    'DeadlineExceeded'
    """
    return "".join(word.capitalize() for word in name.split("_"))
