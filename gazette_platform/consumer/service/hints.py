"""Hints of shards in etcd: read all at once, written under guards.

Any consumer may have written them, Gazette's included, so each is checked before it is played.
They hold offsets of the log, and a shard without hints reads it from 0. A key beside them says which journal these
offsets belong to (`protocol.identity`): the form of hints is Gazette's, and a shard has none for its first minutes.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gazette_platform.consumer.cluster import (
    backup_hint_keys,
    log_identity_key,
    primary_hint_key,
    rotate_backup_hints,
    write_log_identity,
    write_primary_hints,
)
from gazette_platform.consumer.recoverylog import Fsm, FsmHints
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.etcd import Get
from gazette_platform.protocol import learned, require_same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.consumer.cluster import ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.etcd import EtcdClient, KeyValue


@dataclass(frozen=True, slots=True)
class StoredHints:
    """What etcd holds of one shard, as of one revision."""

    primary: FsmHints | None = None
    """None: there is no value; likewise below."""
    backups: tuple[FsmHints | None, ...] = ()
    """One for each backup that the spec asks for, newest first."""


async def fetch_hints(etcd: EtcdClient, spec: ShardSpec) -> StoredHints:
    """Read all hints of a shard in one transaction; a shard without a log has none.

    Raises: EtcdError. DataError: a value cannot be decoded, cannot be played, or is of another log; the
        error names its key.
    Cancellation: safe.
    """
    if not spec.recovery_log_prefix:
        return StoredHints()
    primary, *backups = await _read(etcd, (primary_hint_key(spec), *backup_hint_keys(spec)))
    # In a thread: hints of many files take long to be checked, and others have their turn meanwhile.
    return await asyncio.to_thread(_all_checked, primary, backups, spec)


async def put_primary_hints(
    etcd: EtcdClient, spec: ShardSpec, assignment: ShardAssignment, hints: FsmHints
) -> bool:
    """Keep the hints of the recorder that is at work.

    Returns: False: the assignment is not there any more, and nothing was written.
    Raises: EtcdError: `retriable` says whether that passes; the next hints then make up for these.
    Cancellation: leaves open whether it was written.
    """
    write = write_primary_hints(spec, assignment, hints.to_json())
    return (await etcd.txn(write.compares, write.operations)).succeeded


async def rotate_hints(
    etcd: EtcdClient, spec: ShardSpec, assignment: ShardAssignment, hints: FsmHints
) -> bool:
    """Keep the hints of a recovery as the newest backup, and move the older ones on.

    Values are moved as they are. Whoever calls this does so again until it held, after the pauses of
    `STATUS_RETRY_S`, for as long as the shard is assigned.

    Returns: whether it held; False: the assignment no longer exists, or another process wrote.
    Raises: EtcdError. Cancellation: leaves open whether it was written.
    """
    keys = backup_hint_keys(spec)
    if not keys:
        return True
    present = await _read(etcd, keys)
    write = rotate_backup_hints(spec, assignment, hints.to_json(), present)
    return (await etcd.txn(write.compares, write.operations)).succeeded


async def require_log(
    etcd: EtcdClient, spec: ShardSpec, assignment: ShardAssignment, created: int
) -> bool:
    """Refuse a recovery log that was deleted and made again. Note which journal it is, unless that is known.

    Args:
        created: which journal has the name of the log now (`protocol.identity`); 0: unknown.

    Returns: whether it is known now; False: the assignment is not there any more.
    Raises: JournalReplaced. EtcdError. DataError: the value is none of ours.
    Cancellation: leaves open whether it was written.
    """
    key = log_identity_key(spec)
    if not (key and created):
        return True
    (found,) = await _read(etcd, (key,))
    kept = _created_of(found, spec)
    require_same(
        spec.recovery_log,
        kept,
        created,
        offset=0,
        advice="to restart the shard, give it another recovery_log_prefix and hint_prefix; if this log holds "
        f"what the former one held, delete the key {key} of etcd",
    )
    created = learned(kept, created)
    if kept == created:
        return True
    identity = json.dumps({"log": spec.recovery_log, "created": created}).encode()
    write = write_log_identity(spec, assignment, identity)
    return (await etcd.txn(write.compares, write.operations)).succeeded


def _created_of(found: KeyValue | None, spec: ShardSpec) -> int:
    """Which journal was kept as the log; 0: none was, or it is of another log."""
    if found is None:
        return 0
    try:
        document = json.loads(found.value)
        log, created = document["log"], int(document["created"])
    except (ValueError, TypeError, KeyError) as err:
        raise DataError(
            f"{found.key}: expected JSON with `log` and `created` ({err!r}; delete the key)"
        ) from err
    return created if log == spec.recovery_log else 0


async def _read(etcd: EtcdClient, keys: Sequence[str]) -> list[KeyValue | None]:
    result = await etcd.txn([], [Get(key) for key in keys])
    return [read.kvs[0] if read.kvs else None for read in result.reads]


def _all_checked(
    primary: KeyValue | None, backups: Sequence[KeyValue | None], spec: ShardSpec
) -> StoredHints:
    return StoredHints(_checked(primary, spec), tuple(_checked(each, spec) for each in backups))


def _checked(found: KeyValue | None, spec: ShardSpec) -> FsmHints | None:
    if found is None:
        return None
    try:
        hints = FsmHints.from_bytes(found.value)
        Fsm(hints)
    except (DataError, ValidationError) as err:
        raise DataError(f"{found.key}: {err}") from err
    if hints.log != spec.recovery_log:
        raise DataError(
            f"{found.key}: the hints are of recovery log {hints.log}, and that of shard {spec.id} is "
            f"{spec.recovery_log} (was its prefix changed? Then write hints of the new log, or delete "
            "the key)"
        )
    return hints
