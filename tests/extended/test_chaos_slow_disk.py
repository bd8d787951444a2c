"""A disk that is slow for one process, and for as long as it is meant to be."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from gazette_platform.testing.waiting import patient
from tests.chaos.disks import SlowDisk

# Says of each turn, in two threads, when it began, and how long it took to write, to sync, and to
# use a pipe.
WRITER = """
import os, sys, threading, time
def turns(number):
    fd = os.open(f"{sys.argv[1]}-{number}", os.O_CREAT | os.O_RDWR)
    pipe = os.pipe()
    while True:
        times = [time.monotonic()]
        for call in (lambda: os.pwrite(fd, b"x", 0), lambda: os.fsync(fd),
                     lambda: (os.write(pipe[1], b"x"), os.read(pipe[0], 1))):
            call()
            times.append(time.monotonic())
        spans = [b - a for a, b in zip(times, times[1:])]
        os.write(1, (" ".join(map(repr, [number, times[0], *spans])) + "\\n").encode())
        time.sleep(0.005)
threading.Thread(target=turns, args=(1,), daemon=True).start()
turns(0)
"""


@contextlib.asynccontextmanager
async def writer(tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, str(tmp_path / "file")), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def turns(process, count):
    """Seconds of writes, syncs and pipes, by thread, of the turns that they begin from now on.

    Of each the first is left out: what is being attached, or let go, takes a moment.
    """
    now = time.monotonic()
    found = {0: [], 1: []}
    async with asyncio.timeout(patient(60)):
        while min(map(len, found.values())) <= count:
            number, began, *spans = map(float, (await process.stdout.readline()).split())
            if began >= now:
                found[int(number)].append(spans)
    return {number: spans[1:] for number, spans in found.items()}


def tracer_of(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("TracerPid:")[1].split()[0])


async def test_calls_to_files_take_longer_in_every_thread_and_others_do_not(tmp_path):
    async with writer(tmp_path) as process:
        await turns(process, 1)
        async with SlowDisk(process.pid, data_s=0.03, sync_s=0.1):
            assert tracer_of(process)
            found = await turns(process, 5)
        for spans in found.values():
            for write_s, sync_s, _ in spans:
                assert write_s >= 0.03
                assert sync_s >= 0.1
            assert min(pipe_s for _, _, pipe_s in spans) < 0.03
