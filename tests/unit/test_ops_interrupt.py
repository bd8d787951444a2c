"""Waits that an event ends, beside their own cancellation."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.ops.interrupt import Interrupt, Interrupted


async def test_interrupts_end_a_wait_and_all_later_ones():
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    loop.call_soon(interrupt.fire)
    with pytest.raises(Interrupted):
        await interrupt.wait(asyncio.sleep(60))
    with pytest.raises(Interrupted):
        await interrupt.wait(asyncio.sleep(0))
    await asyncio.sleep(0)  # the task itself goes on


async def test_interrupts_do_not_swallow_cancellation():
    interrupt = Interrupt()
    waiting = asyncio.ensure_future(interrupt.wait(asyncio.sleep(60)))  # noqa: TID251
    await asyncio.sleep(0)
    waiting.cancel()
    interrupt.fire()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await Interrupt().wait(asyncio.sleep(0, "result")) == "result"
