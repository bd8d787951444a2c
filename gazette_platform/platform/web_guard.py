"""Keeps foreign web pages away from a web server that does not check where requests come from.

Every page that a browser shows may send requests to loopback ports, and one whose name resolves to a loopback address
reads the answers too. Browsers send who asks: ``Host`` is the name that the page believes it talks to, ``Origin`` the
page's own. `WebGuard` is such a check within an ASGI server.

`Guard` is one as a process of its own: it listens where the server is known to be, and passes on what `refusal` lets
through. The server itself hides at an address that a web page does not find (`component.hidden_address`). That address
comes in the environment, because command lines are visible to others. Bodies are passed on as they come, both ways,
and held up where the other side is slow. There is nothing to put in order at the end: SIGTERM kills it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, final

import aiohttp
import uvloop
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from typing_extensions import override
from yarl import URL

from gazette_platform.errors import SetupError
from gazette_platform.ops.network import HostGuard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]
    from multidict import CIMultiDictProxy


# By the rules of brokers' own HTTP ports: names of this machine and addresses, pages of this server.
_GUARD = HostGuard((), ())
_POLICY_VIOLATION = 1008


def refusal(method: str, path: str, query: str, *, host: str, origin: str) -> str:
    """Why a request is refused; empty: it is not.

    Args:
        method: upper case; a WebSocket's is POST, because it may change things.
        query: of the URL.
    """
    if _GUARD.refused_host(host):
        return f"this server does not go by the name {host!r}: use localhost or its address"
    if _GUARD.refused_origin(method, host, origin):
        return f"pages of {origin} may not change anything here"
    # A page can send a GET without an origin, as for an image.
    if method in ("GET", "HEAD") and path.rstrip("/").endswith("/graphql") and query:
        return "GraphQL is taken by POST here, not by GET"
    return ""


@final
class WebGuard:
    """An ASGI application around another one, for what passes `refusal`."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        why = refusal(
            scope.get("method", "POST"),
            scope["path"],
            scope["query_string"].decode("latin-1"),
            host=headers.get(b"host", b"").decode("latin-1"),
            origin=headers.get(b"origin", b"").decode("latin-1"),
        )
        if not why:
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": why})
        else:
            plain = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": plain})
            await send({"type": "http.response.body", "body": f"{why}\n".encode()})


GUARDED = "GUARDED_URL"
"""The variable that says where the server is: ``http://host:port``."""

_server_log = logging.getLogger(f"{__name__}.server")


def _is_our_fault(record: logging.LogRecord) -> bool:
    # Clients learn what they did wrong, and when the server ends; the log does not need it.
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, ConnectionError))


_server_log.addFilter(_is_our_fault)

# Each connection may need a second one, to the server. Both together take half of the usual 1024
# descriptors.
_CONNECTIONS_MAX = 256
# The largest header or target that passes. Trino takes some of 140 kB: prepared statements, session properties.
_HEADER_BYTES_MAX = 256 << 10
_READ_AHEAD_BYTES = 256 << 10
_CONNECT_TIMEOUT_S = 5.0
_IDLE_S = 75.0

# Headers that concern one connection only, and `Expect`, which is answered here, before the handler.
_NOT_PASSED_ON = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@final
class Guard:
    """Serves one address with what the server at another one answers.

    Args:
        name: of the server, for messages.
        url: its address, as ``http://host:port``.
    """

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._session: aiohttp.ClientSession
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_server_log,
            handler_cancellation=True,  # a client that has gone holds nothing at the server
            auto_decompress=False,
            keepalive_timeout=_IDLE_S,
            read_bufsize=_READ_AHEAD_BYTES,
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
        )

    async def serve(self, host: str, port: int) -> None:
        """Answer until cancelled.

        Raises: SetupError: the address cannot be bound.
        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def connection() -> asyncio.Protocol:
            return server() if len(server.connections) < _CONNECTIONS_MAX else _Surplus()

        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # no more than there are clients
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            auto_decompress=False,
            read_bufsize=_READ_AHEAD_BYTES,
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
        ) as self._session:
            try:
                listening = await asyncio.get_running_loop().create_server(connection, host, port)
            except OSError as error:
                raise SetupError(
                    f"cannot listen on {host}:{port}, the address of {self._name}: {error.strerror}"
                ) from error
            async with listening:
                await listening.serve_forever()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        why = refusal(
            request.method,
            request.path,
            request.query_string,
            host=request.headers.get("Host", ""),
            origin=request.headers.get("Origin", ""),
        )
        if why:
            return _said(403, why)
        # Appended to the server's address, anything but a path would lead to another server.
        if not request.raw_path.startswith("/") or not request.raw_path.isascii():
            return _said(400, "the target of a request must be a path, in ASCII")
        if not all(_is_text(value) for value in request.headers.values()):
            return _said(400, "a header is not UTF-8")
        answer: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                URL(self._url + request.raw_path, encoded=True),
                headers=_end_to_end(request.headers),
                data=request.content.iter_any() if request.body_exists else None,
                allow_redirects=False,
            ) as found:
                answer = web.StreamResponse(status=found.status, reason=found.reason)
                for header, value in _end_to_end(found.headers):
                    answer.headers.add(header, value)
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer
        except aiohttp.ClientError as error:
            if answer is not None:
                # The end of the connection shows the client that this was not all.
                raise ConnectionAbortedError("the answer broke off") from error
            if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
                return _said(503, f"{self._name} cannot be reached: it is starting, or has ended")
            return _said(502, f"{self._name} did not answer: {type(error).__name__}")


class _Surplus(asyncio.Protocol):
    """A connection beyond those that may be."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _said(status: int, text: str) -> web.Response:
    answer = web.Response(status=status, text=f"{text}\n")
    answer.force_close()
    return answer


def _is_text(value: str) -> bool:
    # Bytes that are not UTF-8 were read as lone surrogates, and would be left out in silence.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _end_to_end(headers: CIMultiDictProxy[str]) -> list[tuple[str, str]]:
    """Headers that are not of one connection only, repeated ones as often as they came."""
    named = ",".join(headers.getall("Connection", ())).lower().split(",")
    dropped = _NOT_PASSED_ON.union(name.strip() for name in named)
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]


def main(argv: list[str] | None = None) -> int:
    """Run until killed. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=f"Guard the server at ${GUARDED} from web pages.")
    parser.add_argument("--name", required=True, help="of the server")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind")
    parser.add_argument("--port", type=int, required=True, help="TCP port to bind")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        uvloop.run(Guard(options.name, os.environ[GUARDED]).serve(options.host, options.port))
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  the log of this process
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
