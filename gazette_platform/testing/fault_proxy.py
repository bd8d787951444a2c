"""TCP proxies that misbehave on demand: a network between programs that a test can break.

Each `FaultProxy` listens on a loopback port and forwards to one upstream. `FaultProxies` keeps them
by name. What is broken stays so, also for new connections, until `heal`.

| fault | what the two ends see |
|---|---|
| `reset` | connections end with RST; new ones work |
| `refuse` | connections end with RST; new ones are refused |
| `black_hole` | nothing arrives, in one direction or in both; after `heal` it does, as TCP repeats |
| `half_open` | the upstream is reset; clients do not notice, and what they send disappears |
| `delay` | everything arrives later, in order |
| `limit` | no more than so many bytes a second arrive |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from enum import Enum
from typing import TYPE_CHECKING, Self, final

from gazette_platform.errors import SetupError
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

__all__ = ["Direction", "FaultProxies", "FaultProxy"]

_READ_BYTES = 64 << 10
# Pieces under way in one direction of a connection: enough for 100 ms of delay at 40 MB/s.
_PIECES_MAX = 64
_CONNECT_TIMEOUT_S = 5.0
_BACKLOG = 100
# On close, discard what is not sent, and send RST instead of FIN.
_LINGER_RST = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Which way bytes go."""

    TO_UPSTREAM = "to upstream"
    TO_CLIENT = "to client"
    BOTH = "both"

    @property
    def ways(self) -> tuple[Direction, ...]:
        """The single directions in it."""
        if self is Direction.BOTH:
            return (Direction.TO_UPSTREAM, Direction.TO_CLIENT)
        return (self,)


@final
class _Way:
    """The state of one direction of a proxy."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.heal()

    def heal(self) -> None:
        self.is_open.set()
        self.delay_s = 0.0
        self.bytes_per_s = 0.0

    @property
    def is_healthy(self) -> bool:
        return self.is_open.is_set() and not self.delay_s and not self.bytes_per_s


@final
class FaultProxy:
    """Forwards connections to one upstream, as well or as badly as configured.

    Belongs to one event loop. An async context manager that starts and stops it.

    Args:
        host: of the upstream, which need not run yet. A connection is reset when the upstream
            cannot be reached.
        port: of the upstream.
        listen_port: 0 is any free one.

    Attributes:
        connections: how many are open.
        accepted: how many there were.
    """

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        self.upstream = (host, port)
        self.port = listen_port
        self.accepted = 0
        self._listener: socket.socket | None = None
        self._accepted: set[socket.socket] = set()  # that have no connection yet
        self._tasks = TaskGroup("fault proxy")
        self._ways = {way: _Way() for way in Direction.BOTH.ways}
        self._connections: set[_Connection] = set()
        self._is_stopped = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """Where it listens, as an endpoint URL; stays the same over faults."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return sum(not connection.is_aborted for connection in self._connections)

    async def start(self) -> None:
        """Listen. Raises: SetupError: the port is taken."""
        if self._listener is not None:
            return
        # Not a server of asyncio's: closing one loses connections that it is just accepting.
        try:
            listener = socket.create_server(("127.0.0.1", self.port), backlog=_BACKLOG)
        except OSError as err:
            raise SetupError(
                f"cannot listen on 127.0.0.1:{self.port}: {err.strerror} (choose another port)"
            ) from err
        listener.setblocking(False)
        self._listener = listener
        self.port = int(listener.getsockname()[1])
        asyncio.get_running_loop().add_reader(listener.fileno(), self._on_readable, listener)

    async def stop(self) -> None:
        """Reset everything, and stop listening for good."""
        self._is_stopped = True
        self.refuse()
        await self._tasks.close()
        while self._accepted:
            self._accepted.pop().close()

    # ------------------------------------------------------------------ faults

    def reset(self) -> None:
        """End all connections with RST, on both sides. New ones are not affected."""
        for connection in list(self._connections):
            connection.abort()

    def reset_one(self, rng: random.Random) -> None:
        """The same of one connection, if there is any."""
        open_ones = [one for one in self._connections if not one.is_aborted]
        if open_ones:
            rng.choice(open_ones).abort()

    def refuse(self) -> None:
        """Refuse new connections, and reset all there are, until `heal`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        self.reset()

    def black_hole(self, direction: Direction = Direction.BOTH) -> None:
        """Let nothing arrive. Connections can be made, as the kernel answers for us."""
        for way in direction.ways:
            self._ways[way].is_open.clear()

    def half_open(self) -> None:
        """Reset the upstream side of all connections, and leave the clients unaware until `heal`.

        As when a machine loses power: its peers have connections without another end.
        """
        for connection in list(self._connections):
            connection.lose_upstream()

    def delay(self, seconds: float, direction: Direction = Direction.BOTH) -> None:
        """Let everything arrive `seconds` later, in each direction named."""
        for way in direction.ways:
            self._ways[way].delay_s = seconds

    def limit(self, bytes_per_s: float, direction: Direction = Direction.BOTH) -> None:
        """Let at most so many bytes a second arrive, of each connection and direction."""
        for way in direction.ways:
            self._ways[way].bytes_per_s = bytes_per_s

    async def heal(self) -> None:
        """Work again. Half-open connections are reset: their upstream has forgotten them."""
        for way in self._ways.values():
            way.heal()
        for connection in list(self._connections):
            if connection.is_half_open:
                connection.abort()
        if not self._is_stopped:
            await self.start()

    # ------------------------------------------------------------------ forwarding

    def _on_readable(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        accepted.setblocking(False)
        self._accepted.add(accepted)
        self.accepted += 1
        self._tasks.spawn(self._accept(accepted), name=f"connection {self.accepted}")

    async def _accept(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted, limit=_READ_BYTES)
        self._accepted.discard(accepted)
        if self._listener is None:
            _reset(writer)  # accepted just before we were to refuse
            return
        connection = _Connection(reader, writer)
        self._connections.add(connection)
        await self._serve(connection)

    async def _serve(self, connection: _Connection) -> None:
        try:
            # A connection that is made during a black hole reaches no server.
            await self._ways[Direction.TO_UPSTREAM].is_open.wait()
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(*self.upstream, limit=_READ_BYTES)
            if not connection.set_upstream(writer):
                return
            to_upstream = self._ways[Direction.TO_UPSTREAM]
            to_client = self._ways[Direction.TO_CLIENT]
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_Pump(connection, writer, to_upstream).run(connection.reader))
                pumps.create_task(_Pump(connection, connection.writer, to_client).run(reader))
        except* OSError:
            pass  # one side is gone, so the other one goes
        finally:
            if connection.is_half_open:
                await connection.swallow()
            connection.abort()
            self._connections.discard(connection)


class _Connection:
    """Both sides of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.is_half_open = False
        self._upstream: asyncio.StreamWriter | None = None
        self.is_aborted = False

    def set_upstream(self, writer: asyncio.StreamWriter) -> bool:
        """Take the other side. Returns: whether there still is a client."""
        if self.is_aborted:
            _reset(writer)
            return False
        self._upstream = writer
        return True

    def abort(self) -> None:
        """Reset both sides."""
        self.is_aborted = True
        self.is_half_open = False
        _reset(self.writer)
        if self._upstream is not None:
            _reset(self._upstream)

    def lose_upstream(self) -> None:
        """Reset the upstream alone."""
        if self._upstream is not None and not self.is_aborted:
            self.is_half_open = True
            _reset(self._upstream)

    async def swallow(self) -> None:
        """Take what the client sends, and answer nothing, until either side ends the connection."""
        with contextlib.suppress(OSError):
            while await self.reader.read(_READ_BYTES):
                pass


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:  # not closed yet
        # By a copy of the descriptor: loops other than asyncio's own hide the socket's options.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RST)
    writer.transport.abort()


