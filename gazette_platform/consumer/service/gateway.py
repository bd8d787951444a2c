"""The REST gateway of shards: List and Stat as JSON, for scripts and pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.pb import consumer_pb2 as pb
from gazette_platform.serving.http_server import caller_metadata
from gazette_platform.serving.interface import RpcFailed
from gazette_platform.serving.rest_messages import (
    INVALID_ARGUMENT,
    error_of,
    message_line,
    parse_request,
)
from gazette_platform.serving.rest_routes import RestRoutes

if TYPE_CHECKING:
    from aiohttp import web

    from gazette_platform.consumer.service.rpcs import ShardService
    from gazette_platform.serving.http_server import Origins
    from gazette_platform.serving.interface import Unary

__all__ = ["ShardGateway"]


@dataclass(frozen=True, slots=True)
class _Method:
    """A call, and how requests come to it."""

    serve: Unary
    request: type[pb.ListRequest | pb.StatRequest]
    response: type[pb.ListResponse | pb.StatResponse]


@final
class ShardGateway(RestRoutes):
    """Serves ``POST /v1/shards/list`` and ``POST /v1/shards/stat``."""

    def __init__(self, service: ShardService, *, origins: Origins) -> None:
        super().__init__(origins)
        self._methods = {
            "list": _Method(service.list_shards, pb.ListRequest, pb.ListResponse),
            "stat": _Method(service.stat, pb.StatRequest, pb.StatResponse),
        }

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        for name, method in self._methods.items():
            router.add_post(f"/v1/shards/{name}", partial(self._answer, method))
            router.add_options(f"/v1/shards/{name}", self.preflight)

    async def _answer(self, method: _Method, request: web.Request) -> web.StreamResponse:
        """Answer a request. Cancellation: the client has gone; ends the call."""
        try:
            message = parse_request(method.request, await self.read_body(request))
        except ValidationError as err:
            return self.refusal(request, str(err), INVALID_ARGUMENT)
        try:
            raw = await method.serve(message.SerializeToString(), caller_metadata(request))
        except RpcFailed as err:
            return self.refusal(request, err.text, error_of(err))
        return self.answer(request, message_line(method.response.FromString(raw)))
