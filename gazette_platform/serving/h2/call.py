"""A call, as its handler sees it, and how handlers are run.

A call's task begins when its first message is whole, or at once if both sides are streams. Nothing here
makes a future for a message that is there, or for one that can be sent.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from gazette_platform.serving.h2 import responses
from gazette_platform.serving.h2.carrier import Carrier
from gazette_platform.serving.h2.inflate import MessageRefused
from gazette_platform.serving.h2.responses import PREFIX_BYTES, STATUS_OF, Status
from gazette_platform.serving.h2.two_way import BURST_BYTES, TwoWay
from gazette_platform.serving.interface import ASK_AGAIN, Code, Kind, NotTaken, RpcFailed

if TYPE_CHECKING:
    from gazette_platform.serving.call_metrics import MethodMetrics
    from gazette_platform.serving.interface import Metadata, Rpc

__all__ = ["Call", "Method", "method_of"]

_log = logging.getLogger(__name__)

_GONE = "the caller has gone"
_NOTHING: Metadata = {}


@final
@dataclass(frozen=True, slots=True)
class Method:
    """A method that a server has."""

    kind: Kind
    handler: Any
    metrics: MethodMetrics
    has_one_response: bool
    greeting: Metadata


def method_of(rpc: Rpc, metrics: MethodMetrics) -> Method:
    """Return the method that serves an RPC."""
    has_one_response = rpc.kind in {Kind.UNARY, Kind.CLIENT_STREAM}
    return Method(rpc.kind, rpc.handler, metrics, has_one_response, rpc.greeting)


@final
class Call(TwoWay[Carrier]):
    """A call. To its handler it is a `ContentSource` or a `ServedCall`, and its `send` a `Send`.

    Attributes:
        task: runs the handler; None: it has not begun.
        trailing: what the caller hears after all messages.
        has_run: whether the handler was given the call.
    """

    __slots__ = (
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
        self.method = method
        self._metadata = metadata
        self.trailing: Metadata = _NOTHING
        self.task: asyncio.Task[None] | None = None
        self.has_run = False
        self._step = 0
        self._status = Status.CANCELLED

    # --------------------------------------------------------------------------- for its handler
    async def next(self) -> bytes | None:
        """As `ContentSource` and `MessageStream` have it."""
        while not self.messages:
            if self.is_closed:
                raise RpcFailed(Code.CANCELLED, _GONE)
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

    async def send(self, raw: bytes) -> None:
        """As `MessageStream` and `Send` have it."""
        connection, length = self._connection, len(raw)
        size = length + PREFIX_BYTES
        if self.is_closed:
            raise NotTaken(Code.CANCELLED, _GONE)
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

    async def greet(self, metadata: Metadata) -> None:
        """As `MessageStream` has it."""
        if self.is_closed:
            raise RpcFailed(Code.CANCELLED, _GONE)
        if not self.is_greeted:
            self.is_greeted = True
            self._connection.put(responses.greeting(self.id, metadata))

    @property
    def peer(self) -> str:
        """As `ServedCall` has it."""
        return self._connection.peer

    def time_left_s(self) -> float | None:
        """As `ServedCall` has it."""
        return self._connection.deadlines.left_s(self._step) if self._step else None

    async def _send_parts(self, raw: bytes) -> None:
        if not self.is_greeted:
            self.is_greeted = True
            self._connection.put(responses.greeting(self.id))
        await self.send_parts(raw)

    @override
    def gone(self) -> NotTaken:
        return NotTaken(Code.CANCELLED, _GONE)

    # ------------------------------------------------------------------------ for its connection
    def begin(self) -> None:
        """Run the handler."""
        connection = self._connection
        self.task = connection.loop.create_task(_serve(self))
        connection.tasks.add(self.task)

    def stall(self, limit_s: float) -> None:
        """End a response that waits for too long. The handler hears of it, and the caller."""
        if self._taker is not None and not self._taker.done():
            text = f"nothing was taken of the responses for {limit_s:g} s{ASK_AGAIN}"
            self._taker.set_exception(NotTaken(Code.UNAVAILABLE, text))

    def expire_in(self, timeout_s: float) -> None:
        """Set the deadline."""
        self._step = self._connection.deadlines.add(self, timeout_s)

    def expire(self) -> None:
        """The deadline has come."""
        self._step = 0
        self.end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def end(self, status: Status, text: str) -> None:
        """End the call from outside of its handler, which is cancelled."""
        self.fail(status, text)
        self.leave(status)

    def leave(self, status: Status = Status.CANCELLED) -> None:
        """Cancel the handler of a call that is over, and wake its other tasks and threads."""
        self._status = status
        self.wake()
        self.make_room()
        if self.task is None:
            self._left()
        elif not self.task.done():
            self.task.add_done_callback(self._left)
            self.task.cancel()

    def _left(self, _: object = None) -> None:
        """Count a call whose handler has not run: its task was cancelled before, or never made."""
        if not self.has_run:
            metrics = self.method.metrics
            metrics.end(metrics.begin(), self._status.go_name)
            self.finished()

    # ------------------------------------------------------------------------------------ its end
    async def answer(self, raw: bytes) -> None:
        """Send the one response, and end the call."""
        connection, length = self._connection, len(raw)
        size = length + PREFIX_BYTES
        if self.is_closed:
            return
        if (
            size > self.send_room
            or size > connection.send_room
            or size > connection.peer_frame
            or connection.is_paused
        ):
            await self._send_parts(raw)
        else:
            self.is_greeted = True
            connection.send_room -= size
            connection.put_message(responses.greeted_message(self.id, length), raw)
        self.method.metrics.sent.count += 1
        self.succeed()

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

    def fail(self, status: Status, text: str) -> None:
        """End the call with an error, unless it is over."""
        if not self.is_closed:
            connection = self._connection
            answer = responses.failure(
                self.id, status, text, is_greeted=self.is_greeted, metadata=self.trailing
            )
            connection.put(answer)
            connection.close(self)

    def finished(self) -> None:
        """Let go of the task and the deadline."""
        if self._step:
            self._connection.deadlines.discard(self, self._step)
            self._step = 0
        if self.task is not None:
            self._connection.tasks.discard(self.task)

    async def run_once(self) -> None:
        """Serve a call that has one response."""
        method = self.method
        first = await self.next()
        if method.kind is Kind.UNARY:
            if first is None:
                raise RpcFailed(Code.INTERNAL, "the call has no request")
            raw = await method.handler(first, self._metadata)
        else:
            if first is None:
                raise RpcFailed(Code.UNKNOWN, "append stream: unexpected EOF")
            raw = await method.handler(first, self, self._metadata)
        await self.answer(raw)

    async def run_stream(self) -> None:
        """Serve a call that has any number of responses."""
        method = self.method
        if method.kind is Kind.BIDI_STREAM:
            await method.handler(self, self._metadata)
        else:
            first = await self.next()
            if first is None:
                raise RpcFailed(Code.INTERNAL, "the call has no request")
            if method.greeting:
                await self.greet(method.greeting)
            await method.handler(first, self.send, self._metadata)
        self.succeed()

    def broke(self, err: BaseException) -> Status:
        """End the call by what its handler raised. Returns: the status."""
        if isinstance(err, RpcFailed):
            status = STATUS_OF[err.code]
            self.fail(status, err.text)
        elif isinstance(err, asyncio.CancelledError):
            status = self._status
            self.fail(status, "the server has cancelled the call")
        else:
            status = Status.UNKNOWN
            _log.error("a handler failed unexpectedly", exc_info=err)
            self.fail(status, f"Unexpected {type(err)}: {err}")
        return status


async def _serve(call: Call) -> None:
    metrics = call.method.metrics
    began, code = metrics.begin(), "OK"
    call.has_run = True
    try:
        await (call.run_once() if call.method.has_one_response else call.run_stream())
    # The errors of a handler end only its call. A task that ended by an error would keep it, and so all
    # that its frames hold, such as the content of an append, until a garbage collection.
    except (Exception, asyncio.CancelledError) as err:  # noqa: BLE001
        code = call.broke(err).go_name
    finally:
        metrics.end(began, code)
        call.finished()
