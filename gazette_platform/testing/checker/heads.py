"""Checks of write heads that readers were told, of reads at the head, and of readers that stand still."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, final

from gazette_platform.testing.checker.attribution import Acknowledged
from gazette_platform.testing.checker.reads import streams_of
from gazette_platform.testing.checker.report import Anomaly
from gazette_platform.testing.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gazette_platform.testing.checker.attribution import Segment
    from gazette_platform.testing.history import Append, Poll

__all__ = ["check_heads", "check_heads_of_the_future", "check_patience"]


def check_heads(
    journal: str, appends: Sequence[Append], polls: Sequence[Poll]
) -> Iterator[Anomaly]:
    """No head lies below what was acknowledged before, or comes with it; none goes back in a stream.

    A stream may be answered as of its begin, so that it is held to what had been acknowledged then.
    A read at -1 begins at a head, and goes on from the one that it was told.
    """
    acknowledged = Acknowledged(appends)
    for stream in streams_of(polls).values():
        first = stream[0]
        known = acknowledged.before(first.invoked_at)
        if first.offset < 0:
            yield from _begin_at_head(journal, stream, known)
        told: Poll | None = None
        for poll in stream:
            if poll.write_head < 0:
                continue
            if poll.pieces and poll.write_head < poll.pieces[-1].end:
                text = (
                    f"{poll.process} was told of a write head {poll.write_head}, "
                    f"and with it got {poll.pieces[-1]}"
                )
                yield Anomaly("stale-head", journal, text, (poll,))
            if known is not None and poll.write_head < known.end:
                text = (
                    f"{poll.process} was told of a write head {poll.write_head}, "
                    f"after {known.label} had been acknowledged up to {known.end}"
                )
                yield Anomaly("stale-head", journal, text, (known, poll))
            if told is not None and poll.write_head < told.write_head:
                text = (
                    f"{poll.process} was told of a write head {poll.write_head}, "
                    f"and before that of {told.write_head}"
                )
                yield Anomaly("nonmonotonic-head", journal, text, (told, poll))
            told = poll


def _begin_at_head(journal: str, stream: Sequence[Poll], known: Append | None) -> Iterator[Anomaly]:
    """Where a read at -1 begins: not before what was acknowledged, nor beyond the head it was told."""
    begun = next((poll for poll in stream if poll.pieces), None)
    if begun is None:
        return
    begin = begun.pieces[0].begin
    if known is not None and begin < known.end:
        text = (
            f"{begun.process} read from the head on, and got content from {begin} on, "
            f"after {known.label} had been acknowledged up to {known.end}"
        )
        yield Anomaly("nonmonotonic-poll", journal, text, (known, begun))
    told = next(poll for poll in stream if poll is begun or poll.write_head >= 0)
    if 0 <= told.write_head < begin:
        text = (
            f"{begun.process} read from the head {told.write_head} on, "
            f"and got content from {begin} on"
        )
        shown = (begun,) if told is begun else (told, begun)
        yield Anomaly("poll-skip", journal, text, shown)


def check_heads_of_the_future(
    journal: str, polls: Sequence[Poll], segments: Sequence[Segment]
) -> Iterator[Anomaly]:
    """A head covers nothing that was invoked only after it was told."""
    begins = [segment.begin for segment in segments]
    latest: list[Append | None] = []
    for segment in segments:
        before, op = latest[-1] if latest else None, segment.op
        latest.append(
            op if op and (before is None or op.invoked_at > before.invoked_at) else before
        )
    for poll in polls:
        number = bisect_left(begins, poll.write_head)
        op = latest[number - 1] if number else None
        if op is not None and op.invoked_at > poll.completed_at:
            text = (
                f"{poll.process} was told of a write head {poll.write_head} "
                f"before {op.label}, which lies below it, was invoked"
            )
            yield Anomaly("G1c-realtime", journal, text, (poll, op))


def check_patience(
    journal: str,
    appends: Sequence[Append],
    polls: Sequence[Poll],
    *,
    lag_s_max: float,
    ended_at: float,
    pruned_to: int = 0,
) -> Iterator[Anomaly]:
    """A read that waits for content gets what was acknowledged within `lag_s_max` seconds.

    Args:
        ended_at: monotonic seconds of the history's end, until when polls without an end waited.
        pruned_to: what lies before it may have been deleted under a reader's eyes.
    """
    ops = [op for op in appends if op.outcome is Outcome.OK and op.content]
    by_end = _Earliest([(op.end, op) for op in ops])
    by_invocation = _Earliest([(op.invoked_at, op) for op in ops])
    for poll in polls:
        if 0 <= poll.offset < pruned_to:
            continue
        # What a read at -1 waits for is at least what was appended after it began.
        op = (
            by_invocation.beyond(poll.invoked_at) if poll.offset < 0 else by_end.beyond(poll.offset)
        )
        if op is None:
            continue
        waited_until = poll.completed_at if math.isfinite(poll.completed_at) else ended_at
        waited_s = waited_until - max(op.completed_at, poll.invoked_at)
        if waited_s > lag_s_max:
            text = (
                f"{poll.process} waited {waited_s:.1f} s at {poll.offset} "
                f"for {op.label}, which was acknowledged"
            )
            yield Anomaly("stuck-read", journal, text, (op, poll))


@final
class _Earliest:
    """Of the appends beyond a key: the one that was acknowledged first."""

    def __init__(self, keyed: Sequence[tuple[float, Append]]) -> None:
        ordered = sorted(keyed, key=lambda item: item[0])
        self._keys = [key for key, _ in ordered]
        self._first: list[Append] = []
        for _, op in reversed(ordered):
            best = self._first[-1] if self._first else op
            self._first.append(op if op.completed_at <= best.completed_at else best)
        self._first.reverse()

    def beyond(self, key: float) -> Append | None:
        number = bisect_right(self._keys, key)
        return self._first[number] if number < len(self._first) else None
