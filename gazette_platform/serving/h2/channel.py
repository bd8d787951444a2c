"""Calls to one address, over our own HTTP/2; each connection is a `Link`.

A channel connects when the first call asks for it, and again when a connection broke and there is another
call. After a failure it tries again by itself; calls fail at once meanwhile. A server that leaves serves
the calls that it has; new ones go to a new connection.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from typing_extensions import override

from gazette_platform.serving.h2.carrier import WRITE_BYTES, ClientCarrier, Deadlines
from gazette_platform.serving.h2.client_call import LATE, ClientCall
from gazette_platform.serving.h2.client_machine import (
    Answer,
    code_of,
    code_of_reset,
    request_block,
    timeout_field,
)
from gazette_platform.serving.h2.frames import ErrorCode
from gazette_platform.serving.interface import (
    CONNECT_FAILED,
    DROPPED,
    FELL_SILENT,
    NOT_HTTP2,
    PEER_LEFT,
    SPEAKS_TLS,
    Code,
    Condition,
)
from gazette_platform.serving.sockets import open_socket, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.serving.h2.frames import Limits
    from gazette_platform.serving.interface import Kind
    from gazette_platform.serving.sockets import Proxy


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
    """Seconds for a connection, with TLS, until the other side has sent its settings and confirmed ours."""
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
class Link(ClientCarrier, asyncio.BufferedProtocol):
    """A connection, perhaps one that is yet to be made.

    It reads on while it cannot write: a server does not read while it cannot write, and both must not wait
    for each other.

    Attributes:
        is_ready: whether it is made, and has not ended.
        settled: done once the server has sent its settings; fails if the connection ends before.
        confirmed: done once it has confirmed ours, or the connection has ended.
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
        self.confirmed: asyncio.Future[None] = loop.create_future()
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
            self.why = f"{SPEAKS_TLS}, but {NOT_HTTP2}"
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
    def on_input(self) -> None:
        """Close the connection if what came has ended it."""
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
    def on_confirmed(self) -> None:
        if not self.confirmed.done():
            self.confirmed.set_result(None)

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
        self.on_confirmed()  # whoever waits for that need not wait any more
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


_BACKOFF_GROWTH: Final = 1.6
_BACKOFF_JITTER: Final = 0.2
_BLOCKS_MAX: Final = 1024
# TLS and time-outs are of the kinds of the first; the others mean an address that cannot be one.
_NO_CONNECTION: Final = (OSError, ValueError, OverflowError)
# For the other side to take the last bytes.
_CLOSE_S: Final = 1.0


