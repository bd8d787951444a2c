"""How a long-lived server of large messages treats memory.

Freed buffers are kept for the next ones, since content comes in the same sizes again: mapped and
unmapped for each message they are a tenth of an append's cost. So after a burst a broker stays as large
as the burst made it, which looks like a leak though nearly all of that memory is free. Once the broker
has little to do, it gives the memory back.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.ops.threads import run_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

__all__ = ["give_back_when_idle", "resident_bytes", "settle_memory", "tune_malloc"]

# Parameters of glibc's mallopt, and what we set them to. By default each content message is mapped,
# faulted in page by page and unmapped again.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_TRIM_BYTES = 128 << 20
_MMAP_BYTES = 32 << 20
# By default threads get up to eight heaps a core. What one has freed serves no other, and
# malloc_trim leaves the top of all but the first alone: after a burst tens of MB stay with each.
# A second one makes reads of stored content a tenth faster, but keeps 80 MB after hostile input.
_ARENAS = 1

# Calls make little garbage in cycles, and what lives long grows with the journals: look for cycles
# a tenth as often as CPython does, and through everything a hundredth as often.
_GC_THRESHOLDS = (10_000, 20, 100)

# Giving back takes half a millisecond for each MB, and no other thread can allocate meanwhile. So it is
# not done under load, nor for small amounts, and rarely for memory that turned out to be in use. The
# calls to etcd for a hundred journals that come at once leave about as much as is worth it.
_LOOK_S = 5.0
_IDLE_CORES_MAX = 0.25
_GROWTH_BYTES_MIN = 4 << 20
_VAIN_LOOKS_MAX = 24


def tune_malloc() -> None:
    """Call once, before any thread is started."""
    mallopt = _libc("mallopt")
    if mallopt is not None:  # another libc has limits of its own
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def settle_memory() -> None:
    """Call once, when all that lives as long as the process was built.

    Modules and specs are kept from the garbage collector, because a full pass over them would show
    as latency. What was needed only to import them goes back to the system.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    trim = _libc("malloc_trim")
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """What this process has of the machine's memory."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def give_back_when_idle(
    executor: Executor, *, look_s: float = _LOOK_S, idle_cores_max: float = _IDLE_CORES_MAX
) -> None:
    """Give free memory back to the system, whenever this process has grown and has little to do.

    Args:
        look_s: seconds between two looks.
        idle_cores_max: cores that it uses at most while it counts as idle.

    Returns: at once where the C library cannot do it; else never.
    Cancellation: safe.
    """
    trim = _libc("malloc_trim")
    if trim is None:
        return
    loop = asyncio.get_running_loop()
    least, pause_s = resident_bytes(), look_s
    while True:
        began, used_s = loop.time(), _cpu_s()
        await asyncio.sleep(pause_s)
        is_idle = _cpu_s() - used_s < idle_cores_max * (loop.time() - began)
        grown = resident_bytes()
        if is_idle and grown - least >= _GROWTH_BYTES_MIN:
            await run_in(executor, trim, 0)
            # What is in use may be freed later, and nothing shows that: so look again, but ever
            # more rarely.
            is_vain = grown - resident_bytes() < _GROWTH_BYTES_MIN // 2
            pause_s = min(pause_s * 2, _VAIN_LOOKS_MAX * look_s) if is_vain else look_s
        least = min(least, resident_bytes())


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _libc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None)
