"""The append state machine: what one append needs next, decided without clock or I/O.

The shell feeds events to `AppendFSM.step` and carries out the one effect that comes back:

    state          event that leaves it            next effect
    -------------  ------------------------------  -------------------------------------------------
    RESOLVE        Resolved(OK, local)             Sync
                   Resolved(OK, remote)            Forward, or CountReplicas (see `forwards`)
                   Resolved(SUSPENDED), resuming   WriteSuspend(NONE, same offset)
                   Resolved(passing), may wait     Resolve(revision + 1)
                   Resolved(any other)             Fail(status)
    SYNC           Synced                          CheckAssignments
                   SyncMismatch(offset)            Sync(roll to the peers' end, their registers)
                   WrongRoute(revision)            Resolve(revision)
    ASSIGNMENTS    AssignmentsFresh                CountReplicas
                   Written(revision)               Resolve(revision)
                   SyncMismatch(offset)            Sync(roll to where the journal goes on, its registers)
                   Unhealthy(text)                 Fail(FRAGMENT_STORE_UNHEALTHY)
    REPLICAS       Replicas(as many as wanted)     AwaitReady
                   Replicas(too many)              Resolve(revision + 1)
                   Replicas(too few, may wait)     Resolve(revision + 1)
                   Replicas(too few)               Fail(INSUFFICIENT_JOURNAL_BROKERS)
    REMOTE         Replicas(as many as wanted)     Forward
                   Replicas(others, may wait)      Resolve(revision + 1)
                   Replicas(too many)              Forward
                   Replicas(too few)               Fail(INSUFFICIENT_JOURNAL_BROKERS)
    READY          Ready(view)                     by `preconditions`: Fail | Sync | WriteSuspend |
                                                   TakeContent(roll_to)
                   Unhealthy(text)                 Fail(FRAGMENT_STORE_UNHEALTHY)
                   Invalidated                     Resolve
    SUSPEND        Written(revision)               Resolve(revision)
    STREAM         Content(length)                 None: it goes on
                   Invalidated, before content     Resolve
                   ContentEnd                      Commit(registers)
                   ContentBroken(text)             Rollback(text)
    COMMIT         Acknowledged                    Finish(status)

An append that comes right after one that was found READY may begin there itself (`join`). If it asks
for the same, it is where that one has arrived (`repeat`).

Where a journal has one replica, the shell answers `Synced` at once. Steps are taken per append and
never per byte. The shell writes all appends that have reached STREAM together.

Source: the states and the order of checks are Gazette's (append_fsm.go).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, final

from gazette_platform.broker.append.events import (
    Acknowledged,
    AppendRequest,
    AssignmentsFresh,
    AwaitReady,
    CheckAssignments,
    Commit,
    Content,
    ContentBroken,
    ContentEnd,
    CountReplicas,
    Effect,
    Event,
    Fail,
    Finish,
    Forward,
    Ready,
    Replicas,
    ReplicaView,
    Resolve,
    Resolved,
    Rollback,
    Sync,
    TakeContent,
    Unhealthy,
    WriteSuspend,
    Written,
)
from gazette_platform.broker.replicate.fsm import Invalidated, Synced, SyncMismatch, WrongRoute
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    AppendSuspend,
    JournalSpec,
    LabelSet,
    Status,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.protocol.rules import OFFSET_MAX

if TYPE_CHECKING:
    from datetime import datetime


# Every append sends the registers to each replica, and back to its client.
_REGISTER_BYTES_MAX = 256 << 10
_LABEL_BYTES = 8  # what the encoding of one adds, about
_FLUSHED_AFTER_S = 24 * 3600  # age that counts as flushed if the spec has no flush interval


class State(Enum):
    """Where an append stands; see the module's table."""

    RESOLVE = auto()
    SYNC = auto()
    ASSIGNMENTS = auto()
    REPLICAS = auto()
    REMOTE = auto()
    READY = auto()
    SUSPEND = auto()
    STREAM = auto()
    COMMIT = auto()
    DONE = auto()


# Statuses that pass by themselves while a journal is being assigned.
_PASSING = frozenset({Status.NO_JOURNAL_PRIMARY_BROKER, Status.INSUFFICIENT_JOURNAL_BROKERS})

