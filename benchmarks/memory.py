"""Memory of a broker with many journals, few of them in use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks import procfs
from benchmarks.bench import create, journal_spec
from benchmarks.content import SIZES
from benchmarks.load import closed_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.bench import Bench
    from benchmarks.figures import Figures

__all__ = ["measure_memory"]

_JOURNALS = 100
_ACTIVE = 10
# Small enough that each active journal rolls and persists several fragments.
_FRAGMENT_BYTES = 16 << 20
# A broker at rest looks every five seconds whether it has memory to give back. What it needs for a
# moment is not what an idle journal costs.
_GIVE_BACK_S = 12.0


async def measure_memory(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields resident memory. The broker must be a fresh one, that no other case has used."""
    pid = bench.broker.pid
    figures = {"broker_rss_mb_empty": procfs.rss_mb(pid)}
    names = [f"bench/part-{number:03}" for number in range(_JOURNALS)]
    specs = [journal_spec(name, "gzip", fragment_bytes=_FRAGMENT_BYTES) for name in names]
    await create(bench.client, *specs)
    await bench.settle()
    await asyncio.sleep(_GIVE_BACK_S)
    figures[f"broker_rss_mb_{_JOURNALS}_journals_idle"] = procfs.rss_mb(pid)

    # Every tenth, each with an append of a MiB under way all the time.
    active = names[:: _JOURNALS // _ACTIVE]
    payloads = bench.payloads.of(SIZES["1mib"])
    turns = iter(range(1 << 62))

    async def append() -> None:
        await bench.client.append(active[next(turns) % _ACTIVE], next(payloads))

    load = await closed_loop(
        append, bench.clock, concurrency=_ACTIVE, window_s=bench.scale.memory_s
    )
    await bench.settle()
    # The kernel's own high-water mark: no peak between two looks is missed.
    figures[f"broker_rss_mb_{_JOURNALS}_journals_{_ACTIVE}_active"] = procfs.peak_rss_mb(pid)
    fragments = await asyncio.gather(*(bench.client.fragments(name) for name in active))
    rolled = sum(found.is_persisted for of_journal in fragments for found in of_journal)
    figures[f"append_1mib_{_ACTIVE}_journals_gzip_mb_per_s"] = load.per_s * SIZES["1mib"] / 1e6
    figures["memory_case_fragments_persisted"] = float(rolled)
    yield f"{_JOURNALS} journals, {_ACTIVE} active", figures
