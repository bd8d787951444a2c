"""The REST gateway: List and Read as JSON, for scripts and pages that know Gazette's ``/v1/``.

It calls the broker's own service, as the gateway of journals does, so that tokens and metrics hold
here as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from aiohttp import web

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import validate_list_request, validate_read_request
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.http_server import ClientGone, caller_metadata, written
from gazette_platform.serving.interface import RpcFailed
from gazette_platform.serving.rest_messages import (
    INVALID_ARGUMENT,
    error_line,
    error_of,
    parse_request,
    result_line,
)
from gazette_platform.serving.rest_routes import JSON_TYPE, RestRoutes

if TYPE_CHECKING:
    from collections.abc import Callable
    from http import HTTPStatus

    from google.protobuf.message import Message

    from gazette_platform.broker.http.interface import Service
    from gazette_platform.serving.http_server import Origins
    from gazette_platform.serving.interface import ServerStream

__all__ = ["RestGateway"]


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

    def __init__(self, service: Service, *, origins: Origins) -> None:
        super().__init__(origins)
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
        self, method: _Method, request: web.Request, message: Message
    ) -> web.StreamResponse:
        """Write each response as a line."""
        headers = {"Content-Type": JSON_TYPE, **self._origins.headers(request)}
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
                    return self._failure(request, err.text, error_of(err))
                await written(request, response, error_line(err.text, error_of(err)))
        except ClientGone as err:
            raise asyncio.CancelledError from err
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response
