"""Brokers are killed: when they come back they have what they acknowledged, and continue at its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import time

import pytest
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.client import Change
from gazette_platform.errors import GazetteError, TransportError
from gazette_platform.protocol import (
    LabelSelector,
    LabelSet,
)
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import eventually, pass_time

pytestmark = pytest.mark.etcd

APPENDS = 10_000
HELD = LabelSelector(include=LabelSet.of(held="x" * 1000))


def line(number):
    return b"%06d\n" % number


async def append_many(client, numbers, *, journal=JOURNAL, width=16):
    """Append lines, some at a time. Returns: begin of each that was acknowledged."""
    left, begins = iter(numbers), {}

    async def work():
        for number in left:
            try:
                done = await client.append(journal, line(number))
            except GazetteError:
                return
            begins[number] = done.begin

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(work())
    return begins


def check(content, begins):
    """All that was acknowledged exists at its acknowledged place."""
    assert len(content) % 7 == 0
    for number, begin in begins.items():
        assert content[begin : begin + 7] == line(number)


@pytest.fixture
def server(etcd_server, etcd_prefix, tmp_path):
    broker = BrokerServer(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix, lease_s=20.0)
    with broker:
        yield broker


async def test_a_lone_broker_goes_on_where_it_was_killed(server):
    async with client_of(server) as client:
        await client.apply([Change(spec())])
        begins = await append_many(client, range(APPENDS))
    assert len(begins) == APPENDS
    server.kill()
    began = time.monotonic()
    server.start()
    async with client_of(server) as client:
        begins |= await append_many(client, range(APPENDS, APPENDS + 100))
        assert time.monotonic() - began < 10
        content = await read_all(client)
    assert len(begins) == APPENDS + 100
    assert len(content) == 7 * (APPENDS + 100)
    assert len(set(content.splitlines())) == len(begins)
    check(content, begins)


async def test_an_idle_journal_keeps_its_end_and_registers(server):
    async with client_of(server) as client:
        await client.apply([Change(spec())])
        await client.append(
            JOURNAL, b"abc", union_registers=LabelSet.of(held="x" * 1000, more="y" * 1000)
        )
        await client.flush(JOURNAL)
    for _ in range(2):
        server.kill()
        server.start()
        async with client_of(server) as client:
            done = await client.append(JOURNAL, b"", check_registers=HELD)
            assert done.end == 3
            assert HELD.matches(done.registers), "none match whatever is asked"
    async with client_of(server) as client:
        assert (await client.append(JOURNAL, b"def")).begin == 3
        assert await read_all(client) == b"abcdef"


async def test_registers_outlive_an_orderly_stop(server):
    held = LabelSet.of(held="x")
    async with client_of(server) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"abc", union_registers=held)
    for _ in range(2):
        server.stop()
        server.start()
        async with client_of(server) as client:
            done = await client.append(JOURNAL, b"")
            assert (done.end, done.registers) == (3, held)


async def test_nothing_is_left_behind_in_the_end(server):
    async with client_of(server) as client:
        await client.apply([Change(spec(length=20_000))])
        await append_many(client, range(APPENDS))
    server.kill()
    server.start()
    async with client_of(server) as client:
        await append_many(client, range(APPENDS, APPENDS + 10))
    assert server.stop() == 0
    assert [path for path in server.spool.rglob("*") if path.is_file()] == []
    server.start()
    async with client_of(server) as client:
        done = await client.append(JOURNAL, b"x")
        assert done.begin == 7 * (APPENDS + 10)
        assert len(await read_all(client)) == done.end


@pytest.fixture
def servers(start_servers):
    return start_servers("za", "zb", "zc", lease_s=5.0)


@pytest.mark.parametrize("replication", [1, 2, 3])
async def test_all_brokers_are_killed_at_once(servers, replication):
    begins, at = {}, 0
    async with client_of(servers[0]) as client:
        await client.apply([Change(spec(replication=replication, length=50_000))])
    for _ in range(3):
        async with client_of(servers[0]) as client:
            began = await client.append(JOURNAL, line(at))
            begins[at] = began.begin
            appending = asyncio.ensure_future(  # noqa: TID251
                append_many(client, range(at + 1, at + 100_000))
            )
            await pass_time(random.uniform(0.3, 1.0))
            for server in servers:
                server.kill()
            appending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                begins |= await appending
        at += 100_000
        random.shuffle(servers)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
    async with client_of(servers[0]) as client:
        done = await client.append(JOURNAL, line(at))
        content = await read_all(client)
        assert content[done.begin :] == line(at)
        check(content, begins)


async def primary_of(client, journal=JOURNAL):
    listing = await client.get(journal)
    route = listing.route
    return route.members[route.primary].suffix if route.primary >= 0 else ""


async def test_a_journal_waits_for_its_only_holder_and_goes_on_elsewhere(servers):
    """Once that is back, whoever has the journal by then goes on at its end."""
    by_id = {server.id: server for server in servers}
    async with client_of(servers[0]) as client:
        await client.apply([Change(spec())])
        begins = await append_many(client, range(1000))
        await client.append(JOURNAL, b"x" * 6 + b"\n", union_registers=LabelSet.of(held="there"))
        holder = by_id[await primary_of(client)]
    holder.kill()
    other = next(server for server in servers if server is not holder)
    async with client_of(other, retry_timeout_s=1.0) as client:
        await eventually(lambda: is_moved(client, holder.id), timeout_s=30)
        with pytest.raises(TransportError, match=f"only spools of {holder.zone}#{holder.id} hold"):
            await client.append(JOURNAL, b"refused")
        with pytest.raises(TransportError):
            await read_all(client)
    holder.start()
    async with client_of(other) as client:
        done = await client.append(JOURNAL, line(1000))
        assert (done.begin, done.registers) == (7 * 1001, LabelSet.of(held="there"))
        assert await primary_of(client) != holder.id
        content = await read_all(client)
    assert len(content) == 7 * 1002
    check(content, begins)


@pytest.mark.parametrize("name", ["00copy", "zzcopy"], ids=["before", "after"])
async def test_older_copy_beside_a_spool_costs_nothing(servers, name):
    """Its name sorts before that of the original, or after it."""
    by_id = {server.id: server for server in servers}
    async with client_of(servers[0]) as client:
        await client.apply([Change(spec())])
        begins = await append_many(client, range(100))
        holder = by_id[await primary_of(client)]
        (home,) = (holder.spool / "spools").iterdir()
        shutil.copytree(home, home.parent / name)
        begins |= await append_many(client, range(100, 150))
    assert len(begins) == 150
    holder.kill()
    other = next(server for server in servers if server is not holder)
    async with client_of(other) as client:
        await eventually(lambda: is_moved(client, holder.id), timeout_s=30)
    holder.start()
    async with client_of(other) as client:
        assert (await client.append(JOURNAL, line(150))).begin == 7 * 150
        check(await read_all(client), begins)
    aside = holder.spool / "set-aside"
    await eventually(lambda: any(aside.glob("*.json")))
    told = [json.loads(path.read_bytes())["why"] for path in aside.glob("*.json")]
    assert all("copied folder" in why for why in told), "the original is stored"


async def is_moved(client, former):
    with contextlib.suppress(GazetteError):
        return await primary_of(client) not in ("", former)
    return False
