"""What appends wait while much content is summed, compressed and persisted beside them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.bench import create, delete, journal_spec
from benchmarks.content import CONTENT_BYTES, SIZES
from benchmarks.figures import percentile
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.bench import Bench
    from benchmarks.figures import Figures

__all__ = ["measure_persist"]

_JOURNALS = 3
_RATE_PER_S = 200
_GRACE_S = 20.0


async def measure_persist(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields the latency of small appends while whole fragments are compressed and persisted.

    Each journal takes a fragment's worth of content in one append. Then small appends begin at a
    fixed rate, to all of them in turn and whether or not earlier ones were answered: the first of
    each closes its fragment.
    """
    journals = [f"bench/persist-{number}" for number in range(_JOURNALS)]
    specs = [journal_spec(name, "gzip", fragment_bytes=CONTENT_BYTES) for name in journals]
    await create(bench.client, *specs)

    async def run() -> Figures:
        return await _run(bench, journals)

    yield "append while fragments are persisted", await bench.repeat(run)
    await delete(bench, *journals)


async def _run(bench: Bench, journals: list[str]) -> Figures:
    clock, client = bench.clock, bench.client
    payloads = bench.payloads.of(SIZES["100b"])
    latencies: list[float] = []
    tasks = TaskGroup("persist")
    content = bench.payloads.content

    async def append(journal: str, due: float) -> None:
        await client.append(journal, next(payloads))
        latencies.append(clock.monotonic() - due)

    try:
        filling = [tasks.spawn(client.append(name, content), name=name) for name in journals]
        async with asyncio.timeout(_GRACE_S):
            await asyncio.gather(*filling)
        count = round(_RATE_PER_S * bench.scale.window_s)
        begun = clock.monotonic()
        for number in range(count):
            due = begun + number / _RATE_PER_S
            await asyncio.sleep(max(0.0, due - clock.monotonic()))
            tasks.spawn(append(journals[number % len(journals)], due), name=f"append {number}")
        async with asyncio.timeout(_GRACE_S):
            await tasks.join()
    finally:
        await tasks.close()
    return {
        "append_during_persist_p50_ms": percentile(latencies, 0.5) * 1e3,
        "append_during_persist_p99_ms": percentile(latencies, 0.99) * 1e3,
    }
