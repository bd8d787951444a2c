"""Registers fence writers. They survive a crash right after an orderly restart of all brokers."""

from __future__ import annotations

import asyncio

import pytest
from away_store import hold_back
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.broker.spool.head_records import BLOCK_BYTES, SLOT_BYTES, slot_at
from gazette_platform.client import Change
from gazette_platform.errors import EtcdError, GazetteError, RegisterMismatch, Suspended
from gazette_platform.keyspace import item_key
from gazette_platform.protocol import AppendSuspend, LabelSelector, LabelSet
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

HELD = LabelSet.of(holder="one")
WRONG = LabelSelector(include=LabelSet.of(holder="WRONG"))
ZONES = ("za", "zb", "zc", "zd")


async def start(cluster, count):
    return [
        await cluster.start(id=f"broker-{zone}", zone=zone, drain_timeout_s=20.0, append_wait_s=2.0)
        for zone in ZONES[:count]
    ]


async def crash(broker):
    """As by SIGKILL, except for what its process shares with the test."""
    await broker._server.stop(grace_s=0.0)
    await broker._lease.revoke()
    await broker.abandon()


def holders(brokers):
    return [broker for broker in brokers if JOURNAL in broker._resolver.replicas]


async def restarted(cluster, replication):
    """Append with registers, then stop all brokers in order and start them again. Append nothing."""
    count = 2 * replication
    brokers = await start(cluster, count)
    async with client_of(brokers[0]) as client:
        await client.apply([Change(spec(replication=replication))])
        await client.append(JOURNAL, b"content", union_registers=HELD)
    await asyncio.gather(*(broker.drain() for broker in brokers))
    brokers = await start(cluster, count)
    async with client_of(brokers[0]) as client:
        assert (await client.append(JOURNAL, b"")).registers == HELD, "a barrier appends nothing"
    return brokers


async def check_fence(client, *, begin=7):
    with pytest.raises(RegisterMismatch):
        await client.append(JOURNAL, b"of a stale writer", check_registers=WRONG)
    done = await client.append(JOURNAL, b"!", check_registers=LabelSelector(include=HELD))
    assert (done.begin, done.registers) == (begin, HELD)


@pytest.mark.parametrize("replication", [1, 2])
async def test_registers_survive_crash_after_orderly_restart(cluster, replication):
    brokers = await restarted(cluster, replication)
    crashed = holders(brokers)
    left = [broker for broker in brokers if broker not in crashed]
    assert len(crashed) == replication
    for broker in crashed:
        await crash(broker)
    await eventually(lambda: len(holders(left)) == replication)
    async with client_of(left[0]) as client:
        await check_fence(client)


async def test_registers_survive_crash_after_resumption(cluster):
    brokers = await start(cluster, 2)
    async with client_of(brokers[0]) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"content", union_registers=HELD)
        with pytest.raises(Suspended):
            await client.append(JOURNAL, b"", suspend=AppendSuspend.SUSPEND_NOW)
        done = await client.append(JOURNAL, b"")
        assert done.registers == HELD
    (crashed,) = holders(brokers)
    (left,) = set(brokers) - {crashed}
    await crash(crashed)
    await eventually(lambda: holders([left]))
    async with client_of(left) as client:
        await check_fence(client)


async def test_new_fence_taken_after_restart_is_not_lost(cluster):
    """A fence comes with content. Without content the broker refuses it, so none is acknowledged."""
    brokers = await restarted(cluster, 1)
    newer = LabelSet.of(holder="two")
    async with client_of(brokers[0]) as client:
        with pytest.raises(GazetteError, match="requires non-empty"):
            await client.append(JOURNAL, b"", union_registers=newer)
        await client.append(JOURNAL, b"fence", union_registers=newer)
    (crashed,) = holders(brokers)
    (left,) = set(brokers) - {crashed}
    await crash(crashed)
    await eventually(lambda: holders([left]))
    async with client_of(left, retry_timeout_s=1) as client:
        with pytest.raises(GazetteError, match="only spools of"):
            await client.append(JOURNAL, b"x", check_registers=LabelSelector(include=HELD))


