"""Etcd loses its data while brokers are down that were killed: their spools join what is stored."""

from __future__ import annotations

import pytest
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.client import Change
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

HELD = LabelSet.of(holder="one")


async def crash(broker):
    """As by SIGKILL, except for what its process shares with the test."""
    await broker._server.stop(grace_s=0.0)
    await broker._lease.revoke()
    await broker.abandon()


async def killed(cluster, *, stored):
    """Append content, let a part of it be stored, and kill the broker."""
    broker = await cluster.start()
    async with client_of(broker) as client:
        await client.apply([Change(spec())])
        if stored:
            await client.append(JOURNAL, stored)
            await client.flush(f"name={JOURNAL}")
        await client.append(JOURNAL, b"held", union_registers=HELD)
    await crash(broker)


async def lose_data(etcd, prefix):
    for key in (await etcd.range("/")).kvs:
        if prefix in key.key:
            await etcd.delete(key.key)


@pytest.mark.parametrize("stored", [b"", b"stored "], ids=["nothing stored", "some stored"])
async def test_spool_goes_on_after_etcd_lost_its_data(cluster, etcd, etcd_prefix, stored):
    await killed(cluster, stored=stored)
    await lose_data(etcd, etcd_prefix)
    broker = await cluster.start()
    await broker._leftovers.settle_all()
    assert not (broker.config.spool_dir / "set-aside").exists()
    async with client_of(broker) as client:
        await client.apply([Change(spec())])
        done = await client.append(JOURNAL, b"!", check_registers=LabelSelector(include=HELD))
        assert (done.begin, done.registers) == (len(stored) + 4, HELD)
        assert await read_all(client) == stored + b"held!"
    await crash(broker)
    broker = await cluster.start()
    async with client_of(broker) as client:
        assert (await client.append(JOURNAL, b"!")).begin == len(stored) + 5
        assert await read_all(client) == stored + b"held!!"


async def test_deleted_journal_leaves_nothing_to_its_successor(cluster, tmp_path):
    await killed(cluster, stored=b"")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = await cluster.start(spool_dir=elsewhere)
    async with client_of(other) as client:
        (listed,) = await client.list_snapshot(LabelSelector.parse(f"name={JOURNAL}"))
        await client.apply([Change(None, delete=JOURNAL, revision=listed.mod_revision)])
    await crash(other)
    broker = await cluster.start()
    async with client_of(broker) as client:
        await client.apply([Change(spec())])
        assert (await client.append(JOURNAL, b"new")).begin == 0
        assert await read_all(client) == b"new"


async def test_broker_that_runs_sets_nothing_aside_when_etcd_loses_its_data(
    cluster, etcd, etcd_prefix
):
    """That etcd has nothing of a journal means little then. The next process knows."""
    await killed(cluster, stored=b"")
    broker = await cluster.start(id="broker-other", journal_limit=0)
    assert JOURNAL not in broker._resolver.replicas
    assert broker._leftovers.has_content(JOURNAL)
    await lose_data(etcd, etcd_prefix)
    await eventually(lambda: JOURNAL not in broker._context.space.state.items)
    await broker._leftovers.settle_all(is_leaving=True)
    assert broker._leftovers.has_content(JOURNAL)
    assert not (broker.config.spool_dir / "set-aside").exists()
