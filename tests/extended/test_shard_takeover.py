"""Replicas that take a shard over too late: who has it now goes on, over a real broker and a real etcd."""

from __future__ import annotations

import asyncio

import pytest
from shard_bench import SHARD, Bench, Numbered, make_journals, spec_of
from shard_group import IDLE, ShardGroup

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.assignments import encode_replica_status
from gazette_platform.consumer.etcd_hints import EtcdShardHost
from gazette_platform.consumer.runtime.replica import ShardReplica
from gazette_platform.consumer.runtime.tasks import ReplicaSettings
from gazette_platform.errors import ShardStopped
from gazette_platform.etcd import Delete, EtcdClient, Put
from gazette_platform.keyspace import assignment_key
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]


class SlowHost:
    """The host of a replica whose process stops for a while behind some call, and sees nothing of it."""

    def __init__(self, host, behind, meanwhile):
        self._host = host
        self._behind = behind
        self._meanwhile = meanwhile
        self.pauses = 0

    def __getattr__(self, name):
        return getattr(self._host, name)

    async def fetch_hints(self):
        return await self._paused("fetch_hints")

    async def confirm(self):
        return await self._paused("confirm")

    async def _paused(self, name):
        found = await getattr(self._host, name)()
        if name == self._behind:
            self.pauses += 1
            await self._meanwhile()
        return found


class Case:
    """A shard, and two processes that have it one after the other."""

    def __init__(self, bench, group, spec):
        self.bench, self.group, self.spec = bench, group, spec
        self.application = Numbered()
        self.published = 0

    async def begin(self):
        self.former = await self.group.start("former")
        self.present = await self.group.start("present")
        await self.group.put_shard(self.spec)
        await self.group.assign(SHARD, self.former)

    def replica(self, process, *, behind="", meanwhile=None):
        assignment = process.space.state.assignment_of(SHARD, process.id)
        host = EtcdShardHost(process.api, assignment)
        replica = ShardReplica(
            self.application,
            self.bench.client,
            SlowHost(host, behind, meanwhile) if behind else host,
            fqn=f"/items/{SHARD}",
            spec=self.spec,
            assignment=assignment,
            settings=ReplicaSettings(directory=self.bench.directory),
        )
        replica.host = replica._host
        self.bench.replicas.append(replica)
        replica.start()
        return replica

    async def hand_over(self):
        """From now on the present one has the shard. The former one does not know it."""
        await self.former.tasks.close()  # its view stands still
        process = self.present
        result = await self.group.etcd.txn(
            [],
            [
                Delete(assignment_key(self.group.prefix, SHARD, self.former.id, 0)),
                Put(
                    assignment_key(self.group.prefix, SHARD, process.id, 0),
                    encode_replica_status(IDLE),
                ),
            ],
        )
        await process.space.wait_for_revision(result.header.revision, timeout_s=10)
        replica = self.replica(process)
        await self.check(replica)
        return replica

    async def check(self, replica):
        """It is the primary, and its state is right."""
        offsets = await self.bench.publish(self.published, self.published + 1)
        self.published += 2
        async with asyncio.timeout(patient(30)):
            store = await replica.wait_through(offsets)
        assert store.state["all"] == self.published
        assert replica.error is None
        assert [each["number"] for each in await self.bench.output()] == [
            *range(1, self.published + 1)
        ]


@pytest.fixture
async def bench(local_brokers, tmp_path):
    broker = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await make_journals(client)
        bench = Bench(client, tmp_path / "replicas")
        yield bench
        await bench.close()


@pytest.fixture
async def make_case(bench, etcd_server, etcd_prefix):
    async with EtcdClient([etcd_server.endpoint]) as etcd:
        group = ShardGroup(etcd, etcd_server.endpoint, f"{etcd_prefix}-consumers")

        async def make(**fields):
            case = Case(bench, group, spec_of(**fields))
            await case.begin()
            return case

        yield make
        await bench.close()
        await group.stop()
        await etcd.delete("/hints/", prefix=True)


async def outcome(replica):
    """What it failed with; None: it has taken the shard over."""

    async def is_known():
        return replica.has_ended or replica.is_ready or replica.shard.recovered_hints is not None

    await eventually(is_known)
    return replica.error


async def test_a_process_that_lost_its_assignment_unknowingly_takes_no_database_over(make_case):
    case = await make_case(log=False)
    present = await case.hand_over()
    late = case.replica(case.former)
    error = await outcome(late)
    await case.check(present)
    assert isinstance(error, ShardStopped)
    assert not late.is_ready


@pytest.mark.parametrize("behind", ["fetch_hints", "confirm"])
async def test_process_that_stops_during_a_takeover_fences_no_other(make_case, behind):
    case = await make_case()
    present = None

    async def meanwhile():
        nonlocal present
        if present is None:
            present = await case.hand_over()

    late = case.replica(case.former, behind=behind, meanwhile=meanwhile)
    error = await outcome(late)
    await case.check(present)
    assert isinstance(error, ShardStopped)
    assert late.host.pauses == 1


async def test_the_rightful_owner_goes_on_behind_a_hand_off_that_came_first(make_case):
    case = await make_case()
    former = case.replica(case.former)
    await case.check(former)
    late = None

    async def meanwhile():
        nonlocal late
        if late is None:  # as if it was the owner still
            late = case.replica(case.former)
            await asyncio.wait_for(late.wait_through(), patient(30))

    # The same process, whose replica was started again while the old one was about to take over.
    again = case.replica(case.former, behind="confirm", meanwhile=meanwhile)
    async with asyncio.timeout(patient(30)):
        await again.wait_through()
    assert again.host.pauses > 1
    await former.stop()
    await late.stop()
    await case.check(again)
