"""Owned tasks: a group ends what it started, and shows what failed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gazette_platform.errors import LeaseLost
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
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
    assert str(group.failure) == "disk is full", "the first one tells most"
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
async def test_only_what_nobody_foresaw_is_logged_with_where_it_arose(error, has_traceback, caplog):
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
