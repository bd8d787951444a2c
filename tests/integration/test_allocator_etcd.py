"""Announcements and the allocator loop on a real etcd, with as many members as a test wants."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gazette_platform.allocator import Allocator, Announcement, announce
from gazette_platform.errors import LeaseLost, TransactionFailed
from gazette_platform.etcd import Compare, Delete, EtcdClient, Lease, Put
from gazette_platform.keyspace import (
    BrokerState,
    KeySpace,
    encode_journal_spec,
    encode_route,
    item_key,
    member_key,
)
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
)
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

A = ProcessId("zone-a", "broker-a")
B = ProcessId("zone-b", "broker-b")


def broker(process_id: ProcessId, limit: int = 100) -> BrokerSpec:
    return BrokerSpec(process_id, "http://127.0.0.1:8080", journal_limit=limit)


def journal(name: str, replication: int = 1) -> bytes:
    fragment = FragmentSpec(1024, CompressionCodec.NONE, refresh_interval_ns=10**9)
    return encode_journal_spec(JournalSpec(name, replication, fragment=fragment))


class Process:
    """A member as a broker process would be one, with a primary that publishes its routes."""

    def __init__(self, endpoint: str, prefix: str, process_id: ProcessId, limit: int) -> None:
        self.client = EtcdClient([endpoint])
        self.id = process_id
        self.space = KeySpace(self.client, prefix, BrokerState(prefix), watch_delay_s=0.005)
        self.tasks = TaskGroup(process_id.suffix)
        self.is_syncing = True
        self.is_stopped = False
        self._spec = broker(process_id, limit)
        self.lease: Lease
        self.announcement: Announcement
        self.allocator: Allocator
        self.run: asyncio.Task[None]

    async def start(self) -> None:
        await self.client.connect()
        self.lease = await self.client.grant_lease(20)
        self.announcement = await announce(self.client, self.space.prefix, self._spec, self.lease)
        await self.space.load(self.announcement.revision)
        self.allocator = Allocator(self.client, self.space, self.id)
        self.tasks.spawn(self.space.watch(), name="watch")
        self.tasks.spawn(self._sync(), name="sync")
        self.run = self.tasks.spawn(self.allocator.run(), name="allocator")

    async def stop(self) -> None:
        """Leave; a second call does nothing."""
        if self.is_stopped:
            return
        self.is_stopped = True
        await self.tasks.close()
        await self.lease.revoke()
        await self.client.close()

    async def relieved(self) -> None:
        """Wait until it is exiting and holds nothing; the loop goes on for as long as it is a member."""
        async with asyncio.timeout(patient(20)):
            while not (status := self.allocator.drain_status()).is_exiting or status.assigned:
                await self.space.wait_for_revision(self.space.revision + 1)
        assert not self.run.done()

    async def _sync(self) -> None:
        """Stands for the brokers' pipelines: as primary, put the route into every value."""
        state = self.space.state
        while True:
            revision = self.space.revision
            for name in list(state.journals):
                mine = state.assignment_of(name, self.id)
                if mine is None or mine.slot != 0 or not self.is_syncing:
                    continue
                if not state.is_consistent(name):
                    value = encode_route(state.route_of(name))
                    found = state.assignments_of(name)
                    await self.client.txn(
                        [Compare.mod(a.key, a.mod_revision) for a in found],
                        [Put(a.key, value, ignore_lease=True) for a in found],
                    )
            await self.space.wait_for_revision(revision + 1)


