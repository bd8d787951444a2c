"""A journal's spool on a disk that is full or broken, while the journal is ours and as it leaves."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from replication_bench import A, Bench

from gazette_platform.broker.spool import digester, journal_spool
from gazette_platform.broker.spool.digester import Digester
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import LabelSet
from gazette_platform.serving.interface import RpcFailed
from gazette_platform.testing.waiting import eventually


@pytest.fixture
async def bench(tmp_path):
    tasks = TaskGroup("test")
    with ThreadPoolExecutor(2) as executor:
        found = Bench(tmp_path, tasks, executor)
        yield found
        for node in (found.primary, *found.nodes.values()):
            node.index.close()
        await tasks.close()
    assert tasks.failure is None


def failing(monkeypatch, error, *, times):
    """Have writes to spools fail, so often. Returns: how often they have."""
    failed, write = [], Spool.write

    def broken(spool, chunks, at):
        if len(failed) < times:
            failed.append(error)
            raise error
        return write(spool, chunks, at)

    monkeypatch.setattr(journal_spool, "DISK_RETRY_S", 0.01)
    monkeypatch.setattr(digester, "DISK_RETRY_S", 0.01)
    monkeypatch.setattr(Spool, "write", broken)
    return failed


async def test_writes_that_fail_are_given_up_once_the_journal_leaves(bench, monkeypatch):
    """Else the broker could not, and what was acknowledged would wait for a broken disk."""
    spool = bench.nodes[A].spool
    failed = failing(monkeypatch, OSError(errno.EIO, "broken"), times=10_000)
    writing = asyncio.ensure_future(spool.draft(with_digest=True).write([b"x"], 1))  # noqa: TID251
    async with asyncio.timeout(5):
        await eventually(lambda: len(failed) >= 3)
        assert not writing.done(), "it is tried again while the journal is ours"
        spool.is_leaving = True
        with pytest.raises(RpcFailed, match="the broker leaves it, and could not write"):
            await writing


@pytest.mark.parametrize(
    ("writes", "lag"),
    [
        ([[b"one "]], 0),
        ([[b"one ", b"two "]], 0),
        ([[b"x" * (16 << 10)]], 0),
        ([[b"x" * (16 << 10), b"y"]], (16 << 10) + 1),
        ([[b"one "], [b"two "]], 8),
    ],
)
async def test_commit_hashes_small_content_of_one_write(bench, writes, lag):
    """Readers need not read it back for its sum."""
    spool = bench.nodes[A].spool
    draft = spool.draft(with_digest=False)
    for chunks in writes:
        await draft.write(chunks, sum(map(len, chunks)))
    spool.commit(draft, LabelSet())
    assert spool.spool.digest_lag == lag
    content = b"".join(b"".join(chunks) for chunks in writes)
    fragment = await spool.digested(0)
    assert fragment.sum == hashlib.sha1(content, usedforsecurity=False).digest()


async def test_content_that_is_dropped_is_not_hashed(bench):
    spool = bench.nodes[A].spool
    await spool.draft(with_digest=False).write([b"dropped"], 7)
    spool.forget_drafts()
    draft = spool.draft(with_digest=False)
    assert draft.write_at_once([b"counts"], 6)
    spool.commit(draft, LabelSet())
    assert (await spool.digested(0)).sum == hashlib.sha1(b"counts", usedforsecurity=False).digest()


async def test_a_full_disk_gets_room_from_compressed_content_first(bench, monkeypatch):
    """An append fails only where that is of no use."""
    for content in (b"one ", b"two "):
        await bench.append(content)
    spared = []

    async def spare_disk(_):
        spared.append(True)
        return True

    monkeypatch.setattr(Digester, "spare_disk", spare_disk)
    failing(monkeypatch, OSError(errno.ENOSPC, "full"), times=2)  # at once, then not
    assert await bench.append(b"three") == (8, 13)
    assert spared == [True]


async def test_a_fragment_that_cannot_be_read_back_does_not_keep_a_journal(bench, monkeypatch):
    monkeypatch.setattr(journal_spool, "DISK_RETRY_S", 0.01)
    monkeypatch.setattr(digester, "DISK_RETRY_S", 0.01)
    node, attempts = bench.nodes[A], []
    draft = node.spool.draft(with_digest=True)
    await draft.write([b"content"], 7)
    node.spool.commit(draft, LabelSet())

    async def complete(_):
        attempts.append(True)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Digester, "complete", complete)
    node.spool.roll(7)
    async with asyncio.timeout(5):
        await eventually(lambda: len(attempts) >= 5)
        assert node.spool.unfinished(), "while the journal is ours it is tried for ever"
        node.spool.is_leaving = True
        await node.spool.completed()
    assert node.completed == []


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([16 << 10] * 8, 1),
        ([100] * 512, 1),
        ([60 << 10] * 9, 3),
        ([1, 300 << 10, *[10] * 40, 5000], 3),
        ([64 << 10] * 2, 2),
    ],
)
async def test_small_chunks_are_written_together(bench, monkeypatch, sizes, calls):
    """Whatever their sizes are, and wherever pieces end."""
    written, write = [], os.pwrite

    def pwrite(fd, piece, at):
        written.append(len(piece))
        return write(fd, piece, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    chunks = [os.urandom(size) for size in sizes]
    spool = bench.nodes[A].spool
    draft = spool.draft(with_digest=True)
    await draft.write([*map(memoryview, chunks)], sum(sizes))
    assert len(written) == calls
    assert draft.fragment().sum == hashlib.sha1(b"".join(chunks), usedforsecurity=False).digest()
    spool.commit(draft, LabelSet())
    assert os.pread(spool.spool.file.fd, sum(sizes) + 1, 0) == b"".join(chunks)
