"""The shared allocator assigns shards on a real etcd: hot standbys, fail-over, hand-off."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gazette_platform.allocator import Allocator, announce
from gazette_platform.consumer.assignments import ConsumerState, encode_shard_spec, write_status
from gazette_platform.consumer.protocol import ConsumerSpec, ReplicaCode, ReplicaStatus, ShardSpec
from gazette_platform.etcd import EtcdClient, Put
from gazette_platform.keyspace import KeySpace, item_key
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import ProcessId
from gazette_platform.testing.waiting import patient

pytestmark = pytest.mark.etcd

SHARD = "app/shard-000"


class Process:
    """A consumer process whose replicas recover at once, unless a test lets them wait."""

    def __init__(self, endpoint: str, prefix: str, suffix: str) -> None:
        self.client = EtcdClient([endpoint])
        self.id = ProcessId("zone", suffix)
        self.state = ConsumerState(prefix)
        self.space = KeySpace(self.client, prefix, self.state, watch_delay_s=0.005)
        self.tasks = TaskGroup(suffix)
        self.may_recover = asyncio.Event()
        self.may_recover.set()

    async def start(self) -> None:
        await self.client.connect()
        self.lease = await self.client.grant_lease(20)
        spec = ConsumerSpec(self.id, "http://127.0.0.1:1", shard_limit=8)
        self.announcement = await announce(self.client, self.space.prefix, spec, self.lease)
        await self.space.load(self.announcement.revision)
        allocator = Allocator(self.client, self.space, self.id, max_replication=2)
        self.tasks.spawn(self.space.watch(), name="watch")
        self.tasks.spawn(self._tell(), name="tell")
        self.tasks.spawn(allocator.run(), name="allocator")

    async def stop(self) -> None:
        await self.tasks.close()
        await self.lease.revoke()
        await self.client.close()

    async def _tell(self) -> None:
        while True:
            revision = self.space.revision
            for assignment in list(self.state.assignments_to(self.id).values()):
                code = ReplicaCode.PRIMARY if assignment.slot == 0 else ReplicaCode.STANDBY
                if assignment.status.code < code:
                    await self.may_recover.wait()
                    write = write_status(assignment, ReplicaStatus(code))
                    await self.client.txn(write.compares, write.operations)
            await self.space.wait_for_revision(revision + 1)


@pytest.fixture
async def join(etcd, etcd_prefix):
    async with contextlib.AsyncExitStack() as stack:

        async def start(suffix: str) -> Process:
            process = Process(etcd.endpoint, etcd_prefix, suffix)
            await process.start()
            stack.push_async_callback(process.tasks.close)
            stack.push_async_callback(process.client.close)
            stack.push_async_callback(process.lease.revoke)
            return process

        yield start


async def until(process: Process, *expected: tuple[str, int, str]) -> None:
    """Wait until the shard has these replicas: (suffix, slot, code)."""
    async with asyncio.timeout(patient(10)):
        while True:
            found = tuple(
                (a.process_id.suffix, a.slot, a.status.code.name)
                for a in process.state.assignments_of(SHARD)
            )
            if found == expected:
                return
            await process.space.wait_for_revision(process.space.revision + 1)


async def apply(etcd, prefix, **changes) -> None:
    spec = ShardSpec(SHARD, max_txn_duration_ns=10**9, **changes)
    await etcd.txn([], [Put(item_key(prefix, SHARD), encode_shard_spec(spec))])


async def test_hot_standby_takes_over_and_another_one_comes(etcd, etcd_prefix, join):
    one, two = await join("process-1"), await join("process-2")
    await apply(etcd, etcd_prefix, hot_standbys=9)  # and processes allow one
    async with asyncio.timeout(patient(10)):
        while {s.code.name for s in two.state.statuses_of(SHARD)} != {"STANDBY", "PRIMARY"}:
            await two.space.wait_for_revision(two.space.revision + 1)
    primary = two.state.primary_of(SHARD).process_id
    dying, living = (one, two) if primary == one.id else (two, one)
    three = await join("process-3")
    before = living.state.assignment_of(SHARD, living.id)
    assert before.slot == 1
    # The new key begins with the status of the old one, not as an idle replica.
    living.may_recover.clear()
    await dying.stop()
    await until(three, (living.id.suffix, 0, "STANDBY"), ("process-3", 1, "STANDBY"))
    after = three.state.assignment_of(SHARD, living.id)
    assert after.create_revision > before.create_revision
    living.may_recover.set()
    await until(three, (living.id.suffix, 0, "PRIMARY"), ("process-3", 1, "STANDBY"))
