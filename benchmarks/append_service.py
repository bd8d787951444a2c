"""The append service: records of one process, through its writer and by tasks that wait for each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from benchmarks.acknowledged import check_content, in_order
from benchmarks.bench import create, delete, journal_spec
from benchmarks.content import SIZES
from benchmarks.load import closed_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.bench import Bench
    from benchmarks.figures import Figures
    from benchmarks.load import Load

__all__ = ["Spent", "measure_append_service", "through_service"]

_JOURNAL = "bench/append-service"
_TASKS = 1000
# Between two looks of the writer at whether it is to wait.
_DRAIN_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Spent:
    """A load, and the CPU seconds that it took."""

    load: Load
    broker_s: float
    """Until the broker rested: hashing, compressing and persisting trail the appends."""
    client_s: float
    """Of this process, with what asks for the time and keeps latencies."""


async def measure_append_service(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields messages of 100 B a second from one process to a journal of one replica.

    Each run ends when all are acknowledged. Then the journal is read: it has each of them once, in
    order, and where its caller expects it.
    """
    await create(bench.client, journal_spec(_JOURNAL, "raw"))
    await _writer(bench)
    yield "append service, its writer", await bench.repeat(lambda: _writer(bench))
    await _awaiting(bench)
    yield f"append service, {_TASKS} tasks", await bench.repeat(lambda: _awaiting(bench))
    await delete(bench, _JOURNAL)


async def _writer(bench: Bench) -> Figures:
    clock, size = bench.clock, SIZES["100b"]
    head = await bench.client.write_head(_JOURNAL)
    payloads = bench.payloads.of(size)
    with bench.cpu() as used_s:
        count, begun, cpu = 0, clock.monotonic(), time.process_time()
        async with bench.client.append_service() as service:
            writer = service.writer(_JOURNAL)
            while clock.monotonic() - begun < bench.scale.window_s:
                for _ in range(_DRAIN_EVERY):
                    writer.write(next(payloads))
                count += _DRAIN_EVERY
                await writer.drain()
            await writer.flush()
        elapsed_s, client_s = clock.monotonic() - begun, time.process_time() - cpu
        await bench.settle()
        broker_s = used_s()
    written = islice(bench.payloads.of(size), count)
    await check_content(bench.client, _JOURNAL, head, written, piece_bytes=size)
    return {
        "append_service_writer_msgs_per_s": count / elapsed_s,
        "append_service_writer_client_cpu_us_per_msg": client_s / count * 1e6,
        "append_service_writer_broker_cpu_us_per_msg": broker_s / count * 1e6,
    }


async def _awaiting(bench: Bench) -> Figures:
    window_s = bench.scale.window_s
    spent = await through_service(
        bench, _JOURNAL, size=SIZES["100b"], concurrency=_TASKS, window_s=window_s
    )
    load, count = spent.load, len(spent.load.latencies_s)
    return {
        "append_service_await_msgs_per_s": load.per_s,
        "append_service_await_p50_ms": load.latency_ms(0.5),
        "append_service_await_p99_ms": load.latency_ms(0.99),
        "append_service_await_client_cpu_us_per_msg": spent.client_s / count * 1e6,
        "append_service_await_broker_cpu_us_per_msg": spent.broker_s / count * 1e6,
    }


async def through_service(
    bench: Bench, journal: str, *, size: int, concurrency: int, window_s: float
) -> Spent:
    """Append from so many tasks that share an append service, and check that nothing is missing.

    Args:
        size: bytes of each append.
        window_s: seconds of load.

    Raises: DataError: the journal has other bytes than were acknowledged, or elsewhere.
    """
    payloads = bench.payloads.of(size)
    head = await bench.client.write_head(journal)
    spans: list[tuple[int, int]] = []
    contents: list[bytes] = []
    with bench.cpu() as used_s:
        cpu = time.process_time()
        async with bench.client.append_service() as service:

            async def append() -> None:
                content = next(payloads)
                spans.append(await service.append(journal, content))
                contents.append(content)

            load = await closed_loop(
                append, bench.clock, concurrency=concurrency, window_s=window_s
            )
        client_s = time.process_time() - cpu
        await bench.settle()
        broker_s = used_s()
    pieces = in_order(head, spans, contents)
    await check_content(bench.client, journal, head, pieces, piece_bytes=size)
    return Spent(load, broker_s, client_s)
