"""The etcd client against a real etcd."""

from __future__ import annotations

import asyncio
import gc
import socket
import time

import pytest

from gazette_platform.errors import EtcdError, LeaseLost, ValidationError
from gazette_platform.etcd import (
    Compacted,
    Compare,
    Delete,
    EtcdClient,
    EtcdRejected,
    Get,
    Put,
    WatchBatch,
)
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.waiting import block_for, patient

pytestmark = pytest.mark.etcd


async def next_events(watch) -> WatchBatch:
    """The next batch with events; progress notices are passed over."""
    async with asyncio.timeout(patient(5)):
        while True:
            batch = await anext(watch)
            if batch.events:
                return batch


async def test_range_reads_whole_prefix_in_pages_at_one_revision(etcd, etcd_prefix):
    for n in range(7):
        await etcd.put(f"{etcd_prefix}/k{n}", b"v%d" % n)
    await etcd.put(f"{etcd_prefix[:-1]}", b"no match: shorter")
    before = (await etcd.range(etcd_prefix)).header.revision
    await etcd.put(f"{etcd_prefix}/k3", b"changed")

    old = await etcd.range(etcd_prefix, revision=before, page_keys=2)
    new = await etcd.range(etcd_prefix, page_keys=3)

    assert [kv.key for kv in old.kvs] == [f"{etcd_prefix}/k{n}" for n in range(7)]
    assert old.kvs[3].value == b"v3"
    assert old.header.revision == before
    assert new.kvs[3].value == b"changed"
    assert new.kvs[3].version == 2
    # Tests beside this one write, too.
    assert before < new.kvs[3].mod_revision <= new.header.revision
    await etcd.delete(etcd_prefix[:-1])


async def test_txn_compares_and_answers_reads(etcd, etcd_prefix):
    key = f"{etcd_prefix}/a"
    created = await etcd.txn([Compare.version(key, 0)], [Put(key, b"1")])
    again = await etcd.txn([Compare.version(key, 0)], [Put(key, b"2")], [Get(key)])
    revision = created.header.revision
    held = [
        Compare.create(key, revision),
        Compare.mod(key, revision),
        Compare.lease_is(key, 0),
    ]
    moved = await etcd.txn(held, [Delete(key), Put(f"{key}2", b"1")])

    assert created.succeeded
    assert not again.succeeded
    assert again.reads[0].kvs[0].value == b"1"
    assert moved.succeeded
    assert moved.header.revision > revision  # of the whole etcd, which other tests share
    assert await etcd.get(key) is None
    assert (await etcd.get(f"{key}2")).value == b"1"


async def test_refused_transactions_are_not_retriable(etcd, etcd_prefix):
    with pytest.raises(EtcdRejected, match="duplicate key"):
        await etcd.txn([], [Put(f"{etcd_prefix}/a", b""), Put(f"{etcd_prefix}/a", b"")])
    with pytest.raises(EtcdRejected, match=f"transaction on {etcd_prefix}/a: NOT_FOUND"):
        await etcd.put(f"{etcd_prefix}/a", b"", lease=12345)


async def test_put_ignoring_lease_keeps_it(etcd, etcd_prefix):
    lease = await etcd.grant_lease(30)
    await etcd.put(f"{etcd_prefix}/a", b"1", lease=lease.id)
    await etcd.txn([], [Put(f"{etcd_prefix}/a", b"2", ignore_lease=True)])

    found = await etcd.get(f"{etcd_prefix}/a")
    assert (found.value, found.lease) == (b"2", lease.id)
    await lease.revoke()
    assert await etcd.get(f"{etcd_prefix}/a") is None
    await lease.revoke()  # gone already: no error


async def test_watch_delivers_whole_revisions_in_order(etcd, etcd_prefix):
    first = await etcd.put(f"{etcd_prefix}/a", b"1")
    async with etcd.watch(etcd_prefix, start_revision=first.revision + 1) as watch:
        puts = [Put(f"{etcd_prefix}/{n}", b"x") for n in range(100)]
        result = await etcd.txn([], [*puts, Delete(f"{etcd_prefix}/a")])
        batch = await next_events(watch)
        assert len(batch.events) == 101
        assert {e.kv.mod_revision for e in batch.events} == {result.header.revision}
        assert [e.kv.key for e in batch.events if e.is_delete] == [f"{etcd_prefix}/a"]


async def test_watch_joins_fragments(etcd, etcd_prefix):
    # etcd cuts responses above 1.5 MiB + 512 KiB when asked to.
    start = (await etcd.put(f"{etcd_prefix}/a", b"")).revision + 1
    for n in range(8):
        await etcd.put(f"{etcd_prefix}/{n}", bytes(700_000))
    async with etcd.watch(etcd_prefix, start_revision=start) as watch:
        seen: list[str] = []
        while len(seen) < 8:
            seen += [e.kv.key for e in (await next_events(watch)).events]
    assert seen == [f"{etcd_prefix}/{n}" for n in range(8)]


