"""A thread notices what blocks the event loop."""

from __future__ import annotations

import logging

import pytest

from gazette_platform.ops.tasks import LoopWatch
from gazette_platform.testing.waiting import block_for, eventually, turns


@pytest.fixture
async def watch():
    watch = LoopWatch(0.3)
    watch.start()
    yield watch
    watch.stop()


def slow_callback():
    block_for(2.0)


async def test_blocked_loop_is_reported_with_its_place(watch, caplog):
    await turns(5)
    slow_callback()
    said = watch.said(within_s=60.0)
    assert said.startswith("slow_callback at test_ops_loop_watch.py:")
    assert said.endswith(" blocked its event loop for 2 s")
    assert watch.said(within_s=0.0) == ""
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "its lease too" in record.message


async def test_loop_that_has_turns_is_not_reported(watch, caplog):
    for _ in range(3):
        block_for(0.02)
        await turns(5)
    await eventually(lambda: True)
    assert watch.said(within_s=60.0) == ""
    assert caplog.records == []
