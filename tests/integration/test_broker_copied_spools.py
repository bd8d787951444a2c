"""A broker that starts on a copy of a living broker's folder of spools."""

from __future__ import annotations

import shutil

import pytest

from gazette_platform.broker.side_keys import own_member_key
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local_broker import append, read_all
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"


async def test_a_copy_of_its_spools_leaves_a_broker_alive(cluster, etcd, etcd_prefix, tmp_path):
    first = await cluster.start()
    stub = cluster.stub(first)
    store = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=10**9,
    )
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=store))
    assert (await append(stub, JOURNAL, b"x" * 1000)).status == pb.OK
    key = own_member_key(etcd_prefix, first._context.process_id)
    before = await etcd.get(key)
    copy = tmp_path / "copy"
    shutil.copytree(first.config.spool_dir, copy)

    second = await cluster.start(id="on-a-copy", spool_dir=copy)
    await eventually(lambda: len(second._context.space.state.members) == 2)

    assert await etcd.get(key) == before
    assert (await append(stub, JOURNAL, b"y" * 10)).status == pb.OK
    assert await read_all(stub, JOURNAL) == b"x" * 1000 + b"y" * 10
