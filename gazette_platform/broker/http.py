"""The HTTP port: readiness and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from aiohttp import web

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.broker.metrics import BrokerMetrics

__all__ = ["HttpServer"]


@final
class HttpServer:
    """Serves ``/debug/ready`` and ``/debug/metrics``.

    Args: is_ready: whether the broker serves its journals.
    """

    def __init__(
        self, *, host: str, port: int, metrics: BrokerMetrics, is_ready: Callable[[], bool]
    ) -> None:
        self._host = host
        self._metrics = metrics
        self._is_ready = is_ready
        self.port = port
        app = web.Application()
        app.router.add_get("/debug/ready", self._ready)
        app.router.add_get("/debug/metrics", self._exposition)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        """Listen. Raises: SetupError: the port is in use."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port)
        try:
            await site.start()
        except OSError as err:
            await self._runner.cleanup()
            raise SetupError(
                f"cannot listen on {self._host}:{self.port}: {err.strerror} "
                "(choose another port with --broker.http-port)"
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
