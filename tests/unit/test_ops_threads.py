"""Calls in threads, whose callers are cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gazette_platform.ops.tasks import run_in


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


async def test_what_a_call_raises_behind_its_cancelled_caller_is_no_fault(tasks):
    """Nobody is left to tell it to; asyncio would log it as an error that nobody has looked at."""
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
