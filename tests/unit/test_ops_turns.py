"""Turns of long computations: each comes on, and however many there are, others do too."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
import uvloop

from gazette_platform.ops import tasks as module
from gazette_platform.ops.tasks import Turns
from gazette_platform.testing.waiting import turns


# Time is that of this thread's CPU: what other processes take counts for nothing.
def busy(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def compute(rounds):
    own = Turns()
    for _ in range(rounds):
        busy(0.0005)
        await own.take()


async def longest_gap_s(work):
    """How long the loop let nobody else have a turn while `work` went on."""
    task = asyncio.ensure_future(work)  # noqa: TID251  awaited below
    longest, last = 0.0, time.thread_time()
    while not task.done():
        await turns()
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    await task
    return longest


@pytest.mark.parametrize("count", [1, 60])
async def test_computations_hold_nobody_up_however_many_there_are(count):
    # Of one turn each in every round of the loop it would be 0.6 s.
    async def all_of_them():
        await asyncio.gather(*[compute(32) for _ in range(count)])

    assert await longest_gap_s(all_of_them()) < 0.15


async def test_turns_come_in_order_and_pass_over_who_has_left():
    queue, order = module._Queue(), []

    async def one(name):
        await queue.turn()
        order.append(name)

    tasks = [asyncio.ensure_future(one(name)) for name in "abcd"]  # noqa: TID251  awaited below
    await turns()
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "c", "d"]
    await asyncio.wait_for(queue.turn(), 5)


@pytest.mark.parametrize(
    "make", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_a_loop_that_ended_leaves_nothing(make):
    before = len(module._queues)
    loop = make()
    loop.run_until_complete(compute(8))
    assert len(module._queues) == before + 1
    loop.close()
    del loop
    gc.collect()
    assert len(module._queues) <= before
