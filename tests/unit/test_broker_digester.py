"""The digester: sums and compressed forms that trail the commits of a spool, by a bounded lag."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from gazette_platform.broker.spool import digester as module
from gazette_platform.broker.spool.digester import Digester
from gazette_platform.broker.spool.disk import COMPRESS_BATCH_BYTES
from gazette_platform.broker.spool.spool import LAG_BYTES_MAX, Spool
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, LabelSet
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import turns

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MIB = COMPRESS_BATCH_BYTES


class Bench:
    def __init__(self, directory, tasks, executor, compressors=None):
        self.spool = Spool(
            "a/journal", directory=directory, codec=CompressionCodec.GZIP, is_primary=True
        )
        self.tasks = tasks
        self.digester = Digester(
            self.spool, tasks, executor=executor, compressors=compressors or executor
        )
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
    assert len(bench.tasks) == 2, "one of the digest and one of the compression at a time"
    await bench.tasks.join()
    assert bench.spool.digest_lag == 0
    assert bench.spool.compress_lag == 0


async def test_rounds_go_on_with_what_was_committed_meanwhile(bench):
    bench.append(MIB)
    bench.digester.kick()
    await turns()
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


async def test_small_content_is_hashed_as_it_is_committed(bench):
    for length in (100, 5, 300):
        bench.append(length)
        bench.digester.take([bench.content[-length:]], length)
        assert bench.spool.digest_lag == 0
    fragment = bench.spool.digested_fragment()
    assert (fragment.end, fragment.sum) == (405, bench.sum)


async def test_content_is_not_hashed_out_of_turn(bench):
    bench.append(100)
    bench.append(7)
    bench.digester.take([bench.content[-7:]], 7)
    assert bench.spool.digest_lag == 107, "what precedes it is not hashed yet"
    assert (await bench.digester.digested()).sum == bench.sum


async def test_content_is_not_hashed_while_a_thread_hashes(bench, monkeypatch):
    entered, go_on, step = threading.Event(), threading.Event(), Spool.digest_step

    def held(spool, to):
        step(spool, to)
        entered.set()
        assert go_on.wait(10)

    monkeypatch.setattr(Spool, "digest_step", held)
    bench.append(MIB)
    digesting = asyncio.ensure_future(bench.digester.digested())  # noqa: TID251
    await asyncio.to_thread(entered.wait)
    bench.append(9)
    bench.digester.take([bench.content[-9:]], 9)
    assert bench.spool.digest_lag == 9, "the thread may still be at it"
    go_on.set()
    await digesting
    assert (await bench.digester.digested()).sum == bench.sum


async def test_digested_has_the_sum_of_all_that_is_committed(bench):
    bench.append(100)
    bench.spool.write([b"not committed"], bench.spool.end)
    fragment = await bench.digester.digested()
    assert (fragment.begin, fragment.end, fragment.sum) == (0, 100, bench.sum)
    bench.append(3 * MIB)
    fragment = await bench.digester.digested()
    assert (fragment.end, fragment.sum) == (100 + 3 * MIB, bench.sum)


async def test_digested_has_all_that_was_committed_when_it_was_asked(bench):
    """A slice at a time, however many that takes."""
    bench.append(9 * MIB)
    fragment = await bench.digester.digested()
    assert (fragment.end, fragment.sum) == (9 * MIB, bench.sum)


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
    form = completed.compressed
    if form is not None:  # what was compressed by then is kept
        stored = os.pread(form.file.fd, form.length, 0)
        assert gzip.decompress(stored) == bench.content[: form.content_length]
    await bench.tasks.join()
    completed.close()


async def test_digested_after_complete_is_the_completed_fragment(bench):
    bench.append(70_000)
    completing = bench.tasks.spawn(bench.digester.complete())
    await turns()
    digested = await bench.digester.digested()
    completed = await completing
    assert digested == completed.fragment
    completed.close()


async def test_complete_of_an_empty_spool_is_nothing(bench):
    assert await bench.digester.complete() is None


@pytest.mark.parametrize("length", [1000, MIB])
async def test_s8_broken_disk_is_reported_to_who_asks(bench, length, monkeypatch):
    """Rather than to wait for it: other replicas can serve, and appends are tried again."""
    bench.append(length)
    real, failures = os.preadv, [OSError(5, "I/O error")]

    def preadv(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(RpcFailed, match="check the disk") as caught:
        await bench.digester.digested()
    assert caught.value.code is Code.UNAVAILABLE
    assert (await bench.digester.digested()).sum == bench.sum


async def test_s8_a_disk_that_cannot_be_read_is_tried_again(bench, monkeypatch, caplog):
    monkeypatch.setattr(module, "DISK_RETRY_S", 0.01)
    real, is_broken = os.preadv, True

    def preadv(*arguments):
        if is_broken:
            raise OSError(5, "I/O error")
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    bench.append(3 * MIB)
    async with asyncio.timeout(5):
        await bench.digester.below(2 * MIB)  # appends are not held up by it
    assert bench.spool.digest_lag == 3 * MIB
    assert "check the disk of --broker.spool-dir" in caplog.text
    is_broken = False
    bench.digester.kick()
    await bench.tasks.join()
    assert bench.spool.digest_lag == 0


async def test_a_disk_too_full_to_compress_blocks_nothing_else(bench, monkeypatch, caplog):
    def pwrite(fd, data, at):
        raise OSError(errno.ENOSPC, "No space left on device")

    bench.append(2 * MIB + 5)
    monkeypatch.setattr(os, "pwrite", pwrite)
    bench.digester.kick()
    async with asyncio.timeout(5):
        await bench.tasks.join()
        assert "No space left on device" in caplog.text
        assert (await bench.digester.digested()).sum == bench.sum
        bench.digester.kick()
        assert len(bench.tasks) == 0, "it is not tried again and again"
        completed = await bench.digester.complete()
    assert completed.compressed is None
    completed.close()


async def test_content_goes_before_its_compressed_form(bench):
    """When the disk is full, a write gets the room of what can be made again."""
    bench.append(2 * MIB)
    bench.digester.kick()
    await bench.tasks.join()
    held = bench.spool._compressed.file.hold()
    assert await bench.digester.spare_disk()
    assert not await bench.digester.spare_disk(), "there is no more to give"
    held.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held.fd)
    bench.append(MIB)
    bench.digester.kick()
    await bench.tasks.join()
    assert (await bench.digester.complete()).compressed is None


async def test_compression_that_hangs_blocks_nothing_else(tmp_path):
    """Its threads are its own: a sum, and a slice of another journal's, pass by."""
    tasks = TaskGroup("test")
    gate = threading.Event()
    with ThreadPoolExecutor(1) as threads, ThreadPoolExecutor(1) as compressors:
        bench = Bench(tmp_path, tasks, threads, compressors)
        compressors.submit(gate.wait, 10)
        bench.append(5 * MIB)
        bench.digester.kick()
        async with asyncio.timeout(5):
            await bench.digester.below(2 * MIB)
            assert (await bench.digester.digested()).sum == bench.sum
        assert bench.spool.compress_lag == 5 * MIB
        completing = tasks.spawn(bench.digester.complete())
        gate.set()
        completed = await completing
        assert completed.fragment.sum == bench.sum
        completed.close()
    await tasks.close()


