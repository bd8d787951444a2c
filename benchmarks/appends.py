"""Appends: throughput, latency and CPU, by size, concurrency and codec."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.bench import create, delete, journal_spec
from benchmarks.content import SIZES
from benchmarks.load import closed_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from benchmarks.bench import Bench, Scale
    from benchmarks.figures import Figures
    from benchmarks.load import Load

__all__ = [
    "WARM_UP_S",
    "AppendCase",
    "append_cases",
    "append_figures",
    "measure_appends",
    "measure_case",
    "measure_writer",
]

WARM_UP_S = 0.2
"""Seconds of load before a case's runs."""
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


async def measure_appends(
    bench: Bench, *, but: Collection[AppendCase] = ()
) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields each case's label and figures. One journal a codec.

    Args:
        but: cases that this run measures elsewhere.
    """
    cases = [case for case in append_cases(bench.scale) if case not in but]
    for codec in bench.scale.codecs:
        journal = f"bench/append-{codec}"
        await create(bench.client, journal_spec(journal, codec))
        for case in cases:
            if case.codec == codec:
                yield case.label, await measure_case(bench, case, journal)
        await delete(bench, journal)


async def measure_case(bench: Bench, case: AppendCase, journal: str) -> Figures:
    """The figures of one case, whose appends are an RPC each."""
    payloads = bench.payloads.of(SIZES[case.size])

    async def append() -> None:
        await bench.client.append(journal, next(payloads))

    async def run() -> Figures:
        with bench.cpu() as used_s:
            cpu = time.process_time()
            load = await closed_loop(
                append, bench.clock, concurrency=case.concurrency, window_s=bench.scale.window_s
            )
            client_s = time.process_time() - cpu
            # Hashing, compressing and persisting trail the appends, and are part of their cost.
            await bench.settle()
            return append_figures(case, case.figure, load, broker_s=used_s(), client_s=client_s)

    await closed_loop(append, bench.clock, concurrency=case.concurrency, window_s=WARM_UP_S)
    return await bench.repeat(run)


def append_figures(
    case: AppendCase, name: str, load: Load, *, broker_s: float, client_s: float
) -> Figures:
    """Throughput, latency and CPU, in the units that suit the size.

    Args:
        name: what names of the figures begin with.
        broker_s: CPU seconds of the broker for all of them.
        client_s: CPU seconds of the client.
    """
    mb, count, is_small = SIZES[case.size] / 1e6, len(load.latencies_s), case.size == "100b"
    gb = count * mb / 1e3
    rate = {f"{name}_per_s": load.per_s} if is_small else {f"{name}_mb_per_s": load.per_s * mb}
    figures = rate | {
        f"{name}_p50_ms": load.latency_ms(0.5),
        f"{name}_p99_ms": load.latency_ms(0.99),
        f"broker_cpu_us_per_{name}": broker_s / count * 1e6,
        f"broker_cpu_s_per_gb_{name}": broker_s / gb,
        f"client_cpu_s_per_gb_{name}": client_s / gb,
    }
    if (name, case.size, case.concurrency) == (case.figure, "1mib", 8):
        figures[f"broker_cpu_s_per_gb_append_{case.codec}"] = broker_s / gb
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
