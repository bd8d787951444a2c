"""A call, as its handler sees it, and how handlers are run.

A call's task begins when its first message is whole, or at once if both sides are streams. A call whose
messages have all come in one read needs none, if its method can be served so. Nothing here makes a future for
a message that has come, or for one that can be sent.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from gazette_platform.serving.h2 import responses
from gazette_platform.serving.h2.carrier import BURST_BYTES, Carrier, TwoWay
from gazette_platform.serving.h2.responses import PREFIX_BYTES, STATUS_OF, Status
from gazette_platform.serving.h2.stream import MessageRefused
from gazette_platform.serving.interface import ASK_AGAIN, Code, Kind, NotTaken, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.serving.calls import MethodMetrics
    from gazette_platform.serving.interface import AtOnce, Metadata, Rpc

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
    at_once: AtOnce | None


def method_of(rpc: Rpc, metrics: MethodMetrics) -> Method:
    """Return the method that serves an RPC."""
    has_one_response = rpc.kind in {Kind.UNARY, Kind.CLIENT_STREAM}
    at_once = rpc.at_once if has_one_response else None
    return Method(rpc.kind, rpc.handler, metrics, has_one_response, rpc.greeting, at_once)


@final
class Call(TwoWay[Carrier]):
    """A call. To its handler it is a `ContentSource` or a `ServedCall`, and its `send` a `Send`.

    Attributes:
        task: runs the handler; None: it has not begun, or the call is served without one.
        trailing: what the caller hears after all messages.
        has_run: whether the handler was given the call.
    """

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
        self.method = method
        self._metadata = metadata
        self.trailing: Metadata = _NOTHING
        self.task: asyncio.Task[None] | None = None
        self.has_run = False
        self._step = 0
        self._status = Status.CANCELLED
        self._began_at = 0.0
        # Ends a call that is served without a task.
        self._cancel: Callable[[], object] | None = None

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
        connection.unstarted += 1
        self.task = connection.loop.create_task(_serve(self))
        connection.tasks.add(self.task)

    def begin_at_once(self) -> bool:
        """Serve the call without a task, if its messages are all here, and its method can be served so.

        Returns: whether it is.
        """
        at_once, connection, messages = self.method.at_once, self._connection, None
        # It must not overtake what came before it, and waits for its first step.
        if at_once is not None and self.is_ended and not connection.unstarted:
            messages = connection.all_of(self)
        if at_once is None or not messages:
            return False
        failure: Exception | None = None
        try:
            self._cancel = at_once(messages[0], messages[1:], self._metadata, self)
        except Exception as err:  # noqa: BLE001  ends only this call, as in `_serve`
            failure = err
        if self._cancel is None and failure is None:
            return False
        connection.drop_all(self)
        metrics = self.method.metrics
        metrics.received.count += len(messages)
        self._began_at = metrics.begin()
        self.has_run = True
        if failure is not None:
            self._end_at_once(self.broke(failure).go_name)
        return True

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
        if self._cancel is not None:
            self._cancel()
            self._end_at_once(status.go_name)
        elif self.task is None:
            self._left()
        elif not self.task.done():
            self.task.add_done_callback(self._left)
            self.task.cancel()

    def _left(self, _: object = None) -> None:
        """Count a call whose handler has not run: its task was cancelled before, or never made."""
        if not self.has_run:
            self.has_run = True
            metrics = self.method.metrics
            metrics.end(self._began_at or metrics.begin(), self._status.go_name)
            self.finished()
            if self.task is not None:
                self._connection.unstarted -= 1

    # ------------------------------------------------------------------------------------ its end
    def reply(self, raw: bytes) -> None:
        """As `Waiting` has it."""
        if self._answer(raw):
            self._end_at_once("OK")
            return

        async def rest() -> bytes:
            return raw

        self.go_on(rest)

    def refuse(self, err: RpcFailed) -> None:
        """As `Waiting` has it."""
        self._end_at_once(self.broke(err).go_name)

    def go_on(self, rest: Callable[[], Awaitable[bytes]]) -> None:
        """As `Waiting` has it."""
        connection = self._connection
        self._cancel = None
        self.has_run = False
        connection.unstarted += 1
        self.task = connection.loop.create_task(_serve(self, rest))
        connection.tasks.add(self.task)

    def _end_at_once(self, code: str) -> None:
        """A call has ended that was served without a task."""
        self._cancel = None
        self.method.metrics.end(self._began_at, code)
        self.finished()

    def _answer(self, raw: bytes) -> bool:
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

    async def answer(self, raw: bytes) -> None:
        """Send the one response, and end the call."""
        if not self._answer(raw):
            await self._send_parts(raw)
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

    def started(self) -> float:
        """The task takes its first step. Returns: when the call began."""
        self.has_run = True
        self._connection.unstarted -= 1
        return self._began_at or self.method.metrics.begin()

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


async def _serve(call: Call, rest: Callable[[], Awaitable[bytes]] | None = None) -> None:
    """Run the handler, or the rest of a call that began without a task."""
    code, began_at = "OK", call.started()
    try:
        if rest is not None:
            await call.answer(await rest())
        elif call.method.has_one_response:
            await call.run_once()
        else:
            await call.run_stream()
    # The errors of a handler end only its call. A task that ended by an error would keep it, and so all
    # that its frames hold, such as the content of an append, until a garbage collection.
    except (Exception, asyncio.CancelledError) as err:  # noqa: BLE001
        code = call.broke(err).go_name
    finally:
        call.method.metrics.end(began_at, code)
        call.finished()
