"""The rules of appends, as pure functions: may it stream, must the spool roll, which registers result.

Source: the order of checks and their outcomes are Gazette's, and clients rely on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.broker.append.events import (
    AppendRequest,
    Effect,
    Fail,
    ReplicaView,
    Rollback,
    Stream,
    Sync,
    WriteSuspend,
)
from gazette_platform.protocol import (
    AppendSuspend,
    JournalSpec,
    LabelSet,
    Status,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.protocol.request_rules import OFFSET_MAX

if TYPE_CHECKING:
    from datetime import datetime

__all__ = [
    "NS_PER_S",
    "is_suspending",
    "must_roll",
    "preconditions",
    "registers_problem",
    "suspend_level",
    "updated_registers",
]

NS_PER_S = 1_000_000_000
# Registers go to each replica with every append, and back to its client.
_REGISTER_BYTES_MAX = 256 << 10
_LABEL_BYTES = 8  # of its encoding, about
_FLUSHED_AFTER_S = 24 * 3600  # age that counts as flushed where no flush interval is set


def preconditions(  # noqa: PLR0911  one per check
    request: AppendRequest, view: ReplicaView, *, has_content: bool = False
) -> Effect:
    """Decide whether an append may stream, in the order of checks that clients rely on.

    Args: has_content: whether the append is known to bring content.
    Returns: Stream with the offset to roll to (0: none), or Fail, Rollback, Sync or WriteSuspend.
    """
    selector = request.check_registers
    if selector is not None and view.registers and not selector.matches(view.registers):
        return Fail(Status.REGISTER_MISMATCH)
    suspend = view.spec.suspend
    if max(view.spool_end, suspend.offset if suspend is not None else 0) > OFFSET_MAX:
        # Of a spec that got into etcd unchecked. A fragment there could not even be named.
        offset = suspend.offset if suspend is not None else view.spool_end
        return Rollback(
            f"{request.journal}: it is said to go on at offset {offset}, beyond {OFFSET_MAX} "
            "(mend suspend.offset of its spec with `gazctl journals edit`)"
        )
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
    closes = request.closes_fragment or view.spool_begin == view.index_begin
    roll_to = view.spool_end if closes else 0
    return _suspension(request, view, has_content=has_content) or Stream(roll_to)


def _suspension(request: AppendRequest, view: ReplicaView, *, has_content: bool) -> Effect | None:
    level, suspend = suspend_level(view.spec), view.spec.suspend
    if has_content and level is SuspendLevel.NONE and suspend is not None and suspend.offset:
        # Where to go on was said for whoever begins with an empty spool. Once there is content
        # behind, it would have others go on at an offset that is taken.
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
    """Whether the last fragment is in the store for longer than a flush interval."""
    quiet_s = view.spec.fragment.flush_interval_ns / NS_PER_S or _FLUSHED_AFTER_S
    return view.index_mod_time != 0 and view.now_s - view.index_mod_time > quiet_s


def suspend_level(spec: JournalSpec) -> SuspendLevel:
    """How far the journal is suspended."""
    return spec.suspend.level if spec.suspend is not None else SuspendLevel.NONE


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
