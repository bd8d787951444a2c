"""One question of many things."""

import asyncio

import pytest

from gazette_platform.ops.tasks import side_by_side
from gazette_platform.testing.waiting import turns


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
