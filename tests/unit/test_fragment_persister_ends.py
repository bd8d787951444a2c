"""What a broker that has failed stores: where others went on without it decides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from persister_bench import CONTENT, PersisterBench

from gazette_platform.errors import EtcdError, StoreUnavailable
from gazette_platform.etcd import EtcdRejected
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


def with_fragments(bench, count):
    spools = [bench.spool(begin=at * len(CONTENT), is_primary=False) for at in range(count)]
    for spool in spools:
        spool.tenure = "ours"
        bench.persister.add(spool)
    return [spool.fragment for spool in spools]


async def test_etcd_is_asked_once_for_all_fragments_that_wait(bench):
    fragments, calls, failures = with_fragments(bench, 5), [], [EtcdError("away")] * 2

    async def say_end():
        calls.append(bench.stored)
        if failures:
            raise failures.pop()

    bench.persister.hold("ours", say_end)
    assert await bench.persister.drain(timeout_s=patient(10)) == []
    assert calls == [[]] * 3
    assert len(bench.stored) == len(fragments)


async def test_an_etcd_that_refuses_for_good_is_not_waited_for(bench):
    fragments, calls = with_fragments(bench, 2), []

    async def say_end():
        calls.append(bench.stored)
        raise EtcdRejected("the record is too large")

    bench.persister.hold("ours", say_end)
    left = await bench.persister.drain(timeout_s=patient(10))
    assert sorted(one.begin for one in left) == [one.begin for one in fragments]
    assert (len(calls), bench.stored) == (1, [])


async def test_a_tenure_that_holds_its_journal_again_is_stored(bench):
    fragments = with_fragments(bench, 2)

    async def say_end():
        raise EtcdError("away")

    bench.persister.hold("ours", say_end)
    bench.persister.supersede("ours", len(CONTENT))
    bench.persister.trust("ours")
    assert await bench.persister.drain(timeout_s=patient(10)) == []
    assert bench.stored == sorted(one.content_path for one in fragments)
