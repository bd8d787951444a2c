"""What a process does about its replica of a shard when assignments change. Pure.

    replica here   assignment                              step
    -------------  --------------------------------------  -------------------------------------
    none           none, or the shard is gone              KEEP
    none           some                                    START
    some           none, or the shard is gone              STOP
    some           of the same creation                    KEEP: spec and status are read again
    some, at work  of another creation, in a lower slot    PROMOTE: the replica goes on
    some           of another creation, else               RESTART: the old one stops, a new one starts

A slot is part of the key: whoever gets another slot has another assignment. A replica that started as
standby runs the standby's task to the end of its life, and the primary's beside it once it has slot 0.

Source: Gazette's consumer. Departs: there a standby that has failed is promoted, and fails again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus

if TYPE_CHECKING:
    from gazette_platform.consumer.cluster import ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec

__all__ = [
    "PRIMARY_ERROR_CHARACTERS_MAX",
    "HeldReplica",
    "ReplicaStep",
    "ReplicaTask",
    "changes_that_wait",
    "failed_status",
    "replica_step",
    "tasks_to_start",
]

PRIMARY_ERROR_CHARACTERS_MAX: Final = 2048
_STANDBY_ERROR_CHARACTERS_MAX: Final = 32768  # far less than etcd takes
_TRUNCATED: Final = " ...[truncated]"


class ReplicaStep(Enum):
    """What to do about a replica; see the module."""

    KEEP = auto()
    START = auto()
    PROMOTE = auto()
    RESTART = auto()
    STOP = auto()


class ReplicaTask(Enum):
    """What runs for a replica."""

    STANDBY = auto()
    """Recovers the state, and follows the log."""
    PRIMARY = auto()
    """Takes the log over, opens the store, and consumes."""


@dataclass(frozen=True, slots=True)
class HeldReplica:
    """A replica as it was assigned."""

    slot: int
    create_revision: int
    has_failed: bool = False


def replica_step(
    held: HeldReplica | None, assignment: ShardAssignment | None, *, has_spec: bool
) -> ReplicaStep:
    """What to do about a replica.

    Args:
        held: of this process, if there is one.
        assignment: of this process, as of now.
        has_spec: whether the shard exists.
    """
    if assignment is None or not has_spec:
        return ReplicaStep.KEEP if held is None else ReplicaStep.STOP
    if held is None:
        return ReplicaStep.START
    if assignment.create_revision == held.create_revision:
        return ReplicaStep.KEEP
    may_go_on = assignment.slot < held.slot and not held.has_failed
    return ReplicaStep.PROMOTE if may_go_on else ReplicaStep.RESTART


def tasks_to_start(step: ReplicaStep, slot: int) -> tuple[ReplicaTask, ...]:
    """The tasks that a step starts, of a replica which is in this slot now."""
    match step:
        case ReplicaStep.START | ReplicaStep.RESTART:
            standby = (ReplicaTask.STANDBY,)
            return standby if slot else (*standby, ReplicaTask.PRIMARY)
        case ReplicaStep.PROMOTE:
            return () if slot else (ReplicaTask.PRIMARY,)
        case ReplicaStep.KEEP | ReplicaStep.STOP:
            return ()


def changes_that_wait(former: ShardSpec, present: ShardSpec) -> tuple[str, ...]:
    """What of a changed spec a primary that is at work does not take up: fields, in the words of specs."""
    pairs = {
        "sources": (former.sources, present.sources),
        "recovery_log_prefix": (former.recovery_log, present.recovery_log),
        "ring_buffer_size": (former.ring_size, present.ring_size),
        "read_channel_size": (former.queue_size, present.queue_size),
    }
    return tuple(name for name, (one, other) in pairs.items() if one != other)


def failed_status(error: str, task: ReplicaTask) -> ReplicaStatus:
    """What a replica reports of an error. The primary's is cut to 2048 characters.

    It can be reported whatever is in the text: half a pair of surrogates has no place in protobuf.
    """
    text = error or "failed without a reason"
    is_primary = task is ReplicaTask.PRIMARY
    most = PRIMARY_ERROR_CHARACTERS_MAX if is_primary else _STANDBY_ERROR_CHARACTERS_MAX
    if len(text) > most:
        text = text[:most] + _TRUNCATED
    text = text.encode(errors="backslashreplace").decode()
    return ReplicaStatus(ReplicaCode.FAILED, (text,))
