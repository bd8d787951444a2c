"""How the persister tries again what a store failed to take."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from persister_bench import PersisterBench

from gazette_platform.errors import AccessDenied, StoreUnavailable
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.fragment.index import Index
from gazette_platform.testing.waiting import eventually, turns


@pytest.fixture
def bench(tmp_path, tasks):
    with ThreadPoolExecutor(2) as pool:
        yield PersisterBench(tmp_path, tasks, pool)


def small_spools(bench, count, **settings):
    return [
        bench.spool(begin=number * 10, content=b"0123456789", **settings) for number in range(count)
    ]


async def test_a_store_that_is_back_gets_at_once_what_waits_for_it(bench):
    store = bench.registry.get("file:///")
    spools = small_spools(bench, 40)
    store.faults = [StoreUnavailable("down")] * (40 + 2 + 2)
    for spool in spools:
        bench.persister.add(spool)
    await bench.settle()
    for left in (2, 0):
        await bench.retry()
        assert len(store.faults) == left, "two fragments are a try"
    assert bench.stored == []
    await bench.retry()
    assert bench.stored == [spool.fragment.content_path for spool in spools]
    assert len(bench.persister) == 0
    # After one more pause the store is forgotten: its next fault restarts.
    await bench.retry()
    store.faults = [StoreUnavailable("down")]
    bench.persister.add(bench.spool(begin=1000))
    await bench.settle()
    await bench.retry()
    assert len(bench.persister) == 0
    assert bench.pauses[:5] == [1.0, 2.0, 4.0, 8.0, 1.0]


async def test_a_store_that_stays_away_is_tried_ever_more_rarely(bench):
    store = bench.registry.get("file:///")
    store.faults = [StoreUnavailable("down")] * 99
    for spool in small_spools(bench, 10):
        bench.persister.add(spool)
    await bench.settle()
    for _ in range(8):
        await bench.retry()
    assert bench.pauses == [1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0, 30.0]
    assert len(store.faults) == 99 - 10 - 8 * 2
    # What is closed meanwhile shows that it is back, too.
    store.faults.clear()
    bench.persister.add(bench.spool(begin=1000))
    await bench.settle()
    assert len(bench.stored) == 1
    await bench.retry()
    assert len(bench.stored) == 11


async def test_what_always_fails_takes_its_turn_and_holds_up_nothing(bench):
    store = bench.registry.get("file:///")
    bad, good = small_spools(bench, 5), bench.spool(begin=1000)
    put_as_ever, refused = store.put, []

    async def put(path, *args, **settings):
        if any(path == spool.fragment.content_path for spool in bad):
            refused.append(path)
            raise AccessDenied("not this one")
        await put_as_ever(path, *args, **settings)

    store.put = put
    for spool in bad:
        bench.persister.add(spool)
    store.faults = [StoreUnavailable("down")]
    bench.persister.add(good)
    await bench.settle()
    refused.clear()
    for _ in range(3):
        await bench.retry()
    assert bench.stored == [good.fragment.content_path]
    # Two each; the last was with the good one, upon which all were tried.
    assert len(refused) == 2 + 2 + 5 + (5 - 4)
    refused.clear()
    await bench.retry()
    assert len(refused) == 2


async def test_tries_that_hang_are_two_at_most(bench):
    store = bench.registry.get("file:///")
    store.faults = [StoreUnavailable("down")] * 10
    for spool in small_spools(bench, 10):
        bench.persister.add(spool)
    await bench.settle()
    begun, store.gate = [], asyncio.Event()
    exists = store.store.exists

    async def count(path):
        begun.append(path)
        return await exists(path)

    store.exists = count
    for _ in range(3):
        bench.retries.release()
    await eventually(lambda: len(begun) >= 2)
    await turns(50)
    assert len(begun) == 2
    store.gate.set()
    await bench.settle()
    await bench.retry()
    assert len(bench.stored) == 10


async def test_no_try_begins_while_the_former_one_is_under_way(bench):
    store = bench.registry.get("file:///")
    store.faults = [StoreUnavailable("down")] * 10
    for spool in small_spools(bench, 10):
        bench.persister.add(spool)
    await bench.settle()
    store.gate = asyncio.Event()
    for _ in range(3):
        bench.retries.release()
    await turns(50)
    assert len(bench.pauses) == 1, "it waits for its answers, not for the next pause"
    store.gate.set()
    await bench.settle()
    await bench.retry()
    assert len(bench.stored) == 10


async def test_replicas_do_not_hurry(bench):
    """They would store what the primary is about to store again."""
    store = bench.registry.get("file:///")
    replica = bench.spool(is_primary=False)
    bench.persister.add(replica)
    store.faults = [StoreUnavailable("down")]
    for _ in range(3):
        bench.persister.tick()
    await bench.settle()
    assert (bench.stored, bench.pauses, len(bench.persister)) == ([], [], 1)


@pytest.mark.parametrize("is_primary", [False, True], ids=["replica", "primary"])
async def test_what_a_listing_has_of_a_replica_is_done(bench, is_primary):
    """A minute later, without a look at the store; also if the store failed when it was looked at."""
    store = bench.registry.get("file:///")
    store.faults = [StoreUnavailable("down")] * 9
    index = Index(bench.clock)
    first, second = small_spools(bench, 2, is_primary=is_primary)
    for spool in (first, second):
        bench.persister.add(spool, index)
    await bench.settle()
    listed = replace(first.fragment, backing_store="file:///", mod_time=1)
    index.replace_remote(CoverSet([listed]))
    bench.persister.tick()
    await bench.settle()
    assert bench.is_closed(first) is not is_primary
    assert not bench.is_closed(second)
    assert bench.stored == []


async def test_what_no_store_failed_is_not_tried_sooner(bench):
    bench.configure("file:///", postfix="date=1/.hidden")
    bench.persister.add(bench.spool())
    await bench.settle()
    assert bench.pauses == []
