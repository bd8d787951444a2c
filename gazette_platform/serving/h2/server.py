"""The server: it listens, keeps its connections within their limits, and drains them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from socket import AddressFamily
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import TransportError
from gazette_platform.serving.h2 import limits as default
from gazette_platform.serving.h2.call import method_of
from gazette_platform.serving.h2.connection import Connection
from gazette_platform.serving.h2.shared import Shared
from gazette_platform.serving.listening import BACKLOG, listen
from gazette_platform.serving.servicers import rpcs_of
from gazette_platform.serving.tls import http2_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gazette_platform.serving.call_metrics import CallMetrics
    from gazette_platform.serving.h2.limits import Limits
    from gazette_platform.serving.interface import Kind, Rpc
    from gazette_platform.serving.tls import TlsMaterial

__all__ = ["H2Server"]

_log = logging.getLogger(__name__)

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
