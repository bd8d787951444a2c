"""Calls to one address, over our own HTTP/2.

A channel connects when the first call asks for it, and again when a connection broke and there is another
call. After a failure it tries again by itself; calls fail at once meanwhile. A server that leaves serves
the calls that it has; new ones go to a new connection.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.client.route_cache import Condition
from gazette_platform.serving.h2.answers import request_block, timeout_field
from gazette_platform.serving.h2.client_call import ClientCall
from gazette_platform.serving.h2.link import Dialing, Link
from gazette_platform.serving.interface import Code
from gazette_platform.serving.outgoing import PEER_LEFT

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from gazette_platform.serving.interface import Kind

__all__ = ["Channel", "Dialing"]

_BACKOFF_GROWTH: Final = 1.6
_BACKOFF_JITTER: Final = 0.2
_BLOCKS_MAX: Final = 1024
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
        self._failure = ""
        self._is_closed = False

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
        self.submit(call)
        return call

    def submit(self, call: ClientCall) -> None:
        """Begin a call, on the connection that takes new ones."""
        if self._is_closed:
            call.fail(Code.UNAVAILABLE, PEER_LEFT)
        elif self._failure:
            call.fail(Code.UNAVAILABLE, self._failure)
        else:
            self._current().begin(call)
            if self._connecting is None and not self._current().is_ready:
                task = asyncio.get_running_loop().create_task(self._connect())
                self._connecting = task

    def _current(self) -> Link:
        """The connection that takes new calls; perhaps it is yet to be made."""
        if self._link is None:
            self._link = Link(self, asyncio.get_running_loop())
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

    async def close(self) -> None:
        """As `OutgoingChannel` has it."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        links = tuple(self._links)
        for link in links:
            link.close_now(PEER_LEFT)
        if links:
            await asyncio.wait([link.closed for link in links], timeout=_CLOSE_S)
        for link in links:
            link.abort()

    # -------------------------------------------------------------------------------- connecting
    async def _connect(self) -> None:
        """Connect, and do not give up."""
        backoff_s = self.dialing.backoff_s_min
        try:
            while True:
                link = self._current()
                try:
                    async with asyncio.timeout(self.dialing.connect_s):
                        await self._dial(link)
                        await link.settled
                except OSError as err:  # TLS and time-outs are of its kinds
                    self._failure = self._text_of(err)
                else:
                    self._failure = ""
                    return
                self.forget(link)
                link.close_now(self._failure)
                link.abort()
                jitter = 1 + random.uniform(-_BACKOFF_JITTER, _BACKOFF_JITTER)  # noqa: S311
                await asyncio.sleep(backoff_s * jitter)
                backoff_s = min(backoff_s * _BACKOFF_GROWTH, self.dialing.backoff_s_max)
        finally:
            self._connecting = None

    async def _dial(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        if self._path:
            await loop.create_unix_connection(lambda: link, self._path)
            return
        host, _, port = self._target.rpartition(":")
        host = host.strip("[]")
        name = host if self._tls is not None else None
        await loop.create_connection(
            lambda: link, host, int(port), ssl=self._tls, server_hostname=name
        )

    def _text_of(self, err: OSError) -> str:
        said = "it took too long" if isinstance(err, TimeoutError) else err.strerror or str(err)
        return f"{self._target}: Failed to connect to remote host: {said}"
