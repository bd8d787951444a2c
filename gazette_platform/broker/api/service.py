"""The RPCs of a broker, as its transport calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, final

from gazette_platform.broker.api.admin import AdminApi, ResetHeadApi
from gazette_platform.broker.api.append import AppendApi
from gazette_platform.broker.api.append_calls import AppendCalls
from gazette_platform.broker.api.listing import FragmentsApi, ListApi
from gazette_platform.broker.api.read import ReadApi
from gazette_platform.broker.api.replicate import ReplicateApi
from gazette_platform.broker.api.routing import Proxy
from gazette_platform.protocol import HISTORY, Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.serving.calls import before_expiry, failure_of
from gazette_platform.serving.interface import Code, Kind, NotTaken, Rpc, RpcFailed

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext, BrokerMetrics
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.interface import (
        BidiStream,
        MessageStream,
        Metadata,
        Send,
        ServerStream,
    )


_JOURNAL, _ADMIN = "protocol.Journal", "gazette_platform.Admin"
_APPEND = "Append"

# How the API modules serve a call, without what all calls have in common.
_Once = Callable[[bytes, "Claims"], Awaitable[tuple[Status, bytes]]]
_Streamed = Callable[[bytes, "Send", "Claims"], Awaitable[None]]


@final
class _Counts:
    """Counts the calls of one kind."""

    def __init__(self, metrics: BrokerMetrics, name: str) -> None:
        self._completed, self._name = metrics.completed, name
        self.begun = metrics.tallies.of(metrics.started.labels(name))
        self.ok = metrics.tallies.of(metrics.completed.labels(name, "ok"))

    def end(self, status: Status) -> None:
        """A call has ended with a status."""
        if status is Status.OK:
            self.ok.count += 1
        else:
            self._completed.labels(self._name, status.name).inc()


@final
class BrokerService:
    """All RPCs, with what they have in common.

    Each call is counted and authorized, and ends when its caller's token expires. Its errors become
    codes and texts.

    Attributes:
        rpcs: all RPCs, by name.
        append: serves Append, over HTTP as well as gRPC. Its content may be None: all is in the request.
        read: serves Read, over HTTP as well as gRPC.
        list_journals: serves List, over HTTP as well as gRPC.
    """

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica]) -> None:
        self._metrics = context.metrics
        self._faults = context.faults
        self._auth = context.auth
        self._proxy = proxy = Proxy(context, resolver)
        self._list = listing = ListApi(context, resolver)
        self._read = ReadApi(context, resolver, proxy)
        fragments, admin = FragmentsApi(context, resolver, proxy), AdminApi(context, resolver)
        replicate, heads = ReplicateApi(resolver), ResetHeadApi(context, resolver)
        can = Capability

        counts = self._counted(_APPEND)
        appends = AppendCalls(
            AppendApi(context, resolver, proxy),
            context.auth,
            context.membership,
            begun=counts.begun,
            ok=counts.ok,
            end=counts.end,
            failed=partial(self._failed, _APPEND),
        )
        self.append = appends.serve
        self.read = self._server_stream("Read", can.READ, self._read.read, is_resumed=True)
        self.list_journals = self._server_stream("List", can.LIST, listing.list_journals)
        replicated = self._bidi_stream("Replicate", can.REPLICATE, replicate.replicate)
        history = {HISTORY: context.spools.history}
        rpcs = [
            Rpc(_JOURNAL, _APPEND, Kind.CLIENT_STREAM, appends.serve, at_once=appends.at_once),
            Rpc(_JOURNAL, "Read", Kind.SERVER_STREAM, self.read),
            Rpc(_JOURNAL, "List", Kind.SERVER_STREAM, self.list_journals, history),
            Rpc(_JOURNAL, "Replicate", Kind.BIDI_STREAM, replicated),
            self._unary(_JOURNAL, "Apply", can.APPLY, listing.apply),
            self._unary(_JOURNAL, "ListFragments", can.READ, fragments.list_fragments),
            self._unary(_JOURNAL, "FragmentStoreHealth", can.READ, fragments.fragment_store_health),
            Rpc(
                _ADMIN,
                "AppendWhole",
                Kind.UNARY,
                appends.serve_whole,
                at_once=appends.whole_at_once,
            ),
            self._unary(_ADMIN, "Flush", can.APPEND, admin.flush),
            self._unary(_ADMIN, "ResetHead", can.APPLY, heads.reset_head),
            self._unary(_ADMIN, "CheckStores", can.APPLY, fragments.check_stores),
            self._unary(_ADMIN, "ListBrokers", can.APPLY, listing.list_brokers),
            self._unary(_ADMIN, "PutSavepoint", can.APPLY, admin.put_savepoint),
            self._unary(_ADMIN, "GetSavepoint", can.LIST, admin.get_savepoint),
            self._unary(_ADMIN, "ListSavepoints", can.LIST, admin.list_savepoints),
            self._unary(_ADMIN, "DeleteSavepoint", can.APPLY, admin.delete_savepoint),
        ]
        self.rpcs = {rpc.name: rpc for rpc in rpcs}

    def claims(self, metadata: Metadata, required: Capability) -> Claims:
        """The claims of a caller. Raises: Unauthenticated: it has no valid token. Forbidden: it lacks `required`."""
        return self._auth.authorize(metadata, required)

    def stop_watches(self) -> None:
        """End the streams that would otherwise last for ever."""
        self._list.stop_watches()
        self._proxy.stop_reads()

    def _unary(self, service: str, name: str, capability: Capability, method: _Once) -> Rpc:
        counts = self._counted(name)

        async def serve(request: bytes, metadata: Metadata) -> bytes:
            counts.begun.count += 1
            try:
                claims = self._auth.authorize(metadata, capability)
                status, response = await before_expiry(
                    self._auth.limit(claims), method(request, claims)
                )
            except RpcFailed:
                self._count_error(name)
                raise  # and not `from` itself: that cycle would keep what its frames hold
            except Exception as err:
                raise self._failed(name, err) from err
            counts.end(status)
            return response

        return Rpc(service, name, Kind.UNARY, serve)

    def _bidi_stream(
        self,
        name: str,
        capability: Capability,
        method: Callable[[MessageStream, Metadata, Claims], Awaitable[None]],
    ) -> BidiStream:
        counts = self._counted(name)

        async def serve(stream: MessageStream, metadata: Metadata) -> None:
            counts.begun.count += 1
            try:
                claims = self._auth.authorize(metadata, capability)
                await before_expiry(self._auth.limit(claims), method(stream, metadata, claims))
            except RpcFailed:
                self._count_error(name)
                raise  # and not `from` itself: that cycle would keep what its frames hold
            except Exception as err:
                raise self._failed(name, err) from err
            counts.end(Status.OK)

        return serve

    def _server_stream(
        self, name: str, capability: Capability, method: _Streamed, *, is_resumed: bool = False
    ) -> ServerStream:
        """Serve a call that is answered by a stream of responses.

        Args:
            is_resumed: whether the stream ends without an error when its caller's token expires, as
                Gazette's reads do: clients go on with another read and a new token.
        """
        counts = self._counted(name)
        cancelled = self._metrics.completed.labels(name, "cancelled")

        async def serve(request: bytes, send: Send, metadata: Metadata) -> None:
            counts.begun.count += 1
            try:
                claims = self._auth.authorize(metadata, capability)
                limit = self._auth.limit(claims)

                async def send_whole(raw: bytes) -> None:
                    due_at = limit.when()
                    limit.reschedule(None)
                    await send(raw)
                    limit.reschedule(due_at)

                sender = send if claims.expires_at is None else send_whole
                await before_expiry(limit, method(request, sender, claims))
            except NotTaken:
                cancelled.inc()
                raise
            except RpcFailed as err:
                self._count_error(name)
                if is_resumed and err.code is Code.DEADLINE_EXCEEDED:
                    return
                raise
            except Exception as err:
                raise self._failed(name, err) from err
            except asyncio.CancelledError:
                cancelled.inc()
                raise
            counts.end(Status.OK)

        return serve

    def _counted(self, name: str) -> _Counts:
        return _Counts(self._metrics, name)

    def _count_error(self, operation: str) -> None:
        self._metrics.completed.labels(operation, "error").inc()

    def _failed(self, operation: str, err: Exception) -> RpcFailed:
        """Count a call that failed. Returns: the error for its caller."""
        self._count_error(operation)
        if isinstance(err, RpcFailed):
            return err
        return failure_of(operation, err, self._faults)
