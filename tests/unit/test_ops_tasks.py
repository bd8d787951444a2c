"""Owned tasks, threads, bounded fan-out, waits that an event ends, and fair turns of long computations."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from gazette_platform.errors import LeaseLost
from gazette_platform.ops import tasks as module
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import (
    Interrupt,
    Interrupted,
    TaskGroup,
    Turns,
    run_in,
    side_by_side,
)
from gazette_platform.testing.waiting import turns


async def test_join_waits_for_every_task():
    group = TaskGroup("reader")
    done = []

    async def work(number):
        await turns()
        done.append(number)

    for number in range(3):
        group.spawn(work(number), name=str(number))
    assert len(group) == 3
    await group.join()
    assert sorted(done) == [0, 1, 2]
    assert len(group) == 0
    assert not group.failed.is_set()


async def test_join_waits_for_tasks_that_tasks_spawn():
    group = TaskGroup("reader")
    done = asyncio.Event()

    async def child():
        await turns()
        done.set()

    async def parent():
        group.spawn(child())

    group.spawn(parent())
    await group.join()
    assert done.is_set()


async def test_failure_is_kept_signalled_and_logged(caplog):
    group = TaskGroup("spool")

    async def fails(why="disk is full"):
        raise ValueError(why)

    with caplog.at_level(logging.ERROR):
        group.spawn(fails(), name="a/b")
        await asyncio.wait_for(group.failed.wait(), 1)
        group.spawn(fails(), name="second")
        await group.join()
        group.spawn(fails("later"), name="third")
        await group.join()
    assert str(group.failure) == "disk is full", "the first one says most"
    assert "task spool/a/b failed: disk is full" in caplog.text
    await group.close()


async def test_close_cancels_and_waits():
    group = TaskGroup("watch")
    cleaned = []

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            await turns()
            cleaned.append(True)

    group.spawn(waits())
    group.spawn(waits())
    await turns()
    await group.close()
    assert cleaned == [True, True]
    assert group.failure is None
    assert not group.failed.is_set()


async def test_close_from_within_a_task_spares_that_task():
    group = TaskGroup("self")
    ended = []

    async def closes():
        await group.close()
        ended.append(True)

    await group.spawn(closes())
    assert ended == [True]


async def test_closed_group_refuses_and_closes_the_coroutine():
    group = TaskGroup("late")
    await group.close()

    async def never():
        raise AssertionError("must not run")

    coro = never()
    with pytest.raises(RuntimeError, match="task group late is closed"):
        group.spawn(coro)
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coro.send(None)


async def test_task_that_resists_is_named_and_given_up(caplog):
    group = TaskGroup("stubborn")
    release = asyncio.Event()

    async def resists():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = group.spawn(resists(), name="one")
    await turns()
    with caplog.at_level(logging.WARNING):
        await group.close(timeout_s=0.01)
    assert "task stubborn/one did not end within 0.01 s" in caplog.text
    release.set()
    await task


async def test_an_error_of_a_task_that_is_not_essential_is_reported_and_no_failure(caplog):
    counted = []
    faults = Faults(counted.append)
    group = TaskGroup("broker", faults=faults)

    async def fails():
        raise KeyError("unforeseen")

    group.spawn(fails(), name="call")
    await group.join()
    assert not group.failed.is_set()
    assert group.failure is None
    assert (counted, faults.reported) == (["task"], 1)
    assert [type(error) for error in faults.recent] == [KeyError]
    assert "task broker/call failed: unforeseen KeyError" in caplog.text
    assert "Traceback" in caplog.text
    group.spawn(fails(), name="lease", is_essential=True)
    await group.join()
    assert isinstance(group.failure, KeyError)
    assert group.failed.is_set()
    assert faults.reported == 1
    await group.close()


async def test_a_loop_that_is_kept_begins_again_until_it_fails_for_good(caplog):
    faults = Faults()
    group = TaskGroup("broker", faults=faults)
    errors = [OSError("one"), ValueError("two"), LookupError("for good")]

    async def run():
        raise errors.pop(0)

    async with asyncio.timeout(10):
        with pytest.raises(LookupError, match="for good"):
            await group.keep(run, name="watch", ends_by=(LookupError,))
    assert faults.reported == 2
    assert "broker/watch: begins again in 0.05 s: unforeseen OSError: one" in caplog.text
    assert "broker/watch: begins again in 0.1 s: unforeseen ValueError: two" in caplog.text
    assert isinstance(group.failure, LookupError)
    await group.close()


async def test_a_loop_that_is_kept_may_end():
    group = TaskGroup("broker", faults=Faults())
    runs = []

    async def run():
        runs.append(True)
        if len(runs) < 3:
            raise OSError("unforeseen")

    async with asyncio.timeout(10):
        await group.keep(run, name="lease", ends_by=(LookupError,))
    assert len(runs) == 3
    assert not group.failed.is_set()
    await group.close()


async def test_a_fault_is_contained_and_cancellation_is_not():
    faults = Faults()
    with faults.contained("journal", "a/journal"):
        raise KeyError("unforeseen")
    assert isinstance(faults.last, KeyError)

    async def waits():
        with faults.contained("journal", "a/journal"):
            await asyncio.Event().wait()

    group = TaskGroup("broker", faults=faults)
    task = group.spawn(waits())
    await turns()
    await group.close()
    assert task.cancelled()
    assert faults.reported == 1


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(LeaseLost("it has ended"), False), (KeyError("unforeseen"), True)]
)
async def test_only_unforeseen_error_is_logged_with_where_it_arose(error, has_traceback, caplog):
    group = TaskGroup("consumer")

    async def fails():
        raise error

    group.spawn(fails(), name="lease", is_essential=True)
    async with asyncio.timeout(10):
        await group.failed.wait()
    (record,) = caplog.records
    assert "task consumer/lease failed: " in record.getMessage()
    assert (record.exc_info is not None) == has_traceback
    await group.close()


# -------------------- Calls in threads, whose callers are cancelled.
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_however_often_it_is_cancelled_a_caller_waits_for_its_thread(tasks, times):
    entered, may_end = threading.Event(), threading.Event()

    def work():
        entered.set()
        assert may_end.wait(10)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        task = tasks.spawn(run_in(executor, work))
        await loop.run_in_executor(None, entered.wait, 10)
        for _ in range(times):
            task.cancel()
            await asyncio.wait([task], timeout=0.05)
            assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_error_of_a_call_whose_caller_was_cancelled_is_not_a_fault(tasks):
    """No caller is left to get it; asyncio would log it as an error that was never retrieved."""
    entered, may_end, logged = threading.Event(), threading.Event(), []

    def work():
        entered.set()
        assert may_end.wait(10)
        raise KeyError("absent")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context["message"]))
    with ThreadPoolExecutor(1) as executor:
        task = tasks.spawn(run_in(executor, work))
        await loop.run_in_executor(None, entered.wait, 10)
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        may_end.set()
        await asyncio.wait([task])
    assert task.cancelled()
    del task  # which holds the call's future by its traceback
    gc.collect()
    assert logged == []


async def test_what_a_call_raises_is_raised():
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(KeyError):
            await run_in(executor, {}.__getitem__, "absent")
        assert await run_in(executor, int, "7") == 7


# -------------------- One question of many things.
async def test_a_few_are_asked_at_a_time_and_answers_keep_the_order():
    under_way = most = 0

    async def ask(number):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await turns(number % 3)
        under_way -= 1
        return -number

    assert await side_by_side(ask, range(20), at_a_time=3) == [-n for n in range(20)]
    assert most == 3
    assert await side_by_side(ask, (), at_a_time=3) == []


async def test_the_first_error_ends_all_and_comes_as_it_is():
    before = asyncio.all_tasks()

    async def ask(number):
        if number == 2:
            raise ValueError("two")
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="two"):
        await side_by_side(ask, range(5), at_a_time=3)
    await turns()
    assert asyncio.all_tasks() == before


# -------------------- Waits that an event ends, beside their own cancellation.
async def test_interrupts_end_a_wait_and_all_later_ones():
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    loop.call_soon(interrupt.fire)
    with pytest.raises(Interrupted):
        await interrupt.wait(asyncio.Event().wait())
    with pytest.raises(Interrupted):
        await interrupt.wait(turns())
    await turns()  # the task itself goes on


async def test_interrupts_do_not_swallow_cancellation():
    interrupt = Interrupt()
    waiting = asyncio.ensure_future(interrupt.wait(asyncio.Event().wait()))  # noqa: TID251
    await turns()
    waiting.cancel()
    interrupt.fire()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    async def late_result():
        await turns()
        return "result"

    assert await Interrupt().wait(late_result()) == "result"


# -------------------- Turns of long computations: each comes on, and however many there are, others do too.
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
    """How long the loop let no other task have a turn while `work` went on."""
    task = asyncio.ensure_future(work)  # noqa: TID251  awaited below
    longest, last = 0.0, time.thread_time()
    while not task.done():
        await turns()
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    await task
    return longest


@pytest.mark.parametrize("count", [1, 60])
async def test_computations_blocks_nothing_else_however_many_there_are(count):
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
