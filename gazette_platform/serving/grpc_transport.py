"""The transport of the gRPC library: servers with ``--broker.wire=grpc``, and channels to peers then.

Our own HTTP/2 (`h2`) does the same for less CPU: the library passes each message through a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import grpc  # type: ignore[import-untyped]
from grpc import aio
from grpc._cython import cygrpc  # type: ignore[import-untyped]
from typing_extensions import override

from gazette_platform.errors import SetupError, TransportError
from gazette_platform.ops.network import keepalive_options
from gazette_platform.ops.tasks import is_cancelled
from gazette_platform.serving.interface import (
    ASK_AGAIN,
    DROPPED,
    PEER_LEFT,
    READ_AHEAD_BYTES,
    Code,
    Condition,
    ContentSource,
    Kind,
    NotTaken,
    RpcFailed,
    go_spelling,
)
from gazette_platform.serving.sockets import why_not

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from gazette_platform.serving.auth import TlsMaterial
    from gazette_platform.serving.calls import CallMetrics, MethodMetrics
    from gazette_platform.serving.interface import (
        BidiStream,
        ClientStream,
        Rpc,
        ServerStream,
        Unary,
    )

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


T = TypeVar("T")

# What grpc.aio says in place of the peer's status if it could not write a message of ours any more and had
# not yet learned of that status, as when a peer leaves, or refuses a token.
_WRITE_FAILED: Final = "Internal error from Core"

CALL_ERRORS = (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError)
"""All errors that operations on our calls raise, beside cancellation."""

GRPC_CODES = {code: getattr(grpc.StatusCode, code.value) for code in Code}
"""gRPC's object of each code."""

GO_CODES = {code: go_spelling(code.value) for code in Code}
"""How Go spells each code, and so Gazette in its errors and metrics."""

_CODES = {grpc_code: code for code, grpc_code in GRPC_CODES.items()}


async def of_call(call: Any, work: Awaitable[T]) -> T:
    """Await `work`, which is an operation on `call`, or the call itself.

    Raises: RpcFailed: the call failed, with its code and details.
    Cancellation: cancels `work`, and with it the call.
    """
    try:
        return await work
    except CALL_ERRORS as err:
        raise await _failure(call) from err
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        # We were not cancelled. The call was cancelled, because its channel was closed when the peer
        # left.
        raise RpcFailed(Code.UNAVAILABLE, PEER_LEFT) from None


async def message_of(call: Any) -> bytes | None:
    """The next message of a call; None at its end. Raises: RpcFailed: as `of_call`."""
    raw = await of_call(call, call.read())
    return None if raw is aio.EOF else bytes(raw)


async def _failure(call: Any) -> RpcFailed:
    if not call.done():
        return RpcFailed(Code.UNAVAILABLE, "the connection broke")
    code, details = await call.code(), await call.details() or ""
    if code is grpc.StatusCode.INTERNAL and details == _WRITE_FAILED:
        # gRPC gives this in place of the other side's answer, or of what became of the connection.
        return RpcFailed(Code.UNAVAILABLE, "the call ended while it was being sent")
    if code is grpc.StatusCode.CANCELLED:  # by the other side
        return RpcFailed(Code.UNAVAILABLE, f"the process {DROPPED}")
    return RpcFailed(_CODES.get(code, Code.UNKNOWN), details)


def caller_left(err: aio.BaseError) -> RpcFailed:
    """The error of an operation on the serving side whose caller has gone."""
    return RpcFailed(Code.CANCELLED, f"the caller has gone ({type(err).__name__})")


_METHODS: Final = {
    Kind.UNARY: "unary_unary",
    Kind.CLIENT_STREAM: "stream_unary",
    Kind.SERVER_STREAM: "unary_stream",
    Kind.BIDI_STREAM: "stream_stream",
}
_BROKEN: Final = frozenset(
    {grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}
)


@final
class GrpcChannel:
    """An `OutgoingChannel`.

    Args:
        target: as gRPC has it.
        options: of gRPC.
        tls: None: without TLS.
    """

    def __init__(
        self, target: str, options: list[tuple[str, int]], tls: TlsMaterial | None = None
    ) -> None:
        if tls is None:
            self._channel = aio.insecure_channel(target, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(
                tls.ca or None, tls.key or None, tls.cert or None
            )
            self._channel = aio.secure_channel(target, credentials, options=options)

    def call(
        self,
        method: str,
        kind: Kind,
        metadata: Sequence[tuple[str, str]] = (),
        request: bytes | None = None,
    ) -> GrpcCall:
        """As `OutgoingChannel` has it."""
        begin = getattr(self._channel, _METHODS[kind])(method)
        sent = () if request is None else (request,)
        return GrpcCall(begin(*sent, metadata=tuple(metadata) or None))

    @property
    def condition(self) -> Condition:
        """As `OutgoingChannel` has it."""
        state = self._channel.get_state()
        if state is grpc.ChannelConnectivity.READY:
            return Condition.READY
        return Condition.FAILED if state in _BROKEN else Condition.UNKNOWN

    async def close(self) -> None:
        """As `OutgoingChannel` has it."""
        await self._channel.close()


@final
class GrpcCall:
    """An `OutgoingCall`.

    Args:
        call: of the gRPC library.
    """

    __slots__ = ("_call", "cancel")

    def __init__(self, call: Any) -> None:
        self._call = call
        self.cancel = call.cancel

    async def send(self, raw: bytes) -> None:
        """As `OutgoingCall` has it."""
        await of_call(self._call, self._call.write(raw))

    def send_now(self, raw: bytes) -> bool:  # noqa: ARG002
        """As `OutgoingCall` has it."""
        return False

    def end_now(self) -> bool:
        """As `OutgoingCall` has it."""
        return False

    def listen(self, take: Callable[[bytes], None]) -> None:
        """As `OutgoingCall` has it."""

    async def done_sending(self) -> None:
        """As `OutgoingCall` has it."""
        await of_call(self._call, self._call.done_writing())

    async def next(self) -> bytes | None:
        """As `OutgoingCall` has it."""
        return await message_of(self._call)

    async def answer(self) -> bytes:
        """As `OutgoingCall` has it."""
        return bytes(await of_call(self._call, self._call))

    async def greeting(self) -> Mapping[str, str]:
        """As `OutgoingCall` has it."""
        metadata = await of_call(self._call, self._call.initial_metadata())
        return {str(name): str(value) for name, value in metadata or ()}
