"""The client of etcd, when its server dies and comes back, and a lease that lives long."""

from __future__ import annotations

import asyncio

import pytest

from gazette_platform.errors import EtcdError
from gazette_platform.etcd import (
    EtcdClient,
    WatchBatch,
)
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.waiting import stays

pytestmark = pytest.mark.etcd


async def next_events(watch) -> WatchBatch:
    """The next batch with events; progress notices are passed over."""
    async with asyncio.timeout(5):
        while True:
            batch = await anext(watch)
            if batch.events:
                return batch


async def test_watch_ends_with_a_retriable_error_when_etcd_dies(etcd_binary, etcd_prefix):
    with EtcdServer(etcd_binary) as server:
        async with EtcdClient([server.endpoint]) as client:
            await client.put(f"{etcd_prefix}/a", b"1")
            async with client.watch(etcd_prefix, start_revision=1) as watch:
                await next_events(watch)
                server.kill()
                with pytest.raises(EtcdError, match=server.endpoint) as caught:
                    await next_events(watch)
                assert caught.value.retriable


async def test_calls_wait_out_a_restart_of_etcd(etcd_binary, etcd_prefix):
    with EtcdServer(etcd_binary) as server:
        async with EtcdClient([server.endpoint], request_timeout_s=8) as client:
            await client.put(f"{etcd_prefix}/a", b"1")
            server.kill()
            restart = asyncio.to_thread(server.start)
            _, found = await asyncio.gather(restart, client.get(f"{etcd_prefix}/a"))
            assert found.value == b"1"


async def test_lease_is_kept_alive_beyond_its_ttl(etcd, etcd_prefix):
    tasks = TaskGroup("test")
    lease = await etcd.grant_lease(2)
    task = tasks.spawn(lease.keep_alive())
    await etcd.put(f"{etcd_prefix}/a", b"", lease=lease.id)
    await stays(lambda: lease.remaining_s > 0, for_s=lease.ttl_s + 1.5, poll_s=0.1)
    assert await etcd.get(f"{etcd_prefix}/a") is not None
    await lease.revoke()
    async with asyncio.timeout(1):
        await task  # ends by itself, without an error
    await tasks.close()
