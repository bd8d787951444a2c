"""The events that the append state machine takes, and the effects that it returns: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gazette_platform.broker.replicate.fsm import Invalidated, Synced, SyncMismatch, WrongRoute
from gazette_platform.protocol import AppendSuspend, Status

if TYPE_CHECKING:
    from gazette_platform.protocol import JournalSpec, LabelSelector, LabelSet, SuspendSpec


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """What the client asked for in the first message, before its content."""

    journal: str
    offset: int = 0
    check_registers: LabelSelector | None = None
    union_registers: LabelSet | None = None
    subtract_registers: LabelSet | None = None
    suspend: AppendSuspend = AppendSuspend.SUSPEND_RESUME
    min_revision: int = 0
    resets_head: bool = False
    """Continue after all that is stored, without content that only absent brokers hold. For brokers
    only; not on the wire."""
    closes_fragment: bool = False
    """Close the open fragment first, even if no rule asks for it. For brokers only; not on the wire."""

    @property
    def is_plain(self) -> bool:
        """Whether it changes nothing but the journal's end, and goes wherever that is."""
        return not (
            self.offset
            or self.union_registers
            or self.subtract_registers
            or self.suspend is not AppendSuspend.SUSPEND_RESUME
            or self.resets_head
            or self.closes_fragment
        )


class ReplicaView(NamedTuple):
    """A primary's state, as preconditions see it; offsets are journal bytes."""

    spec: JournalSpec
    spool_begin: int
    spool_end: int
    index_begin: int
    index_end: int
    index_mod_time: int
    """Unix seconds at which the last fragment was stored; 0: it is not in the store yet."""
    registers: LabelSet
    now_s: float
    """Unix seconds."""
    is_released: bool = False
    """Whether etcd says where the journal goes on without its holders; see `epochs.Released`."""


# ---------------------------------------------------------------------------------------- events
@dataclass(frozen=True, slots=True)
class Resolved:
    """The journal was looked up."""

    status: Status
    is_local_primary: bool
    spec: JournalSpec | None = None
    revision: int = 0
    """At which that is so."""
    may_wait: bool = False
    """Whether the append has time to wait for another status, if this one will pass by itself."""


@dataclass(frozen=True, slots=True)
class AssignmentsFresh:
    """Every assignment in etcd carries the current route."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many brokers serve the journal at `revision`, and how many should."""

    current: int
    desired: int
    revision: int
    may_wait: bool = False
    """Whether the append has time to wait for more of them."""


@dataclass(frozen=True, slots=True)
class Written:
    """An etcd transaction ran. Whether it succeeded or not, look again at `revision`."""

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
    """`length` bytes of content arrived, at least one."""

    length: int


@dataclass(frozen=True, slots=True)
class ContentEnd:
    """The client asked to commit."""


@dataclass(frozen=True, slots=True)
class ContentBroken:
    """The client's stream ended without a commit; the RPC fails with `text`."""

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
    """Another broker is primary: pass the append on to it."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Bring every replica to the same fragment, after rolling to `roll_to` if it is not 0."""

    roll_to: int = 0
    registers: LabelSet | None = None


@dataclass(frozen=True, slots=True)
class CheckAssignments:
    """Write the current route into those of the journal's assignments that do not have it yet."""


@dataclass(frozen=True, slots=True)
class CountReplicas:
    """Compare the number of brokers in the route with the replication that the journal should have."""


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Wait until the store was listed for the first time, and is healthy."""


@dataclass(frozen=True, slots=True)
class WriteSuspend:
    """Store the spec with this suspension."""

    suspend: SuspendSpec


@dataclass(frozen=True, slots=True)
class TakeContent:
    """Take content. The spool is rolled first if that is due (see `must_roll`, with this `roll_to`)."""

    roll_to: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Make the content part of the journal, with these registers."""

    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Rollback:
    """Drop the content. Then fail the RPC with `text`, or answer `status` if there is no text."""

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