_SYNC = Sync()
_CHECK = CheckAssignments()
_COUNT = CountReplicas()
_AWAIT = AwaitReady()
_STREAM = TakeContent(0)
_FINISH = Finish(Status.OK)


@final
@dataclass(slots=True)
class AppendFSM:
    """One append, from request to answer."""

    request: AppendRequest
    has_content: bool = False
    """Whether the append is known to bring content, before any of it was taken."""
    forwards: bool = False
    """Whether it is to be sent on to a primary elsewhere. With too few replicas it would be on fewer
    brokers than the spec promises; with too many the allocator is about to remove one, maybe that
    primary. So it waits before it is sent, as it would at the primary. Else `Forward` gives it back."""
    state: State = State.RESOLVE
    view: ReplicaView | None = None
    content_length: int = 0
    final_status: Status = Status.OK
    story: list[str] = field(default_factory=list)
    """Events off the usual path, for whoever reads why a test failed."""

    def start(self) -> Effect:
        """The first effect."""
        return Resolve(self.request.min_revision)

    def start_over(self) -> Effect:
        """The first effect again, because the state that the append was checked against never came.

        Allowed while none of its content is taken, and while no caller was refused.
        """
        # Content that was taken cannot be read from the client a second time. After COMMIT replicas may have it: to
        # start over could append it twice.
        if self.state is State.COMMIT or (self.content_length and self.state is not State.DONE):
            raise RuntimeError(f"append of {self.request.journal}: it cannot start over")
        self.story.append(f"{self.state.name}: starts over")
        self.state, self.final_status, self.content_length = State.RESOLVE, Status.OK, 0
        return self.start()

    def join(self, view: ReplicaView) -> Effect:
        """The first effect of an append that comes right behind another one in the same instant.

        That one found the journal ready, so this one need not look again and begins at READY.
        """
        self.state = State.READY
        return self._on_ready(view)

    def repeat(self, other: AppendFSM, length: int) -> bool:
        """Go straight to COMMIT, if this append asks for what `other` did, and that is only to be appended.

        Args:
            other: of the append right before this one, which waits for its commit in the same instant.
            length: of all content of this append.

        Returns: whether it did; False: nothing has changed.
        """
        # Identity, not equality: requests without options share one object, and a comparison of all fields would
        # cost more than the transitions that this saves.
        request = self.request
        if (
            request is not other.request
            or not request.is_plain
            or self.state is not State.RESOLVE
            or other.state is not State.COMMIT
            or other.final_status is not Status.OK
            or not (length and other.content_length)
        ):
            return False
        self.state, self.view, self.content_length = State.COMMIT, other.view, length
        return True

    def step(self, event: Event) -> Effect | None:  # noqa: PLR0911  one per transition
        """Take one event.

        Returns: the effect to carry out, or None while streaming goes on.
        Raises: RuntimeError: the event does not belong to the state, which is a fault of the shell.
        """
        match self.state, event:
            case State.STREAM, Content(length):
                return self._on_content(length)
            case State.STREAM, ContentEnd():
                return self._on_content_end()
            case State.COMMIT, Acknowledged():
                self.state = State.DONE
                return _FINISH if self.final_status is Status.OK else Finish(self.final_status)
            case State.READY, Ready(view):
                return self._on_ready(view)
            case State.RESOLVE, Resolved():
                return self._on_resolved(event)
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
            case ((State.SYNC | State.ASSIGNMENTS | State.READY), Invalidated()):
                return self._resolve(0)
            # A replica failed or the journal moved between the check and the first byte.
            # Only before content: what was taken from the client cannot be asked for again.
            case State.STREAM, Invalidated() if self.content_length == 0:
                return self._resolve(0)
            case ((State.REPLICAS | State.REMOTE), Replicas()):
                return self._on_replicas(event)
            case ((State.SYNC | State.ASSIGNMENTS), SyncMismatch(roll_to, registers)):
                self.state = State.SYNC
                return Sync(roll_to, registers)
            case State.SYNC, WrongRoute(revision):
                return self._resolve(revision)
            case ((State.ASSIGNMENTS | State.SUSPEND), Written(revision)):
                return self._resolve(revision)
            case ((State.ASSIGNMENTS | State.READY), Unhealthy(text)):
                return self._fail(Status.FRAGMENT_STORE_UNHEALTHY, text)
            case State.STREAM, ContentBroken(text):
                self.state = State.DONE
                return Rollback(text)
            case _:
                raise RuntimeError(f"append of {self.request.journal}: {event} in {self.state}")

    def _resolve(self, revision: int) -> Effect:
        # Never below what the caller has seen: a broker that proxied the append knows a later route, and resolving
        # by an older one would send the append back to it.
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
        # The next revision, not a pause: whatever ends the wait is a write to etcd. Polling would answer the client
        # either late or without reason.
        if event.status in _PASSING and event.may_wait:
            return self._resolve(event.revision + 1)
        if event.status is not Status.OK:
            return self._fail(event.status)
        if not event.is_local_primary and self.forwards:
            self.state = State.REMOTE
            return _COUNT
        if not event.is_local_primary:
            self.state = State.DONE
            return Forward()
        self.state = State.SYNC
        return _SYNC

    def _on_replicas(self, event: Replicas) -> Effect:
        is_local = self.state is State.REPLICAS
        has_too_many = event.current > event.desired
        # The allocator is about to change their number, and the primary waits as long as its caller.
        if event.current != event.desired and (event.may_wait or (has_too_many and is_local)):
            return self._resolve(event.revision + 1)
        if event.current < event.desired:
            return self._fail(Status.INSUFFICIENT_JOURNAL_BROKERS)
        self.state = State.DONE
        return Forward()

    def _on_ready(self, view: ReplicaView) -> Effect:
        self.view = view
        effect = preconditions(self.request, view, has_content=self.has_content)
        match effect:
            case TakeContent():
                self.state = State.STREAM
                if view.spec.suspend_level is SuspendLevel.PARTIAL and is_suspending(self.request):
                    self.final_status = Status.SUSPENDED
                    # No other event will close the fragment, and only closed ones are persisted.
                    effect = TakeContent(view.spool_end)
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
        # Only now, and not with the other preconditions: an append without content is a barrier, and
        # is allowed where writing is not.
        if not self.view.spec.flags.may_write or self.request.suspend in _WITHOUT_CONTENT:
            self.state = State.DONE
            return Rollback(status=Status.NOT_ALLOWED)
        self.content_length += length
        return None

    def _on_content_end(self) -> Effect:
        assert self.view is not None
        # Registers have no place of their own: they are those at an end of content. Without content a change would
        # be lost by the next primary that takes the registers from a fragment which ends there.
        changes = bool(self.request.union_registers or self.request.subtract_registers)
        if self.content_length == 0 and changes:
            self.state = State.DONE
            return Rollback("append stream: register modification requires non-empty Append")
        registers = self.view.registers
        if changes:
            registers = updated_registers(registers, self.request)
            problem = registers_problem(registers) if self.request.union_registers else ""
            if problem:
                self.state = State.DONE
                return Rollback(problem)
        self.state = State.COMMIT
        return Commit(registers)


