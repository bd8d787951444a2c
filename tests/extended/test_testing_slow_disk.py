"""A disk that is slow for one process, and for as long as it is meant to be."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from pathlib import Path

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.testing.slow_disk import SlowDisk, slow_disk_problem

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
    async with asyncio.timeout(60):
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


async def test_process_goes_on_as_before_once_its_disk_is_fast(tmp_path):
    async with writer(tmp_path) as process:
        for _ in range(3):
            async with SlowDisk(process.pid, data_s=0.05, sync_s=0.2):
                await turns(process, 1)
            assert tracer_of(process) == 0
            found = await turns(process, 20)
            for spans in found.values():
                assert min(write_s for write_s, _, _ in spans) < 0.05
                assert min(sync_s for _, sync_s, _ in spans) < 0.2
        assert process.returncode is None


async def test_cancelled_fault_lets_go_of_the_process(tmp_path):
    async with writer(tmp_path) as process:
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(1.0),
                SlowDisk(process.pid, data_s=0.05, sync_s=0.2),
            ):
                await asyncio.Event().wait()
        assert tracer_of(process) == 0
        await turns(process, 5)


async def test_process_may_end_while_its_disk_is_slow(tmp_path):
    async with (
        asyncio.timeout(20),
        writer(tmp_path) as process,
        SlowDisk(process.pid, data_s=0.05, sync_s=0.2),
    ):
        process.kill()
        await process.wait()


async def test_without_strace_it_says_what_to_install(tmp_path, monkeypatch):
    assert await slow_disk_problem() == ""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SetupError, match="apt-get install strace"):
        await slow_disk_problem()


async def test_process_that_may_not_be_traced_is_named(tmp_path):
    """It has a tracer already, and there is never a second one."""
    async with writer(tmp_path) as process, SlowDisk(process.pid, data_s=0, sync_s=0):
        with pytest.raises(SetupError, match=f"strace cannot slow process {process.pid}: "):
            async with SlowDisk(process.pid, data_s=0, sync_s=0):
                pass
        assert tracer_of(process)
