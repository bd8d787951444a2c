"""The appender: appends whose content comes in pieces, and what is kept of content."""

from __future__ import annotations

import asyncio
import hashlib
import os
import weakref

import pytest
from appender_bench import Stream, running_bench, span, spec

from gazette_platform.broker.spool import digester, journal_spool
from gazette_platform.protocol import (
    JournalFlag,
    Status,
)
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import eventually


@pytest.fixture
async def bench(tmp_path):
    async with running_bench(tmp_path) as made:
        yield made


# ---------------------------------------------------------------------------------------- streams
async def test_a_streamed_append_owns_the_journal(bench):
    stream = Stream()
    streamed = bench.submit(b"begin ", stream=stream)
    behind = bench.submit(b"behind")
    stream.pieces.put_nowait(b"middle ")
    await eventually(lambda: stream.asked == 2)
    assert not behind.done()
    assert bench.journal.commits == [], "nothing is visible yet"
    stream.pieces.put_nowait(b"end ")
    stream.pieces.put_nowait(b"")
    outcome = await streamed
    content = b"begin middle end "
    assert span(outcome) == (Status.OK, 0, len(content))
    assert outcome.commit.sum == hashlib.sha1(content, usedforsecurity=False).digest()
    assert span(await behind) == (Status.OK, 17, 23)
    assert bench.read() == content + b"behind"


async def test_fs22_a_stream_that_breaks_is_rolled_back(bench):
    await bench.append(b"before ")
    stream = Stream()
    streamed = bench.submit(b"gone", stream=stream)
    stream.pieces.put_nowait(b"gone, too, and longer than what follows")
    stream.pieces.put_nowait(RpcFailed(Code.UNKNOWN, "append stream: unexpected EOF"))
    with pytest.raises(RpcFailed, match="append stream: unexpected EOF"):
        await streamed
    assert bench.journal.rollbacks == 1
    await bench.append(b"after")
    assert bench.read() == b"before after"


async def test_a_stream_whose_caller_left_is_rolled_back(bench):
    stream = Stream()
    streamed = bench.submit(b"gone", stream=stream)
    await eventually(lambda: stream.asked == 1)
    streamed.cancel()
    stream.pieces.put_nowait(b"gone")
    await bench.append(b"after")
    assert bench.read() == b"after"
    assert bench.journal.rollbacks == 1


async def test_fs23_a_stream_into_a_read_only_journal(bench):
    bench.journal.spec = spec(flags=JournalFlag.O_RDONLY)
    outcome = await bench.append(b"x", stream=Stream())
    assert outcome.status is Status.NOT_ALLOWED
    assert bench.appender.spool.file is None


async def test_stream_after_a_batch_that_its_disk_refused_starts_over(bench, monkeypatch):
    """Its offset and registers were looked at as if the batch existed."""
    bench.spool.is_leaving = True  # so that no caller waits for the disk to get well
    real, failures = os.pwrite, [OSError(5, "Input/output error")]

    def pwrite(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(journal_spool, "DISK_RETRY_S", 0.0)
    monkeypatch.setattr(digester, "DISK_RETRY_S", 0.0)
    monkeypatch.setattr(os, "pwrite", pwrite)
    stream = Stream()
    refused = bench.submit(b"lost")
    streamed = bench.submit(b"begin ", stream=stream, offset=4)
    stream.pieces.put_nowait(b"end")
    stream.pieces.put_nowait(b"")
    with pytest.raises(RpcFailed, match="Input/output error"):
        await refused
    assert (await streamed).status is Status.WRONG_APPEND_OFFSET
    assert bench.spool.spool.end == 0


async def test_a_stream_that_fills_the_disk_has_the_open_fragment_closed(bench, monkeypatch):
    """So that it is persisted: else there is never room, where all appends are as large."""
    await bench.append(b"one")
    await bench.append(b"two")

    def pwrite(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        stream = Stream()
        streamed = bench.submit(stream=stream)
        stream.pieces.put_nowait(b"never")
        with pytest.raises(RpcFailed, match="No space left"):
            await streamed
    await bench.tasks.join()
    assert sorted(c.fragment.end for c in bench.journal.completed) == [3, 6]
    assert span(await bench.append(b"after")) == (Status.OK, 6, 11)


async def test_fs25_a_refusal_does_not_wait_for_the_stream(bench):
    stream = Stream()
    assert (await bench.append(b"x", stream=stream, offset=5)).status is (
        Status.WRONG_APPEND_OFFSET
    )
    assert stream.asked == 0


async def test_fs25_a_stream_of_three_pieces(bench):
    stream = Stream()
    streamed = bench.submit(b"one ", stream=stream)
    for piece in (b"two ", b"three", b""):
        stream.pieces.put_nowait(piece)
    outcome = await streamed
    assert span(outcome) == (Status.OK, 0, 13)
    assert outcome.commit.sum == hashlib.sha1(b"one two three", usedforsecurity=False).digest()
    assert stream.asked == 3
    assert bench.read() == b"one two three"


@pytest.mark.parametrize(
    "text",
    ["append stream: some error", "append stream: client stream didn't sustain the minimum rate"],
)
async def test_fs25_a_stream_that_fails_is_rolled_back(bench, text):
    await bench.append(b"before ")
    stream = Stream()
    streamed = bench.submit(b"never ", stream=stream)
    stream.pieces.put_nowait(b"more ")
    stream.pieces.put_nowait(RpcFailed(Code.UNKNOWN, text))
    with pytest.raises(RpcFailed, match=text) as caught:
        await streamed
    assert caught.value.code is Code.UNKNOWN
    assert bench.journal.rollbacks == 1
    assert span(await bench.append(b"after")) == (Status.OK, 7, 12)
    assert bench.read() == b"before after"


async def test_appends_batched_before_a_stream_are_committed_first(bench):
    await bench.append(b"a")
    await bench.append(b"b")
    stream = Stream()
    before = bench.submit(b"c")
    streamed = bench.submit(b"d", stream=stream)
    assert span(await before) == (Status.OK, 2, 3)
    stream.pieces.put_nowait(b"")
    assert span(await streamed) == (Status.OK, 3, 4)


@pytest.mark.parametrize("size", [100, 1 << 20])
async def test_content_is_let_go_of_once_it_is_appended(bench, size):
    """Ten thousand journals would else keep what each was sent last."""
    contents = [memoryview(bytes([65 + n]) * size) for n in range(4)]
    kept = [weakref.ref(content) for content in contents]
    await asyncio.gather(*(bench.append(content) for content in contents))
    del contents
    # A thread that hashed or wrote content may hold it for some instructions after it has reported.
    await eventually(lambda: [each() for each in kept] == [None] * 4)
    assert bench.appender.is_idle
