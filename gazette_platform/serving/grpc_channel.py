"""Calls to one address, by the gRPC library."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.ops.tasks import is_cancelled
from gazette_platform.serving.interface import (
    DROPPED,
    PEER_LEFT,
    Code,
    Condition,
    Kind,
    RpcFailed,
    go_spelling,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from gazette_platform.serving.tls import TlsMaterial


T = TypeVar("T")

# What grpc.aio says in place of the peer's status if it could not write a message of ours any more and had
# not yet learned of that status, as when a peer leaves, or refuses a token.
_WRITE_FAILED: Final = "Internal error from Core"

CALL_ERRORS = (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError)
"""All errors that operations on our calls raise, beside cancellation."""

GRPC_CODES = {code: getattr(grpc.StatusCode, code.value) for code in Code}
"""gRPC's object of each code."""

GO_CODES = {code: go_spelling(code.value) for code in Code}
"""How Go spells each code, and so Gazette in its errors and metrics."""

_CODES = {grpc_code: code for code, grpc_code in GRPC_CODES.items()}


async def of_call(call: Any, work: Awaitable[T]) -> T:
    """Await `work`, which is an operation on `call`, or the call itself.

    Raises: RpcFailed: the call failed, with its code and details.
    Cancellation: cancels `work`, and with it the call.
    """
    try:
        return await work
    except CALL_ERRORS as err:
        raise await _failure(call) from err
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        # We were not cancelled. The call was cancelled, because its channel was closed when the peer
        # left.
        raise RpcFailed(Code.UNAVAILABLE, PEER_LEFT) from None


async def message_of(call: Any) -> bytes | None:
    """The next message of a call; None at its end. Raises: RpcFailed: as `of_call`."""
    raw = await of_call(call, call.read())
    return None if raw is aio.EOF else bytes(raw)


async def _failure(call: Any) -> RpcFailed:
    if not call.done():
        return RpcFailed(Code.UNAVAILABLE, "the connection broke")
    code, details = await call.code(), await call.details() or ""
    if code is grpc.StatusCode.INTERNAL and details == _WRITE_FAILED:
        # gRPC gives this in place of the other side's answer, or of what became of the connection.
        return RpcFailed(Code.UNAVAILABLE, "the call ended while it was being sent")
    if code is grpc.StatusCode.CANCELLED:  # by the other side
        return RpcFailed(Code.UNAVAILABLE, f"the process {DROPPED}")
    return RpcFailed(_CODES.get(code, Code.UNKNOWN), details)


def caller_left(err: aio.BaseError) -> RpcFailed:
    """The error of an operation on the serving side whose caller has gone."""
    return RpcFailed(Code.CANCELLED, f"the caller has gone ({type(err).__name__})")


_METHODS: Final = {
    Kind.UNARY: "unary_unary",
    Kind.CLIENT_STREAM: "stream_unary",
    Kind.SERVER_STREAM: "unary_stream",
    Kind.BIDI_STREAM: "stream_stream",
}
_BROKEN: Final = frozenset(
    {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}
)


@final
class GrpcChannel:
    """An `OutgoingChannel`.

    Args:
        target: as gRPC has it.
        options: of gRPC.
        tls: None: without TLS.
    """

    def __init__(
        self, target: str, options: list[tuple[str, int]], tls: TlsMaterial | None = None
    ) -> None:
        if tls is None:
            self._channel = aio.insecure_channel(target, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(
                tls.ca or None, tls.key or None, tls.cert or None
            )
            self._channel = aio.secure_channel(target, credentials, options=options)

    def call(
        self,
        method: str,
        kind: Kind,
        metadata: Sequence[tuple[str, str]] = (),
        request: bytes | None = None,
    ) -> GrpcCall:
        """As `OutgoingChannel` has it."""
        begin = getattr(self._channel, _METHODS[kind])(method)
        sent = () if request is None else (request,)
        return GrpcCall(begin(*sent, metadata=tuple(metadata) or None))

    @property
    def condition(self) -> Condition:
        """As `OutgoingChannel` has it."""
        state = self._channel.get_state()
        if state is grpc.ChannelConnectivity.READY:
            return Condition.READY
        return Condition.FAILED if state in _BROKEN else Condition.UNKNOWN

    async def close(self) -> None:
        """As `OutgoingChannel` has it."""
        await self._channel.close()


@final
class GrpcCall:
    """An `OutgoingCall`.

    Args:
        call: of the gRPC library.
    """

    __slots__ = ("_call", "cancel")

    def __init__(self, call: Any) -> None:
        self._call = call
        self.cancel = call.cancel

    async def send(self, raw: bytes) -> None:
        """As `OutgoingCall` has it."""
        await of_call(self._call, self._call.write(raw))

    def send_now(self, raw: bytes) -> bool:  # noqa: ARG002
        """As `OutgoingCall` has it."""
        return False

    def end_now(self) -> bool:
        """As `OutgoingCall` has it."""
        return False

    def listen(self, take: Callable[[bytes], None]) -> None:
        """As `OutgoingCall` has it."""

    async def done_sending(self) -> None:
        """As `OutgoingCall` has it."""
        await of_call(self._call, self._call.done_writing())

    async def next(self) -> bytes | None:
        """As `OutgoingCall` has it."""
        return await message_of(self._call)

    async def answer(self) -> bytes:
        """As `OutgoingCall` has it."""
        return bytes(await of_call(self._call, self._call))

    async def greeting(self) -> Mapping[str, str]:
        """As `OutgoingCall` has it."""
        metadata = await of_call(self._call, self._call.initial_metadata())
        return {str(name): str(value) for name, value in metadata or ()}
