"""The RPCs of a broker, as its transport calls them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, final

from google.protobuf.message import DecodeError

from gazette_platform.broker.append_api import AppendApi
from gazette_platform.broker.fragments_api import FragmentsApi
from gazette_platform.broker.list_api import ListApi
from gazette_platform.broker.read_api import ReadApi
from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import EtcdError, GazetteError
from gazette_platform.protocol import Status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.resolver import Resolver
    from gazette_platform.broker.wire.interface import ContentSource

__all__ = ["BrokerService"]


@final
class BrokerService:
    """All RPCs; implements `wire.interface.Service`."""

    def __init__(self, context: BrokerContext, resolver: Resolver) -> None:
        self._metrics = context.metrics
        self._append = AppendApi(context, resolver)
        self._read = ReadApi(context, resolver)
        self._list = ListApi(context, resolver)
        self._fragments = FragmentsApi(context, resolver)
        self._append_started = self._metrics.started.labels("Append")
        self._append_ok = self._metrics.completed.labels("Append", "ok")

    def stop_watches(self) -> None:
        """End the streams that would otherwise last for ever."""
        self._list.stop_watches()

    async def append(
        self, first: bytes, content: ContentSource, metadata: Mapping[str, str]
    ) -> bytes:
        """Serve one Append."""
        del metadata
        self._append_started.inc()
        try:
            status, response = await self._append.append(first, content)
        except (GazetteError, DecodeError) as err:
            raise self._failed("Append", err) from err
        if status is Status.OK:
            self._append_ok.inc()
        else:
            self._metrics.completed.labels("Append", status.name).inc()
        return response

    async def read(self, request: bytes, metadata: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """Serve one Read: a stream of responses."""
        del metadata
        async for response in self._streamed("Read", self._read.read(request)):
            yield response

    async def list(self, request: bytes, metadata: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """Serve one List: a stream of responses."""
        del metadata
        async for response in self._streamed("List", self._list.list_journals(request)):
            yield response

    async def apply(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Apply."""
        del metadata
        return await self._unary("Apply", self._list.apply, request)

    async def list_fragments(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one ListFragments."""
        del metadata
        return await self._unary("ListFragments", self._fragments.list_fragments, request)

    async def fragment_store_health(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one FragmentStoreHealth."""
        del metadata
        method = self._fragments.fragment_store_health
        return await self._unary("FragmentStoreHealth", method, request)

    async def _unary(
        self,
        operation: str,
        method: Callable[[bytes], Awaitable[tuple[Status, bytes]]],
        request: bytes,
    ) -> bytes:
        self._metrics.started.labels(operation).inc()
        try:
            status, response = await method(request)
        except (GazetteError, DecodeError) as err:
            raise self._failed(operation, err) from err
        label = "ok" if status is Status.OK else status.name
        self._metrics.completed.labels(operation, label).inc()
        return response

    async def _streamed(
        self, operation: str, responses: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        self._metrics.started.labels(operation).inc()
        try:
            async with aclosing(responses):
                async for response in responses:
                    yield response
        except (GazetteError, DecodeError) as err:
            raise self._failed(operation, err) from err
        except asyncio.CancelledError:
            self._metrics.completed.labels(operation, "cancelled").inc()
            raise
        self._metrics.completed.labels(operation, "ok").inc()

    def _failed(self, operation: str, err: GazetteError | DecodeError) -> RpcFailed:
        self._metrics.completed.labels(operation, "error").inc()
        if isinstance(err, RpcFailed):
            return err
        if isinstance(err, DecodeError):
            return RpcFailed(Code.INTERNAL, f"{operation}: malformed message: {err}")
        # Most of etcd's troubles pass, and clients retry what is unavailable.
        passes = isinstance(err, EtcdError) and err.retriable
        code = Code.UNAVAILABLE if passes else Code.UNKNOWN
        return RpcFailed(code, str(err))
