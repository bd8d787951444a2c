"""Listing stores into an index."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

import pytest

from gazette_platform.errors import GazetteError, StoreUnavailable
from gazette_platform.fragment.index import Index
from gazette_platform.fragment.refresh import FragmentLister, Refresher
from gazette_platform.ops.clock import ManualClock
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
    with pytest.raises(StoreUnavailable, match="down"):
        await FragmentLister(registry).list(spec_of(*STORES))


async def test_no_stores_are_an_empty_listing(registry):
    index = Index(ManualClock())
    refresher = Refresher(index, FragmentLister(registry), lambda: None)
    assert await refresher.refresh(spec_of())
    assert index.first_refresh.is_set()


class Run:
    """Runs a refresher whose sleeps the test sees."""

    def __init__(self, registry, specs):
        self.index = Index(ManualClock())
        self.waits = []
        self.specs = specs
        self.refresher = Refresher(
            self.index,
            FragmentLister(registry),
            self.spec,
            rng=random.Random(1),
            sleep=self.sleep,
        )

    def spec(self):
        return self.specs.pop(0) if self.specs else None

    async def sleep(self, seconds):
        self.waits.append(seconds)


async def test_listings_repeat_until_the_journal_is_gone(registry, tmp_path):
    write(tmp_path, "one", 0, 100)
    run = Run(registry, [spec_of(*STORES, interval_s=10)] * 3)
    await asyncio.wait_for(run.refresher.run(), 5)
    assert run.index.summary.end == 100
    assert len(run.waits) == 3
    assert all(9 <= wait <= 10 for wait in run.waits)
    assert len(set(run.waits)) == 3


async def test_a_failure_keeps_what_is_known(registry, tmp_path, caplog):
    write(tmp_path, "one", 0, 100)
    run = Run(registry, [spec_of(STORES[0], interval_s=10)] * 2)
    registry.failures = [None, GazetteError("down")]
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(run.refresher.run(), 5)
    assert run.index.summary.end == 100
    assert "listing the fragments of a/journal failed: down" in caplog.text
    assert all(wait >= 9 for wait in run.waits)


async def test_the_first_listing_is_tried_again_soon(registry, tmp_path):
    run = Run(registry, [spec_of(STORES[0])] * 4)
    registry.failures = [StoreUnavailable("down")] * 3
    await asyncio.wait_for(run.refresher.run(), 5)
    assert run.waits[:3] == [0.05, 0.1, 0.1]
    assert run.waits[3] >= 270
    assert run.index.first_refresh.is_set()


async def test_a_closed_index_is_not_refreshed(registry):
    run = Run(registry, [spec_of(STORES[0])])
    run.index.close()
    await asyncio.wait_for(run.refresher.run(), 5)
    assert not run.index.first_refresh.is_set()


async def test_stores_of_the_current_spec_are_listed(registry, tmp_path):
    write(tmp_path, "two", 0, 100)
    spec = spec_of(STORES[0], interval_s=10)
    moved = replace(spec, fragment=replace(spec.fragment, stores=(STORES[1],)))
    run = Run(registry, [spec, moved])
    await asyncio.wait_for(run.refresher.run(), 5)
    assert run.index.summary.end == 100
