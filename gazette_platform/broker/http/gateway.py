"""The HTTP gateway: GET, HEAD and PUT of journals, for programs without gRPC.

It calls the broker's own service, just as the gRPC server does. So all that holds for an RPC holds
here as well: tokens, metrics, flow control, and the path that content takes.

Source: Gazette's http_gateway; departs: it verifies its caller, answers with the status that fits,
names no ``Location`` (peers do not announce their HTTP port), streams events to browsers, and says
at once where a blocking read begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, final

from aiohttp import ClientPayloadError, HttpVersion11, web
from typing_extensions import override

from gazette_platform.broker.http.event_stream import EventStream
from gazette_platform.broker.http.messages import (
    CLOSE_ERROR,
    ReadQuery,
    append_headers,
    content_range,
    failure_status,
    journal_of,
    read_headers,
    status_code,
)
from gazette_platform.broker.http.rest import RestGateway
from gazette_platform.errors import DataError, ValidationError, status_error
from gazette_platform.protocol import (
    Status,
    strip_meta,
    validate_append_request,
    validate_read_request,
)
from gazette_platform.protocol.content import decode_read_content, encode_append_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.http_server import (
    ClientGone,
    Origins,
    bid_go_on,
    caller_metadata,
    written,
)
from gazette_platform.serving.interface import Code, ContentSource, NotTaken, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gazette_platform.broker.http.interface import Service
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.serving.interface import Send

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)

_METHODS = "GET, HEAD, PUT"
_EVENTS = "text/event-stream"
_BINARY = "application/octet-stream"

# Proxies close connections that are quiet for a minute, the most impatient ones for half of one.
_KEEPALIVE_S = 15.0

_BROKER_ENDED = "broker terminated RPC"


@final
class Gateway:
    """Serves journals over HTTP.

    Args:
        allow_origin: origins whose pages may use it; ``*`` among them: all.
        tasks: owns the keepalive of open event streams.
    """

    def __init__(
        self, service: Service, *, allow_origin: tuple[str, ...], tasks: TaskGroup
    ) -> None:
        self._service = service
        self._origins = Origins(allow_origin)
        self._rest = RestGateway(service, origins=self._origins)
        self._tasks = tasks

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes: ``/v1/``, and any path for journals."""
        self._rest.add_to(router)
        router.add_route("*", "/{journal:.*}", self.handle, expect_handler=bid_go_on)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request. Cancellation: the client has gone; what it appended is rolled back."""
        headers = self._origins.headers(request)
        try:
            if request.method == "PUT":
                return await self._append(request, headers)
            if request.method in {"GET", "HEAD"}:
                return await self._read(request, headers)
            if request.method == "OPTIONS" and headers:
                return web.Response(
                    status=HTTPStatus.NO_CONTENT,
                    headers=headers | self._origins.preflight(request, _METHODS),
                )
        except ValidationError as err:
            return _refusal(HTTPStatus.BAD_REQUEST, str(err), headers)
        except RpcFailed as err:
            code = failure_status(err)
            if code == HTTPStatus.UNAUTHORIZED:
                headers["WWW-Authenticate"] = "Bearer"
            return _refusal(code, err.text, headers)
        text = f"unknown method: {request.method} (expected {_METHODS})"
        return _refusal(HTTPStatus.BAD_REQUEST, text, headers)

    # --------------------------------------------------------------------------------- append
    async def _append(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        """Append the body as one span."""
        for key in request.query:
            raise ValidationError(
                f'schema: invalid path "{key}" (a PUT has no query: it appends at the write head)'
            )
        message = pb.AppendRequest(journal=journal_of(request.rel_url.raw_path))
        validate_append_request(message)
        raw = await self._service.append(
            message.SerializeToString(), _Body(request), caller_metadata(request)
        )
        response = pb.AppendResponse.FromString(raw)
        headers |= append_headers(response)
        if response.status != pb.OK:
            return _outcome(response.status, message.journal, response.store_health_error, headers)
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)

    # ----------------------------------------------------------------------------------- read
    async def _read(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        query = ReadQuery.parse(request.query.items())
        sends_events = _EVENTS in request.headers.get("Accept", "") and request.method == "GET"
        message = pb.ReadRequest(
            journal=journal_of(request.rel_url.raw_path),
            offset=_resumed(request, query.offset) if sends_events else query.offset,
            metadata_only=True,
        )
        validate_read_request(message)
        metadata = caller_metadata(request)
        # A blocking read says nothing before there is content. So ask first where it begins, and
        # whether it may be at all: browsers and scripts then know at once that they are connected.
        begin = await self._first(message, metadata)
        waits = query.block and begin.status == pb.OFFSET_NOT_YET_AVAILABLE
        headers |= read_headers(begin)
        if begin.status != pb.OK and not waits:
            if begin.status == pb.OFFSET_NOT_YET_AVAILABLE:
                headers["Content-Range"] = f"bytes */{begin.write_head}"
            return _outcome(begin.status, message.journal, "", headers)
        headers["Content-Range"] = content_range(begin.offset)
        if request.method == "HEAD":
            headers["Content-Type"] = _BINARY
            return web.Response(status=HTTPStatus.PARTIAL_CONTENT, headers=headers)
        message.offset, message.block, message.metadata_only = begin.offset, query.block, False
        raw = message.SerializeToString()
        contents = _Contents(lambda send: self._service.read(raw, send, metadata), begin.offset)
        with contextlib.suppress(ConnectionError, ClientGone):
            if sends_events:
                return await self._send_events(request, headers, contents)
            return await _send_body(request, headers, contents)
        raise asyncio.CancelledError

    async def _first(self, message: pb.ReadRequest, metadata: Mapping[str, str]) -> pb.ReadResponse:
        # Unless it gets a response, its replica closed meanwhile.
        first = pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER)

        async def take(raw: bytes) -> None:
            first.ParseFromString(raw)

        await self._service.read(message.SerializeToString(), take, metadata)
        return first

    async def _send_events(
        self, request: web.Request, headers: dict[str, str], contents: _Contents
    ) -> web.StreamResponse:
        del headers["Content-Range"]  # which means something in a 206 only
        headers |= {
            "Content-Type": f"{_EVENTS}; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(EventStream.OPENING)
        stream = EventStream(contents.offset)
        keepalive = self._tasks.spawn(_keep_alive(response), name="events")

        async def write(content: bytes | memoryview) -> None:
            try:
                for events in stream.feed(content):
                    await written(request, response, events)
                    await asyncio.sleep(0)  # a piece may have many lines, and others wait
            except DataError as err:
                raise _NotServed(str(err)) from err

        try:
            await contents.write_to(write)
        finally:
            keepalive.cancel()  # nothing may be written behind the end
        await response.write(stream.close(contents.close_error, is_at_end=contents.is_at_end))
        await response.write_eof()
        return response


@final
class _Body(ContentSource):
    """The body of a PUT, as the messages of an append: content, then the commit marker."""

    def __init__(self, request: web.Request) -> None:
        self._content = request.content
        self._is_over = False

    @override
    async def next(self) -> bytes | None:
        if self._is_over:
            return None
        try:
            piece = await self._content.readany()
        except (ConnectionError, ClientPayloadError) as err:
            # Without the commit marker, an end rolls back.
            _log.debug("a PUT broke off: %s", err)
            self._is_over = True
            return None
        if piece:
            return encode_append_content(piece)
        self._is_over = True
        return b""


class _NotServed(NotTaken):
    """What was read does not fit the answer that was begun."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.CANCELLED, text)


