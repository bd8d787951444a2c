"""The append state machine: what one append needs next, decided without clock or I/O.

The shell feeds events to `AppendFSM.step` and carries out the one effect that comes back:

    state          event that leaves it            next effect
    -------------  ------------------------------  -------------------------------------------------
    RESOLVE        Resolved(OK, local)             Acquire
                   Resolved(OK, remote)            Proxy
                   Resolved(SUSPENDED), resuming   WriteSuspend(NONE, same offset)
                   Resolved(any other)             Fail(status)
    ACQUIRE        Acquired                        Sync
                   Invalidated                     Resolve
    SYNC           Synced                          CheckAssignments
                   SyncMismatch(offset)            Sync(roll to the peers' end, their registers)
                   WrongRoute(revision)            Resolve(revision)
    ASSIGNMENTS    AssignmentsFresh                CountReplicas
                   Written(revision)               Resolve(revision)
    REPLICAS       Replicas(as many as wanted)     AwaitReady
                   Replicas(too many)              Resolve(revision + 1)
                   Replicas(too few)               Fail(INSUFFICIENT_JOURNAL_BROKERS)
    READY          Ready(view)                     by `preconditions`: Fail | Sync | WriteSuspend |
                                                   Stream(roll_to)
                   Unhealthy(text)                 Fail(FRAGMENT_STORE_UNHEALTHY)
                   Invalidated                     Resolve
    SUSPEND        Written(revision)               Resolve(revision)
    STREAM         Content(length)                 Stream goes on; None
                   ContentEnd                      Commit(registers)
                   ContentBroken(text)             Rollback(text)
    COMMIT         Acknowledged                    Finish(status)

Peers (Sync with mismatches, wrong routes) take part once journals are replicated; with one replica
the shell answers `Synced` at once. Steps are taken per append and never per byte; the shell batches
the appends that reach STREAM together into one write.

Source: the states and the order of checks are Gazette's (append_fsm.go).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, final

from gazette_platform.protocol import (
    AppendSuspend,
    JournalSpec,
    LabelSelector,
    LabelSet,
    Status,
    SuspendLevel,
    SuspendSpec,
)

if TYPE_CHECKING:
    from datetime import datetime

__all__ = [
    "NS_PER_S",
    "Acknowledged",
    "Acquire",
    "Acquired",
    "AppendFSM",
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
    "Invalidated",
    "Proxy",
    "Ready",
    "ReplicaView",
    "Replicas",
    "Resolve",
    "Resolved",
    "Rollback",
    "State",
    "Stream",
    "Sync",
    "SyncMismatch",
    "Synced",
    "Unhealthy",
    "WriteSuspend",
    "Written",
    "WrongRoute",
    "must_roll",
    "preconditions",
    "updated_registers",
]

NS_PER_S = 1_000_000_000
_FLUSHED_AFTER_S = 24 * 3600  # age that counts as flushed where no flush interval is set


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

    @property
    def changes_registers(self) -> bool:
        """Whether it asks to modify registers, which needs content."""
        return bool(self.union_registers) or bool(self.subtract_registers)


@dataclass(frozen=True, slots=True)
class ReplicaView:
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
class Acquired:
    """This append owns the journal now."""


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The resolution no longer holds."""


@dataclass(frozen=True, slots=True)
class Synced:
    """Every replica is at the spool's end."""


@dataclass(frozen=True, slots=True)
class SyncMismatch:
    """A peer is ahead, or asked to start anew at our end."""

    roll_to: int
    registers: LabelSet | None


@dataclass(frozen=True, slots=True)
class WrongRoute:
    """A peer knows a newer route."""

    revision: int


@dataclass(frozen=True, slots=True)
class AssignmentsFresh:
    """Every assignment in etcd carries the current route."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many brokers serve the journal, and how many should, at `revision`."""

    current: int
    desired: int
    revision: int


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
    | Acquired
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
class Acquire:
    """Wait for the journal to be free."""


@dataclass(frozen=True, slots=True)
class Proxy:
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
class Stream:
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
    | Acquire
    | Proxy
    | Sync
    | CheckAssignments
    | CountReplicas
    | AwaitReady
    | WriteSuspend
    | Stream
    | Commit
    | Rollback
    | Fail
    | Finish
)


class State(Enum):
    """Where an append stands; see the module's table."""

    RESOLVE = auto()
    ACQUIRE = auto()
    SYNC = auto()
    ASSIGNMENTS = auto()
    REPLICAS = auto()
    READY = auto()
    SUSPEND = auto()
    STREAM = auto()
    COMMIT = auto()
    DONE = auto()


_ACQUIRE = Acquire()
_SYNC = Sync()
_CHECK = CheckAssignments()
_COUNT = CountReplicas()
_AWAIT = AwaitReady()


