"""What the protocol allows while brokers fail, although a history should not show it.

Spools outlive their brokers, with registers and all. So nothing here excuses what was acknowledged,
whoever was killed, and in journals of one replica nothing that was read: there content is shown once
it is recorded where it will be found.

With more of them, a replica shows content as soon as the primary has it commit it, before all others have
it. If all that had it are killed at once, and one that did not get it goes on without them, as it
may, since it has all that was acknowledged, readers have seen what never was: no caller has an acknowledgement that
it exists, and the append ends with an unknown outcome. So there is such an append, it was under
way as they were killed, and heads go too far by its length at most. What they have on disk when they
come back is set aside.

A journal that is suspended has one broker, or none, and its spec notes its head alone: its registers
are empty then, and nothing else.

And a head that comes along with content is one that its replica knew of: one that has just been made
a replica knows of less. It knows of the content, though, and few readers meet one. Only where a read
ends at the head it must know all. That is so only while journals move.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, final

from gazette_platform.protocol import LabelSet
from tests.chaos.plan import FaultKind
from tests.checker import check_history
from tests.checker.history import Append, Outcome, Poll
from tests.checker.registers import registers_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.checker import Anomaly, Report
    from tests.checker.history import History

__all__ = ["Span", "Suspension", "allow", "check_but_allow"]

Span = tuple[float, float, str]
"""Begin, end and kind of a fault, in monotonic seconds."""

Suspension = tuple[float, float, str]
"""When a journal was asked to be suspended, when that was answered, and which."""

_ENDS_ALL = (FaultKind.RESTART_ALL, FaultKind.ETCD_AWAY)
_KILLS_SEVERAL = (
    FaultKind.LAST_REPLICA,
    FaultKind.KILL,
    # All of them: those that come back first may be the ones that did not get it.
    FaultKind.KILL_ALL,
    FaultKind.SPOOL_LOST,
    FaultKind.SPOOL_FILE_LOST,
    FaultKind.SPOOL_TORN,
)
_HEADS = ("stale-head", "nonmonotonic-head")
_UNCOMMITTED = ("precommitted-read", "G1c-realtime", "nonmonotonic-head")
# What was under way when brokers were killed had been sent to some before, and arrives a bit later.
_MARGIN_S = 1.0
# For as long after a fault, and after the begin, journals move: brokers start, take journals on, and are
# brought in step.
_MOVES_S = 60.0
# Streams that may meet a replica that has just been made: of 500 in five minutes one did.
_OLD_HEADS_SHARE = 0.1
_OLD_HEADS_MIN = 10
# Anomalies of one name and journal.
_KEPT_MAX = 1000


def check_but_allow(
    history: History,
    spans: Sequence[Span],
    suspensions: Sequence[Suspension] = (),
    *,
    replication: int,
    lag_s_max: float = 120.0,
) -> tuple[Report, Counter[str]]:
    """Check a history, and take out of the report what may be; see `allow`.

    Args:
        replication: of the journals.
        lag_s_max: seconds that a read may wait for what was acknowledged.
    """
    # Of a few only, all may happen to be such that are allowed, and hide one that is not.
    report = check_history(history, kept_max=_KEPT_MAX, lag_s_max=lag_s_max)
    return report, allow(report, history, spans, suspensions, replication=replication)


def allow(
    report: Report,
    history: History,
    spans: Sequence[Span],
    suspensions: Sequence[Suspension] = (),
    *,
    replication: int,
) -> Counter[str]:
    """Take out of a report what may be. Returns: how many there were of each name."""
    rules = _Rules(history, spans, suspensions, replication)
    allowed: Counter[str] = Counter()
    kept: list[Anomaly] = []
    old_heads: list[Anomaly] = []
    for anomaly in report.anomalies:
        if rules.is_allowed(anomaly):
            allowed[anomaly.name] += 1
        elif rules.is_on_the_way(anomaly):
            old_heads.append(anomaly)
        else:
            kept.append(anomaly)
    if rules.are_few(old_heads):
        allowed.update(anomaly.name for anomaly in old_heads)
    else:
        kept += old_heads
    report.anomalies = kept
    for name in allowed:
        # Where there are so many that they are only counted, each was like those that are known.
        if not any(anomaly.name == name for anomaly in kept):
            allowed[name] += report.suppressed.pop(name, 0)
    return allowed


@final
class _Rules:
    def __init__(
        self,
        history: History,
        spans: Sequence[Span],
        suspensions: Sequence[Suspension],
        replication: int,
    ) -> None:
        self._history = history
        self._spans = spans
        self._suspensions = suspensions
        # The faults within which a broker may have ended. They excuse nothing with one replica: then
        # no other broker has what the ended one did not record, so no broker can report it.
        self._endings = spans if replication > 1 else ()
        asked_at = [op.invoked_at for op in history.appends]
        asked_at += [op.invoked_at for op in history.polls]
        self._begin = [(min(asked_at), min(asked_at))] if asked_at else []
        self._appends: defaultdict[str, list[Append]] = defaultdict(list)
        for op in history.appends:
            self._appends[op.journal].append(op)

    def is_on_the_way(self, anomaly: Anomaly) -> bool:
        """Whether a replica that knew of little yet reported a head along with content."""
        polls = _polls(anomaly)
        if anomaly.name not in _HEADS or not polls or not polls[-1].pieces:
            return False
        poll = polls[-1]
        if poll.write_head < poll.pieces[-1].end:
            return False
        moves = [*((begin, end) for begin, end, _ in self._spans), *self._begin]
        return any(begin <= poll.completed_at <= end + _MOVES_S for begin, end in moves)

    def are_few(self, old_heads: Sequence[Anomaly]) -> bool:
        """Whether so few readers met such replicas as may be, if they are replicas for long."""
        streams = {poll.stream for poll in self._history.polls if poll.write_head >= 0}
        met = {_polls(anomaly)[-1].stream for anomaly in old_heads}
        return len(met) <= max(_OLD_HEADS_MIN, _OLD_HEADS_SHARE * len(streams))

    def is_allowed(self, anomaly: Anomaly) -> bool:
        """Whether brokers that ended had it and others not, or a journal was left by its brokers."""
        return any(
            (kind in _KILLS_SEVERAL and self._was_uncommitted(anomaly, begin, end))
            # One of those that ended together stored what was on its way, and some hear of it first.
            or (
                kind in _ENDS_ALL
                and anomaly.name == "nonmonotonic-head"
                and self._was_uncommitted(anomaly, begin, end + _MOVES_S)
            )
            for begin, end, kind in self._endings
        ) or any(
            journal == anomaly.journal and _may_be_emptied(anomaly, begin, end)
            for begin, end, journal in self._suspensions
        )

    def _was_uncommitted(self, anomaly: Anomaly, begin: float, end: float) -> bool:
        polls = _polls(anomaly)
        if anomaly.name not in _UNCOMMITTED or not polls:
            return False
        if not begin - _MARGIN_S <= polls[0].completed_at <= end + _MARGIN_S:
            return False
        seen, lost = polls[0], list(self._lost(anomaly.journal, polls[0], begin, end))
        if "write head" not in anomaly.text:
            # Content: of an append that was under way, and of no other.
            return anomaly.name == "precommitted-read" and any(
                op in lost for op in anomaly.operations
            )
        too_far = seen.write_head - self._true_head(anomaly)
        return bool(lost) and too_far <= sum(len(op.content) * op.attempts for op in lost)

    def _lost(self, journal: str, poll: Poll, begin: float, end: float) -> Iterator[Append]:
        """Appends that brokers may have had when they were killed, and others not."""
        for op in self._appends[journal]:
            is_open = op.outcome is Outcome.UNKNOWN or (
                op.outcome is Outcome.OK and op.attempts > 1
            )
            was_there = op.invoked_at <= min(poll.completed_at, end + _MARGIN_S)
            if is_open and was_there and op.completed_at >= begin - _MARGIN_S and op.content:
                yield op

    def _true_head(self, anomaly: Anomaly) -> int:
        """An offset that the journal's end had not passed when the first poll got a head."""
        first, *others = anomaly.operations
        assert isinstance(first, Poll)
        if not others:
            return self._history.finals[anomaly.journal].end
        other = others[0]
        if isinstance(other, Append):
            # It began at the end, or after it, and later.
            return other.begin if other.outcome is Outcome.OK else first.write_head
        # What was acknowledged by then lies below the second head, and so do appends under way that
        # were lost; the others had their end still before them.
        under_way = (
            len(op.content)
            for op in self._appends[anomaly.journal]
            if op.outcome is Outcome.OK and op.invoked_at <= first.completed_at <= op.completed_at
        )
        return other.write_head + sum(under_way)


def _may_be_emptied(anomaly: Anomaly, begin: float, end: float) -> bool:
    """Whether registers were found empty, and a part of that time lay in between."""
    appends = [op for op in anomaly.operations if isinstance(op, Append)]
    if anomaly.name != "nonlinearizable" or len(appends) != 2:
        return False
    began = min(op.invoked_at for op in appends)
    if began > end or max(op.completed_at for op in appends) < begin:
        return False
    # The second one met what the first one had left, or not.
    told, is_applied = appends[1].registers, appends[1].outcome is not Outcome.FAIL
    return is_applied and (told is None or told == registers_after(LabelSet(), appends[1]))


def _polls(anomaly: Anomaly) -> list[Poll]:
    return [op for op in anomaly.operations if isinstance(op, Poll)]
