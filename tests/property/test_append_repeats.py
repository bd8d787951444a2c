"""Appends that ask for what the one before them did go its way, and end as if each had been checked."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from append_groups import FLAGS, GROUPS, REQUESTS
from appender_bench import running_bench, spec
from hypothesis import given, strategies as st

from gazette_platform.broker.append.fsm import AppendFSM
from gazette_platform.protocol import JournalFlag
from gazette_platform.serving.interface import RpcFailed


async def play(groups, *, length, flags):
    """Returns: how each append ended, what the journal received, and its content."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_bench(Path(folder)) as bench:
            bench.journal.spec = spec(length=length, flags=flags)
            ends = []
            for group in groups:
                asked = [bench.submit(b"x" * size, request=request) for request, size in group]
                for done in asked:
                    try:
                        ends.append(await done)
                    except RpcFailed as err:
                        ends.append((err.code, err.text))
            told = bench.journal.commits, bench.journal.rolls, bench.journal.rollbacks
            return ends, told, bench.read()


@given(GROUPS, st.integers(1, 12), FLAGS)
def test_appends_that_repeat_one_end_as_if_each_was_checked(groups, length, flags):
    repeat = AppendFSM.repeat
    with_repeats = asyncio.run(play(groups, length=length, flags=flags))
    AppendFSM.repeat = lambda *_: False
    try:
        without = asyncio.run(play(groups, length=length, flags=flags))
    finally:
        AppendFSM.repeat = repeat
    assert with_repeats == without


def test_some_of_them_are_repeated():
    counted, repeat = [], AppendFSM.repeat
    AppendFSM.repeat = lambda *each: counted.append(repeat(*each)) or counted[-1]
    try:
        groups = [[(REQUESTS[0], 1)]] * 3 + [[(REQUESTS[0], 3)] * 9]
        asyncio.run(play(groups, length=10_000, flags=JournalFlag.O_RDWR))
    finally:
        AppendFSM.repeat = repeat
    assert counted.count(True) == 8