@final
@dataclass(slots=True)
class AppendFSM:
    """One append, from request to answer."""

    request: AppendRequest
    state: State = State.RESOLVE
    view: ReplicaView | None = None
    content_length: int = 0
    final_status: Status = Status.OK
    story: list[str] = field(default_factory=list)
    """Off-path transitions, to be read when a test fails."""

    def start(self) -> Effect:
        """The first effect."""
        return Resolve(self.request.min_revision)

    def step(self, event: Event) -> Effect | None:  # noqa: PLR0911  one per transition
        """Take one event.

        Returns: the effect to carry out, or None while streaming goes on.
        Raises: RuntimeError: the event does not belong to the state; a fault of the shell.
        """
        match self.state, event:
            case State.STREAM, Content(length):
                return self._on_content(length)
            case State.STREAM, ContentEnd():
                return self._on_content_end()
            case State.COMMIT, Acknowledged():
                self.state = State.DONE
                return Finish(self.final_status)
            case State.READY, Ready(view):
                return self._on_ready(view)
            case State.RESOLVE, Resolved():
                return self._on_resolved(event)
            case State.ACQUIRE, Acquired():
                self.state = State.SYNC
                return _SYNC
            case State.SYNC, Synced():
                self.state = State.ASSIGNMENTS
                return _CHECK
            case State.ASSIGNMENTS, AssignmentsFresh():
                self.state = State.REPLICAS
                return _COUNT
            case State.REPLICAS, Replicas(current, desired) if current == desired:
                self.state = State.READY
                return _AWAIT
            case _:
                return self._step_rarely(event)

    def _step_rarely(self, event: Event) -> Effect:  # noqa: PLR0911  one per transition
        self.story.append(f"{self.state.name}: {event}")
        match self.state, event:
            case ((State.ACQUIRE | State.SYNC | State.ASSIGNMENTS | State.READY), Invalidated()):
                return self._resolve(0)
            case State.REPLICAS, Replicas(current, desired, revision):
                if current > desired:  # the allocator is about to remove some
                    return self._resolve(revision + 1)
                return self._fail(Status.INSUFFICIENT_JOURNAL_BROKERS)
            case State.SYNC, SyncMismatch(roll_to, registers):
                return Sync(roll_to, registers)
            case State.SYNC, WrongRoute(revision):
                return self._resolve(revision)
            case ((State.ASSIGNMENTS | State.SUSPEND), Written(revision)):
                return self._resolve(revision)
            case State.READY, Unhealthy(text):
                return self._fail(Status.FRAGMENT_STORE_UNHEALTHY, text)
            case State.STREAM, ContentBroken(text):
                self.state = State.DONE
                return Rollback(text)
            case _:
                raise RuntimeError(f"append of {self.request.journal}: {event} in {self.state}")

    def _resolve(self, revision: int) -> Effect:
        self.state = State.RESOLVE
        return Resolve(max(revision, self.request.min_revision))

    def _fail(self, status: Status, text: str = "") -> Effect:
        self.state = State.DONE
        return Fail(status, text)

    def _on_resolved(self, event: Resolved) -> Effect:
        resuming = self.request.suspend is AppendSuspend.SUSPEND_RESUME
        if event.status is Status.SUSPENDED and resuming and event.spec is not None:
            self.state = State.SUSPEND
            offset = event.spec.suspend.offset if event.spec.suspend else 0
            return WriteSuspend(SuspendSpec(SuspendLevel.NONE, offset))
        if event.status is not Status.OK:
            return self._fail(event.status)
        if not event.is_local_primary:
            self.state = State.DONE
            return Proxy()
        self.state = State.ACQUIRE
        return _ACQUIRE

    def _on_ready(self, view: ReplicaView) -> Effect:
        self.view = view
        effect = preconditions(self.request, view)
        match effect:
            case Stream():
                self.state = State.STREAM
                if _is_suspending(self.request) and _level(view.spec) is SuspendLevel.PARTIAL:
                    self.final_status = Status.SUSPENDED
                    # Nobody else will close the fragment, and only closed ones are persisted.
                    effect = Stream(view.spool_end)
            case Sync():
                self.story.append(f"READY: {effect}")
                self.state = State.SYNC
            case WriteSuspend():
                self.story.append(f"READY: {effect}")
                self.state = State.SUSPEND
            case _:
                self.state = State.DONE
        return effect

    def _on_content(self, length: int) -> Effect | None:
        assert self.view is not None
        if not self.view.spec.flags.may_write or self.request.suspend in _WITHOUT_CONTENT:
            self.state = State.DONE
            return Rollback(status=Status.NOT_ALLOWED)
        self.content_length += length
        return None

    def _on_content_end(self) -> Effect:
        assert self.view is not None
        if self.content_length == 0 and self.request.changes_registers:
            self.state = State.DONE
            return Rollback("append stream: register modification requires non-empty Append")
        self.state = State.COMMIT
        return Commit(updated_registers(self.view.registers, self.request))


