"""The RPCs of a broker, as its transport calls them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar, final

from google.protobuf.message import DecodeError

from gazette_platform.broker.api.admin import AdminApi
from gazette_platform.broker.api.append import AppendApi
from gazette_platform.broker.api.fragments import FragmentsApi
from gazette_platform.broker.api.listing import ListApi
from gazette_platform.broker.api.proxy import Proxy
from gazette_platform.broker.api.read import ReadApi
from gazette_platform.broker.api.replicate import ReplicateApi
from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import EtcdError, GazetteError
from gazette_platform.protocol import Status
from gazette_platform.protocol.auth import Capability, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.broker.wire.interface import ContentSource, MessageStream
    from gazette_platform.protocol.auth import Claims

__all__ = ["BrokerService"]

T = TypeVar("T")


@final
class BrokerService:
    """All RPCs; implements `wire.interface.Service`."""

    def __init__(self, context: BrokerContext, resolver: Resolver) -> None:
        self._metrics = context.metrics
        self._faults = context.faults
        self._auth = context.auth
        self._fence = context.fence
        self._proxy = Proxy(context, resolver)
        self._append = AppendApi(context, resolver, self._proxy)
        self._read = ReadApi(context, resolver, self._proxy)
        self._replicate = ReplicateApi(resolver)
        self._list = ListApi(context, resolver)
        self._fragments = FragmentsApi(context, resolver, self._proxy)
        self._admin = AdminApi(context, resolver)
        self._append_started = self._metrics.started.labels("Append")
        self._append_ok = self._metrics.completed.labels("Append", "ok")

    def stop_watches(self) -> None:
        """End the streams that would otherwise last for ever."""
        self._list.stop_watches()
        self._proxy.stop_reads()

    async def append(
        self, first: bytes, content: ContentSource, metadata: Mapping[str, str]
    ) -> bytes:
        """Serve one Append."""
        self._append_started.inc()
        try:
            claims = self._auth.authorize(metadata, Capability.APPEND)
            appending = self._append.append(first, content, claims)
            if claims.expires_at is not None:
                appending = self._before_expiry(claims, appending)
            status, response = await appending
        except Exception as err:
            raise self._failed("Append", err) from err
        if status is Status.OK:
            problem = self._fence.problem
            if problem:
                self._metrics.completed.labels("Append", "error").inc()
                raise RpcFailed(Code.UNAVAILABLE, f"{problem}: whether it was appended is unknown")
            self._append_ok.inc()
        else:
            self._metrics.completed.labels("Append", status.name).inc()
        return response

    async def replicate(self, stream: MessageStream, metadata: Mapping[str, str]) -> None:
        """Serve one Replicate: another broker writes to our replica of a journal."""
        self._metrics.started.labels("Replicate").inc()
        try:
            claims = self._auth.authorize(metadata, Capability.REPLICATE)
            await self._before_expiry(claims, self._replicate.replicate(stream, claims))
        except Exception as err:
            raise self._failed("Replicate", err) from err
        self._metrics.completed.labels("Replicate", "ok").inc()

    async def read(self, request: bytes, metadata: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """Serve one Read: a stream of responses."""
        responses = self._streamed("Read", Capability.READ, self._read.read, request, metadata)
        try:
            async with aclosing(responses):
                async for response in responses:
                    yield response
        except RpcFailed as err:
            # As Gazette's, a read that has run out of time ends in order: clients go on with
            # another, and a token that is good.
            if err.code is not Code.DEADLINE_EXCEEDED:
                raise

    async def list(self, request: bytes, metadata: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """Serve one List: a stream of responses."""
        method = self._list.list_journals
        responses = self._streamed("List", Capability.LIST, method, request, metadata)
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def apply(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Apply."""
        return await self._unary("Apply", Capability.APPLY, self._list.apply, request, metadata)

    async def list_fragments(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one ListFragments."""
        method = self._fragments.list_fragments
        return await self._unary("ListFragments", Capability.READ, method, request, metadata)

    async def fragment_store_health(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one FragmentStoreHealth."""
        method = self._fragments.fragment_store_health
        return await self._unary("FragmentStoreHealth", Capability.READ, method, request, metadata)

    async def flush(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/Flush."""
        return await self._unary("Flush", Capability.APPEND, self._admin.flush, request, metadata)

    async def put_savepoint(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/PutSavepoint."""
        method = self._admin.put_savepoint
        return await self._unary("PutSavepoint", Capability.APPLY, method, request, metadata)

    async def get_savepoint(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/GetSavepoint."""
        method = self._admin.get_savepoint
        return await self._unary("GetSavepoint", Capability.LIST, method, request, metadata)

    async def list_savepoints(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/ListSavepoints."""
        method = self._admin.list_savepoints
        return await self._unary("ListSavepoints", Capability.LIST, method, request, metadata)

    async def delete_savepoint(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/DeleteSavepoint."""
        method = self._admin.delete_savepoint
        return await self._unary("DeleteSavepoint", Capability.APPLY, method, request, metadata)

    async def _unary(
        self,
        operation: str,
        capability: Capability,
        method: Callable[[bytes, Claims], Awaitable[tuple[Status, bytes]]],
        request: bytes,
        metadata: Mapping[str, str],
    ) -> bytes:
        self._metrics.started.labels(operation).inc()
        try:
            claims = self._auth.authorize(metadata, capability)
            status, response = await self._before_expiry(claims, method(request, claims))
        except Exception as err:
            raise self._failed(operation, err) from err
        label = "ok" if status is Status.OK else status.name
        self._metrics.completed.labels(operation, label).inc()
        return response

    async def _streamed(
        self,
        operation: str,
        capability: Capability,
        method: Callable[[bytes, Claims], AsyncGenerator[bytes]],
        request: bytes,
        metadata: Mapping[str, str],
    ) -> AsyncGenerator[bytes]:
        self._metrics.started.labels(operation).inc()
        try:
            claims = self._auth.authorize(metadata, capability)
            async with aclosing(method(request, claims)) as responses:
                if claims.expires_at is None:
                    async for response in responses:
                        yield response
                else:
                    while True:
                        following = anext(responses, None)
                        found = await self._before_expiry(claims, following)
                        if found is None:
                            break
                        yield found
        except Exception as err:
            raise self._failed(operation, err) from err
        except asyncio.CancelledError:
            self._metrics.completed.labels(operation, "cancelled").inc()
            raise
        self._metrics.completed.labels(operation, "ok").inc()

    async def _before_expiry(self, claims: Claims, work: Awaitable[T]) -> T:
        """Await `work`, for no longer than the claims of its caller are good.

        Raises: RpcFailed: DEADLINE_EXCEEDED, which clients answer with a new token.
        """
        if claims.expires_at is None:
            return await work
        limit = asyncio.timeout(self._auth.remaining_s(claims))
        try:
            async with limit:
                return await work
        except TimeoutError as err:
            if not limit.expired():
                raise
            raise RpcFailed(Code.DEADLINE_EXCEEDED, "the call's authorization has expired") from err

    def _failed(self, operation: str, err: Exception) -> RpcFailed:
        """What a caller is told of an error: any but ours is a fault that ends this call only."""
        self._metrics.completed.labels(operation, "error").inc()
        if isinstance(err, RpcFailed):
            return err
        if isinstance(err, Unauthenticated):
            return RpcFailed(Code.UNAUTHENTICATED, str(err))
        if isinstance(err, DecodeError):
            return RpcFailed(Code.INTERNAL, f"{operation}: malformed message: {err}")
        if not isinstance(err, GazetteError):
            self._faults.report("call", operation, err)
            kind = type(err).__name__
            return RpcFailed(
                Code.INTERNAL,
                f"{operation}: unforeseen {kind}: {err} (the log of this broker has more)",
            )
        # Most of etcd's troubles pass, and clients retry what is unavailable.
        passes = isinstance(err, EtcdError) and err.retriable
        code = Code.UNAVAILABLE if passes else Code.UNKNOWN
        return RpcFailed(code, str(err))
