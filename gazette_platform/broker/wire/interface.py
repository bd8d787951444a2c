"""What a transport and the broker know of each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from gazette_platform.client.wire import ASK_AGAIN
from gazette_platform.errors import GazetteError

__all__ = [
    "READ_AHEAD_BYTES",
    "BidiStream",
    "ClientStream",
    "Code",
    "ContentSource",
    "Denied",
    "Kind",
    "MessageStream",
    "Metadata",
    "NotNow",
    "NotTaken",
    "Rpc",
    "RpcFailed",
    "Send",
    "ServerStream",
    "Service",
    "Unary",
]

READ_AHEAD_BYTES = 4 << 20
"""What a transport may hold of a stream that is not read. It is one message of the largest size, and
what clients need to keep on sending while Python is busy: with a quarter of it, streamed appends
are a third slower."""


class Code(Enum):
    """Failures of an RPC that are no business outcome, by gRPC's names."""

    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    UNAVAILABLE = "UNAVAILABLE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    UNIMPLEMENTED = "UNIMPLEMENTED"


_TEXT_LENGTH_MAX: Final = 3000


class RpcFailed(GazetteError):
    """The RPC ends with `code` and `text` in place of a response."""

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        # It travels in the trailer, of which clients take 8 KiB: of more they learn nothing. What
        # is not ASCII is three times as long there.
        limit = _TEXT_LENGTH_MAX if text.isascii() else _TEXT_LENGTH_MAX // 6
        self.text = text if len(text) <= limit else f"{text[:limit]}..."
        super().__init__(self.text)


class NotNow(RpcFailed):
    """What cannot be answered now, for a reason that passes by itself: the caller is to ask again.

    Clients tell it from a broker that was not reached by how its text ends, since gRPC carries a code
    and a text.
    """

    def __init__(self, text: str, advice: str = ASK_AGAIN) -> None:
        super().__init__(Code.UNAVAILABLE, f"{text}{advice}")


class Denied(RpcFailed):
    """The caller is known, and may not do that."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.UNAUTHENTICATED, text)


class NotTaken(RpcFailed):
    """A response could not be sent: its caller has gone, or takes nothing.

    It has a type of its own, so that no handler takes it for the error of a peer, of a store or of a
    file that it reads from.
    """


class ContentSource(Protocol):
    """The messages of an append that follow its first."""

    async def next(self) -> bytes | None:
        """The next message as it came from the wire; None at the end of the stream.

        Raises: RpcFailed: the stream broke.
        Cancellation: ends the RPC.
        """
        ...


class MessageStream(Protocol):
    """Both directions of a stream that is neither requests nor responses only."""

    async def next(self) -> bytes | None:
        """The next message of the caller; None once it ended its side.

        Raises: RpcFailed: the stream broke.
        Cancellation: ends the RPC.
        """
        ...

    async def send(self, raw: bytes) -> None:
        """Send a message to the caller. Raises: RpcFailed: the stream broke."""
        ...


class Kind(Enum):
    """Which side of a call is a stream, by its name in metrics."""

    UNARY = "unary"
    CLIENT_STREAM = "client_stream"
    SERVER_STREAM = "server_stream"
    BIDI_STREAM = "bidi_stream"


Metadata = Mapping[str, str]

Unary = Callable[[bytes, Metadata], Awaitable[bytes]]
"""Takes a request, gives its response."""

ClientStream = Callable[[bytes, ContentSource, Metadata], Awaitable[bytes]]
"""Takes the first message and those that follow, gives the response."""

Send = Callable[[bytes], Awaitable[None]]
"""Sends a response, and returns once there is room for another. Raises: NotTaken, which ends the call."""

ServerStream = Callable[[bytes, Send, Metadata], Awaitable[None]]
"""Takes a request, and sends its responses; lets out a NotTaken as it is."""

BidiStream = Callable[[MessageStream, Metadata], Awaitable[None]]
"""Takes both directions."""


@dataclass(frozen=True, slots=True)
class Rpc:
    """A call of the broker, as a transport makes it. Messages are protobuf's bytes.

    What `handler` is depends on `kind`; all of them may raise RpcFailed, and cancelling one means
    that its caller has gone.
    """

    service: str
    name: str
    kind: Kind
    handler: Any


class Service(Protocol):
    """What other transports than gRPC call."""

    @property
    def append(self) -> ClientStream:
        """Serves Append."""
        ...

    @property
    def read(self) -> ServerStream:
        """Serves Read."""
        ...
