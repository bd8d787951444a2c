"""The calls of a consumer process as transports make them: gRPC, and JSON over HTTP.

`ShardService` adds tokens, codes and bytes to `ShardApi`. `ShardGateway` serves List and Stat as JSON,
for scripts and pages; each response is what the same call over gRPC returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from google.protobuf.message import Message

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, consumer_pb2 as pb
from gazette_platform.serving.calls import before_expiry, failure_of
from gazette_platform.serving.http_server import RestRoutes, caller_metadata
from gazette_platform.serving.interface import Kind, Rpc, RpcFailed
from gazette_platform.serving.rest_messages import (
    INVALID_ARGUMENT,
    error_of,
    message_line,
    parse_request,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from gazette_platform.consumer.service.shard_api import ShardApi
    from gazette_platform.ops.faults import Faults
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.auth import Authenticator
    from gazette_platform.serving.http_server import Origins
    from gazette_platform.serving.interface import Metadata, Unary

Q = TypeVar("Q", bound=Message)

_SERVICE: Final = "consumer.Shard"
_OWN_SERVICE: Final = "gazette_platform.ConsumerAdmin"


@final
class ShardService:
    """All calls. Each is authorized, and ends when its caller's token expires.

    Args:
        http_endpoint: URL of this process's HTTP port, once it is known.

    Attributes:
        rpcs: for a `GrpcServer`.
        list_shards: serves List, over HTTP as well as gRPC.
        stat: serves Stat, over HTTP as well as gRPC.
    """

    def __init__(
        self,
        api: ShardApi,
        auth: Authenticator,
        faults: Faults,
        *,
        http_endpoint: Callable[[], str] = str,
    ) -> None:
        self._auth = auth
        self._faults = faults
        self._http_endpoint = http_endpoint
        can = Capability
        self.stat = self._unary("Stat", can.READ, pb.StatRequest, api.stat)
        self.list_shards = self._unary("List", can.LIST, pb.ListRequest, api.list_shards)
        hints = self._unary("GetHints", can.READ, pb.GetHintsRequest, api.get_hints)
        unassign = self._unary("Unassign", can.APPLY, pb.UnassignRequest, api.unassign)
        self.rpcs = (
            Rpc(_SERVICE, "Stat", Kind.UNARY, self.stat),
            Rpc(_SERVICE, "List", Kind.UNARY, self.list_shards),
            Rpc(
                _SERVICE,
                "Apply",
                Kind.UNARY,
                self._unary("Apply", can.APPLY, pb.ApplyRequest, api.apply),
            ),
            Rpc(_SERVICE, "GetHints", Kind.UNARY, hints),
            Rpc(_SERVICE, "Unassign", Kind.UNARY, unassign),
            Rpc(
                _OWN_SERVICE,
                "HttpEndpoint",
                Kind.UNARY,
                self._unary(
                    "HttpEndpoint", can.READ, admin_pb.HttpEndpointRequest, self._tell_http_endpoint
                ),
            ),
        )

    async def _tell_http_endpoint(
        self, _request: admin_pb.HttpEndpointRequest, _claims: Claims
    ) -> admin_pb.HttpEndpointResponse:
        return admin_pb.HttpEndpointResponse(endpoint=self._http_endpoint())

    def _unary(
        self,
        name: str,
        capability: Capability,
        kind: type[Q],
        method: Callable[[Q, Claims], Awaitable[Any]],
    ) -> Unary:
        async def serve(raw: bytes, metadata: Metadata) -> bytes:
            try:
                claims = self._auth.authorize(metadata, capability)
                request = kind.FromString(raw)
                work = method(request, claims)
                response: Message = await before_expiry(self._auth.limit(claims), work)
                return response.SerializeToString()
            except RpcFailed:
                raise  # and not `from` itself: that cycle would keep what its frames hold
            except Exception as err:
                raise failure_of(name, err, self._faults) from err

        return serve


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
