"""Calls to one address, over our own HTTP/2.

A channel connects when the first call asks for it, and again when a connection broke and there is another
call. After a failure it tries again by itself; calls fail at once meanwhile. A server that leaves serves
the calls that it has; new ones go to a new connection.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.serving.h2.answers import request_block, timeout_field
from gazette_platform.serving.h2.client_call import ClientCall
from gazette_platform.serving.h2.deadlines import Deadlines
from gazette_platform.serving.h2.link import Dialing, Link
from gazette_platform.serving.h2.sockets import open_socket, reason_of
from gazette_platform.serving.interface import Code
from gazette_platform.serving.outgoing import PEER_LEFT, Condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.serving.interface import Kind

__all__ = ["Channel", "Dialing"]

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
        if self._link is not None and self._link.is_ready:
            return Condition.READY
        return Condition.FAILED if self._failure else Condition.UNKNOWN

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
        except _NO_CONNECTION as err:
            self._failure = self._text_of(err)
            self.forget(link)
            link.close_now(self._failure)
            link.abort()
        else:
            self._failure = ""

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

    def _text_of(self, err: Exception) -> str:
        said, proxy = reason_of(err), self.dialing.proxy
        if proxy is not None:
            said = f"{said} (through {proxy})"
        return f"{self._target}: Failed to connect to remote host: {said}"
