"""All brokers of a journal lose power at once, and nothing proves that all of it was on their disks."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.spool import home as spool_home
from gazette_platform.client import Change
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


async def start(cluster, folder):
    return [
        await cluster.start(
            id=f"broker-{n}",
            zone=f"zone-{n}",
            spool_dir=folder / str(n),
            append_wait_s=1.0,
            fsync=FsyncMode.INTERVAL,
        )
        for n in (0, 1)
    ]


async def crash(broker):
    """As by SIGKILL, except for what its process shares with the test."""
    await broker._server.stop(grace_s=0.0)
    await broker._lease.revoke()
    await broker.abandon()


async def test_operator_lets_a_journal_go_on_after_all_brokers_lost_power(
    cluster, tmp_path, monkeypatch
):
    boot = tmp_path / "boot"
    boot.write_text(secrets.token_hex(8))
    monkeypatch.setattr(spool_home, "_BOOT_ID", boot)
    for n in (0, 1):
        (tmp_path / str(n)).mkdir()
    brokers = await start(cluster, tmp_path)
    async with client_of(brokers[0]) as client:
        await client.apply([Change(spec(replication=2))])
        await client.append(JOURNAL, b"content")
    for broker in brokers:
        replica = broker._resolver.replicas[JOURNAL]
        await eventually(lambda replica=replica: replica.spool.spool.synced_to == 7)
    await asyncio.gather(*(crash(broker) for broker in brokers))
    boot.write_text(secrets.token_hex(8))
    brokers = await start(cluster, tmp_path)
    await eventually(lambda: all(JOURNAL in broker._resolver.replicas for broker in brokers))
    async with client_of(brokers[0], retry_timeout_s=3) as client:
        told = await client.check_head(JOURNAL)
        assert [one.is_running for one in told.awaited] == [True, True]
        assert all(broker._leftovers.has_content(JOURNAL) for broker in brokers)
        head = await client.reset_head(JOURNAL, give_up=True)
        assert (await client.append(JOURNAL, b"!")).begin == head
        assert await read_all(client) == b"content"[:head] + b"!"
