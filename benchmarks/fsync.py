"""What it costs to have content on disk before it is acknowledged: appends in each mode of --broker.fsync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.bench import Bench, create, delete, journal_spec, serving
from benchmarks.content import SIZES
from benchmarks.load import closed_loop
from gazette_platform.broker.config import FsyncMode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from benchmarks.bench import Scale
    from benchmarks.content import Payloads
    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["measure_fsync"]

_JOURNAL = "bench/fsync"
_CASES = (("100b", 1), ("100b", 16), ("1mib", 8))
_WARM_UP_S = 0.2


async def measure_fsync(
    folder: Path, *, etcd: str, payloads: Payloads, clock: Clock, scale: Scale
) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields each mode's label and figures, with their ratios to those of `never`."""
    of_never: Figures = {}
    for mode in (FsyncMode.NEVER, FsyncMode.INTERVAL, FsyncMode.COMMIT):
        name = mode.value
        flags = (f"--broker.fsync={name}",)
        prefix = f"/bench/fsync-{name}"
        async with serving(folder / name, etcd=etcd, prefix=prefix, flags=flags) as servers:
            broker, client = servers
            bench = Bench(client, broker, payloads, clock, scale)
            await create(client, journal_spec(_JOURNAL, "raw"))
            figures: Figures = {}
            for size, concurrency in _CASES:
                figures |= await _measure(
                    bench, f"fsync_{name}_{size}_c{concurrency}", size, concurrency
                )
            await delete(bench, _JOURNAL)
        if mode is FsyncMode.NEVER:
            of_never = figures
        else:
            figures |= {
                f"{figure}_ratio": value / of_never[figure.replace(name, FsyncMode.NEVER.value)]
                for figure, value in figures.items()
                if figure.endswith("per_s")
            }
        yield f"appends with fsync {name}", figures


async def _measure(bench: Bench, figure: str, size: str, concurrency: int) -> Figures:
    payloads = bench.payloads.of(SIZES[size])

    async def append() -> None:
        await bench.client.append(_JOURNAL, next(payloads))

    async def run() -> Figures:
        load = await closed_loop(
            append, bench.clock, concurrency=concurrency, window_s=bench.scale.window_s
        )
        mb = SIZES[size] / 1e6
        rate = {f"{figure}_per_s": load.per_s}
        if size != "100b":
            rate = {f"{figure}_mb_per_s": load.per_s * mb}
        return rate | {
            f"{figure}_p50_ms": load.latency_ms(0.5),
            f"{figure}_p99_ms": load.latency_ms(0.99),
        }

    await closed_loop(append, bench.clock, concurrency=concurrency, window_s=_WARM_UP_S)
    return await bench.repeat(run)
