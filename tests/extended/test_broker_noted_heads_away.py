"""A broker that leaves while etcd does not name the other brokers."""

from __future__ import annotations

import pytest
from journal_specs import journal_spec

from gazette_platform.broker.etcd_records import own_members_prefix
from gazette_platform.errors import EtcdError
from gazette_platform.keyspace import item_key
from gazette_platform.protocol import SuspendLevel
from gazette_platform.testing.local import append

pytestmark = pytest.mark.etcd
JOURNAL = "a/journal"


def spec(*, replication=1, length=1 << 20):
    return journal_spec(JOURNAL, replication, length=length)


def noted(broker):
    """The head that is noted, as a broker's mirror has it; 0: none."""
    suspend = broker._context.space.state.items[JOURNAL].spec.suspend
    if suspend is None:
        return 0
    assert suspend.level is SuspendLevel.NONE
    return suspend.offset


async def noted_by_now(broker):
    """The same, once the mirror has what etcd has: it is a moment behind who wrote."""
    context = broker._context
    found = await context.etcd.range(item_key(context.config.etcd_prefix, JOURNAL))
    await context.space.wait_for_revision(found.kvs[0].mod_revision)
    return noted(broker)


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
