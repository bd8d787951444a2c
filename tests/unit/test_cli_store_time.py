"""The time by the clocks of stores, which decides what is old enough to be removed."""

from __future__ import annotations

import os

import pytest

from gazette_platform.cli.gazctl.journals.prune import StoreTime
from gazette_platform.errors import AccessDenied
from gazette_platform.ops.clock import ManualClock
from gazette_platform.stores.interface import StoredObject


class Dated:
    """A store whose clock is ahead of that of this machine, or which cannot be asked."""

    def __init__(self, clock, url="file:///", *, ahead_s=0.0, error=None):
        self.url = url
        self.asked = 0
        self._clock = clock
        self._ahead_s = ahead_s
        self._error = error
        self._written = {}

    async def put(self, path, fd, length, *, content_encoding=""):
        assert os.fstat(fd).st_size == length
        self.asked += 1
        if self._error is not None:
            raise self._error
        self._written[path] = int(self._clock.unix_s() + self._ahead_s)

    async def list(self, prefix):
        for path, written_at in self._written.items():
            yield StoredObject(path.removeprefix(prefix), written_at, 1)

    async def remove(self, path):
        del self._written[path]


@pytest.fixture
def clock():
    found = ManualClock()
    found.advance(86_400.0 * 30)  # this machine has been up for long
    return found


@pytest.fixture
def told():
    return []


async def test_of_a_store_that_cannot_be_asked_the_clock_of_this_machine_counts(clock, told):
    store, time = Dated(clock, error=AccessDenied("no")), StoreTime(clock, told.append)
    for _ in range(2):
        assert await time.now_s([store]) == pytest.approx(clock.unix_s())
        clock.advance(3600)
    assert store.asked == 1
    assert [line.split(":")[0] for line in told] == ["warning"]


@pytest.mark.parametrize("ahead_s", [-7200.0, 0.0, 7200.0])
async def test_the_time_of_a_store_goes_on_after_it_was_asked(clock, told, ahead_s):
    store, time = Dated(clock, ahead_s=ahead_s), StoreTime(clock, told.append)
    for _ in range(2):
        found = await time.now_s([store])
        assert clock.unix_s() + ahead_s - 1 < found <= clock.unix_s() + ahead_s
        clock.advance(3600)
    assert store.asked == 1
    assert len(told) == (ahead_s != 0)


async def test_of_several_stores_the_one_that_is_most_behind_counts(clock, told):
    """Else what the others have just stored would be taken for old."""
    stores = [Dated(clock, f"file:///{n}/", ahead_s=n * 3600) for n in (0, -2, 1)]
    time = StoreTime(clock, told.append)
    found = await time.now_s(stores)
    assert clock.unix_s() - 7201 < found <= clock.unix_s() - 7200
    assert await time.now_s([]) == clock.unix_s()
