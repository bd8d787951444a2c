"""Transactions with which replicas report their status, and hints are kept. Pure.

Keys of hints lie outside of what the group watches. They outlive the shard, and only its
primaries writes them:

    <hint_prefix>/<shard>.primary       of the recorder that is at work: from time to time
    <hint_prefix>/<shard>.backup.<n>    of recoveries that succeeded; 0 is the newest
    <hint_prefix>/<shard>.log           which journal the log is: a key of our own, as hints do not say it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gazette_platform.consumer.cluster.values import encode_replica_status
from gazette_platform.consumer.protocol import HINT_BACKUPS_MAX
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.consumer.cluster.state import ShardAssignment
    from gazette_platform.consumer.protocol import ReplicaStatus, ShardSpec
    from gazette_platform.etcd import KeyValue, Operation

__all__ = [
    "STATUS_RETRY_S",
    "GuardedWrite",
    "backup_hint_keys",
    "log_identity_key",
    "primary_hint_key",
    "rotate_backup_hints",
    "write_log_identity",
    "write_primary_hints",
    "write_status",
]

STATUS_RETRY_S: Final = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0)
"""Seconds between attempts to write a status, or backup hints; the last one is repeated."""


@dataclass(frozen=True, slots=True)
class GuardedWrite:
    """A transaction of etcd: operations that are done if all comparisons hold."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


def primary_hint_key(spec: ShardSpec) -> str:
    """The key of the primary's hints; "" for a shard without a log."""
    return f"{spec.hint_prefix}/{spec.id}.primary" if spec.recovery_log_prefix else ""


def backup_hint_keys(spec: ShardSpec) -> tuple[str, ...]:
    """The keys of backup hints, newest first; none for a shard without a log.

    Raises: ValidationError: the spec asks for more than etcd reads at once.
    """
    if not spec.recovery_log_prefix:
        return ()
    if spec.hint_backups > HINT_BACKUPS_MAX:
        raise ValidationError(
            f"shard {spec.id} asks for {spec.hint_backups} backups of its hints (expected <= "
            f"{HINT_BACKUPS_MAX}; apply its spec with fewer)"
        )
    return tuple(f"{spec.hint_prefix}/{spec.id}.backup.{n}" for n in range(spec.hint_backups))


def log_identity_key(spec: ShardSpec) -> str:
    """The key of the recovery log's journal; "" for a shard without a log."""
    return f"{spec.hint_prefix}/{spec.id}.log" if spec.recovery_log_prefix else ""


def write_status(assignment: ShardAssignment, status: ReplicaStatus) -> GuardedWrite:
    """Report a status, folded with the present one: a status never goes back, and FAILED sticks.

    The key stays under its lease, and must be as the mirror has it. Otherwise wait for the mirror, and
    make the write again.
    """
    value = encode_replica_status(assignment.status.fold(status))
    return GuardedWrite(
        (Compare.mod(assignment.key, assignment.mod_revision),),
        (Put(assignment.key, value, ignore_lease=True),),
    )


def write_primary_hints(spec: ShardSpec, assignment: ShardAssignment, hints: bytes) -> GuardedWrite:
    """Put the hints of the recorder that is at work, while the assignment is the same.

    A change of its status does not matter, so the guard is the revision of its creation.
    """
    return GuardedWrite((_is_assigned(assignment),), (Put(primary_hint_key(spec), hints),))


def write_log_identity(
    spec: ShardSpec, assignment: ShardAssignment, identity: bytes
) -> GuardedWrite:
    """Put which journal the recovery log is, while the assignment is the same."""
    return GuardedWrite((_is_assigned(assignment),), (Put(log_identity_key(spec), identity),))


def rotate_backup_hints(
    spec: ShardSpec,
    assignment: ShardAssignment,
    hints: bytes,
    present: Sequence[KeyValue | None],
) -> GuardedWrite:
    """Put new backup hints first, and move the older ones on by one, up to a free key or the last.

    If they are first already nothing moves: a shard that is recovered again and again, or an answer of etcd
    that was lost, would drive out older ones, which may be needed.

    Args:
        hints: of the recovery that succeeded.
        present: what each of `backup_hint_keys` holds, in their order; None: nothing.

    Returns: a write; without operations, if the shard keeps no backups, or has these.
    """
    compares = [_is_assigned(assignment)]
    if present and present[0] is not None and present[0].value == hints:
        return GuardedWrite(tuple(compares), ())
    operations: list[Operation] = []
    moved = hints
    for key, found in zip(backup_hint_keys(spec), present, strict=True):
        operations.append(Put(key, moved))
        compares.append(Compare.mod(key, found.mod_revision if found is not None else 0))
        if found is None:
            break
        moved = found.value
    return GuardedWrite(tuple(compares), tuple(operations))


def _is_assigned(assignment: ShardAssignment) -> Compare:
    return Compare.create(assignment.key, assignment.create_revision)
