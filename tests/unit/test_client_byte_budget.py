import asyncio

import pytest

from gazette_platform.client.write.append_queue import ByteBudget
from gazette_platform.errors import ValidationError
from gazette_platform.testing.waiting import turns


def started(budget, sizes, order):
    async def take(size):
        await budget.take(size)
        order.append(size)

    create_task = asyncio.get_running_loop().create_task
    return [create_task(take(size)) for size in sizes]


async def test_who_waits_goes_on_in_order_as_room_comes():
    budget, order = ByteBudget(10), []
    tasks = started(budget, [9, 8, 7, 6], order)
    await turns(5)
    assert order == [9, 8], "the one that fills it is taken"
    assert budget.used == 17
    budget.give_back(9)
    await turns(5)
    assert order == [9, 8, 7]
    budget.give_back(8)
    budget.give_back(7)
    await asyncio.gather(*tasks)
    assert (order, budget.used, budget.is_full) == ([9, 8, 7, 6], 6, False)


async def test_a_newcomer_does_not_overtake_who_waits():
    budget, order = ByteBudget(10), []
    first = started(budget, [10, 3], order)
    await turns(5)
    budget.give_back(10)  # the turn of the second, which has not run yet
    late = started(budget, [10, 1], order)
    await asyncio.gather(*first, late[0])
    assert order == [10, 3, 10]
    assert budget.used == 13
    late[1].cancel()


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_cancelled_one_takes_nothing_and_holds_up_nobody(is_granted):
    budget, order = ByteBudget(10), []
    tasks = started(budget, [10, 5, 4], order)
    await turns(5)
    if is_granted:
        budget.give_back(10)
    tasks[1].cancel()
    if not is_granted:
        await turns(5)
        assert order == [10]
        budget.give_back(10)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [10, 4]
    assert budget.used == 4


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValidationError, match="buffer_bytes_max"):
        ByteBudget(0)
