"""Clients of a chaos run that append."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, final

from gazette_platform.client import AsyncClient
from gazette_platform.errors import GazetteError, RegisterMismatch, WrongAppendOffset
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.testing.waiting import pass_time
from tests.checker.history import Payload
from tests.checker.recording import RecordingClient, RecordingWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.chaos.scene import Scene, WorkloadConfig

__all__ = ["Write", "WriterKind", "run_streams", "run_writer", "writes_of"]

# Among so many journals one has registers that writers compare and set.
_CONTENDED_EVERY = 5
_REGISTER = "holder"
_RETRY_S = 30.0
_BATCHED_WRITES = 40
_STREAM_PIECES_PER_S = 4
# Of a streamed append above the slowest that brokers take, in bytes a second.
_STREAM_FASTER = 8
_STREAM_CANCELLED = 0.2


class WriterKind(StrEnum):
    """How a writer appends."""

    PLAIN = "appends"
    """One attempt for each append; in some journals on condition of registers."""
    RETRYING = "appends of a client that retries"
    BATCHING = "writes of an append writer"
    OFFSET = "appends at an offset"


_KINDS = (
    WriterKind.PLAIN,
    WriterKind.PLAIN,
    WriterKind.RETRYING,
    WriterKind.BATCHING,
    WriterKind.PLAIN,
    WriterKind.PLAIN,
    WriterKind.OFFSET,
    WriterKind.PLAIN,
)


def kind_of(writer: int) -> WriterKind:
    """The kind of a writer by its number."""
    return _KINDS[writer % len(_KINDS)]


@dataclass(frozen=True, slots=True)
class Write:
    """One append that a writer will make."""

    journal: str
    payload: Payload
    pause_s: float
    """Seconds after the begin of the one before."""
    is_contended: bool
    """Whether it compares and sets the register of the journal."""
    gives_up: bool
    """Whether it then takes the register away, rather than set it."""


def writes_of(seed: int, writer: int, config: WorkloadConfig) -> Iterator[Write]:
    """The appends of one writer, for ever: a pure function of the seed."""
    rng = random.Random(f"writer/{seed}/{writer}")
    names = config.journal_names
    number = 0
    while True:
        chosen = rng.randrange(len(names))
        # Mostly small, so that many are written together; some take several messages.
        size = rng.choice((64, 100, 200, 400)) if rng.random() < 0.97 else rng.randrange(1000, 9000)
        yield Write(
            names[chosen],
            Payload(f"w{writer:02d}-{number:06d}", size),
            rng.uniform(1.0, 1.5) / config.appends_per_s,
            is_contended=chosen % _CONTENDED_EVERY == 0 and rng.random() < 0.5,
            gives_up=rng.random() < 0.25,
        )
        number += 1


async def run_writer(scene: Scene, seed: int, number: int) -> None:
    """Append until the scene ends, and let the append under way end."""
    kind = kind_of(number)
    async with contextlib.AsyncExitStack() as stack:
        if kind in (WriterKind.PLAIN, WriterKind.OFFSET):
            client = await stack.enter_async_context(AsyncClient(scene.single_config))
        else:
            client = await stack.enter_async_context(scene.client(retry_timeout_s=_RETRY_S))
        writer = _Writer(scene, client, f"writer-{number:02d}", kind)
        due = scene.clock.monotonic()
        for write in writes_of(seed, number, scene.config):
            due = max(due + write.pause_s, scene.clock.monotonic())
            if await scene.is_stopped(due - scene.clock.monotonic()):
                break
            with contextlib.suppress(GazetteError):
                await writer.write(write)
        await writer.close()


@final
@dataclass(slots=True)
class _Writer:
    scene: Scene
    client: AsyncClient
    process: str
    kind: WriterKind
    registers: dict[str, LabelSet] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    batched: RecordingWriter | None = None
    recording: RecordingClient = field(init=False)

    def __post_init__(self) -> None:
        self.recording = RecordingClient(self.client, self.scene.recorder, self.process)

    async def write(self, write: Write) -> None:
        match self.kind:
            case WriterKind.BATCHING:
                await self._batch(write)
                return
            case WriterKind.OFFSET:
                end = await self._at_head(write)
            case WriterKind.PLAIN if write.is_contended:
                end = await self._contend(write)
            case _:
                end = (await self.recording.append(write.journal, write.payload)).end
        self.scene.note_acknowledged(write.journal, end)
        self.scene.took_part[self.kind] += 1

    async def close(self) -> None:
        """End what is under way."""
        batched, self.batched = self.batched, None
        if batched is None:
            return
        error = ""
        try:
            await batched.close()
        except GazetteError as err:
            error = f"{err!r}"
        if batched.unresolved:
            self.scene.note_finding(
                f"{self.process}: an append writer of {batched.journal} was closed "
                f"({error or 'well'}), and {batched.unresolved} tickets are not resolved"
            )
        self.scene.note_acknowledged(batched.journal, batched.acknowledged)
        self.scene.took_part[self.kind] += batched.written - batched.failed

    async def _batch(self, write: Write) -> None:
        if self.batched is not None and self.batched.written >= _BATCHED_WRITES:
            await self.close()
        if self.batched is None:
            writer = self.client.append_writer(write.journal)
            self.batched = RecordingWriter(writer, self.scene.recorder, self.process)
        try:
            _ = await self.batched.write(write.payload)
        except GazetteError:
            await self.close()
            raise

    async def _at_head(self, write: Write) -> int:
        head = self.heads.get(write.journal, 0)
        try:
            result = await self.recording.append(write.journal, write.payload, offset=head)
        except WrongAppendOffset:
            self.heads[write.journal] = (await self.recording.append(write.journal, b"")).end
            raise
        self.heads[write.journal] = result.end
        return result.end

    async def _contend(self, write: Write) -> int:
        known = self.registers.pop(write.journal, None)
        if not known:
            # No client held it as far as we know: take it as it is, and learn who does.
            result = await self.recording.append(write.journal, b"")
            if not result.registers:
                holder = LabelSet.of({_REGISTER: self.process})
                result = await self.recording.append(
                    write.journal, write.payload, union_registers=holder
                )
        else:
            held = known.value_of(_REGISTER)
            given = LabelSet.of({_REGISTER: held}) if write.gives_up else None
            taken = None if write.gives_up else LabelSet.of({_REGISTER: write.payload.tag})
            with contextlib.suppress(RegisterMismatch):
                result = await self.recording.append(
                    write.journal,
                    write.payload,
                    check_registers=LabelSelector.parse(f"{_REGISTER}={held}"),
                    union_registers=taken,
                    subtract_registers=given,
                )
                self.scene.took_part["registers compared"] += 1
                self.registers[write.journal] = result.registers
                return result.end
            return 0
        self.registers[write.journal] = result.registers
        return result.end


async def run_streams(scene: Scene, seed: int) -> None:
    """Appends of one journal whose content comes slowly; some are given up in the middle."""
    config = scene.config
    rng = random.Random(f"streams/{seed}")
    number = 0
    async with AsyncClient(scene.single_config) as client:
        recording = RecordingClient(client, scene.recorder, "streamer")
        rate = config.min_append_rate + _STREAM_FASTER
        while not scene.stopping.is_set():
            payload = Payload(f"s-{number:06d}", int(config.stream_s * rate))
            given_up_s = None
            if number and rng.random() < _STREAM_CANCELLED:
                given_up_s = rng.uniform(1.0, config.stream_s)
            number += 1
            with contextlib.suppress(GazetteError, TimeoutError):
                async with asyncio.timeout(given_up_s):
                    result = await recording.append(
                        config.streamed_name, payload, paced_by=lambda data: _paced(data, rate)
                    )
                scene.note_acknowledged(config.streamed_name, result.end)
                scene.took_part["streamed appends"] += 1
                scene.has_streamed.set()
            await scene.is_stopped(0.2)


async def _paced(data: bytes, bytes_per_s: int) -> AsyncIterator[bytes]:
    size = max(1, bytes_per_s // _STREAM_PIECES_PER_S)
    for at in range(0, len(data), size):
        await pass_time(size / bytes_per_s)
        yield data[at : at + size]
