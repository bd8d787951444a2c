"""The transport of servers: a `grpc.aio` server that moves undecoded bytes."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

import grpc  # type: ignore[import-untyped]
from grpc import aio
from grpc._cython import cygrpc  # type: ignore[import-untyped]
from typing_extensions import override

from gazette_platform.errors import SetupError, TransportError
from gazette_platform.ops.network import keepalive_options
from gazette_platform.serving.grpc_channel import GO_CODES, GRPC_CODES, caller_left
from gazette_platform.serving.interface import (
    ASK_AGAIN,
    READ_AHEAD_BYTES,
    Code,
    ContentSource,
    Kind,
    NotTaken,
    RpcFailed,
)
from gazette_platform.serving.sockets import why_not

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from gazette_platform.serving.calls import CallMetrics, MethodMetrics
    from gazette_platform.serving.interface import (
        BidiStream,
        ClientStream,
        Rpc,
        ServerStream,
        Unary,
    )
    from gazette_platform.serving.tls import TlsMaterial

# Seconds. Callers may be far away, and their content may be on its way for long. But once their
# machine is gone, they must not hold calls, spools and memory for ever.
_PING_EVERY_S = 20.0
_PING_TIMEOUT_S = 30.0

# Larger flow-control windows and frames than gRPC's defaults: content arrives in large messages, and
# each frame costs a pass through the library.
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # two processes on one port must fail, not share it
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.lookahead_bytes", READ_AHEAD_BYTES),
    ("grpc.http2.bdp_probe", 0),  # it would let a fast client's window grow beyond that
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)

# A caller that takes no response for so long gets UNAVAILABLE, and clients retry by themselves.
# It then holds no files any more, and no memory beyond the message on its way. The same limit ends an
# append whose caller sends no first message.
_STALL_S = 60.0


@final
class _Stream(ContentSource):
    """Both directions of a call."""

    __slots__ = ("_context", "_metrics")

    def __init__(self, context: Any, metrics: MethodMetrics) -> None:
        self._context = context
        self._metrics = metrics

    @override
    async def next(self) -> bytes | None:
        try:
            raw = await self._context.read()
        except aio.BaseError as err:
            raise caller_left(err) from err
        if raw is aio.EOF:
            return None
        self._metrics.received.count += 1
        content: bytes = raw
        return content

    async def send(self, raw: bytes) -> None:
        try:
            await self._context.write(raw)
        except aio.BaseError as err:
            failure = caller_left(err)
            raise NotTaken(failure.code, failure.text) from err
        self._metrics.sent.count += 1

    async def greet(self, metadata: Mapping[str, str]) -> None:
        try:
            await self._context.send_initial_metadata(tuple(metadata.items()))
        except aio.BaseError as err:
            raise caller_left(err) from err


class _OneLine(logging.Filter):
    """Drops the tracebacks that gRPC logs of paths and metadata which are not UTF-8.

    Anybody can send these several thousand times a second, and leave before gRPC has answered.
    """

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record, without a traceback."""
        if record.exc_info and isinstance(
            record.exc_info[1], (UnicodeDecodeError, aio.InternalError)
        ):
            record.exc_info = record.exc_text = None
        return True


logging.getLogger("grpc._cython.cygrpc").addFilter(_OneLine())
# When a caller has left, gRPC prints the traceback, and logs it as well. Only the print is silenced.
cygrpc.traceback = SimpleNamespace(**(vars(traceback) | {"print_exc": lambda *_: None}))


