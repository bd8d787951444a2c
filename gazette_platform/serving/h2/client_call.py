"""A call of a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from typing_extensions import override

from gazette_platform.serving.h2 import frames, responses
from gazette_platform.serving.h2.carrier import ClientCarrier, TwoWay
from gazette_platform.serving.h2.client_machine import code_of
from gazette_platform.serving.h2.responses import PREFIX_BYTES
from gazette_platform.serving.h2.stream import Compressed, MessageRefused
from gazette_platform.serving.interface import PEER_LEFT, Code, RpcFailed, sole_response

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

LATE: Final = "Deadline Exceeded"

# A server learns the deadline in whole milliseconds, and its clock may be ahead.
_DEADLINE_EARLY_S: Final = 0.005


@final
class ClientCall(TwoWay[ClientCarrier]):
    """An `OutgoingCall`. One task may wait for what comes, and one may send.

    Attributes:
        is_over: whether its status is known.
        is_sent: whether we have ended our side.
        can_repeat: whether it may restart, if the server has not processed it.
        has_expired: whether it was ended by `expire_in`.
        on_over: called once its status is known.
    """

    __slots__ = (
        "_block",
        "_due_at",
        "_failure",
        "_greeting",
        "_opening",
        "_request",
        "_step",
        "_take",
        "can_repeat",
        "has_expired",
        "is_over",
        "is_sent",
        "on_over",
    )

    def __init__(self, link: ClientCarrier, block: bytes, request: bytes | None) -> None:
        super().__init__(link, 0)
        self._block = block
        self._request = request
        self._failure: tuple[Code, str] | None = None
        self._greeting: Mapping[str, str] = {}
        self._opening: asyncio.Future[None] | None = None
        self._step, self._due_at = 0, 0.0
        self._take: Callable[[bytes], None] | None = None
        self.is_over = self.is_sent = self.has_expired = False
        self.on_over: Callable[[], object] | None = None
        self.can_repeat = True

    # --------------------------------------------------------------------------- for its caller
    async def send(self, raw: bytes) -> None:
        """As `OutgoingCall` has it."""
        if not self.id or self.is_closed:
            await self._opened()
        if not self.may_send(raw):
            raise self.gone()
        self.can_repeat = False
        if not self.send_now(raw):
            await self.send_parts(raw)

    def send_now(self, raw: bytes) -> bool:
        """As `OutgoingCall` has it."""
        link, length = self._connection, len(raw)
        size = length + PREFIX_BYTES
        if (
            size > self.send_room
            or size > link.send_room
            or size > link.peer_frame
            or length > link.message_bytes_max
            or link.is_paused
            or not self.id
            or self.is_closed
        ):
            return False
        self.can_repeat = False
        self.send_room -= size
        link.send_room -= size
        link.put_message(responses.message(self.id, length), raw)
        return True

    async def done_sending(self) -> None:
        """As `OutgoingCall` has it."""
        await self._opened()
        self.can_repeat = False
        self._end_sending()

    def end_now(self) -> bool:
        """As `OutgoingCall` has it."""
        if not self.id or self.is_closed:
            return False
        self.can_repeat = False
        self._end_sending()
        return True

    async def next(self) -> bytes | None:
        """As `OutgoingCall` has it."""
        while not self.messages:
            if self._failure is not None:
                raise RpcFailed(*self._failure)
            if self.is_over:
                return None
            await self.wait()
        try:
            return self._connection.take(self)
        except MessageRefused as refused:
            self._connection.on_broken(self, refused.number, refused.text)
            raise RpcFailed(code_of(refused.number), refused.text) from refused

    def listen(self, take: Callable[[bytes], None]) -> None:
        """As `OutgoingCall` has it."""
        self._take = take

    async def answer(self) -> bytes:
        """As `OutgoingCall` has it."""
        return await sole_response(self)

    async def greeting(self) -> Mapping[str, str]:
        """As `OutgoingCall` has it."""
        while not self.is_greeted and not self.is_over:
            await self.wait()
        if not self.is_greeted and self._failure is not None:
            raise RpcFailed(*self._failure)
        return self._greeting

    def cancel(self) -> None:
        """As `OutgoingCall` has it."""
        self._break(Code.UNAVAILABLE, PEER_LEFT)

    def expire_in(self, timeout_s: float | None) -> None:
        """Set the deadline, which the other side does not learn; None: there is none any more."""
        deadlines = self._connection.deadlines
        if self._step:
            deadlines.discard(self, self._step)
        if timeout_s is None or self.is_over:
            self._step, self._due_at = 0, 0.0
        else:
            self._step = deadlines.add(self, timeout_s)
            self._due_at = self._connection.loop.time() + timeout_s

    def expire(self) -> None:
        """The deadline has come."""
        self.has_expired = not self.is_over
        self._break(Code.DEADLINE_EXCEEDED, LATE)

    def may_send(self, raw: bytes) -> bool:
        """Whether a message is small enough; else it ends the call."""
        bytes_max = self._connection.message_bytes_max
        if len(raw) > bytes_max:
            text = f"Sent message larger than max ({len(raw)} vs. {bytes_max})"
            self._break(Code.RESOURCE_EXHAUSTED, text)
        return len(raw) <= bytes_max

    @property
    def is_late(self) -> bool:
        """Whether its time is up, to the precision with which the other side knows it."""
        due_at = self._due_at
        return due_at > 0 and self._connection.loop.time() > due_at - _DEADLINE_EARLY_S

    def _break(self, code: Code, text: str) -> None:
        if not self.is_over:
            if self.id:
                self._connection.cancel(self)
            self.messages.clear()
            self.fail(code, text)

    async def _opened(self) -> None:
        """Wait until there is a connection. Raises: RpcFailed: the call is over."""
        # The call may have moved on to another connection before this goes on.
        while not self.id and not self.is_over:
            self._opening = self._connection.loop.create_future()
            try:
                await self._opening
            finally:
                self._opening = None
        if self.is_over or self.is_closed:
            raise self.gone()

    def _end_sending(self) -> None:
        if not self.is_sent:
            self.is_sent = True
            self._connection.put(frames.frame(frames.DATA, frames.END_STREAM, self.id))

    @override
    def gone(self) -> RpcFailed:
        return RpcFailed(*(self._failure or (Code.UNKNOWN, "the call is over")))

    # -------------------------------------------------------------------------- for its connection
    def bind(self, link: ClientCarrier) -> None:
        """Belong to a connection; `open` follows."""
        if self.id:  # it was a stream of another one
            waiter = self._waiter
            super().__init__(link, 0)
            self._waiter = waiter
            self.is_sent = False
        self._connection = link

    def open(self, stream_id: int) -> None:
        """Be a stream of the connection."""
        link = self._connection
        self.id = stream_id
        self.send_room = link.peer_window
        self.opened_at = link.swept_at

    def begin(self) -> None:
        """Send the headers, and the request if there is just one."""
        link, raw = self._connection, self._request
        link.put_headers(self.id, self._block, is_last=False)
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)
        if raw is None:
            return
        size = len(raw) + PREFIX_BYTES
        if size <= min(self.send_room, link.send_room, link.peer_frame) and not link.is_paused:
            self.send_room -= size
            link.send_room -= size
            link.put_message(responses.message(self.id, len(raw), is_last=True), raw)
            self.is_sent = True
        else:
            self.can_repeat = False
            task: asyncio.Task[Any] = link.loop.create_task(self._send_request(raw))
            link.sending.add(task)
            task.add_done_callback(link.sending.discard)

    async def _send_request(self, raw: bytes) -> None:
        try:
            await self.send_parts(raw)
        except RpcFailed:
            return  # the caller that waits for the response gets it
        self._end_sending()

    def greeted(self, metadata: Mapping[str, str]) -> None:
        """The headers of the response came."""
        self._greeting = metadata
        self.wake()

    def came(self) -> None:
        """Messages came: they go to who listens, or wakes."""
        take, waiter = self._take, self._waiter
        if (
            take is None
            or waiter is None
            or waiter.done()
            or Compressed in map(type, self.messages)
        ):
            self.wake()
            return
        while self.messages:
            take(self._connection.take(self))

    def succeed(self) -> None:
        """The call ended without an error."""
        self._over()

    def fail(self, code: Code, text: str) -> None:
        """End the call by an error, unless it is over."""
        if not self.is_over:
            self._failure = code, text
            self._over()

    def _over(self) -> None:
        self.is_over = self.is_closed = True
        if self._step:
            self._connection.deadlines.discard(self, self._step)
            self._step = 0
        if self.on_over is not None:
            self.on_over()
        self.wake()
        self.make_room()
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)
