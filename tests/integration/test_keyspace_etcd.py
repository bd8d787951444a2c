"""The mirror on a real etcd."""

from __future__ import annotations

import pytest
from text_mirror import TextView, watching

from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import KeySpace

pytestmark = pytest.mark.etcd


async def test_y1_load_at_old_revision_then_watch(etcd, etcd_prefix):
    await etcd.put(f"{etcd_prefix}/a", b"1")
    old = await etcd.put(f"{etcd_prefix}/b", b"bad")
    await etcd.delete(f"{etcd_prefix}/a")
    await etcd.put(f"{etcd_prefix}2/a", b"sibling")
    last = await etcd.put(f"{etcd_prefix}/c", b"3")

    space = KeySpace(etcd, etcd_prefix, TextView())
    await space.load(old.revision)
    assert space.state.values == {"a": "1"}
    assert space.revision == old.revision
    async with watching(space):
        await space.wait_for_revision(last.revision, timeout_s=5)
        assert space.state.values == {"c": "3"}
        fixed = await etcd.put(f"{etcd_prefix}/b", b"2")
        await space.wait_for_revision(fixed.revision, timeout_s=5)
        assert space.state.values == {"b": "2", "c": "3"}
    assert space.header.cluster_id == last.cluster_id
    await etcd.delete(f"{etcd_prefix}2/a")


async def test_mirror_loads_again_after_compaction(etcd, etcd_prefix):
    await etcd.put(f"{etcd_prefix}/a", b"1")
    space = KeySpace(etcd, etcd_prefix, TextView())
    await space.load()
    await etcd.txn([], [Delete(f"{etcd_prefix}/a"), Put(f"{etcd_prefix}/b", b"2")])
    last = await etcd.put(f"{etcd_prefix}/b", b"3")
    await etcd.compact(last.revision)
    async with watching(space):
        await space.wait_for_revision(last.revision, timeout_s=5)
        assert space.state.values == {"b": "3"}
        more = await etcd.put(f"{etcd_prefix}/c", b"4")
        await space.wait_for_revision(more.revision, timeout_s=5)
    assert space.state.values == {"b": "3", "c": "4"}


async def test_waiting_for_ever_changing_keys_keeps_up(etcd, etcd_prefix):
    space = KeySpace(etcd, etcd_prefix, TextView())
    await space.load()
    async with watching(space):
        for n in range(30):
            put = await etcd.put(f"{etcd_prefix}/a", b"%d" % n)
            await space.wait_for_revision(put.revision, timeout_s=5)
            assert space.state.values == {"a": str(n)}