class Cluster:
    def __init__(self, etcd: EtcdClient, prefix: str, stack: contextlib.AsyncExitStack) -> None:
        self.etcd = etcd
        self.prefix = prefix
        self._stack = stack

    async def join(self, process_id: ProcessId, *, limit: int = 100) -> Process:
        process = Process(self.etcd.endpoint, self.prefix, process_id, limit)
        await process.start()
        self._stack.push_async_callback(process.stop)
        return process

    async def apply(self, *names: str, replication: int = 1) -> None:
        puts = [Put(item_key(self.prefix, n), journal(n, replication)) for n in names]
        await self.etcd.txn([], puts)

    async def delete(self, name: str) -> None:
        await self.etcd.txn([], [Delete(item_key(self.prefix, name))])

    async def assigned(self) -> dict[str, list[tuple[str, int]]]:
        """By journal: (suffix of the member, slot), by slot."""
        head = f"{self.prefix}/assign/"
        found: dict[str, list[tuple[str, int]]] = {}
        for kv in (await self.etcd.range(head, keys_only=True)).kvs:
            name, _, suffix, slot = kv.key[len(head) :].split("#")
            found.setdefault(name, []).append((suffix, int(slot)))
        return {name: sorted(slots, key=lambda s: s[1]) for name, slots in found.items()}

    async def until(self, expected: dict[str, list[tuple[str, int]]]) -> None:
        """Wait until exactly this is assigned."""
        found: dict[str, list[tuple[str, int]]] = {}

        async def is_so() -> bool:
            nonlocal found
            found = await self.assigned()
            return found == expected

        with contextlib.suppress(TimeoutError):  # the difference says more
            await eventually(is_so)
        assert found == expected


@pytest.fixture
async def cluster(etcd, etcd_prefix):
    async with contextlib.AsyncExitStack() as stack:
        yield Cluster(etcd, etcd_prefix, stack)


# ------------------------------------------------------------------- announcing


async def test_n1_updates_until_the_lease_ends(etcd, etcd_prefix):
    lease = await etcd.grant_lease(20)
    ours = await announce(etcd, etcd_prefix, broker(A), lease)
    await ours.update(broker(A, limit=7))
    await ours.set_exiting()
    await ours.set_exiting()
    found = await etcd.get(member_key(etcd_prefix, A))
    assert (found.mod_revision, found.version, found.lease) == (ours.revision, 3, lease.id)
    assert (ours.spec.exiting, ours.spec.journal_limit) == (True, 7)
    await lease.revoke()
    assert await etcd.get(member_key(etcd_prefix, A)) is None
    with pytest.raises(TransactionFailed, match="key modified or deleted externally"):
        await ours.update(broker(A))


async def test_n2_waits_for_the_lease_of_an_old_instance(etcd, etcd_prefix, monkeypatch):
    old, new = await etcd.grant_lease(20), await etcd.grant_lease(20)
    await announce(etcd, etcd_prefix, broker(A, limit=1), old)
    txn, refused = etcd.txn, []

    async def counted(*args):
        result = await txn(*args)
        refused.append(not result.succeeded)
        return result

    monkeypatch.setattr(etcd, "txn", counted)
    waiting = asyncio.ensure_future(  # noqa: TID251
        announce(etcd, etcd_prefix, broker(A), new, retry_s=0.02)
    )
    await eventually(lambda: len(refused) >= 3)
    assert all(refused)
    assert not waiting.done()
    await old.revoke()
    ours = await asyncio.wait_for(waiting, patient(20))
    found = await etcd.get(member_key(etcd_prefix, A))
    assert (found.lease, found.mod_revision) == (new.id, ours.revision)


async def test_n3_same_lease_is_idempotent(etcd, etcd_prefix):
    lease = await etcd.grant_lease(20)
    first = await announce(etcd, etcd_prefix, broker(A), lease)
    second = await announce(etcd, etcd_prefix, broker(A), lease)
    assert second.revision == first.revision
    third = await announce(etcd, etcd_prefix, broker(A, limit=3), lease)
    assert third.revision > first.revision


# ------------------------------------------------------------------- one broker


@pytest.mark.own_brokers
async def test_bad_item_does_not_hold_up_the_others(cluster):
    a = await cluster.join(A)
    await cluster.apply("item/bad", "item/good")
    await cluster.until({"item/bad": [("broker-a", 0)], "item/good": [("broker-a", 0)]})
    await a.stop()
    await cluster.etcd.put(item_key(cluster.prefix, "item/bad"), b"\xff")
    orphan = f"{cluster.prefix}/assign/item/bad#zone-a#broker-a#0"
    await cluster.etcd.put(orphan, b"")  # seen as dead, while its item is in etcd
    await cluster.join(B)
    await cluster.apply("item/new")
    expected = {"item/good": [("broker-b", 0)], "item/new": [("broker-b", 0)]}
    await cluster.until({**expected, "item/bad": [("broker-a", 0)]})


