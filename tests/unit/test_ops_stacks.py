"""The stacks of tasks and threads that wait."""

from __future__ import annotations

import asyncio
import threading

from gazette_platform.ops.process import describe_tasks, describe_threads
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import turns


async def test_tasks_are_described_down_to_what_they_wait_for():
    never = asyncio.Event()

    async def inner():
        await never.wait()

    async def outer():
        await inner()

    tasks = TaskGroup("test")
    tasks.spawn(outer(), name="a task that waits")
    await turns()
    shown = await asyncio.to_thread(describe_tasks, asyncio.get_running_loop())
    await tasks.close()
    lines = shown.splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.endswith("a task that waits:")]
    places = [line.rsplit(".", 1)[-1] for line in lines[at + 1 :]]
    begin = places.index("outer")
    assert places[begin : begin + 3] == ["outer", "inner", "wait"]
    assert "test_ops_stacks.py:" in lines[at + 1 + begin]


def test_threads_are_described_down_to_where_they_stand():
    stands, goes_on = threading.Event(), threading.Event()

    def outer():
        stands.set()
        goes_on.wait()

    thread = threading.Thread(target=outer, name="one that waits")
    thread.start()
    stands.wait()
    shown = describe_threads()
    goes_on.set()
    thread.join()
    assert "thread MainThread:" in shown
    lines = shown.split("thread one that waits:\n")[1].splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.endswith(".outer")]
    assert lines[at + 1].endswith("Event.wait")
