"""Recovery logs that are deleted and made again, while hints, and the lack of hints, are of the former ones."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.app import Application, JSONFileStore
from gazette_platform.client import Change
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.consumer.recoverylog import FsmHints, Player
from gazette_platform.errors import JournalNotFound, JournalReplaced
from gazette_platform.etcd import EtcdClient
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import eventually, patient
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNALS = """
replication: 1
fragment: {length: 1048576, compression_codec: NONE, stores: ["file:///"], refresh_interval: 1m}
children:
  - {name: a/source, labels: [{name: content-type, value: application/x-ndjson}]}
  - {name: logs/shard-1, labels: [{name: content-type, value: application/x-gazette-recoverylog}]}
"""
LOG = "logs/shard-1"
REFUSED = f"{LOG} was deleted and made again"


class Counts(Application):
    """Counts each message that it consumes, also those it consumed in a former life."""

    def __init__(self):
        self.consumed = 0

    def new_store(self, shard, recorder):
        return JSONFileStore(recorder, {"n": 0})

    def consume(self, txn, envelope):
        self.consumed += 1
        txn.store.state["n"] += 1


@pytest.fixture
def prefix(etcd_prefix):
    return f"{etcd_prefix}-hints"


@pytest.fixture
async def shard(local_consumers, prefix):
    await local_consumers.client.apply(parse_journal_tree(JOURNALS))
    spec = f"""
shards:
  - id: shard-1
    sources: [{{journal: a/source}}]
    recovery_log_prefix: logs
    hint_prefix: {prefix}
    hint_backups: 1
    max_txn_duration: 1s
"""
    (change,) = parse_shard_changes(spec)
    return change.spec


async def consume(consumers, lines):
    for _ in range(lines):
        await consumers.client.append("a/source", b'{"n": 1}\n')
    await consumers.wait_through()


async def make_again(client, fragments):
    spec = (await client.get(LOG)).spec
    await client.flush(f"name={LOG}")
    await client.apply([Change(None, delete=LOG, revision=-1)])
    for file in (fragments / LOG).glob("*"):
        file.unlink()
    await client.apply([Change(spec)])

    async def is_new():
        try:
            return await client.write_head(LOG) == 0
        except JournalNotFound:
            return False

    await eventually(is_new)


async def failure(consumers):
    """Wait until the shard has failed. Returns: what its status says."""

    async def errors():
        async with consumers.shard_client() as client:
            (listing,) = await client.list("id=shard-1")
            return listing.status.errors

    return " ".join(await eventually(errors))


@pytest.mark.parametrize("lives", [1, 2])
async def test_shard_refuses_a_log_made_again_until_its_key_is_deleted(
    local_brokers, local_consumers, etcd_server, shard, prefix, lives
):
    """In its first life a shard has no hints. The new log seemed to be that of a shard that begins."""
    first = True
    for _ in range(lives):
        process = await local_consumers.start(Counts())
        if first:
            await local_consumers.create_shards(shard)
        first = False
        await local_consumers.wait_primary("shard-1")
        await consume(local_consumers, 5)
        await local_consumers.crash(process)
    await make_again(local_consumers.client, local_brokers.fragments)
    again = Counts()
    local_consumers.expect(JournalReplaced)
    process = await local_consumers.start(again)
    assert REFUSED in await failure(local_consumers)
    assert again.consumed == 0
    await local_consumers.crash(process)

    async with EtcdClient([etcd_server.endpoint]) as etcd:
        await etcd.delete(f"{prefix}/", prefix=True)
    again = Counts()
    await local_consumers.start(again)
    await local_consumers.wait_primary("shard-1")
    await consume(local_consumers, 1)
    assert again.consumed == 5 * lives + 1


async def test_standby_refuses_a_log_made_again_while_it_follows(
    local_brokers, local_consumers, shard, tmp_path
):
    client = local_consumers.client
    created = (await client.get(LOG)).created
    player = Player(client, FsmHints(LOG), tmp_path / "played", created=created)
    tasks = TaskGroup("player")
    playing = tasks.spawn(player.play())
    await player.tailing.wait()
    await make_again(client, local_brokers.fragments)
    with pytest.raises(JournalReplaced):
        await asyncio.wait_for(playing, patient(30))
    await tasks.close()
