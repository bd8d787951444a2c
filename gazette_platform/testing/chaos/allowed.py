"""What the protocol allows while brokers fail, although a history should not show it.

A replica shows content as soon as it is told to commit it, before all others have it. If all that
had it are killed at once, and the one left did not get it, readers have seen what never was: nobody
was told that it is there, and the append ends with an unknown outcome. Registers live in the
brokers of a journal only: when all of them end, they are empty; a suspended journal has one broker,
or none. And a head that comes along with
content is one that its replica knew of: one that has just been made a replica knows of less. Only
where a read ends at the head it must know all. That is so only while journals move.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gazette_platform.testing.chaos.plan import FaultKind
from gazette_platform.testing.checker import check_history
from gazette_platform.testing.history import Append, Poll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.testing.checker import Anomaly, Report
    from gazette_platform.testing.history import History

__all__ = ["Span", "Suspension", "allow", "check_but_allow"]

Span = tuple[float, float, str]
"""Begin, end and kind of a fault, in monotonic seconds."""

Suspension = tuple[float, float, str]
"""When a journal was asked to be suspended, when that was answered, and which."""

_LEAVES_NO_BROKER = (FaultKind.RESTART_ALL, FaultKind.ETCD_AWAY)
_KILLS_ALL_BUT_ONE = (FaultKind.LAST_REPLICA, FaultKind.KILL)
_HEADS = ("stale-head", "nonmonotonic-head")
_UNCOMMITTED = ("precommitted-read", "G1c-realtime", "nonmonotonic-head")
# What was under way when brokers were killed had been sent to some before, and arrives a bit later.
_MARGIN_S = 1.0
# For as long after a fault journals move: brokers start, take journals on, and are brought in step.
_MOVES_S = 60.0
# Anomalies of one name and journal.
_KEPT_MAX = 1000


def check_but_allow(
    history: History, spans: Sequence[Span], suspensions: Sequence[Suspension] = ()
) -> tuple[Report, Counter[str]]:
    """Check a history, and take out of the report what may be; see `allow`."""
    # Of a few only, all may happen to be such that are allowed, and hide one that is not.
    report = check_history(history, kept_max=_KEPT_MAX)
    return report, allow(report, spans, suspensions)


def allow(
    report: Report, spans: Sequence[Span], suspensions: Sequence[Suspension] = ()
) -> Counter[str]:
    """Take out of a report what may be. Returns: how many there were of each name."""
    allowed: Counter[str] = Counter()
    kept: list[Anomaly] = []
    for anomaly in report.anomalies:
        if any(
            _is_on_the_way(anomaly, span) or _is_allowed(anomaly, span) for span in spans
        ) or any(_was_suspended(anomaly, suspension) for suspension in suspensions):
            allowed[anomaly.name] += 1
        else:
            kept.append(anomaly)
    report.anomalies = kept
    for name in allowed:
        # Of so many that they are only counted, each was like those that are known.
        if not any(anomaly.name == name for anomaly in kept):
            allowed[name] += report.suppressed.pop(name, 0)
    return allowed


def _is_on_the_way(anomaly: Anomaly, span: Span) -> bool:
    polls = [op for op in anomaly.operations if isinstance(op, Poll)]
    if anomaly.name not in _HEADS or not polls or not polls[-1].pieces:
        return False
    begin, end, _ = span
    return begin <= polls[-1].completed_at <= end + _MOVES_S


def _was_suspended(anomaly: Anomaly, suspension: Suspension) -> bool:
    begin, end, journal = suspension
    return anomaly.journal == journal and _is_of_registers_during(anomaly, begin, end)


def _is_of_registers_during(anomaly: Anomaly, begin: float, end: float) -> bool:
    """Whether registers are not as before, and at least a part of that time lay in between."""
    appends = [op for op in anomaly.operations if isinstance(op, Append)]
    if anomaly.name != "nonlinearizable" or len(appends) != 2:
        return False
    began = min(op.invoked_at for op in appends)
    return began <= end and max(op.completed_at for op in appends) >= begin


def _is_allowed(anomaly: Anomaly, span: Span) -> bool:
    begin, end, kind = span
    polls = [op for op in anomaly.operations if isinstance(op, Poll)]
    if kind in _LEAVES_NO_BROKER and _is_of_registers_during(anomaly, begin, end):
        return True
    if kind in _KILLS_ALL_BUT_ONE and anomaly.name in _UNCOMMITTED:
        if anomaly.name == "G1c-realtime" and "write head" not in anomaly.text:
            return False
        return any(begin - _MARGIN_S <= poll.completed_at <= end + _MARGIN_S for poll in polls)
    return False
