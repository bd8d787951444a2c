"""The HTTP ports: the gateway, readiness and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from aiohttp import web

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from gazette_platform.broker.gateway import Gateway
    from gazette_platform.broker.metrics import BrokerMetrics

__all__ = ["HttpServer"]

# Requests under way when the port closes. Tails have ended by then, with their replicas.
_SHUTDOWN_S = 5.0

# Bytes of a body that are read ahead of the append: one read of them makes one message.
_READ_AHEAD_BYTES = 256 << 10


@final
class HttpServer:
    """Serves journals by a `Gateway`, ``/debug/ready`` and ``/debug/metrics``.

    Args: flag: names the port in errors. tls: None: the port is plain.
          gateway: None: diagnostics only. has_diagnostics: whether ``/debug/`` is there.
          is_ready: whether the broker serves its journals.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: BrokerMetrics,
        is_ready: Callable[[], bool],
        flag: str = "broker.http-port",
        tls: ssl.SSLContext | None = None,
        gateway: Gateway | None = None,
        has_diagnostics: bool = True,
    ) -> None:
        self._host = host
        self._flag = flag
        self._tls = tls
        self._metrics = metrics
        self._is_ready = is_ready
        self.port = port
        app = web.Application()
        if has_diagnostics:
            app.router.add_get("/debug/ready", self._ready)
            app.router.add_get("/debug/metrics", self._exposition)
        if gateway is not None:
            app.router.add_route("*", "/{journal:.*}", gateway.handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that has gone ends its append, or its tail
            shutdown_timeout=_SHUTDOWN_S,
            read_bufsize=_READ_AHEAD_BYTES,
            auto_decompress=False,  # a body is appended as it was sent
        )

    async def start(self) -> None:
        """Listen. Raises: SetupError: the port is in use."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, ssl_context=self._tls)
        try:
            await site.start()
        except OSError as err:
            await self._runner.cleanup()
            raise SetupError(
                f"cannot listen on {self._host}:{self.port}: {err.strerror} "
                f"(choose another port with --{self._flag})"
            ) from err
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and its connections."""
        await self._runner.cleanup()

    async def _ready(self, _: web.Request) -> web.Response:
        if self._is_ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="starting or draining\n")

    async def _exposition(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )
