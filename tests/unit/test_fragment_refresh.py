"""Listing stores into an index."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gazette_platform.errors import GazetteError, StoreError, StoreUnavailable
from gazette_platform.fragment.index import Index
from gazette_platform.fragment.refresh import FragmentLister, Refresher
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.stores import open_store

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


@pytest.fixture
async def tasks():
    group = TaskGroup("test")
    yield group
    await group.close()


class Waiting:
    """Somebody waits for the first listing of two stores."""

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
            await asyncio.sleep(0)  # who waits sees it
            await asyncio.sleep(0)


async def test_a_first_listing_that_fails_for_long_is_told_with_its_store(registry, tasks):
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


async def test_a_first_listing_that_fails_as_nobody_foresaw_is_told_too(registry, tasks):
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
    await asyncio.sleep(0)
    bench.index.close()
    assert await bench.waiting == ""
