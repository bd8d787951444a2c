"""The receiving half of a connection: what comes is cut into requests, which are received where they belong.

A large request is received into its own memory, once there is room for it, and is not copied. Nothing more is received while too
many requests wait to be handled, or one waits for room.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from typing_extensions import override

from gazette_platform.kafka.access import Access
from gazette_platform.kafka.wire import SIZE_BYTES, Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.kafka.access import Quota
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.gateway import KafkaMetrics
    from gazette_platform.kafka.wire import Api
    from gazette_platform.kafka.wire.bounds import Budget, Complaints
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.serving.auth import Authenticator

_SIZE: Final = struct.Struct(">i")
# Requests that are read and not handled yet.
_READ_AHEAD_MAX: Final = 4
# Of clients that have not logged in.
_LOGIN_BYTES_MAX: Final = 1 << 16
_LOGIN_S: Final = 30.0
# A request has room once as much of it has come; then each further piece of this size must come within this time.
_PIECE_BYTES: Final = 256 << 10
_PIECE_S: Final = 30.0
# Before, its place has no more than this many times what came, or one of the least size.
_AHEAD: Final = 4
_LEAST_BYTES: Final = 1 << 10
# What is received at once, unless a large request goes on.
_SCRATCH_BYTES: Final = 64 << 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the connections of a gateway have in common.

    Attributes:
        apis: by key.
        budget: of bytes of requests.
        quotas: what callers may produce and fetch, by the key of the call.
        auth: verifies tokens.
        complaints: about clients.
        tasks: that handle calls.
        most: connections that may be open.
        open: those that are.
    """

    apis: Mapping[int, Api]
    config: KafkaConfig
    budget: Budget
    quotas: Mapping[int, Quota]
    faults: Faults
    metrics: KafkaMetrics
    auth: Authenticator
    complaints: Complaints
    tasks: TaskGroup
    most: int
    open: set[Any] = field(default_factory=set)


