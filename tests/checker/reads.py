"""Checks of reads: slices of one byte string, in order, of nothing that was never committed.

Also of the write heads that readers got, and of readers that stand still.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, final

from tests.checker.history import Outcome
from tests.checker.report import Acknowledged, AcknowledgedContent, Anomaly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.checker.history import Append, FinalContent, Piece, Poll
    from tests.checker.report import ContentIndex, Segment

# By so much content that differs the append is looked for that it is a part of.
_SNIPPET_BYTES = 32


def check_streams(journal: str, polls: Sequence[Poll], *, first_offset: float) -> Iterator[Anomaly]:
    """Each stream gives every byte once and in order, from where it was asked to begin.

    Args:
        first_offset: what lies before it is gone, so that readers may be led past it.
    """
    for poll in polls:
        # Clients do not follow a broker that goes back, but they say so.
        if poll.outcome is Outcome.FAIL and poll.error.startswith("DataError"):
            text = f"{poll.process} refused what it got at {poll.offset}"
            yield Anomaly("nonmonotonic-poll", journal, text, (poll,))
    for stream in streams_of(polls).values():
        at = stream[0].offset
        last: Poll | None = None
        for poll in stream:
            for number, piece in enumerate(poll.pieces):
                if at >= 0:
                    yield from _step(
                        journal, last, poll, piece, at, number=number, first_offset=first_offset
                    )
                at = piece.end
            if poll.pieces:
                last = poll


def _step(
    journal: str,
    last: Poll | None,
    poll: Poll,
    piece: Piece,
    at: int,
    *,
    number: int,
    first_offset: float,
) -> Iterator[Anomaly]:
    internal = "int-" if number else ""
    shown = (poll,) if number or last is None else (last, poll)
    if piece.begin < at:
        text = f"{poll.process} had read up to {at}, and then got {piece}"
        yield Anomaly(f"{internal}nonmonotonic-poll", journal, text, shown)
    elif piece.begin > max(at, first_offset):
        text = f"{poll.process} had read up to {at}, and then got {piece}"
        yield Anomaly(f"{internal}poll-skip", journal, text, shown)


def check_contents(
    final: FinalContent,
    appends: Sequence[Append],
    polls: Sequence[Poll],
    index: ContentIndex,
    segments: Sequence[Segment],
) -> Iterator[Anomaly]:
    """Reads are slices of the final content, and see nothing before it was appended."""
    begins = [segment.begin for segment in segments]
    acknowledged = AcknowledgedContent(appends)
    for poll in polls:
        if poll.write_head > final.end:
            text = f"{poll.process} got a write head {poll.write_head}, beyond {final.end}"
            yield Anomaly("precommitted-read", final.journal, text, (poll,))
        for piece in poll.pieces:
            if piece.begin < final.begin:
                yield from _differs_from_pruned(final, poll, piece, acknowledged)
                continue
            kept = final.content[piece.begin - final.begin : piece.end - final.begin]
            if len(kept) == piece.length and _sha1(kept) == piece.sha1:
                yield from _from_the_future(final.journal, poll, piece, segments, begins)
            else:
                yield _differs(final, poll, piece, index, segments)


def _differs_from_pruned(
    final: FinalContent, poll: Poll, piece: Piece, acknowledged: AcknowledgedContent
) -> Iterator[Anomaly]:
    """What was read from before the begin of the final content on, which acknowledgements name.

    Where they do not name all of it, only its rest can be compared.
    """
    rest = final.content[: max(0, piece.end - final.begin)]
    known = acknowledged.within(piece.begin, min(piece.end, final.begin))
    if known is not None:
        content, ops = known
        if _sha1(content + rest) != piece.sha1:
            shown = ops[:1]
            if piece.content is not None:
                at = piece.begin + _common_length(piece.content, content + rest)
                shown = [op for op in ops if op.begin <= at < op.end]
            text = f"{poll.process} got {piece}, which is not what was acknowledged there"
            yield Anomaly("inconsistent-offsets", final.journal, text, (*shown, poll))
    elif piece.content is not None and not piece.content.endswith(rest):
        text = f"{poll.process} got {piece}, which differs from what is kept from {final.begin} on"
        yield Anomaly("inconsistent-offsets", final.journal, text, (poll,))


def _from_the_future(
    journal: str, poll: Poll, piece: Piece, segments: Sequence[Segment], begins: list[int]
) -> Iterator[Anomaly]:
    for number in range(max(0, bisect_right(begins, piece.begin) - 1), len(segments)):
        segment = segments[number]
        if segment.begin >= piece.end:
            return
        op = segment.op
        if op is not None and segment.end > piece.begin and op.invoked_at > poll.completed_at:
            text = f"{poll.process} read {op.label} before it was invoked"
            yield Anomaly("G1c-realtime", journal, text, (poll, op))


def _differs(
    final: FinalContent,
    poll: Poll,
    piece: Piece,
    index: ContentIndex,
    segments: Sequence[Segment],
) -> Anomaly:
    """What a reader got is not what the journal holds."""
    seen: Append | None = None
    at = piece.begin
    if piece.content is not None:
        kept = final.content[piece.begin - final.begin : piece.end - final.begin]
        at += _common_length(piece.content, kept)
        seen = index.seen_at(piece.content, at - piece.begin)
        if seen is None:
            # It may have begun before the piece.
            seen = next(iter(index.torn(piece.content[at - piece.begin :][:_SNIPPET_BYTES])), None)
    holds = next((s.op for s in segments if s.op is not None and s.begin <= at < s.end), None)
    if at >= final.end:
        now = f"and the journal ends at {final.end}"
    else:
        now = f"where the journal holds {holds.label}" if holds else "which is not in the journal"
    shown: tuple[Append | Poll, ...] = (poll,)
    shown = tuple(op for op in (seen, holds) if op is not None) + shown
    if seen is None:
        text = f"{poll.process} got {piece}, which differs from offset {at} on, {now}"
        name = "inconsistent-offsets" if at < final.end else "precommitted-read"
        return Anomaly(name, final.journal, text, shown)
    text = f"{poll.process} read {seen.label} at offset {at}, {now}"
    name = {
        Outcome.OK: "inconsistent-offsets",
        Outcome.FAIL: "G1a",
        Outcome.UNKNOWN: "precommitted-read",
    }[seen.outcome]
    if seen.outcome is Outcome.OK and seen.attempts > 1 and not seen.begin <= at < seen.end:
        name = "precommitted-read"  # by an attempt before the one that was acknowledged
    return Anomaly(name, final.journal, text, shown)


def lag_and_unseen(appends: Sequence[Append], polls: Sequence[Poll]) -> tuple[float, int]:
    """The longest time until a reader saw an acknowledged append, and how many none saw.

    Time counts from the acknowledgement, or from when the reader began, if that was later. A reader that began behind an append, or ended before it came to it, has nothing to say of it.
    """
    acknowledged = sorted(
        (op for op in appends if op.outcome is Outcome.OK and op.content), key=lambda op: op.end
    )
    seen: set[int] = set()
    worst_s = 0.0
    for stream in streams_of(polls).values():
        got = [(piece, poll) for poll in stream for piece in poll.pieces]
        number = 0
        for op in acknowledged:
            while number < len(got) and got[number][0].end < op.end:
                number += 1
            if number == len(got):
                break
            if op.begin >= got[0][0].begin:
                seen.add(op.id)
                since = max(op.completed_at, stream[0].invoked_at)
                worst_s = max(worst_s, got[number][1].completed_at - since)
    return worst_s, len(acknowledged) - len(seen) if polls else 0


def streams_of(polls: Sequence[Poll]) -> dict[int, list[Poll]]:
    """Polls that were answered, in the order of their invocation, by stream."""
    streams: defaultdict[int, list[Poll]] = defaultdict(list)
    for poll in sorted(polls, key=lambda poll: (poll.invoked_at, poll.id)):
        if poll.outcome is Outcome.OK:
            streams[poll.stream].append(poll)
    return streams


def _common_length(left: bytes, right: bytes) -> int:
    """Bytes that both begin with.

    >>> _common_length(b"abcd", b"abx")
    2
    """
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _sha1(content: bytes) -> bytes:
    return hashlib.sha1(content, usedforsecurity=False).digest()


def check_heads(
    journal: str, appends: Sequence[Append], polls: Sequence[Poll]
) -> Iterator[Anomaly]:
    """No head lies below what was acknowledged before, or comes with it; none goes back in a stream.

    A stream may be answered as of its begin, so that it is held to what had been acknowledged then.
    A read at -1 begins at a head, and goes on from the one that it got.
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
                    f"{poll.process} got a write head {poll.write_head}, "
                    f"and with it got {poll.pieces[-1]}"
                )
                yield Anomaly("stale-head", journal, text, (poll,))
            if known is not None and poll.write_head < known.end:
                text = (
                    f"{poll.process} got a write head {poll.write_head}, "
                    f"after {known.label} had been acknowledged up to {known.end}"
                )
                yield Anomaly("stale-head", journal, text, (known, poll))
            if told is not None and poll.write_head < told.write_head:
                text = (
                    f"{poll.process} got a write head {poll.write_head}, "
                    f"and before that of {told.write_head}"
                )
                yield Anomaly("nonmonotonic-head", journal, text, (told, poll))
            told = poll


def _begin_at_head(journal: str, stream: Sequence[Poll], known: Append | None) -> Iterator[Anomaly]:
    """Where a read at -1 begins: not before what was acknowledged, nor beyond the head it got."""
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
    """A head covers nothing that was invoked only after it was returned."""
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
                f"{poll.process} got a write head {poll.write_head} "
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
