"""Checks of registers: replayed along the journal, each append saw and left what it should."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import TYPE_CHECKING

from gazette_platform.protocol import LabelSet
from tests.checker.history import Outcome
from tests.checker.report import Anomaly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.checker.history import Append, FinalContent
    from tests.checker.report import Segment

__all__ = ["check_registers"]

# Position after which a state holds, the state, and the append that made it.
_State = tuple[int, LabelSet, "Append | None"]


def check_registers(
    final: FinalContent, appends: Sequence[Append], segments: Sequence[Segment]
) -> Iterator[Anomaly]:
    """Registers change as each visible append says, in the order of the journal.

    An append with a condition is visible only where the registers match it, or are empty; one that
    was acknowledged named the registers that it left; one that was refused because of the registers
    was invoked when they did not match, at some point until it ended.
    """
    states: list[_State] = [(final.begin, final.registers or LabelSet(), None)]
    visible = [(s.begin, s.end, s.op) for s in segments if s.op is not None]
    barriers = [
        (op.begin, op.end, op) for op in appends if op.outcome is Outcome.OK and not op.content
    ]
    acknowledged = {(s.begin, s.op.id) for s in segments if s.op is not None and s.is_acknowledged}
    for begin, end, op in sorted([*visible, *barriers], key=lambda item: item[:2]):
        _, before, setter = states[-1]
        is_lost = before and op.registers == registers_after(LabelSet(), op)
        why = " (registers lost: it got what it leaves where there are none)" if is_lost else ""
        if op.check is not None and before and not op.check.matches(before):
            text = f"{op.label} was to be applied if {op.check}, and was at {{{before}}}{why}"
            yield Anomaly("nonlinearizable", final.journal, text, _pair(setter, op))
        after = registers_after(before, op)
        is_told = not op.content or (begin, op.id) in acknowledged
        if is_told and op.registers is not None and op.registers != after:
            text = f"{op.label} got registers {{{op.registers}}}, expected {{{after}}}{why}"
            yield Anomaly("nonlinearizable", final.journal, text, _pair(setter, op))
            # Go on from what brokers believe, so that each mistake is reported once.
            after = op.registers
        if after != before:
            states.append((end, after, op))
    yield from _refused(final.journal, appends, segments, states)


def registers_after(registers: LabelSet, op: Append) -> LabelSet:
    """What an append leaves: first subtracted from, then its own values for the names it has."""
    if op.subtract is not None:
        registers = registers.subtract(op.subtract)
    if op.union is not None:
        registers = registers.union(op.union)
    return registers


def _refused(
    journal: str, appends: Sequence[Append], segments: Sequence[Segment], states: list[_State]
) -> Iterator[Anomaly]:
    seen = {segment.op.id for segment in segments if segment.op is not None}
    # What such an append would have left may have held for a while, before it was given up.
    given_up_at = min(
        (
            op.invoked_at
            for op in appends
            if op.outcome is Outcome.UNKNOWN
            and op.id not in seen
            and (op.union is not None or op.subtract is not None)
        ),
        default=math.inf,
    )
    for op in appends:
        is_refused = op.outcome is Outcome.FAIL and op.error.startswith("RegisterMismatch")
        if not is_refused or op.check is None or given_up_at < op.completed_at:
            continue
        low = max((o.end for o in appends if o.completed_at < op.invoked_at), default=0)
        high = min(
            (s.begin for s in segments if s.op and s.op.invoked_at > op.completed_at),
            default=math.inf,
        )
        possible = [
            state
            for state, following in zip_longest(states, states[1:])
            if state[0] <= high and (following is None or _may_come(following, low, op))
        ]
        if possible and all(not held or op.check.matches(held) for _, held, _ in possible):
            held, setter = possible[-1][1:]
            text = f"{op.label} was refused unless {op.check}, and the registers were {{{held}}}"
            yield Anomaly("nonlinearizable", journal, text, _pair(setter, op))


def _may_come(following: _State, low: int, op: Append) -> bool:
    """Whether `op` may have met an earlier state than this.

    Args:
        low: offset after all that had ended before it was invoked.
    """
    end, _, setter = following
    # Without content of its own, the setter only reports what became of registers at its offset.
    return end > low or (setter is not None and setter.invoked_at > op.completed_at)


def _pair(setter: Append | None, op: Append) -> tuple[Append, ...]:
    return (op,) if setter is None or setter is op else (setter, op)
