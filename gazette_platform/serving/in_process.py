"""Calls of a process to its own services, without a connection between.

They are served by the handlers, and with the metadata, of calls that come by a port: tokens decide alike, deadlines and cancellation
reach the handler, and a side that does not read is sent no more than a bound. Messages are passed on as they are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Final, final

from typing_extensions import override

from gazette_platform.serving.h2.carrier import Deadlines
from gazette_platform.serving.h2.client_call import LATE
from gazette_platform.serving.h2.client_machine import code_of
from gazette_platform.serving.h2.handling import GONE, Handled, Method, method_of, not_taken
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.h2.stream import MESSAGE_COST, larger_than
from gazette_platform.serving.interface import (
    PEER_LEFT,
    READ_AHEAD_BYTES,
    Code,
    Condition,
    Kind,
    NotTaken,
    RpcFailed,
    sole_response,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_platform.serving.calls import CallMetrics
    from gazette_platform.serving.interface import Metadata, Rpc

# Bytes of responses that wait for their caller: a large message of a read, or many small ones.
_RESPONSE_BYTES: Final = 1 << 20
# As of servers with a port.
_STALL_S: Final = 60.0
_END_S: Final = 2.0
_HERE: Final = "in this process"


@final
class _Lane:
    """Messages on their way from one side of a call to the other. One task may wait at each end."""

    __slots__ = ("_bytes", "_bytes_max", "_room", "_waiter", "messages")

    def __init__(self, bytes_max: int) -> None:
        self.messages: deque[bytes] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def size(self) -> int:
        """Bytes that wait, with what messages cost."""
        return self._bytes

    def put(self, raw: bytes) -> bool:
        """Add a message, if there is room, or none waits. Returns: whether it was added."""
        size = len(raw) + MESSAGE_COST
        if self.messages and self._bytes + size > self._bytes_max:
            return False
        self.messages.append(raw)
        self._bytes += size
        self.wake()
        return True

    def take(self) -> bytes:
        """Remove the first message; there is one."""
        raw = self.messages.popleft()
        self._bytes -= len(raw) + MESSAGE_COST
        self.make_room()
        return raw

    def clear(self) -> None:
        """Remove all."""
        self.messages.clear()
        self._bytes = 0
        self.make_room()

    async def wait(self) -> None:
        """Wait for `wake`."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> bool:
        """Go on with what waits for messages. Returns: whether something did."""
        return _set(self._waiter)

    async def wait_room(self) -> None:
        """Wait for `make_room`."""
        self._room = asyncio.get_running_loop().create_future()
        try:
            await self._room
        finally:
            self._room = None

    def make_room(self) -> None:
        """Go on with what waits to send."""
        _set(self._room)


def _set(waiter: asyncio.Future[None] | None) -> bool:
    if waiter is None:
        return False
    if not waiter.done():
        waiter.set_result(None)
    return True


@final
class _Served(Handled):
    """A call, as its handler sees it.

    Attributes:
        caller: None: the call is over.
        is_due: whether its begin is under way.
    """

    __slots__ = (
        "_began_at",
        "_cancel",
        "_connection",
        "_metadata",
        "_requests",
        "_responses",
        "_status",
        "_step",
        "caller",
        "has_run",
        "is_closed",
        "is_due",
        "is_ended",
        "is_greeted",
        "method",
        "task",
        "trailing",
    )

    def __init__(
        self, channel: LocalChannel, caller: LocalCall, method: Method, metadata: Metadata
    ) -> None:
        self._connection = channel
        self.caller: LocalCall | None = caller
        self._requests = caller.requests
        self._responses = caller.responses
        self.is_closed = self.is_ended = self.is_greeted = False
        self.is_due = False
        self.set_up(method, metadata)

    # --------------------------------------------------------------------------- for its handler
    @property
    def peer(self) -> str:
        """As `ServedCall` has it."""
        return _HERE

    @override
    def time_left_s(self) -> float | None:
        return None if self.caller is None else self.caller.time_left_s()

    @override
    async def next(self) -> bytes | None:
        requests = self._requests
        while not requests.messages:
            if self.is_closed:
                raise RpcFailed(Code.CANCELLED, GONE)
            if self.is_ended:
                return None
            await requests.wait()
        self.method.metrics.received.count += 1
        return requests.take()

    def take_all(self, bytes_max: int) -> list[bytes] | None:
        """As `ContentSource` has it."""
        requests = self._requests
        if not self.is_ended or self.is_closed or requests.size > bytes_max:
            return None
        messages = [*requests.messages]
        requests.clear()
        self.method.metrics.received.count += len(messages)
        return messages

    @override
    async def send(self, raw: bytes) -> None:
        if self.is_closed:
            raise NotTaken(Code.CANCELLED, GONE)
        if not self.is_greeted:
            await self.greet({})
        if not self._responses.put(raw):
            limit_s = _STALL_S if self.method.kind is Kind.SERVER_STREAM else None
            try:
                async with asyncio.timeout(limit_s):
                    await self._put(raw)
            except TimeoutError as err:
                raise not_taken(_STALL_S) from err
        self.method.metrics.sent.count += 1

    async def _put(self, raw: bytes) -> None:
        while not self._responses.put(raw):
            await self._responses.wait_room()
            if self.is_closed:
                raise NotTaken(Code.CANCELLED, GONE)

    @override
    async def greet(self, metadata: Metadata) -> None:
        caller = self.caller
        if caller is None:
            raise RpcFailed(Code.CANCELLED, GONE)
        if not self.is_greeted:
            self.is_greeted = True
            caller.greeted(metadata)

    @override
    async def answer(self, raw: bytes) -> None:
        self.answer_now(raw)

    @override
    def answer_now(self, raw: bytes) -> bool:
        if not self.is_closed:
            self._responses.put(raw)
            self.method.metrics.sent.count += 1
            self.succeed()
        return True

    # -------------------------------------------------------------------------------- for its end
    @override
    def succeed(self) -> None:
        self._close(None)

    @override
    def fail(self, status: Status, text: str) -> None:
        self._close((code_of(status), text))

    def _close(self, failure: tuple[Code, str] | None) -> None:
        caller, self.caller = self.caller, None
        self.is_closed = True
        if caller is not None:
            caller.over(failure)

    def abandon(self, status: Status) -> None:
        """The caller has ended the call."""
        self.caller = None
        self.is_closed = True
        self._requests.clear()
        self.leave(status)

    @override
    def all_here(self) -> Sequence[bytes] | None:
        return [*self._requests.messages]

    @override
    def drop_all(self) -> None:
        self._requests.clear()

    @override
    def wake(self) -> bool:
        return self._requests.wake()

    @override
    def make_room(self) -> None:
        self._responses.make_room()