async def test_fence_taken_after_suspension_without_answer_is_not_lost(cluster, monkeypatch):
    """Etcd may carry out late what its client has given up: then the journal would go on before the fence."""
    brokers, newer = await start(cluster, 2), LabelSet.of(holder="two")
    async with client_of(brokers[0]) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"content", union_registers=HELD)
        (crashed,) = holders(brokers)
        (left,) = set(brokers) - {crashed}
        context = crashed._context
        txn, key, late = context.etcd.txn, item_key(context.config.etcd_prefix, JOURNAL), []

        async def unanswered(compares, writes):
            if not any(getattr(one, "key", "") == key for one in writes):
                return await txn(compares, writes)
            late.append((compares, writes))
            raise EtcdError("DEADLINE_EXCEEDED")

        with monkeypatch.context() as patch:
            patch.setattr(context.etcd, "txn", unanswered)
            async with client_of(crashed, retry_timeout_s=0.1) as hasty:
                with pytest.raises(GazetteError, match="DEADLINE_EXCEEDED"):
                    await hasty.append(JOURNAL, b"", suspend=AppendSuspend.SUSPEND_NOW)
        await client.append(JOURNAL, b" fence", subtract_registers=HELD, union_registers=newer)
        for one in late:
            assert not (await txn(*one)).succeeded
    await crash(crashed)
    await eventually(lambda: holders([left]))
    async with client_of(left, retry_timeout_s=1) as client:
        with pytest.raises(GazetteError, match="only spools of"):
            await client.append(JOURNAL, b"x", check_registers=LabelSelector(include=HELD))


async def test_old_listing_lets_no_broker_go_on_without_holder(cluster):
    """It says where the journal went on after a restart; more was acknowledged since."""
    brokers = await restarted(cluster, 1)
    async with client_of(brokers[0]) as client:
        (listed,) = await client.list_snapshot(LabelSelector.parse(f"name={JOURNAL}"))
        assert listed.spec.suspend.offset == 7
        await client.append(JOURNAL, b" and more")
        await client.apply([Change(listed.spec, revision=-1)])
    (crashed,) = holders(brokers)
    (left,) = set(brokers) - {crashed}
    await crash(crashed)
    await eventually(lambda: holders([left]))
    async with client_of(left, retry_timeout_s=1) as client:
        with pytest.raises(GazetteError, match="only spools of"):
            await client.append(JOURNAL, b"at the same offset")
    again = await cluster.start(id="broker-again", zone=crashed.config.zone, append_wait_s=2.0)
    async with client_of(again) as client:
        assert (await client.append(JOURNAL, b"!")).begin == 16


async def harmed(cluster, tmp_path, harm, *, is_closed=False):
    """A broker that was started again after a crash, and after its spools were harmed."""
    folder = tmp_path / "spools of za"
    folder.mkdir()
    settings = {"id": "broker-za", "spool_dir": folder, "append_wait_s": 0.5}
    broker = await cluster.start(**settings)
    async with client_of(broker) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"content", union_registers=HELD)
    if is_closed:
        hold_back(broker)
        await broker._resolver.replicas[JOURNAL].close_fragment()
        await eventually(lambda: len(broker._persister) == 1)
    await crash(broker)
    harm(folder)
    return await cluster.start(**settings)


def remove_content(folder):
    (lost,) = folder.rglob("*.content")
    lost.unlink()


def harm_records(folder):
    """Write over both records of each head, so that neither can be read."""
    (heads,) = folder.rglob("heads")
    raw = bytearray(heads.read_bytes())
    for block in range(0, len(raw), BLOCK_BYTES):
        for number in (0, 1):
            at = block + slot_at(number)
            if any(raw[at : at + SLOT_BYTES]):
                raw[at + 8 : at + 40] = b"\xff" * 32
    heads.write_bytes(raw)


async def test_registers_survive_reset_of_harmed_spool(cluster, tmp_path):
    broker = await harmed(cluster, tmp_path, remove_content)
    async with client_of(broker) as client:
        assert await client.reset_head(JOURNAL, give_up=True) == 0
        await check_fence(client, begin=0)


async def test_closed_content_without_record_of_the_head_is_stored_by_a_reset(cluster, tmp_path):
    broker = await harmed(cluster, tmp_path, harm_records, is_closed=True)
    async with client_of(broker, retry_timeout_s=1) as hasty:
        with pytest.raises(GazetteError):
            await hasty.append(JOURNAL, b"x")
    async with client_of(broker) as client:
        assert await client.reset_head(JOURNAL, give_up=True) == 7
        await check_fence(client)
        assert await read_all(client) == b"content!"
