"""Fragments that are fetched ahead, when the client is closed meanwhile."""

import asyncio
import hashlib
import os

import pytest

from gazette_platform.client.read_ahead import FragmentStream, ReadAhead
from gazette_platform.errors import TransportError
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, Fragment
from gazette_platform.testing.waiting import eventually, pass_time

CONTENT = b"0123456789abcdef" * (2 << 20)
FRAGMENT = Fragment(
    journal="a/journal",
    begin=0,
    end=len(CONTENT),
    sum=hashlib.sha1(CONTENT).digest(),
    codec=CompressionCodec.NONE,
)


def open_files(path):
    found = 0
    for each in os.scandir("/proc/self/fd"):
        try:
            found += os.path.realpath(each.path) == str(path)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("pause_s", [0.0, 0.005, 0.02])
async def test_no_file_stays_open_whose_fetch_waited_for_a_thread(tmp_path, pause_s):
    path = tmp_path / "stored"
    path.write_bytes(CONTENT)
    tasks = TaskGroup("test")
    pool = ReadAhead(tasks)
    pool.threads = 1  # so that all others wait for it
    streams = [
        FragmentStream(pool, FRAGMENT, "stored", path, offset=0, is_first=True) for _ in range(8)
    ]
    await eventually(lambda: open_files(path) > 1)
    await pass_time(pause_s)
    pool.close()
    await tasks.close()
    await eventually(lambda: open_files(path) == 0)
    assert pool.held_bytes == 0
    for stream in streams:
        with pytest.raises(TransportError, match="closed"):
            await stream.next()


async def test_nothing_waits_for_a_fragment_that_is_opened_after_the_close(tmp_path):
    tasks = TaskGroup("test")
    pool = ReadAhead(tasks)
    pool.close()
    with pytest.raises(TransportError, match="closed"):
        FragmentStream(pool, FRAGMENT, "stored", tmp_path / "none", offset=0, is_first=True)
    await tasks.close()


async def test_caller_that_waits_for_an_ended_fetch_gets_its_error():
    has_begun = asyncio.Event()

    async def stored():
        yield CONTENT[:1000]
        has_begun.set()
        await asyncio.Event().wait()

    tasks = TaskGroup("test")
    pool = ReadAhead(tasks)
    stream = FragmentStream(pool, FRAGMENT, "stored", stored(), offset=0, is_first=True)
    assert await stream.next() == CONTENT[:1000]
    await has_begun.wait()
    await tasks.close()
    async with asyncio.timeout(60):
        with pytest.raises(TransportError, match="closed"):
            await stream.next()
    assert pool.held_bytes == 0
    pool.close()
