"""Does a history show what journals promise? A pure function of what was recorded.

Every acknowledged append says where it was committed, so that the order of a journal is *given*
and nothing needs to be searched: a check is complete, and takes O(n log n) time.

    report = check_history(load_history(path))
    if not report.is_valid:
        print(report.shortest)

Checked of each journal: acknowledged intervals are disjoint and hold the bytes sent; the order of
appends respects real time; nothing acknowledged is lost, and where deletions are recorded, no more is
gone than those; nothing failed is visible; an append of unknown outcome is visible at most as often as
it was attempted; reads are slices of one byte string, each stream without gap or step back; heads that
readers get hold all that had been acknowledged, and what they come with, and nothing of the
future; readers do not stand still; registers behave as compare-and-set, and refusals have their reason.
`ANOMALIES` names what may be found. Contents should be unique, as those of `Payload` are: appends of
equal content cannot be told apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.checker.appends import (
    check_acknowledgements,
    check_barriers,
    check_order,
    check_placement,
    check_pruned,
    check_refusals,
    place,
)
from tests.checker.history import Outcome
from tests.checker.reads import (
    check_contents,
    check_heads,
    check_heads_of_the_future,
    check_patience,
    check_streams,
    lag_and_unseen,
)
from tests.checker.registers import check_registers
from tests.checker.report import ANOMALIES, Anomaly, ContentIndex, Report, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.checker.history import Append, FinalContent, History, Poll

__all__ = ["ANOMALIES", "Anomaly", "Report", "check_history"]


def check_history(history: History, *, kept_max: int = 5, lag_s_max: float = 120.0) -> Report:
    """Check every journal of a history.

    Args:
        kept_max: anomalies of one name and journal to keep; more are only counted.
        lag_s_max: seconds that a read may wait for content that was acknowledged.

    Returns: what was found; never raises because of what a history says.
    """
    appends: defaultdict[str, list[Append]] = defaultdict(list)
    polls: defaultdict[str, list[Poll]] = defaultdict(list)
    for append in history.appends:
        appends[append.journal].append(append)
    for poll in history.polls:
        polls[poll.journal].append(poll)
    report = Report(
        operations=len(history),
        appends_ok=sum(op.outcome is Outcome.OK for op in history.appends),
        appends_failed=sum(op.outcome is Outcome.FAIL for op in history.appends),
        appends_unknown=sum(op.outcome is Outcome.UNKNOWN for op in history.appends),
        polls=len(history.polls),
        bytes_read=sum(piece.length for op in history.polls for piece in op.pieces),
    )
    ended_at = _ended_at(history)
    for journal in history.journals:
        final = history.finals.get(journal)
        found = _check_journal(journal, appends[journal], polls[journal], final, report)
        for anomaly in found:
            report.add(anomaly, kept_max=kept_max)
        if final is not None and journal in history.pruned:
            for anomaly in check_pruned(final, appends[journal], history.pruned[journal]):
                report.add(anomaly, kept_max=kept_max)
        for anomaly in check_patience(
            journal,
            appends[journal],
            polls[journal],
            lag_s_max=lag_s_max,
            ended_at=ended_at,
            pruned_to=history.pruned.get(journal, 0),
        ):
            report.add(anomaly, kept_max=kept_max)
        lag_s, unseen = lag_and_unseen(appends[journal], polls[journal])
        report.worst_realtime_lag_s = max(report.worst_realtime_lag_s, lag_s)
        report.unseen += unseen
    return report


def _ended_at(history: History) -> float:
    """The last instant of a history, in monotonic seconds."""
    operations: list[Append | Poll] = [*history.appends, *history.polls]
    instants = [note.at for note in history.notes]
    instants += [op.invoked_at for op in operations]
    instants += [op.completed_at for op in operations if math.isfinite(op.completed_at)]
    return max(instants, default=0.0)


def _check_journal(
    journal: str,
    appends: Sequence[Append],
    polls: Sequence[Poll],
    final: FinalContent | None,
    report: Report,
) -> Iterator[Anomaly]:
    yield from check_acknowledgements(journal, appends)
    segments: list[Segment] = []
    if final is None:
        acknowledged = [op for op in appends if op.outcome is Outcome.OK]
        if acknowledged:
            text = f"it is unknown what became of {len(acknowledged)} acknowledged appends"
            yield Anomaly("unseen", journal, text, (acknowledged[0],))
    else:
        index = ContentIndex(appends)
        segments = place(final, appends, index)
        is_placed = True
        for anomaly in check_placement(final, appends, index, segments):
            is_placed = False
            yield anomaly
        yield from check_barriers(final, appends, segments)
        yield from check_contents(final, appends, polls, index, segments)
        yield from check_heads_of_the_future(journal, polls, segments)
        if is_placed:
            # Else what is known of heads and registers has holes, and says nothing new.
            yield from check_refusals(final, appends, segments)
            yield from check_registers(final, appends, segments)
        report.unknown_visible += len(
            {s.op.id for s in segments if s.op is not None and s.op.outcome is Outcome.UNKNOWN}
        )
    yield from check_order(journal, appends, segments)
    yield from check_heads(journal, appends, polls)
    # Where the final content is not known, it is unknown what was pruned.
    yield from check_streams(journal, polls, first_offset=final.begin if final else math.inf)
