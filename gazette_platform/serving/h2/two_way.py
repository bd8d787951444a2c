"""A call of either side: a stream, and what waits for its messages or for room to send."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gazette_platform.serving.h2 import responses
from gazette_platform.serving.h2.responses import PREFIX_BYTES
from gazette_platform.serving.h2.stream import Stream

if TYPE_CHECKING:
    import asyncio

    from gazette_platform.serving.h2.carrier import Sending

__all__ = ["BURST_BYTES", "TwoWay"]

BURST_BYTES: Final = 256 << 10
"""What is sent within a turn of the event loop before the transport may say that it has enough."""

C = TypeVar("C", bound="Sending")


class TwoWay(Stream, Generic[C]):
    """A call. Nothing here makes a future for what has come, or can be sent.

    Attributes:
        blocked_at: since when a message waits for the peer to take it; 0: none does.
    """

    __slots__ = ("_connection", "_taker", "_waiter", "blocked_at")

    def __init__(self, connection: C, stream_id: int) -> None:
        self._connection = connection
        self.blocked_at = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._taker: asyncio.Future[None] | None = None
        super().__init__(
            stream_id,
            send_room=connection.peer_window,
            recv_room=connection.limits.stream_window,
            opened_at=connection.swept_at,
        )

    @abstractmethod
    def gone(self) -> Exception:
        """The error of a message that cannot be sent, because the call is over."""

    async def wait(self) -> None:
        """Wait for `wake`."""
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> bool:
        """Go on with what waits for messages. Returns: whether something did."""
        waiter = self._waiter
        if waiter is None:
            return False
        if not waiter.done():
            waiter.set_result(None)
        return True

    @property
    def has_room(self) -> bool:
        """Whether some bytes can be sent."""
        connection = self._connection
        return self.send_room > 0 and connection.send_room > 0 and not connection.is_paused

    def make_room(self) -> None:
        """Go on, if there is room for more."""
        taker = self._taker
        if taker is not None and not taker.done() and (self.has_room or self.is_closed):
            taker.set_result(None)

    async def send_parts(self, raw: bytes) -> None:
        """Send a message in as many frames as it takes, and wait for room before each.

        Raises: what `gone` returns.
        """
        connection = self._connection
        lead, rest = responses.prefix(len(raw)), memoryview(raw)
        left = len(raw) + PREFIX_BYTES
        try:
            while left:
                if not self.has_room:
                    await self._room()
                size = min(left, self.send_room, connection.send_room, connection.peer_frame)
                self.send_room -= size
                connection.send_room -= size
                left -= size
                head = responses.data_head(self.id, size)
                if lead:
                    head += lead[:size]
                    size, lead = size - len(lead[:size]), lead[size:]
                connection.put_message(head, rest[:size])
                rest = rest[size:]
                if connection.out_bytes >= BURST_BYTES:
                    connection.flush()
        finally:
            self.blocked_at = 0.0

    async def _room(self) -> None:
        """Wait until some bytes can be sent. Raises: what `gone` returns."""
        connection = self._connection
        if not self.blocked_at:
            self.blocked_at = connection.loop.time()
        connection.blocked[self] = None
        try:
            while not self.has_room:
                self._taker = connection.loop.create_future()
                await self._taker
                if self.is_closed:
                    raise self.gone()
        finally:
            self._taker = None
            del connection.blocked[self]
