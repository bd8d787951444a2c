"""How long a broker that drains waits, for whom, and what it says meanwhile."""

from __future__ import annotations

import asyncio
import logging

import pytest
from away_store import hold_back

from gazette_platform.allocator import member
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import EtcdError
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, Label, LabelSet
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

REPORT_S = 0.2
OWNER = LabelSet((Label("owner", "us"),))


@pytest.fixture(autouse=True)
def _reports(monkeypatch, caplog):
    monkeypatch.setattr(member, "_REPORT_S", REPORT_S)
    caplog.set_level(logging.INFO, logger="gazette_platform")


async def content_at(broker, *names, replication=1):
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=3600 * 10**9,
    )
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([Change(JournalSpec(n, replication, fragment=fragment)) for n in names])
        for name in names:
            await client.append(name, b"content of it")


def reports(caplog):
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("draining:")]


def stored(local_brokers):
    return {p.parent.name for p in (local_brokers.fragments / "a").rglob("[!.]*") if p.is_file()}


async def test_a_broker_waits_for_ever_and_says_for_whom(local_brokers, tasks, caplog):
    first = await local_brokers.start(drain_timeout_s=None)
    await content_at(first, "a/one", "a/two")
    await local_brokers.start(journal_limit=0)  # it has no room
    draining = tasks.spawn(first.drain())
    await eventually(lambda: len(reports(caplog)) >= 3)
    assert not draining.done()
    for report in reports(caplog):
        assert report == (
            "draining: 2 journals are still assigned to this broker, and no other broker has room "
            "(start one, or set --broker.drain-timeout)"
        )
    # Appends go on while it waits.
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        await client.append("a/one", b" and more")
    await local_brokers.start()
    assert await asyncio.wait_for(draining, patient(10)) == []


async def test_a_broker_leaves_at_its_timeout_and_loses_nothing(local_brokers, caplog):
    first = await local_brokers.start(drain_timeout_s=0.5)
    await content_at(first, "a/one", "a/two")
    second = await local_brokers.start(journal_limit=0)
    assert await asyncio.wait_for(first.drain(), patient(10)) == []
    assert "no broker can take over 2 journals; persisting and leaving" in caplog.messages
    assert stored(local_brokers) == {"one", "two"}
    # grpc.aio complains of the event loops of earlier tests.
    ours = [r for r in caplog.records if r.name.startswith("gazette_platform")]
    assert not [r for r in ours if r.levelno >= logging.ERROR]
    # The next one goes on where it ended.
    third = await local_brokers.start()
    async with AsyncClient(ClientConfig(address=third.endpoint)) as client:
        assert (await client.append("a/one", b"more")).begin == len(b"content of it")
    del second


@pytest.mark.parametrize("drain_timeout_s", [None, 10.0])
async def test_others_take_over_though_etcd_failed_for_a_moment(local_brokers, drain_timeout_s):
    """Registers of a journal without another replica are nowhere else."""
    first = await local_brokers.start(drain_timeout_s=drain_timeout_s)
    await content_at(first, "a/one")
    second = await local_brokers.start()
    update, failures = first._announcement.update, [EtcdError("etcdserver: request timed out")] * 3

    async def fails(spec):
        if failures:
            raise failures.pop()
        await update(spec)

    first._announcement.update = fails
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        await client.append("a/one", b"more", union_registers=OWNER)
        assert await asyncio.wait_for(first.drain(), patient(20)) == []
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        told = await client.append("a/one", b"even more")
    assert told.registers == OWNER
    assert not failures


async def test_absent_broker_is_asked_only_once(local_brokers, caplog):
    first = await local_brokers.start(drain_timeout_s=None)
    await content_at(first, "a/one")
    asked = []

    async def fails(spec):
        asked.append(spec)
        raise EtcdError("etcdserver: request timed out")

    first._announcement.update = fails
    async with asyncio.timeout(patient(30)):
        assert await first.drain() == []
    assert "others are not asked to take over" in caplog.text
    assert stored(local_brokers) == {"one"}


async def test_the_last_broker_does_not_wait(local_brokers, caplog):
    first = await local_brokers.start(drain_timeout_s=None)
    await content_at(first, "a/one")
    assert await asyncio.wait_for(first.drain(), patient(10)) == []
    assert not reports(caplog)
    assert stored(local_brokers) == {"one"}


async def test_a_broker_without_journals_leaves_at_once(local_brokers, caplog):
    await local_brokers.start(journal_limit=0)
    second = await local_brokers.start(drain_timeout_s=None)
    assert await asyncio.wait_for(second.drain(), patient(10)) == []
    assert not reports(caplog)


async def test_the_oldest_broker_leads_until_it_has_left(local_brokers, tasks):
    """It may store its content for long; no broker took the journals of those that crashed meanwhile."""
    oldest = await local_brokers.start(drain_timeout_s=None)
    back = hold_back(oldest, is_retried_soon=True)
    await content_at(oldest, "a/one")
    others = [await local_brokers.start() for _ in range(2)]
    draining = tasks.spawn(oldest.drain())
    await eventually(lambda: oldest._persister._is_exiting)
    states = {b._context.process_id: b._context.space.state for b in others}
    route_of = states[others[0]._context.process_id].route_of
    primary = await eventually(
        lambda: found if (found := route_of("a/one").primary_id) in states else None
    )
    crashed, other = sorted(others, key=lambda b: b._context.process_id != primary)
    assert other._allocator.leader == oldest._context.process_id
    await crashed._lease.revoke()
    await crashed.abandon()
    own = other._context.process_id
    await eventually(lambda: states[own].route_of("a/one").primary_id == own)
    assert not draining.done()
    back.set()
    assert await draining == []
