"""Two holders of a journal lose their leases at once, and one has content that the other never got.

It was proposed and never acknowledged. Which of them comes back first decides whether it is the journal's.
"""

from __future__ import annotations

import asyncio

import pytest
from journal_specs import journal_spec

from gazette_platform.broker.journal import claims, replica as replicas
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.testing.local import read_all
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"


def replica(broker):
    return broker._resolver.replicas[JOURNAL]


def client(broker):
    return AsyncClient(ClientConfig(address=broker.endpoint, retry_timeout_s=patient(20)))


async def start(cluster, tmp_path, zone):
    spools = tmp_path / f"spool-{zone}"
    spools.mkdir(exist_ok=True)
    return await cluster.start(zone=f"zone-{zone}", spool_dir=spools)


async def with_more_at_one(cluster, tmp_path):
    """A journal with content at both of its brokers, and more at the replica. Returns: primary and replica."""
    brokers = [await start(cluster, tmp_path, zone) for zone in "ab"]
    state = brokers[0]._context.space.state
    await cluster.apply(cluster.stub(brokers[0]), journal_spec(JOURNAL, 2, refresh_s=1))
    await eventually(lambda: len(state.assignments_of(JOURNAL)) == 2)
    async with client(brokers[0]) as one:
        await one.append(JOURNAL, b"content")
    primary, other = sorted(brokers, key=lambda broker: not replica(broker).is_primary)
    spool = replica(other).spool
    draft = spool.draft(with_digest=False)
    await draft.write([b" more"], 5)
    await spool.keep(draft, spool.registers)
    spool.commit(draft, spool.registers)
    # As one that is starved: nothing of what they do next reaches the other.
    await primary._server.stop(grace_s=0.0)
    await asyncio.gather(primary._lease.revoke(), other._lease.revoke())
    async with asyncio.timeout(patient(10)):
        await other.failed.wait()
    await primary.abandon()
    return primary, other


def zone_of(broker):
    return broker.config.zone.removeprefix("zone-")


def stored(cluster):
    paths = sorted((cluster.fragments / JOURNAL).iterdir())
    return [path.read_bytes() for path in paths]


async def test_what_a_replica_stores_as_it_fails_does_not_stop_appends(cluster, tmp_path):
    primary, other = await with_more_at_one(cluster, tmp_path)
    await other.fail()
    assert b"content more" in stored(cluster)
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", and after")).begin == 12
        assert await read_all(cluster.stub(back), JOURNAL) == b"content more, and after"


async def test_what_others_went_on_without_is_not_stored_by_a_replica_that_fails(
    cluster, tmp_path, caplog, monkeypatch
):
    have_gone_on, say_end = asyncio.Event(), claims.say_end

    async def say_late(*args):
        await have_gone_on.wait()
        await say_end(*args)

    monkeypatch.setattr(replicas, "say_end", say_late)
    primary, other = await with_more_at_one(cluster, tmp_path)
    back, _ = [await start(cluster, tmp_path, zone) for zone in (zone_of(primary), "c")]
    async with client(back) as one:
        assert (await one.append(JOURNAL, b", others")).begin == 7
        have_gone_on.set()
        await other.fail()
        await one.flush(f"name={JOURNAL}")
        assert not [content for content in stored(cluster) if b"more" in content]
        await start(cluster, tmp_path, zone_of(other))
        await eventually(lambda: f"{JOURNAL}: content [7, 12)" in caplog.text)
        assert await read_all(cluster.stub(back), JOURNAL) == b"content, others"
