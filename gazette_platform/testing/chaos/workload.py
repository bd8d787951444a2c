"""The clients of a chaos run: writers, readers and upkeep, whose appends and reads are recorded."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, final

from gazette_platform.errors import (
    CallUnanswered,
    FragmentStoreUnhealthy,
    GazetteError,
    SetupError,
    Suspended,
)
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import FragmentSpec, JournalChange, JournalSpec, SuspendLevel
from gazette_platform.testing.chaos.readers import run_reader
from gazette_platform.testing.chaos.upkeep import CODECS, run_flushes, run_upkeep
from gazette_platform.testing.chaos.writers import run_streams, run_writer
from gazette_platform.testing.starvation import is_late
from gazette_platform.testing.waiting import TooLate, patient

if TYPE_CHECKING:
    from gazette_platform.client import AsyncClient
    from gazette_platform.testing.chaos.scene import Scene

__all__ = ["Workload"]

_POLL_S = 0.2
_FLUSH_S = 30.0
# One that a fault broke may be under way still, and one more may be given up.
_STREAMS_WAITED = 3.5


@final
class Workload:
    """Creates the journals, and runs all clients until told to stop."""

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
                await asyncio.sleep(_POLL_S)
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
                    await asyncio.sleep(_POLL_S if waiting else 0)
                if is_stored:
                    # Journals of long appends have theirs last.
                    await client.flush("name:prefix=chaos/", timeout_s=timeout_s)
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