async def test_a_promoted_replica_takes_appends_before_its_spool_is_compressed(tmp_path):
    """It has compressed nothing, and may hold a whole fragment."""
    tasks = TaskGroup("test")
    gate = threading.Event()
    with ThreadPoolExecutor(1) as threads, ThreadPoolExecutor(1) as compressors:
        bench = Bench(tmp_path, tasks, threads, compressors)
        bench.spool.is_primary = False
        bench.append(2 * LAG_BYTES_MAX)
        await bench.digester.digested()
        bench.spool.is_primary = True
        compressors.submit(gate.wait, 10)
        bench.digester.kick()
        assert bench.spool.compress_lag == 2 * LAG_BYTES_MAX
        async with asyncio.timeout(5):
            await bench.digester.below()
        gate.set()
        await tasks.join()
        assert bench.spool.compress_lag == 0
    bench.spool.discard()
    await tasks.close()


async def test_journals_take_turns_at_being_compressed(tmp_path):
    """A whole spool, as a promoted replica has it, does not hold up another journal's batch."""
    tasks = TaskGroup("test")
    with ThreadPoolExecutor(1) as threads:
        large, small = Bench(tmp_path, tasks, threads), Bench(tmp_path, tasks, threads)
        large.append(32 * MIB)
        small.append(MIB)
        large.digester.kick()
        small.digester.kick()
        async with asyncio.timeout(5):
            while small.digester._compressing is not None:
                await asyncio.wait([small.digester._compressing])
        assert small.spool.compress_lag == 0
        assert large.spool.compress_lag >= 24 * MIB
        await tasks.join()
    for one in (large, small):
        one.spool.discard()
    await tasks.close()


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
    await turns()
    second = bench.tasks.spawn(bench.digester.digested())
    await turns()
    assert not first.done()
    assert not second.done()
    gate.set()
    fragment = await second
    assert fragment.sum == bench.sum
    assert first.cancelled()


@pytest.mark.parametrize("how", ["complete", "spare_disk"])
async def test_a_slice_of_compression_ends_before_its_form_is_used_or_dropped(
    bench, monkeypatch, how
):
    """Two threads would write to one form, or to a file that is gone."""
    begun, gate = threading.Event(), threading.Event()
    step, stop = bench.spool.compress_step, bench.spool.stop_compressing
    complete = bench.spool.complete
    events = []

    def compress_step(to):
        begun.set()
        gate.wait(10)
        step(to)
        events.append("compressed")

    monkeypatch.setattr(type(bench.spool), "compress_step", lambda _, to: compress_step(to))
    for name, call in (("complete", complete), ("stop_compressing", stop)):
        monkeypatch.setattr(
            type(bench.spool), name, lambda _, n=name, c=call: (events.append(n), c())[1]
        )
    bench.append(2 * MIB)
    bench.digester.kick()
    await asyncio.get_running_loop().run_in_executor(None, begun.wait, 10)
    ending = asyncio.ensure_future(getattr(bench.digester, how)())  # noqa: TID251
    await turns(20)
    assert events == []
    gate.set()
    await ending
    assert events[0] == "compressed"
    assert len(events) >= 2
    await bench.tasks.join()
    if how == "complete":
        assert events == ["compressed", "complete"], "it does not wait for more than a slice"
