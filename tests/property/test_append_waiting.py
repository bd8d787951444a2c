"""Appends that wait without a task get what futures get, and hold no stock once they have ended."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import weakref
from pathlib import Path

import pytest
from append_groups import FLAGS, GROUPS
from appender_bench import running_bench, spec
from hypothesis import given, strategies as st

from gazette_platform.broker.api.append_calls import Gathered, WaitingAppend
from gazette_platform.broker.append.content import Stock
from gazette_platform.broker.append.events import AppendRequest
from gazette_platform.broker.append.fsm import AppendFSM
from gazette_platform.protocol import Status
from gazette_platform.serving.interface import RpcFailed
from gazette_platform.testing.waiting import eventually


class Ends:
    """Makes responses, and collects how appends ended."""

    def __init__(self):
        self.told = {}

    def answer(self, asked, outcome, counts):
        return outcome, (asked, counts.total_chunks, counts.delayed_chunks)

    async def go_on(self, asked, pending, outcome, counts):
        return outcome, "elsewhere"

    def answered(self, caller, outcome, response):
        assert response[1:] == (2, 0)
        assert response[0] is caller or response[0] == caller
        self.end(caller, outcome)

    def failed(self, caller, err):
        self.end(caller, (err.code, err.text))

    def end(self, caller, how):
        assert caller not in self.told
        self.told[caller] = how


async def play(groups, gone, *, length, flags, waits):
    """Returns: how each append ended, what the journal received, and its content."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_bench(Path(folder)) as bench:
            bench.journal.spec = spec(length=length, flags=flags)
            stock, ends, number = Stock(), Ends(), 0
            for group in groups:
                asked = []
                for request, size in group:
                    if waits:
                        append = WaitingAppend(
                            ends,
                            ends,
                            number,
                            number,
                            machine=AppendFSM(request),
                            chunks=[memoryview(b"x" * size)] if size else [],
                            gathered=Gathered(stock),
                            total_chunks=2,
                            wait_until=0.0,
                        )
                        bench.appender.submit(append.pending)
                        leave = append.leave
                    else:
                        done = bench.submit(b"x" * size, request=request)
                        asked.append((number, done))
                        leave = done.cancel
                    if number in gone:
                        leave()
                        ends.told[number] = "gone"
                    number += 1
                for caller, done in asked:
                    if caller not in gone:
                        try:
                            ends.end(caller, await done)
                        except RpcFailed as err:
                            ends.end(caller, (err.code, err.text))
                await eventually(lambda count=number: len(ends.told) == count)
            assert stock.held_bytes == 0
            told = bench.journal.commits, bench.journal.rolls, bench.journal.rollbacks
            return ends.told, told, bench.read()


@given(GROUPS, st.sets(st.integers(0, 20), max_size=3), st.integers(1, 12), FLAGS)
def test_appends_without_a_task_end_as_those_with_one(groups, gone, length, flags):
    found = [
        asyncio.run(play(groups, gone, length=length, flags=flags, waits=waits))
        for waits in (False, True)
    ]
    assert found[0] == found[1]


class Caller:
    """A caller that appends."""


class Silent(Ends):
    def end(self, caller, how):
        self.told[how.status] = True


@pytest.mark.parametrize("leaves", [False, True])
async def test_append_that_has_ended_needs_no_garbage_collection(tmp_path, leaves):
    ends = Silent()
    async with running_bench(tmp_path) as bench:
        for content in (b"in step", b"and in a second fragment"):
            await bench.append(content)
        caller = Caller()
        reference = weakref.ref(caller)
        append = WaitingAppend(
            ends,
            ends,
            caller,
            caller,
            machine=AppendFSM(AppendRequest("a/journal")),
            chunks=[memoryview(b"x")],
            gathered=Gathered(Stock()),
            total_chunks=2,
            wait_until=0.0,
        )
        gc.disable()
        try:
            bench.appender.submit(append.pending)
            if leaves:
                append.leave()
            del append, caller
            for content in (b"in its batch", b"after it"):
                await bench.append(content)
            await eventually(lambda: reference() is None)
            assert ends.told == ({} if leaves else {Status.OK: True})
        finally:
            gc.enable()