@final
class _Contents:
    """The content of a read, and why it ended.

    Before a read we ask where it begins. Since then the journal may have moved, or a connection may have
    broken, and the client would get none of the content that it was promised. So a read that ends
    before any content has come is made once more.
    """

    def __init__(self, read: Callable[[Send], Awaitable[None]], offset: int) -> None:
        self._read = read
        self._is_begun = False
        self.offset = offset
        self.close_error = _BROKER_ENDED
        self.is_at_end = False

    async def write_to(self, write: Callable[[bytes | memoryview], Awaitable[None]]) -> None:
        """Write all of it. Raises: NotTaken: the client has gone. Cancellation: ends the read."""
        await self._write_once(write)
        if not self._is_begun and not self.is_at_end:
            self.close_error = _BROKER_ENDED
            await self._write_once(write)

    async def _write_once(self, write: Callable[[bytes | memoryview], Awaitable[None]]) -> None:
        async def take(raw: bytes) -> None:
            content = self._content(raw)
            if content:
                self._is_begun = True
                await write(content)

        try:
            await self._read(take)
        except ClientGone:
            raise
        except RpcFailed as err:
            self.close_error = err.text

    def _content(self, raw: bytes) -> bytes | memoryview:
        """The content of a response, if it has any. Raises: NotTaken: it is not what follows."""
        decoded = decode_read_content(raw)
        if decoded is None:
            response = pb.ReadResponse.FromString(raw)
            if response.status != pb.OK:  # and it was the last one
                self.close_error = Status.from_wire(response.status).name
                self.is_at_end = response.status == pb.OFFSET_NOT_YET_AVAILABLE
                return b""
            decoded = response.offset, memoryview(response.content)
        offset, content = decoded
        if offset != self.offset:
            raise _NotServed("offset jump")
        self.offset += len(content)
        return content


