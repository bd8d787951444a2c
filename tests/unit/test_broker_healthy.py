"""Appends wait for the store of a journal, and see soon that one which was away is back."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.broker.journal.claims import wait_healthy
from gazette_platform.errors import StoreUnavailable
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.stores import StoreRegistry


class Away:
    """A store that is away, as its health checks find, until it `is_back`."""

    def __init__(self):
        self.url = "file:///"
        self.is_back = False
        self.checks = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def check(self, _):
        self.checks += 1
        await self.answers.wait()
        if not self.is_back:
            raise StoreUnavailable("away")


@pytest.fixture
def away():
    return Away()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def store(away, clock):
    """The store once it has failed so often that the next check is far off."""
    tasks = TaskGroup("test")

    async def pause(seconds, asked):
        if seconds > 50:
            await asked.wait()

    registry = StoreRegistry(lambda _: away, clock, tasks, check=away.check, pause=pause)
    store = registry.get(away.url)
    health = store.health
    while health.failures < 7:
        health = await store.wait_health_change(health)
    yield store
    await tasks.close()
    assert tasks.failure is None


async def test_the_first_append_finds_a_store_that_is_back(store, away, clock):
    away.is_back = True
    assert not await wait_healthy(store, clock)


async def test_a_store_that_stays_away_is_checked_now_and_then(store, away, clock):
    before = away.checks
    for _ in range(5):
        assert "unhealthy: away" in await wait_healthy(store, clock)
    assert away.checks == before + 1
    clock.advance(2.0)
    assert "unhealthy: away" in await wait_healthy(store, clock)
    assert away.checks == before + 2


async def test_no_append_waits_for_a_store_that_does_not_answer(store, away, clock):
    away.answers.clear()
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for _ in range(20):
        assert "unhealthy: away" in await wait_healthy(store, clock)
    assert loop.time() - begin < 5
    away.is_back = True
    away.answers.set()
    while store.health.error is not None:
        await store.wait_health_change(store.health)


async def test_healthy_store_is_not_checked_again(store, away, clock):
    away.is_back = True
    assert not await wait_healthy(store, clock)
    clock.advance(10.0)
    assert not store.ask_check()
