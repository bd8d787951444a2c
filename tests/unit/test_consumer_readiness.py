"""Callers that wait for a primary learn its progress, and its end."""

from __future__ import annotations

import asyncio

import pytest
from shard_bench import IN, assigned, spec_of

from gazette_platform.consumer.application import Shard
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.runtime.status import Readiness
from gazette_platform.consumer.transaction import CompletedTransaction
from gazette_platform.errors import ShardStopped
from gazette_platform.message import SequencerCheckpoint
from gazette_platform.testing.waiting import turns


def restored(offset):
    return Checkpoint(SequencerCheckpoint(offsets={IN: offset}, producers=()))


async def test_waiting_caller_learns_each_step_and_the_end():
    shard = Shard("shard-000", "f", spec_of(), assigned(), None, None)
    readiness = Readiness(shard)
    loop = asyncio.get_running_loop()
    near, far = (loop.create_task(readiness.wait({IN: offset})) for offset in (10, 30))
    await turns()
    readiness.ready(restored(5))
    await turns()
    assert not near.done()
    readiness.completed(CompletedTransaction({IN: 20}, {}, 1, None))
    await asyncio.wait_for(near, 5)
    readiness.ready(restored(7))  # of a former commit
    assert shard.progress.read_through == {IN: 20}
    await turns(3)
    assert not far.done()
    readiness.ended()
    with pytest.raises(ShardStopped):
        await asyncio.wait_for(far, 5)
    await readiness.wait({IN: 20})
