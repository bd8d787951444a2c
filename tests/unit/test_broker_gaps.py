"""What is missing before what is stored: whether it is gone, or with another broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gazette_platform.broker.journal.gaps import Gaps
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.fragment.index import Index
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import Fragment
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import turns

JOURNAL = "a/journal"


class Bench:
    """Gaps of a replica, and the other brokers."""

    def __init__(self, tasks, *, wait_s=10.0):
        self.clock = ManualClock()
        self.index = Index(self.clock)
        self.answers = asyncio.Queue()
        self.asked = 0
        self.comes = ()
        self.began = asyncio.Event()
        self.gaps = Gaps(
            JOURNAL,
            self.index,
            wait_s=wait_s,
            clock=self.clock,
            tasks=tasks,
            refresh=lambda: None,
            may_come=lambda offset: offset in self.comes,
            ask=self.ask,
        )

    async def ask(self):
        self.asked += 1
        self.began.set()
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def bench(tasks):
    return Bench(tasks)


async def test_nothing_is_gone_before_others_were_asked_and_all_readers_ask_once(bench, tasks):
    assert not bench.gaps.may_skip(0)
    waiting = [tasks.spawn(bench.gaps.wait_skip(at)) for at in (0, 5)]
    await turns()
    bench.answers.put_nowait(True)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert bench.asked == 1
    assert bench.gaps.may_skip(0)


async def test_caller_that_waits_is_asked_to_come_back_and_the_question_goes_on(tasks):
    bench = Bench(tasks, wait_s=0.05)
    with pytest.raises(RpcFailed, match="content at 7 that is not stored yet") as caught:
        await bench.gaps.wait_skip(7)
    assert caught.value.code is Code.UNAVAILABLE
    bench.answers.put_nowait(True)
    await bench.gaps.wait_skip(7)
    assert bench.asked == 1


async def test_they_are_asked_again_while_one_of_them_has_more(bench):
    bench.answers.put_nowait(False)
    bench.answers.put_nowait(True)
    async with asyncio.timeout(5):
        await bench.gaps.wait_skip(0)
    assert bench.asked == 2


async def test_an_unforeseen_error_is_reported_and_they_are_asked_again():
    faults = Faults()
    tasks = TaskGroup("test", faults=faults)
    bench = Bench(tasks)
    bench.answers.put_nowait(KeyError("unforeseen"))
    bench.answers.put_nowait(True)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(5):
        await bench.gaps.wait_skip(0)
    assert asyncio.get_running_loop().time() - began > 0.3, "not at once"
    assert faults.reported == 1
    await tasks.close()


async def test_content_that_comes_is_not_waited_for_any_more(bench, tasks):
    waiting = tasks.spawn(bench.gaps.wait_skip(0))
    await turns()
    bench.index.add_remote(Fragment(JOURNAL, 0, 9, b"x" * 20, backing_store="s", mod_time=1))
    async with asyncio.timeout(5):
        await waiting
    assert not bench.gaps.may_skip(0)


async def test_a_replica_that_closes_ends_the_wait(bench, tasks):
    waiting = tasks.spawn(bench.gaps.wait_skip(0))
    await turns()
    bench.index.close()
    async with asyncio.timeout(5):
        await waiting


async def test_what_a_spool_saw_from_its_begin_on_is_known(bench):
    bench.gaps.on_leap(100)
    assert not bench.gaps.may_skip(99)
    assert bench.gaps.may_skip(100)
    bench.gaps.on_commit(100)
    assert bench.gaps.may_skip(100)
    bench.gaps.on_leap(150)  # others went on without us
    assert not bench.gaps.may_skip(149)


async def test_what_others_have_had_for_six_hours_is_not_waited_for(bench):
    bench.clock.advance(6 * 3600)
    assert not bench.gaps.may_skip(0)
    bench.clock.advance(1)
    assert bench.gaps.may_skip(0)
    bench.gaps.on_leap(100)
    assert not bench.gaps.may_skip(0)


async def test_complete_replica_queries_no_peer(bench):
    bench.gaps.on_commit(0)
    assert bench.gaps.may_skip(0)


async def test_content_that_passed_by_while_others_were_asked_is_asked_for_again(bench, tasks):
    bench.gaps.on_leap(100)
    waiting = tasks.spawn(bench.gaps.wait_skip(0))
    await bench.began.wait()
    bench.gaps.on_leap(200)
    bench.answers.put_nowait(True)
    bench.answers.put_nowait(True)
    async with asyncio.timeout(5):
        await waiting
    assert bench.asked == 2


async def test_what_the_primary_jumps_over_is_gone_and_nothing_else(bench):
    stored = Fragment(JOURNAL, 100, 110, b"x" * 20, backing_store="s", mod_time=1)
    bench.index.add_remote(stored)
    bench.gaps.on_gone(7, 100)
    assert bench.gaps.may_skip(7)
    assert not bench.gaps.may_skip(6)
    bench.gaps.on_gone(0, 100)
    assert bench.gaps.may_skip(0)
    # What follows was pruned, too, or is not stored yet.
    bench.index.replace_remote(CoverSet([replace(stored, begin=105)]))
    assert not bench.gaps.may_skip(0)
    bench.gaps.on_gone(0, 105)
    assert bench.gaps.may_skip(0)


async def test_expected_content_is_waited_for_and_not_asked_for_again(tasks):
    bench = Bench(tasks, wait_s=0.05)
    bench.comes = (0,)
    bench.answers.put_nowait(True)
    with pytest.raises(RpcFailed, match="content at 0"):
        await bench.gaps.wait_skip(0)
    assert bench.asked == 1
    assert bench.gaps.may_skip(1)
    bench.comes = ()
    assert bench.gaps.may_skip(0)


async def test_nothing_is_lost_while_another_broker_holds_it(tasks):
    """A read would end before it, as if there were no more."""
    bench = Bench(tasks, wait_s=0.05)

    async def is_refused():
        with pytest.raises(RpcFailed, match="content at 50") as caught:
            await bench.gaps.wait(50)
        return caught.value.code is Code.UNAVAILABLE

    assert await is_refused()
    assert bench.asked == 0, "for some minutes it may come by itself"
    bench.clock.advance(6 * 3600 + 1)  # the store may be full for as long
    assert all(await asyncio.gather(is_refused(), is_refused()))
    assert bench.asked == 1
    bench.answers.put_nowait(False)
    assert await is_refused()
    bench.gaps.wait_s = 10.0
    bench.answers.put_nowait(True)
    async with asyncio.timeout(5):
        assert not await bench.gaps.wait(50)
        assert not await bench.gaps.wait(50)
    assert bench.asked == 2
    bench.gaps.on_leap(80)  # others went on without us: what they had is theirs
    bench.answers.put_nowait(True)
    assert not await bench.gaps.wait(50)
    assert bench.asked == 3


async def test_what_another_broker_held_is_read_once_it_is_stored(bench, tasks):
    stored = Fragment(JOURNAL, 50, 80, b"x" * 20, backing_store="s", mod_time=1)
    bench.gaps._met_at.put(50, bench.clock.monotonic())
    bench.clock.advance(141)
    waiting = tasks.spawn(bench.gaps.wait(50))
    async with asyncio.timeout(5):
        await bench.began.wait()
        bench.index.add_remote(stored)
        assert await waiting
    bench.answers.put_nowait(True)


async def test_what_was_pruned_up_to_a_noted_head_is_waited_for_until_others_were_asked(
    bench, tasks
):
    """Nothing lies after it, as in a journal that was suspended: it is gone at once, and not in minutes."""
    waiting = tasks.spawn(bench.gaps.wait(3, noted_head=9))
    await bench.began.wait()
    assert not waiting.done()
    bench.answers.put_nowait(True)
    assert not await asyncio.wait_for(waiting, 5)
    bench.index.add_remote(Fragment(JOURNAL, 0, 5, b"x" * 20, backing_store="s", mod_time=1))
    assert await asyncio.wait_for(bench.gaps.wait(3, noted_head=9), 5)
