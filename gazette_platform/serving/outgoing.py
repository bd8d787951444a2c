"""What makes calls to other processes, and the logic that needs answers of them, know of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.client.route_cache import Condition
    from gazette_platform.serving.interface import Kind

__all__ = ["PEER_LEFT", "OutgoingCall", "OutgoingChannel"]

PEER_LEFT: Final = "the peer has left the cluster"
"""The text of the error of a call that ends because its channel is closed."""


class OutgoingCall(Protocol):
    """A call to another process. What its methods raise is `RpcFailed`, with the status of the call."""

    async def send(self, raw: bytes) -> None:
        """Send a message; returns once there is room for another."""
        ...

    async def done_sending(self) -> None:
        """Tell the other side that nothing more comes."""
        ...

    async def next(self) -> bytes | None:
        """The next message; None at the end of a call that succeeded."""
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
            request: the only one, if this side is no stream.
        """
        ...

    @property
    def condition(self) -> Condition:
        """What is known of the connection. Opens none."""
        ...

    async def close(self) -> None:
        """Close the connection, and end its calls."""
        ...