_WITHOUT_CONTENT = frozenset(
    {
        AppendSuspend.SUSPEND_IF_FLUSHED,
        AppendSuspend.SUSPEND_NOW,
        AppendSuspend.SUSPEND_KEEP,
    }
)


def preconditions(request: AppendRequest, view: ReplicaView) -> Effect:
    """Decide whether an append may stream, in the order of checks that clients rely on.

    Returns: Stream with the offset to roll to (0: none), or Fail, Sync or WriteSuspend.
    """
    selector = request.check_registers
    if selector is not None and view.registers and not selector.matches(view.registers):
        return Fail(Status.REGISTER_MISMATCH)
    suspend = view.spec.suspend
    if suspend is not None and view.spool_end < suspend.offset:
        return Sync(roll_to=suspend.offset)
    head = max(view.spool_end, view.index_end)
    is_behind = view.spool_end != head
    if is_behind and request.offset == 0 and view.spec.flags.may_write:
        # Content is in the store that no replica remembers. Read-only journals are exempt: they
        # mirror a store that somebody else writes.
        return Fail(Status.INDEX_HAS_GREATER_OFFSET)
    if request.offset not in (0, head):
        return Fail(Status.WRONG_APPEND_OFFSET)
    if request.offset != 0 and is_behind:
        return Sync(roll_to=head)
    roll_to = view.spool_end if view.spool_begin == view.index_begin else 0
    return _suspension(request, view) or Stream(roll_to)


def _suspension(request: AppendRequest, view: ReplicaView) -> Effect | None:
    level = _level(view.spec)
    match request.suspend:
        case AppendSuspend.SUSPEND_RESUME if level is not SuspendLevel.NONE:
            return WriteSuspend(SuspendSpec(SuspendLevel.NONE, view.spool_end))
        case AppendSuspend.SUSPEND_NO_RESUME if level is not SuspendLevel.NONE:
            return Fail(Status.SUSPENDED)
        case AppendSuspend.SUSPEND_IF_FLUSHED | AppendSuspend.SUSPEND_NOW:
            if view.index_begin == view.index_end and level is not SuspendLevel.FULL:
                return WriteSuspend(SuspendSpec(SuspendLevel.FULL, view.spool_end))
            now = request.suspend is AppendSuspend.SUSPEND_NOW
            if level is SuspendLevel.NONE and (now or _is_clean(view)):
                return WriteSuspend(SuspendSpec(SuspendLevel.PARTIAL, view.spool_end))
        case _:
            pass
    return None


def _is_suspending(request: AppendRequest) -> bool:
    return request.suspend in (AppendSuspend.SUSPEND_IF_FLUSHED, AppendSuspend.SUSPEND_NOW)


def _is_clean(view: ReplicaView) -> bool:
    """Whether the last fragment is in the store for longer than a flush interval."""
    quiet_s = view.spec.fragment.flush_interval_ns / NS_PER_S or _FLUSHED_AFTER_S
    return view.index_mod_time != 0 and view.now_s - view.index_mod_time > quiet_s


def _level(spec: JournalSpec) -> SuspendLevel:
    return spec.suspend.level if spec.suspend is not None else SuspendLevel.NONE


def updated_registers(registers: LabelSet, request: AppendRequest) -> LabelSet:
    """The registers after an append: first subtracted from, then united with the request's."""
    if request.subtract_registers:
        registers = registers.subtract(request.subtract_registers)
    if request.union_registers:
        registers = request.union_registers.union(registers)
    return registers


def must_roll(
    spec: JournalSpec,
    *,
    begin: int,
    end: int,
    first_append_at: datetime | None,
    now: datetime,
    roll_to: int = 0,
) -> bool:
    """Whether the spool [begin, end) closes before the next append.

    An empty spool always "rolls", which is how a changed codec takes effect.

    Args: roll_to: journal offset at which to start anew; 0: none asked for.
    Source: fragments close by length (exceeded by at most one append), by a passed UTC-aligned
    flush window, or because another offset is asked for.
    """
    if begin == end or end - begin > spec.fragment.length:
        return True
    if roll_to not in (0, begin):
        return True
    interval_ns = spec.fragment.flush_interval_ns
    if interval_ns <= 0 or first_append_at is None:
        return False
    interval_s = interval_ns / NS_PER_S
    return first_append_at.timestamp() // interval_s != now.timestamp() // interval_s
