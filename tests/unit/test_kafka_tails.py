"""What a consumer is given where content of a journal is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("kio")

from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.kafka.tails import ReadAhead, Tail
from gazette_platform.testing.waiting import eventually


async def test_lines_before_and_after_a_gap_keep_their_offsets():
    ahead = ReadAhead()
    tail = Tail(SimpleNamespace(config=KafkaConfig(port=0)), "a/b", ahead, asyncio.Event())
    tail.position = 100
    tail._take(b"one\ntwo\nthr")
    async with asyncio.TaskGroup() as group:
        group.create_task(pump_over_gap(tail))
        await eventually(lambda: ahead.held == len(b"one\ntwo\n"))
        assert tail.lines(1000, one=True) == b"one\ntwo\n"
        tail.advance(4)
        assert (tail.position, tail.lines(1000, one=True)) == (104, b"two\n")
        tail.advance(4)
    assert (tail.position, tail.lines(1000, one=True)) == (500, b"four\n")
    tail.advance(5)
    assert ahead.held == 0


async def pump_over_gap(tail):
    await tail._jump(500)
    tail._take(b"four\n")
