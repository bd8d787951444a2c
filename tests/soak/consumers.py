"""Consumers as processes, behind proxies that can break."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Self, final
from urllib.parse import urlsplit

from gazette_platform.errors import SetupError
from gazette_platform.testing.fault_proxy import FaultProxies
from gazette_platform.testing.servers import ConsumerServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROGRAMS = tuple(
    (sys.executable, "-m", f"tests.soak.{name}") for name in ("summer", "batch_summer")
)


@final
class ConsumerGroup:
    """Consumers ``consumer-1``, …; a context manager that starts all of them, and kills what is left.

    Each has a proxy between itself and etcd, and advertises one that leads to it.

    Args:
        programs: which they run, in turn.
        database: URL of a PostgreSQL, or none.
    """

    def __init__(
        self,
        folder: Path,
        *,
        etcd: str,
        prefix: str,
        brokers: str,
        count: int,
        lease_s: float,
        programs: Sequence[Sequence[str]],
        database: str,
    ) -> None:
        self.servers = {
            name: ConsumerServer(
                folder / name,
                program=programs[number % len(programs)],
                etcd=etcd,  # until its proxy exists
                prefix=prefix,
                broker=brokers,
                consumer_id=name,
                lease_s=lease_s,
            )
            for number, name in enumerate(f"consumer-{at}" for at in range(1, count + 1))
        }
        self._database = database
        self.proxies = FaultProxies()
        self.etcd_proxies = FaultProxies()
        self._etcd = urlsplit(etcd)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.servers)

    @property
    def address(self) -> str:
        """Of those that run, to be tried in turn."""
        running = [name for name, server in self.servers.items() if not server.has_ended]
        return ",".join(self.proxies[name].address for name in running or self.names)

    async def __aenter__(self) -> Self:
        try:
            for name, server in self.servers.items():
                to_etcd = await self.etcd_proxies.add(name, self._etcd.hostname, self._etcd.port)
                front = await self.proxies.add(name, "127.0.0.1", server.port)
                server.flags = (
                    "--consumer.hints-interval=5s",
                    f"--etcd.address={to_etcd.address}",
                    f"--consumer.advertise={front.address}",
                    f"--soak.database={self._database}",
                )
            await self.start(*self.names)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for server in self.servers.values():
            await asyncio.to_thread(server.kill)
        await self.proxies.__aexit__()
        await self.etcd_proxies.__aexit__()

    async def start(self, *names: str, timeout_s: float = 60.0) -> None:
        """Start those that do not run, and wait until they are ready.

        Raises: SetupError: one ended, or was not ready in time; with the end of its log.
        """
        ended = [self.servers[name] for name in names if self.servers[name].has_ended]
        starting = (asyncio.to_thread(server.start, timeout_s=timeout_s) for server in ended)
        await asyncio.gather(*starting)

    def isolate(self, name: str) -> None:
        """Cut one off from etcd, and from calls of others."""
        self.proxies.partition([name])
        self.etcd_proxies.partition([name])

    async def heal(self, name: str) -> None:
        await self.proxies[name].heal()
        await self.etcd_proxies[name].heal()

    async def leave(self, name: str, *, timeout_s: float = 60.0) -> int | None:
        """SIGTERM, and wait. Returns: the exit code; None: it has not ended, and was killed."""
        server = self.servers[name]
        server.terminate()
        try:
            return await asyncio.to_thread(server.wait, timeout_s=timeout_s)
        except SetupError:
            return None
