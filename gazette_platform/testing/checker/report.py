"""What a check found."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from gazette_platform.testing.history import Append, Poll

__all__ = ["ANOMALIES", "Anomaly", "Report"]

ANOMALIES = {
    "lost-write": "an acknowledged append is not in the journal",
    "duplicate": "an append is there more often than it was attempted",
    "inconsistent-offsets": "one offset held different bytes, by acknowledgements or reads",
    "unexpected": "bytes that nobody appended",
    "unseen": "acknowledged appends of a journal whose final content is not in the history",
    "G0": "only a part of an append is there: writes were torn or mixed",
    "G0-realtime": "an append lies before one that had ended before it was invoked",
    "nonmonotonic-send": "the same, of one process",
    "G1a": "an append that failed is visible",
    "G1c-realtime": "a read saw an append before it was invoked",
    "precommitted-read": "a read saw content, or a write head, that was never committed",
    "poll-skip": "a reader went on behind content that it was not given",
    "nonmonotonic-poll": "a reader went back",
    "int-poll-skip": "the pieces of one poll leave content out",
    "int-nonmonotonic-poll": "the pieces of one poll go back",
    "stale-head": "a reader was told of a head below what it got, or what had been acknowledged before",
    "nonmonotonic-head": "a reader was told of a head below the one that it was told before",
    "stuck-read": "a reader waited too long for content that was acknowledged",
    "wrong-refusal": "an append was refused for a reason that did not hold while it was under way",
    "nonlinearizable": "registers do not behave as compare-and-set",
}
"""The anomalies by name, as Jepsen's log checkers and Elle have them, and what each means here."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not happen, with the fewest operations that show it."""

    name: str
    """Key of `ANOMALIES`."""
    journal: str
    text: str
    operations: tuple[Append | Poll, ...] = ()
    """By the time of their invocation."""

    @override
    def __str__(self) -> str:
        lines = [f"{self.name} ({ANOMALIES[self.name]}) in {self.journal}: {self.text}"]
        lines += [f"  {operation}" for operation in self.operations]
        return "\n".join(lines)


@dataclass(slots=True, kw_only=True)
class Report:
    """The outcome of a check."""

    anomalies: list[Anomaly] = field(default_factory=list)
    suppressed: Counter[str] = field(default_factory=Counter)
    """Anomalies by name beyond the first few of a journal, which are counted only."""
    operations: int = 0
    appends_ok: int = 0
    appends_failed: int = 0
    appends_unknown: int = 0
    unknown_visible: int = 0
    """Appends of unknown outcome that turned out to be in their journal."""
    polls: int = 0
    bytes_read: int = 0
    unseen: int = 0
    """Acknowledged appends that no poll saw, though there were polls of their journal."""
    worst_realtime_lag_s: float = 0.0
    """Longest time from an acknowledgement until a reader that follows the journal saw it."""

    @property
    def is_valid(self) -> bool:
        """Whether nothing was found."""
        return not self.anomalies

    @property
    def anomaly_count(self) -> int:
        """All anomalies, suppressed ones included."""
        return len(self.anomalies) + self.suppressed.total()

    @property
    def shortest(self) -> Anomaly | None:
        """The anomaly that takes the fewest operations to explain, and of these the earliest."""
        return min(self.anomalies, key=_effort, default=None)

    def add(self, anomaly: Anomaly, *, kept_max: int) -> None:
        """Take in an anomaly; beyond `kept_max` of a name and journal they are only counted."""
        kept = sum(a.name == anomaly.name and a.journal == anomaly.journal for a in self.anomalies)
        if kept < kept_max:
            self.anomalies.append(anomaly)
        else:
            self.suppressed[anomaly.name] += 1

    @override
    def __str__(self) -> str:
        counts = (
            f"{self.operations} operations: appends {self.appends_ok} ok, {self.appends_failed} "
            f"failed, {self.appends_unknown} unknown ({self.unknown_visible} of them visible); "
            f"{self.polls} polls of {self.bytes_read} bytes, {self.unseen} appends unseen, "
            f"worst lag {self.worst_realtime_lag_s:.3f} s; {self.anomaly_count} anomalies"
        )
        lines = [counts]
        lines += [str(anomaly) for anomaly in sorted(self.anomalies, key=_effort)]
        lines += [f"and {count} more of {name}" for name, count in sorted(self.suppressed.items())]
        return "\n".join(lines)


def _effort(anomaly: Anomaly) -> tuple[int, float]:
    first = min((op.invoked_at for op in anomaly.operations), default=math.inf)
    return len(anomaly.operations), first
