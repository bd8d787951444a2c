"""Clients of a chaos run that look after journals: specs, suspension, flushes, old fragments."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import TYPE_CHECKING, final

from gazette_platform.errors import DataError, GazetteError
from gazette_platform.protocol import CompressionCodec, JournalChange
from gazette_platform.testing.chaos.stored import stored_content
from gazette_platform.testing.payloads import Payload
from gazette_platform.testing.recording import RecordingClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.client import AsyncClient
    from gazette_platform.testing.chaos.scene import Scene

__all__ = ["CODECS", "run_flushes", "run_upkeep"]

CODECS = (
    CompressionCodec.GZIP,
    CompressionCodec.NONE,
    CompressionCodec.SNAPPY,
    CompressionCodec.ZSTANDARD,
)
"""Every codec that brokers write to stores of files."""

_PAUSE_S = (0.5, 3.0)
_CALL_S = 20.0
_KEPT_FRAGMENTS = 3
_SAMPLE_BYTES = 64 << 10


async def run_flushes(scene: Scene, seed: int) -> None:
    """Flush journal after journal: then the store holds what was acknowledged before."""
    rng = random.Random(f"flushes/{seed}")  # noqa: S311  it must be repeatable
    async with scene.client(retry_timeout_s=_CALL_S) as client:
        while not await scene.is_stopped(rng.uniform(*_PAUSE_S)):
            with contextlib.suppress(GazetteError):
                await _flush(scene, client, rng.choice(scene.config.journal_names))


async def _flush(scene: Scene, client: AsyncClient, name: str) -> None:
    acknowledged = scene.acknowledged[name]
    ends = await client.flush(f"name={name}", timeout_s=_CALL_S)
    scene.took_part["flushes"] += 1
    if ends.get(name, -1) < acknowledged:
        scene.note_finding(
            f"a flush of {name} ended well at {ends.get(name)}, and {acknowledged} was "
            "acknowledged before it began"
        )
    try:
        content = await asyncio.to_thread(stored_content, scene.fragments, name)
    except OSError:
        return  # the store is cut: no matter of the flush
    except DataError as err:
        scene.note_finding(f"after a flush of {name}: {err}")
        return
    recorder = scene.recorder
    at = max(0, len(content) - _SAMPLE_BYTES)
    op = recorder.invoke_poll("store", name, stream=recorder.stream(), offset=at)
    recorder.ok_poll(op, *([(at, content[at:])] if content else []))
    if len(content) < acknowledged and scene.fragments.is_dir():
        scene.note_finding(
            f"a flush of {name} ended well, the store holds it up to {len(content)}, and "
            f"{acknowledged} was acknowledged before it began"
        )


async def run_upkeep(scene: Scene, seed: int) -> None:
    """Change specs, suspend journals, reset heads, and delete the oldest fragments of one."""
    rng = random.Random(f"upkeep/{seed}")  # noqa: S311  it must be repeatable
    async with scene.client(retry_timeout_s=_CALL_S) as client:
        upkeep = _Upkeep(scene, client, rng)
        works: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("spec changes", upkeep.change_spec),
            ("suspensions", upkeep.suspend),
            ("head resets", upkeep.reset_head),
            ("prunes", upkeep.prune),
        ]
        turn = 0
        while not await scene.is_stopped(rng.uniform(*_PAUSE_S)):
            what, work = works[turn % len(works)]
            turn += 1
            with contextlib.suppress(GazetteError, OSError):
                await work()
                scene.took_part[what] += 1


@final
class _Upkeep:
    def __init__(self, scene: Scene, client: AsyncClient, rng: random.Random) -> None:
        self._scene = scene
        self._client = client
        self._rng = rng
        self._appended = 0

    async def change_spec(self) -> None:
        listing = await self._client.get(self._name())
        fragment = replace(
            listing.spec.fragment,
            codec=self._rng.choice(CODECS),
            length=self._rng.choice((1, 2)) * self._scene.config.fragment_length,
        )
        spec = replace(listing.spec, fragment=fragment)
        await self._client.apply([JournalChange(spec, "", listing.mod_revision)])

    async def suspend(self) -> None:
        name, scene = self._name(), self._scene
        asked_at = scene.clock.monotonic()
        try:
            await self._client.suspend(name, force=self._rng.random() < 0.7)
        finally:
            scene.suspensions.append((asked_at, scene.clock.monotonic(), name))

    async def reset_head(self) -> None:
        # That changes nothing, whoever is away: what only others hold is not given up by that.
        await self._client.reset_head(self._name())

    async def prune(self) -> None:
        """Append to the pruned journal, roll its fragment, and delete all but its newest ones."""
        scene = self._scene
        name = scene.config.pruned_name
        recording = RecordingClient(self._client, scene.recorder, "pruner")
        payload = Payload(f"p-{self._appended:06d}", 500)
        self._appended += 1
        result = await recording.append(name, payload)
        scene.note_acknowledged(name, result.end)
        await self._client.flush(f"name={name}", timeout_s=_CALL_S)
        stored = [item for item in await self._client.fragments(name) if item.is_persisted]
        scene.recorder.pruned(
            name, max((item.fragment.end for item in stored[:-_KEPT_FRAGMENTS]), default=0)
        )
        for item in stored[:-_KEPT_FRAGMENTS]:
            (scene.fragments / item.fragment.content_path).unlink(missing_ok=True)

    def _name(self) -> str:
        return self._rng.choice(self._scene.config.journal_names)
