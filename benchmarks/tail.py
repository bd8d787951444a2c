"""Tail latency: from the begin of an append to the record in a blocking reader's hands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bench import create, delete, journal_spec
from benchmarks.content import SIZES
from benchmarks.figures import percentile
from benchmarks.load import closed_loop
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.bench import Bench
    from benchmarks.figures import Figures

__all__ = ["Record", "measure_tail"]

_RATE_PER_S = 200
_WARM_UP_RECORDS = 100
_RECORD_BYTES = SIZES["100b"]
_GRACE_S = 20.0
_PRODUCERS = 8


class Record:
    """Records of a fixed length that say which one they are.

    >>> Record.number(Record.make(42, b"x" * 100))
    42
    """

    _DIGITS = 10

    @classmethod
    def make(cls, number: int, content: bytes) -> bytes:
        """The record of a number: as long as `content`, and ends with a newline."""
        return b"%0*d" % (cls._DIGITS, number) + content[cls._DIGITS : -1] + b"\n"

    @classmethod
    def number(cls, record: bytes) -> int:
        """The number of a record. Raises: ValueError: it is none."""
        return int(record[: cls._DIGITS])


@dataclass(slots=True)
class _Times:
    """Seconds of a monotonic clock, by number of the record."""

    begun: dict[int, float] = field(default_factory=dict)
    acknowledged: dict[int, float] = field(default_factory=dict)
    received: dict[int, float] = field(default_factory=dict)

    def figures(self) -> Figures:
        """Without the first records, which warm up."""
        numbers = [n for n in self.received if n >= _WARM_UP_RECORDS]
        tail = [self.received[n] - self.begun[n] for n in numbers]
        answer = [self.acknowledged[n] - self.begun[n] for n in numbers]
        span_s = max(self.begun.values()) - self.begun[_WARM_UP_RECORDS]
        return {
            "tail_p50_ms": percentile(tail, 0.5) * 1e3,
            "tail_p99_ms": percentile(tail, 0.99) * 1e3,
            "tail_append_p50_ms": percentile(answer, 0.5) * 1e3,
            "tail_append_p99_ms": percentile(answer, 0.99) * 1e3,
            "tail_appends_per_s": (len(numbers) - 1) / span_s,
        }


async def measure_tail(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields the latencies at a fixed rate, producer and reader in one process."""
    journal = "bench/tail"
    await create(bench.client, journal_spec(journal, "gzip"))

    async def run() -> Figures:
        return await _run(bench, journal)

    yield f"tail at {_RATE_PER_S}/s", await bench.repeat(run)
    await delete(bench, journal)
    for codec in bench.scale.codecs:
        journal = f"bench/behind-{codec}"
        await create(bench.client, journal_spec(journal, codec))
        yield (
            f"tail behind a fast writer, {codec}",
            await bench.repeat(partial(_run_behind, bench, journal, codec)),
        )
        await delete(bench, journal)


async def _run_behind(bench: Bench, journal: str, codec: str) -> Figures:
    """One producer as fast as it gets, and a reader that follows it, in one process."""
    clock, payloads = bench.clock, bench.payloads.of(SIZES["1mib"])
    head = end = await bench.client.write_head(journal)
    received = head
    tasks = TaskGroup("behind")

    async def append() -> None:
        nonlocal end
        end = max(end, (await bench.client.append(journal, next(payloads))).end)

    async def follow(written: asyncio.Event) -> None:
        nonlocal received
        async with bench.client.tail(journal, head) as reader:
            async for piece in reader:
                received += len(piece)
                if written.is_set() and received >= end:
                    return

    try:
        begun, written = clock.monotonic(), asyncio.Event()
        following = tasks.spawn(follow(written), name="reader")
        await closed_loop(append, clock, concurrency=_PRODUCERS, window_s=bench.scale.window_s)
        written_s, lag = clock.monotonic() - begun, end - received
        written.set()
        tasks.spawn(append(), name="last")  # the reader may be at the end already
        async with asyncio.timeout(_GRACE_S):
            await following
    finally:
        await tasks.close()
    name = f"tail_behind_writer_{codec}"
    return {
        f"{name}_mb_per_s": (received - head) / (clock.monotonic() - begun) / 1e6,
        f"{name}_append_mb_per_s": (end - head) / written_s / 1e6,
        f"{name}_lag_mb": lag / 1e6,
    }


async def _run(bench: Bench, journal: str) -> Figures:
    count = _WARM_UP_RECORDS + round(_RATE_PER_S * bench.scale.tail_s)
    head = await bench.client.write_head(journal)
    times = _Times()
    tasks = TaskGroup("tail")
    try:
        reading = tasks.spawn(_receive(bench, journal, head, count, times), name="reader")
        sending = tasks.spawn(_send(bench, journal, count, times, tasks), name="producer")
        async with asyncio.timeout(count / _RATE_PER_S + _GRACE_S):
            await asyncio.gather(*await sending, reading)
    finally:
        await tasks.close()
    return times.figures()


async def _receive(bench: Bench, journal: str, head: int, count: int, times: _Times) -> None:
    clock = bench.clock
    rest = b""
    async with bench.client.tail(journal, head) as reader:
        async for piece in reader:
            now = clock.monotonic()
            rest += piece
            whole = len(rest) - len(rest) % _RECORD_BYTES
            for at in range(0, whole, _RECORD_BYTES):
                times.received[Record.number(rest[at : at + _RECORD_BYTES])] = now
            rest = rest[whole:]
            if len(times.received) == count:
                return


async def _send(
    bench: Bench, journal: str, count: int, times: _Times, tasks: TaskGroup
) -> list[asyncio.Task[None]]:
    """Begin an append every so often, whether or not earlier ones were answered."""
    clock = bench.clock
    payloads = bench.payloads.of(_RECORD_BYTES)
    appends: list[asyncio.Task[None]] = []

    async def append(number: int) -> None:
        times.begun[number] = clock.monotonic()
        await bench.client.append(journal, Record.make(number, next(payloads)))
        times.acknowledged[number] = clock.monotonic()

    begun = clock.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, begun + number / _RATE_PER_S - clock.monotonic()))
        appends.append(tasks.spawn(append(number), name=f"append {number}"))
    return appends
