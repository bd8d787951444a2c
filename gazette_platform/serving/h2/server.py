"""The server: it listens, runs the calls of its connections, keeps these within their limits, and drains them.

A connection owns its transport and the tasks of its calls. What all connections share is in `Shared`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from socket import AddressFamily
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from typing_extensions import override

from gazette_platform.errors import TransportError
from gazette_platform.serving.auth import http2_context
from gazette_platform.serving.h2 import frames as default
from gazette_platform.serving.h2.carrier import WRITE_BYTES, Carrier, Deadlines
from gazette_platform.serving.h2.frames import REPORT_BYTES, ErrorCode, UnreadBudget
from gazette_platform.serving.h2.handling import method_of
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.h2.server_call import Call
from gazette_platform.serving.h2.server_machine import Requests
from gazette_platform.serving.interface import ASK_AGAIN, Kind
from gazette_platform.serving.servicers import rpcs_of
from gazette_platform.serving.sockets import BACKLOG, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gazette_platform.serving.auth import TlsMaterial
    from gazette_platform.serving.calls import CallMetrics
    from gazette_platform.serving.h2.frames import Limits
    from gazette_platform.serving.h2.handling import Method
    from gazette_platform.serving.h2.server_machine import Request
    from gazette_platform.serving.interface import Rpc


class Served(Protocol):
    """A connection, as its server knows it."""

    def hold(self, *, is_held: bool) -> None:
        """Read nothing, or go on."""

    def close_soon(self) -> None:
        """Take no more calls, and close once those that are open have ended."""

    def close_now(self, text: str) -> None:
        """Cancel all calls, and close."""

    def abort(self) -> None:
        """Drop the connection, whatever is on its way."""

    def sweep(self, now: float) -> None:
        """End what lasts for too long."""

    def be_lenient(self, lost_s: float) -> None:
        """Give back the time for which this process was busy with something else."""


@final
class Shared:
    """What the connections of a server have in common; one for each server.

    Attributes:
        tasks: of all handlers that run.
        swept_at: when connections were swept last.
    """

    def __init__(
        self, methods: dict[bytes, Method], limits: Limits, message_bytes_max: int
    ) -> None:
        self.methods = methods
        self.limits = limits
        self.message_bytes_max = message_bytes_max
        self.requests = Requests()
        self.budget = UnreadBudget(limits.process_bytes)
        self.deadlines = Deadlines()
        self.connections: set[Served] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_stopping = False
        self.swept_at = 0.0
        self.loop: asyncio.AbstractEventLoop
        self.emptied = asyncio.Event()

    def forget(self, connection: Served, reported: int) -> None:
        """A connection has ended; the last one sets `emptied`."""
        self.connections.discard(connection)
        self.budget.forget(connection, reported)
        if not self.connections:
            self.emptied.set()


_log = logging.getLogger(__name__)

# Seconds for a client to confirm that it opens no more calls.
_DRAIN_S: Final = 1.0


@final
class Connection(Carrier, asyncio.BufferedProtocol):
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
    def on_input(self) -> None:
        """Begin the calls that what came has made whole."""
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
        """Read nothing while the process holds too much that was not taken."""
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
        """End the call with most unread bytes, if the client cannot send and its handler does not read."""
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


# An event loop that comes so many seconds late is worth a line in the log. Peers' pings wait as long.
_LATE_S: Final = 2.0

# Seconds for handlers that were cancelled, and for the last bytes of their connections.
_END_S: Final = 2.0
_TLS_END_S: Final = 0.5

# Turns of the event loop in which a connection that was accepted is made.
_ACCEPT_TURNS: Final = 3

_STOPPING: Final = "the server stops"


@final
class H2Server:
    """Serves calls on a port, or on a Unix socket. It has what `GrpcServer` has.

    Clients may connect once it is made; it answers from `start` on.

    Args:
        recv_bytes_max: largest message.
        calls: counts the calls.
        socket: Unix socket to listen on instead of host and port.
        tls: of the port; None: it is plain text.
        flags: what the flags of the port begin with, for errors.
        limits: of connections.

    Raises: SetupError: it cannot listen there.
    """

    def __init__(
        self,
        rpcs: Iterable[Rpc],
        *,
        host: str,
        port: int,
        recv_bytes_max: int,
        calls: CallMetrics,
        socket: Path | None = None,
        tls: TlsMaterial | None = None,
        flags: str = "broker",
        limits: Limits | None = None,
    ) -> None:
        self._calls = calls
        self._shared = Shared({}, limits or default.LIMITS, recv_bytes_max)
        for rpc in rpcs:
            self._add(rpc, rpc.kind)
        self._tls = http2_context(tls) if tls is not None else None
        self._listeners = listen(host, port, socket, flags)
        self._socket = socket
        # As grpc has it for Unix sockets.
        self.port: int = 1 if socket is not None else self._listeners[0].getsockname()[1]
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()

    def add_servicer(self, add: Callable[[Any, Any], None], servicer: Any) -> None:
        """Serve another service too, as generated code has it; before `start`.

        Args:
            add: generated, as ``add_NGramServicer_to_server``.
            servicer: with coroutines for its calls, or functions, which run in threads.

        Raises: SetupError: `servicer` does not have the methods that `add` wants.
        """
        for kind, rpc in rpcs_of(add, servicer):
            self._add(rpc, kind)

    def _add(self, rpc: Rpc, kind: Kind) -> None:
        """Serve an RPC, which is counted as one of `kind`."""
        metrics = self._calls.of(kind.value, rpc.service, rpc.name)
        self._shared.methods[f"/{rpc.service}/{rpc.name}".encode()] = method_of(rpc, metrics)

    async def start(self) -> None:
        """Begin to accept calls."""
        shared = self._shared
        shared.loop = loop = asyncio.get_running_loop()
        shared.deadlines.start(loop)
        shared.swept_at = loop.time()
        self._sweeping = loop.call_later(shared.limits.sweep_s, self._sweep)

        def make() -> Connection:
            return Connection(shared)

        for listener in self._listeners:
            is_unix = listener.family is AddressFamily.AF_UNIX
            listening: Any = loop.create_unix_server if is_unix else loop.create_server
            # A client of TLS that does not answer the end of its connection is not worth a wait.
            end_s = _TLS_END_S if self._tls is not None else None
            self._servers.append(
                await listening(
                    make, sock=listener, ssl=self._tls, backlog=BACKLOG, ssl_shutdown_timeout=end_s
                )
            )

    async def wait_ended(self) -> None:
        """Wait until the server is stopped.

        Raises: TransportError: it has ended by itself. Cancellation: safe.
        """
        await self._ended.wait()
        if not self._shared.is_stopping:
            raise TransportError("the gRPC server of this process has ended by itself")

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, give those under way `grace_s` seconds, then cancel them."""
        shared = self._shared
        shared.is_stopping = True
        await self._end_accepting()
        if grace_s > 0:
            for connection in tuple(shared.connections):
                connection.close_soon()
            await self._emptied(grace_s)
        for connection in tuple(shared.connections):
            connection.close_now(_STOPPING)
        if shared.tasks:
            await asyncio.wait(tuple(shared.tasks), timeout=_END_S)
        await self._emptied(_END_S)
        for connection in tuple(shared.connections):
            connection.abort()
        await self._emptied(_END_S)
        if self._sweeping is not None:
            self._sweeping.cancel()
        shared.deadlines.stop()
        self._ended.set()

    async def _end_accepting(self) -> None:
        """Close what listens."""
        # asyncio makes a connection some turns after it was accepted. If its server is closed by then, that
        # fails, and leaves the socket open (Python 3.11 to 3.13). So nothing more is accepted first.
        for server in self._servers:
            for accepting in server.sockets:
                self._shared.loop.remove_reader(accepting.fileno())
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        if not self._servers:
            for listener in self._listeners:
                listener.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _emptied(self, limit_s: float) -> None:
        """Wait until there are no connections, for some seconds at most."""
        shared = self._shared
        shared.emptied.clear()
        if shared.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await shared.emptied.wait()

    def _sweep(self) -> None:
        """Look at all connections."""
        shared = self._shared
        now, interval_s = shared.loop.time(), shared.limits.sweep_s
        self._sweeping = shared.loop.call_later(interval_s, self._sweep)
        late_s = now - shared.swept_at - interval_s
        if late_s > max(_LATE_S, interval_s):
            _log.warning(
                "the event loop was blocked for %.1f s; peers' calls and pings waited", late_s
            )
        shared.swept_at = now
        if not all(server.is_serving() for server in self._servers):
            self._ended.set()
        for connection in tuple(shared.connections):
            if late_s > interval_s:
                connection.be_lenient(late_s)
            connection.sweep(now)