_WITHOUT_CONTENT = frozenset(
    {
        AppendSuspend.SUSPEND_IF_FLUSHED,
        AppendSuspend.SUSPEND_NOW,
        AppendSuspend.SUSPEND_KEEP,
    }
)


# ----------------------------------------------------------------------------------------- rules
def preconditions(  # noqa: PLR0911  one per check
    request: AppendRequest, view: ReplicaView, *, has_content: bool = False
) -> Effect:
    """Decide whether an append may stream.

    Clients rely on the order of the checks. An answer has one status, and where several checks fail
    it is the most useful one for the client: a writer whose registers do not match has been
    fenced off and must give up, whatever its offset; a journal whose store is ahead needs an
    operator, or an append that names its offset; only then is an offset merely wrong, so that the
    client may look up the end and try again. Suspension comes last, so that an append which would
    be refused anyway changes no spec.

    Args:
        request: what the client asked for.
        view: the journal with all that was planned before this append.
        has_content: whether the append is known to bring content.

    Returns: TakeContent with the offset to roll to (0: none), or Fail, Rollback, Sync or WriteSuspend.
    """
    selector = request.check_registers
    if selector is not None and view.registers and not selector.matches(view.registers):
        return Fail(Status.REGISTER_MISMATCH)
    suspend = view.spec.suspend
    if max(view.spool_end, suspend.offset if suspend is not None else 0) > OFFSET_MAX:
        # Such a spec got into etcd unchecked. The name of a fragment has no room for the offset.
        offset = suspend.offset if suspend is not None else view.spool_end
        return Rollback(
            f"{request.journal}: it is said to go on at offset {offset}, beyond {OFFSET_MAX} "
            "(mend suspend.offset of its spec with `gazctl journals edit`)"
        )
    if suspend is not None and view.spool_end < suspend.offset:
        return Sync(roll_to=suspend.offset)
    head = max(view.spool_end, view.index_end)
    is_behind = view.spool_end != head
    if is_behind and request.resets_head:
        return Sync(roll_to=head)
    if is_behind and request.offset == 0 and view.spec.flags.may_write:
        # The store has content that no replica knows of, and an append at our end would overlap
        # it. Read-only journals are exempt: they mirror a store that another cluster writes.
        return Fail(Status.INDEX_HAS_GREATER_OFFSET)
    if request.offset not in (0, head):
        return Fail(Status.WRONG_APPEND_OFFSET)
    if request.offset != 0 and is_behind:
        return Sync(roll_to=head)
    # The first fragment of a journal closes as soon as a second append begins, however short it is:
    # its object is how the store shows that the journal is in use. Until then a broker that lists
    # the store finds nothing, and takes the journal for a new one.
    closes = request.closes_fragment or view.spool_begin == view.index_begin
    roll_to = view.spool_end if closes else 0
    streams = TakeContent(roll_to) if roll_to else _STREAM
    return _suspension(request, view, has_content=has_content) or streams


