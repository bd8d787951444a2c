"""Consumers as processes, behind proxies that can break."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self, final
from urllib.parse import urlsplit

from gazette_platform.embedded.ports import choose_ports
from gazette_platform.errors import SetupError
from gazette_platform.testing.fault_proxy import FaultProxies

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
SUMMER = (sys.executable, "-m", "examples.stream_sum.summer")

_POLL_S = 0.05
_LOG_TAIL_BYTES = 16384


@final
class ConsumerServer:
    """One process of a group; it keeps its name and ports over restarts, and its log."""

    def __init__(self, name: str, folder: Path, program: Sequence[str]) -> None:
        self.name = name
        self.log = folder / "consumer.log"
        self.files = folder / "files"
        self.files.mkdir(parents=True)
        self.flags: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None
        self._program = program
        self._log_begin = 0
        self.port, self.http_port = choose_ports(["grpc", "http"]).values()

    @property
    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def spawn(self) -> None:
        command = [
            *self._program,
            "serve",
            f"--consumer.id={self.name}",
            f"--consumer.port={self.port}",
            f"--consumer.http-port={self.http_port}",
            f"--consumer.directory={self.files}",
            "--consumer.drain-timeout=20s",
            "--consumer.hints-interval=5s",
            "--log.level=info",
            *self.flags,
        ]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with self.log.open("ab") as log:
            self._log_begin = log.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.files,
                env=os.environ | {"PYTHONPATH": path},
            )

    def is_ready(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.http_port}/debug/ready"
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def signal(self, number: signal.Signals) -> None:
        """Nothing if it has ended."""
        if not self.has_ended:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait. Nothing if it does not run."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait(10)

    def log_of_run(self) -> str:
        """The log of the process that was started last."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")


@final
class ConsumerGroup:
    """Consumers ``consumer-1``, …; a context manager that starts all of them, and kills what is left.

    Each has a proxy between itself and etcd, and advertises one that leads to it.
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
        program: Sequence[str] = SUMMER,
    ) -> None:
        self.servers = {
            name: ConsumerServer(name, folder / name, program)
            for name in (f"consumer-{number}" for number in range(1, count + 1))
        }
        self.proxies = FaultProxies()
        self.etcd_proxies = FaultProxies()
        self._etcd = urlsplit(etcd)
        self._flags = (
            f"--etcd.prefix={prefix}",
            f"--etcd.lease={lease_s:g}s",
            f"--broker.address={brokers}",
        )

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
                    *self._flags,
                    f"--etcd.address={to_etcd.address}",
                    f"--consumer.advertise={front.address}",
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
        for name in names:
            if self.servers[name].has_ended:
                self.servers[name].spawn()
        for name in names:
            server = self.servers[name]
            try:
                async with asyncio.timeout(timeout_s):
                    while not await asyncio.to_thread(server.is_ready):
                        if server.has_ended:
                            raise SetupError(
                                f"{name} ended as it started; its log:\n{server.log_of_run()}"
                            )
                        await asyncio.sleep(_POLL_S)
            except TimeoutError:
                raise SetupError(
                    f"{name} was not ready after {timeout_s:g} s; its log:\n{server.log_of_run()}"
                ) from None

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
        process = server.process
        server.signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            server.kill()