@final
class LocalCall:
    """A `ClientCall` of a `LocalChannel`.

    Attributes:
        is_over: whether its status is known.
        has_expired: whether it was ended by its deadline.
        on_over: called once its status is known.
    """

    __slots__ = (
        "_channel",
        "_failure",
        "_greeting",
        "_served",
        "_step",
        "has_expired",
        "is_over",
        "on_over",
        "requests",
        "responses",
    )

    def __init__(self, channel: LocalChannel, method: Method | None, metadata: Metadata) -> None:
        self._channel = channel
        self.requests = _Lane(READ_AHEAD_BYTES)
        self.responses = _Lane(_RESPONSE_BYTES)
        self._failure: tuple[Code, str] | None = None
        self._greeting: Mapping[str, str] | None = None
        self._step = 0
        self.is_over = self.has_expired = False
        self.on_over: Callable[[], object] | None = None
        self._served: _Served | None = None
        if method is not None:
            self._served = _Served(channel, self, method, metadata)
            channel.calls.add(self)
            if method.kind is Kind.BIDI_STREAM:
                channel.begin_soon(self._served)

    # ---------------------------------------------------------------------------- for its caller
    async def send(self, raw: bytes) -> None:
        """As `OutgoingCall` has it."""
        while not self.send_now(raw):
            if self.is_over:
                raise self._gone()
            await self.requests.wait_room()

    def send_now(self, raw: bytes) -> bool:
        """As `OutgoingCall` has it."""
        served = self._served
        if served is None:
            return False
        bytes_max = self._channel.recv_bytes_max
        if len(raw) > bytes_max:
            refused = larger_than(len(raw), bytes_max)
            served.end(Status(refused.number), refused.text)
            return False
        if not self.requests.put(raw):
            return False
        self._progress(served)
        return True

    def _progress(self, served: _Served) -> None:
        """Begin to serve, unless that was done."""
        if not served.is_due:
            self._channel.begin_soon(served)

    async def done_sending(self) -> None:
        """As `OutgoingCall` has it."""
        if not self.end_now():
            raise self._gone()

    def end_now(self) -> bool:
        """As `OutgoingCall` has it."""
        served = self._served
        if served is None:
            return False
        served.is_ended = True
        served.wake()
        self._progress(served)
        return True

    async def next(self) -> bytes | None:
        """As `OutgoingCall` has it."""
        responses = self.responses
        while not responses.messages:
            if self._failure is not None:
                raise RpcFailed(*self._failure)
            if self.is_over:
                return None
            await responses.wait()
        return responses.take()

    def listen(self, take: Callable[[bytes], None]) -> None:
        """As `OutgoingCall` has it."""

    async def answer(self) -> bytes:
        """As `OutgoingCall` has it."""
        return await sole_response(self)

    async def greeting(self) -> Mapping[str, str]:
        """As `OutgoingCall` has it."""
        while self._greeting is None and not self.responses.messages and not self.is_over:
            await self.responses.wait()
        if self._greeting is None and self._failure is not None:
            raise RpcFailed(*self._failure)
        return self._greeting or {}

    def cancel(self) -> None:
        """As `OutgoingCall` has it."""
        self.break_off(Code.UNAVAILABLE, PEER_LEFT)

    def expire_in(self, timeout_s: float | None) -> None:
        """As `ClientCall` has it."""
        deadlines = self._channel.deadlines
        if self._step:
            deadlines.discard(self, self._step)
        has_one = timeout_s is not None and not self.is_over
        self._step = deadlines.add(self, timeout_s or 0.0) if has_one else 0

    def time_left_s(self) -> float | None:
        """As `ServedCall` has it."""
        return self._channel.deadlines.left_s(self._step) if self._step else None

    def expire(self) -> None:
        """The deadline has come."""
        self._step = 0
        self.has_expired = not self.is_over
        self.break_off(Code.DEADLINE_EXCEEDED, LATE, Status.DEADLINE_EXCEEDED)

    def _gone(self) -> RpcFailed:
        return RpcFailed(*(self._failure or (Code.UNKNOWN, "the call is over")))

    # --------------------------------------------------------------------------- for its channel
    def begin(self, request: bytes) -> None:
        """Send the only request."""
        if self.send_now(request):
            self.end_now()

    def break_off(self, code: Code, text: str, status: Status = Status.CANCELLED) -> None:
        """End the call, unless it is over."""
        served = self._served
        if self.is_over:
            return
        self.responses.clear()
        self.over((code, text))
        if served is not None:
            served.abandon(status)

    def greeted(self, metadata: Mapping[str, str]) -> None:
        """The headers of the response came."""
        self._greeting = metadata
        self.responses.wake()

    def over(self, failure: tuple[Code, str] | None) -> None:
        """The call has ended."""
        self._served = None
        self.is_over = True
        self._failure = failure
        if self._step:
            self._channel.deadlines.discard(self, self._step)
            self._step = 0
        self._channel.calls.discard(self)
        if self.on_over is not None:
            self.on_over()
        self.responses.wake()
        self.requests.make_room()


