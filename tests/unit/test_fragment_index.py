"""The index: Gazette's cases, by their numbers, and what ours adds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.fragment.index import Index, IndexSummary
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import Fragment, Status
from gazette_platform.testing.waiting import turns

HOUR_S = 3600


async def read_at(index, offset, *, begin_mod_time=0):
    """Where a blocking read finds its content, waiting as such reads do; None: the index closed."""
    while True:
        result = index.lookup(offset, begin_mod_time=begin_mod_time)
        if result.status is Status.OK:
            return result
        offset = result.offset
        if not await index.wait_change():
            return None


class File:
    """A local file that counts its holders."""

    def __init__(self, fd=7):
        self.fd = fd
        self.holders = 1

    def hold(self):
        self.holders += 1
        return self

    def release(self):
        assert self.holders > 0
        self.holders -= 1


def local(begin, end):
    return Fragment("a/journal", begin, end)


def remote(begin, end, mod_time=1, store="file:///"):
    return replace(local(begin, end), backing_store=store, mod_time=mod_time)


def listed(*fragments):
    return CoverSet(fragments)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def index(clock):
    return Index(clock)


async def blocked(tasks, coro):
    """A task of `coro` that is waiting already."""
    task = tasks.spawn(coro)
    await turns(3)
    assert not task.done()
    return task


async def finished(task):
    return await asyncio.wait_for(task, 5)


async def test_i1_remote_and_local_queries(index):
    file = File()
    index.replace_remote(listed(remote(0, 100)))
    index.spool_commit(local(100, 200), file)
    result = index.lookup(110)
    assert (result.status, result.offset, result.write_head) == (Status.OK, 110, 200)
    assert result.fragment == local(100, 200)
    assert result.file is file
    result = index.lookup(50)
    assert result.fragment == remote(0, 100)
    assert result.file is None
    assert index.summary == IndexSummary(0, 200, 0)


async def test_i2_remote_replaces_covered_local(index):
    files = [File(), File(), File()]
    index.spool_commit(local(100, 200), files[0])
    index.spool_commit(local(200, 300), files[1])
    index.spool_commit(local(300, 400), files[2])
    assert [file.holders for file in files] == [2, 2, 2]
    # The run 100-150-300 covers the first two, though no single member does.
    index.replace_remote(listed(remote(100, 150), remote(150, 300)))
    assert [file.holders for file in files] == [1, 1, 2]
    assert [one.begin for one in await index.inspect()] == [100, 150, 300]
    assert index.lookup(210).fragment.backing_store == "file:///"
    assert index.lookup(310).file is files[2]


async def test_i3_the_write_head(index, tasks):
    index.spool_commit(local(100, 200), None)
    result = index.lookup(-1)
    assert (result.status, result.offset, result.write_head) == (
        Status.OFFSET_NOT_YET_AVAILABLE,
        200,
        200,
    )
    task = await blocked(tasks, read_at(index, -1))
    index.spool_commit(local(200, 250), None)
    result = await finished(task)
    assert (result.status, result.offset, result.write_head) == (Status.OK, 200, 250)
    assert result.fragment == local(200, 250)


async def test_i4_missing_byte_zero(index, clock):
    now = int(clock.now().timestamp())
    index.spool_commit(local(100, 200), None)
    result = index.lookup(0)
    assert (result.status, result.offset, result.write_head) == (
        Status.OFFSET_NOT_YET_AVAILABLE,
        0,
        200,
    )
    index.replace_remote(listed(remote(100, 200, now)))
    result = index.lookup(0)
    assert (result.status, result.offset) == (Status.OK, 100)
    assert result.fragment == remote(100, 200, now)


def test_lookup_reports_what_it_skips_unless_that_is_missing_for_long(index, clock):
    now = int(clock.now().timestamp())
    index.replace_remote(listed(remote(100, 200, now - 9), remote(200, 300, now)))
    assert index.lookup(100).skips is None
    assert index.lookup(10).skips == 10
    behind = index.lookup(10, begin_mod_time=now + 1)
    assert (behind.status, behind.offset, behind.skips) == (
        Status.OFFSET_NOT_YET_AVAILABLE,
        300,
        10,
    )
    clock.advance(6 * HOUR_S)
    assert index.lookup(10).skips is None


async def test_i5_missing_middle(index, clock, tasks):
    now = int(clock.now().timestamp())
    index.replace_remote(listed(remote(100, 200, now), remote(300, 400, now)))
    result = index.lookup(210)
    assert (result.status, result.offset) == (Status.OFFSET_NOT_YET_AVAILABLE, 210)

    task = await blocked(tasks, read_at(index, 210))
    index.spool_commit(local(400, 420), None)  # not what it waits for
    await turns()
    assert not task.done()
    index.spool_commit(local(200, 250), None)
    result = await finished(task)
    assert (result.offset, result.fragment) == (210, local(200, 250))

    task = await blocked(tasks, read_at(index, 250))
    clock.advance(6 * HOUR_S)
    index.spool_commit(local(400, 430), None)
    await turns()
    assert not task.done()  # not older than six hours
    clock.advance(1)
    index.spool_commit(local(400, 440), None)
    result = await finished(task)
    assert (result.status, result.offset) == (Status.OK, 300)
    assert result.fragment == remote(300, 400, now)


@pytest.mark.parametrize(
    ("offset", "begin_mod_time", "expected"),
    [
        (0, 0, (Status.OK, 0)),
        (0, 10, (Status.OK, 0)),
        (0, 11, (Status.OK, 100)),
        (50, 15, (Status.OK, 100)),
        (0, 21, (Status.OK, 300)),  # the local one in the end
        (150, 99, (Status.OK, 300)),
        (350, 99, (Status.OK, 350)),
    ],
)
async def test_i6_begin_mod_time(index, offset, begin_mod_time, expected):
    index.replace_remote(listed(remote(0, 100, 10), remote(100, 200, 20), remote(200, 300, 20)))
    index.spool_commit(local(300, 400), None)
    result = index.lookup(offset, begin_mod_time=begin_mod_time)
    assert (result.status, result.offset) == expected


async def test_i6_all_skipped(index, tasks):
    index.replace_remote(listed(remote(0, 100, 10), remote(100, 200, 20)))
    result = index.lookup(5, begin_mod_time=21)
    assert (result.status, result.offset, result.write_head) == (
        Status.OFFSET_NOT_YET_AVAILABLE,
        200,
        200,
    )
    task = await blocked(tasks, read_at(index, 5, begin_mod_time=21))
    # What was skipped stays skipped, even if its object is rewritten.
    index.replace_remote(listed(remote(0, 100, 10), remote(100, 200, 99)))
    index.spool_commit(local(200, 210), None)
    assert (await finished(task)).offset == 200


async def test_i7_cancelling_the_request_or_closing_the_index(index, tasks):
    index.spool_commit(local(0, 100), None)
    request = await blocked(tasks, read_at(index, 100))
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    task = await blocked(tasks, read_at(index, 100))
    index.close()
    assert await finished(task) is None
    assert await read_at(index, 200) is None
    assert index.lookup(200).status is Status.OFFSET_NOT_YET_AVAILABLE


async def test_i9_inspect_waits_for_the_first_listing(index, tasks):
    index.spool_commit(local(100, 200), None)
    task = await blocked(tasks, index.inspect())
    assert not index.first_refresh.is_set()
    index.replace_remote(listed(remote(0, 100)))
    assert index.first_refresh.is_set()
    assert [one.begin for one in await finished(task)] == [0, 100]
    request = await blocked(tasks, Index(ManualClock()).inspect())
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    closing = Index(ManualClock())
    task = await blocked(tasks, closing.inspect())
    closing.close()
    assert await finished(task) is None


async def test_a_growing_fragment_is_announced_again(index, tasks):
    file = File()
    for end in (110, 120, 130):
        index.spool_commit(local(100, end), file)
        result = index.lookup(100)
        assert (result.fragment.end, result.file) == (end, file)
    assert file.holders == 2  # once by us, once by the index
    task = await blocked(tasks, read_at(index, 130))
    index.spool_commit(local(100, 140), file)
    assert (await finished(task)).fragment == local(100, 140)


async def test_a_larger_local_fragment_takes_over_its_files(index):
    small, large = File(), File()
    index.spool_commit(local(100, 110), small)
    index.spool_commit(local(120, 130), small)
    index.spool_commit(local(100, 200), large)
    assert (small.holders, large.holders) == (1, 2)
    index.spool_commit(local(110, 120), small)  # within the larger one
    assert small.holders == 1
    assert index.lookup(125).file is large
    index.spool_commit(local(100, 210), None)
    assert large.holders == 1
    assert index.lookup(125).file is None


async def test_add_remote_takes_the_place_of_the_local_fragment(index, tasks):
    file, open_file = File(), File()
    index.replace_remote(listed(remote(0, 100)))
    index.spool_commit(local(100, 200), file)
    index.spool_commit(local(200, 210), open_file)
    task = tasks.spawn(index.wait_change())
    await turns()
    index.add_remote(remote(100, 200, 5))
    assert await finished(task)
    assert list(await index.inspect()) == [remote(0, 100), remote(100, 200, 5), local(200, 210)]
    assert (file.holders, open_file.holders) == (1, 2)
    # A late publication of the same span does not take it back.
    index.spool_commit(local(100, 200), file)
    assert file.holders == 1
    assert index.lookup(150).fragment == remote(100, 200, 5)
    assert index.summary == IndexSummary(0, 210, 0)


async def test_add_remote_that_completes_a_run(index):
    file = File()
    index.spool_commit(local(0, 100), file)
    index.replace_remote(listed(remote(0, 50)))
    index.add_remote(remote(50, 70))
    assert list(await index.inspect()) == [local(0, 100)]
    index.add_remote(remote(70, 100))
    assert list(await index.inspect()) == [remote(0, 50), remote(50, 70), remote(70, 100)]
    assert file.holders == 1


async def test_a_listing_that_began_before_the_persist_does_not_lose_it(index):
    index.spool_commit(local(0, 100), None)
    listing = index.listing_began()
    index.add_remote(remote(0, 100))
    index.replace_remote(listed(), listing=listing)
    assert list(await index.inspect()) == [remote(0, 100)]
    # The next listing began later, so it is the truth: another program removed the object.
    index.replace_remote(listed(), listing=index.listing_began())
    assert list(await index.inspect()) == []


async def test_listings_that_overtake_each_other_lose_nothing(index):
    """A slow listing ends after one that began later, and does not know what was stored between."""
    file = File()
    index.spool_commit(local(0, 100), file)
    slow = index.listing_began()
    index.add_remote(remote(0, 100))
    fast = index.listing_began()
    index.replace_remote(listed(remote(0, 100, 9)), listing=fast)
    index.replace_remote(listed(), listing=slow)
    assert list(await index.inspect()) == [remote(0, 100, 9)]
    index.replace_remote(listed(remote(0, 200, 9)), listing=index.listing_began())
    assert list(await index.inspect()) == [remote(0, 200, 9)]


async def test_lately_stored_is_what_a_new_listing_lacks(index, clock):
    now = int(clock.now().timestamp())
    index.replace_remote(
        listed(
            remote(0, 100, now),
            remote(100, 200, now),
            remote(200, 300, now, "file:///other/"),
            remote(300, 400, now - HOUR_S * 24 * 365),
        )
    )
    later = index.listing_began()
    found = index.lately_stored(listed(remote(0, 100, now)), {"file:///"}, listing=later)
    assert found == [remote(100, 200, now)]
    assert index.lately_stored(listed(remote(0, 200, now)), {"file:///"}, listing=later) == []


async def test_of_equal_fragments_the_listed_one_stands(index):
    """Another broker may have stored the same span before us, in a directory of its own."""
    listing = index.listing_began()
    index.add_remote(remote(0, 100, 5, "file:///ours/"))
    index.replace_remote(listed(remote(0, 100, 9, "file:///theirs/")), listing=listing)
    assert list(await index.inspect()) == [remote(0, 100, 9, "file:///theirs/")]


async def test_a_listing_keeps_its_own_larger_fragments(index):
    listing = index.listing_began()
    index.add_remote(remote(50, 100))
    index.replace_remote(listed(remote(0, 100, 9)), listing=listing)
    assert list(await index.inspect()) == [remote(0, 100, 9)]


async def test_close_lets_go_of_files(index):
    file = File()
    index.replace_remote(listed(remote(0, 100)))
    index.spool_commit(local(100, 200), file)
    index.close()
    index.close()
    assert index.is_closed
    assert file.holders == 1
    index.spool_commit(local(200, 300), file)
    assert file.holders == 1
    assert index.lookup(50).fragment == remote(0, 100)


def test_summary_of_an_empty_index(index):
    assert index.summary == IndexSummary(0, 0, 0)


async def test_summary_has_the_time_of_the_last_fragment(index):
    index.replace_remote(listed(remote(0, 100, 5), remote(100, 200, 9)))
    assert index.summary == IndexSummary(0, 200, 9)
