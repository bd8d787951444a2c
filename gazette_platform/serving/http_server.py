"""The HTTP ports: what a server offers, readiness and metrics.

`Origins` decides which web pages may call it. `written` writes answers to clients that may have left.

What routes of REST have in common: bodies that are read whole, refusals, pages of other origins; and their JSON: requests, results and errors as
grpc-gateway 1 writes them.

Source: Gazette's ``/v1/`` routes; departs: a field that the request does not have is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

import orjson
from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from google.protobuf import json_format
from typing_extensions import override

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.protocol.forms import escape_html, message_jsonpb
from gazette_platform.serving.interface import Code, Denied, NotTaken, RpcFailed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from aiohttp.web_protocol import RequestHandler
    from google.protobuf.message import Message

    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.network import HostGuard
    from gazette_platform.ops.tasks import TaskGroup


M = TypeVar("M", bound="Message")

# Numbers of gRPC's codes, and the statuses that grpc-gateway gives them.
_CODES: Final = {
    Code.CANCELLED: (1, HTTPStatus.REQUEST_TIMEOUT),
    Code.UNKNOWN: (2, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.INVALID_ARGUMENT: (3, HTTPStatus.BAD_REQUEST),
    Code.DEADLINE_EXCEEDED: (4, HTTPStatus.GATEWAY_TIMEOUT),
    Code.NOT_FOUND: (5, HTTPStatus.NOT_FOUND),
    Code.ALREADY_EXISTS: (6, HTTPStatus.CONFLICT),
    Code.PERMISSION_DENIED: (7, HTTPStatus.FORBIDDEN),
    Code.RESOURCE_EXHAUSTED: (8, HTTPStatus.TOO_MANY_REQUESTS),
    Code.FAILED_PRECONDITION: (9, HTTPStatus.BAD_REQUEST),
    Code.ABORTED: (10, HTTPStatus.CONFLICT),
    Code.OUT_OF_RANGE: (11, HTTPStatus.BAD_REQUEST),
    Code.UNIMPLEMENTED: (12, HTTPStatus.NOT_IMPLEMENTED),
    Code.INTERNAL: (13, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.UNAVAILABLE: (14, HTTPStatus.SERVICE_UNAVAILABLE),
    Code.DATA_LOSS: (15, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.UNAUTHENTICATED: (16, HTTPStatus.UNAUTHORIZED),
}
# By names of the wire's statuses, for calls that have an outcome. Gazette answers 500 to all but the first three, for
# appends to unknown journals even.
_OUTCOMES: Final = {
    "JOURNAL_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "INSUFFICIENT_JOURNAL_BROKERS": HTTPStatus.SERVICE_UNAVAILABLE,
    "OFFSET_NOT_YET_AVAILABLE": HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    "SHARD_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "NO_JOURNAL_PRIMARY_BROKER": HTTPStatus.SERVICE_UNAVAILABLE,
    "NOT_JOURNAL_PRIMARY_BROKER": HTTPStatus.SERVICE_UNAVAILABLE,
    "NOT_JOURNAL_BROKER": HTTPStatus.SERVICE_UNAVAILABLE,
    "FRAGMENT_STORE_UNHEALTHY": HTTPStatus.SERVICE_UNAVAILABLE,
    "NOT_ALLOWED": HTTPStatus.FORBIDDEN,
    "SUSPENDED": HTTPStatus.CONFLICT,
    "INDEX_HAS_GREATER_OFFSET": HTTPStatus.CONFLICT,
    "WRONG_APPEND_OFFSET": HTTPStatus.CONFLICT,
    "REGISTER_MISMATCH": HTTPStatus.CONFLICT,
    "ETCD_TRANSACTION_FAILED": HTTPStatus.CONFLICT,
}
INVALID_ARGUMENT: Final = _CODES[Code.INVALID_ARGUMENT]


def parse_request(kind: type[M], body: bytes) -> M:
    """The request that a body says; an empty one is a request of defaults.

    Raises: ValidationError: no such request.
    """
    request = kind()
    if not body.strip():
        return request
    if not body.lstrip().startswith(b"{"):  # which the library takes for a request without fields
        raise ValidationError(f"the body is no {kind.DESCRIPTOR.name} as JSON: expected an object")
    try:
        return json_format.Parse(body, request)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as err:
        raise ValidationError(f"the body is no {kind.DESCRIPTOR.name} as JSON: {err}") from err


def result_line(message: Message) -> bytes:
    """One result of a stream."""
    return _line({"result": message_jsonpb(message, camel_case=True)})


def message_line(message: Message) -> bytes:
    """The answer to a call that has one."""
    return _line(message_jsonpb(message, camel_case=True))


def error_of(err: RpcFailed) -> tuple[int, HTTPStatus]:
    """The number of gRPC's code of an error, and its HTTP status."""
    return _CODES[Code.PERMISSION_DENIED if isinstance(err, Denied) else err.code]


