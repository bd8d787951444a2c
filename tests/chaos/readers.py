"""Clients of a chaos run that read."""

from __future__ import annotations

import asyncio
import contextlib
import random
from enum import StrEnum
from typing import TYPE_CHECKING, final

import aiohttp

from gazette_platform.errors import GazetteError
from tests.chaos.availability import unavailable_s_max
from tests.checker.recording import RecordingClient

if TYPE_CHECKING:
    from gazette_platform.client import AsyncClient
    from tests.chaos.scene import Scene

__all__ = ["ReaderKind", "kind_of", "run_reader"]

# Sessions of a reader: it follows a journal for a while, and then goes to another.
_FOLLOW_S = (5.0, 20.0)
# Some stay, until it is certain that they are stuck.
_STAY_SHARE = 0.25
_STAY_FACTOR = (1.2, 1.5)
_PAUSE_S = 0.2
# Batch reads begin at most so far before the end: what is long stored is read at the end anyway.
_BATCH_BYTES = 64 << 10
_HTTP_TIMEOUT_S = 15.0


class ReaderKind(StrEnum):
    """How a reader reads."""

    TAIL = "tail"
    """Follows a journal, from its begin or its head."""
    DIRECT = "direct"
    """The same, with fragments from their store."""
    BATCH = "batch"
    """To the head, and ends; then it has all that was acknowledged before it began."""
    HTTP = "http"
    """The same by the gateway of some broker, which promises less: it may break off."""


_KINDS = (
    ReaderKind.TAIL,
    ReaderKind.BATCH,
    ReaderKind.DIRECT,
    ReaderKind.HTTP,
    ReaderKind.TAIL,
    ReaderKind.BATCH,
    ReaderKind.TAIL,
    ReaderKind.TAIL,
)


def kind_of(reader: int) -> ReaderKind:
    """The kind of a reader by its number."""
    return _KINDS[reader % len(_KINDS)]


async def run_reader(scene: Scene, seed: int, number: int) -> None:
    """Read until the scene ends."""
    rng = random.Random(f"reader/{seed}/{number}")
    kind = kind_of(number)
    process = f"reader-{number:02d}"
    if kind is ReaderKind.HTTP:
        await _HttpReader(scene, process, rng).run()
        return
    # Patient, unlike writers: a stream goes on over failures, gap-free.
    async with scene.client(retry_timeout_s=_FOLLOW_S[1]) as client:
        reader = _Reader(scene, client, process, kind)
        while not scene.stopping.is_set():
            with contextlib.suppress(GazetteError, TimeoutError):
                async with asyncio.timeout(_session_s(rng, kind, scene.lease_s)):
                    if kind is ReaderKind.BATCH:
                        await reader.batch(rng)
                    else:
                        await reader.follow(rng)
            await scene.is_stopped(_PAUSE_S)


def _session_s(rng: random.Random, kind: ReaderKind, lease_s: float) -> float:
    """Seconds that a reader is given."""
    session_s = rng.uniform(*_FOLLOW_S)
    if kind is not ReaderKind.TAIL or rng.random() >= _STAY_SHARE:
        return session_s
    return unavailable_s_max(lease_s) * rng.uniform(*_STAY_FACTOR)


@final
class _Reader:
    def __init__(self, scene: Scene, client: AsyncClient, process: str, kind: ReaderKind) -> None:
        self._scene = scene
        self._process = process
        self._kind = kind
        self._client = RecordingClient(client, scene.recorder, process)

    async def follow(self, rng: random.Random) -> None:
        name = rng.choice(self._scene.config.all_names)
        offset = rng.choice((0, -1))
        is_direct = self._kind is ReaderKind.DIRECT
        async with self._client.read(
            name, 0 if is_direct else offset, block=True, direct=is_direct
        ) as reader:
            async for piece in reader:
                self._scene.took_part[self._kind] += len(piece)

    async def batch(self, rng: random.Random) -> None:
        scene = self._scene
        name = rng.choice(scene.config.journal_names)
        acknowledged = scene.acknowledged[name]
        begin = 0 if rng.random() < 0.1 else max(0, acknowledged - rng.randrange(_BATCH_BYTES))
        async with self._client.read(name, begin) as reader:
            async for piece in reader:
                scene.took_part[self._kind] += len(piece)
            if reader.reader.offset < acknowledged:
                scene.note_finding(
                    f"{self._process}: a batch read of {name} ended well at "
                    f"{reader.reader.offset}, and {acknowledged} was acknowledged before it began"
                )


@final
class _HttpReader:
    def __init__(self, scene: Scene, process: str, rng: random.Random) -> None:
        self._scene = scene
        self._process = process
        self._rng = rng

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_HTTP_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._scene.stopping.is_set():
                await self._read(session)
                await self._scene.is_stopped(_PAUSE_S)

    async def _read(self, session: aiohttp.ClientSession) -> None:
        scene, rng = self._scene, self._rng
        name = rng.choice(scene.config.journal_names)
        offset = max(0, scene.acknowledged[name] - rng.randrange(_BATCH_BYTES))
        url = f"{rng.choice(scene.http_addresses())}/{name}?offset={offset}"
        recorder = scene.recorder
        op = recorder.invoke_poll(self._process, name, stream=recorder.stream(), offset=offset)
        begin, content = offset, b""
        try:
            async with session.get(url) as response:
                if response.status not in (200, 206):
                    recorder.fail(op, f"HTTP {response.status}")
                    return
                begin = int(response.headers["Content-Range"].split()[1].split("-")[0])
                # What has come before it breaks off is content nonetheless.
                async for piece in response.content.iter_any():
                    content += piece
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            if not content:
                recorder.fail(op, repr(err))
                return
        except BaseException as err:
            recorder.fail(op, repr(err))
            raise
        scene.took_part[ReaderKind.HTTP] += len(content)
        recorder.ok_poll(op, *([(begin, content)] if content else []))
