"""What brokers themselves write into the spec of a journal: that it is suspended, and where it goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from gazette_platform.broker.side_keys import epoch_key
from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import encode_journal_spec, item_key
from gazette_platform.protocol import SuspendLevel, SuspendSpec

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.etcd import TxnResult
    from gazette_platform.keyspace import Assignment

__all__ = ["revision_after", "write_head", "write_suspend"]

# A transaction that failed shows that the key space has changed. This gives the watch time to see it.
_TXN_RETRY_S = 0.05

_NOT_SUSPENDED = SuspendSpec(SuspendLevel.NONE, 0)


async def write_suspend(context: BrokerContext, journal: str, suspend: SuspendSpec) -> int:
    """Store a journal's spec with `suspend`, if nothing of the journal changed meanwhile.

    A suspension without level and offset is left out of the spec.

    Returns: the revision to look at, whether or not the transaction succeeded.
    Raises: EtcdError.
    Cancellation: leaves open whether it was written.
    """
    state = context.space.state
    item = state.items.get(journal)
    if item is None:
        return context.space.revision
    key = item_key(context.config.etcd_prefix, journal)
    spec = replace(item.spec, suspend=None if suspend == _NOT_SUSPENDED else suspend)
    result = await context.etcd.txn(
        [
            Compare.mod(key, item.mod_revision),
            *(Compare.mod(a.key, a.mod_revision) for a in state.assignments_of(journal)),
        ],
        [Put(key, encode_journal_spec(spec))],
    )
    revision = await revision_after(context, result)
    await context.space.wait_for_revision(revision)
    return revision


async def write_head(
    context: BrokerContext,
    own: Assignment,
    suspend: SuspendSpec,
    *,
    record: bytes | None,
    mod_revision: int,
) -> bool:
    """Store a journal's spec with `suspend`, if neither it nor our assignment changed meanwhile.

    Args:
        context: of this broker.
        own: our assignment.
        suspend: for the spec.
        record: for the journal's epoch; None: it stays as it is.
        mod_revision: of the epoch record that this one is made from.

    Returns: False: one of them has changed; the key space may show it by now.
    Raises: EtcdError.
    Cancellation: leaves open whether it was written.
    """
    item = context.space.state.items[own.journal]
    key = item_key(context.config.etcd_prefix, own.journal)
    epoch = epoch_key(context.config.etcd_prefix, own.journal)
    result = await context.etcd.txn(
        [
            Compare.mod(key, item.mod_revision),
            Compare.mod(own.key, own.mod_revision),
            Compare.mod(epoch, mod_revision),
        ],
        [
            Put(key, encode_journal_spec(replace(item.spec, suspend=suspend))),
            *([Put(epoch, record)] if record is not None else []),
        ],
    )
    await revision_after(context, result)
    return result.succeeded


async def revision_after(context: BrokerContext, result: TxnResult) -> int:
    """The revision to look at after a transaction, whether or not it succeeded."""
    if result.succeeded:
        return result.header.revision
    await asyncio.sleep(_TXN_RETRY_S)
    return context.space.revision
