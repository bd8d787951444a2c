"""A proxy before a store that speaks HTTP, which does to requests what networks and stores do at times."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

import aiohttp
import yarl
from aiohttp import web

from gazette_platform.testing.waiting import pass_time
from tests.benches.odd_listings import odd_of_s3

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Fault", "StoreProxy", "store_proxy"]

_BYTES_MAX = 256 << 20
_SLOW_PIECES = 20
_SLOW_S = 0.1
_LIES_SHARE = 0.5


class Fault(Enum):
    """What becomes of requests."""

    NONE = auto()
    SLOW_DOWN = auto()
    """503 SlowDown, which S3 answers to whoever asks too often."""
    INTERNAL = auto()
    """500, and the request was not carried out."""
    LOST_ANSWER = auto()
    """The request is carried out, and the connection reset."""
    RESET = auto()
    """The connection is reset before the request is passed on."""
    TRUNCATED_PUT = auto()
    """Half of the body of a PUT comes to the store, whose connection then ends."""
    TRUNCATED_GET = auto()
    """Half of the body of an answer comes back, and the connection ends."""
    SLOW_BODY = auto()
    """Bodies of answers come in pieces with pauses between."""
    ODD_LIST = auto()
    """Listings are answered 200, with an error in place of a listing."""
    LYING_LISTS = auto()
    """About every second listing of a folder is answered 200, with something that is not a listing, each time another."""
    STALE_LIST = auto()
    """Listings are answered as they were when they were asked first."""


class StoreProxy:
    """What a client takes for the store.

    Attributes:
        fault: of the requests that come from now on.
        met: how many requests a fault has hit.
        lies: how many listings of each folder were answered with something else.
    """

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self.fault = Fault.NONE
        self.met = 0
        self.url = ""
        self._upstream = upstream
        self._session = session
        self.lies: Counter[str] = Counter()
        self._asked: set[str] = set()
        self._dice = random.Random(31)
        self._lists: dict[str, tuple[int, dict[str, str], bytes]] = {}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, unless a fault comes between."""
        fault = self.fault
        body = await request.read()
        is_list = request.method == "GET" and "list-type" in request.query
        if fault is Fault.SLOW_DOWN:
            self.met += 1
            return _error(503, "SlowDown")
        if fault is Fault.INTERNAL:
            self.met += 1
            return _error(500, "InternalError")
        if is_list and (odd := self._odd_listing(request, fault)) is not None:
            self.met += 1
            return odd
        if fault is Fault.RESET:
            return self._reset(request)
        if fault is Fault.TRUNCATED_PUT and request.method == "PUT" and len(body) > 1:
            await self._send_half(request, body)
            return self._reset(request)
        if fault is Fault.STALE_LIST and is_list and request.raw_path in self._lists:
            self.met += 1
            status, headers, content = self._lists[request.raw_path]
            return web.Response(status=status, headers=headers, body=content)
        status, headers, content = await self._pass_on(request, body)
        if is_list:
            self._lists.setdefault(request.raw_path, (status, headers, content))
        if fault is Fault.LOST_ANSWER:
            return self._reset(request)
        if request.method == "GET" and len(content) > 1:
            if fault is Fault.TRUNCATED_GET:
                return await self._answer_slowly(request, status, headers, content, is_cut=True)
            if fault is Fault.SLOW_BODY:
                return await self._answer_slowly(request, status, headers, content, is_cut=False)
        return web.Response(status=status, headers=headers, body=content)

    def _odd_listing(self, request: web.Request, fault: Fault) -> web.Response | None:
        """Something in place of a listing, if the fault says so, and it is its turn."""
        if fault is Fault.ODD_LIST:
            return _error(200, "InternalError")
        if fault is not Fault.LYING_LISTS:
            return None
        folder = request.query.get("prefix", "")
        # By chance: whoever needs two listings one after the other would never have both, if each second one were a lie.
        is_first = folder not in self._asked
        self._asked.add(folder)
        if is_first or self._dice.random() >= _LIES_SHARE:
            return None
        odd = [*odd_of_s3(request.path.strip("/"), folder).values()]
        text = odd[self.lies[folder] % len(odd)]
        self.lies[folder] += 1
        return web.Response(text=text, content_type="application/xml")

    async def _pass_on(
        self, request: web.Request, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        # Signed is what the client sent: the path as it is escaped, and the name of this host.
        url = yarl.URL(self._upstream + request.raw_path, encoded=True)
        async with self._session.request(
            request.method, url, data=body or None, headers=request.headers, allow_redirects=False
        ) as response:
            content = await response.read()
            kept = {
                name: value
                for name, value in response.headers.items()
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "date")
            }
            if request.method == "HEAD":
                kept["Content-Length"] = response.headers.get("Content-Length", "0")
            return response.status, kept, content

    async def _send_half(self, request: web.Request, body: bytes) -> None:
        """As a machine that fails in the middle: the store waits for the rest, and it never comes."""
        host = yarl.URL(self._upstream)
        assert host.host is not None
        reader, writer = await asyncio.open_connection(host.host, host.port)
        lines = [f"{request.method} {request.raw_path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body[: len(body) // 2])
        await writer.drain()
        writer.transport.abort()
        del reader

    def _reset(self, request: web.Request) -> web.StreamResponse:
        self.met += 1
        if request.transport is not None:
            request.transport.abort()  # type: ignore[attr-defined]
        return web.Response(status=500)

    async def _answer_slowly(
        self,
        request: web.Request,
        status: int,
        headers: dict[str, str],
        content: bytes,
        *,
        is_cut: bool,
    ) -> web.StreamResponse:
        self.met += 1
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = len(content)
        await response.prepare(request)
        step = len(content) // _SLOW_PIECES + 1
        for at in range(0, len(content), step):
            if is_cut and at >= len(content) // 2:
                return self._reset(request)
            await response.write(content[at : at + step])
            await pass_time(0 if is_cut else _SLOW_S)
        return response


def _error(status: int, code: str) -> web.Response:
    text = f"<Error><Code>{code}</Code><Message>made by a test</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")


@asynccontextmanager
async def store_proxy(upstream: str) -> AsyncGenerator[StoreProxy, None]:
    """A proxy on a free port before the server at `upstream`, ``http://host:port``."""
    async with aiohttp.ClientSession(
        auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        proxy = StoreProxy(upstream, session)
        app = web.Application(client_max_size=_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", proxy.serve)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            proxy.url = f"http://{host}:{port}"
            yield proxy
        finally:
            await runner.cleanup()
