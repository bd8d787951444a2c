"""What a consumer is given where content of a journal is gone."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("kio")

from gazette_platform.kafka.calls.offsets import ReadAhead, Tail
from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.testing.waiting import eventually


def ahead_of(now=lambda: 0.0):
    return ReadAhead(1 << 20, now)


async def test_lines_before_and_after_a_gap_keep_their_offsets():
    ahead = ahead_of()
    tail = Tail(SimpleNamespace(config=KafkaConfig(port=0)), "a/b", ahead, asyncio.Event())
    tail.position = 100
    tail._take(b"one\ntwo\nthr")
    async with asyncio.TaskGroup() as group:
        group.create_task(pump_over_gap(tail))
        await eventually(lambda: ahead.held == len(b"one\ntwo\n"))
        assert given(tail) == b"one\ntwo\n"
        tail.advance(4)
        assert (tail.position, given(tail)) == (104, b"two\n")
        tail.advance(4)
    assert (tail.position, given(tail)) == (500, b"four\n")
    tail.advance(5)
    assert ahead.held == 0


def given(tail, size=1000):
    content, begin, end = tail.lines(size, one=True)
    return content[begin:end]


def test_lines_come_once_whatever_pieces_they_came_in():
    ahead = ahead_of()
    tail = Tail(SimpleNamespace(config=KafkaConfig(port=0)), "a/b", ahead, asyncio.Event())
    lines = [b"%d" % number + b"x" * (number * 997 % 9000) + b"\n" for number in range(300)]
    content, found, at = b"".join(lines), [], 0
    sizes = itertools.cycle([1, 70_000, 5000, 4096, 20, 9000])
    while at < len(content):
        piece = memoryview(content)[at : at + next(sizes)]
        at += len(piece)
        tail._take(piece)
        while line := given(tail, 1 + next(sizes) // 7):
            assert tail.position == sum(map(len, found))
            found.append(line)
            tail.advance(len(line))
            assert ahead.held >= tail._held
    assert b"".join(found) == content
    assert all(each.endswith(b"\n") for each in found)
    assert ahead.held == 0


def test_a_line_that_has_no_end_yet_stirs_no_one():
    stirred = asyncio.Event()
    tail = Tail(SimpleNamespace(config=KafkaConfig(port=0)), "a/b", ahead_of(), stirred)
    for _ in range(3):
        tail._take(memoryview(bytes(100_000)))
    assert (stirred.is_set(), tail.available, len(tail._pieces)) == (False, 0, 3)
    tail._take(b"\n")
    assert (stirred.is_set(), tail.available, len(tail._pieces)) == (True, 300_001, 0)


async def pump_over_gap(tail):
    await tail._jump(500)
    tail._take(b"four\n")
