"""What a transport and the logic of calls know of each other: calls that are served, and calls to others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, Protocol

from typing_extensions import override

from gazette_platform.errors import GazetteError

ASK_AGAIN: Final = "; ask again"
TRY_AGAIN: Final = "; try again"
ASK_ANOTHER: Final = "; ask another one"
"""How texts end when a process itself answers UNAVAILABLE: then it was reached."""

READ_AHEAD_BYTES = 4 << 20
"""Bytes that a transport may hold of a stream that is not read. One message of the largest size
fits. Clients need as much to go on sending while Python is busy: with a quarter of it, streamed
appends are a third slower."""


class Code(Enum):
    """Failures of an RPC other than the outcomes that its response has a status for; gRPC's names."""

    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    UNAUTHENTICATED = "UNAUTHENTICATED"


def go_spelling(name: str) -> str:
    """Spell the name of a gRPC code as Go does, and so Gazette in its errors and metrics."""
    # Go spells this one with one L.
    return "Canceled" if name == "CANCELLED" else name.title().replace("_", "")


_TEXT_LENGTH_MAX: Final = 3000


class RpcFailed(GazetteError):
    """The RPC ends with `code` and `text` in place of a response."""

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        # The text travels in the trailer. Clients take trailers of up to 8 KiB and drop larger ones.
        # Each byte that is not ASCII takes three bytes there.
        limit = _TEXT_LENGTH_MAX if text.isascii() else _TEXT_LENGTH_MAX // 6
        self.text = text if len(text) <= limit else f"{text[:limit]}..."
        super().__init__(self.text)


class NotNow(RpcFailed):
    """The call cannot be served now, for a reason that passes by itself: the caller is to ask again.

    gRPC carries only a code and a text. So the end of the text shows clients that a server answered,
    rather than that none was reached.
    """

    def __init__(self, text: str, advice: str = ASK_AGAIN) -> None:
        super().__init__(Code.UNAVAILABLE, f"{text}{advice}")


class Denied(RpcFailed):
    """The caller is known, but may not make this call."""

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
        """The next message as it came from the wire, a large one as a bytearray; None at the end of the stream.

        Raises: RpcFailed: the stream broke.
        Cancellation: ends the RPC.
        """
        ...

    def take_all(self, bytes_max: int) -> list[bytes] | None:  # noqa: ARG002
        """All messages that are left, without a wait.

        Args:
            bytes_max: of them and their framing together.

        Returns: None: they are more, or the stream has not ended, or the transport does not know; then none
            was taken.
        """
        return None


class MessageStream(Protocol):
    """A call with streams on both sides."""

    async def next(self) -> bytes | None:
        """The next message of the caller, a large one as a bytearray; None once it ended its side.

        Raises: RpcFailed: the stream broke.
        Cancellation: ends the RPC.
        """
        ...

    async def send(self, raw: bytes) -> None:
        """Send a message to the caller. Raises: RpcFailed: the stream broke."""
        ...

    async def greet(self, metadata: Metadata) -> None:
        """Send this to the caller ahead of all messages. Raises: RpcFailed: the stream broke."""
        ...


class ServedCall(MessageStream, Protocol):
    """A `MessageStream` with all that a transport knows of it, for services of applications.

    Attributes:
        is_greeted: whether the headers of the response are sent.
        is_closed: whether the call is over.
        trailing: what the caller hears after all messages.
    """

    is_greeted: bool
    is_closed: bool
    trailing: Metadata

    @property
    def peer(self) -> str:
        """The address of the caller, as gRPC writes it."""
        ...

    def time_left_s(self) -> float | None:
        """Return the seconds until the caller's deadline; None if it has none."""
        ...


class Kind(Enum):
    """Which sides of a call are streams; the value is its name in metrics."""

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
"""Takes a request, and sends its responses. Lets a NotTaken pass as it is."""

BidiStream = Callable[[MessageStream, Metadata], Awaitable[None]]
"""Takes both directions."""


class Waiting(Protocol):
    """A call that waits for its one response without a task. One of these is called, once."""

    def reply(self, raw: bytes) -> None:
        """Answer it."""
        ...

    def refuse(self, err: RpcFailed) -> None:
        """End it with an error."""
        ...

    def go_on(self, rest: Callable[[], Awaitable[bytes]]) -> None:
        """Run the rest in a task, which gives the response; as if it were the handler."""
        ...


AtOnce = Callable[[bytes, Sequence[bytes], Metadata, Waiting], Callable[[], object] | None]
"""Takes the first message of a call and all others, and answers it later without a task.

Returns: what is called if the caller leaves before; None: it does not take the call, and nothing has
changed, so the handler serves it.
"""


@dataclass(frozen=True, slots=True)
class Rpc:
    """A call, as a transport makes it. Messages are protobuf's bytes.

    The type of `handler` depends on `kind`. Each may raise RpcFailed, and is cancelled when its
    caller has gone.
    """

    service: str
    name: str
    kind: Kind
    handler: Any
    greeting: Metadata = field(default_factory=dict)
    """Sent ahead of all responses, of a call whose responses are a stream."""
    at_once: AtOnce | None = None
    """Serves calls with one response whose messages are all here, for servers that know it."""


