"""A journal, and the write head that leaving brokers note of it in etcd."""

from __future__ import annotations

from journal_specs import journal_spec

from gazette_platform.keyspace import item_key
from gazette_platform.protocol import SuspendLevel

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
