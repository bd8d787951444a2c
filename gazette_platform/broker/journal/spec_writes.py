"""What brokers themselves write into etcd about a journal: its route, and its suspension."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import encode_journal_spec, encode_route, item_key
from gazette_platform.protocol import SuspendLevel, SuspendSpec

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.keyspace import Assignment

__all__ = ["write_head", "write_route", "write_suspend"]

# A transaction that failed means that the key space moved; give the watch time to bring it.
_TXN_RETRY_S = 0.05

_NOT_SUSPENDED = SuspendSpec(SuspendLevel.NONE, 0)


async def write_route(context: BrokerContext, journal: str) -> int:
    """Write a journal's route into those of its assignments that carry another.

    Returns: the revision to look at, whether or not somebody else was faster.
    Raises: EtcdError. Cancellation: leaves open whether it was written.
    """
    state = context.space.state
    route = state.route_of(journal)
    assignments = state.assignments_of(journal)
    stale = [a for a in assignments if not a.route.equivalent(route)]
    if not stale:
        return context.space.revision
    value = encode_route(route)
    result = await context.etcd.txn(
        [Compare.mod(a.key, a.mod_revision) for a in assignments],
        [Put(a.key, value, ignore_lease=True) for a in stale],
    )
    return await _revision(context, succeeded=result.succeeded, revision=result.header.revision)


async def write_suspend(context: BrokerContext, journal: str, suspend: SuspendSpec) -> int:
    """Store a journal's spec with `suspend`, if nothing of the journal changed meanwhile.

    A suspension that says nothing is left out.

    Returns: the revision to look at, whether or not somebody else was faster.
    Raises: EtcdError. Cancellation: leaves open whether it was written.
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
    revision = await _revision(context, succeeded=result.succeeded, revision=result.header.revision)
    await context.space.wait_for_revision(revision)
    return revision


async def write_head(context: BrokerContext, own: Assignment, suspend: SuspendSpec) -> bool:
    """Store a journal's spec with `suspend`, if neither it nor our assignment changed meanwhile.

    Returns: False: one of them did; the key space may show it by now.
    Raises: EtcdError. Cancellation: leaves open whether it was written.
    """
    item = context.space.state.items[own.journal]
    key = item_key(context.config.etcd_prefix, own.journal)
    result = await context.etcd.txn(
        [Compare.mod(key, item.mod_revision), Compare.mod(own.key, own.mod_revision)],
        [Put(key, encode_journal_spec(replace(item.spec, suspend=suspend)))],
    )
    await _revision(context, succeeded=result.succeeded, revision=result.header.revision)
    return result.succeeded


async def _revision(context: BrokerContext, *, succeeded: bool, revision: int) -> int:
    if succeeded:
        return revision
    await asyncio.sleep(_TXN_RETRY_S)
    return context.space.revision
