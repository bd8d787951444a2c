"""What assignments mean: what this process does about its replica, and who serves a shard. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus, ShardSpec, ShardStatus
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import EtcdHeader, Header, ProcessId, Route
from gazette_platform.protocol.auth import ALL_CLAIMS, Claims

if TYPE_CHECKING:
    from gazette_platform.consumer.cluster import ConsumerState, ShardAssignment

# ------------------------------------------------------------------ our replica

# What a process does about its replica of a shard when assignments change. Pure.
#
#     replica here   assignment                              step
#     -------------  --------------------------------------  -------------------------------------
#     none           none, or the shard is gone              KEEP
#     none           some                                    START
#     some           none, or the shard is gone              STOP
#     some           of the same creation                    KEEP: spec and status are read again
#     some, at work  of another creation, in a lower slot    PROMOTE: the replica goes on
#     some           of another creation, else               RESTART: the old one stops, a new one starts
#
# A slot is part of the key: whoever gets another slot has another assignment. A replica that started as
# standby runs the standby's task to the end of its life, and the primary's beside it once it has slot 0.
#
# Source: Gazette's consumer. Departs: there a standby that has failed is promoted, and fails again.

PRIMARY_ERROR_CHARACTERS_MAX: Final = 2048
_STANDBY_ERROR_CHARACTERS_MAX: Final = 32768  # far less than etcd takes
_TRUNCATED: Final = " ...[truncated]"


class ReplicaStep(Enum):
    """What to do about a replica; the table above says when."""

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
    # Promoted, a failed replica would fail at once, and the shard would have no primary. Started again, it may succeed.
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


# ------------------------------------------------------------------ resolution

# Who serves a shard, and whether it may be served now. Pure.
#
# Source: the order of checks and the process that an answer names are those of Gazette's resolver.

MISSING_ID: Final = ProcessId("local-ConsumerSpec", "missing-from-Etcd")
"""Stands in for our identity while etcd does not have our member key: it matches no member."""

STOPPED_TEXT: Final = "resolver has stopped serving local shards"
"""The error of a resolution that would be served here, after this process began to leave."""


@dataclass(frozen=True, slots=True)
class ShardResolution:
    """The answer to "who serves this shard?", as of one revision."""

    status: ShardStatus
    header: Header
    spec: ShardSpec | None
    is_local: bool
    """Whether the status is OK, and we are the process that is to answer."""

    @property
    def is_remote(self) -> bool:
        """Whether the call is to be proxied, with `header`, to the process that it names."""
        return self.status is ShardStatus.OK and not self.is_local


def check_proxy_header(header: Header, etcd: EtcdHeader, own_id: ProcessId) -> int:
    """Check the header of a process that forwards a call to us.

    Returns: the revision that our view has to reach before we resolve.
    Raises: ValidationError: it means another cluster, or another process.
    """
    if header.etcd.cluster_id != etcd.cluster_id:
        raise ValidationError(
            "proxied request Etcd ClusterId doesn't match our own "
            f"({header.etcd.cluster_id} vs {etcd.cluster_id})"
        )
    if header.process_id is not None and header.process_id != own_id:
        raise ValidationError(
            f"proxied request ProcessId doesn't match our own ({header.process_id} vs {own_id})"
        )
    return header.etcd.revision


def resolve_shard(
    state: ConsumerState,
    etcd: EtcdHeader,
    process_id: ProcessId,
    shard: str,
    *,
    may_proxy: bool,
    claims: Claims = ALL_CLAIMS,
) -> ShardResolution:
    """Resolve a shard at the present revision.

    Args:
        process_id: ours, whether we are a member or not.
        may_proxy: whether the answer may be another process.
        claims: of the caller; shards beyond them do not exist for it, and have no route.
    """
    own_id = process_id if process_id in state.members else MISSING_ID
    item = state.items.get(shard)
    spec = item.spec if item is not None else None
    if spec is not None and not claims.match(spec.label_set_with_id()):
        spec = None
    route = state.route_of(shard) if spec is not None else Route()
    primary = route.primary_id
    if spec is None:
        status = ShardStatus.SHARD_NOT_FOUND
    elif primary is None:
        status = ShardStatus.NO_SHARD_PRIMARY
    elif primary != own_id and not may_proxy:
        status = ShardStatus.NOT_SHARD_PRIMARY
    else:
        status = ShardStatus.OK
    # A refusal names the process that it comes from.
    answering = primary if status is ShardStatus.OK else own_id
    return ShardResolution(
        status,
        Header(answering, route, etcd),
        spec,
        is_local=status is ShardStatus.OK and answering == own_id,
    )


class LocalStep(Enum):
    """What to do about a call that we are to answer."""

    SERVE = auto()
    WAIT = auto()
    STOPPED = auto()
    """Answer SHARD_STOPPED: it cannot come to be served here."""


def local_step(*, is_store_ready: bool, is_loop_ended: bool, is_reached: bool) -> LocalStep:
    """What to do about a call, asked whenever one of these changes.

    A shard that has failed is served still, from the store that it had, as long as no call waits for it
    to read on.

    Args:
        is_store_ready: whether the store has given its checkpoint.
        is_loop_ended: whether the primary's loop has failed, or was cancelled.
        is_reached: whether progress is where the caller waits for it.
    """
    if is_store_ready and is_reached:
        return LocalStep.SERVE
    return LocalStep.STOPPED if is_loop_ended else LocalStep.WAIT
