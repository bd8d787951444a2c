"""Reads of content that was removed from its store."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.local_broker import read_all, store_fragment

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"
HOUR_NS = 3600 * 10**9


async def test_a_read_goes_on_behind_what_was_removed_before_the_next_listing(cluster):
    """It failed until then: for the refresh interval of the journal, a minute or an hour."""
    broker = await cluster.start()
    stub = cluster.stub(broker)
    first = store_fragment(cluster.fragments, JOURNAL, 0, b"0123456789", stored_at=1)
    store_fragment(cluster.fragments, JOURNAL, 10, b"abcdef", stored_at=1)
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=HOUR_NS,
    )
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=fragment))
    assert await read_all(stub, JOURNAL) == b"0123456789abcdef"
    (cluster.fragments / first.content_path).unlink()
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        async with asyncio.timeout(30):
            assert await client.read(JOURNAL, on_jump="continue").read() == b"abcdef"
