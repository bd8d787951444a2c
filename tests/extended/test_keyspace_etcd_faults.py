"""The mirror of a key space, when etcd restarts or is another one."""

from __future__ import annotations

import asyncio

import pytest
from text_mirror import TextView, watching

from gazette_platform.etcd import EtcdClient, EtcdRejected
from gazette_platform.keyspace import KeySpace
from gazette_platform.testing.etcd import EtcdServer

pytestmark = pytest.mark.etcd


async def test_mirror_survives_a_restart_of_etcd(etcd_binary, etcd_prefix):
    with EtcdServer(etcd_binary) as server:
        async with EtcdClient([server.endpoint], request_timeout_s=8) as client:
            await client.put(f"{etcd_prefix}/a", b"1")
            space = KeySpace(client, etcd_prefix, TextView())
            await space.load()
            async with watching(space):
                server.kill()
                await asyncio.to_thread(server.start)
                put = await client.put(f"{etcd_prefix}/b", b"2")
                await space.wait_for_revision(put.revision, timeout_s=15)
            assert space.state.values == {"a": "1", "b": "2"}


async def test_y2_watch_of_another_cluster_fails(etcd_binary, etcd, etcd_prefix):
    space = KeySpace(etcd, etcd_prefix, TextView())
    await space.load()
    with EtcdServer(etcd_binary) as other:
        async with EtcdClient([other.endpoint]) as client:
            for n in range(30):
                await client.put(f"{etcd_prefix}/a", b"%d" % n)
            # Single-node clusters of the same name and URLs share an id; these differ in ports.
            space._client = client
            space._resume_revision = 2
            with pytest.raises(EtcdRejected, match="cluster id changed"):
                await asyncio.wait_for(space.watch(), 5)
