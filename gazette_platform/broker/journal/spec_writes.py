"""What brokers themselves write into the spec of a journal: that it is suspended, and where it goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gazette_platform.broker.epoch_store import read_record
from gazette_platform.broker.epochs import noted
from gazette_platform.broker.side_keys import epoch_key
from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import encode_journal_spec, item_key
from gazette_platform.protocol import SuspendLevel, SuspendSpec

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.etcd import Operation, TxnResult
    from gazette_platform.keyspace import Assignment
    from gazette_platform.protocol import LabelSet

__all__ = ["Noting", "Written", "revision_after", "write_head", "write_suspend"]

# A transaction that failed shows that the key space has changed. This gives the watch time to see it.
_TXN_RETRY_S = 0.05

_NOT_SUSPENDED = SuspendSpec(SuspendLevel.NONE, 0)


class Noting(NamedTuple):
    """Who notes where a journal goes on, for the epoch record."""

    tenure: str
    """Of the primary."""
    registers: LabelSet
    """As of the offset that is noted."""
    create_revision: int
    """Of the spec that the primary serves: the journal may have been made again meanwhile."""


class Written(NamedTuple):
    """What became of a write."""

    revision: int
    """To look at next."""
    is_done: bool


async def write_suspend(
    context: BrokerContext, journal: str, suspend: SuspendSpec, noting: Noting | None = None
) -> Written:
    """Store a journal's spec with `suspend`, if nothing of the journal changed meanwhile.

    A suspension without level and offset is left out of the spec.

    Args:
        context: of this broker.
        journal: its name.
        suspend: for the spec.
        noting: the primary, whose epoch record says the same in the same transaction; None: no broker
            serves the journal, and the record stays as it is.

    Raises: EtcdError; ValidationError: the record cannot be understood.
    Cancellation: leaves open whether it was written.
    """
    state, prefix = context.space.state, context.config.etcd_prefix
    item = state.items.get(journal)
    if item is None or (noting is not None and noting.create_revision != item.create_revision):
        return Written(context.space.revision, is_done=False)
    assignments = state.assignments_of(journal)
    key = item_key(prefix, journal)
    is_over = suspend == _NOT_SUSPENDED
    compares = [
        Compare.mod(key, item.mod_revision),
        *(Compare.mod(a.key, a.mod_revision) for a in assignments),
    ]
    spec = replace(item.spec, suspend=None if is_over else suspend)
    writes: list[Operation] = [Put(key, encode_journal_spec(spec))]
    if noting is not None:
        record, mod_revision = await read_record(context.etcd, prefix, journal)
        following = noted(
            record,
            noting.tenure,
            create_revision=item.create_revision,
            head=None if is_over else suspend.offset,
            registers=noting.registers,
        )
        compares.append(Compare.mod(epoch_key(prefix, journal), mod_revision))
        if following is not None and following != record:
            writes.append(Put(epoch_key(prefix, journal), following.encode()))
    result = await context.etcd.txn(compares, writes)
    revision = await revision_after(context, result)
    await context.space.wait_for_revision(revision)
    return Written(revision, result.succeeded)


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
