"""Publishes streams of chunks, and checks their sums: `python -m examples.stream_sum.chunker`."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, final

import typer
import uvloop

from examples.stream_sum.messages import CHUNKS, ID_BYTES, SUMS, Chunk, Sum, crc64, id_of
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.message import (
    Flags,
    JsonFraming,
    Publisher,
    modulo_mapping,
    read_committed,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gazette_platform.client import ListSnapshot
    from gazette_platform.ops.clock import Clock

__all__ = ["ChunkLate", "Chunker", "Published", "SumLate", "SumWrong", "run_chunker"]

CHUNK_BYTES: Final = 32
WARN_S: Final = (0.1, 0.25, 0.5, 1, 2, 4, 6, 8, 10, 15, 20, 25, 30, 35)
"""Seconds after the last chunk of a stream at which its sum is asked for aloud."""
FATAL_S: Final = 40.0
"""Seconds after which a sum is late: the chunker ends."""
APPEND_S: Final = 90.0
"""Seconds after which a chunk is late: longer than brokers take to replace one that has died."""
_RING: Final = 16


class SumWrong(GazetteError):
    """The sum of a stream is not the one of what was published."""


class SumLate(GazetteError):
    """The sum of a stream did not come in time."""


class ChunkLate(GazetteError):
    """Brokers did not append a chunk in time. They may still do so later."""


@dataclass(frozen=True, slots=True)
class Published:
    """A stream that was published, and whose sum was right."""

    total: Sum
    late_s: float
    """Seconds from the last chunk to the sum."""


@final
class Chunker:
    """Publishes streams: all by one publisher, each worker with a reader of sums.

    A context manager; `work` may be called by any number of tasks.

    Args:
        client: of brokers.
        chunks: of a stream, beside the last, which is empty.
        dice: draws IDs and data.
        pause_s: seconds between two chunks of a worker.
        say: called with sums that are late.
        expect: called with a stream once its chunks are published, before its result is known.
        append_s: seconds to wait for brokers that append no chunks.
        fatal_s: seconds until a sum is late.
        clock: dates UUIDs; None: the machine's.

    Attributes:
        close_s: seconds that the exit waits for appends that are under way.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        chunks: int = 100,
        dice: random.Random | None = None,
        pause_s: float = 0.0,
        say: Callable[[str], None] = typer.echo,
        expect: Callable[[Sum], None] = lambda total: None,  # noqa: ARG005
        append_s: float = APPEND_S,
        fatal_s: float = FATAL_S,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._chunks = chunks
        self._dice = dice or random.SystemRandom()
        self._pause_s = pause_s
        self._say = say
        self._expect = expect
        self._append_s = self.close_s = append_s
        self._fatal_s = fatal_s
        self._clock = clock or SystemClock()
        self.begin = 0
        """Where sums of these streams begin, in their journal."""

    async def __aenter__(self) -> Self:
        """Raises: GazetteError: journals are not there, or cannot be reached."""
        # As of now: with another count of journals a stream would go on in another one.
        partitions = await self._client.list_snapshot(f"prefix={CHUNKS}")
        self._service = self._client.append_service()
        self._publisher: Publisher[Chunk] = Publisher(
            self._service, _by_id(partitions), self._clock, framing=JsonFraming(message_type=Chunk)
        )
        self.begin = (await self._client.append(SUMS, b"")).end
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        """Wait for appends that are under way. Raises: ChunkLate: brokers do not answer."""
        if kind is not None:
            return  # no task waits for what is not appended yet
        # The client repeats appends for as long as it takes. Without a limit this would wait for ever for brokers
        # that do not come back.
        try:
            async with asyncio.timeout(self.close_s):
                await self._service.close()
        except TimeoutError:
            raise ChunkLate(
                f"not all chunks are appended {self.close_s:g} s after the last one (do brokers run? see `gazctl "
                "journals list`)"
            ) from None

    async def work(self, streams: int) -> AsyncIterator[Published]:
        """Publish streams, one after another; each waits for the sum of the one before.

        Args:
            streams: how many; -1: without end.

        Raises: SumWrong, SumLate, ChunkLate. GazetteError: brokers refuse.
        """
        framing = JsonFraming(message_type=Sum)
        async with await read_committed(
            self._client, SUMS, self.begin, ring_size=_RING, framing=framing, block=True
        ) as reader:
            sums = (
                each.message
                async for batch in reader
                for each in batch
                if each.uuid.flags != Flags.ACK_TXN
            )
            for number in count():
                if number == streams:
                    return
                expected = await self._publish_stream()
                yield Published(expected, await self._checked(sums, expected))

    async def _publish_stream(self) -> Sum:
        stream = list(self._dice.randbytes(ID_BYTES))
        total = Sum(ID=stream)
        for number in range(1, self._chunks + 2):
            data = self._dice.randbytes(CHUNK_BYTES) if number <= self._chunks else None
            total.SeqNo = number
            total.Value = crc64(data or b"", total.Value)
            if data is None:
                self._expect(total)
            await self._publish(Chunk(ID=stream, SeqNo=number, Data=data))
            if data is not None:
                await asyncio.sleep(self._pause_s)
        return total

    async def _publish(self, chunk: Chunk) -> None:
        try:
            async with asyncio.timeout(self._append_s):
                # It is accepted at once, unless brokers have not appended megabytes of earlier ones.
                _ = await self._publisher.publish_committed(chunk)
        except TimeoutError:
            raise ChunkLate(
                f"stream {bytes(chunk.ID).hex()}: chunk {chunk.SeqNo} is not accepted after {self._append_s:g} s "
                "(do brokers run? see `gazctl journals list`)"
            ) from None

    async def _checked(self, sums: AsyncIterator[Sum], expected: Sum) -> float:
        """Wait for the sum of a stream. Returns: seconds that it took."""
        began = self._clock.monotonic()
        stream = id_of(expected).hex()
        warning = TaskGroup("warnings")
        warning.spawn(self._warn(stream), name="warnings")
        try:
            async with asyncio.timeout(self._fatal_s):
                async for found in sums:
                    if found.ID == expected.ID:
                        check(expected, found)
                        return self._clock.monotonic() - began
        except TimeoutError:
            pass
        finally:
            await warning.close()
        raise SumLate(
            f"stream {stream}: no sum {self._fatal_s:g} s after its last chunk (do consumers run? see `gazctl shards list`)"
        )

    async def _warn(self, stream: str) -> None:
        waited_s = 0.0
        for at_s in WARN_S:
            await asyncio.sleep(at_s - waited_s)
            waited_s = at_s
            self._say(f"stream {stream}: no sum yet after {at_s:g} s")


