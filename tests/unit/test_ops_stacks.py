"""The stacks of tasks that wait."""

from __future__ import annotations

import asyncio

from gazette_platform.ops.stacks import describe_tasks
from gazette_platform.ops.tasks import TaskGroup


async def test_tasks_are_described_down_to_what_they_wait_for():
    never = asyncio.Event()

    async def inner():
        await never.wait()

    async def outer():
        await inner()

    tasks = TaskGroup("test")
    tasks.spawn(outer(), name="a task that waits")
    await asyncio.sleep(0)
    shown = await asyncio.to_thread(describe_tasks, asyncio.get_running_loop())
    await tasks.close()
    lines = shown.splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.endswith("a task that waits:")]
    places = [line.rsplit(".", 1)[-1] for line in lines[at + 1 :]]
    begin = places.index("outer")
    assert places[begin : begin + 3] == ["outer", "inner", "wait"]
    assert "test_ops_stacks.py:" in lines[at + 1 + begin]
