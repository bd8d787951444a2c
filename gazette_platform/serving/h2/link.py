"""A connection of a channel: the client's machine, with a transport."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, final

from typing_extensions import override

from gazette_platform.serving.h2.answers import Answer, code_of, code_of_reset
from gazette_platform.serving.h2.carrier import WRITE_BYTES, ClientCarrier
from gazette_platform.serving.h2.client_call import LATE, ClientCall
from gazette_platform.serving.h2.frames import ErrorCode
from gazette_platform.serving.interface import Code
from gazette_platform.serving.outgoing import DROPPED

if TYPE_CHECKING:
    from gazette_platform.serving.h2.deadlines import Deadlines
    from gazette_platform.serving.h2.limits import Limits
    from gazette_platform.serving.proxies import Proxy

__all__ = ["Dialing", "Link"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialing:
    """How a channel connects, and how it notices that the other side is gone."""

    limits: Limits
    message_bytes_max: int
    """Largest message, in both directions."""
    ping_every_s: float = 0.0
    """Seconds of silence, while calls are open, after which we ping; 0: never."""
    ping_timeout_s: float = 0.0
    """Seconds without an answer to it after which the connection counts as broken."""
    connect_s: float = 4.0
    """Seconds for a connection, with TLS and the first settings of the other side."""
    proxy: Proxy | None = None
    backoff_s_min: float = 0.05
    backoff_s_max: float = 0.5


class Owner(Protocol):
    """A channel, as its connections know it."""

    dialing: Dialing
    deadlines: Deadlines

    def submit(self, call: ClientCall) -> None:
        """Begin a call, on the connection that takes new ones."""
        ...

    def leave(self, link: Link) -> None:
        """Begin no more calls on a connection."""
        ...

    def forget(self, link: Link) -> None:
        """A connection has ended."""
        ...


@final
class Link(ClientCarrier, asyncio.Protocol):
    """A connection, perhaps one that is yet to be made.

    It reads on while it cannot write: a server does not read while it cannot write, and both must not wait
    for each other.

    Attributes:
        is_ready: whether it is made, and has not ended.
        settled: done once the server has sent its settings; fails if the connection ends before.
        closed: done once the connection has ended.
    """

    def __init__(self, channel: Owner, loop: asyncio.AbstractEventLoop) -> None:
        dialing = channel.dialing
        super().__init__(dialing.limits, dialing.message_bytes_max)
        self.loop = loop
        self.deadlines = channel.deadlines
        self.message_bytes_max = dialing.message_bytes_max
        self.is_paused = self.is_ready = False
        self.blocked = {}
        self.settled: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.sending: set[asyncio.Task[None]] = set()
        self._transport = None
        self._channel = channel
        self._waiting: deque[ClientCall] = deque()
        self._alive_at = self._pinged_at = 0.0
        self._ping_every_s = dialing.ping_every_s
        self._ping_timeout_s = dialing.ping_timeout_s
        self._sweep_s = min(1.0, dialing.ping_every_s / 4 or 1.0, dialing.ping_timeout_s / 4 or 1.0)
        self._sweeping: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------- calls
    def begin(self, call: ClientCall) -> None:
        """Begin a call, once there is a connection with room for it."""
        call.bind(self)
        self._waiting.append(call)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and self.is_ready and self.has_room_for_streams:
            call = self._waiting.popleft()
            if not call.is_over:
                stream_id = self.next_id()
                call.open(stream_id)
                self.streams[stream_id] = call
                call.begin()
        if not self.streams and self._waiting and self._waiting[0].is_over:
            self._waiting.popleft()

    @override
    def _forget(self, stream: Any) -> None:
        super()._forget(stream)
        if self._waiting:
            self.loop.call_soon(self._begin_waiting)

    # --------------------------------------------------------------------------------- transport
    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the server, if it speaks HTTP/2."""
        self._transport = cast("asyncio.Transport", transport)
        if self.is_over:  # we have given up
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.why = "the other side speaks TLS, but no HTTP/2"
            self._transport.abort()
            return
        self.greet()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the calls."""
        said = self.why or (exc and str(exc))
        text = f"Socket closed ({said})" if said else "Socket closed"
        self._transport = None
        self._lose(text)
        if not self.closed.done():
            self.closed.set_result(None)

    @override
    def data_received(self, data: bytes) -> None:
        """Take what came."""
        # Both marks: a loop's clock may be so coarse that a ping and its answer have the same time.
        self._alive_at, self._pinged_at = self.loop.time(), 0.0
        self.receive(data)
        if self.is_over:
            self._close()

    @override
    def pause_writing(self) -> None:
        """Let calls wait."""
        self.is_paused = True

    @override
    def resume_writing(self) -> None:
        """Go on."""
        self.is_paused = False
        self.on_room(None)

    # ----------------------------------------------------------------------------- of the machine
    @override
    def on_ready(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)
            self.is_ready = True
            self._alive_at = self.swept_at = self.loop.time()
            self._sweeping = self.loop.call_later(self._sweep_s, self._sweep)
        self._begin_waiting()

    @override
    def on_answer(self, stream: ClientCall, answer: Answer) -> None:
        if answer.status is None:
            stream.greeted(answer.metadata)
            return
        self.finish(stream, is_sent=stream.is_sent)
        code, text = answer.status
        if code is None:
            stream.succeed()
        elif code is Code.CANCELLED:
            self._dropped(stream)
        else:
            stream.fail(code, text)

    def _dropped(self, stream: ClientCall) -> None:
        """The server has cancelled a call. If its time was up there first, so it is here."""
        if stream.is_late:
            stream.fail(Code.DEADLINE_EXCEEDED, LATE)
        else:
            stream.fail(Code.UNAVAILABLE, f"the process {DROPPED}")

    @override
    def on_progress(self, stream: ClientCall) -> None:
        stream.came()

    @override
    def on_broken(self, stream: ClientCall, number: int, text: str) -> None:
        self.cancel(stream)
        stream.fail(code_of(number), text.removeprefix("SERVER: "))

    @override
    def on_gone(self, stream: ClientCall) -> None:
        stream.fail(Code.INTERNAL, "the other side broke a rule of HTTP/2")

    @override
    def on_reset(self, stream: ClientCall, code: int) -> None:
        found = code_of_reset(code)
        if found is Code.CANCELLED:
            self._dropped(stream)
        else:
            stream.fail(found, f"the other side reset the call (error {code})")

    @override
    def on_unserved(self, stream: ClientCall) -> None:
        if stream.can_repeat:
            stream.can_repeat = False
            self._channel.submit(stream)
        else:
            stream.fail(Code.UNAVAILABLE, f"Socket closed ({self.why or 'the other side leaves'})")

    @override
    def on_going(self) -> None:
        self._channel.leave(self)
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self.loop.call_soon(self._channel.submit, call)

    @override
    def end(self, code: int, text: str) -> None:
        self.why = self.why or text
        super().end(code, text)

    # ------------------------------------------------------------------------------------- its end
    def close_now(self, text: str) -> None:
        """End all calls by this text, and close."""
        if not self.is_over:
            for call in list(self.streams.values()):
                self.cancel(call)
                call.fail(Code.UNAVAILABLE, text)
            self.end(ErrorCode.NO_ERROR, "")
        self._drop(text)
        self._close()
        if self._transport is None and not self.closed.done():
            self.closed.set_result(None)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    @override
    def _close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.flush()
            self._lose(f"Socket closed ({self.why})" if self.why else "Socket closed")
            self._transport.close()

    def _lose(self, text: str) -> None:
        """Fail all calls. If the connection is yet to be made, whoever makes it does that."""
        if not self.settled.done():
            self.settled.set_exception(ConnectionError(text))
        if self.settled.exception() is None:
            self._drop(text)

    def _drop(self, text: str) -> None:
        """Fail all calls."""
        self.is_over, self.is_ready = True, False
        self._channel.forget(self)
        if self._sweeping is not None:
            self._sweeping.cancel()
        for call in (*self.streams.values(), *self._waiting):
            call.is_closed = True
            call.fail(Code.UNAVAILABLE, text)
        self.streams.clear()
        self._waiting.clear()

    def _sweep(self) -> None:
        """Ping a server that says nothing while calls are open, and give up one that does not answer."""
        now = self.loop.time()
        late_s = now - self.swept_at - self._sweep_s
        self.decay(now)
        self._sweeping = self.loop.call_later(self._sweep_s, self._sweep)
        if self._pinged_at and late_s > self._sweep_s:  # it is we who did not listen
            self._pinged_at += late_s
        if not self._ping_every_s or not self.streams:
            self._pinged_at = 0.0
        elif self._pinged_at:
            if now - self._pinged_at > self._ping_timeout_s:
                self.why = "ping timeout"
                self._drop("ping timeout")
                self.abort()
        elif now - self._alive_at >= self._ping_every_s:
            self._pinged_at = now
            self.ping()
