"""What calls of both sides rest on: an endpoint with a transport, deadlines, and a stream that can be waited for."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, final

from typing_extensions import override

from gazette_platform.serving.h2 import responses
from gazette_platform.serving.h2.client_machine import ClientMachine
from gazette_platform.serving.h2.endpoint import Endpoint
from gazette_platform.serving.h2.responses import PREFIX_BYTES
from gazette_platform.serving.h2.server_machine import Machine
from gazette_platform.serving.h2.stream import Stream

if TYPE_CHECKING:
    import asyncio


# Deadlines are kept to this precision, so that a call costs two operations on sets and no timer. Clients
# watch their deadlines themselves.
_STEP_S: Final = 0.02

# A call that may last for longer has no deadline to speak of; timers may not know so large a number.
_LIMIT_S: Final = 30 * 24 * 3600.0


class Expiring(Protocol):
    """A call, as its deadline knows it."""

    def expire(self) -> None:
        """The deadline has come."""


@final
class Deadlines:
    """Deadlines of the calls of one server, by steps of time; one timer serves all of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: dict[int, set[Expiring]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_step = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the timers of `loop`."""
        self._loop = loop

    def add(self, call: Expiring, timeout_s: float) -> int:
        """Let a call expire in so many seconds. Returns: what to pass to `discard`."""
        assert self._loop is not None
        step = int((self._loop.time() + min(timeout_s, _LIMIT_S)) / _STEP_S) + 1
        calls = self._steps.get(step)
        if calls is None:
            calls = self._steps[step] = set()
            if self._timer is None or step < self._timer_step:
                self._arm(self._loop, step)
        calls.add(call)
        return step

    def left_s(self, step: int) -> float:
        """Return the seconds until a deadline, which `add` returned."""
        assert self._loop is not None
        return max(0.0, step * _STEP_S - self._loop.time())

    def discard(self, call: Expiring, step: int) -> None:
        """A call has ended before its deadline."""
        calls = self._steps.get(step)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._steps[step]

    def stop(self) -> None:
        """Let no more calls expire."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._steps.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop, step: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_step = step
        self._timer = loop.call_at(step * _STEP_S, self._expire)

    def _expire(self) -> None:
        assert self._loop is not None
        now = self._loop.time() / _STEP_S
        self._timer = None
        for step in [step for step in self._steps if step <= now]:
            for call in self._steps.pop(step):
                call.expire()
        if self._steps:
            self._arm(self._loop, min(self._steps))


# Larger pieces are written as they are: to copy them costs more than another piece.
_WHOLE_BYTES: Final = 32 << 10

WRITE_BYTES: Final = 256 << 10
"""Bytes that a transport may hold before those that send wait. Peers allow 64 KiB of most streams."""


# What is read at once, unless a message goes on that is received where it belongs.
_READ_BYTES: Final = 64 << 10


class _Scratch(threading.local):
    """Where a thread's event loop reads; what came is copied before it reads again."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


_scratch = _Scratch()


class Sending(Endpoint):
    """An endpoint with a transport.

    Attributes:
        is_paused: whether the transport has enough to write.
        blocked: calls that wait for room; whoever has waited longest goes first.
    """

    loop: asyncio.AbstractEventLoop
    is_paused: bool
    blocked: dict[Any, None]
    _transport: asyncio.Transport | None
    _alive_at: float
    _pinged_at: float
    _is_placed = False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the transport is to read, as `asyncio.BufferedProtocol` has it."""
        place = self.place()
        self._is_placed = place is not None
        return _scratch.view if place is None else place

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        # Both marks: a loop's clock may be so coarse that a ping and its answer have the same time.
        self._alive_at, self._pinged_at = self.loop.time(), 0.0
        if self._is_placed:
            self.filled(nbytes)
        else:
            self.receive(bytes(_scratch.view[:nbytes]))
        self.on_input()

    @abstractmethod
    def on_input(self) -> None:
        """Something came, and all its events are through."""

    def flush(self) -> None:
        """Write all that was collected."""
        size, pieces = self.out_bytes, self.take_out()
        transport = self._transport
        if transport is None or not pieces or transport.is_closing():
            return
        # `writelines` does not copy, but before 3.12.9 and 3.13.2 it never says that the transport has enough
        # (CPython issue 127655), and it may hang on an empty last piece (issue 155888).
        if size < _WHOLE_BYTES:
            transport.write(b"".join(pieces))
            return
        small: list[bytes | memoryview] = []
        for piece in pieces:
            if len(piece) < _WHOLE_BYTES:
                small.append(piece)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(piece)
        if small:
            transport.write(b"".join(small))

    @abstractmethod
    def _close(self) -> None:
        """Close the connection, which has nothing more to do."""

    @override
    def on_room(self, stream: Any | None) -> None:
        for call in tuple(self.blocked) if stream is None else (stream,):
            call.make_room()

    @override
    def on_idle(self) -> None:
        self.loop.call_soon(self._close)

    @override
    def on_output(self) -> None:
        self.loop.call_soon(self.flush)


class Carrier(Sending, Machine):
    """A machine that runs calls.

    Attributes:
        tasks: of all handlers of the server that run.
        unstarted: tasks of calls that have not taken their first step.
        peer: address of the client, as gRPC writes it.
        report_below: the unread bytes are reported once they are fewer.
    """

    deadlines: Deadlines
    tasks: set[asyncio.Task[None]]
    unstarted: int
    peer: str
    report_below: int

    @abstractmethod
    def report(self) -> None:
        """Count the unread bytes against the budget of the process."""


class ClientCarrier(Sending, ClientMachine):
    """A machine that makes calls.

    Attributes:
        message_bytes_max: largest message to send.
        sending: tasks that send requests which have to wait for room.
    """

    deadlines: Deadlines
    message_bytes_max: int
    sending: set[asyncio.Task[None]]


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
