"""The REST gateway: List and Read as JSON, for scripts and pages that know Gazette's ``/v1/``.

It calls the broker's own service, as the gateway of journals does, so that tokens and metrics hold
here as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, final

from aiohttp import web

from gazette_platform.broker.http.rest_messages import (
    INVALID_ARGUMENT,
    error_line,
    error_of,
    parse_request,
    result_line,
)
from gazette_platform.broker.http.sending import ClientGone, caller_metadata, written
from gazette_platform.broker.wire.interface import RpcFailed
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import validate_list_request, validate_read_request
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from gazette_platform.broker.http.origins import Origins
    from gazette_platform.broker.wire.interface import ServerStream, Service

__all__ = ["RestGateway"]

_JSON = "application/json"

# Whoever can reach the port has its body parsed before a token is asked for, and nothing else is served
# meanwhile: 1 MB of empty labels takes a second.
_BODY_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of the broker, and how requests come to it."""

    serve: ServerStream
    request: type[pb.ListRequest | pb.ReadRequest]
    validate: Callable[[Any], None]
    response: type[pb.ListResponse | pb.ReadResponse]


@final
class RestGateway:
    """Serves ``POST /v1/journals/list`` and ``POST /v1/journals/read``."""

    def __init__(self, service: Service, *, origins: Origins) -> None:
        self._methods = {
            "list": _Method(
                service.list_journals, pb.ListRequest, validate_list_request, pb.ListResponse
            ),
            "read": _Method(service.read, pb.ReadRequest, validate_read_request, pb.ReadResponse),
        }
        self._origins = origins

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes. Other methods of these paths stay with journals of that name."""
        for name, method in self._methods.items():
            router.add_post(f"/v1/journals/{name}", partial(self._answer, method))
            router.add_options(f"/v1/journals/{name}", self._preflight)

    async def _answer(self, method: _Method, request: web.Request) -> web.StreamResponse:
        """Answer a request. Cancellation: the client has gone; ends the call."""
        try:
            message = parse_request(method.request, await _body(request))
            method.validate(message)
        except ValidationError as err:
            return self._refusal(request, str(err), INVALID_ARGUMENT)
        return await self._stream(method, request, message)

    async def _stream(
        self, method: _Method, request: web.Request, message: Message
    ) -> web.StreamResponse:
        """Write each response as a line."""
        headers = {"Content-Type": _JSON, **self._origins.headers(request)}
        response = web.StreamResponse(headers=headers)

        async def take(raw: bytes) -> None:
            line = result_line(method.response.FromString(raw))
            try:
                if not response.prepared:
                    await response.prepare(request)
            except ConnectionError as err:
                raise ClientGone(str(err)) from err
            await written(request, response, line)

        try:
            try:
                await method.serve(message.SerializeToString(), take, caller_metadata(request))
            except ClientGone:
                raise
            except RpcFailed as err:
                if not response.prepared:
                    return self._refusal(request, err.text, error_of(err))
                await written(request, response, error_line(err.text, error_of(err)))
        except ClientGone as err:
            raise asyncio.CancelledError from err
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    def _refusal(
        self, request: web.Request, text: str, code: tuple[int, HTTPStatus]
    ) -> web.Response:
        headers = self._origins.headers(request)
        if code[1] == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(
            status=code[1], body=error_line(text, code), content_type=_JSON, headers=headers
        )

    async def _preflight(self, request: web.Request) -> web.Response:
        headers = self._origins.headers(request)
        if headers:
            headers |= self._origins.preflight(request, "POST")
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)


async def _body(request: web.Request) -> bytes:
    """The whole body. Raises: ValidationError: it is too long."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > _BODY_BYTES_MAX:
            raise ValidationError(
                f"the body has more than {_BODY_BYTES_MAX} bytes (ask for less at a time)"
            )
    return bytes(body)