@final
class GrpcServer:
    """Serves calls on a port, or on a Unix socket.

    Args:
        calls: counts the calls.
        socket: Unix socket to listen on instead of host and port.
        tls: of the port; None: it is plain text.
        flags: what the flags of the port begin with, for errors.

    Raises: SetupError: it cannot listen there.
    """

    def __init__(
        self,
        rpcs: Iterable[Rpc],
        *,
        host: str,
        port: int,
        recv_bytes_max: int,
        calls: CallMetrics,
        socket: Path | None = None,
        tls: TlsMaterial | None = None,
        flags: str = "broker",
    ) -> None:
        options = [
            *_OPTIONS,
            *keepalive_options(_PING_EVERY_S, _PING_TIMEOUT_S),
            ("grpc.max_receive_message_length", recv_bytes_max),
        ]
        self._server = aio.server(options=options)
        self._is_stopping = False
        self._server.add_generic_rpc_handlers(_handlers(rpcs, calls))
        address = f"unix:{socket}" if socket is not None else f"{host}:{port}"
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, _credentials(tls))
        except RuntimeError as err:
            raise SetupError(
                f"cannot listen on {address}{why_not(host, port, socket, flags)}"
            ) from err

    def add_servicer(self, add: Callable[[Any, Any], None], servicer: Any) -> None:
        """Serve another service too, as generated code has it; before `start`.

        Args:
            add: generated, as ``add_NGramServicer_to_server``.
            servicer: with coroutines for its calls.
        """
        add(servicer, self._server)

    async def start(self) -> None:
        """Begin to accept calls."""
        await self._server.start()

    async def wait_ended(self) -> None:
        """Wait until the server is stopped.

        Raises: TransportError: it has ended by itself. Cancellation: safe.
        """
        # Shielded: a waiter that is cancelled must not cancel gRPC's own wait.
        await asyncio.shield(self._server.wait_for_termination())
        if not self._is_stopping:
            raise TransportError("the gRPC server of this process has ended by itself")

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, give those under way `grace_s` seconds, then cancel them."""
        self._is_stopping = True
        await self._server.stop(grace_s)


def _handlers(rpcs: Iterable[Rpc], calls: CallMetrics) -> list[Any]:
    by_service: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for rpc in rpcs:
        metrics = calls.of(rpc.kind.value, rpc.service, rpc.name)
        by_service[rpc.service][rpc.name] = _HANDLERS[rpc.kind](rpc, metrics)
    return [
        grpc.method_handlers_generic_handler(service, handlers)
        for service, handlers in by_service.items()
    ]


def _credentials(tls: TlsMaterial) -> Any:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.cert)],
        root_certificates=tls.ca or None,
        require_client_auth=bool(tls.ca),
    )


def _metadata(context: Any) -> Mapping[str, str]:
    return dict(context.invocation_metadata() or ())


def _handled(
    handle: Callable[[Any, Any], Awaitable[Any]], metrics: MethodMetrics
) -> Callable[[Any, Any], Awaitable[Any]]:
    """A handler that is counted, and whose errors become gRPC codes."""

    async def handled(request: Any, context: Any) -> Any:
        began, code = metrics.begin(), "Unknown"
        try:
            answer = await handle(request, context)
        except RpcFailed as err:
            code = GO_CODES[err.code]
            # gRPC keeps the exception that `abort` raises. With its traceback it would keep all that
            # our frames hold, such as the content of an append, until a full garbage collection.
            err.__traceback__ = err.__cause__ = err.__context__ = None
            await _abort(context, err)
            raise
        except asyncio.CancelledError:
            code = GO_CODES[Code.CANCELLED]
            raise
        else:
            code = "OK"
            return answer
        finally:
            metrics.end(began, code)

    return handled


async def _abort(context: Any, err: RpcFailed) -> None:
    """End a call with an error. Raises: AbortError; or CancelledError, if the caller has gone."""
    try:
        await context.abort(GRPC_CODES[err.code], err.text)
    except aio.AbortError:
        raise
    except aio.BaseError as broken:
        raise asyncio.CancelledError from broken


def _client_stream(rpc: Rpc, metrics: MethodMetrics) -> Any:
    method: ClientStream = rpc.handler

    async def handle(_: Any, context: Any) -> bytes:
        messages = _Stream(context, metrics)
        try:
            async with asyncio.timeout(_STALL_S):
                first = await messages.next()
        except TimeoutError as err:
            text = f"append stream: nothing was sent for {_STALL_S:g} s"
            raise RpcFailed(Code.UNKNOWN, text) from err
        if first is None:
            raise RpcFailed(Code.UNKNOWN, "append stream: unexpected EOF")
        answer = await method(first, messages, _metadata(context))
        metrics.sent.count += 1
        return answer

    return grpc.stream_unary_rpc_method_handler(_handled(handle, metrics))


def _bidi_stream(rpc: Rpc, metrics: MethodMetrics) -> Any:
    method: BidiStream = rpc.handler

    async def handle(_: Any, context: Any) -> None:
        await method(_Stream(context, metrics), _metadata(context))

    return grpc.stream_stream_rpc_method_handler(_handled(handle, metrics))


def _unary(rpc: Rpc, metrics: MethodMetrics) -> Any:
    method: Unary = rpc.handler

    async def handle(request: bytes, context: Any) -> bytes:
        metrics.received.count += 1
        answer = await method(request, _metadata(context))
        metrics.sent.count += 1
        return answer

    return grpc.unary_unary_rpc_method_handler(_handled(handle, metrics))


def _server_stream(rpc: Rpc, metrics: MethodMetrics) -> Any:
    method: ServerStream = rpc.handler

    async def handle(request: bytes, context: Any) -> None:
        metrics.received.count += 1
        stream = _Stream(context, metrics)

        async def send(raw: bytes) -> None:
            try:
                async with asyncio.timeout(_STALL_S):
                    await stream.send(raw)
            except TimeoutError as err:
                text = f"nothing was taken of the responses for {_STALL_S:g} s{ASK_AGAIN}"
                raise NotTaken(Code.UNAVAILABLE, text) from err

        if rpc.greeting:
            await stream.greet(rpc.greeting)
        await method(request, send, _metadata(context))

    return grpc.unary_stream_rpc_method_handler(_handled(handle, metrics))


_HANDLERS: dict[Kind, Callable[[Rpc, MethodMetrics], Any]] = {
    Kind.UNARY: _unary,
    Kind.CLIENT_STREAM: _client_stream,
    Kind.SERVER_STREAM: _server_stream,
    Kind.BIDI_STREAM: _bidi_stream,
}
