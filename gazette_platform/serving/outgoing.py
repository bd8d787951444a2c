"""What makes calls to other processes, and the logic that needs answers of them, know of each other."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_platform.serving.interface import Kind

__all__ = [
    "CANNOT_REACH",
    "DROPPED",
    "PEER_LEFT",
    "Condition",
    "OutgoingCall",
    "OutgoingChannel",
    "brief_details",
]

CANNOT_REACH: Final = "cannot reach broker "
"""How a broker says that another one, which it had to ask, cannot be reached."""

DROPPED: Final = "dropped the call, as it does while thousands wait for it, and when it stops"
"""What it means if the other side cancels a call: with a thousand or more calls waiting to begin, a gRPC
library cancels some of the new ones at random."""

PEER_LEFT: Final = "the peer has left the cluster"
"""The text of the error of a call that ends because its channel is closed."""


class Condition(IntEnum):
    """What is known of the connection to another process; a smaller value is better."""

    READY = 0
    UNKNOWN = 1
    FAILED = 2


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
        """The next message; None at the end of a call that succeeded."""
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