def check(expected: Sum, found: Sum) -> None:
    """Raises: SumWrong: these two are not the same sum."""
    if (expected.SeqNo, expected.Value) != (found.SeqNo, found.Value):
        raise SumWrong(
            f"stream {id_of(expected).hex()}: sum {found.Value:#018x} of {found.SeqNo} chunks, where "
            f"{expected.Value:#018x} of {expected.SeqNo} was expected: the consumer does not count exactly once"
        )


def _by_id(partitions: ListSnapshot) -> Callable[[Chunk], Any]:
    return modulo_mapping(id_of, lambda: partitions)


async def run_chunker(
    client: AsyncClient,
    *,
    streams: int,
    chunks: int,
    workers: int,
    say: Callable[[str], None] = typer.echo,
) -> int:
    """Publish `streams` of each of `workers`, and check all sums.

    Returns: streams.
    Raises: SumWrong, SumLate, ChunkLate: of the first stream that was not right. GazetteError: as of `Chunker`.
    """
    done = 0

    async def work() -> None:
        nonlocal done
        async for _ in chunker.work(streams):
            done += 1

    async with Chunker(client, chunks=chunks, say=say) as chunker:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(workers):
                    tasks.create_task(work())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
    return done


def main(
    address: Annotated[
        str, typer.Option("--broker.address", envvar="BROKER_ADDRESS", help="URL of a broker.")
    ] = "http://localhost:8080",
    streams: Annotated[
        int, typer.Option("--streams", help="Of each worker; -1: without end.")
    ] = -1,
    chunks: Annotated[int, typer.Option("--chunks", help="Of each stream.")] = 100,
    workers: Annotated[int, typer.Option("--workers", help="Streams at a time.")] = 4,
) -> None:
    """Publish streams of chunks, and check that each sum comes, once, and is right."""

    async def work() -> int:
        async with AsyncClient(ClientConfig(address=address, retry_timeout_s=None)) as client:
            return await run_chunker(client, streams=streams, chunks=chunks, workers=workers)

    try:
        done = uvloop.run(work())
    except GazetteError as err:
        typer.echo(f"chunker: error: {err}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"chunker: ok streams={done} chunks={done * chunks}")


if __name__ == "__main__":
    typer.run(main)
