"""One question of many things, to a few of them at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = ["side_by_side"]

S = TypeVar("S")
T = TypeVar("T")


async def side_by_side(
    ask: Callable[[S], Awaitable[T]], subjects: Iterable[S], *, at_a_time: int
) -> list[T]:
    """What `ask` gives for each of `subjects`, in their order.

    Args:
        ask: called once for each; what it raises ends all.
        subjects: of which `at_a_time` are asked at a time.

    Raises: what the first that failed raises. Cancellation: cancels all that are asked.
    """
    slots = asyncio.Semaphore(at_a_time)

    async def one(subject: S) -> T:
        async with slots:
            return await ask(subject)

    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(one(subject)) for subject in subjects]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in asked]
