"""How long journals took no appends, and which fault that was during: pure, from a history."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.checker.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.checker.history import Append, History

__all__ = ["Gap", "gaps_of", "longest_by_kind", "unavailable_s_max"]

# Faults last two leases at most, and what they do to a journal another two or three.
_UNAVAILABLE_LEASES = 6.0
_UNAVAILABLE_S = 30.0

# Refusals for reasons of the request itself: the journal was available.
_AVAILABLE = ("RegisterMismatch", "WrongAppendOffset")


@dataclass(frozen=True, slots=True)
class Gap:
    """A span in which clients tried to append to a journal, and none could."""

    journal: str
    begin: float
    """Monotonic seconds: when the first append was invoked that did not end well, or slowly."""
    end: float
    """Monotonic seconds: when the next append to that journal was acknowledged."""

    @property
    def length_s(self) -> float:
        """Seconds."""
        return self.end - self.begin


def unavailable_s_max(lease_s: float) -> float:
    """Seconds for which a journal may take no appends, or a reader get none of them: more is for ever."""
    return _UNAVAILABLE_S + _UNAVAILABLE_LEASES * lease_s


def gaps_of(history: History, *, longer_than_s: float = 0.3) -> list[Gap]:
    """Spans of unavailability of every journal, longest first; of one journal they are disjoint.

    An attempt that no broker answered before the end of the history lasts until its last event.
    """
    appends: defaultdict[str, list[Append]] = defaultdict(list)
    for op in history.appends:
        appends[op.journal].append(op)
    instants = [op.invoked_at for op in history.appends]
    instants += [op.completed_at for op in history.appends if math.isfinite(op.completed_at)]
    last = max(instants, default=0.0)
    found = [
        gap
        for journal, ops in sorted(appends.items())
        for gap in _gaps(journal, ops, last)
        if gap.length_s > longer_than_s
    ]
    return sorted(found, key=lambda gap: -gap.length_s)


def _gaps(journal: str, appends: Iterable[Append], last: float) -> list[Gap]:
    ops = sorted(appends, key=lambda op: op.invoked_at)
    served_at = sorted(op.completed_at for op in ops if _is_served(op))
    gaps: list[Gap] = []
    for op in ops:
        number = bisect_left(served_at, op.invoked_at)
        end = served_at[number] if number < len(served_at) else last
        if not gaps or op.invoked_at >= gaps[-1].end:
            gaps.append(Gap(journal, op.invoked_at, end))
    return gaps


def _is_served(op: Append) -> bool:
    return op.outcome is Outcome.OK or (
        op.outcome is Outcome.FAIL and op.error.startswith(_AVAILABLE)
    )


def longest_by_kind(gaps: Iterable[Gap], begins: Sequence[tuple[float, str]]) -> dict[str, Gap]:
    """The longest gap that ended after a fault of each kind began, and before the next fault did.

    Args:
        begins: monotonic second and kind of each fault, by time.

    Returns: by kind, ``none`` for gaps before the first fault.
    """
    longest: dict[str, Gap] = {}
    instants = [at for at, _ in begins]
    for gap in gaps:
        number = bisect_right(instants, gap.end)
        kind = begins[number - 1][1] if number else "none"
        if kind not in longest or gap.length_s > longest[kind].length_s:
            longest[kind] = gap
    return longest
