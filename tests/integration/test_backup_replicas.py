"""Etcd is lost and restored from a backup: the replicas of a journal go on together."""

from __future__ import annotations

import asyncio

import pytest
from backup_calls import PREFIX, backed_up, crash, lose_etcd, lose_spools, restored
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.client import Change
from gazette_platform.errors import RegisterMismatch
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.testing.local import LocalBrokers
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

FORMER = LabelSet.of(writer="former")


@pytest.fixture
async def cluster(own_etcd_server, tmp_path):
    async with LocalBrokers(tmp_path, etcd=own_etcd_server.endpoint, prefix=PREFIX) as cluster:
        yield cluster


@pytest.mark.parametrize("registers", [LabelSet(), FORMER], ids=["plain", "fenced"])
async def test_replicas_go_on_once_heads_are_reset(cluster, own_etcd_server, tmp_path, registers):
    file = tmp_path / "etcd.backup"
    for each in ("a", "b"):
        (tmp_path / f"spools-{each}").mkdir()

    async def start():
        return [
            await cluster.start(
                id=f"broker-{each}", spool_dir=tmp_path / f"spools-{each}", append_wait_s=0.5
            )
            for each in ("a", "b")
        ]

    brokers = await start()
    async with client_of(brokers[0]) as client:
        await client.apply([Change(spec(replication=2))])
        await client.append(JOURNAL, b"stored ", union_registers=registers)
        await client.flush(f"name={JOURNAL}")
        await client.append(JOURNAL, b"both ")
    await backed_up(own_etcd_server, file)
    for broker in brokers:
        await crash(broker)
    await lose_etcd(own_etcd_server)
    await restored(own_etcd_server, file)
    brokers = await start()
    async with client_of(brokers[0]) as client:
        async with asyncio.timeout(patient(20)):
            assert await client.reset_head(JOURNAL) == 12
            with pytest.raises(RegisterMismatch):  # the former writer may have been fenced since
                await client.append(JOURNAL, b"?", check_registers=LabelSelector(include=FORMER))
            assert (await client.append(JOURNAL, b"!")).begin == 12
        assert await read_all(client) == b"stored both !"


async def test_heads_are_reset_after_both_spools_are_lost(cluster, own_etcd_server, tmp_path):
    """No broker is awaited, and none gives anything up: the journal goes on after what is stored."""
    file = tmp_path / "etcd.backup"
    brokers = [await cluster.start(id=f"broker-{each}", append_wait_s=0.5) for each in "ab"]
    async with client_of(brokers[0]) as client:
        await client.apply([Change(spec(replication=2))])
        await client.append(JOURNAL, b"stored ", union_registers=FORMER)
        await client.flush(f"name={JOURNAL}")
        await client.append(JOURNAL, b"lost")
    await backed_up(own_etcd_server, file)
    for broker in brokers:
        await crash(broker)
        lose_spools(broker)
    await lose_etcd(own_etcd_server)
    await restored(own_etcd_server, file)
    brokers = [await cluster.start(id=f"broker-{each}", append_wait_s=0.5) for each in "ab"]
    async with client_of(brokers[0]) as client, asyncio.timeout(patient(20)):
        assert await client.reset_head(JOURNAL) == 7
        with pytest.raises(RegisterMismatch):
            await client.append(JOURNAL, b"?", check_registers=LabelSelector(include=FORMER))
        assert (await client.append(JOURNAL, b"!")).begin == 7
        assert await read_all(client) == b"stored !"
        await client.flush(f"name={JOURNAL}")