def outcome_status(name: str) -> HTTPStatus:
    """The HTTP status of an outcome other than OK, by the name of the wire's status."""
    return _OUTCOMES.get(name, HTTPStatus.INTERNAL_SERVER_ERROR)


def error_line(text: str, code: tuple[int, HTTPStatus]) -> bytes:
    """Return what a stream says in place of results, or after the last of them."""
    number, status = code
    error = {
        "grpcCode": number,
        "httpCode": int(status),
        "message": text,
        "httpStatus": status.phrase,
        "details": [],
    }
    return _line({"error": error})


def call_error_line(text: str, code: tuple[int, HTTPStatus]) -> bytes:
    """Return the answer to a call that has no stream, or whose stream does not begin."""
    return _line({"error": text, "code": code[0], "message": text, "details": []})


def _line(value: dict[str, Any]) -> bytes:
    return escape_html(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))


NOT_SERVING: Final = "starting or draining"
"""What ``/debug/ready`` says of a server that does not serve yet, or does no more."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the text form of Prometheus."""

# Twice this for requests under way when the port closes. Those that make progress have ended by then, with their
# replicas; a reader that takes nothing must not delay the end of the process.
_SHUTDOWN_S = 0.5

# Bytes of a body that are read ahead of the append: one read of them makes one message.
_READ_AHEAD_BYTES = 256 << 10

# How long a connection may go without a whole request: new, half-sent, or kept alive. Prometheus and
# proxies come back within a minute.
_IDLE_S = 75.0

# Requests under way, tails among them, and connections. A broker often has 1024 descriptors or more,
# and gRPC and spools need theirs. Beyond, requests are refused and idle connections closed.
_REQUESTS_MAX = 512
_CONNECTIONS_MAX = 640

# Reads under way: each may last as long as its client likes, and appends and the console need room, too.
_READS_MAX = 448

# These are answered however much is under way: a broker with many readers is ready, and its metrics
# show how many.
_DIAGNOSTICS: Final = frozenset({"/debug/ready", "/debug/metrics"})

_SWEEP_S = 1.0


class Metrics(Protocol):
    """What Prometheus may ask for."""

    def exposition(self) -> bytes:
        """All that is counted, in the text form of Prometheus."""
        ...