@final
class _Pump:
    """Forwards one direction of one connection."""

    def __init__(self, connection: _Connection, writer: asyncio.StreamWriter, way: _Way) -> None:
        self._connection = connection
        self._writer = writer
        self._way = way
        self._delayed: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_MAX)
        self._waiting = 0  # in the queue, and the one that is being delivered

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Forward until the end of the stream, which is forwarded too."""
        loop, way = asyncio.get_running_loop(), self._way
        async with asyncio.TaskGroup() as tasks:
            delivering = tasks.create_task(self._deliver())
            piece = b"-"
            while piece:
                size = _READ_BYTES
                if way.bytes_per_s:
                    # Small pieces, so that the rate is even and can be changed soon.
                    size = max(1, min(size, int(way.bytes_per_s / 20)))
                piece = await reader.read(size)
                # A timer and a task switch for each piece would make healthy proxies the bottleneck of a cluster.
                if way.is_healthy and not self._waiting:
                    await self._write(piece)
                    if not piece:
                        delivering.cancel()
                else:
                    self._waiting += 1
                    await self._delayed.put((loop.time() + way.delay_s, piece))

    async def _deliver(self) -> None:
        loop, way, piece = asyncio.get_running_loop(), self._way, b"-"
        while piece:
            due, piece = await self._delayed.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await way.is_open.wait()
            await self._write(piece)
            if way.bytes_per_s:
                await asyncio.sleep(len(piece) / way.bytes_per_s)
            self._waiting -= 1

    async def _write(self, piece: bytes) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError  # uvloop would complain of a write
        if piece:
            self._writer.write(piece)
            await self._writer.drain()
        elif not self._connection.is_half_open:  # clients do not learn of an upstream that vanished
            with contextlib.suppress(OSError):
                self._writer.write_eof()


@final
class FaultProxies:
    """Proxies by name: the network of one test. An async context manager that stops them all."""

    def __init__(self) -> None:
        self._proxies: dict[str, FaultProxy] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for proxy in self._proxies.values():
            await proxy.stop()

    async def add(self, name: str, host: str, port: int) -> FaultProxy:
        """Start a proxy before ``host:port``, and remember it by a name of its own."""
        if name in self._proxies:
            raise SetupError(f"there is a proxy {name} already; names are unique")
        proxy = FaultProxy(host, port)
        await proxy.start()
        self._proxies[name] = proxy
        return proxy

    def __getitem__(self, name: str) -> FaultProxy:
        return self._proxies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._proxies)

    def partition(self, names: Iterable[str], direction: Direction = Direction.BOTH) -> None:
        """Let nothing through these proxies."""
        for name in names:
            self._proxies[name].black_hole(direction)

    async def heal(self) -> None:
        """Heal every proxy."""
        for proxy in self._proxies.values():
            await proxy.heal()
