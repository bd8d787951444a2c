"""A call of a connection, as its handler sees it.

Nothing here makes a future for a message that has come, or for one that can be sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.serving.h2 import responses
from gazette_platform.serving.h2.carrier import BURST_BYTES, Carrier, TwoWay
from gazette_platform.serving.h2.handling import GONE, Handled, Method, not_taken
from gazette_platform.serving.h2.responses import PREFIX_BYTES, Status
from gazette_platform.serving.h2.stream import MessageRefused
from gazette_platform.serving.interface import Code, NotTaken, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.serving.interface import Metadata


@final
class Call(TwoWay[Carrier], Handled):
    """A call. One task may wait for what comes, and one may send."""

    __slots__ = (
        "_began_at",
        "_cancel",
        "_metadata",
        "_status",
        "_step",
        "has_run",
        "method",
        "task",
        "trailing",
    )

    def __init__(
        self, connection: Carrier, stream_id: int, method: Method, metadata: Metadata
    ) -> None:
        super().__init__(connection, stream_id)
        self.set_up(method, metadata)

    # --------------------------------------------------------------------------- for its handler
    @override
    async def next(self) -> bytes | None:
        """As `ContentSource` and `MessageStream` have it."""
        while not self.messages:
            if self.is_closed:
                raise RpcFailed(Code.CANCELLED, GONE)
            if self.is_ended:
                return None
            await self.wait()
        self.method.metrics.received.count += 1
        connection = self._connection
        try:
            message = connection.take(self)
        except MessageRefused as refused:
            self.fail(Status(refused.number), refused.text)
            raise RpcFailed(Code.INTERNAL, refused.text) from refused
        if connection.unread < connection.report_below:
            connection.report()
        return message

    def take_all(self, bytes_max: int) -> list[bytes] | None:
        """As `ContentSource` has it."""
        if not self.is_ended or self.is_closed or self.unread > bytes_max:
            return None
        messages = self._connection.take_all(self)
        if messages is not None:
            self.method.metrics.received.count += len(messages)
        return messages

    @override
    async def send(self, raw: bytes) -> None:
        """As `MessageStream` and `Send` have it."""
        connection, length = self._connection, len(raw)
        size = length + PREFIX_BYTES
        if self.is_closed:
            raise NotTaken(Code.CANCELLED, GONE)
        if (
            size > self.send_room
            or size > connection.send_room
            or size > connection.peer_frame
            or connection.is_paused
        ):
            await self._send_parts(raw)
        else:
            self.send_room -= size
            connection.send_room -= size
            if self.is_greeted:
                head = responses.message(self.id, length)
            else:
                self.is_greeted = True
                head = responses.greeted_message(self.id, length)
            connection.put_message(head, raw)
            # A handler that waits for nothing must hear when the transport has enough.
            if connection.out_bytes >= BURST_BYTES:
                connection.flush()
        self.method.metrics.sent.count += 1

    @override
    async def greet(self, metadata: Metadata) -> None:
        """As `MessageStream` has it."""
        if self.is_closed:
            raise RpcFailed(Code.CANCELLED, GONE)
        if not self.is_greeted:
            self.is_greeted = True
            self._connection.put(responses.greeting(self.id, metadata))

    @property
    def peer(self) -> str:
        """As `ServedCall` has it."""
        return self._connection.peer

    async def _send_parts(self, raw: bytes) -> None:
        if not self.is_greeted:
            self.is_greeted = True
            self._connection.put(responses.greeting(self.id))
        await self.send_parts(raw)

    @override
    def gone(self) -> NotTaken:
        return NotTaken(Code.CANCELLED, GONE)

    # ------------------------------------------------------------------------ for its connection
    def stall(self, limit_s: float) -> None:
        """End a response that waits for too long. The handler hears of it, and the caller."""
        if self._taker is not None and not self._taker.done():
            self._taker.set_exception(not_taken(limit_s))

    @override
    def all_here(self) -> Sequence[bytes] | None:
        return self._connection.all_of(self)

    @override
    def drop_all(self) -> None:
        self._connection.drop_all(self)

    @override
    def answer_now(self, raw: bytes) -> bool:
        """Send the one response if there is room, and end the call. Returns: whether it is over."""
        connection, length = self._connection, len(raw)
        size = length + PREFIX_BYTES
        if self.is_closed:
            return True
        if (
            size > self.send_room
            or size > connection.send_room
            or size > connection.peer_frame
            or connection.is_paused
        ):
            return False
        self.is_greeted = True
        connection.send_room -= size
        connection.put_message(responses.greeted_message(self.id, length), raw)
        self.method.metrics.sent.count += 1
        self.succeed()
        return True

    @override
    async def answer(self, raw: bytes) -> None:
        """Send the one response, and end the call."""
        if not self.answer_now(raw):
            await self._send_parts(raw)
            self.method.metrics.sent.count += 1
            self.succeed()

    @override
    def succeed(self) -> None:
        """End the call without an error."""
        if self.is_closed:
            return
        connection = self._connection
        if not self.is_greeted:
            self.is_greeted = True
            connection.put(responses.greeting(self.id))
        connection.put(responses.trailers(self.id, self.trailing))
        connection.close(self)

    @override
    def fail(self, status: Status, text: str) -> None:
        """End the call with an error, unless it is over."""
        if not self.is_closed:
            connection = self._connection
            answer = responses.failure(
                self.id, status, text, is_greeted=self.is_greeted, metadata=self.trailing
            )
            connection.put(answer)
            connection.close(self)
