"""Reads and writes the epoch records of journals in etcd; see `epochs`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gazette_platform.broker.epochs import EpochRecord
from gazette_platform.broker.side_keys import epoch_key, epochs_prefix, own_members_prefix
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.keyspace import members_prefix
from gazette_platform.ops.tasks import Turns

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_platform.etcd import EtcdClient, RangeResult

__all__ = [
    "delete_record",
    "has_foreign_members",
    "held_journals",
    "read_own_members",
    "read_record",
    "write_record",
]

# Records that are read at a time: some hundred kilobytes together, unless registers are long.
_PAGE_KEYS = 200


async def read_record(
    etcd: EtcdClient, prefix: str, journal: str
) -> tuple[EpochRecord | None, int]:
    """The epoch record of a journal, and the revision at which it was written; 0: there is none.

    Raises: EtcdError; ValidationError: the record cannot be understood.
    Cancellation: safe.
    """
    key = epoch_key(prefix, journal)
    found = await etcd.get(key)
    if found is None:
        return None, 0
    try:
        return EpochRecord.decode(found.value), found.mod_revision
    except ValueError as err:
        raise ValidationError(
            f"{journal}: key {key} of etcd is not understood: {err} (was it written by a newer version?)"
        ) from err


async def write_record(
    etcd: EtcdClient, prefix: str, journal: str, record: EpochRecord, mod_revision: int
) -> bool:
    """Write a record, unless the one of that revision was replaced. Returns: whether it was written."""
    key = epoch_key(prefix, journal)
    result = await etcd.txn([Compare.mod(key, mod_revision)], [Put(key, record.encode())])
    return result.succeeded


async def delete_record(
    etcd: EtcdClient, prefix: str, journal: str, create_revision: int, *, as_of: int = 0
) -> None:
    """Delete the record of a journal that was created at this revision.

    Args:
        etcd: where it is.
        prefix: of the brokers' keys.
        journal: its name.
        create_revision: of its spec.
        as_of: a record that was written after this revision stays; 0: none does.

    Raises: as `read_record`.
    """
    record, mod_revision = await read_record(etcd, prefix, journal)
    if as_of and mod_revision > as_of:
        return
    if record is not None and record.create_revision == create_revision:
        key = epoch_key(prefix, journal)
        await etcd.txn([Compare.mod(key, mod_revision)], [Delete(key)])


async def read_own_members(etcd: EtcdClient, prefix: str) -> RangeResult:
    """Read which members are brokers of this project. Raises: EtcdError. Cancellation: safe."""
    return await etcd.range(own_members_prefix(prefix))


async def has_foreign_members(etcd: EtcdClient, prefix: str, ours: RangeResult) -> bool:
    """Whether brokers of Gazette were members when `ours` was read. Raises: EtcdError. Cancellation: safe."""
    own_prefix, their_prefix = own_members_prefix(prefix), members_prefix(prefix)
    present = await etcd.range(their_prefix, revision=ours.header.revision)
    leases = {kv.key.removeprefix(own_prefix): kv.lease for kv in ours.kvs}
    return any(leases.get(kv.key.removeprefix(their_prefix)) != kv.lease for kv in present.kvs)


async def held_journals(
    etcd: EtcdClient, prefix: str, journals: Collection[str]
) -> dict[str, set[str]]:
    """The holders of each of some journals, without the journals that wait for one of their holders.

    Args:
        etcd: where the records are.
        prefix: of the brokers' keys.
        journals: of which it is asked; may change meanwhile.

    Returns: ids of tenures by journal.
    Raises: EtcdError.
    Cancellation: safe.
    """
    keys = epochs_prefix(prefix)
    held: dict[str, set[str]] = {}
    turns, after, left = Turns(), "", 1
    while left:
        page = await etcd.page(keys, after=after, page_keys=_PAGE_KEYS)
        for kv in page.kvs:
            await turns.take()
            journal = kv.key.removeprefix(keys)
            if journal not in journals:
                continue
            with contextlib.suppress(ValueError):  # reported by whoever reads this record alone
                record = EpochRecord.decode(kv.value)
                if not record.is_wanted:
                    held[journal] = {one.tenure for one in record.holders}
        left = page.count - len(page.kvs)
        after = page.kvs[-1].key if page.kvs else ""
    return held