@final
class LocalChannel:
    """A `ClientChannel` to services of this process.

    Attributes:
        calls: that are not over.
        recv_bytes_max: largest request.

    Args:
        rpcs: that are served.
        metrics: counts the calls.
    """

    def __init__(self, rpcs: Iterable[Rpc], metrics: CallMetrics, *, recv_bytes_max: int) -> None:
        self.recv_bytes_max = recv_bytes_max
        self.deadlines = Deadlines()
        self.tasks: set[asyncio.Task[None]] = set()
        self.unstarted = 0
        self.calls: set[LocalCall] = set()
        self._methods = {
            f"/{rpc.service}/{rpc.name}": method_of(
                rpc, metrics.of(rpc.kind.value, rpc.service, rpc.name)
            )
            for rpc in rpcs
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon: list[_Served] = []
        self._closed_why = ""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of all calls."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self.deadlines.start(self._loop)
        return self._loop

    def call(
        self,
        method: str,
        kind: Kind,  # noqa: ARG002
        metadata: Sequence[tuple[str, str]] = (),
        request: bytes | None = None,
        *,
        timeout_s: float | None = None,
    ) -> LocalCall:
        """As `ClientChannel` has it."""
        loop, found = self.loop, self._methods.get(method)
        failure = Code.UNAVAILABLE, self._closed_why
        if found is None:
            failure = Code.UNIMPLEMENTED, "Method not found!"
        if self._closed_why or found is None:
            call = LocalCall(self, None, {})
            loop.call_soon(call.break_off, *failure)
            return call
        call = LocalCall(self, found, dict(metadata))
        if timeout_s is not None:
            call.expire_in(timeout_s)
        if request is not None:
            call.begin(request)
        return call

    def begin_soon(self, served: _Served) -> None:
        """Serve a call once its caller has sent what it has, but in turn."""
        served.is_due = True
        self._soon.append(served)
        if len(self._soon) == 1:
            self.loop.call_soon(self._begin_all, context=Context())

    def _begin_all(self) -> None:
        soon, self._soon = self._soon, []
        for served in soon:
            if not served.is_closed and not served.begin_at_once():
                served.begin()

    async def connected(self) -> bool:
        """As `ClientChannel` has it."""
        return not self._closed_why

    @property
    def condition(self) -> Condition:
        """As `OutgoingChannel` has it."""
        return Condition.FAILED if self._closed_why else Condition.HERE

    async def close(self, why: str = PEER_LEFT) -> None:
        """As `ClientChannel` has it."""
        self._closed_why = why
        for call in [*self.calls]:
            call.break_off(Code.UNAVAILABLE, why)
        if self.tasks:
            await asyncio.wait([*self.tasks], timeout=_END_S)
        self.deadlines.stop()
