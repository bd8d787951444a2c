"""The HTTP gateway: GET, HEAD and PUT of journals, for programs without gRPC.

It calls the broker's own service, just as the gRPC server does. So all that holds for an RPC holds
here as well: tokens, metrics, flow control, and the path that content takes.

Source: Gazette's http_gateway; departs: it verifies its caller, answers with the status that fits,
names no ``Location`` (peers do not announce their HTTP port), streams events to browsers, and says
at once where a blocking read begins.

`RestGateway` serves List and Read as JSON, for scripts and pages that know Gazette's ``/v1/``. `EventStream` is content as
server-sent events: one event a line, with the offset to resume at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, final

from aiohttp import ClientPayloadError, HttpVersion11, web
from typing_extensions import override

from gazette_platform.broker.api.gateway_messages import (
    CLOSE_ERROR,
    ReadQuery,
    append_headers,
    content_range,
    journal_of,
    read_headers,
)
from gazette_platform.errors import DataError, ValidationError, status_error
from gazette_platform.protocol import (
    Status,
    strip_meta,
    validate_append_request,
    validate_list_request,
    validate_read_request,
)
from gazette_platform.protocol.content import decode_read_content, encode_append_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.http_server import (
    INVALID_ARGUMENT,
    JSON_TYPE,
    ClientGone,
    OpenReads,
    Origins,
    RestRoutes,
    bid_go_on,
    caller_metadata,
    error_line,
    error_of,
    outcome_status,
    parse_request,
    result_line,
    written,
)
from gazette_platform.serving.interface import Code, ContentSource, NotTaken, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.serving.interface import ClientStream, Send, ServerStream


class Service(Protocol):
    """What serves them, as it does over gRPC."""

    @property
    def append(self) -> ClientStream:
        """Serves Append."""
        ...

    @property
    def read(self) -> ServerStream:
        """Serves Read."""
        ...

    @property
    def list_journals(self) -> ServerStream:
        """Serves List."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether it ends the streams that would otherwise last for ever."""
        ...


_log = logging.getLogger(__name__)

_METHODS = "GET, HEAD, PUT"
_EVENTS = "text/event-stream"
_BINARY = "application/octet-stream"

# Proxies close connections that are quiet for a minute, the most impatient ones for half of one.
_KEEPALIVE_S = 15.0

_BROKER_ENDED = "broker terminated RPC"
_LEAVING = "this broker is leaving"


@final
class Gateway:
    """Serves journals over HTTP.

    Args:
        config: names the origins whose pages may use it, and bounds live tails.
        tasks: owns the keepalive of open event streams.
    """

    def __init__(self, service: Service, config: BrokerConfig, tasks: TaskGroup) -> None:
        self._service = service
        self._origins = Origins(config.allow_origin)
        self._open_reads = OpenReads(
            config.max_http_tails,
            "broker.max-http-tails",
            has_keys=bool(config.auth_keys.strip()),
        )
        self._rest = RestGateway(service, origins=self._origins, open_reads=self._open_reads)
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
            code = error_of(err)[1]
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
        with (
            contextlib.suppress(ConnectionError, ClientGone),
            self._open_reads.admitted(request, is_tail=query.block),
        ):
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
                    await written(request, response.write, events)
                    await asyncio.sleep(0)  # a piece may have many lines, and others wait
            except DataError as err:
                raise _NotServed(str(err)) from err

        try:
            await contents.write_to(write)
        finally:
            keepalive.cancel()  # nothing may be written after the end
        why = _LEAVING if self._service.is_leaving else contents.close_error
        last = stream.close(why, is_at_end=contents.is_at_end)
        await written(request, response.write, last)
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

    async def finish(self, request: web.Request, trailer: str, value: str) -> None:
        """End the body. Line ends in `value` would be trailers of their own."""
        text = f"{trailer}: {' '.join(value.split())}"
        last = b"0\r\n%s\r\n\r\n" % text.encode("latin-1", "replace")
        await written(request, super().write, last)
        await self.write_eof()


async def _send_body(
    request: web.Request, headers: dict[str, str], contents: _Contents
) -> web.StreamResponse:
    headers["Content-Type"] = _BINARY
    if request.version < HttpVersion11:
        response = web.StreamResponse(status=HTTPStatus.PARTIAL_CONTENT, headers=headers)
        await response.prepare(request)
        await contents.write_to(partial(written, request, response.write))
        await response.write_eof()
        return response
    headers |= {"Transfer-Encoding": "chunked", "Trailer": CLOSE_ERROR}
    trailed = _TrailedResponse(status=HTTPStatus.PARTIAL_CONTENT, headers=headers)
    await trailed.prepare(request)
    await contents.write_to(partial(written, request, trailed.write))
    await trailed.finish(request, CLOSE_ERROR, contents.close_error)
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
    return _refusal(outcome_status(found.name), str(error), headers)


