"""The replicas of a process follow its assignments, batch by batch of a watch that is applied by hand."""

import asyncio

import pytest

from gazette_platform.consumer.assignments import (
    ConsumerState,
    HeldReplica,
    encode_replica_status,
    encode_shard_spec,
)
from gazette_platform.consumer.protocol import ReplicaStatus, ShardSource, ShardSpec
from gazette_platform.consumer.runtime.replicas import ShardReplicas
from gazette_platform.etcd import EtcdClient, Event, KeyValue, ResponseHeader, WatchBatch
from gazette_platform.keyspace import KeySpace, assignment_key, item_key
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import ProcessId
from gazette_platform.testing.waiting import turns

P = "/gazette/consumers/app"
SHARD = "shard-000"
OURS, THEIRS = ProcessId("zone", "ours"), ProcessId("zone", "theirs")
ITEM = item_key(P, SHARD)


def spec_of(source="a/one"):
    return ShardSpec(SHARD, (ShardSource(source),), max_txn_duration_ns=10**9)


class Replica:
    """What a process is asked to do with a replica."""

    def __init__(self, spec, assignment):
        self.spec, self.assignment = spec, assignment
        self.events = []
        self.error, self.may_pass = None, False
        self.may_end = asyncio.Event()

    @property
    def held(self):
        return HeldReplica(self.assignment.slot, self.assignment.create_revision)

    def start(self):
        self.events.append("start")

    def update(self, spec, assignment):
        self.events.append("update")
        self.spec, self.assignment = spec, assignment

    def promote(self, spec, assignment):
        self.events.append("promote")
        self.spec, self.assignment = spec, assignment

    async def stop(self):
        self.events.append("stop")
        await self.may_end.wait()
        self.events.append("stopped")


class Process:
    """The replicas of one process, over a key space that the test writes."""

    def __init__(self, tasks, faults):
        self.made = []
        self.told = []
        self.revision = 10
        self.known = {}
        etcd = EtcdClient(["http://127.0.0.1:1"])
        self.space = KeySpace(etcd, P, ConsumerState(P), faults=faults)
        self.replicas = ShardReplicas(self.space, OURS, make=self.make, tasks=tasks, faults=faults)
        self.replicas.on_stopped = self.told.append

    def make(self, spec, assignment):
        self.made.append(Replica(spec, assignment))
        return self.made[-1]

    def event(self, key, value):
        """A change in a revision of its own; no value removes the key."""
        self.revision += 1
        if value is None:
            del self.known[key]
            return Event(KeyValue(key, b"", 0, self.revision, 0), is_delete=True)
        create, version = self.known.get(key, (self.revision, 0))
        self.known[key] = create, version + 1
        changed = KeyValue(key, value, create, self.revision, version + 1)
        return Event(changed, is_delete=False)

    def watched(self, *changes):
        """Changes of keys, all in one batch."""
        events = tuple(self.event(key, value) for key, value in changes)
        self.space.apply_batches([WatchBatch(ResponseHeader(1, 2, self.revision, 3), events)])


def put_shard(source="a/one"):
    return ITEM, encode_shard_spec(spec_of(source))


def assigned(slot=0, process=OURS):
    return assignment_key(P, SHARD, process, slot), encode_replica_status(ReplicaStatus())


def removed(change):
    return change[0], None


@pytest.fixture
async def process():
    tasks, faults = TaskGroup("replicas"), Faults()
    process = Process(tasks, faults)
    yield process
    for each in process.made:
        each.may_end.set()
    await process.replicas.close()
    await tasks.close()
    assert not faults.recent


async def test_cr4_a_shard_that_is_deleted_and_made_again_in_one_batch_has_a_new_replica(process):
    process.watched(put_shard(), assigned())
    [first] = process.made
    process.watched(removed(assigned()), removed(put_shard()), put_shard("a/two"), assigned())
    _, second = process.made
    assert process.replicas.get(SHARD) is second
    assert second.spec == spec_of("a/two")
    assert process.told == [first]
    await turns()
    # The new one does not wait for the end of the old one.
    assert (first.events, second.events) == (["start", "stop"], ["start"])
    first.may_end.set()
    second.may_end.set()
    await process.replicas.close()
    assert first.events == ["start", "stop", "stopped"]


async def test_cr4_a_standby_is_promoted_within_one_batch_and_cancelled_by_another(process):
    process.watched(put_shard(), assigned(1), assigned(0, THEIRS))
    [replica] = process.made
    process.watched(removed(assigned(0, THEIRS)), removed(assigned(1)), assigned(0))
    assert process.made == [replica]
    assert (replica.events, replica.held.slot) == (["start", "promote"], 0)
    process.watched(removed(assigned(0)))
    assert process.replicas.get(SHARD) is None
    await turns()
    assert replica.events == ["start", "promote", "stop"]


async def test_an_edit_of_the_spec_or_the_status_keeps_the_replica(process):
    process.watched(put_shard(), assigned())
    process.watched(put_shard("a/two"))
    process.watched(assigned())
    [replica] = process.made
    assert replica.events == ["start", "update", "update"]
    assert replica.spec == spec_of("a/two")


async def test_a_failure_is_of_the_assignment_under_which_it_came(process):
    process.watched(put_shard(), assigned())
    first = process.space.state.assignment_of(SHARD, OURS)
    assert not process.replicas.may_pass(first)
    process.made[0].may_pass = True
    assert process.replicas.may_pass(first)
    process.watched(removed(assigned()), assigned())
    process.made[1].may_pass = True
    assert not process.replicas.may_pass(first)
    process.watched(removed(assigned()))
    assert not process.replicas.may_pass(first)


async def test_shards_of_others_have_no_replica_here_and_none_comes_after_the_end(process):
    process.watched(put_shard(), assigned(0, THEIRS))
    assert process.made == []
    await process.replicas.close()
    process.watched(assigned(1))
    assert process.made == []
