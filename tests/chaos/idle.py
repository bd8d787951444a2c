"""Journals that only a fault uses: no client appends to them between its steps."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, final

from gazette_platform.errors import OutcomeUnknown, RegisterMismatch
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalChange,
    JournalSpec,
    LabelSelector,
    LabelSet,
)
from gazette_platform.testing.waiting import TooLate, pass_time, patient
from tests.checker.history import Payload
from tests.checker.recording import RecordingClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.client import AsyncClient
    from tests.chaos.scene import Scene

__all__ = ["IdleJournals"]

_PATIENCE_S = 60.0
# Some of them for each of the brokers, even if each journal has one replica.
_COUNT = 10
_POLL_S = 0.1
_BYTES = 300
_HELD = LabelSet.of({"holder": "idle"})


@final
class IdleJournals:
    """Journals with content and registers, a few new ones for each fault.

    What a broker does with a journal before the first append is seen in these alone: the writers of
    a run never pause.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._faults = 0
        self._names: tuple[str, ...] = ()
        self._appended = 0

    async def make(self, count: int = _COUNT) -> None:
        """Create new ones, and append to each while it takes registers. Raises: GazetteError."""
        self._faults += 1
        self._names = tuple(
            f"chaos-idle/fault-{self._faults:02d}-{number}" for number in range(count)
        )
        async with self._client() as client:
            await client.apply([JournalChange(self._spec(name), "", 0) for name in self._names])
            recording = self._recording(client)
            for name in self._names:
                await recording.append(name, self._payload(name, "before"), union_registers=_HELD)

    async def apply_old_listing(self) -> None:
        """Append to each, then apply the specs from before, as `journals apply --force` does.

        After an orderly restart of all brokers these note the heads that the journals then had.

        Raises: GazetteError.
        """
        async with self._client() as client:
            listed = [await client.get(name) for name in self._names]
            if not any(item.spec.suspend and item.spec.suspend.offset for item in listed):
                self._scene.note_finding("after an orderly restart of all, no spec notes a head")
            recording = self._recording(client)
            for name in self._names:
                await recording.append(name, self._payload(name, "since"))
            await client.apply([JournalChange(item.spec, "", -1) for item in listed])

    async def move(self, replicas: int, *, without: Sequence[str] = ()) -> list[str]:
        """Let the first one have so many replicas, and append to it once it has.

        Args:
            without: brokers that have ended.

        Returns: the brokers that serve it. Raises: GazetteError, TooLate.
        """
        name = self._names[0]
        async with self._client() as client:
            listing = await client.get(name)
            spec = replace(listing.spec, replication=replicas)
            await client.apply([JournalChange(spec, "", listing.mod_revision)])
            members = await self._members(client, name, replicas, without)
            self._appended += 1
            payload = self._payload(name, f"moved-{self._appended}")
            await self._recording(client).append(name, payload)
            return members

    async def _members(
        self, client: AsyncClient, name: str, replicas: int, without: Sequence[str]
    ) -> list[str]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patient(_PATIENCE_S)):
                while True:
                    found = [one.suffix for one in (await client.get(name)).route.members]
                    if len(found) == replicas and not {*found} & {*without}:
                        return found
                    await pass_time(_POLL_S)
        raise TooLate(f"{name} is not at {replicas} brokers after {patient(_PATIENCE_S):g} s")

    async def contend(self) -> None:
        """Append to each by a wrong register, which must be refused, and by the right one; read all.

        Raises: GazetteError: a journal does not take appends, or cannot be read.
        """
        async with self._client() as client:
            tasks = [self._contend(client, name) for name in self._names]
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if outcome is not None:
                    raise outcome

    async def _contend(self, client: AsyncClient, name: str) -> None:
        recording = self._recording(client)
        for what, holder in (("wrong", "another"), ("right", "idle")):
            with contextlib.suppress(RegisterMismatch, OutcomeUnknown):  # the history has it
                await recording.append(
                    name,
                    self._payload(name, what),
                    check_registers=LabelSelector.parse(f"holder={holder}"),
                )
        async with recording.read(name) as reader:
            content = b"".join([piece async for piece in reader])
        self._scene.recorder.final(name, content)

    def _client(self) -> contextlib.AbstractAsyncContextManager[AsyncClient]:
        return self._scene.client(retry_timeout_s=patient(_PATIENCE_S))

    def _recording(self, client: AsyncClient) -> RecordingClient:
        return RecordingClient(client, self._scene.recorder, "idle")

    def _payload(self, name: str, what: str) -> Payload:
        return Payload(f"{name.rpartition('/')[2]}-{what}", _BYTES)

    def _spec(self, name: str) -> JournalSpec:
        fragment = FragmentSpec(
            length=self._scene.config.fragment_length,
            codec=CompressionCodec.NONE,
            stores=("file:///",),
            refresh_interval_ns=5 * SECOND_NS,
        )
        return JournalSpec(name=name, replication=self._scene.config.replication, fragment=fragment)
