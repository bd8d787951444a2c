"""A connection of the server: the machine, with a transport and the tasks of its calls."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast, final

from typing_extensions import override

from gazette_platform.serving.h2.budget import REPORT_BYTES
from gazette_platform.serving.h2.call import Call
from gazette_platform.serving.h2.carrier import WRITE_BYTES, Carrier
from gazette_platform.serving.h2.frames import ErrorCode
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.interface import ASK_AGAIN, Kind

if TYPE_CHECKING:
    from gazette_platform.serving.h2.requests import Request
    from gazette_platform.serving.h2.shared import Shared

__all__ = ["Connection"]

_log = logging.getLogger(__name__)

# Seconds for a client to confirm that it opens no more calls.
_DRAIN_S: Final = 1.0


@final
class Connection(Carrier, asyncio.Protocol):
    """One client.

    While the transport cannot write, it does not read: what a client asks for without taking the answers
    must not pile up. Clients must not do the same, or both sides wait for each other.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.limits, shared.message_bytes_max, shared.requests)
        self.loop = shared.loop
        self.deadlines = shared.deadlines
        self.tasks = shared.tasks
        self.unstarted = 0
        # Calls that the read under way has made whole enough to begin.
        self._fresh: dict[Call, None] = {}
        self.is_paused = False
        self.blocked = {}
        self.swept_at = shared.swept_at
        self._shared = shared
        self._methods = shared.methods
        self._transport = None
        self._is_held = False
        self._reported = 0
        self.report_below = -REPORT_BYTES
        self.peer = ""
        self._alive_at = self._made_at = self.loop.time()
        self._pinged_at = self._draining_at = self._closing_at = self._squeezed_at = 0.0
        self._squeezed = 0

    # --------------------------------------------------------------------------------- transport
    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the client, if it speaks HTTP/2."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self.peer = _written(transport.get_extra_info("peername"))
        self._shared.connections.add(self)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._transport.abort()
            return
        self.greet()
        if self._shared.is_stopping:
            self.close_soon()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the calls: their caller has gone."""
        self._transport = None
        self.is_over = True
        self._shared.forget(self, self._reported)
        self._drop_calls()

    @override
    def data_received(self, data: bytes) -> None:
        """Take what came, and begin the calls that it made whole."""
        # Both marks: a loop's clock may be so coarse that a ping and its answer have the same time.
        self._alive_at, self._pinged_at = self.loop.time(), 0.0
        self.receive(data)
        if self.is_over:
            self._close()
        elif self._fresh:
            self._begin_calls()
        if self.unread > self._reported + REPORT_BYTES:
            self.report()

    def _begin_calls(self) -> None:
        fresh, self._fresh = self._fresh, {}
        at_once = 0
        for call in fresh:
            if call.is_closed:
                continue
            if call.begin_at_once():
                at_once += 1
            else:
                call.begin()
        if at_once == len(self.streams):
            # They are answered in the loop's next turn, by what they have just started. The write is behind
            # that, in the same turn. Of others, such as reads, more comes a turn later, and goes with it.
            self.announce()

    @override
    def eof_received(self) -> bool:
        """Close the connection: a client that sends no more can not give credit either."""
        return False

    @override
    def pause_writing(self) -> None:
        """Let handlers wait, and the client."""
        self.is_paused = True
        self._read_if_allowed()

    @override
    def resume_writing(self) -> None:
        """Go on: the client has taken something, so it is alive."""
        self._alive_at, self._pinged_at = self.loop.time(), 0.0
        self.is_paused = False
        self._read_if_allowed()
        self.on_room(None)

    def hold(self, *, is_held: bool) -> None:
        """Read nothing while the process holds too much that nobody has taken."""
        self._is_held = is_held
        self._read_if_allowed()

    def _read_if_allowed(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.is_paused or self._is_held:
            transport.pause_reading()
        else:
            transport.resume_reading()

    @override
    def report(self) -> None:
        """Count the unread bytes against the budget of the process."""
        change = self.unread - self._reported
        self.report_below = self.unread - REPORT_BYTES
        self._reported = self.unread
        self._shared.budget.report(self, change)

    # ----------------------------------------------------------------------------- of the machine
    @override
    def on_request(self, stream_id: int, request: Request, timeout_s: float | None) -> Call | None:
        method = self._methods.get(request.path)
        if method is None:
            return None
        call = Call(self, stream_id, method, request.metadata)
        if timeout_s is not None:
            call.expire_in(timeout_s)
        if method.kind is Kind.BIDI_STREAM:
            call.begin()
        return call

    @override
    def on_progress(self, stream: Call) -> None:
        if stream.task is None:
            self._fresh[stream] = None
        else:
            stream.wake()

    @override
    def on_broken(self, stream: Call, number: int, text: str) -> None:
        stream.end(Status(number), text)

    @override
    def on_gone(self, stream: Call) -> None:
        stream.leave()

    # ------------------------------------------------------------------------------------- its end
    def close_soon(self) -> None:
        """Take no more calls, and close once those that are open have ended."""
        self.drain()
        self._draining_at = self.loop.time()

    def close_now(self, text: str) -> None:
        """Cancel all calls, and close."""
        for call in list(self.streams.values()):
            call.end(Status.CANCELLED, text)
        if not self.is_over:
            self.end(ErrorCode.NO_ERROR, "")
        self._close()

    def abort(self) -> None:
        """Drop the connection, whatever is on its way."""
        if self._transport is not None:
            self._transport.abort()

    @override
    def _close(self) -> None:
        """Close once everything is written; `sweep` sees to it that this does not last."""
        if self._closing_at or self._transport is None:
            return
        self._closing_at = self.loop.time()
        self._fresh.clear()
        self._drop_calls()
        self.is_over = True
        self.flush()
        self._transport.close()

    @override
    def end(self, code: int, text: str) -> None:
        if code != ErrorCode.NO_ERROR and self._transport is not None:
            peer = self._transport.get_extra_info("peername")
            _log.info("connection of %s ended: %s (error %d of HTTP/2)", peer, text, code)
        super().end(code, text)

    def _drop_calls(self) -> None:
        for call in list(self.streams.values()):
            self._forget(call)
            call.leave()

    # --------------------------------------------------------------------------------- time limits
    def sweep(self, now: float) -> None:
        """End what lasts for too long; called about once a second."""
        limits = self.limits
        self.decay(now)
        self.report()
        if self._closing_at:
            if now - self._closing_at > limits.close_s:
                self.abort()
            return
        if not self.is_greeted and now - self._made_at > limits.handshake_s:
            self.abort()
            return
        if self._draining_at and now - self._draining_at > _DRAIN_S:
            self.end_drain()
        self._keep_alive(now)
        if self.streams:
            self._end_stalled(now)
            self._end_squeezed(now)

    def be_lenient(self, lost_s: float) -> None:
        """Give back to the client the time for which this process was busy with something else."""
        for name in ("_pinged_at", "_draining_at", "_closing_at", "_squeezed_at"):
            at = getattr(self, name)
            setattr(self, name, at and at + lost_s)
        for call in self.blocked:
            call.blocked_at += lost_s

    def _keep_alive(self, now: float) -> None:
        """Ping a client that says nothing, and drop one that does not answer."""
        limits = self.limits
        if self._is_held:  # it is we who do not listen
            self._alive_at, self._pinged_at = now, 0.0
        if self._pinged_at:
            if now - self._pinged_at > limits.ping_timeout_s:
                self.abort()
        elif now - self._alive_at > limits.ping_every_s:
            self._pinged_at = now
            self.ping()

    def _end_stalled(self, now: float) -> None:
        """End calls whose callers take no response, or send no first message."""
        limit_s = self.limits.stall_s
        for call in tuple(self.blocked):
            if call.method.kind is Kind.SERVER_STREAM and now - call.blocked_at > limit_s:
                call.stall(limit_s)
        for call in list(self.streams.values()):
            if call.task is None and not call.has_run and now - call.opened_at > limit_s:
                text = f"append stream: nothing was sent for {limit_s:g} s"
                call.end(Status.UNKNOWN, text)

    def _end_squeezed(self, now: float) -> None:
        """End the call with most unread bytes, if the client cannot send and nobody reads on."""
        is_stuck = self._is_held or self.recv_room < self.limits.connection_bytes >> 4
        if not is_stuck or self.unread < self._squeezed or not self._squeezed_at:
            self._squeezed_at = now if is_stuck else 0.0
            self._squeezed = self.unread
        elif now - self._squeezed_at > self.limits.squeeze_s:
            self._squeezed_at = 0.0
            worst: Call | None = max(
                self.streams.values(), key=lambda call: call.unread, default=None
            )
            text = f"this process holds too many messages that wait for their turn{ASK_AGAIN}"
            if worst is not None:
                worst.end(Status.UNAVAILABLE, text)


def _written(address: Any) -> str:
    """Write the address of a client as gRPC does."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
