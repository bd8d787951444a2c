"""Etcd is restored from a backup: a consumer's shard goes on from its hints and its recovery log."""

from __future__ import annotations

import pytest
from backup_calls import PREFIX, backed_up, crash, lose_etcd, lose_spools, restored

from gazette_platform.app import Application, JSONFileStore
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.testing.local import LocalBrokers, LocalConsumers
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

SHARD = """
shards:
  - id: shard-1
    sources: [{journal: a/source}]
    recovery_log_prefix: logs
    hint_prefix: /backup/hints
    hint_backups: 1
    max_txn_duration: 1s
"""


JOURNALS = """
replication: 1
fragment: {length: 1048576, compression_codec: NONE, stores: ["file:///"], refresh_interval: 1m}
children:
  - {name: a/source, labels: [{name: content-type, value: application/x-ndjson}]}
  - {name: logs/shard-1, labels: [{name: content-type, value: application/x-gazette-recoverylog}]}
"""
LOG = "logs/shard-1"


class Counts(Application):
    """Counts each message that it consumes, also those it consumed in a former life."""

    def __init__(self):
        self.consumed = 0

    def new_store(self, shard, recorder):
        return JSONFileStore(recorder, {"n": 0})

    def consume(self, txn, envelope):
        self.consumed += 1
        txn.store.state["n"] += 1


async def consume(consumers, *, lines):
    for _ in range(lines):
        await consumers.client.append("a/source", b'{"n": 1}\n')
    await consumers.wait_through()


@pytest.fixture
async def cluster(own_etcd_server, tmp_path):
    async with LocalBrokers(tmp_path, etcd=own_etcd_server.endpoint, prefix=PREFIX) as cluster:
        yield cluster


async def test_shard_goes_on_where_its_log_was_persisted(cluster, own_etcd_server, tmp_path):
    file = tmp_path / "etcd.backup"
    server, group = own_etcd_server, "/backup/consumers"
    (change,) = parse_shard_changes(SHARD)

    def consumers_of(client, folder):
        return LocalConsumers(folder, etcd=server.endpoint, prefix=group, client=client)

    broker = await cluster.start(append_wait_s=0.5)
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply(parse_journal_tree(JOURNALS))
        async with consumers_of(client, tmp_path / "first") as consumers:
            process = await consumers.start(Counts())
            await consumers.create_shards(change.spec)
            await consume(consumers, lines=3)
            await backed_up(server, file)
            await consume(consumers, lines=2)  # the log goes on after the hints of the backup
            await consumers.leave(process)
        await client.flush("")
        end = await client.write_head(LOG)
    await crash(broker)
    await lose_etcd(server)
    lose_spools(broker)
    await restored(server, file)
    broker = await cluster.start()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        for journal in (await client.list_snapshot("")).journals:
            await client.reset_head(journal.spec.name)
        assert await client.write_head(LOG) >= end
        async with consumers_of(client, tmp_path / "second") as consumers:
            application = Counts()
            process = await consumers.start(application)
            await consumers.wait_primary("shard-1")
            await consume(consumers, lines=4)
            assert application.consumed == 4, "it consumed again what its log had recorded"
            assert (await consumers.store("shard-1")).state == {"n": 9}
            await consumers.leave(process)
