"""Clients with their default settings: writers that retry, and a reader that follows each journal."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, final

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalChange, JournalSpec
from gazette_platform.testing.waiting import TooLate, pass_time, patient
from tests.checker.history import Payload
from tests.checker.recording import RecordingClient, RecordingWriter

if TYPE_CHECKING:
    from tests.chaos.scene import Scene

__all__ = ["Load", "replication_of"]

_SIZES = (100, 1000, 10_000)
_POLL_S = 0.2
_CREATE_S = 60.0
_WHOLE_S = 90.0
_STOP_S = 90.0


def replication_of(scene: Scene, name: str) -> int:
    """The replicas of a journal: three, or two of every other one."""
    return scene.config.replication - scene.config.journal_names.index(name) % 2


@final
class Load:
    """Appends and reads from `start` to `stop`. What must not be becomes a finding of the scene."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._config = ClientConfig(address=scene.address, file_root=scene.fragments)
        self._writers = TaskGroup("writers")
        self._readers = TaskGroup("readers")
        self._read_to: dict[str, int] = {}

    async def create_journals(self) -> None:
        """Create all, and wait until each takes appends. Raises: GazetteError."""
        scene = self._scene
        fragment = FragmentSpec(
            length=scene.config.fragment_length,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=5 * SECOND_NS,
            flush_interval_ns=60 * SECOND_NS,
        )
        changes = [
            JournalChange(JournalSpec(name, replication_of(scene, name), fragment=fragment), "", 0)
            for name in scene.config.journal_names
        ]
        async with scene.client(retry_timeout_s=patient(_CREATE_S)) as client:
            await client.apply(changes)
            for name in scene.config.journal_names:
                await client.append(name, b"")

    def start(self, seed: int) -> None:
        """Start all clients."""
        config = self._scene.config
        for number in range(config.writers):
            self._writers.spawn(self._write(seed, number), name=f"writer {number}")
        for name in config.journal_names:
            self._readers.spawn(self._follow(name), name=f"reader of {name}")

    async def stop(self) -> None:
        """Let every append end, and readers reach what was acknowledged.

        Raises: TooLate: they did not in time. SetupError: a client failed by a defect of its own.
        """
        scene = self._scene
        scene.stopping.set()
        try:
            async with asyncio.timeout(patient(_STOP_S)):
                await self._writers.join()
                while self._behind():
                    await pass_time(_POLL_S)
        except TimeoutError as err:
            raise TooLate(
                f"{len(self._writers)} writers did not come to an end, or readers did not reach "
                f"the end of {' '.join(self._behind()) or 'their journals'}"
            ) from err
        await self.close()
        failure = self._writers.failure or self._readers.failure
        if failure is not None:
            raise SetupError(f"a client of the run failed: {failure!r}") from failure

    async def close(self) -> None:
        """End all clients at once. May be called again."""
        await self._writers.close()
        await self._readers.close()

    async def until_whole(self) -> None:
        """Wait until every journal has all of its replicas. Raises: TooLate, GazetteError."""
        scene = self._scene
        lacking: list[str] = []
        try:
            async with (
                asyncio.timeout(patient(_WHOLE_S)),
                scene.client(retry_timeout_s=patient(_WHOLE_S)) as client,
            ):
                while True:
                    lacking = [
                        item.name
                        for item in await client.list("name:prefix=chaos/")
                        if len(item.route.members) < item.spec.replication
                        or item.route.primary_id is None
                    ]
                    if not lacking:
                        return
                    await pass_time(_POLL_S)
        except TimeoutError as err:
            raise TooLate(f"these journals lack replicas: {' '.join(lacking)}") from err

    def _behind(self) -> list[str]:
        return [
            name
            for name, end in self._scene.acknowledged.items()
            if self._read_to.get(name, 0) < end
        ]

    async def _write(self, seed: int, number: int) -> None:
        """Append by calls, or by a background writer for each journal."""
        scene, config = self._scene, self._scene.config
        rng = random.Random(f"writer/{seed}/{number}")
        process = f"writer-{number:02d}"
        async with AsyncClient(self._config) as client:
            recording = RecordingClient(client, scene.recorder, process)
            writers: dict[str, RecordingWriter] = {}
            count = 0
            while not await scene.is_stopped(rng.uniform(0.8, 1.2) / config.appends_per_s):
                name = rng.choice(config.journal_names)
                payload = Payload(f"w{number:02d}-{count:06d}", rng.choice(_SIZES))
                count += 1
                try:
                    if number % 2:
                        end = (await recording.append(name, payload)).end
                        scene.note_acknowledged(name, end)
                        continue
                    if name not in writers:
                        background = client.append_writer(name)
                        writers[name] = RecordingWriter(background, scene.recorder, process)
                    await writers[name].write(payload)
                except GazetteError:
                    writers.pop(name, None)  # it is in the history
            for writer in writers.values():
                await writer.close()
                scene.note_acknowledged(writer.journal, writer.acknowledged)

    async def _follow(self, name: str) -> None:
        """Read a journal from its begin, in one stream that must not break."""
        async with AsyncClient(self._config) as client:
            recording = RecordingClient(client, self._scene.recorder, f"reader of {name}")
            try:
                async with recording.read(name, 0, block=True) as reader:
                    async for _ in reader:
                        self._read_to[name] = reader.reader.offset
            except GazetteError as err:
                self._scene.note_finding(f"the reader of {name} ended: {err!r}")
