"""The clients of a chaos run: writers and readers whose every operation is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError, RegisterMismatch, SetupError
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalChange,
    JournalSpec,
    LabelSelector,
    LabelSet,
)
from gazette_platform.testing.payloads import Payload
from gazette_platform.testing.recording import RecordingClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gazette_platform.ops.clock import Clock
    from gazette_platform.testing.history import Recorder

__all__ = ["Workload", "WorkloadConfig", "writes_of"]

_NS = 1_000_000_000
# Among so many journals one has registers that writers compare and set.
_CONTENDED_EVERY = 5
_REGISTER = "holder"
_POLL_S = 0.05
# Sessions of a reader: it follows a journal for a while, and then goes to another.
_FOLLOW_S = (5.0, 20.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadConfig:
    """Who does how much."""

    journals: int = 20
    writers: int = 16
    readers: int = 8
    replication: int = 3
    appends_per_s: float = 10.0
    """Most appends a second of each writer."""
    fragment_length: int = 256 << 10
    """Bytes after which fragments roll: small, so that many are persisted."""

    @property
    def journal_names(self) -> tuple[str, ...]:
        """The journals."""
        return tuple(f"chaos/journal-{number:02d}" for number in range(self.journals))


@dataclass(frozen=True, slots=True)
class Write:
    """One append that a writer will make."""

    journal: str
    payload: Payload
    pause_s: float
    """Seconds after the begin of the one before."""
    is_contended: bool
    """Whether it compares and sets the register of the journal."""


def writes_of(seed: int, writer: int, config: WorkloadConfig) -> Iterator[Write]:
    """The appends of one writer, for ever: a pure function of the seed."""
    rng = random.Random(f"writer/{seed}/{writer}")  # noqa: S311  it must be repeatable
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
        )
        number += 1


@final
class Workload:
    """Creates the journals, and runs writers and readers until told to stop.

    Args: address: leads to a broker that works. lease_s: of the brokers: bounds how long a client
          waits for an answer.
    """

    def __init__(
        self,
        config: WorkloadConfig,
        *,
        address: str,
        lease_s: float,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._config = config
        self._recorder = recorder
        self._clock = clock
        self._writers = TaskGroup("writers")
        self._readers = TaskGroup("readers")
        self._is_stopping = asyncio.Event()
        # One attempt for each append, so that what became of it is known as well as can be; and
        # routes that are forgotten soon, for the broker that they name may be paused.
        self._client_config = ClientConfig(
            address=address,
            retry_timeout_s=0,
            append_timeout_s=2 * lease_s,
            call_timeout_s=2 * lease_s,
            route_cache_ttl_s=lease_s,
            keepalive_s=max(1.0, lease_s / 2),
        )

    async def create_journals(self) -> None:
        """Create all, and wait until each takes appends. Raises: GazetteError."""
        config = self._config
        fragment = FragmentSpec(
            length=config.fragment_length,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=5 * _NS,
            flush_interval_ns=60 * _NS,
        )
        async with self._client(retry_timeout_s=60.0) as client:
            await client.apply(
                [
                    JournalChange(
                        JournalSpec(name=name, replication=config.replication, fragment=fragment),
                        "",
                        0,
                    )
                    for name in config.journal_names
                ]
            )
            for name in config.journal_names:
                await client.append(name, b"")

    def start(self, seed: int) -> None:
        """Start all writers and readers."""
        for number in range(self._config.writers):
            self._writers.spawn(self._write(seed, number), name=f"writer {number}")
        for number in range(self._config.readers):
            self._readers.spawn(self._read(seed, number), name=f"reader {number}")

    async def stop(self, *, timeout_s: float) -> None:
        """Let every append under way end, and end the readers.

        Raises: SetupError: appends did not end in time, or a client failed by a defect of its own.
        """
        self._is_stopping.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._writers.join()
        except TimeoutError as err:
            raise SetupError(
                f"{len(self._writers)} writers did not come to an end within {timeout_s} s; "
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

    async def read_finals(self, *, timeout_s: float) -> list[str]:
        """Record what each journal holds, once it takes appends again.

        Returns: what is wrong: of each journal that takes no appends, or cannot be read.
        """
        async with self._client(retry_timeout_s=timeout_s) as client:
            found = await asyncio.gather(
                *[self._read_final(client, name, timeout_s) for name in self._config.journal_names]
            )
        return [trouble for trouble in found if trouble]

    async def _read_final(self, client: AsyncClient, name: str, timeout_s: float) -> str:
        recording = RecordingClient(client, self._recorder, "final")
        trouble, end, content = "", 0, b""
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    end = (await recording.append(name, b"")).end
                except GazetteError as err:
                    # What can be read still says what was lost.
                    trouble = f"{name} takes no appends: {err}"
                while True:
                    async with client.read(name, len(content)) as reader:
                        content += b"".join([bytes(piece) async for piece in reader])
                    if len(content) >= end:
                        break
                    await asyncio.sleep(_POLL_S)
        except (GazetteError, TimeoutError) as err:
            return trouble or (
                f"{name} can be read up to {len(content)}, not to its head {end}, "
                f"within {timeout_s} s: {err!r}"
            )
        self._recorder.final(name, content)
        return trouble

    # ------------------------------------------------------------------ clients

    @contextlib.asynccontextmanager
    async def _client(self, *, retry_timeout_s: float) -> AsyncIterator[AsyncClient]:
        config = self._client_config
        patient = ClientConfig(
            address=config.address,
            retry_timeout_s=retry_timeout_s,
            connect_timeout_s=max(retry_timeout_s, 1.0),
            append_timeout_s=config.append_timeout_s,
            call_timeout_s=config.call_timeout_s,
            route_cache_ttl_s=config.route_cache_ttl_s,
            keepalive_s=config.keepalive_s,
        )
        async with AsyncClient(patient) as client:
            yield client

    async def _write(self, seed: int, number: int) -> None:
        due = self._clock.monotonic()
        registers: dict[str, LabelSet] = {}
        async with AsyncClient(self._client_config) as client:
            recording = RecordingClient(client, self._recorder, f"writer-{number:02d}")
            for write in writes_of(seed, number, self._config):
                due = max(due + write.pause_s, self._clock.monotonic())
                if await self._is_stopped(due - self._clock.monotonic()):
                    return
                with contextlib.suppress(GazetteError):
                    await self._append(recording, write, registers, number)

    async def _append(
        self,
        recording: RecordingClient,
        write: Write,
        registers: dict[str, LabelSet],
        number: int,
    ) -> None:
        known = registers.get(write.journal)
        if not write.is_contended:
            result = await recording.append(write.journal, write.payload)
        elif not known:
            # Nobody held it as far as we know: take it as it is, and learn who does.
            result = await recording.append(write.journal, b"")
            if not result.registers:
                holder = LabelSet.of({_REGISTER: f"w{number:02d}"})
                result = await recording.append(
                    write.journal, write.payload, union_registers=holder
                )
        else:
            held = f"{_REGISTER}={known.value_of(_REGISTER)}"
            try:
                result = await recording.append(
                    write.journal,
                    write.payload,
                    check_registers=LabelSelector.parse(held),
                    union_registers=LabelSet.of({_REGISTER: f"{write.payload.tag}"}),
                )
            except RegisterMismatch:
                registers.pop(write.journal, None)
                raise
        registers[write.journal] = result.registers

    async def _read(self, seed: int, number: int) -> None:
        rng = random.Random(f"reader/{seed}/{number}")  # noqa: S311  it must be repeatable
        names = self._config.journal_names
        # Patient, unlike writers: a stream goes on over failures, gap-free.
        async with self._client(retry_timeout_s=_FOLLOW_S[1]) as client:
            recording = RecordingClient(client, self._recorder, f"reader-{number:02d}")
            while not self._is_stopping.is_set():
                name, offset = rng.choice(names), rng.choice((0, -1))
                with contextlib.suppress(GazetteError, TimeoutError):
                    async with (
                        asyncio.timeout(rng.uniform(*_FOLLOW_S)),
                        recording.read(name, offset, block=True) as reader,
                    ):
                        async for _ in reader:
                            pass
                await self._is_stopped(0.05)

    async def _is_stopped(self, seconds: float) -> bool:
        """Sleep, but not beyond the stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._is_stopping.wait()
        return self._is_stopping.is_set()
