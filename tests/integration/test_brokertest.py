"""Brokers in the test's own process, with etcd and allocator: Gazette's cases B1 to B3 and B5.

B4, reads that hang while their broker leaves, is in test_broker_proxy.py.
"""

from __future__ import annotations

import asyncio
import base64

import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.protocol import CompressionCodec, JournalChange, ProcessId
from gazette_platform.testing.local import append, read
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "foo/bar"
KEYS = [base64.b64encode(name * 32).decode() for name in (b"a", b"b")]


def spec(name=JOURNAL, replication=1):
    return journal_spec(name, replication, codec=CompressionCodec.SNAPPY)


def create(*specs):
    return [JournalChange(one, revision=0) for one in specs]


def client_of(broker, **settings):
    return AsyncClient(ClientConfig(address=broker.endpoint, route_cache_size=0, **settings))


async def until_routed(client, *members, name=JOURNAL):
    """Wait until the journal is held by `members`, the first as primary, and all know of it."""

    async def is_so():
        route = (await client.get(name)).route
        return route.primary_id == members[0] and sorted(route.members) == sorted(members)

    await eventually(is_so)


async def test_b1_a_broker_takes_appends_serves_reads_and_ends_them_as_it_leaves(cluster):
    broker = await cluster.start()
    async with client_of(broker) as client:
        await client.apply(create(spec()))
        result = await client.append(JOURNAL, b"hello, gazette")
        assert (result.begin, result.end) == (0, 14)
        responses = aiter(read(cluster.stub(broker), JOURNAL, block=True))
        first = await anext(responses)
        assert (first.offset, first.write_head, first.content) == (0, 14, b"")
        assert (await anext(responses)).content == b"hello, gazette"
        async with asyncio.timeout(patient(10)):
            assert await broker.drain() == []
            assert [response async for response in responses] == []


async def test_b2_zones_and_keys_in_another_order(cluster):
    """Each broker signs with the first of its keys, and verifies what the other signed."""
    brokers = [
        await cluster.start(zone=zone, auth_keys=" ".join(keys))
        for zone, keys in (("zone-a", KEYS), ("zone-b", KEYS[::-1]))
    ]
    async with (
        client_of(brokers[0], auth_keys=KEYS[0]) as first,
        client_of(brokers[1], auth_keys=KEYS[1]) as second,
        client_of(brokers[0]) as unknown,
    ):
        await first.apply(create(spec(replication=2)))
        # One of the two has to forward, and each append is replicated.
        assert (await first.append(JOURNAL, b"one ")).end == 4
        assert (await second.append(JOURNAL, b"two")).end == 7
        for client in (first, second):
            found = await client.get(JOURNAL)
            assert [m.zone for m in found.route.members] == ["zone-a", "zone-b"]
            assert await client.read(JOURNAL).read() == b"one two"
        with pytest.raises(GazetteError, match="missing or empty Authorization token"):
            await unknown.append(JOURNAL, b"three")


async def test_b3_a_broker_joins_and_another_hands_over(cluster):
    ids = {name: ProcessId(zone, name) for name, zone in (("aaaa", "z-1"), ("bbbb", "z-2"))}
    ids["cccc"] = ProcessId("z-1", "cccc")
    brokers = {
        name: await cluster.start(id=name, zone=ids[name].zone, drain_timeout_s=30.0)
        for name in ("aaaa", "bbbb")
    }
    async with client_of(brokers["bbbb"]) as client:
        await client.apply(create(spec(replication=2)))
        await client.append(JOURNAL, b"before ")
        brokers["cccc"] = await cluster.start(
            id="cccc", zone=ids["cccc"].zone, drain_timeout_s=30.0
        )
        assert {m.suffix for m in (await client.get(JOURNAL)).route.members} == {"aaaa", "bbbb"}
        async with asyncio.timeout(patient(20)):
            assert await brokers["aaaa"].drain() == []
        await until_routed(client, ids["bbbb"], ids["cccc"])
        assert (await client.append(JOURNAL, b"after")).end == 12
        for name in ("bbbb", "cccc"):
            async with client_of(brokers[name]) as other:
                assert await other.read(JOURNAL).read() == b"before after"


async def test_b5_a_watched_list_sees_what_is_created(cluster):
    broker = await cluster.start()
    async with client_of(broker) as client:
        await client.apply(create(spec("foo/one")))
        watch = client.watch("name:prefix=foo/")
        assert [journal.name for journal in await anext(watch)] == ["foo/one"]
        await client.apply(create(spec("foo/two"), spec("other/name")))
        async with asyncio.timeout(patient(10)):
            found = await anext(watch)
        assert [journal.name for journal in found] == ["foo/one", "foo/two"]
        await watch.aclose()
        assert (await append(cluster.stub(broker), "foo/two", b"x")).commit.end == 1
