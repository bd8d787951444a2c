"""Stored fragments one after the other as one read: what is fetched next, and where the read ends."""

import asyncio
import hashlib
import types

import pytest

from gazette_platform.client.read.extents import choose_next
from gazette_platform.client.read.store_reader import URL_TTL_S, DirectRead
from gazette_platform.client.read_ahead import FragmentStream, ReadAhead
from gazette_platform.client.results import FragmentListing
from gazette_platform.errors import DataError, StoreUnavailable, TransportError
from gazette_platform.protocol import Fragment
from gazette_platform.testing.waiting import turns

CONTENT = bytes(range(256)) * 4


def listed(begin, end, store="file:///"):
    digest = hashlib.sha1(CONTENT[begin:end]).digest()
    return FragmentListing(Fragment("a/journal", begin, end, sum=digest, backing_store=store))


class Store:
    """Fragments in files, and the answers that a read gets to its questions for them."""

    def __init__(self, folder, tasks, *spans):
        self.folder = folder
        self.pool = ReadAhead(tasks)
        self.fragments = [listed(*span) for span in spans]
        self.opened = []
        self.asked = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error = None
        self.surplus = b""  # behind the content of each file

    def open_stream(self, listing, offset, is_first):
        fragment = listing.fragment
        path = self.folder / fragment.content_name
        path.write_bytes(CONTENT[fragment.begin : fragment.end] + self.surplus)
        self.opened.append((fragment.begin, fragment.end))
        return FragmentStream(
            self.pool, fragment, fragment.content_name, path, offset=offset, is_first=is_first
        )

    async def list_from(self, offset):
        self.asked.append(offset)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [each for each in self.fragments if each.fragment.begin >= offset]

    def read(self, offset=0, end_offset=0):
        return DirectRead(
            self.pool,
            self.fragments[0],
            offset=offset,
            end_offset=end_offset,
            open_stream=self.open_stream,
            list_from=self.list_from,
        )


async def read_into(got, read):
    async with asyncio.timeout(60):
        while (piece := await read.next()) is not None:
            got += piece


async def rest(read):
    got = bytearray()
    await read_into(got, read)
    return got


@pytest.fixture
def store_of(tmp_path, tasks):
    stores = []

    def make(*spans):
        stores.append(Store(tmp_path, tasks, *spans))
        return stores[-1]

    yield make
    for store in stores:
        store.pool.close()


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, (0, 10)), (4, (0, 10)), (5, (5, 30)), (10, (5, 30)), (29, (5, 30)), (30, None)],
)
def test_the_fragment_that_ends_last_is_chosen(offset, expected):
    fragments = [listed(5, 12), listed(0, 10), listed(5, 30), listed(6, 9), listed(40, 50)]
    # What only brokers have cannot be fetched.
    found = choose_next([listed(0, 60, store=""), *fragments], offset)
    assert (found and (found.fragment.begin, found.fragment.end)) == expected


async def test_fragments_that_overlap_are_one_seamless_read(store_of):
    store = store_of((0, 100), (50, 80), (60, 200), (200, 300))
    read = store.read(7)
    assert await rest(read) == CONTENT[7:300]
    assert store.opened == [(0, 100), (60, 200), (200, 300)]
    assert read.whole == 3
    assert store.pool.held_bytes == 0


async def test_a_read_ends_at_a_hole(store_of):
    store = store_of((0, 100), (101, 200))
    assert await rest(store.read()) == CONTENT[:100]
    assert store.opened == [(0, 100)]


@pytest.mark.parametrize(("end", "opened"), [(100, 1), (101, 2), (200, 2), (201, 3)])
async def test_nothing_is_fetched_that_begins_at_the_end(store_of, end, opened):
    store = store_of((0, 100), (100, 200), (200, 300))
    await rest(store.read(end_offset=end))
    assert len(store.opened) == opened


async def test_a_listing_that_takes_long_is_waited_for(store_of):
    store = store_of((0, 100), (100, 200))
    store.may_answer.clear()
    read = store.read()
    assert await read.next() == CONTENT[:100]
    following = asyncio.get_running_loop().create_task(read.next())
    await asyncio.wait({following}, timeout=0.1)
    assert not following.done()
    store.may_answer.set()
    assert await following == CONTENT[100:200]
    assert await read.next() is None


async def test_a_listing_that_fails_ends_the_read_in_order(store_of):
    """Who reads goes on elsewhere, and gets the error there if that fails, too."""
    store = store_of((0, 100), (100, 200))
    store.error = TransportError("no broker")
    read = store.read()
    assert await rest(read) == CONTENT[:100]
    assert read.whole == 1
    assert len(store.asked) == 1


async def test_a_fragment_that_cannot_be_opened_ends_the_read_before_it(store_of):
    store = store_of((0, 100), (100, 200))
    original = store.open_stream

    def open_stream(listing, offset, is_first):
        if listing.fragment.begin:
            raise StoreUnavailable("a URL that leads nowhere")
        return original(listing, offset, is_first)

    store.open_stream = open_stream
    assert await rest(store.read()) == CONTENT[:100]


@pytest.mark.parametrize(("age_s", "questions"), [(URL_TTL_S * 0.4, 2), (URL_TTL_S * 0.6, 3)])
async def test_urls_are_not_used_that_may_expire_during_the_fetch(store_of, age_s, questions):
    store = store_of(*((begin, begin + 10) for begin in range(0, 200, 10)))
    read = store.read()
    loop, now_s = asyncio.get_running_loop(), 1000.0
    read._loop = types.SimpleNamespace(
        time=lambda: now_s, call_soon_threadsafe=loop.call_soon_threadsafe
    )
    got = bytearray(await read.next())
    async with asyncio.timeout(10):
        while len(store.opened) < 2:
            await turns()
    assert len(store.opened) < len(store.fragments), "all were fetched ahead at once"
    now_s += age_s
    got += await rest(read)
    assert got == CONTENT[:200]
    assert len(store.asked) == questions  # the last one after the last fragment


async def test_nothing_is_given_of_an_object_after_the_end_in_its_name(store_of):
    store = store_of((0, 100))
    store.surplus = b"surplus"
    read, got = store.read(), bytearray()
    with pytest.raises(DataError, match="longer than its name says"):
        await read_into(got, read)
    assert CONTENT[:100].startswith(got)


async def test_closing_ends_a_read_that_waits_and_all_that_was_fetched(store_of):
    store = store_of((0, 100), (100, 200))
    store.may_answer.clear()
    read = store.read()
    assert await read.next() == CONTENT[:100]
    waiting = asyncio.get_running_loop().create_task(read.next())
    await asyncio.wait({waiting}, timeout=0.05)
    read.close()
    async with asyncio.timeout(60):
        assert await waiting is None
    assert store.pool.held_bytes == 0
    assert store.opened == [(0, 100)]