@pytest.mark.own_brokers
async def test_a_member_that_changes_beneath_a_transaction_does_not_leave_its_item_behind(
    cluster, monkeypatch
):
    """As one that begins to drain: the mirror may show that before etcd's refusal arrives."""
    a = await cluster.join(A)
    txn, refused = a.client.txn, []

    async def txn_behind_a_change(compares, operations):
        monkeypatch.undo()
        own = await a.client.get(member_key(cluster.prefix, A))
        changed = await txn((), (Put(own.key, own.value, ignore_lease=True),))
        await a.space.wait_for_revision(changed.header.revision)
        result = await txn(compares, operations)
        refused.append(not result.succeeded)
        return result

    monkeypatch.setattr(a.client, "txn", txn_behind_a_change)
    await cluster.apply("item/one")
    await cluster.until({"item/one": [("broker-a", 0)]})
    assert refused == [True]


@pytest.mark.own_brokers
async def test_lost_member_key_ends_the_loop(cluster):
    a = await cluster.join(A)
    await cluster.etcd.delete(member_key(cluster.prefix, A))
    with pytest.raises(LeaseLost, match="member key not found in Etcd"):
        await asyncio.wait_for(a.run, 5)


# ------------------------------------------------------------------- several


@pytest.mark.own_brokers
async def test_z3_hand_over_waits_for_consistency(cluster):
    a = await cluster.join(A)
    await cluster.apply("item/one")
    await cluster.until({"item/one": [("broker-a", 0)]})
    a.is_syncing = False
    await cluster.join(B)
    await a.announcement.set_exiting()
    # Over-replicated, and no further: the new replica has nothing yet.
    await cluster.until({"item/one": [("broker-a", 0), ("broker-b", 1)]})
    # A round assigns another item, and leaves this one as it is.
    await cluster.apply("item/two")
    two = {"item/two": [("broker-b", 0)]}
    await cluster.until({"item/one": [("broker-a", 0), ("broker-b", 1)], **two})
    a.is_syncing = True
    await cluster.apply("item/one")  # wakes the primary up
    await cluster.until({"item/one": [("broker-b", 0)], **two})
    await a.relieved()


@pytest.mark.own_brokers
async def test_a2_two_leaders_cannot_both_write(cluster):
    a = await cluster.join(A)
    # Another process changed A's member key, so that A's comparison is stale until it sees that.
    stale = a.space.state.members[A].mod_revision
    await a.announcement.update(broker(A, limit=50))
    await a.space.wait_for_revision(a.announcement.revision, timeout_s=patient(20))
    compare = Compare.mod(member_key(cluster.prefix, A), stale)
    result = await cluster.etcd.txn([compare], [Put(f"{cluster.prefix}/x", b"")])
    assert not result.succeeded
    await cluster.apply("item/one")
    await cluster.until({"item/one": [("broker-a", 0)]})


@pytest.mark.own_brokers
async def test_n4_a_session_from_announcement_to_the_end_of_its_lease(cluster):
    a = await cluster.join(A)
    b = await cluster.join(B)
    await cluster.apply("item/one")
    await cluster.until({"item/one": [("broker-a", 0)]})
    key = member_key(cluster.prefix, A)
    assert (await cluster.etcd.get(key)).lease == a.lease.id
    await a.announcement.set_exiting()  # what a signal does
    await a.relieved()
    await a.stop()
    assert await cluster.etcd.get(key) is None
    await cluster.apply("item/two")
    await cluster.until({"item/one": [("broker-b", 0)], "item/two": [("broker-b", 0)]})
    assert b.allocator.leader == B
