"""When a process has its failed shards start again, over a key space that is written by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gazette_platform.consumer.assignments import (
    ConsumerState,
    encode_replica_status,
    encode_shard_spec,
)
from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus, ShardSource, ShardSpec
from gazette_platform.consumer.runtime.replicas import Restarts
from gazette_platform.errors import EtcdError, TransactionFailed
from gazette_platform.etcd import (
    Compare,
    Delete,
    EtcdClient,
    Event,
    KeyValue,
    ResponseHeader,
    WatchBatch,
)
from gazette_platform.keyspace import KeySpace, assignment_key, item_key
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import ProcessId
from gazette_platform.testing.waiting import turns

P = "/gazette/consumers/app"
SHARD = "shard-000"
OURS, THEIRS = ProcessId("zone", "ours"), ProcessId("zone", "theirs")
KEY = assignment_key(P, SHARD, OURS, 0)
SPEC = ShardSpec(SHARD, (ShardSource("a/one"),), max_txn_duration_ns=10**9)
FAILED = ReplicaStatus(ReplicaCode.FAILED, ("of a reason",))
WELL = ReplicaStatus(ReplicaCode.PRIMARY)


class Etcd:
    """Notes transactions, and answers as the test says: by an error, by whether one succeeded, else that it did."""

    def __init__(self):
        self.made = []
        self.answers = []

    async def txn(self, compares, operations):
        self.made.append((compares, operations))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(succeeded=answer)


class World:
    """What one process sees of a shard."""

    def __init__(self, tasks, caplog):
        self.etcd, self.clock, self.may_pass = Etcd(), ManualClock(), False
        self.revision = 10
        self.known = {}
        self._tasks, self._caplog = tasks, caplog
        nowhere = EtcdClient(["http://127.0.0.1:1"])
        self.space = KeySpace(nowhere, P, ConsumerState(P), faults=Faults())

    def restarts(self, pause_s):
        Restarts(
            self.etcd,
            self.space,
            OURS,
            pause_s=pause_s,
            may_pass=lambda assignment: self.may_pass,
            clock=self.clock,
            tasks=self._tasks,
        )
        self.watched(item_key(P, SHARD), encode_shard_spec(SPEC))

    def watched(self, key, value):
        self.revision += 1
        create, version = self.known.pop(key, (self.revision, 0))
        if value is not None:
            self.known[key] = create, version + 1
        found = KeyValue(key, value or b"", create, self.revision, version + 1)
        event = Event(found, is_delete=value is None)
        header = ResponseHeader(1, 2, self.revision, 3)
        self.space.apply_batches([WatchBatch(header, (event,))])

    def assigned(self, status, *, process=OURS):
        self.watched(assignment_key(P, SHARD, process, 0), encode_replica_status(status))

    def gone(self):
        self.watched(KEY, None)

    async def fails_and_is_removed(self):
        """Returns: seconds that were waited before."""
        self.assigned(FAILED)
        await self.is_idle()
        self.gone()
        return self.pauses[-1]

    async def is_idle(self):
        await self._tasks.join()

    @property
    def pauses(self):
        return [r.args[1] for r in self._caplog.records if "starts again in" in r.msg]


@pytest.fixture
async def world(caplog):
    tasks = TaskGroup("restarts")
    yield World(tasks, caplog)
    await tasks.close()


async def test_a_pause_doubles_up_to_64_times_and_restarts_for_a_shard_that_did_well(world):
    world.restarts(0.001)
    expected = [1, 2, 4, 8, 16, 32, 64, 64]
    for factor in expected:
        assert await world.fails_and_is_removed() == pytest.approx(0.001 * factor)
        world.clock.advance(0.001 * factor)
    # Twice the last pause, since it has started again, is not longer than that.
    world.clock.advance(2 * 0.064 - 0.001)
    assert await world.fails_and_is_removed() == pytest.approx(0.064)
    world.clock.advance(3 * 0.064 + 0.001)
    assert await world.fails_and_is_removed() == pytest.approx(0.001)
    assert await world.fails_and_is_removed() == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("pause_s", "may_pass", "expected"),
    [
        (None, False, []),
        (None, True, [1.0]),
        (0.5, True, [0.5]),
        (5.0, True, [1.0]),
        (5.0, False, [5.0]),
    ],
)
async def test_who_starts_again_and_how_soon(world, pause_s, may_pass, expected):
    world.may_pass = may_pass
    world.restarts(pause_s)
    world.assigned(FAILED)
    world.assigned(FAILED)  # waited for already
    await turns(5)
    assert world.pauses == expected
    assert not world.etcd.made


async def test_what_has_failed_is_removed_once_and_only_as_it_is(world):
    world.restarts(0.001)
    world.assigned(WELL)
    world.assigned(FAILED, process=THEIRS)
    await world.is_idle()
    assert not world.pauses
    world.gone()
    world.etcd.answers = [
        EtcdError("away"),
        False,
    ]  # and another process has written its status meanwhile
    world.assigned(FAILED)
    revision = world.revision
    await world.is_idle()
    assert world.etcd.made == 3 * [([Compare.mod(KEY, revision)], [Delete(KEY)])]


@pytest.mark.parametrize("change", ["gone", "anew", "well"])
async def test_what_is_another_one_behind_the_pause_is_left_alone(world, change):
    world.restarts(0.02)
    world.assigned(FAILED)
    if change == "well":
        world.assigned(WELL)
    else:
        await turns()
        world.gone()
    if change == "anew":
        world.assigned(WELL)
    await world.is_idle()
    assert world.pauses == [0.02]
    assert not world.etcd.made


async def test_a_failure_under_a_former_assignment_removes_none_that_failed_later(world):
    world.restarts(0.02)
    world.assigned(FAILED)
    await turns()
    world.gone()
    world.assigned(FAILED)
    revision = world.revision
    await world.is_idle()
    assert world.etcd.made == [([Compare.mod(KEY, revision)], [Delete(KEY)])]


async def test_an_error_of_etcd_that_lasts_ends_it(world):
    world.restarts(0.001)
    world.etcd.answers = [TransactionFailed("for good")]
    world.assigned(FAILED)
    await world.is_idle()
    assert len(world.etcd.made) == 1