def _suspension(request: AppendRequest, view: ReplicaView, *, has_content: bool) -> Effect | None:
    level, suspend = view.spec.suspend_level, view.spec.suspend
    is_noted = view.is_released or (suspend is not None and suspend.offset > 0)
    if has_content and level is SuspendLevel.NONE and is_noted:
        # The offset is where an empty spool begins. Once content follows
        # it, it would send a broker to where bytes already are, with old registers.
        return WriteSuspend(SuspendSpec(SuspendLevel.NONE, 0))
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


def is_suspending(request: AppendRequest) -> bool:
    """Whether the append asks to suspend its journal."""
    return request.suspend in (AppendSuspend.SUSPEND_IF_FLUSHED, AppendSuspend.SUSPEND_NOW)


def _is_clean(view: ReplicaView) -> bool:
    """Whether the last fragment has been in the store for longer than a flush interval."""
    quiet_s = view.spec.fragment.flush_interval_ns / SECOND_NS or _FLUSHED_AFTER_S
    return view.index_mod_time != 0 and view.now_s - view.index_mod_time > quiet_s


def updated_registers(registers: LabelSet, request: AppendRequest) -> LabelSet:
    """The registers after an append: first subtracted from, then united with the request's."""
    if request.subtract_registers:
        registers = registers.subtract(request.subtract_registers)
    if request.union_registers:
        registers = registers.union(request.union_registers)
    return registers


def registers_problem(registers: LabelSet) -> str:
    """Why a journal may not have these registers; empty if it may."""
    size = sum(len(label.name) + len(label.value) + _LABEL_BYTES for label in registers.labels)
    if size <= _REGISTER_BYTES_MAX:
        return ""
    return (
        f"append stream: registers of the journal would take {size} bytes "
        f"(expected <= {_REGISTER_BYTES_MAX}; subtract some)"
    )


def must_roll(
    spec: JournalSpec,
    *,
    begin: int,
    end: int,
    first_append_at: datetime | None,
    now_s: float,
    roll_to: int = 0,
) -> bool:
    """Whether the spool [begin, end) closes before the next append.

    An empty spool always "rolls". A fragment has one codec from its first byte to its last, and a
    changed codec does not close one that has content, or every edit of a spec would leave a
    short fragment behind. So the codec of the spec is taken up where nothing is written yet.

    Args:
        spec: of the journal.
        begin: of the spool; journal offset.
        end: of the spool, with all that was planned; journal offset.
        first_append_at: when its first content came; None: none has come yet.
        now_s: unix seconds.
        roll_to: journal offset at which to restart; 0: none asked for.

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
    interval_s = interval_ns / SECOND_NS
    return first_append_at.timestamp() // interval_s != now_s // interval_s
