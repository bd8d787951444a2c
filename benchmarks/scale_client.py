"""One client process of `benchmarks.scale`: appends in a closed loop, and reports how long each append took."""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import cycle

import uvloop

from benchmarks.load import together
from gazette_platform.client import AsyncClient, ClientConfig

__all__ = ["Order", "Report", "bucket_of", "latency_ms"]

# Latencies are counted in buckets, each 1 % longer than the one before it, so that reports of many
# processes add up.
_BUCKETS_PER_E = 100
_LEAST_S = 1e-6
_WARM_UP_S = 0.5
_WARM_UP_APPENDS = 200


@dataclass(frozen=True, slots=True)
class Order:
    """What a client process is to do."""

    address: str
    journals: list[str]
    size: int
    """Of each append, in bytes."""
    concurrency: int
    """Appends under way at a time."""
    window_s: float
    bytes_max: int
    """Appends end after so many bytes, if that is before the window ends."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a client process got done."""

    count: int
    elapsed_s: float
    cpu_s: float
    latencies: dict[int, int]
    """Appends in each bucket."""


def bucket_of(latency_s: float) -> int:
    """Return the bucket that a latency is counted in."""
    return round(math.log(max(latency_s, _LEAST_S) / _LEAST_S) * _BUCKETS_PER_E)


def latency_ms(latencies: Counter[int], share: float) -> float:
    """Return the percentile of latencies in buckets, to 1 %."""
    wanted, seen = math.ceil(latencies.total() * share), 0
    for bucket in sorted(latencies):
        seen += latencies[bucket]
        if seen >= wanted:
            return _LEAST_S * math.exp(bucket / _BUCKETS_PER_E) * 1e3
    raise ValueError("there are no latencies")


async def _measure(order: Order) -> Report:
    rng = random.Random(os.getpid())
    # Text that compresses about as records do, different from one append to the next.
    pieces = cycle(
        [rng.randbytes(-(-order.size // 2)).hex().encode()[: order.size] for _ in range(64)]
    )
    journals = cycle(order.journals)
    async with AsyncClient(ClientConfig(address=order.address)) as client:

        async def append_for(window_s: float, count_max: int) -> list[float]:
            """Append until the time or the appends are over. Returns: how long each took, in seconds."""
            latencies, deadline = list[float](), time.perf_counter() + window_s
            begun = 0

            async def worker() -> None:
                nonlocal begun
                while (at := time.perf_counter()) < deadline and begun < count_max:
                    begun += 1
                    await client.append(next(journals), next(pieces))
                    latencies.append(time.perf_counter() - at)

            await together(worker, order.concurrency)
            return latencies

        await append_for(_WARM_UP_S, _WARM_UP_APPENDS)
        print("ready", flush=True)
        sys.stdin.readline()
        begun_at, cpu = time.perf_counter(), time.process_time()
        latencies = await append_for(order.window_s, max(1, order.bytes_max // order.size))
        return Report(
            count=len(latencies),
            elapsed_s=time.perf_counter() - begun_at,
            cpu_s=time.process_time() - cpu,
            latencies=dict(Counter(map(bucket_of, latencies))),
        )


def main() -> int:
    """Take an order from standard input, and print the report. Returns: the exit code."""
    order = Order(**json.loads(sys.stdin.readline()))
    print(json.dumps(asdict(uvloop.run(_measure(order)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
