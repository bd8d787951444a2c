"""Owned tasks: a group ends what it started, and shows what failed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gazette_platform.ops.tasks import TaskGroup


async def test_join_waits_for_every_task():
    group = TaskGroup("reader")
    done = []

    async def work(number):
        await asyncio.sleep(0)
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
        await asyncio.sleep(0)
        done.set()

    async def parent():
        group.spawn(child())

    group.spawn(parent())
    await group.join()
    assert done.is_set()


async def test_failure_is_kept_signalled_and_logged(caplog):
    group = TaskGroup("spool")

    async def fails():
        raise ValueError("disk is full")

    with caplog.at_level(logging.ERROR):
        group.spawn(fails(), name="a/b")
        await asyncio.wait_for(group.failed.wait(), 1)
        group.spawn(fails(), name="second")
        await group.join()
    assert str(group.failure) == "disk is full"
    assert "task spool/a/b failed: disk is full" in caplog.text
    await group.close()


async def test_close_cancels_and_waits():
    group = TaskGroup("watch")
    cleaned = []

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    group.spawn(waits())
    group.spawn(waits())
    await asyncio.sleep(0)
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
    await asyncio.sleep(0)
    with caplog.at_level(logging.WARNING):
        await group.close(timeout_s=0.01)
    assert "task stubborn/one did not end within 0.01 s" in caplog.text
    release.set()
    await task
