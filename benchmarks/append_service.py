"""The append service: small records of one process, through its writer and by a thousand tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.bench import create, delete, journal_spec
from benchmarks.content import SIZES
from benchmarks.load import closed_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.bench import Bench
    from benchmarks.figures import Figures

__all__ = ["measure_append_service"]

_JOURNAL = "bench/append-service"
_TASKS = 1000
# Between two looks of the writer at whether it is to wait.
_DRAIN_EVERY = 1000


async def measure_append_service(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields messages of 100 B a second from one process to a journal of one replica.

    Each run ends when all are acknowledged. CPU is of the client: of this process, and what asks for
    the time and keeps latencies is part of it.
    """
    await create(bench.client, journal_spec(_JOURNAL, "raw"))
    await _writer(bench)
    yield "append service, its writer", await bench.repeat(lambda: _writer(bench))
    await _awaiting(bench)
    yield f"append service, {_TASKS} tasks", await bench.repeat(lambda: _awaiting(bench))
    await delete(bench, _JOURNAL)


async def _writer(bench: Bench) -> Figures:
    clock, payloads = bench.clock, bench.payloads.of(SIZES["100b"])
    count, begun, cpu = 0, clock.monotonic(), time.process_time()
    async with bench.client.append_service() as service:
        writer = service.writer(_JOURNAL)
        while clock.monotonic() - begun < bench.scale.window_s:
            for _ in range(_DRAIN_EVERY):
                writer.write(next(payloads))
            count += _DRAIN_EVERY
            await writer.drain()
        await writer.flush()
    elapsed_s = clock.monotonic() - begun
    return {
        "append_service_writer_msgs_per_s": count / elapsed_s,
        "append_service_writer_client_cpu_us_per_msg": (time.process_time() - cpu) / count * 1e6,
    }


async def _awaiting(bench: Bench) -> Figures:
    payloads = bench.payloads.of(SIZES["100b"])
    cpu = time.process_time()
    async with bench.client.append_service() as service:

        async def append() -> None:
            begin, end = await service.append(_JOURNAL, next(payloads))
            assert end - begin == SIZES["100b"], (begin, end)

        load = await closed_loop(
            append, bench.clock, concurrency=_TASKS, window_s=bench.scale.window_s
        )
    spent_s = time.process_time() - cpu
    return {
        "append_service_await_msgs_per_s": load.per_s,
        "append_service_await_p50_ms": load.latency_ms(0.5),
        "append_service_await_p99_ms": load.latency_ms(0.99),
        "append_service_await_client_cpu_us_per_msg": spent_s / len(load.latencies_s) * 1e6,
    }
