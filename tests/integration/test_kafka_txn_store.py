"""Transactions of Kafka's producers in etcd: records that two write, and offsets that count once."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from gazette_platform.errors import Fenced
from gazette_platform.etcd import EtcdClient
from gazette_platform.kafka.coordinator.group_store import Committed, GroupStore
from gazette_platform.kafka.coordinator.live_transactions import TxnStore
from gazette_platform.kafka.coordinator.transactions import (
    add_to,
    begin_producer,
    complete,
    end_transaction,
    init_producer,
)
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.gateway import kafka_root
from gazette_platform.ops.tasks import TaskGroup

ME = (7, 0)
NEW = begin_producer(7, 60_000, now_ms=5)
OPEN = add_to(NEW, ME, journals=("a/b",), groups=("g",), now_ms=6)


@pytest.fixture
async def etcd(etcd_server, etcd_prefix):
    async with EtcdClient([etcd_server.endpoint]) as client:
        yield client
        await client.delete(kafka_root(etcd_prefix), prefix=True)


@pytest.fixture
async def groups(etcd, etcd_prefix):
    tasks = TaskGroup("groups")
    store = GroupStore(etcd, etcd_prefix, tasks=tasks)
    store.start()
    yield store
    await tasks.close()


@pytest.fixture
def store(etcd, etcd_prefix, groups):
    return TxnStore(etcd, etcd_prefix, groups)


def at(offset):
    return Committed(offset, -1, "", 1, 7)


async def test_record_is_read_as_it_was_written(store):
    assert await store.load("é/%") is None
    stored = await store.save("é/%", OPEN, 0)
    assert await store.load("é/%") == stored
    assert stored.transaction == OPEN
    assert await store.all() == {"é/%": stored}


async def test_second_writer_of_a_record_is_fenced(store):
    stored = await store.save("t", OPEN, 0)
    fenced = init_producer(OPEN, (-1, -1), timeout_ms=1, now_ms=7)
    await store.save("t", fenced, stored.revision)
    with pytest.raises(Fenced):
        await store.save("t", end_transaction(OPEN, ME, commit=True), stored.revision)
    assert (await store.load("t")).transaction == fenced
    assert not await store.delete("t", stored.revision)


async def test_producer_ids_of_all_gateways_differ(etcd, etcd_prefix, groups):
    stores = [TxnStore(etcd, etcd_prefix, groups) for _ in range(3)]

    async def take(store):
        return [await store.new_producer_id() for _ in range(1100)]

    taken = await asyncio.gather(*map(take, stores))
    assert len({number for numbers in taken for number in numbers}) == 3300


@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_count_once_and_only_if_committed(store, groups, commit):
    claim = await groups.claim("g", 1, now_ms=0)
    await groups.commit(claim, {"t": {0: at(1), 1: at(1)}})
    stored = await store.save("id", OPEN, 0)
    await store.add_pending("g", "id", stored, {"t": {0: at(5)}}, group_revision=claim.revision)
    await store.add_pending(
        "g", "id", stored, {"t": {2: at(6)}, "u": {0: at(7)}}, group_revision=None
    )
    assert await groups.pending("g") == {("t", 0), ("t", 2), ("u", 0)}
    assert await groups.offsets("g") == {"t": {0: at(1), 1: at(1)}}
    decided = end_transaction(OPEN, ME, commit=commit)
    for _ in range(2):  # also by a node that takes over
        await store.end_pending("g", "id", decided)
    assert await groups.pending("g") == set()
    committed = {"t": {0: at(5), 1: at(1), 2: at(6)}, "u": {0: at(7)}}
    assert await groups.offsets("g") == (committed if commit else {"t": {0: at(1), 1: at(1)}})
    # The coordinator of the group did not know; its next commit keeps them.
    await groups.commit(claim, {"t": {1: at(9)}})
    assert (await groups.offsets("g"))["t"] == (
        {0: at(5), 1: at(9), 2: at(6)} if commit else {0: at(1), 1: at(9)}
    )


async def test_many_offsets_of_a_transaction_are_committed_though_etcd_takes_less_at_once(
    store, groups
):
    claim = await groups.claim("g", 1, now_ms=0)
    topics = [f"t{number}" for number in range(5)]
    known = dict.fromkeys(range(10_000), at(1_000_000_000))  # 350 kB each
    for topic in topics:
        await groups.commit(claim, {topic: known})
    stored = await store.save("id", OPEN, 0)
    for number, topic in enumerate(topics):
        changes = {topic: {0: at(number)}}
        await store.add_pending("g", "id", stored, changes, group_revision=None)
    with pytest.raises(KafkaError) as caught:
        await store.add_pending("g", "id", stored, {"u": known, "v": known}, group_revision=None)
    assert caught.value.code is ErrorCode.invalid_commit_offset_size
    await store.end_pending("g", "id", end_transaction(OPEN, ME, commit=True))
    assert await groups.pending("g") == set()
    found = await groups.offsets("g")
    assert {topic: found[topic][0].offset for topic in topics} == {
        topic: number for number, topic in enumerate(topics)
    }


async def test_late_end_leaves_offsets_of_the_next_transaction(store, groups):
    former = end_transaction(OPEN, ME, commit=True)
    following = add_to(complete(former), ME, groups=("g",), now_ms=9)
    stored = await store.save("id", following, 0)
    await store.add_pending("g", "id", stored, {"t": {0: at(5)}}, group_revision=None)
    await store.end_pending("g", "id", former)
    assert await groups.offsets("g") == {}
    assert await groups.pending("g") == {("t", 0)}


async def test_offsets_are_refused_once_anything_has_changed(store, groups):
    claim = await groups.claim("g", 1, now_ms=0)
    stored = await store.save("id", OPEN, 0)
    with pytest.raises(Fenced):
        await store.add_pending(
            "g", "id", stored, {"t": {0: at(5)}}, group_revision=claim.revision - 1
        )
    await store.save("id", end_transaction(OPEN, ME, commit=True), stored.revision)
    with pytest.raises(Fenced):
        await store.add_pending("g", "id", stored, {"t": {0: at(5)}}, group_revision=None)
    assert await groups.pending("g") == set()
