"""Appends: throughput, latency and the broker's CPU, by size, concurrency and codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.bench import create, delete, journal_spec
from benchmarks.content import SIZES
from benchmarks.load import closed_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.bench import Bench, Scale
    from benchmarks.figures import Figures

__all__ = ["AppendCase", "append_cases", "measure_appends", "measure_writer"]

_WARM_UP_S = 0.2
_WRITER_BATCH = 1000


@dataclass(frozen=True, slots=True)
class AppendCase:
    """Appends of one size to one journal, so many at a time."""

    codec: str
    size: str
    concurrency: int

    @property
    def label(self) -> str:
        """For people."""
        return f"append {self.size} x {self.concurrency}, {self.codec}"

    @property
    def figure(self) -> str:
        """What names of its figures begin with. Of 100 B, raw is the usual case."""
        base = f"append_{self.size}_c{self.concurrency}"
        return base if (self.size, self.codec) == ("100b", "raw") else f"{base}_{self.codec}"


def append_cases(scale: Scale) -> list[AppendCase]:
    """All cases, in the order in which they run."""
    return [
        AppendCase(codec, size, concurrency)
        for codec in scale.codecs
        for size, concurrencies in scale.appends.items()
        for concurrency in concurrencies
    ]


async def measure_appends(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields each case's label and figures. One journal a codec."""
    cases = append_cases(bench.scale)
    for codec in bench.scale.codecs:
        journal = f"bench/append-{codec}"
        await create(bench.client, journal_spec(journal, codec))
        for case in cases:
            if case.codec == codec:
                yield case.label, await _measure(bench, case, journal)
        await delete(bench, journal)


async def _measure(bench: Bench, case: AppendCase, journal: str) -> Figures:
    payloads = bench.payloads.of(SIZES[case.size])

    async def append() -> None:
        await bench.client.append(journal, next(payloads))

    async def run() -> Figures:
        with bench.cpu() as used_s:
            load = await closed_loop(
                append, bench.clock, concurrency=case.concurrency, window_s=bench.scale.window_s
            )
            # Hashing, compressing and persisting trail the appends, and are part of their cost.
            await bench.settle()
            return _figures(case, load.per_s, used_s() / len(load.latencies_s)) | {
                f"{case.figure}_p50_ms": load.latency_ms(0.5),
                f"{case.figure}_p99_ms": load.latency_ms(0.99),
            }

    await closed_loop(append, bench.clock, concurrency=case.concurrency, window_s=_WARM_UP_S)
    return await bench.repeat(run)


def _figures(case: AppendCase, per_s: float, cpu_s_per_append: float) -> Figures:
    """Throughput and CPU, in the units that suit the size."""
    mb = SIZES[case.size] / 1e6
    is_small = case.size == "100b"
    figures = {
        f"{case.figure}_{'per_s' if is_small else 'mb_per_s'}": per_s if is_small else per_s * mb,
        f"broker_cpu_us_per_{case.figure}": cpu_s_per_append * 1e6,
    }
    if (case.size, case.concurrency) == ("1mib", 8):
        figures[f"broker_cpu_s_per_gb_append_{case.codec}"] = cpu_s_per_append / mb * 1e3
    return figures


async def measure_writer(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields the throughput of one producer whose small records an append writer gathers."""
    journal = "bench/writer"
    await create(bench.client, journal_spec(journal, "raw"))
    payloads = bench.payloads.of(SIZES["100b"])

    async def run() -> Figures:
        clock = bench.clock
        begun = clock.monotonic()
        count = 0
        async with bench.client.append_writer(journal) as writer:
            while clock.monotonic() - begun < bench.scale.window_s:
                for _ in range(_WRITER_BATCH):
                    _ = await writer.write(next(payloads))
                count += _WRITER_BATCH
        return {"append_writer_100b_per_s": count / (clock.monotonic() - begun)}

    await run()
    yield "append writer, 100 B records", await bench.repeat(run)
    await delete(bench, journal)