def _refusal(code: int, text: str, headers: dict[str, str]) -> web.Response:
    return web.Response(status=code, text=f"{text}\n", headers=headers)


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of the broker, and how requests come to it."""

    serve: ServerStream
    request: type[pb.ListRequest | pb.ReadRequest]
    validate: Callable[[Any], None]
    response: type[pb.ListResponse | pb.ReadResponse]


@final
class RestGateway(RestRoutes):
    """Serves ``POST /v1/journals/list`` and ``POST /v1/journals/read``."""

    def __init__(self, service: Service, *, origins: Origins, open_reads: OpenReads) -> None:
        super().__init__(origins)
        self._open_reads = open_reads
        self._methods = {
            "list": _Method(
                service.list_journals, pb.ListRequest, validate_list_request, pb.ListResponse
            ),
            "read": _Method(service.read, pb.ReadRequest, validate_read_request, pb.ReadResponse),
        }

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes. Other methods of these paths stay with journals of that name."""
        for name, method in self._methods.items():
            router.add_post(f"/v1/journals/{name}", partial(self._answer, method))
            router.add_options(f"/v1/journals/{name}", self.preflight)

    async def _answer(self, method: _Method, request: web.Request) -> web.StreamResponse:
        """Answer a request. Cancellation: the client has gone; ends the call."""
        try:
            message = parse_request(method.request, await self.read_body(request))
        except ValidationError as err:
            return self.refusal(request, str(err), INVALID_ARGUMENT)
        try:
            method.validate(message)
        except ValidationError as err:
            return self._failure(request, str(err), INVALID_ARGUMENT)
        return await self._stream(method, request, message)

    def _failure(
        self, request: web.Request, text: str, code: tuple[int, HTTPStatus]
    ) -> web.Response:
        """Return a stream that has no results."""
        return self.answer(request, error_line(text, code), code[1])

    async def _stream(
        self, method: _Method, request: web.Request, message: pb.ListRequest | pb.ReadRequest
    ) -> web.StreamResponse:
        """Write each response as a line."""
        headers = {"Content-Type": JSON_TYPE, **self._origins.headers(request)}
        is_tail = message.watch if isinstance(message, pb.ListRequest) else message.block
        response = web.StreamResponse(headers=headers)

        async def take(raw: bytes) -> None:
            line = result_line(method.response.FromString(raw))
            try:
                if not response.prepared:
                    await response.prepare(request)
            except ConnectionError as err:
                raise ClientGone(str(err)) from err
            await written(request, response.write, line)

        try:
            try:
                with self._open_reads.admitted(request, is_tail=is_tail):
                    await method.serve(message.SerializeToString(), take, caller_metadata(request))
            except ClientGone:
                raise
            except RpcFailed as err:
                if not response.prepared:
                    return self._failure(request, err.text, error_of(err))
                await written(request, response.write, error_line(err.text, error_of(err)))
        except ClientGone as err:
            raise asyncio.CancelledError from err
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response


# For each reader a line is held in memory until its end has come. Records of text are far shorter than
# this. Longer ones are not text, and a few hundred readers of them would take gigabytes.
_LINE_BYTES_MAX = 1 << 20

# How many lines are made into events in one go. If all of them are empty, that takes some 10 ms and
# gives a dozen times as many bytes.
_STEP_BYTES = 32 << 10

# Milliseconds after which a browser connects again.
_RETRY_MS = 1000


@final
class EventStream:
    r"""Turns pieces of content into events.

    The id of an event is the offset after its line, which browsers send back as ``Last-Event-ID``
    when they connect again: no line is lost, and none comes twice.

    Args:
        offset: of the first byte that `feed` will get.

    >>> stream = EventStream(100)
    >>> [*stream.feed(b"one\ntw"), *stream.feed(b"o\n")]
    [b'id: 104\ndata: one\n\n', b'id: 108\ndata: two\n\n']
    """

    OPENING = b"retry: %d\n\n" % _RETRY_MS
    """First bytes of every stream."""

    KEEPALIVE = b":\n\n"
    """A comment, which keeps proxies from closing a quiet connection."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, content: bytes | memoryview) -> Iterator[bytes]:
        """The events of all lines that end within `content`, some at a time.

        Raises: DataError: a line is too long to be one.
        """
        for at in range(0, len(content), _STEP_BYTES):
            events = self._step(bytes(content[at : at + _STEP_BYTES]))
            if events:
                yield events

    def _step(self, piece: bytes) -> bytes:
        cut = piece.rfind(b"\n") + 1
        if not cut:
            self._hold(piece)
            return b""
        block = b"".join((*self._rest, piece[:cut]))
        self._rest, self._rest_bytes = [], 0
        if cut < len(piece):
            self._hold(piece[cut:])
        events = []
        for line in block[:-1].split(b"\n"):
            self._offset += len(line) + 1
            events.append(b"id: %d\ndata: %s\n\n" % (self._offset, _data(line)))
        return b"".join(events)

    def close(self, reason: str, *, is_at_end: bool) -> bytes:
        """The last events: a line without its end, if no more will come, and why it is over."""
        rest = b"".join(self._rest)
        event = b"event: close\ndata: %s\n\n" % _data(reason.encode())
        if not is_at_end or not rest:
            return event
        return b"id: %d\ndata: %s\n\n" % (self._offset + len(rest), _data(rest)) + event

    def _hold(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes > _LINE_BYTES_MAX:
            raise DataError(
                f"a line at offset {self._offset} is over {_LINE_BYTES_MAX} bytes: this journal "
                "is not a text of lines (read it without Accept: text/event-stream)"
            )


def _data(line: bytes) -> bytes:
    """A line as the value of ``data``. Events are UTF-8, and in them a CR ends a line, too."""
    line = line.removesuffix(b"\r")
    if not line.isascii():
        line = line.decode("utf-8", "replace").encode()
    line = line.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return line.replace(b"\n", b"\ndata: ")
