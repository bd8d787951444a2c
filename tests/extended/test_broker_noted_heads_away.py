"""A broker that leaves while etcd does not name the other brokers."""

from __future__ import annotations

import pytest
from noted_heads import JOURNAL, noted_by_now, spec

from gazette_platform.broker.etcd_records import own_members_prefix
from gazette_platform.errors import EtcdError
from gazette_platform.testing.local import append

pytestmark = pytest.mark.etcd


async def test_no_head_is_noted_while_etcd_is_away(cluster, etcd_prefix, monkeypatch):
    broker, observer = await cluster.start(), await cluster.start(journal_limit=0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    read = broker._context.etcd.range

    async def read_all_but_members(prefix, **options):
        if prefix == own_members_prefix(etcd_prefix):
            raise EtcdError("etcd is away")
        return await read(prefix, **options)

    monkeypatch.setattr(broker._context.etcd, "range", read_all_but_members)
    await broker.drain()
    assert await noted_by_now(observer) == 0
