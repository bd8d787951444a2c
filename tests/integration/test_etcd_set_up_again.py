"""Etcd is set up again, and counts from 1: journals get the create revisions that others of their names had."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from journal_calls import JOURNAL, client_of
from spark_journals import journal_spec

from gazette_platform.client import Change
from gazette_platform.errors import JournalReplaced
from gazette_platform.message import ArrowReader
from gazette_platform.protocol import split_created
from gazette_platform.testing.local import LocalBrokers

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


@pytest.fixture
async def cluster(own_etcd_server, tmp_path):
    async with LocalBrokers(tmp_path, etcd=own_etcd_server.endpoint, prefix="/again") as cluster:
        yield cluster


async def made(cluster, content):
    """Start the first broker of a cluster, make the journal, and append to it."""
    broker = await cluster.start(id="broker")
    async with client_of(broker) as client:
        await client.apply([Change(journal_spec(JOURNAL))])
        await client.append(JOURNAL, content)
        return broker, await client.get(JOURNAL)


async def lose_all(broker, cluster, etcd):
    """Kill the broker, and lose etcd, its spools and its store."""
    await broker._server.stop(grace_s=0.0)
    await broker._lease.revoke()
    await broker.abandon()
    etcd.kill()
    for folder in (etcd.log_path.with_name("data"), cluster.fragments, broker.config.spool_dir):
        shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
    await asyncio.to_thread(etcd.start)


async def test_offset_kept_before_etcd_was_set_up_again_is_refused(cluster, own_etcd_server):
    broker, former = await made(cluster, b'{"n": 1}\n')
    async with client_of(broker) as client:
        reader = ArrowReader(client, f"name={JOURNAL}")
        async for _ in reader:
            pass
        places = reader.places
    await lose_all(broker, cluster, own_etcd_server)
    broker, now = await made(cluster, b'{"n": 100, "text": "a longer one"}\n')
    assert now.create_revision == former.create_revision
    offsets, created = split_created(places)
    async with client_of(broker) as client:
        with pytest.raises(JournalReplaced, match="of another etcd"):
            await anext(client.read(JOURNAL, offsets[JOURNAL], created=created[JOURNAL]))
        with pytest.raises(JournalReplaced, match="of another etcd"):
            await anext(ArrowReader(client, f"name={JOURNAL}", offsets=places))