class _OurFaults(logging.Filter):
    """Logs nothing of what clients do wrong, or of those that left: the log is not theirs to fill."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (HttpProcessingError, ConnectionError))


_server_log = logging.getLogger(f"{__name__}.server")
_server_log.addFilter(_OurFaults())


@final
class HttpServer:
    """Serves what is added to its routes, ``/debug/ready`` and ``/debug/metrics``.

    Args:
        flag: names the port in errors.
        tls: None: the port is plain.
        add_routes: adds what is served behind the diagnostics, in whose place a wildcard may stand; None:
            these alone.
        has_diagnostics: whether to serve ``/debug/``.
        metrics: None: `add_routes` adds ``/debug/metrics``.
        unready: returns why the server does not do its work; empty: it does.
        tasks: owns what looks after connections.
        guard: of requests that foreign pages make; None: any is served.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: Metrics | None,
        unready: Callable[[], str],
        tasks: TaskGroup,
        faults: Faults,
        guard: HostGuard | None = None,
        flag: str,
        tls: ssl.SSLContext | None = None,
        add_routes: Callable[[web.UrlDispatcher], None] | None = None,
        has_diagnostics: bool = True,
    ) -> None:
        self._host = host
        self._flag = flag
        self._tls = tls
        self._unready = unready
        self._tasks = tasks
        self._faults = faults
        self._guard = guard
        self._busy: set[RequestHandler] = set()
        self._idle_since: dict[RequestHandler, float] = {}
        self.port = port
        app = web.Application(middlewares=[self._guarded])
        if has_diagnostics:
            app.router.add_get("/debug/ready", self._ready)
            if metrics is not None:
                app.router.add_get("/debug/metrics", partial(_exposition, metrics))
        if add_routes is not None:
            add_routes(app.router)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_server_log,
            handler_cancellation=True,  # a client that has gone ends its append, or its tail
            shutdown_timeout=_SHUTDOWN_S,
            read_bufsize=_READ_AHEAD_BYTES,
            auto_decompress=False,  # a body is appended as it was sent
        )

    async def start(self) -> None:
        """Listen. Raises: SetupError: the port is in use."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, ssl_context=self._tls)
        try:
            await site.start()
        except OSError as err:
            await self._runner.cleanup()
            raise SetupError(
                f"cannot listen on {self._host}:{self.port}: {err.strerror} "
                f"(choose another port with --{self._flag})"
            ) from err
        self.port = self._runner.addresses[0][1]
        self._tasks.spawn(self._sweep(), name=self._flag)

    async def stop(self) -> None:
        """Close the port and its connections."""
        await self._runner.cleanup()

    @web.middleware
    async def _guarded(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Serve a request, unless a foreign page made it, or too many are under way."""
        connection = request.protocol
        try:
            refusal = self._refusal(request)
            self._busy.add(connection)
            return refusal if refusal is not None else await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as err:
            self._faults.report("call", f"HTTP {request.method}", err)
            if request.transport is None or request.writer.output_size:
                raise ConnectionAbortedError("the answer broke off") from err
            text = f"unforeseen {type(err).__name__} (the log of this process has more)\n"
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text=text)
        finally:
            self._busy.discard(connection)
            self._idle_since.pop(connection, None)

    def _refusal(self, request: web.Request) -> web.Response | None:
        headers = request.headers
        if not all(value.isascii() for value in headers.values()):
            text = "a header is not ASCII\n"
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=text)
        if len(self._busy) >= _REQUESTS_MAX and request.path not in _DIAGNOSTICS:
            text = f"{_REQUESTS_MAX} requests are under way; try again\n"
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=text)
        host, origin = headers.get("Host", ""), headers.get("Origin", "")
        if self._guard is None:
            return None
        code = HTTPStatus.MISDIRECTED_REQUEST
        text = self._guard.refused_host(host)
        if not text:
            code = HTTPStatus.FORBIDDEN
            text = self._guard.refused_origin(request.method, host, origin)
        return web.Response(status=code, text=f"{text}\n") if text else None

    async def _sweep(self) -> None:
        """Close connections that are idle for too long, the longest ones first if they are many."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_SWEEP_S)
            server, now = self._runner.server, clock()
            if server is None:
                return
            connections = server.connections
            idle = [found for found in connections if found not in self._busy]
            self._idle_since = {found: self._idle_since.get(found, now) for found in idle}
            surplus = len(connections) - _CONNECTIONS_MAX
            for count, found in enumerate(sorted(idle, key=self._idle_since.__getitem__)):
                if count < surplus or now - self._idle_since[found] > _IDLE_S:
                    found.force_close()

    async def _ready(self, _: web.Request) -> web.Response:
        if why := self._unready():
            return web.Response(status=503, text=f"{why}\n")
        return web.Response(text="ready\n")


async def _exposition(metrics: Metrics, _: web.Request) -> web.Response:
    return web.Response(body=metrics.exposition(), headers={"Content-Type": METRICS_TYPE})


async def bid_go_on(request: web.Request) -> None:
    """Let a client that asks first send its body; it may have left by then."""
    if request.version < HttpVersion11:
        return
    expected = request.headers["Expect"]
    if expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed(text=f"unknown Expect: {expected!a}\n")
    with contextlib.suppress(ConnectionError):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the head of the answer is still to come


# Headers that pages of another origin may see.
_EXPOSED = (
    "Content-Range, X-Write-Head, X-Route-Token, X-Fragment-Name, X-Fragment-Last-Modified, "
    "X-Fragment-Location, X-Commit-Begin, X-Commit-End, X-Commit-SHA1-Sum"
)


@final
class Origins:
    """Who is let in.

    Args:
        allowed: origins whose pages may use the port; ``*`` among them: all.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def headers(self, request: web.Request) -> dict[str, str]:
        """Headers of any answer to `request`; empty: no foreign page asks, or may."""
        origin = request.headers.get("Origin", "")
        if not origin or self._allowed.isdisjoint((origin, "*")):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": _EXPOSED,
            "Vary": "Origin",
        }

    @staticmethod
    def preflight(request: web.Request, methods: str) -> dict[str, str]:
        """What the answer to a preflight says beside `headers`."""
        wanted = request.headers.get("Access-Control-Request-Headers", "Authorization")
        return {
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": wanted,
            "Access-Control-Max-Age": "3600",
        }


