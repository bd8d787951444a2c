"""What every case gets: servers, a client, content, a clock, and how much to do."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import procfs
from benchmarks.figures import Figures, medians
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import SetupError
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.servers import BrokerServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from benchmarks.content import Payloads
    from gazette_platform.ops.clock import Clock

__all__ = [
    "CODECS",
    "FULL",
    "QUICK",
    "Bench",
    "Scale",
    "create",
    "delete",
    "journal_spec",
    "serving",
]

CODECS = {
    "raw": CompressionCodec.NONE,
    "gzip": CompressionCodec.GZIP,
    "zstd": CompressionCodec.ZSTANDARD,
}
"""Codecs, by their name in figures."""

_FRAGMENT_BYTES = 256 << 20
_REFRESH_NS = 60 * 10**9
_READY_TIMEOUT_S = 30.0
# A machine too slow for a case's runs gives fewer of them, but one at least.
_CASE_BUDGET_S = 25.0
_CASE_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much a run does."""

    runs: int
    """Of each case; its figures are the medians."""
    window_s: float
    """Seconds of load in each run of a case of appends."""
    appends: dict[str, tuple[int, ...]]
    """Appends at a time, for each size."""
    codecs: tuple[str, ...]
    read_bytes: int
    """Content of the journals that are read."""
    tail_s: float
    memory_s: float
    machine_s: float
    """Seconds for each figure of the machine, each time it is measured."""


FULL = Scale(
    runs=3,
    window_s=1.2,
    appends={"100b": (1, 8, 16, 64), "16kib": (1, 8, 64), "1mib": (1, 8, 64)},
    codecs=("raw", "gzip", "zstd"),
    read_bytes=1 << 30,
    tail_s=6.0,
    memory_s=10.0,
    machine_s=0.25,
)
QUICK = Scale(
    runs=1,
    window_s=0.8,
    appends={"100b": (1, 16), "16kib": (8,), "1mib": (1, 8)},
    codecs=("raw", "gzip"),
    read_bytes=1 << 28,
    tail_s=3.0,
    memory_s=4.0,
    machine_s=0.1,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """A broker under load."""

    client: AsyncClient
    broker: BrokerServer
    payloads: Payloads
    clock: Clock
    scale: Scale

    async def repeat(self, run: Callable[[], Awaitable[Figures]]) -> Figures:
        """Medians of as many runs as the scale says, or as a slow machine has time for.

        The broker comes to rest before each, so that none pays for what the last one left.
        """
        begun = self.clock.monotonic()
        results: list[Figures] = []
        while len(results) < self.scale.runs:
            await self.settle()
            async with asyncio.timeout(_CASE_TIMEOUT_S):
                results.append(await run())
            if self.clock.monotonic() - begun > _CASE_BUDGET_S:
                break
        return medians(results)

    async def settle(self) -> None:
        """Wait until the broker has persisted what it is to persist, and rests."""
        await procfs.idle(self.broker.pid, self.clock)

    @contextmanager
    def cpu(self) -> Iterator[Callable[[], float]]:
        """Gives what to ask for the CPU seconds that the broker used since."""
        before = procfs.cpu_s(self.broker.pid)
        yield lambda: procfs.cpu_s(self.broker.pid) - before


def journal_spec(
    name: str, codec: str, *, fragment_bytes: int = _FRAGMENT_BYTES, store: str = "file:///"
) -> JournalSpec:
    """A journal with one replica, whose fragments go to the broker's file store, or to another."""
    fragment = FragmentSpec(
        length=fragment_bytes,
        codec=CODECS[codec],
        stores=(store,),
        refresh_interval_ns=_REFRESH_NS,
    )
    return JournalSpec(name=name, replication=1, fragment=fragment)


async def create(client: AsyncClient, *specs: JournalSpec) -> None:
    """Apply journals that do not exist, and append to each until it is past its first fragment.

    The first append creates the route, the second one closes the first, tiny fragment.
    """
    await client.apply([Change(spec) for spec in specs])
    async with asyncio.timeout(_READY_TIMEOUT_S):
        for spec in specs:
            await client.append(spec.name, b"first\n")
            await client.append(spec.name, b"second\n")


async def delete(bench: Bench, *names: str) -> None:
    """Delete journals and their files: content of one case must not fill the disk for others."""
    await bench.client.apply([Change(None, delete=name, revision=-1) for name in names])
    await bench.settle()
    for name in names:
        shutil.rmtree(bench.broker.fragments / name, ignore_errors=True)


@asynccontextmanager
async def serving(
    folder: Path, *, etcd: str, prefix: str, flags: tuple[str, ...] = ()
) -> AsyncIterator[tuple[BrokerServer, AsyncClient]]:
    """A broker process of its own folder and cluster, and a client of it.

    Raises: SetupError: it did not start, or did not end well.
    """
    flags = ("--log.level=warn", *flags)
    broker = BrokerServer(folder, etcd=etcd, prefix=prefix, flags=flags)
    with broker:
        config = ClientConfig(address=broker.address, file_root=broker.fragments)
        async with AsyncClient(config) as client:
            yield broker, client
        if broker.pid and (status := await asyncio.to_thread(broker.stop)):
            raise SetupError(f"the broker ended with {status}; its log ends:\n{broker.log_tail()}")
    shutil.rmtree(folder, ignore_errors=True)
