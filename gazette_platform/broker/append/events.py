"""What the append state machine is told, and what it asks for: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gazette_platform.broker.replicate.synced import Invalidated, Synced, SyncMismatch, WrongRoute
from gazette_platform.protocol import AppendSuspend, Status

if TYPE_CHECKING:
    from gazette_platform.protocol import JournalSpec, LabelSelector, LabelSet, SuspendSpec

__all__ = [
    "Acknowledged",
    "AppendRequest",
    "AssignmentsFresh",
    "AwaitReady",
    "CheckAssignments",
    "Commit",
    "Content",
    "ContentBroken",
    "ContentEnd",
    "CountReplicas",
    "Effect",
    "Event",
    "Fail",
    "Finish",
    "Forward",
    "Ready",
    "ReplicaView",
    "Replicas",
    "Resolve",
    "Resolved",
    "Rollback",
    "Sync",
    "TakeContent",
    "Unhealthy",
    "WriteSuspend",
    "Written",
]


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """What the client asked for, ahead of its content."""

    journal: str
    offset: int = 0
    check_registers: LabelSelector | None = None
    union_registers: LabelSet | None = None
    subtract_registers: LabelSet | None = None
    suspend: AppendSuspend = AppendSuspend.SUSPEND_RESUME
    min_revision: int = 0
    resets_head: bool = False
    """Go on without what only brokers hold that are not there. Brokers' own; not on the wire."""
    closes_fragment: bool = False
    """Close the open fragment first, though nothing else asks for it. Brokers' own; not on the wire."""


class ReplicaView(NamedTuple):
    """A primary's state, as preconditions see it; offsets are journal bytes."""

    spec: JournalSpec
    spool_begin: int
    spool_end: int
    index_begin: int
    index_end: int
    index_mod_time: int
    """Unix seconds of the last fragment; 0: it is local."""
    registers: LabelSet
    now_s: float
    """Unix seconds."""


# ---------------------------------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class Resolved:
    """The journal was looked up."""

    status: Status
    is_local_primary: bool
    spec: JournalSpec | None = None


@dataclass(frozen=True, slots=True)
class AssignmentsFresh:
    """Every assignment in etcd carries the current route."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many brokers serve the journal, and how many should, at `revision`."""

    current: int
    desired: int
    revision: int
    may_wait: bool = False
    """Whether the append has time to wait for more of them."""


@dataclass(frozen=True, slots=True)
class Written:
    """An etcd transaction ran; whatever its outcome, look again at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The store was listed and is healthy."""

    view: ReplicaView


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """The store kept failing its health checks."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Content arrived: `length` bytes, more than none."""

    length: int


@dataclass(frozen=True, slots=True)
class ContentEnd:
    """The client asked to commit."""


@dataclass(frozen=True, slots=True)
class ContentBroken:
    """The client's stream ended otherwise; `text` is what the RPC fails with."""

    text: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The commit is on every replica."""


Event = (
    Resolved
    | Invalidated
    | Synced
    | SyncMismatch
    | WrongRoute
    | AssignmentsFresh
    | Replicas
    | Written
    | Ready
    | Unhealthy
    | Content
    | ContentEnd
    | ContentBroken
    | Acknowledged
)


# --------------------------------------------------------------------------------------- effects
@dataclass(frozen=True, slots=True)
class Resolve:
    """Look the journal up at `min_revision` or later."""

    min_revision: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Another broker is primary: forward the append."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Bring every replica to the same fragment, after rolling to `roll_to` if it is not 0."""

    roll_to: int = 0
    registers: LabelSet | None = None


@dataclass(frozen=True, slots=True)
class CheckAssignments:
    """Write the current route into the journal's assignments where it is not there yet."""


@dataclass(frozen=True, slots=True)
class CountReplicas:
    """Compare the route with the replication that the journal should have."""


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Wait for the first listing and a healthy store."""


@dataclass(frozen=True, slots=True)
class WriteSuspend:
    """Store the spec with this suspension."""

    suspend: SuspendSpec


@dataclass(frozen=True, slots=True)
class TakeContent:
    """Take content, after rolling the spool if due (see `must_roll`, with this `roll_to`)."""

    roll_to: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Make the content part of the journal, with these registers."""

    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Rollback:
    """Forget the content; then fail the RPC with `text`, or answer `status` if there is none."""

    text: str = ""
    status: Status = Status.OK


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer `status`; nothing was written."""

    status: Status
    text: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Answer `status` with the commit."""

    status: Status


Effect = (
    Resolve
    | Forward
    | Sync
    | CheckAssignments
    | CountReplicas
    | AwaitReady
    | WriteSuspend
    | TakeContent
    | Commit
    | Rollback
    | Fail
    | Finish
)
