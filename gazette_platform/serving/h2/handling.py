"""How handlers of calls are run and counted, whatever their calls come by: a connection, or this process itself.

A call's task begins when its first message is whole, or at once if both sides are streams. A call whose
messages are all here needs none, if its method can be served so.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from gazette_platform.serving.h2.responses import STATUS_OF, Status
from gazette_platform.serving.interface import ASK_AGAIN, Code, Kind, NotTaken, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_platform.serving.calls import MethodMetrics
    from gazette_platform.serving.h2.carrier import Deadlines
    from gazette_platform.serving.interface import AtOnce, Metadata, Rpc

_log = logging.getLogger(__name__)

GONE = "the caller has gone"
_NOTHING: Metadata = {}


@final
@dataclass(frozen=True, slots=True)
class Method:
    """A method that is served."""

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


def not_taken(limit_s: float) -> NotTaken:
    """The error of a response that its caller did not take in time."""
    return NotTaken(
        Code.UNAVAILABLE, f"nothing was taken of the responses for {limit_s:g} s{ASK_AGAIN}"
    )


class Runner(Protocol):
    """Where calls come from, one after the other.

    Attributes:
        tasks: of all handlers of the server that run.
        unstarted: tasks of calls that have not taken their first step.
    """

    loop: asyncio.AbstractEventLoop
    deadlines: Deadlines
    tasks: set[asyncio.Task[None]]
    unstarted: int


class Handled:
    """A call and its handler. To this it is a `ContentSource` or a `ServedCall`, and its `send` a `Send`.

    Attributes:
        task: runs the handler; None: it has not begun, or the call is served without one.
        trailing: what the caller hears after all messages.
        has_run: whether the handler was given the call.
        is_closed: whether the call is over.
        is_ended: whether the caller has ended its side.
        is_greeted: whether the headers of the response are sent.
    """

    # Its kinds have the slots: a class has one base with slots at most. mypy looks at no slots that are not a literal.
    __slots__ = tuple[str, ...]()

    method: Method
    task: asyncio.Task[None] | None
    trailing: Metadata
    has_run: bool
    is_closed: bool
    is_ended: bool
    is_greeted: bool
    _connection: Any
    _metadata: Metadata
    _status: Status
    _step: int
    _began_at: float
    _cancel: Callable[[], object] | None

    def set_up(self, method: Method, metadata: Metadata) -> None:
        """Be a call of a method, with what its caller says of itself."""
        self.method = method
        self._metadata = metadata
        self.trailing = _NOTHING
        self.task = None
        self.has_run = False
        self._step = 0
        self._status = Status.CANCELLED
        self._began_at = 0.0
        # Ends a call that is served without a task.
        self._cancel = None

    # ------------------------------------------------------------------------ of what it comes by
    @abstractmethod
    async def next(self) -> bytes | None:
        """As `ContentSource` and `MessageStream` have it."""

    @abstractmethod
    async def send(self, raw: bytes) -> None:
        """As `MessageStream` and `Send` have it."""

    @abstractmethod
    async def greet(self, metadata: Metadata) -> None:
        """As `MessageStream` has it."""

    @abstractmethod
    async def answer(self, raw: bytes) -> None:
        """Send the one response, and end the call."""

    @abstractmethod
    def answer_now(self, raw: bytes) -> bool:
        """As `answer`, if there is room. Returns: whether the call is over."""

    @abstractmethod
    def succeed(self) -> None:
        """End the call without an error, unless it is over."""

    @abstractmethod
    def fail(self, status: Status, text: str) -> None:
        """End the call with an error, unless it is over."""

    @abstractmethod
    def all_here(self) -> Sequence[bytes] | None:
        """All messages of a caller that has ended its side, which stay; None: they are for the handler to take."""

    @abstractmethod
    def drop_all(self) -> None:
        """Let go of all messages."""

    @abstractmethod
    def wake(self) -> bool:
        """Go on with what waits for messages. Returns: whether something did."""

    @abstractmethod
    def make_room(self) -> None:
        """Go on with what waits to send, if it can."""

    # ------------------------------------------------------------------------------- its begin
    def begin(self) -> None:
        """Run the handler."""
        self._run(_serve(self))

    def _run(self, work: Any) -> None:
        connection: Runner = self._connection
        connection.unstarted += 1
        self.task = connection.loop.create_task(work)
        connection.tasks.add(self.task)

    def begin_at_once(self) -> bool:
        """Serve the call without a task, if its messages are all here, and its method can be served so.

        Returns: whether it is.
        """
        at_once, messages = self.method.at_once, None
        # It must not overtake what came before it, and waits for its first step.
        if at_once is not None and self.is_ended and not self._connection.unstarted:
            messages = self.all_here()
        if at_once is None or not messages:
            return False
        failure: Exception | None = None
        try:
            self._cancel = at_once(messages[0], messages[1:], self._metadata, self)
        except Exception as err:  # noqa: BLE001  ends only this call, as in `_serve`
            failure = err
        if self._cancel is None and failure is None:
            return False
        self.drop_all()
        metrics = self.method.metrics
        metrics.received.count += len(messages)
        self._began_at = metrics.begin()
        self.has_run = True
        if failure is not None:
            self._end_at_once(self.broke(failure).go_name)
        return True

    def expire_in(self, timeout_s: float) -> None:
        """Set the deadline."""
        self._step = self._connection.deadlines.add(self, timeout_s)

    def expire(self) -> None:
        """The deadline has come."""
        self._step = 0
        self.end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def time_left_s(self) -> float | None:
        """As `ServedCall` has it."""
        return self._connection.deadlines.left_s(self._step) if self._step else None

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
        if self.answer_now(raw):
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
        self._cancel = None
        self.has_run = False
        self._run(_serve(self, rest))

    def _end_at_once(self, code: str) -> None:
        """A call has ended that was served without a task."""
        self._cancel = None
        self.method.metrics.end(self._began_at, code)
        self.finished()

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


async def _serve(call: Handled, rest: Callable[[], Awaitable[bytes]] | None = None) -> None:
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
