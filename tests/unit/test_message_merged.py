"""Messages of several readers as one stream: their order, and what errors and cancelled calls leave of it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import DataError
from gazette_platform.message import NO_UUID, UuidParts
from gazette_platform.message.many_journals import MergedReader
from gazette_platform.message.sequencer import Envelope


class Scripted:
    """A reader that gives batches, raises errors, and waits at events, as listed."""

    def __init__(self, journal, *steps):
        self.journal = journal
        self.steps = list(steps)
        self.asked = asyncio.Event()
        self.is_closed = False
        self.at = 0

    async def __anext__(self):
        self.asked.set()
        while self.steps and isinstance(self.steps[0], asyncio.Event):
            await self.steps[0].wait()
            self.steps.pop(0)
        if not self.steps:
            raise StopAsyncIteration
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        batch = []
        for clock in step:
            uuid = UuidParts(b"\1" * 6, clock, 0) if clock else NO_UUID
            batch.append(Envelope(self.journal, self.at, self.at + 1, uuid, (self.journal, clock)))
            self.at += 1
        return batch

    async def aclose(self):
        self.is_closed = True


async def messages(reader):
    return [one.message async for batch in reader for one in batch]


async def test_a_cancelled_call_leaves_out_no_journal(tasks):
    gate = asyncio.Event()
    slow = Scripted("b", gate, [2], [4])
    reader = MergedReader([Scripted("a", [1, 3], [5]), slow])

    async def first():
        return await anext(reader)

    waiting = tasks.spawn(first(), name="read")
    await slow.asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await messages(reader) == [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]


async def test_a_journal_that_failed_is_read_on_and_nothing_overtakes_it():
    reader = MergedReader(
        [Scripted("a", [1], DataError("broken"), [3]), Scripted("b", [2], [4]), Scripted("c")]
    )
    assert [one.message for one in await anext(reader)] == [("a", 1)]
    with pytest.raises(DataError, match="broken"):
        await anext(reader)
    assert await messages(reader) == [("b", 2), ("a", 3), ("b", 4)]


async def test_all_readers_are_closed():
    readers = [Scripted("a", [1]), Scripted("b", [2])]
    async with MergedReader(readers) as merged:
        await anext(merged)
    assert [each.is_closed for each in readers] == [True, True]


_CLOCKS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=4)


@given(st.lists(_CLOCKS, max_size=4))
def test_each_message_comes_once_in_the_order_of_its_journal_and_of_the_clocks(journals):
    async def merged():
        readers = [Scripted(index, *batches) for index, batches in enumerate(journals)]
        return await messages(MergedReader(readers))

    found = asyncio.run(merged())
    rest = [[clock for batch in batches for clock in batch] for batches in journals]
    for index, clock in found:
        assert rest[index].pop(0) == clock
        if clock:
            others = [clocks for other, clocks in enumerate(rest) if other != index]
            assert all(clock <= clocks[0] for clocks in others if clocks), "another was earlier"
    assert not any(rest)