async def test_watch_notifies_progress(etcd, etcd_prefix):
    start = (await etcd.put(f"{etcd_prefix}/a", b"")).revision + 1
    async with etcd.watch(etcd_prefix, start_revision=start) as watch, asyncio.timeout(patient(5)):
        assert (await anext(watch)).events == ()


async def test_compacted_revisions_have_their_own_error(etcd, etcd_prefix):
    old = (await etcd.put(f"{etcd_prefix}/a", b"1")).revision
    new = (await etcd.put(f"{etcd_prefix}/a", b"2")).revision
    await etcd.compact(new)

    with pytest.raises(Compacted):
        await etcd.range(etcd_prefix, revision=old)
    with pytest.raises(Compacted) as caught:
        async with etcd.watch(etcd_prefix, start_revision=old) as watch:
            await next_events(watch)
    assert caught.value.compact_revision == new


async def test_lost_lease_says_what_blocked_the_loop(etcd):
    """A callback that took long was reported as a process that was paused."""
    for why, said in (("", "the process was paused"), ("consume at a.py:3 blocked", "consume at")):
        lease = await etcd.grant_lease(1)
        lease.why_late = lambda why=why: why
        block_for(lease.remaining_s + 0.1)
        with pytest.raises(LeaseLost, match=f"was not renewed within .* s; {said}"):
            await lease.keep_alive()


async def test_lease_revoked_by_another_is_lost(etcd):
    lease = await etcd.grant_lease(2)
    other = EtcdClient([etcd.endpoint])
    twin = await other.grant_lease(2)
    twin.id = lease.id
    await twin.revoke()
    with pytest.raises(LeaseLost, match="unable to keep member lease alive"):
        async with asyncio.timeout(3):
            await lease.keep_alive()
    await other.close()


@pytest.mark.own_brokers
async def test_lease_is_lost_when_etcd_stays_silent(etcd_binary):
    with EtcdServer(etcd_binary) as server:
        async with EtcdClient([server.endpoint], request_timeout_s=2) as client:
            lease = await client.grant_lease(2)
            server.pause()
            started_at = time.monotonic()
            with pytest.raises(LeaseLost, match=r"was not renewed within 2 s.*start again"):
                async with asyncio.timeout(patient(10)):
                    await lease.keep_alive()
            assert 1.5 < time.monotonic() - started_at < 8


async def test_unreachable_etcd_is_named_within_the_deadline():
    url = f"http://127.0.0.1:{choose_ports(['etcd'])['etcd']}"
    client = EtcdClient([url], request_timeout_s=0.5)
    started_at = time.monotonic()
    with pytest.raises(EtcdError, match=f"cannot reach etcd at {url}.*check that etcd runs"):
        await client.connect()
    assert time.monotonic() - started_at < 5
    await client.close()


async def test_silent_server_is_named_within_the_deadline():
    # Accepts and never speaks: the worst kind of peer.
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = EtcdClient([url], request_timeout_s=0.5)
        with pytest.raises(EtcdError, match=url):
            await client.connect()
        await client.close()


async def test_dead_endpoint_is_passed_over(etcd_server, etcd_prefix):
    dead = f"http://127.0.0.1:{choose_ports(['etcd'])['etcd']}"
    async with EtcdClient([dead, etcd_server.endpoint]) as client:
        await client.put(f"{etcd_prefix}/a", b"1")
        assert client.endpoint == etcd_server.endpoint
        await client.delete(etcd_prefix, prefix=True)


@pytest.mark.parametrize("text", ["ftp://x:1", "http://", "http://x:99999", "http://x:1/path"])
def test_bad_endpoints_are_refused(text):
    with pytest.raises(ValidationError, match="etcd address"):
        EtcdClient([text])


def test_no_endpoint_is_refused():
    with pytest.raises(ValidationError, match="no etcd address given"):
        EtcdClient([])


async def test_large_answers_are_let_go(etcd, etcd_prefix):
    """Calls of gRPC are cycles, too few of them for the collector to run."""
    for number in range(4):
        await etcd.txn([], [Put(f"{etcd_prefix}/large-{number}", bytes(1 << 20))])

    def held():
        return sum(type(found).__name__ == "UnaryUnaryCall" for found in gc.get_objects())

    gc.collect()
    before = held()
    for _ in range(10):
        assert len((await etcd.range(f"{etcd_prefix}/large-")).kvs) == 4
    assert held() - before < 3
