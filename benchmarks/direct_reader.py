"""A process that reads a span of a journal straight from its store, so that its memory can be measured.

``python -m benchmarks.direct_reader ADDRESS FILE_ROOT JOURNAL BEGIN END`` prints what it took, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import uvloop

from benchmarks import procfs
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.ops.clock import SystemClock


async def _read(address: str, file_root: str, journal: str, begin: int, end: int) -> None:
    clock, count = SystemClock(), 0
    async with AsyncClient(ClientConfig(address=address, file_root=Path(file_root))) as client:
        await client.list(f"name={journal}")  # connect
        begun, cpu_s = clock.monotonic(), procfs.cpu_s(os.getpid())
        async with client.read(journal, begin, end_offset=end, direct=True) as reader:
            async for piece in reader:
                count += len(piece)
        elapsed_s = clock.monotonic() - begun
    if count != end - begin:
        raise SystemExit(f"{journal}: read {count} bytes, expected {end - begin}")
    found = {
        "mb_per_s": count / elapsed_s / 1e6,
        "cpu_s_per_gb": (procfs.cpu_s(os.getpid()) - cpu_s) / count * 1e9,
        "rss_mb": procfs.peak_rss_mb(os.getpid()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    uvloop.run(_read(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])))
