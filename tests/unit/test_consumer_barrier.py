"""What ACKs of a transaction wait for, and what a commit does."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.consumer.runtime.run import Barrier
from gazette_platform.consumer.store.base import all_succeeded
from gazette_platform.consumer.transaction import Transactions
from gazette_platform.errors import DependencyFailed, ShardStopped, StoreError
from gazette_platform.message import AckIntent
from gazette_platform.ops.clock import ManualClock
from gazette_platform.testing.waiting import turns

ACK = AckIntent("out/one", b"ack")


class Ticket:
    def add_done_callback(self, callback):
        pass


class Appends:
    """Notes what is to be appended, and after what."""

    def __init__(self):
        self.asked = []

    def submit_nowait(self, journal, content, *, after):
        self.asked.append((journal, content))
        [self.after] = after
        return Ticket()


@pytest.fixture
async def raised():
    """A barrier, its commit, and what its ACK waits for."""
    appends, commit = Appends(), asyncio.get_running_loop().create_future()
    barrier = Barrier(Transactions(0.0, {}), ManualClock(), lambda: None)
    barrier.raise_up(commit, appends, [ACK])
    assert appends.asked == [(ACK.journal, ACK.content)]
    await turns()
    assert not appends.after.done()
    return barrier, commit, appends.after


async def test_acks_are_behind_the_commit(raised):
    _, commit, after = raised
    commit.set_result(None)
    await asyncio.wait_for(after, 5)


async def test_acks_fail_with_the_commit(raised):
    _, commit, after = raised
    commit.set_exception(StoreError("disk"))
    with pytest.raises(StoreError, match="disk"):
        await asyncio.wait_for(after, 5)


@pytest.mark.parametrize("ends", [True, False])
async def test_acks_are_given_up_with_a_commit_of_unknown_end(raised, ends):
    barrier, commit, after = raised
    barrier.abandon()
    barrier.abandon()
    with pytest.raises(ShardStopped, match="its commit was not waited for"):
        await asyncio.wait_for(after, 5)
    if ends:  # too late
        commit.set_result(None)
        await turns()


@pytest.mark.parametrize("how", ["fails", "failed", "cancelled"])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_nothing_is_committed_if_any_need_has_not_succeeded(how, at):
    loop = asyncio.get_running_loop()
    needs = [loop.create_future() for _ in range(3)]
    waiting = asyncio.get_running_loop().create_task(all_succeeded(needs))
    if how == "fails":
        await turns()
    for index, need in enumerate(needs):
        if index != at:
            need.set_result(None)
        elif how == "cancelled":
            need.cancel()
        else:
            need.set_exception(StoreError("disk"))
    with pytest.raises(DependencyFailed, match="nothing is committed"):
        await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_nothing_is_committed_before_each_need_has_succeeded(at):
    loop = asyncio.get_running_loop()
    needs = [loop.create_future() for _ in range(3)]
    waiting = asyncio.get_running_loop().create_task(all_succeeded(needs))
    for need in needs[:at] + needs[at + 1 :]:
        need.set_result(None)
    await turns(5)
    assert not waiting.done()
    needs[at].set_result(None)
    await asyncio.wait_for(waiting, 5)
