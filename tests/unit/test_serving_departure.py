"""The steps of a server that leaves: none of them holds up the next one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gazette_platform.ops.faults import Faults
from gazette_platform.serving.process import Departure
from gazette_platform.testing.waiting import turns


@pytest.fixture
def faults():
    return Faults(lambda _: None)


async def for_ever():
    await asyncio.Event().wait()


async def test_a_step_that_ends_in_time_is_well(faults):
    assert await Departure(faults).step(5.0, "sleeping", turns())


async def test_a_step_that_takes_too_long_is_reported_and_passed_over(faults, caplog):
    with caplog.at_level(logging.ERROR, logger="gazette_platform"):
        assert not await Departure(faults).step(0.001, "closing journals", for_ever())
    assert [record.getMessage() for record in caplog.records] == [
        "leaving: closing journals takes too long; going on without"
    ]
    assert not faults.recent


async def test_an_error_of_a_step_is_a_fault_and_no_end(faults):
    async def fails():
        raise LookupError("what was to be closed")

    assert not await Departure(faults).step(None, "closing journals", fails())
    (error,) = faults.recent
    assert isinstance(error, LookupError)


async def test_a_hurry_ends_the_step_that_is_under_way(faults):
    departure = Departure(faults)
    asyncio.get_running_loop().call_soon(departure.hurry)
    assert not await asyncio.wait_for(departure.step(None, "handing over", for_ever()), 5)


async def test_a_step_after_a_hurry_has_a_second(faults, monkeypatch):
    monkeypatch.setattr("gazette_platform.serving.process._HURRY_S", 0.01)
    departure = Departure(faults)
    departure.hurry()
    for limit_s in (None, 60.0):
        assert not await asyncio.wait_for(departure.step(limit_s, "storing", for_ever()), 5)
    assert await departure.step(None, "the last", turns())


async def test_a_step_ends_with_who_waits_for_it(faults):
    ended = asyncio.Event()

    async def works():
        try:
            await for_ever()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Departure(faults).step(60.0, "storing", works()), 0.01)
    assert ended.is_set()