class _TrailedResponse(web.StreamResponse):
    """A chunked response with a trailer, which aiohttp does not send: it frames its own chunks."""

    _length_check = False  # leaves the framing to us

    @override
    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await super().write(b"".join((b"%x\r\n" % len(data), data, b"\r\n")))

    async def finish(self, trailer: str, value: str) -> None:
        """End the body. Line ends in `value` would be trailers of their own."""
        text = f"{trailer}: {' '.join(value.split())}"
        await super().write(b"0\r\n%s\r\n\r\n" % text.encode("latin-1", "replace"))
        await self.write_eof()


async def _send_body(
    request: web.Request, headers: dict[str, str], contents: _Contents
) -> web.StreamResponse:
    headers["Content-Type"] = _BINARY
    if request.version < HttpVersion11:
        response = web.StreamResponse(status=HTTPStatus.PARTIAL_CONTENT, headers=headers)
        await response.prepare(request)
        await contents.write_to(partial(written, request, response))
        await response.write_eof()
        return response
    headers |= {"Transfer-Encoding": "chunked", "Trailer": CLOSE_ERROR}
    trailed = _TrailedResponse(status=HTTPStatus.PARTIAL_CONTENT, headers=headers)
    await trailed.prepare(request)
    await contents.write_to(partial(written, request, trailed))
    await trailed.finish(CLOSE_ERROR, contents.close_error)
    return trailed


async def _keep_alive(response: web.StreamResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await asyncio.sleep(_KEEPALIVE_S)
            await response.write(EventStream.KEEPALIVE)


def _resumed(request: web.Request, offset: int) -> int:
    """Where a browser that connects again goes on."""
    last = request.headers.get("Last-Event-ID", "")
    return ReadQuery.parse((("offset", last),)).offset if last else offset


def _outcome(status: int, journal: str, detail: str, headers: dict[str, str]) -> web.Response:
    found = Status.from_wire(status)
    error = status_error(found.name, detail, journal=strip_meta(journal))
    return _refusal(status_code(found), str(error), headers)


def _refusal(code: int, text: str, headers: dict[str, str]) -> web.Response:
    return web.Response(status=code, text=f"{text}\n", headers=headers)
