"""Checks of appends: what was acknowledged exists once, in order, and nothing else does."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from tests.checker.history import Outcome
from tests.checker.report import (
    Acknowledged,
    Anomaly,
    ContentIndex,
    Segment,
    visible_max,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.checker.history import Append, FinalContent

__all__ = [
    "check_acknowledgements",
    "check_barriers",
    "check_order",
    "check_placement",
    "check_pruned",
    "check_refusals",
    "place",
]


def check_acknowledgements(journal: str, appends: Sequence[Append]) -> Iterator[Anomaly]:
    """Acknowledged intervals are as long as what was sent, begin where asked, and do not overlap."""
    acknowledged = sorted(
        (op for op in appends if op.outcome is Outcome.OK),
        key=lambda op: (op.begin, op.end, op.invoked_at),
    )
    last: Append | None = None
    for op in acknowledged:
        if op.end - op.begin != len(op.content):
            text = (
                f"{op.label} of {len(op.content)} bytes was acknowledged at other than its length"
            )
            yield Anomaly("inconsistent-offsets", journal, text, (op,))
        if op.begin < 0:
            text = f"{op.label} was acknowledged at {op.begin}, which is not an offset"
            yield Anomaly("inconsistent-offsets", journal, text, (op,))
        if op.offset and op.begin != op.offset:
            text = f"{op.label} was to begin at {op.offset}"
            yield Anomaly("inconsistent-offsets", journal, text, (op,))
        if op.sha1 and op.content and op.sha1 != _sha1(op.content):
            text = f"{op.label} was acknowledged with the SHA-1 of other bytes"
            yield Anomaly("inconsistent-offsets", journal, text, (op,))
        if last is not None and op.begin < last.end and op.content:
            text = f"{last.label} and {op.label} were acknowledged at overlapping intervals"
            yield Anomaly("inconsistent-offsets", journal, text, _by_time(last, op))
        if last is None or op.end > last.end:
            last = op


def place(final: FinalContent, appends: Sequence[Append], index: ContentIndex) -> list[Segment]:
    """Cut the final content into appends; first those acknowledged, where they were acknowledged.

    Returns: segments in the order of the journal, without gaps.
    """
    placed: list[Segment] = []
    at = final.begin
    for op in sorted(
        (op for op in appends if op.outcome is Outcome.OK and op.content), key=lambda op: op.begin
    ):
        if op.begin < at:
            continue  # pruned, or overlapping, which `check_acknowledgements` reports
        begin = op.begin - final.begin
        if final.content[begin : begin + len(op.content)] == op.content:
            index.uses[op.id] += 1
            placed.append(Segment(op.begin, op.begin + len(op.content), op, is_acknowledged=True))
            at = placed[-1].end
    segments: list[Segment] = []
    at = final.begin
    for segment in [*placed, Segment(final.end, final.end, None)]:
        segments += index.tile(final.content, at, segment.begin, base=final.begin)
        if segment.op is not None:
            segments.append(segment)
        at = segment.end
    return segments


def check_placement(
    final: FinalContent, appends: Sequence[Append], index: ContentIndex, segments: list[Segment]
) -> Iterator[Anomaly]:
    """No acknowledged content is lost, no failed append exists, and nothing exists too often."""
    journal = final.journal
    found: dict[int, list[Segment]] = {}
    for segment in segments:
        if segment.op is not None:
            found.setdefault(segment.op.id, []).append(segment)
        else:
            yield _stray(final, index, segment)
    for op in appends:
        places = found.get(op.id, [])
        if op.outcome is Outcome.OK and op.content and op.begin >= final.begin:
            yield from _misplaced(final, op, places, segments)
        where = " ".join(f"[{s.begin}, {s.end})" for s in places)
        if op.outcome is Outcome.FAIL and places:
            yield Anomaly("G1a", journal, f"{op.label} failed, and is at {where}", (op,))
        elif len(places) > visible_max(op):
            text = f"{op.label} was attempted {op.attempts} times, and is at {where}"
            yield Anomaly("duplicate", journal, text, (op,))
        if op.offset and op.outcome is not Outcome.FAIL:
            for segment in places:
                # Acknowledged appends are checked with the acknowledgements.
                if segment.begin != op.offset and not segment.is_acknowledged:
                    text = f"{op.label} was to begin at {op.offset}, and is at {where}"
                    yield Anomaly("inconsistent-offsets", journal, text, (op,))


def check_pruned(
    final: FinalContent, appends: Sequence[Append], pruned_to: int
) -> Iterator[Anomaly]:
    """Of the acknowledged content, only what was deleted is missing at the beginning.

    Args:
        final: the content.
        appends: all of them.
        pruned_to: journal offset up to which content was deleted.
    """
    for op in appends:
        if op.outcome is Outcome.OK and op.content and pruned_to <= op.begin < final.begin:
            text = (
                f"{op.label} was acknowledged at [{op.begin}, {op.end}), and the journal begins at "
                f"{final.begin}, though it was pruned up to {pruned_to} only"
            )
            yield Anomaly("lost-write", final.journal, text, (op,))


def _misplaced(
    final: FinalContent, op: Append, places: list[Segment], segments: list[Segment]
) -> Iterator[Anomaly]:
    if any(segment.is_acknowledged for segment in places):
        return
    there = (
        segment.op
        for segment in segments
        if segment.op is not None and segment.begin < op.end and segment.end > op.begin
    )
    others = tuple(other for other in there if other is not op)[:1]
    if places:
        where = " ".join(f"[{s.begin}, {s.end})" for s in places)
        text = f"{op.label} was acknowledged at [{op.begin}, {op.end}), and is at {where}"
        yield Anomaly("inconsistent-offsets", final.journal, text, _by_time(op, *others))
        return
    instead = f"which now holds {others[0].label}" if others else "which does not hold it"
    if op.begin >= final.end:
        instead = f"and the journal ends at {final.end}"
    text = f"{op.label} was acknowledged at [{op.begin}, {op.end}), {instead}"
    yield Anomaly("lost-write", final.journal, text, _by_time(op, *others))


def _stray(final: FinalContent, index: ContentIndex, segment: Segment) -> Anomaly:
    """Bytes that are not a whole append."""
    content = final.content[segment.begin - final.begin : segment.end - final.begin]
    where = f"[{segment.begin}, {segment.end})"
    parts = index.torn(content)
    if parts:
        named = ", ".join(op.label for op in parts[:3])
        return Anomaly(
            "G0", final.journal, f"{where} holds only a part of {named}", _by_time(*parts[:3])
        )
    begins = content[:32]
    return Anomaly(
        "unexpected", final.journal, f"no client appended {where}, which begins {begins!r}"
    )


def check_barriers(
    final: FinalContent, appends: Sequence[Append], segments: Sequence[Segment]
) -> Iterator[Anomaly]:
    """An append without content is answered with a head: a place between two appends, or the end."""
    begins = [segment.begin for segment in segments]
    for op in appends:
        if op.outcome is not Outcome.OK or op.content or op.begin < final.begin:
            continue
        number = bisect_left(begins, op.begin) - 1
        inside = segments[number] if number >= 0 and op.begin < segments[number].end else None
        if op.begin > final.end:
            text = f"{op.label} was acknowledged at {op.begin}, and the journal ends at {final.end}"
            yield Anomaly("inconsistent-offsets", final.journal, text, (op,))
        elif inside is not None and inside.op is not None:
            text = (
                f"{op.label} was acknowledged at {op.begin}, "
                f"inside {inside.op.label} at [{inside.begin}, {inside.end})"
            )
            yield Anomaly("inconsistent-offsets", final.journal, text, _by_time(inside.op, op))


def check_refusals(
    final: FinalContent, appends: Sequence[Append], segments: Sequence[Segment]
) -> Iterator[Anomaly]:
    """An append that was refused for a wrong offset named one that was not the head at some point.

    That is certain only if the head cannot have moved meanwhile: if nothing that was invoked before
    the refusal lies at the offset, and no append was given up that may have existed for a while.
    """
    acknowledged = Acknowledged(appends)
    at_begin = {segment.begin: segment.op for segment in segments}
    seen = {segment.op.id for segment in segments if segment.op is not None}
    given_up_at = min(
        (
            op.invoked_at
            for op in appends
            if op.outcome is Outcome.UNKNOWN and op.content and op.id not in seen
        ),
        default=math.inf,
    )
    for op in appends:
        is_refused = op.outcome is Outcome.FAIL and op.error.startswith("WrongAppendOffset")
        if not is_refused or given_up_at < op.completed_at:
            continue
        last = acknowledged.before(op.invoked_at)
        head = last.end if last is not None else final.begin
        following = at_begin.get(head)
        if op.offset != head or (head < final.end and following is None):
            continue
        if following is None or following.invoked_at > op.completed_at:
            text = f"{op.label} was refused at offset {op.offset}, which was the head all the while"
            shown = (last, op) if last is not None else (op,)
            yield Anomaly("wrong-refusal", final.journal, text, shown)


def check_order(
    journal: str, appends: Sequence[Append], segments: Sequence[Segment]
) -> Iterator[Anomaly]:
    """An append that ended before another one was invoked lies before it.

    An append of unknown outcome may be applied at any time after its invocation, and so may the
    earlier attempts of one that was acknowledged.
    """
    visible = [
        (op.begin, op.end, op.invoked_at, op.completed_at, op)
        for op in appends
        if op.outcome is Outcome.OK
    ]
    visible += [
        (segment.begin, segment.end, segment.op.invoked_at, math.inf, segment.op)
        for segment in segments
        if segment.op is not None and not segment.is_acknowledged
    ]
    visible.sort(key=lambda item: item[:3])
    earliest_end, earliest = math.inf, None
    for begin, _, invoked_at, completed_at, op in reversed(visible):
        if earliest is not None and earliest_end < invoked_at:
            is_own = op.process == earliest.process
            text = (
                f"{earliest.label} had ended when {op.label} was invoked, "
                f"which begins at {begin}, before it"
            )
            name = "nonmonotonic-send" if is_own else "G0-realtime"
            yield Anomaly(name, journal, text, _by_time(earliest, op))
        if completed_at < earliest_end:
            earliest_end, earliest = completed_at, op


def _by_time(*operations: Append) -> tuple[Append, ...]:
    return tuple(sorted(operations, key=lambda op: op.invoked_at))


def _sha1(content: bytes) -> bytes:
    return hashlib.sha1(content, usedforsecurity=False).digest()
