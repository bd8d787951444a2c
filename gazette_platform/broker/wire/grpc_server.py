"""The transport in use: a `grpc.aio` server that moves undecoded bytes."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, final

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from pathlib import Path

    from gazette_platform.broker.tls import TlsMaterial
    from gazette_platform.broker.wire.interface import Service

__all__ = ["GrpcServer"]

_SERVICE = "protocol.Journal"
_ADMIN_SERVICE = "gazette_platform.Admin"

# Fatter flow-control windows and frames than gRPC's defaults: content arrives in large messages,
# and each frame costs a pass through the library.
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # two brokers on one port must fail, not share it
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)

_CODES = {code: getattr(grpc.StatusCode, code.value) for code in Code}


@final
class _Messages:
    """Content of an append, read from its call."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    async def next(self) -> bytes | None:
        raw = await self._context.read()
        return None if raw is aio.EOF else raw


@final
class GrpcServer:
    """Serves a `Service` on a port, or on a Unix socket.

    Args: socket: to listen on in place of host and port. tls: of the port; None: it is plain.
    Raises: SetupError: it cannot listen there.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str,
        port: int,
        recv_bytes_max: int,
        socket: Path | None = None,
        tls: TlsMaterial | None = None,
    ) -> None:
        options = [*_OPTIONS, ("grpc.max_receive_message_length", recv_bytes_max)]
        self._server = aio.server(options=options)
        handlers = {
            "Append": grpc.stream_unary_rpc_method_handler(_append(service)),
            "Replicate": grpc.stream_stream_rpc_method_handler(_replicate(service)),
            "Read": grpc.unary_stream_rpc_method_handler(_streaming(service.read)),
            "List": grpc.unary_stream_rpc_method_handler(_streaming(service.list)),
            "Apply": grpc.unary_unary_rpc_method_handler(_unary(service.apply)),
            "ListFragments": grpc.unary_unary_rpc_method_handler(_unary(service.list_fragments)),
            "FragmentStoreHealth": grpc.unary_unary_rpc_method_handler(
                _unary(service.fragment_store_health)
            ),
        }
        admin_handlers = {
            "Flush": grpc.unary_unary_rpc_method_handler(_unary(service.flush)),
            "PutSavepoint": grpc.unary_unary_rpc_method_handler(_unary(service.put_savepoint)),
            "GetSavepoint": grpc.unary_unary_rpc_method_handler(_unary(service.get_savepoint)),
            "ListSavepoints": grpc.unary_unary_rpc_method_handler(_unary(service.list_savepoints)),
            "DeleteSavepoint": grpc.unary_unary_rpc_method_handler(
                _unary(service.delete_savepoint)
            ),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(_SERVICE, handlers),
                grpc.method_handlers_generic_handler(_ADMIN_SERVICE, admin_handlers),
            )
        )
        address = f"unix:{socket}" if socket is not None else f"{host}:{port}"
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, _credentials(tls))
        except RuntimeError as err:
            raise SetupError(
                f"cannot listen on {address} (is it in use? choose another with --broker.port)"
            ) from err

    async def start(self) -> None:
        """Begin to accept calls."""
        await self._server.start()

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, give those under way `grace_s` seconds, then cancel them."""
        await self._server.stop(grace_s)


def _credentials(tls: TlsMaterial) -> Any:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.cert)],
        root_certificates=tls.ca or None,
        require_client_auth=bool(tls.ca),
    )


def _metadata(context: Any) -> Mapping[str, str]:
    return dict(context.invocation_metadata() or ())


def _append(service: Service) -> Callable[[Any, Any], Awaitable[bytes]]:
    async def handle(_: Any, context: Any) -> bytes:
        messages = _Messages(context)
        first = await messages.next()
        if first is None:
            await context.abort(grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF")
            raise AssertionError  # abort raises
        try:
            return await service.append(first, messages, _metadata(context))
        except RpcFailed as err:
            await context.abort(_CODES[err.code], err.text)
            raise

    return handle


@final
class _Stream:
    """Both directions of a call."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    async def next(self) -> bytes | None:
        raw = await self._context.read()
        return None if raw is aio.EOF else raw

    async def send(self, raw: bytes) -> None:
        await self._context.write(raw)


def _replicate(service: Service) -> Callable[[Any, Any], Awaitable[None]]:
    async def handle(_: Any, context: Any) -> None:
        try:
            await service.replicate(_Stream(context), _metadata(context))
        except RpcFailed as err:
            await context.abort(_CODES[err.code], err.text)

    return handle


def _unary(
    method: Callable[[bytes, Mapping[str, str]], Awaitable[bytes]],
) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(request: bytes, context: Any) -> bytes:
        try:
            return await method(request, _metadata(context))
        except RpcFailed as err:
            await context.abort(_CODES[err.code], err.text)
            raise

    return handle


def _streaming(
    method: Callable[[bytes, Mapping[str, str]], AsyncGenerator[bytes]],
) -> Callable[[bytes, Any], Awaitable[None]]:
    async def handle(request: bytes, context: Any) -> None:
        try:
            async with aclosing(method(request, _metadata(context))) as responses:
                async for response in responses:
                    await context.write(response)
        except RpcFailed as err:
            await context.abort(_CODES[err.code], err.text)

    return handle
