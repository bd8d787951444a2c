"""The digester: sums and compressed forms that trail the commits of a spool, by a bounded lag."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from gazette_platform.broker import digester as module
from gazette_platform.broker.digester import Digester
from gazette_platform.fragment.spool import COMPRESS_BATCH_BYTES, Spool
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, LabelSet

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MIB = COMPRESS_BATCH_BYTES


class Bench:
    def __init__(self, directory, tasks, executor):
        self.spool = Spool(
            "a/journal", directory=directory, codec=CompressionCodec.GZIP, is_primary=True
        )
        self.tasks = tasks
        self.digester = Digester(self.spool, executor, tasks)
        self.content = b""

    def append(self, length):
        """Content that compresses, and differs everywhere."""
        added = (b"%d," % len(self.content)) * (length // 2 + 1)
        added = added[:length]
        self.content += added
        self.spool.commit(self.spool.write([added], self.spool.end), registers=LabelSet(), now=NOW)

    @property
    def sum(self):
        return hashlib.sha1(self.content, usedforsecurity=False).digest()


@pytest.fixture
async def bench(tmp_path):
    tasks = TaskGroup("test")
    with ThreadPoolExecutor(2) as executor:
        made = Bench(tmp_path, tasks, executor)
        yield made
        assert tasks.failure is None
        await tasks.close()
    made.spool.discard()


async def test_kick_waits_for_a_whole_batch(bench):
    bench.append(MIB - 1)
    bench.digester.kick()
    assert len(bench.tasks) == 0, "nothing is started for less"
    bench.append(1)
    bench.digester.kick()
    bench.digester.kick()
    assert len(bench.tasks) == 1, "one round at a time"
    await bench.tasks.join()
    assert bench.spool.digest_lag == 0
    assert bench.spool.compress_lag == 0


async def test_rounds_go_on_with_what_was_committed_meanwhile(bench):
    bench.append(MIB)
    bench.digester.kick()
    await asyncio.sleep(0)
    bench.append(2 * MIB)
    await bench.tasks.join()
    assert bench.spool.digest_lag < MIB
    assert bench.spool.compress_lag == 0


async def test_below_returns_at_once_if_the_lag_is_small(bench):
    bench.append(MIB)
    async with asyncio.timeout(0.0):
        await bench.digester.below(MIB + 1)


async def test_below_holds_appends_back_until_the_digest_caught_up(bench):
    bench.append(3 * MIB)
    await bench.digester.below(2 * MIB)
    assert bench.spool.digest_lag < 2 * MIB
    await bench.tasks.join()


async def test_digested_has_the_sum_of_all_that_is_committed(bench):
    bench.append(100)
    bench.spool.write([b"not committed"], bench.spool.end)
    fragment = await bench.digester.digested()
    assert (fragment.begin, fragment.end, fragment.sum) == (0, 100, bench.sum)
    bench.append(3 * MIB)
    fragment = await bench.digester.digested()
    assert (fragment.end, fragment.sum) == (100 + 3 * MIB, bench.sum)


async def test_digested_and_rounds_do_not_hash_twice(bench):
    for _ in range(5):
        bench.append(MIB + 1)
        bench.digester.kick()
        fragment = await bench.digester.digested()
        assert fragment.sum == bench.sum
    await bench.tasks.join()
    assert (await bench.digester.digested()).sum == bench.sum


async def test_complete_runs_the_rest(bench):
    bench.append(2 * MIB + 12345)
    bench.digester.kick()
    completed = await bench.digester.complete()
    assert completed.fragment.sum == bench.sum
    stored = os.pread(completed.compressed_fd, completed.compressed_length, 0)
    assert gzip.decompress(stored) == bench.content
    await bench.tasks.join()
    completed.close()


async def test_digested_after_complete_is_the_completed_fragment(bench):
    bench.append(70_000)
    completing = bench.tasks.spawn(bench.digester.complete())
    await asyncio.sleep(0)
    digested = await bench.digester.digested()
    completed = await completing
    assert digested == completed.fragment
    completed.close()


async def test_complete_of_an_empty_spool_is_nothing(bench):
    assert await bench.digester.complete() is None


@pytest.mark.parametrize("length", [1000, MIB])
async def test_s8_disk_errors_are_retried(bench, length, monkeypatch, caplog):
    monkeypatch.setattr(module, "DISK_RETRY_S", 0.0)
    bench.append(length)
    real, failures = os.preadv, [OSError(5, "I/O error"), OSError(5, "I/O error")]

    def preadv(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    assert (await bench.digester.digested()).sum == bench.sum
    assert "check the disk of --broker.spool-dir" in caplog.text


async def test_a_cancelled_wait_leaves_the_thread_its_lock(bench, monkeypatch):
    """Else another step would read the state that the thread is changing."""
    bench.append(MIB)
    entered, gate = threading.Event(), threading.Event()
    real = os.preadv

    def preadv(*arguments):
        entered.set()
        assert gate.wait(10)
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    first = bench.tasks.spawn(bench.digester.digested())
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, entered.wait, 10)
    first.cancel()
    await asyncio.sleep(0)
    second = bench.tasks.spawn(bench.digester.digested())
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    gate.set()
    fragment = await second
    assert fragment.sum == bench.sum
    assert first.cancelled()
