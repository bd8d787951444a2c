"""The clients of a chaos run: writers, readers and upkeep, whose appends and reads are recorded.

Upkeep looks after journals: specs, suspension, flushes, old fragments.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import TYPE_CHECKING, final

from gazette_platform.errors import (
    CallUnanswered,
    DataError,
    FragmentStoreUnhealthy,
    GazetteError,
    SetupError,
    Suspended,
)
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalChange,
    JournalSpec,
    SuspendLevel,
)
from gazette_platform.testing.waiting import TooLate, pass_time, patient
from tests.chaos.finals import stored_content
from tests.chaos.readers import run_reader
from tests.chaos.writers import run_streams, run_writer
from tests.checker.history import Payload
from tests.checker.recording import RecordingClient
from tests.harness import is_late

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.client import AsyncClient
    from tests.chaos.scene import Scene

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
    rng = random.Random(f"flushes/{seed}")
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
    rng = random.Random(f"upkeep/{seed}")
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


_POLL_S = 0.2
_FLUSH_S = 30.0
# One that a fault broke may be under way still, and one more may be given up.
_STREAMS_WAITED = 3.5


@final
class Workload:
    """Creates the journals, and runs all clients until it is stopped."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._writers = TaskGroup("writers")
        self._readers = TaskGroup("readers")

    async def create_journals(self) -> None:
        """Create all, and wait until each takes appends. Raises: GazetteError."""
        config = self._scene.config
        changes = []
        for number, name in enumerate(config.all_names):
            fragment = FragmentSpec(
                length=config.fragment_length,
                codec=CODECS[number % len(CODECS)],
                stores=("file:///",),
                refresh_interval_ns=5 * SECOND_NS,
                flush_interval_ns=60 * SECOND_NS,
            )
            spec = JournalSpec(name=name, replication=config.replication, fragment=fragment)
            changes.append(JournalChange(spec, "", 0))
        async with self._scene.client(retry_timeout_s=patient(60.0)) as client:
            await client.apply(changes)
            for name in config.all_names:
                await client.append(name, b"")

    def start(self, seed: int) -> None:
        """Start all clients."""
        scene = self._scene
        for number in range(scene.config.writers):
            self._writers.spawn(run_writer(scene, seed, number), name=f"writer {number}")
        for number in range(scene.config.readers):
            self._readers.spawn(run_reader(scene, seed, number), name=f"reader {number}")
        if scene.config.has_upkeep:
            # A stream is given up at the end, rather than waited for.
            self._readers.spawn(run_streams(scene, seed), name="streams")
            self._readers.spawn(run_flushes(scene, seed), name="flushes")
            self._writers.spawn(run_upkeep(scene, seed), name="upkeep")

    async def wait_for_stream(self) -> None:
        """Wait until a streamed append has ended well, as each may have met a fault that ends it.

        Gives up once three have had the time. Cancellation: safe.
        """
        config = self._scene.config
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STREAMS_WAITED * config.stream_s):
                await self._scene.has_streamed.wait()

    async def stop(self, *, timeout_s: float) -> None:
        """Let every append under way end, and end the readers.

        Raises: TooLate: appends did not end in time. SetupError: a client failed by a defect of its own.
        """
        self._scene.stopping.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._writers.join()
        except TimeoutError as err:
            raise TooLate(
                f"{len(self._writers)} writers did not come to an end within {timeout_s:g} s; "
                "their brokers answer nothing, see their logs"
            ) from err
        await self.close()
        failure = self._writers.failure or self._readers.failure
        if failure is not None:
            raise SetupError(f"a client of the run failed: {failure!r}") from failure

    async def close(self) -> None:
        """End all clients at once. May be called again."""
        await self._writers.close()
        await self._readers.close()

    # ------------------------------------------------------------------ the state of the cluster

    async def replicas_of(self, journal: str) -> list[str]:
        """The brokers that serve a journal, the primary first. Raises: GazetteError."""
        async with self._scene.client(retry_timeout_s=patient(_FLUSH_S)) as client:
            while True:
                route = (await client.get(journal)).route
                if route.primary_id is not None and len(route.members) > 1:
                    break
                await pass_time(_POLL_S)
        names = [member.suffix for member in route.members if member != route.primary_id]
        return [route.primary_id.suffix, *names]

    async def settle(self, timeout_s: float, *, is_stored: bool, may_reset: bool = False) -> None:
        """Wait until every journal has all of its replicas, and takes appends.

        Args:
            is_stored: wait also until the store holds all of them: what only one replica has left,
                as others were killed, is then safe from whatever comes next.
            may_reset: of some journal all spools may be lost: then its head is reset, as the
                operating guide says.

        Raises: TooLate: that takes too long. SetupError: a journal refuses appends.
        """
        waiting = set(self._scene.config.journal_names)
        try:
            async with (
                asyncio.timeout(timeout_s),
                # Who is asked to reset a head looks out for those that are awaited, for some seconds.
                self._scene.client(retry_timeout_s=timeout_s, call_timeout_s=_FLUSH_S) as client,
            ):
                while waiting:
                    waiting = await self._unsettled(client, may_reset=may_reset)
                    await pass_time(_POLL_S if waiting else 0)
                if is_stored:
                    # Journals of long appends have theirs last.
                    await client.flush(self._scene.config.selector, timeout_s=timeout_s)
        except (TimeoutError, GazetteError) as err:
            names = " ".join(sorted(waiting)) or "all"
            what = "are not flushed" if not waiting else "do not take appends by all replicas"
            # A journal that refuses appends for another reason may have lost something.
            kind = TooLate if is_late(err) else SetupError
            raise kind(
                f"{timeout_s:.0f} s after faults were undone, journals {what}: {names} ({err!r})"
            ) from err

    async def _unsettled(self, client: AsyncClient, *, may_reset: bool) -> set[str]:
        config = self._scene.config
        listed = [item for item in await client.list() if item.name in config.journal_names]
        lacking = {
            item.name
            for item in listed
            if len(item.route.members) < config.replication
            and item.spec.suspend_level is SuspendLevel.NONE
        }
        if lacking:
            return lacking
        if may_reset:
            await asyncio.gather(*(self._reset_head(client, name) for name in config.all_names))
        unlisted = set()
        for name in config.journal_names:
            try:
                await client.append(name, b"")
            except (FragmentStoreUnhealthy, CallUnanswered):
                # Its broker could not list a store that was cut, and tries again some seconds later; or it
                # has much to do, and answers the next one.
                unlisted.add(name)
        return unlisted

    async def _reset_head(self, client: AsyncClient, name: str) -> None:
        """Give up what is lost of a journal, if it refuses appends for it."""
        with contextlib.suppress(Suspended):
            if (await client.check_head(name)).is_refused:
                await client.reset_head(name, give_up=True)
                self._scene.took_part["heads reset by need"] += 1