CANNOT_REACH: Final = "cannot reach broker "
"""How a broker says that another one, which it had to ask, cannot be reached."""

NOT_HTTP2: Final = "not HTTP/2"
SPEAKS_TLS: Final = "it speaks TLS"
"""What errors say of a program that is not a gRPC server, or one with TLS that was called without it."""

CONNECT_FAILED: Final = "Failed to connect to remote host"
FELL_SILENT: Final = "it took the connection, and then fell silent"
"""What errors say of an attempt to connect, and of a server that hangs right after its first settings."""

DROPPED: Final = "dropped the call, as it does while thousands wait for it, and when it stops"
"""What it means if the other side cancels a call: with a thousand or more calls waiting to begin, a gRPC
library cancels some of the new ones at random."""

PEER_LEFT: Final = "the peer has left the cluster"
"""The text of the error of a call that ends because its channel is closed."""


class Condition(IntEnum):
    """What is known of the connection to a process; a smaller value is better."""

    HERE = 0
    """It is this process itself."""
    READY = 1
    UNKNOWN = 2
    FAILED = 3


def brief_details(details: str) -> str:
    """Return the last and most precise part of the gRPC library's nested explanations."""
    for marker in ("last error: ", "UNKNOWN: "):
        details = details.rpartition(marker)[2]
    return details.strip()


class OutgoingCall(Protocol):
    """A call to another process. What its methods raise is `RpcFailed`, with the status of the call.

    One task sends: it awaits `send` before it sends the next message, or ends the messages.
    """

    async def send(self, raw: bytes) -> None:
        """Send a message; returns once there is room for another."""
        ...

    def send_now(self, raw: bytes) -> bool:
        """Send a message without a wait. Returns: whether it was sent; if not, call `send`."""
        ...

    async def done_sending(self) -> None:
        """Signal the other side that nothing more comes."""
        ...

    def end_now(self) -> bool:
        """As `done_sending`, without a wait. Returns: whether it was done; if not, call that."""
        ...

    async def next(self) -> bytes | None:
        """The next message, a large one as a bytearray; None at the end of a call that succeeded."""
        ...

    def listen(self, take: Callable[[bytes], None]) -> None:
        """Let messages be taken as they come.

        Args:
            take: may be called with each message that comes while `next` waits, which does not return it
                then. It must not raise.
        """
        ...

    async def answer(self) -> bytes:
        """The one response of a call that has no other. Cancellation: ends the call."""
        ...

    async def greeting(self) -> Mapping[str, str]:
        """What the other side said ahead of its messages."""
        ...

    def cancel(self) -> None:
        """End the call, unless it is over."""
        ...


async def sole_response(call: OutgoingCall) -> bytes:
    """The response of a call that has no other; ends the call. Raises: RpcFailed. Cancellation: ends the call."""
    try:
        raw = await call.next()
        if raw is None or await call.next() is not None:
            raise RpcFailed(Code.INTERNAL, "the call has not one response")
        return raw
    finally:
        call.cancel()


class OutgoingChannel(Protocol):
    """Calls to one address. Connects by itself."""

    def call(
        self,
        method: str,
        kind: Kind,
        metadata: Sequence[tuple[str, str]] = (),
        request: bytes | None = None,
    ) -> OutgoingCall:
        """Begin a call.

        Args:
            method: ``/service/name``.
            request: the only one, if this side is not a stream.
        """
        ...

    @property
    def condition(self) -> Condition:
        """What is known of the connection. Opens none."""
        ...

    async def close(self) -> None:
        """Close the connection, and end its calls."""
        ...


class ClientCall(OutgoingCall, Protocol):
    """A call that may have a deadline.

    Attributes:
        is_over: whether its status is known.
        has_expired: whether it was ended by `expire_in`.
        on_over: called once its status is known.
    """

    is_over: bool
    has_expired: bool
    on_over: Callable[[], object] | None

    def expire_in(self, timeout_s: float | None) -> None:
        """Set the deadline, which the other side does not learn; None: there is none any more."""
        ...


class ClientChannel(OutgoingChannel, Protocol):
    """As clients have it."""

    @override
    def call(
        self,
        method: str,
        kind: Kind,
        metadata: Sequence[tuple[str, str]] = (),
        request: bytes | None = None,
        *,
        timeout_s: float | None = None,
    ) -> ClientCall:
        """Begin a call, as `OutgoingChannel` has it.

        Args:
            timeout_s: seconds until its deadline, which the other side learns.
        """
        ...

    async def connected(self) -> bool:
        """Wait until there is a connection, or an attempt to make one has failed.

        Returns: whether there is one.
        Cancellation: safe.
        """
        ...

    @override
    async def close(self, why: str = PEER_LEFT) -> None:
        """Close the connection, and end its calls.

        Args:
            why: text of the errors of its calls.
        """
        ...
