"""Groups of Kafka's clients in etcd: who may write them, and that no write is lost."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from gazette_platform.errors import Fenced
from gazette_platform.etcd import EtcdClient
from gazette_platform.kafka.coordinator.group_store import (
    Committed,
    GroupRecord,
    GroupStore,
    encode_offsets,
    newest_ms,
)
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.gateway import kafka_root
from gazette_platform.ops.tasks import TaskGroup


@pytest.fixture
async def etcd(etcd_server, etcd_prefix):
    async with EtcdClient([etcd_server.endpoint]) as client:
        yield client
        await client.delete(kafka_root(etcd_prefix), prefix=True)


@pytest.fixture
async def stores(etcd, etcd_prefix):
    """Makes stores of several nodes."""
    tasks = TaskGroup("stores")

    def make():
        store = GroupStore(etcd, etcd_prefix, tasks=tasks)
        store.start()
        return store

    yield make
    await tasks.close()
    assert tasks.failure is None


def at(offset, ms=7):
    return Committed(offset, -1, "m", 1, ms)


async def test_next_claim_fences_the_former(stores):
    first, second = stores(), stores()
    former = await first.claim("g/é %", 1, now_ms=5)
    await first.save(former, GroupRecord(3, 1, "consumer", "range", 6))
    await first.commit(former, {"t": {0: at(10), 1: at(11)}})
    taken = await second.claim("g/é %", 2, now_ms=7)
    assert taken.record == GroupRecord(3, 2, "consumer", "range", 7)
    with pytest.raises(Fenced):
        await first.commit(former, {"t": {0: at(99)}})
    with pytest.raises(Fenced):
        await first.save(former, GroupRecord(4, 1))
    await second.commit(taken, {"t": {0: at(20)}, "u": {5: at(1)}})
    assert await first.offsets("g/é %") == {"t": {0: at(20), 1: at(11)}, "u": {5: at(1)}}
    assert await first.record("g/é %") == GroupRecord(3, 2, "consumer", "range", 7)
    assert await first.offsets("g") == {}


async def test_waiting_commits_share_transactions(stores, etcd, etcd_prefix):
    store = stores()
    claims = [await store.claim(f"g{one}", 1, now_ms=0) for one in range(90)]
    before = (await etcd.range(kafka_root(etcd_prefix), keys_only=True)).header.revision
    await asyncio.gather(
        *(store.commit(one, {"t": {n: at(n)}}) for one in claims for n in range(20))
    )
    after = (await etcd.range(kafka_root(etcd_prefix), keys_only=True)).header.revision
    assert after - before <= 6  # others use this etcd too; 1,800 commits of 90 groups
    for one in claims:
        assert await store.offsets(one.group_id) == {"t": {n: at(n) for n in range(20)}}


async def test_large_commits_of_one_group_do_not_fail_others(stores):
    """More than etcd takes at once, of strangers that commit all the time."""
    store = stores()
    large = Committed(1, -1, "\0" * 4096, 1, 7)
    names = [f"large{one}" for one in range(59)]
    claims = await asyncio.gather(*(store.claim(one, 1, now_ms=0) for one in names))
    small = await store.claim("small", 1, now_ms=0)
    commits = [store.commit(one, {"t": {0: large, 1: large}}) for one in claims]
    await asyncio.gather(*commits, store.commit(small, {"t": {0: at(5)}}))
    assert await store.offsets("small") == {"t": {0: at(5)}}
    assert await store.offsets("large58") == {"t": {0: large, 1: large}}
    with pytest.raises(KafkaError) as caught:
        await store.commit(claims[0], {"t": dict.fromkeys(range(100), large)})
    assert caught.value.code is ErrorCode.invalid_commit_offset_size
    assert await store.offsets("large0") == {"t": {0: large, 1: large}}
    await store.commit(claims[0], {"t": {0: at(6)}})


async def test_former_claim_of_the_same_node_writes_nothing(stores):
    store = stores()
    former = await store.claim("g", 1, now_ms=0)
    following = await store.claim("g", 1, now_ms=1)
    results = await asyncio.gather(
        store.commit(former, {"t": {0: at(1)}}),
        store.commit(following, {"u": {0: at(2)}}),
        return_exceptions=True,
    )
    assert isinstance(results[0], Fenced)
    assert results[1] is None
    assert await store.offsets("g") == {"u": {0: at(2)}}


async def test_fenced_group_does_not_fail_others_of_its_batch(stores):
    first, second = stores(), stores()
    claims = {name: await first.claim(name, 1, now_ms=0) for name in ("a", "b", "c")}
    for one in claims.values():
        await first.save(one, one.record)
    await second.claim("b", 2, now_ms=0)
    results = await asyncio.gather(
        *(first.commit(one, {"t": {0: at(1)}}) for one in claims.values()), return_exceptions=True
    )
    assert [type(one) for one in results] == [type(None), Fenced, type(None)]
    assert [await first.offsets(name) for name in "abc"] == [
        {"t": {0: at(1)}},
        {},
        {"t": {0: at(1)}},
    ]


async def test_of_two_claims_of_a_new_group_the_first_to_write_counts(stores, etcd):
    first, second = stores(), stores()
    claims = [await one.claim("g", node, now_ms=0) for node, one in ((1, first), (2, second))]
    assert await etcd.get(first.group_key("g")) is None
    await second.commit(claims[1], {"t": {0: at(2)}})
    with pytest.raises(Fenced):
        await first.commit(claims[0], {"t": {0: at(1)}})
    assert await first.offsets("g") == {"t": {0: at(2)}}
    assert (await first.record("g")).node == 2


async def test_only_a_group_without_offsets_is_forgotten(stores, etcd):
    store = stores()
    claim = await store.claim("g", 1, now_ms=0, owner="o")
    await store.save(claim, claim.record)
    assert (await store.record("g")).owner == "o"
    await etcd.put(store.pending_key("g", "x"), b"{}")
    assert not await store.forget("g", claim.revision)
    await etcd.delete(store.pending_key("g", "x"))
    await store.commit(claim, {"t": {0: at(1)}})
    assert not await store.forget("g", claim.revision)
    await store.commit(claim, {"t": {0: None}})
    assert not await store.forget("g", claim.revision - 1)
    assert await store.forget("g", claim.revision)
    assert await store.record("g") is None


async def test_offsets_of_a_transaction_survive_a_commit(stores, etcd):
    store = stores()
    claim = await store.claim("g", 1, now_ms=0)
    await store.commit(claim, {"t": {0: at(1), 1: at(1)}})
    # As the end of a transaction does, at another node.
    await etcd.put(store.offsets_key("g", "t"), encode_offsets({0: at(1), 1: at(50)}))
    await store.commit(claim, {"t": {0: at(2)}})
    assert await store.offsets("g") == {"t": {0: at(2), 1: at(50)}}


async def test_removed_offsets_leave_no_key(stores, etcd):
    store = stores()
    claim = await store.claim("g", 1, now_ms=0)
    await store.commit(claim, {"t": {0: at(1)}})
    await store.commit(claim, {"t": {0: None}})
    assert await etcd.get(store.offsets_key("g", "t")) is None
    await store.commit(claim, {"t": {0: at(3)}})
    assert await store.offsets("g") == {"t": {0: at(3)}}


async def test_deleted_group_is_gone_and_its_coordinator_fenced(stores):
    store = stores()
    claim = await store.claim("g", 1, now_ms=0)
    await store.commit(claim, {"t": {0: at(1)}})
    assert not await store.delete("g", claim.revision - 1)
    assert await store.delete("g", claim.revision)
    assert (await store.record("g"), await store.offsets("g")) == (None, {})
    with pytest.raises(Fenced):
        await store.commit(claim, {"t": {0: at(2)}})
    assert await store.offsets("g") == {}


def test_newest_use_of_a_group_is_its_last_commit():
    assert newest_ms(GroupRecord(at_ms=5), [{0: at(1, ms=9)}, {}]) == 9
    assert newest_ms(GroupRecord(at_ms=5), []) == 5