class _Scratch(threading.local):
    """Where a thread's event loop receives; what came is copied before it receives again."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_SCRATCH_BYTES))


_scratch = _Scratch()


class Receiver(asyncio.BufferedProtocol):
    """Receives requests.

    Attributes:
        transport: that they come by.
        loop: of the transport.
        shared: with other connections.
        access: what the client may do.
        frames: requests that were not handled yet.
        held: bytes of the budget, of requests that were not answered yet.
        is_ended: whether no request comes any more.
    """

    transport: asyncio.Transport

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.access = Access(shared.auth)
        self.loop = asyncio.get_running_loop()
        self.frames: deque[bytes | bytearray] = deque()
        self.held = 0
        self.is_ended = False
        self._frame: bytearray | None = None  # of a request that has not come as a whole
        self._place: memoryview | None = None  # where more of it goes; None: it waits for room
        self._size = self._filled = self._room = self._piece_end = 0
        self._rest = b""  # what came, and is not looked at yet
        self._asking: asyncio.Task[None] | None = None  # for room
        self._is_stalled = self._has_eof = False
        self._since = self.loop.time()

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """End at once."""

    @abstractmethod
    def wake(self) -> None:
        """A request came, or none comes any more."""

    @abstractmethod
    def watch(self) -> None:
        """What is next to come to its time may have changed."""

    @abstractmethod
    def end_soon(self) -> None:
        """The client has closed its end: no request comes any more."""

    @property
    def due(self) -> float | None:
        """When the client has sent nothing for too long; None: it does not have to."""
        if self.is_ended or self._is_stalled:
            return None
        idle_s = self.shared.config.idle_s
        if self.access.is_closed:
            idle_s = min(idle_s, _LOGIN_S)
        return self._since + (idle_s if self._frame is None else min(idle_s, _PIECE_S))

    def drop(self) -> None:
        """Forget what was received."""
        self.is_ended = True
        if self._asking is not None:
            self._asking.cancel()
        self._frame = self._place = None
        self.frames.clear()
        self.shared.budget.give(self.held)
        self.held = 0

    @override
    def eof_received(self) -> bool:
        self._has_eof = True
        if not self._is_stalled:
            self.end_soon()
        # A producer that waits for no answers sends, and closes.
        return self.transport.get_extra_info("sslcontext") is None

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport is to receive."""
        return _scratch.view if self._place is None else self._place[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        if self.is_ended:
            return
        try:
            if self._place is not None:
                self._filled += nbytes
                self._go_on_with_frame()
                return
            came = bytes(_scratch.view[:nbytes])
            self._rest = self._rest + came if self._rest else came
            self._cut()
        except Malformed as err:
            self.fail(err)

    def _cut(self) -> None:
        """Cut what came into requests. Raises: Malformed."""
        rest, at = self._rest, 0
        while at < len(rest) and not self._is_stalled:
            place = self._place
            if place is not None:
                part = rest[at : at + len(place) - self._filled]
                place[self._filled : self._filled + len(part)] = part
                self._filled += len(part)
                at += len(part)
                self._go_on_with_frame()
                continue
            if len(rest) - at < SIZE_BYTES:
                break
            (size,) = _SIZE.unpack_from(rest, at)
            self._check_size(size)
            at += SIZE_BYTES
            if len(rest) - at >= size and (room := self.shared.budget.take_now(size)) is not None:
                self.held += room
                self._put(rest[at : at + size])
                at += size
                continue
            self._size, self._filled = size, 0
            self._place_of(b"", min(size, _PIECE_BYTES, _AHEAD * max(len(rest) - at, _LEAST_BYTES)))
            self._since = self.loop.time()
            self.watch()
        self._rest = rest[at:]

    def _check_size(self, size: int) -> None:
        most = self.shared.config.request_bytes_max
        if not 0 < size <= most:
            raise Malformed(f"a request of {size} bytes (--kafka.request-bytes-max is {most})")
        if size > _LOGIN_BYTES_MAX and self.access.is_closed:
            raise Malformed(f"a request of {size} bytes: {self.access.why}")

    def _go_on_with_frame(self) -> None:
        """Take what came of a large request. Half a request holds its room no longer than it keeps coming."""
        frame = self._frame
        if frame is None or self._filled < min(len(frame), _PIECE_BYTES):
            return
        if len(frame) < min(self._size, _PIECE_BYTES):
            self._place_of(frame, min(self._size, _PIECE_BYTES, _AHEAD * len(frame)))
            return
        if not self._room:
            room = self.shared.budget.take_now(self._size)
            if room is None:
                self._place = None
                self._asking = self.shared.tasks.spawn(self._ask_room(self._size), name="room")
                self._stall()
                return
            self._room, self._piece_end = room, self._filled
            self.held += room
        if self._filled == self._size:
            self._frame = self._place = None
            self._room = 0
            self._put(frame)
            return
        if len(frame) < self._size:
            self._place_of(frame, self._size)
        if self._filled >= self._piece_end:
            self._piece_end = self._filled + _PIECE_BYTES
            self._since = self.loop.time()

    def _place_of(self, came: bytes | bytearray, size: int) -> None:
        """Make a place for what came of a request, and for more."""
        self._frame = bytearray(size)
        self._frame[: len(came)] = came
        self._place = memoryview(self._frame)

    async def _ask_room(self, size: int) -> None:
        self._room = await self.shared.budget.take(size)
        self._piece_end = self._filled
        self.held += self._room
        self._asking = None
        try:
            self.go_on()
        except Malformed as err:
            self.fail(err)

    def _put(self, frame: bytes | bytearray) -> None:
        """Have a request handled."""
        self.frames.append(frame)
        self._since = self.loop.time()
        if len(self.frames) >= _READ_AHEAD_MAX:
            self._stall()
        self.wake()

    def _stall(self) -> None:
        if not self._is_stalled:
            self._is_stalled = True
            if not self.transport.is_closing():
                self.transport.pause_reading()

    def go_on(self) -> None:
        """Receive more, if there is room. Raises: Malformed."""
        if not self._is_stalled or self._asking or len(self.frames) >= _READ_AHEAD_MAX:
            return
        self._is_stalled, self._since = False, self.loop.time()
        if self._frame is not None:
            self._place = memoryview(self._frame)
            self._go_on_with_frame()
        if self.is_ended:
            return
        self._cut()
        if self._is_stalled:
            return
        if self._has_eof:
            self.end_soon()
        elif not self.transport.is_closing():
            self.transport.resume_reading()
            self.watch()
