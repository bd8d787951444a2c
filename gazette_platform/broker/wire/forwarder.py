"""Calls to other brokers, in bytes, either for clients or for ourselves.

A call carries our own token for its journal. If the peer or the connection fails it, the error is a
`PeerFailed`. If the client for whom it is made breaks off, the error is a plain `RpcFailed`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.serving.interface import Code, Kind, RpcFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator

    from google.protobuf.message import Message

    from gazette_platform.broker.wire.peers import Peers
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Header
    from gazette_platform.protocol.auth import Capability
    from gazette_platform.serving.interface import ContentSource, OutgoingCall

__all__ = ["PeerCall", "PeerFailed", "PeerMessages", "Sender", "with_header"]


# What is sent without a wait. More would have to wait for room anyway.
_SMALL_BYTES_MAX: Final = 64 << 10


class PeerFailed(RpcFailed):
    """A peer could not be reached, left, or refused a call.

    Attributes:
        endpoint: of the peer.
        is_begun: whether the peer may have got any part of the call.
    """

    def __init__(self, err: RpcFailed, endpoint: str, *, is_begun: bool) -> None:
        super().__init__(err.code, err.text)
        self.endpoint = endpoint
        self.is_begun = is_begun


def with_header(request: Message, header: Header) -> bytes:
    """A request as it is forwarded, with our header in place of any that it has."""
    forwarded: Any = type(request)()
    forwarded.CopyFrom(request)
    forwarded.ClearField("header")
    header.into_pb(forwarded.header)
    raw: bytes = forwarded.SerializeToString()
    return raw


@final
@dataclass(frozen=True, slots=True)
class PeerCall:
    """A call to be made to a peer.

    Attributes:
        endpoint: of the peer.
        method: ``/service/name``.
        journal: the one that our token is for.
    """

    peers: Peers
    endpoint: str
    method: str
    capability: Capability
    journal: str

    async def unary(self, request: bytes) -> bytes:
        """Make the call. Raises: PeerFailed. Cancellation: reaches the peer."""
        try:
            return await self._begin(Kind.UNARY, request).answer()
        except RpcFailed as err:
            raise self.failed(err) from err

    async def client_stream(self, first: bytes, content: ContentSource, tasks: TaskGroup) -> bytes:
        """Make the call, message by message.

        Args:
            first: its first message.
            content: the messages that follow.
            tasks: owns the task that sends them.

        Returns: the response.
        Raises: PeerFailed: if it has not begun, nothing was taken of `content`.
            RpcFailed: `content` failed.
        Cancellation: reaches the peer.
        """
        call = self._begin(Kind.CLIENT_STREAM)
        sender = Sender(call, content)
        sending: asyncio.Task[None] | None = None
        if not sender.run_now(first):
            sending = tasks.spawn(sender.run(first), name=f"forward {self.journal}")
        try:
            return await call.answer()
        except RpcFailed as err:
            raise sender.failure or self.failed(err, is_begun=sender.is_begun) from err
        finally:
            if sending is not None:
                sending.cancel()
            call.cancel()

    @contextlib.contextmanager
    def server_stream(self, request: bytes) -> Generator[PeerMessages]:
        """Make the call. Gives: its responses. The call ends with the block."""
        messages = PeerMessages(self, self._begin(Kind.SERVER_STREAM, request))
        try:
            yield messages
        finally:
            messages.cancel()

    def bidi_stream(self, *told: tuple[str, str]) -> OutgoingCall:
        """Make the call, with this metadata beside the usual."""
        return self._begin(Kind.BIDI_STREAM, told=told)

    def _begin(
        self, kind: Kind, request: bytes | None = None, told: tuple[tuple[str, str], ...] = ()
    ) -> OutgoingCall:
        metadata = self.peers.metadata(self.capability, self.journal) or ()
        channel = self.peers.channel(self.endpoint)
        return channel.call(self.method, kind, (*metadata, *told), request)

    def failed(self, err: RpcFailed, *, is_begun: bool = True) -> PeerFailed:
        """The error of a call that failed by `err`. Tells the observer of failures, too."""
        self.peers.on_failure(self.endpoint, err.text)
        return PeerFailed(err, self.endpoint, is_begun=is_begun)


@final
class PeerMessages:
    """The messages that a peer streams to us."""

    __slots__ = ("_call", "_is_cancelled", "_peer_call")

    def __init__(self, peer_call: PeerCall, call: OutgoingCall) -> None:
        self._peer_call = peer_call
        self._call = call
        self._is_cancelled = False

    async def next(self) -> bytes | None:
        """The next message; None at the end, or once we cancelled the call. Raises: PeerFailed."""
        try:
            return None if self._is_cancelled else await self._call.next()
        except RpcFailed as err:
            if self._is_cancelled:
                return None
            raise self._peer_call.failed(err) from err

    def cancel(self) -> None:
        """End the call."""
        self._is_cancelled = True
        self._call.cancel()


@final
class Sender:
    """Sends the messages of an append.

    Attributes:
        is_begun: whether the first message is on its way, and content is being taken.
        failure: the error of the content, if it failed. Any other error comes with the answer.
    """

    def __init__(self, call: OutgoingCall, content: ContentSource) -> None:
        self._call = call
        self._content = content
        self.is_begun = False
        self.failure: RpcFailed | None = None
        self._taken: deque[bytes] | None = None

    def run_now(self, first: bytes) -> bool:
        """Send all messages without a wait, if they are here, and there is room for them.

        Returns: whether that was done; if not, call `run`.
        """
        if not self._call.send_now(first):
            return False
        self.is_begun = True
        messages = self._content.take_all(_SMALL_BYTES_MAX)
        if messages is None:
            return False
        self._taken = deque(messages)
        while self._taken and self._call.send_now(self._taken[0]):
            self._taken.popleft()
        return not self._taken and self._call.end_now()

    async def run(self, first: bytes) -> None:
        """Send all of them. Cancellation: safe."""
        # If the other broker answers before it has read everything, a send breaks.
        try:
            with contextlib.suppress(RpcFailed):
                await self._run(first)
        except Exception as err:
            self.failure = RpcFailed(Code.INTERNAL, f"forwarding: {type(err).__name__}: {err}")
            self._call.cancel()
            raise  # the owner of the task reports it as a fault

    async def _run(self, first: bytes) -> None:
        if not self.is_begun:
            await self._call.send(first)
            self.is_begun = True
        while (raw := await self._next()) is not None:
            await self._call.send(raw)
        await self._call.done_sending()

    async def _next(self) -> bytes | None:
        if self._taken is not None:
            return self._taken.popleft() if self._taken else None
        try:
            return await self._content.next()
        except RpcFailed as err:
            self.failure = err  # a stream that ends without the commit marker is rolled back
            return None
