"""`gazette up`, whose brokers are killed: they are back by themselves, with all that they acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import pytest

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.ops.process import ProcessId
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.waiting import eventually, pass_time, patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(300)]

WRITERS = 16
"""Seconds from a kill until appends go on, on a machine with nothing else to do."""
"""Seconds that a process of the brokers' code takes to start there."""

LINE_BYTES = 8


def line(number: int) -> bytes:
    return b"%07d\n" % number


def name_of(replication: int) -> str:
    return f"crash/replicas-{replication}"


@final
class Platform:
    """One `gazette up` in a folder."""

    def __init__(self, root: Path, brokers: int) -> None:
        self.root = root
        self.brokers = brokers

    def up(self) -> None:
        self._gazette(
            "up", "--without=metastore,trino,dagster", f"--brokers={self.brokers}", "--detach"
        )

    def down(self) -> None:
        self._gazette("down")

    def _gazette(self, command: str, *flags: str) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "gazette_platform.cli.gazette",
                command,
                f"--root={self.root}",
                *flags,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    @property
    def endpoints(self) -> dict[str, object]:
        return json.loads((self.root / "endpoints.json").read_text())

    def processes(self) -> dict[str, ProcessId]:
        return {name: ProcessId.of(pid) for name, pid in self.endpoints["pids"].items()}

    def kill_brokers(self) -> float:
        """All of them at once. Returns: when."""
        pids = [pid for name, pid in self.endpoints["pids"].items() if name.startswith("broker-")]
        assert len(pids) == self.brokers
        random.shuffle(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def client(self, **options: float) -> AsyncClient:
        return AsyncClient(ClientConfig(address=",".join(self.endpoints["brokers"]), **options))


@dataclass
class Ledger:
    """What was acknowledged of one journal. A number is tried once: so it may exist once at most."""

    journal: str
    begins: dict[int, int] = field(default_factory=dict)
    began_at: list[float] = field(default_factory=list)
    """When each append was begun that was acknowledged."""
    acknowledged_at: list[float] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def append(self, platform: Platform, is_enough: Callable[[Ledger], bool]) -> None:
        """Append for as long as it takes, whatever brokers say meanwhile."""

        async def work() -> None:
            while not is_enough(self):
                try:
                    await self.append_once(client)
                except GazetteError:
                    await pass_time(0.1)

        async with platform.client(retry_timeout_s=0.0) as client, asyncio.TaskGroup() as group:
            for _ in range(WRITERS // platform.brokers):
                group.create_task(work())

    async def append_once(self, client: AsyncClient) -> None:
        number, began_at = next(self.numbers), time.monotonic()
        done = await client.append(self.journal, line(number))
        self.begins[number] = done.begin
        self.began_at.append(began_at)
        self.acknowledged_at.append(time.monotonic())

    def back_after(self, killed_at: float) -> float | None:
        """Seconds from a kill until an append was acknowledged that was begun later."""
        later = zip(self.began_at, self.acknowledged_at, strict=True)
        return next((at - killed_at for began, at in later if began > killed_at), None)

    async def check(self, platform: Platform) -> None:
        """All that was acknowledged exists once, at its acknowledged place."""
        content = b""
        async with platform.client() as client, asyncio.timeout(patient(60)):
            async for piece in client.read(self.journal):
                content += piece
        assert len(content) % LINE_BYTES == 0
        found = content.splitlines(keepends=True)
        assert len(found) == len(set(found))
        for number, begin in self.begins.items():
            assert content[begin : begin + LINE_BYTES] == line(number)


@pytest.fixture(params=[1, 3], ids=["one-broker", "three-brokers"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(tmp_path / "platform", request.param)
    platform.up()
    yield platform
    platform.down()


async def journals(platform: Platform) -> list[Ledger]:
    """One for each count of replicas that there can be."""
    ledgers = []
    async with platform.client() as client:
        for replication in range(1, platform.brokers + 1):
            fragment = FragmentSpec(
                length=1 << 30,
                codec=CompressionCodec.NONE,
                stores=("file:///",),
                refresh_interval_ns=3600 * 10**9,
            )
            name = name_of(replication)
            await client.apply([Change(JournalSpec(name, replication, fragment=fragment))])
            ledgers.append(Ledger(name))
    return ledgers


async def append_all(
    platform: Platform, ledgers: list[Ledger], is_enough: Callable[[Ledger], bool]
) -> None:
    async with asyncio.TaskGroup() as group:
        for ledger in ledgers:
            group.create_task(ledger.append(platform, is_enough))


async def test_a_platform_that_is_killed_whole_comes_up_with_all_that_it_acknowledged(
    platform: Platform,
) -> None:
    ledgers = await journals(platform)
    async with asyncio.TaskGroup() as group:
        is_over = False
        group.create_task(append_all(platform, ledgers, lambda _: is_over))
        await eventually(lambda: min(len(one.begins) for one in ledgers) >= 1000, timeout_s=120)
        processes = platform.processes()
        for process in processes.values():
            os.kill(process.pid, signal.SIGKILL)
        is_over = True
    await eventually(lambda: not any(process.is_alive() for process in processes.values()))
    began = time.monotonic()
    await asyncio.to_thread(platform.up)
    print(f"{platform.brokers} brokers up again in {time.monotonic() - began:.2f} s")
    async with platform.client() as client:
        for ledger in ledgers:
            await ledger.append_once(client)
    print(f"appends go on after {time.monotonic() - began:.2f} s")
    for ledger in ledgers:
        await ledger.check(platform)


async def test_a_supervisor_that_is_killed_takes_its_brokers_with_it(platform: Platform) -> None:
    """They get SIGTERM by that, and leave in order, or are ended by whoever comes up next."""
    ledgers = await journals(platform)
    async with asyncio.TaskGroup() as group:
        is_over = False
        group.create_task(append_all(platform, ledgers, lambda _: is_over))
        await eventually(lambda: min(len(one.begins) for one in ledgers) >= 1000, timeout_s=120)
        os.kill(platform.processes()["supervisor"].pid, signal.SIGKILL)
        is_over = True
    began = time.monotonic()
    await asyncio.to_thread(platform.up)
    print(f"{platform.brokers} brokers up again in {time.monotonic() - began:.2f} s")
    async with platform.client() as client:
        for ledger in ledgers:
            await ledger.append_once(client)
    for ledger in ledgers:
        await ledger.check(platform)
