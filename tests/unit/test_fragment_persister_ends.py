"""What a broker that has failed stores: where others went on without it decides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from persister_bench import CONTENT, PersisterBench

from gazette_platform.errors import EtcdError, StoreUnavailable
from gazette_platform.testing.waiting import patient


@pytest.fixture
def bench(tmp_path, tasks):
    with ThreadPoolExecutor(2) as pool:
        yield PersisterBench(tmp_path, tasks, pool)


async def test_what_others_went_on_without_is_left(bench):
    spools = [bench.spool(begin=begin, is_primary=False) for begin in (0, len(CONTENT))]
    for spool in spools:
        spool.tenure = "ours"
        bench.persister.add(spool)
    bench.persister.supersede("ours", len(CONTENT))
    await bench.persister.drain(timeout_s=patient(10))
    assert bench.stored == [spools[0].fragment.content_path]
    assert all(map(bench.is_closed, spools))


def held(bench, *failures):
    """A spool that is held until its end is said, which fails so often. Returns: it, and calls to say it."""
    spool, calls, left = bench.spool(is_primary=False), [], list(failures)
    spool.tenure = "ours"
    bench.persister.add(spool)

    async def say_end():
        calls.append(bench.stored)
        if left:
            raise left.pop(0)

    bench.persister.hold("ours", say_end)
    return spool, calls


async def test_what_is_held_is_stored_once_its_end_is_said(bench):
    spool, calls = held(bench, EtcdError("away"), EtcdError("away"))
    other = bench.spool(begin=len(CONTENT), is_primary=False)
    bench.persister.add(other)
    assert await bench.persister.drain(timeout_s=patient(10)) == []
    paths = [one.fragment.content_path for one in (spool, other)]
    assert bench.stored == sorted(paths)
    assert calls[1:] == [[paths[1]]] * 2, "it keeps nothing else from the store"


async def test_what_is_held_is_left_to_the_next_process_if_etcd_stays_away(bench):
    spool, calls = held(bench, *[EtcdError("away")] * 99)
    assert await bench.persister.drain(timeout_s=patient(10), ends_s=0) == [spool.fragment]
    assert (calls, bench.stored) == ([], [])
    assert not bench.is_closed(spool)
    wait = bench.persister._sleep

    async def pass_time(seconds):
        bench.clock.advance(seconds)
        await wait(seconds)

    bench.persister._sleep = pass_time
    assert await bench.persister.drain(timeout_s=patient(10)) == [spool.fragment]
    assert (len(calls), bench.stored) == (len(bench.waits), [])
    assert sum(bench.waits) >= 30


async def test_what_a_store_refused_is_asked_about_before_it_is_stored(bench):
    """An operator may have given it up, and what others appended in its place is stored already."""
    asked = []
    spools = [bench.spool(begin=begin) for begin in (0, len(CONTENT))]
    bench.registry.broken["file:///"] = StoreUnavailable("away")

    async def say_end():
        asked.append(bench.stored)
        if len(asked) <= len(spools):
            raise EtcdError("away")
        bench.registry.broken.clear()
        bench.persister.supersede("ours", len(CONTENT))

    for spool in spools:
        spool.tenure = "ours"
        bench.persister.add(spool)
    await bench.settle()
    bench.persister.ask_again("ours", say_end)
    assert await bench.persister.drain(timeout_s=patient(10)) == []
    assert bench.stored == [spools[0].fragment.content_path]
    assert len(asked) > len(spools)
    assert asked[0] == []