@final
class Channel:
    """An `OutgoingChannel`.

    Args:
        target: ``host:port``, or ``unix:`` and a path.
        tls: None: without TLS.
    """

    def __init__(self, target: str, dialing: Dialing, tls: ssl.SSLContext | None = None) -> None:
        self.dialing = dialing
        self.deadlines = Deadlines()
        self._target = target
        self._tls = tls
        self._path = target.removeprefix("unix:") if target.startswith("unix:") else ""
        if self._path.startswith("///"):
            self._path = self._path[2:]
        self._authority = "localhost" if self._path else target
        self._blocks: dict[Any, bytes] = {}
        self._link: Link | None = None
        self._links: set[Link] = set()
        self._connecting: asyncio.Task[None] | None = None
        # Done once the attempt that began last has ended.
        self._tried: asyncio.Future[None] | None = None
        self._failure = ""
        self._closed_why = ""

    def call(
        self,
        method: str,
        kind: Kind,  # noqa: ARG002
        metadata: Sequence[tuple[str, str]] = (),
        request: bytes | None = None,
        *,
        timeout_s: float | None = None,
    ) -> ClientCall:
        """As `OutgoingChannel` has it; `kind` makes no difference here."""
        key = method, tuple(metadata)
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= _BLOCKS_MAX:
                self._blocks.clear()
            block = self._blocks[key] = request_block(
                method, self._authority, is_secure=self._tls is not None, metadata=metadata
            )
        if timeout_s is not None:
            block += timeout_field(timeout_s)
        call = ClientCall(self._current(), block, request)
        if timeout_s is not None:
            call.expire_in(timeout_s)
        if request is None or call.may_send(request):
            self.submit(call)
        return call

    def submit(self, call: ClientCall) -> None:
        """Begin a call, on the connection that takes new ones."""
        if self._closed_why or self._failure:
            # In the loop's next turn: whoever tries again and again must not hold it up.
            asyncio.get_running_loop().call_soon(
                call.fail, Code.UNAVAILABLE, self._closed_why or self._failure
            )
            return
        link = self._current()
        link.begin(call)
        if not link.is_ready:
            self._begin_connecting(link)

    async def connected(self) -> bool:
        """Wait until there is a connection, or an attempt to make one has failed.

        Returns: whether there is one.
        Cancellation: safe.
        """
        if not self._closed_why and not self._failure:
            link = self._current()
            if not link.is_ready:
                self._begin_connecting(link)
            if self._tried is not None:
                await asyncio.shield(self._tried)
        return self.condition is Condition.READY

    def _current(self) -> Link:
        """The connection that takes new calls; perhaps it is yet to be made."""
        if self._link is None:
            loop = asyncio.get_running_loop()
            self.deadlines.start(loop)
            self._link = Link(self, loop)
            self._links.add(self._link)
        return self._link

    def leave(self, link: Link) -> None:
        """Begin no more calls on a connection."""
        if self._link is link:
            self._link = None

    def forget(self, link: Link) -> None:
        """A connection has ended."""
        self.leave(link)
        self._links.discard(link)

    @property
    def condition(self) -> Condition:
        """As `OutgoingChannel` has it."""
        if self._failure:
            return Condition.FAILED
        is_ready = self._link is not None and self._link.is_ready
        return Condition.READY if is_ready else Condition.UNKNOWN

    async def close(self, why: str = PEER_LEFT) -> None:
        """As `OutgoingChannel` has it.

        Args:
            why: text of the errors of its calls.
        """
        self._closed_why = why
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
        links = tuple(self._links)
        for link in links:
            link.close_now(why)
        if links:
            await asyncio.wait([link.closed for link in links], timeout=_CLOSE_S)
        for link in links:
            link.abort()
        if connecting is not None:
            await asyncio.wait([connecting])
        self.deadlines.stop()

    # -------------------------------------------------------------------------------- connecting
    def _begin_connecting(self, link: Link) -> None:
        """Connect, unless that is under way."""
        if self._connecting is None:
            self._tried = link.loop.create_future()
            self._connecting = link.loop.create_task(self._connect(self._tried))

    async def _connect(self, tried: asyncio.Future[None]) -> None:
        """Connect, and do not give up."""
        backoff_s = self.dialing.backoff_s_min
        try:
            while True:
                await self._attempt(self._current())
                if not tried.done():
                    tried.set_result(None)
                # If the other side left at once, calls may wait for another connection.
                if not self._failure and (self._link is None or self._link.is_ready):
                    return
                jitter = 1 + random.uniform(-_BACKOFF_JITTER, _BACKOFF_JITTER)  # noqa: S311
                await asyncio.sleep(backoff_s * jitter)
                backoff_s = min(backoff_s * _BACKOFF_GROWTH, self.dialing.backoff_s_max)
        finally:
            self._connecting = None
            if not tried.done():
                tried.set_result(None)

    async def _attempt(self, link: Link) -> None:
        try:
            async with asyncio.timeout(self.dialing.connect_s):
                await self._dial(link)
                # Shielded: whoever waits may be cancelled, and the future still says whether there is a connection.
                await asyncio.shield(link.settled)
                self._failure = ""
                # Calls begin already. But a server sends its settings unasked, as soon as it accepts: one that hangs
                # from then on was noticed by pings only, after twenty seconds for each attempt of a client. RFC 9113
                # has it confirm ours at once, which shows that it reads, and costs no round trip.
                await link.confirmed
        except _NO_CONNECTION as err:
            said = FELL_SILENT if link.is_ready else reason_of(err)
            self._failure = self._text_of(said)
            self.forget(link)
            link.close_now(self._failure)
            link.abort()

    async def _dial(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        if self._path:
            await loop.create_unix_connection(lambda: link, self._path)
            return
        sock = await open_socket(self._target, self.dialing.proxy)
        tls, name = self._tls, None
        if tls is not None:
            name = self._target.rpartition(":")[0].strip("[]")
        try:
            await loop.create_connection(lambda: link, sock=sock, ssl=tls, server_hostname=name)
        except ssl.SSLError:
            raise
        except ConnectionError as err:  # the other side has ended it
            raise ConnectionError(f"Socket closed ({reason_of(err)})") from err

    def _text_of(self, said: str) -> str:
        if self.dialing.proxy is not None:
            said = f"{said} (through {self.dialing.proxy})"
        return f"{self._target}: {CONNECT_FAILED}: {said}"
