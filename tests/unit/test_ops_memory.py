"""Memory settings of servers."""

from __future__ import annotations

import subprocess
import sys

_FREED_BUFFERS_STAY = """
import os, resource
from gazette_platform.ops.process import settle_memory, tune_malloc

tune_malloc()

def faults(rounds=50, size=1 << 20):
    for _ in range(rounds):
        bytearray(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        bytearray(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

settle_memory()
import gc
assert gc.get_freeze_count() > 1000, gc.get_freeze_count()
print(faults())
"""


def test_buffers_of_content_are_not_faulted_in_again():
    run = subprocess.run(
        [sys.executable, "-c", _FREED_BUFFERS_STAY], check=True, capture_output=True, text=True
    )
    assert int(run.stdout) < 50  # 256 a MiB, were it mapped each time


# A process that reports how often it has looked at its memory.
_LOOKS = """
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
from gazette_platform.ops import process
from gazette_platform.ops.process import give_back_when_idle, resident_bytes, tune_malloc
from gazette_platform.testing.waiting import eventually

tune_malloc()
looks = 0

def look():
    global looks
    looks += 1
    return resident_bytes()

process.resident_bytes = look

async def looked(count):
    end = looks + count
    await eventually(lambda: looks >= end)

"""

_BURST = (
    _LOOKS
    + """
BARRIER = threading.Barrier(6)
KEPT = []  # a small one after each large one, as calls leave them, so that no heap shrinks by itself

def burst():
    large = []
    for _ in range(50):
        large.append(b"x" * (1 << 20))
        KEPT.append(bytes(2000))
    BARRIER.wait()

async def main(idle_cores_max):
    executor = ThreadPoolExecutor(1)
    giving = asyncio.create_task(
        give_back_when_idle(executor, look_s=0.05, idle_cores_max=idle_cores_max)
    )
    await looked(1)
    before = resident_bytes()
    threads = [threading.Thread(target=burst) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(resident_bytes() - before >> 20)
    if idle_cores_max:
        await eventually(lambda: resident_bytes() - before <= 8 << 20, timeout_s=30)
    else:
        await looked(40)
    print(resident_bytes() - before >> 20)
    assert not giving.done()
    giving.cancel()

asyncio.run(main(float(sys.argv[1])))
"""
)


def _burst(idle_cores_max: float) -> tuple[int, int]:
    """MB that a process has grown by right behind a burst of six threads, and later."""
    run = subprocess.run(
        [sys.executable, "-c", _BURST, str(idle_cores_max)],
        check=True,
        capture_output=True,
        text=True,
    )
    right_behind, later = run.stdout.split()
    return int(right_behind), int(later)


def test_memory_of_a_burst_is_given_back_when_idle():
    right_behind, later = _burst(100.0)
    assert right_behind > 200
    assert later <= 8


def test_memory_of_a_burst_is_kept_while_there_is_much_to_do():
    right_behind, later = _burst(0.0)
    assert right_behind > 200
    assert later > 200


_HELD = (
    _LOOKS
    + """
async def main():
    giving = asyncio.create_task(
        give_back_when_idle(ThreadPoolExecutor(1), look_s=0.05, idle_cores_max=100.0)
    )
    await looked(1)
    before = resident_bytes()
    held = [b"x" * (1 << 20) for _ in range(150)]
    behind = [bytes(100_000) for _ in range(3)]  # so that the heap does not shrink by itself
    await looked(10)  # in vain, as it is in use
    print(resident_bytes() - before >> 20)
    held.clear()
    await eventually(lambda: resident_bytes() - before <= 8 << 20, timeout_s=30)
    print(resident_bytes() - before >> 20)
    giving.cancel()

asyncio.run(main())
"""
)


def test_memory_that_was_in_use_for_long_is_given_back_once_it_is_free():
    run = subprocess.run([sys.executable, "-c", _HELD], check=True, capture_output=True, text=True)
    held, later = map(int, run.stdout.split())
    assert held > 100
    assert later <= 8


_GROWING = (
    _LOOKS
    + """
trims = 0

def trim(_):
    global trims
    trims += 1

def grow():
    global looks
    looks += 1
    return looks * (5 << 20)

process._libc = lambda _: trim
process.resident_bytes = grow

async def main():
    giving = asyncio.create_task(
        give_back_when_idle(ThreadPoolExecutor(1), look_s=0.05, idle_cores_max=100.0)
    )
    await looked(120)
    giving.cancel()
    print(trims)

asyncio.run(main())
"""
)


def test_a_process_that_grows_is_looked_through_ever_more_rarely():
    run = subprocess.run(
        [sys.executable, "-c", _GROWING], check=True, capture_output=True, text=True
    )
    assert 1 < int(run.stdout) < 20  # 40, were it done at each look
