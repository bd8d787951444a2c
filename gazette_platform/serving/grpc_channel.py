"""Calls to one address, by the gRPC library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.serving.grpc_calls import message_of, of_call
from gazette_platform.serving.interface import Kind
from gazette_platform.serving.outgoing import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_platform.serving.tls import TlsMaterial

__all__ = ["GrpcCall", "GrpcChannel"]

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
        told = await of_call(self._call, self._call.initial_metadata())
        return {str(name): str(value) for name, value in told or ()}
