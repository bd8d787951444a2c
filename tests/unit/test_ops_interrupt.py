"""Waits that an event ends, beside their own cancellation."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.ops.tasks import Interrupt, Interrupted
from gazette_platform.testing.waiting import turns


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
