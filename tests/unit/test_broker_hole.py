"""The hole before a spool: when it closes, and how long its content is expected."""

from __future__ import annotations

import math

import pytest

from gazette_platform.broker.journal.gaps import Hole
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.fragment.index import Index
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import Fragment

JOURNAL = "a/journal"


def stored(begin, end):
    return Fragment(JOURNAL, begin, end, b"x" * 20, backing_store="file:///", mod_time=1)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def index(clock):
    return Index(clock)


@pytest.fixture
async def hole(index, clock):
    return Hole(index, clock)


async def test_there_is_none_before_a_spool_begins_elsewhere(hole):
    hole.look()
    assert (hole.end, hole.is_open, hole.is_filling) == (0, False, False)
    assert hole.refresh_s() == math.inf


async def test_its_last_byte_closes_it(hole, index):
    hole.begin(100)
    index.add_remote(stored(0, 99))
    hole.look()
    assert (hole.end, hole.is_open, hole.is_filling) == (100, True, True)
    index.add_remote(stored(99, 100))
    assert not hole.is_open
    hole.look()
    assert hole.end == 0


async def test_it_stays_closed_when_what_closed_it_is_pruned(hole, index):
    """Reads of all that is left were held up for minutes, as if others were about to store it."""
    hole.begin(100)
    index.replace_remote(CoverSet([stored(90, 100)]))
    hole.look()
    index.replace_remote(CoverSet([stored(100, 150)]))
    hole.look()
    assert (hole.end, hole.is_open, hole.is_filling) == (0, False, False)


async def test_the_next_spool_that_begins_elsewhere_opens_it_again(hole, index, clock):
    hole.begin(100)
    index.add_remote(stored(90, 100))
    hole.look()
    clock.advance(1000)
    hole.begin(200)
    assert (hole.end, hole.is_open, hole.is_filling) == (200, True, True)


async def test_for_minutes_its_content_is_expected_and_looked_for(hole, clock):
    hole.begin(100)
    assert hole.refresh_s() == pytest.approx(0.05)
    clock.advance(138)
    assert hole.is_filling
    assert 0 < hole.refresh_s() < 1
    clock.advance(1)
    assert not hole.is_filling
    assert hole.is_open, "whoever has to know asks the others"
