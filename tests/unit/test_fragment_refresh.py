"""Listing stores into an index."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import pytest

from gazette_platform.errors import GazetteError, StoreError, StoreUnavailable
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.fragment.index import KEPT_S, FragmentLister, Index, Refresher
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import CompressionCodec, Fragment, FragmentSpec, JournalSpec
from gazette_platform.stores import open_store
from gazette_platform.testing.waiting import turns

DIGEST = "0123456789abcdef0123456789abcdef01234567"
STORES = ("file:///one/", "file:///two/")


class Registry:
    """Opens stores without watching their health."""

    def __init__(self, root):
        self.root = root
        self.failures = []

    def get(self, url):
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        return open_store(url, file_root=self.root)


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path)


def spec_of(*stores, interval_s=300):
    fragment = FragmentSpec(stores=stores, refresh_interval_ns=interval_s * 10**9)
    return JournalSpec("a/journal", 1, fragment=fragment)


def write(root, store, begin, end, extension=".gz", postfix="", name=""):
    directory = root / store / "a" / "journal" / postfix
    directory.mkdir(parents=True, exist_ok=True)
    (directory / (name or f"{begin:016x}-{end:016x}-{DIGEST}{extension}")).write_bytes(b"x")


async def test_i8_two_stores_merge(registry, tmp_path):
    write(tmp_path, "one", 0, 100)
    write(tmp_path, "one", 100, 150, ".raw", postfix="date=2026-01-02/hour=03")
    write(tmp_path, "one", 200, 300)
    write(tmp_path, "two", 100, 200, "")
    write(tmp_path, "two", 200, 300)
    found = list(await FragmentLister(registry).list(spec_of(*STORES)))
    assert [(one.begin, one.end, one.codec, one.backing_store) for one in found] == [
        (0, 100, CompressionCodec.GZIP, STORES[0]),
        (100, 200, CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION, STORES[1]),  # the longer
        (200, 300, CompressionCodec.GZIP, STORES[1]),  # the later
    ]
    assert all(one.mod_time > 1_700_000_000 for one in found)


async def test_postfixes_are_kept(registry, tmp_path):
    write(tmp_path, "one", 0, 100, postfix="date=2026-01-02/hour=03")
    (found,) = await FragmentLister(registry).list(spec_of(*STORES))
    assert found.path_postfix == "date=2026-01-02/hour=03"
    assert (tmp_path / "one" / found.content_path).exists()


async def test_other_files_are_skipped_and_named_once(registry, tmp_path, caplog):
    write(tmp_path, "one", 0, 100)
    for name in ("README.md", f"zz-100-{DIGEST}.gz", f"1-2-{DIGEST}.gz", f"{0:016x}-{9:016x}.gz"):
        write(tmp_path, "one", 0, 0, name=name)
    write(tmp_path, "one", 0, 0, name=".partial-x")
    lister = FragmentLister(registry)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert len(await lister.list(spec_of(*STORES))) == 1
    assert len(caplog.records) == 4
    assert "a/journal/README.md is not a fragment" in caplog.text


async def test_a_failing_store_fails_the_listing(registry, tmp_path):
    registry.failures = [None, StoreUnavailable("down")]
    with pytest.raises(StoreUnavailable, match="store file:///two/ cannot be listed: down"):
        await FragmentLister(registry).list(spec_of(*STORES))
    registry.failures = [GazetteError("of a kind that is no store's")]
    with pytest.raises(StoreError, match="store file:///one/ cannot be listed: of a kind"):
        await FragmentLister(registry).list(spec_of(*STORES))


async def test_no_stores_are_an_empty_listing(registry):
    index = Index(ManualClock())
    refresher = Refresher(index, FragmentLister(registry), ManualClock())
    assert await refresher.refresh(spec_of())
    assert index.first_refresh.is_set()


async def test_a_failure_keeps_what_is_known(registry, tmp_path):
    write(tmp_path, "one", 0, 100)
    index = Index(ManualClock())
    refresher = Refresher(index, FragmentLister(registry), ManualClock())
    assert await refresher.refresh(spec_of(STORES[0]))
    registry.failures = [GazetteError("down")]
    assert not await refresher.refresh(spec_of(STORES[0]))
    assert index.summary.end == 100


async def test_failures_are_logged_ever_more_rarely(registry, caplog):
    refresher = Refresher(Index(ManualClock()), FragmentLister(registry), ManualClock())
    registry.failures = [StoreUnavailable("down")] * 9
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            await refresher.refresh(spec_of(STORES[0]))
    assert [record.message for record in caplog.records] == [
        *(
            f"listing the fragments of a/journal failed {times} times: "
            "fragment store file:///one/ cannot be listed: down"
            for times in (1, 2, 4, 8)
        ),
        "fragments of a/journal are listed again",
    ]


class Aged:
    """A store whose listings are as old as a cache makes them."""

    def __init__(self, store, answers):
        self.store = store
        self.answers = answers

    async def list(self, prefix):
        self.answers.append("LIST")
        if "old" not in self.answers:
            async for item in self.store.list(prefix):
                yield item

    async def exists(self, path):
        self.answers.append(path.rpartition("/")[2][:16].lstrip("0") or "0")
        if "down" in self.answers:
            raise StoreUnavailable("down")
        return await self.store.exists(path)


class AgedRegistry(Registry):
    def __init__(self, root):
        super().__init__(root)
        self.answers = []

    def get(self, url):
        return Aged(super().get(url), self.answers)


class Stored:
    """A broker that has stored a fragment, and one that learned of it from a listing."""

    def __init__(self, root):
        self.root = root
        self.clock = ManualClock()
        self.registry = AgedRegistry(root)
        self.index = Index(self.clock)
        self.refresher = Refresher(self.index, FragmentLister(self.registry), self.clock)

    async def store(self, begin, end, *, is_ours):
        write(self.root, "one", begin, end)
        path = self.root / "one" / "a" / "journal" / f"{begin:016x}-{end:016x}-{DIGEST}.gz"
        now = int(self.clock.now().timestamp())
        os.utime(path, (now, now))
        if is_ours:
            digest = bytes.fromhex(DIGEST)
            codec = CompressionCodec.GZIP
            fragment = Fragment("a/journal", begin, end, digest, codec)
            self.index.add_remote(replace(fragment, backing_store=STORES[0], mod_time=now))
        else:
            await self.refresh()
        return path

    async def refresh(self, *answers, stores=STORES[:1]):
        """With these things the matter. Returns: what is known."""
        self.registry.answers[:] = answers
        assert await self.refresher.refresh(spec_of(*stores))
        found = await self.index.inspect()
        return [(one.begin, one.end) for one in found]


@pytest.mark.parametrize("is_ours", [True, False], ids=["stored", "listed"])
async def test_a_listing_that_is_older_than_what_is_stored_hides_nothing(tmp_path, is_ours):
    bench = Stored(tmp_path)
    await bench.store(0, 100, is_ours=is_ours)
    await bench.store(100, 200, is_ours=is_ours)
    for _ in range(5):
        assert await bench.refresh("old") == [(0, 100), (100, 200)]
        assert bench.registry.answers == ["old", "LIST", "0", "64"]
        bench.clock.advance(KEPT_S / 5 - 1)
    # By now it is believed: no cache is that old.
    bench.clock.advance(6)
    assert await bench.refresh("old") == []


async def test_what_is_listed_is_not_asked_for(tmp_path):
    bench = Stored(tmp_path)
    await bench.store(0, 100, is_ours=True)
    await bench.store(0, 200, is_ours=False)
    assert await bench.refresh() == [(0, 200)]
    assert bench.registry.answers == ["LIST"]


@pytest.mark.parametrize("is_ours", [True, False], ids=["stored", "listed"])
async def test_a_fragment_that_was_deleted_is_gone_with_the_next_listing(tmp_path, is_ours):
    bench = Stored(tmp_path)
    first = await bench.store(0, 100, is_ours=is_ours)
    await bench.store(100, 200, is_ours=is_ours)
    first.unlink()
    assert await bench.refresh() == [(100, 200)]
    assert await bench.refresh("old") == [(100, 200)]


async def test_a_store_that_does_not_say_leaves_what_is_known_for_a_while(tmp_path):
    bench = Stored(tmp_path)
    (await bench.store(0, 100, is_ours=True)).unlink()
    assert await bench.refresh("old", "down") == [(0, 100)]
    bench.clock.advance(KEPT_S + 1)
    assert await bench.refresh("old", "down") == []


async def test_fragments_of_stores_that_the_spec_left_out_are_forgotten(tmp_path):
    bench = Stored(tmp_path)
    await bench.store(0, 100, is_ours=True)
    assert await bench.refresh(stores=STORES[1:]) == []
    assert bench.registry.answers == ["LIST"]


async def test_what_is_persisted_while_a_listing_runs_is_not_asked_for(tmp_path):
    bench = Stored(tmp_path)
    listing = bench.index.listing_began()
    await bench.store(0, 100, is_ours=True)
    assert bench.index.lately_stored(CoverSet(), STORES, listing=listing) == []
    assert len(bench.index.lately_stored(CoverSet(), STORES, listing=listing + 2)) == 1


class Waiting:
    """A caller waits for the first listing of two stores."""

    def __init__(self, registry, tasks):
        self.clock = ManualClock()
        self.index = Index(self.clock)
        self.registry = registry
        self.refresher = Refresher(self.index, FragmentLister(registry), self.clock)
        self.waiting = tasks.spawn(self.refresher.wait_first())

    async def fail(self, error):
        self.registry.failures = [None, error]
        try:
            return await self.refresher.refresh(spec_of(*STORES))
        finally:
            await turns(2)  # who waits sees it


async def test_a_first_listing_that_fails_for_long_is_reported_with_its_store(registry, tasks):
    bench = Waiting(registry, tasks)
    bench.clock.advance(1000)
    assert not await bench.fail(StoreUnavailable("down"))
    bench.clock.advance(12)
    assert not await bench.fail(StoreUnavailable("still down"))
    assert not bench.waiting.done()
    bench.clock.advance(1)
    assert not await bench.fail(StoreUnavailable("gone"))
    problem = (
        "fragment store file:///two/ cannot be listed: gone (mend it, or take it out of the journal's "
        "stores)"
    )
    assert await bench.waiting == problem
    assert await bench.refresher.wait_first() == problem, "those behind wait no longer"
    assert await bench.refresher.refresh(spec_of(*STORES))
    assert await bench.refresher.wait_first() == ""


async def test_a_first_listing_that_comes_back_in_time_is_none_that_failed(registry, tasks):
    bench = Waiting(registry, tasks)
    assert not await bench.fail(StoreUnavailable("down"))
    bench.clock.advance(11)
    assert await bench.refresher.refresh(spec_of(*STORES))
    assert await bench.waiting == ""


async def test_unforeseen_failure_of_a_first_listing_is_reported(registry, tasks):
    bench = Waiting(registry, tasks)
    for _ in range(2):
        with pytest.raises(KeyError):
            await bench.fail(KeyError("unforeseen"))
        bench.clock.advance(13)
    with pytest.raises(KeyError):
        await bench.fail(KeyError("unforeseen"))
    assert "KeyError('unforeseen')" in await bench.waiting


async def test_who_waits_for_a_first_listing_ends_with_the_replica(registry, tasks):
    bench = Waiting(registry, tasks)
    await turns()
    bench.index.close()
    assert await bench.waiting == ""
