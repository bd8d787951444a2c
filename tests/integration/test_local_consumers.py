"""What the kit for tests of consumers says to its user when the application fails."""

from __future__ import annotations

import pytest

from gazette_platform.app import Application, MemoryStore
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.testing import local
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = """
name: a/journal
replication: 1
fragment: {length: 1048576, compression_codec: NONE, stores: ["file:///"], refresh_interval: 1m}
labels: [{name: content-type, value: application/x-ndjson}]
"""
SHARD = "shards: [{id: shard-1, sources: [{journal: a/journal}], max_txn_duration: 1s}]"


async def test_waiting_for_a_shard_that_fails_raises_its_error(local_consumers, monkeypatch):
    """It was a TimeoutError without a word before, after 30 seconds."""

    class Picky(Application):
        def new_store(self, shard, recorder):
            return MemoryStore({})

        def consume(self, txn, envelope):
            raise ValueError("not this one")

    monkeypatch.setattr(local, "_FAILED_S", 0.2)
    await local_consumers.client.apply(parse_journal_tree(JOURNAL))
    await local_consumers.start(Picky())
    await local_consumers.create_shards(*(each.spec for each in parse_shard_changes(SHARD)))
    await local_consumers.client.append("a/journal", b'{"n": 1}\n')
    with pytest.raises(
        AssertionError, match=r"shard-1 has failed: .*offset 0 to 9: ValueError: not this one"
    ):
        await local_consumers.wait_through()


async def test_store_learns_the_lease_of_its_process_before_it_restores(local_consumers):
    seen = []

    class Store(MemoryStore):
        def follow_lease(self, lease_s):
            seen.append(lease_s)

        async def restore_checkpoint(self):
            seen.append("restore")
            return await super().restore_checkpoint()

    class Quiet(Application):
        def new_store(self, shard, recorder):
            return Store({})

        def consume(self, txn, envelope):
            pass

    await local_consumers.client.apply(parse_journal_tree(JOURNAL))
    await local_consumers.start(Quiet(), etcd_lease_s=9.0)
    await local_consumers.create_shards(*(each.spec for each in parse_shard_changes(SHARD)))
    assert seen[:2] == [9.0, "restore"]