# A client that takes nothing for so long has gone, or will connect again.
_STALL_S = 60.0


class ClientGone(NotTaken):
    """The client has left, or takes nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.CANCELLED, text)


async def written(
    request: web.Request,
    write: Callable[[bytes | memoryview], Awaitable[None]],
    content: bytes | memoryview,
) -> None:
    """Call `write` of an answer, which waits for room. Raises: NotTaken: the client has gone, or takes nothing."""
    try:
        async with asyncio.timeout(_STALL_S):
            await write(content)
    except TimeoutError as err:
        if request.transport is not None:
            request.transport.abort()
        raise ClientGone(f"nothing was taken for {_STALL_S:g} s") from err
    except ConnectionError as err:
        raise ClientGone(str(err)) from err


def caller_metadata(request: web.Request) -> dict[str, str]:
    """What an RPC knows of its caller: the token."""
    token = request.headers.get("Authorization", "")
    return {"authorization": token} if token else {}


@final
class OpenReads:
    """Bounds reads that are under way: all of them together, and by caller those that only their client ends.

    A caller is a token. Without keys anyone can make one up, so it is an address then.

    Args:
        tails_max: of one caller.
        flag: sets `tails_max`, for errors.
        has_keys: whether tokens are verified.
    """

    def __init__(self, tails_max: int, flag: str, *, has_keys: bool) -> None:
        self._tails_max = tails_max
        self._flag = flag
        self._has_keys = has_keys
        self._tails: Counter[str] = Counter()
        self._count = 0

    @contextlib.contextmanager
    def admitted(self, request: web.Request, *, is_tail: bool) -> Iterator[None]:
        """Hold a place for a read. Raises: RpcFailed: RESOURCE_EXHAUSTED: too many are under way."""
        token = request.headers.get("Authorization", "") if self._has_keys else ""
        caller = token or request.remote or ""
        if is_tail and self._tails[caller] >= self._tails_max:
            who = "this token" if token else f"the address {caller}"
            raise RpcFailed(
                Code.RESOURCE_EXHAUSTED,
                f"{who} has {self._tails_max} live tails open at this broker "
                f"(close some, or raise --{self._flag})",
            )
        if self._count >= _READS_MAX:
            text = f"{_READS_MAX} reads are under way at this HTTP port (try again, or ask another broker)"
            raise RpcFailed(Code.RESOURCE_EXHAUSTED, text)
        self._count += 1
        self._tails[caller] += is_tail
        try:
            yield
        finally:
            self._count -= 1
            self._tails[caller] -= is_tail
            if not self._tails[caller]:
                del self._tails[caller]


JSON_TYPE: Final = "application/json"

# Whoever can reach the port has its body parsed before a token is asked for, and nothing else is served
# meanwhile: 1 MB of empty labels takes a second.
_BODY_BYTES_MAX = 64 << 10

# A request whose body does not come is under way, and bars others, without a token.
_BODY_S = 10.0


class RestRoutes:
    """Answers requests with JSON.

    Args:
        origins: whose pages may ask.
    """

    def __init__(self, origins: Origins) -> None:
        self._origins = origins

    async def read_body(self, request: web.Request) -> bytes:
        """The whole body. Raises: ValidationError: it is too long, or does not come. Cancellation: safe."""
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for piece in request.content.iter_any():
                    body += piece
                    if len(body) > _BODY_BYTES_MAX:
                        raise ValidationError(
                            f"the body has more than {_BODY_BYTES_MAX} bytes (ask for less at a time)"
                        )
        except TimeoutError as err:
            raise ValidationError(
                f"the body did not come within {_BODY_S:g} s (send it at once)"
            ) from err
        return bytes(body)

    def refusal(
        self, request: web.Request, text: str, code: tuple[int, HTTPStatus]
    ) -> web.Response:
        """Return the answer to a request that is not served, of a code as the REST gateway has them."""
        return self.answer(request, call_error_line(text, code), code[1])

    def answer(
        self, request: web.Request, body: bytes, status: HTTPStatus = HTTPStatus.OK
    ) -> web.Response:
        """An answer of JSON."""
        headers = self._origins.headers(request)
        if status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(status=status, body=body, content_type=JSON_TYPE, headers=headers)

    async def preflight(self, request: web.Request) -> web.Response:
        """The answer to what browsers ask before a POST. Cancellation: safe."""
        headers = self._origins.headers(request)
        if headers:
            headers |= self._origins.preflight(request, "POST")
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)
