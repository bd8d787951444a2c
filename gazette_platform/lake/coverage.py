"""Which files of a journal hold each byte once, and which bytes none holds: decided purely.

After a fail-over, or when two brokers' clocks differ by an hour boundary, two files may hold the same
bytes, and an engine that reads both shows rows twice. Rows carry no offsets, so a file can only be
used as a whole. Among files that overlap we keep the set that covers most bytes without holding any
twice. Brokers split journals between appends, so such a set nearly always covers everything.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Span", "chain", "choose", "clusters", "gaps", "uncovered"]


@final
@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A file's bytes [begin, end) of its journal, where it lies, and whether brokers list it."""

    begin: int
    end: int
    directory: str
    name: str
    is_listed: bool


def clusters(spans: Iterable[Span]) -> list[list[Span]]:
    """Groups of spans that overlap, directly or through others; each in order of begin."""
    found: list[list[Span]] = []
    reach = 0
    for span in sorted(spans):
        if found and span.begin < reach:
            found[-1].append(span)
        else:
            found.append([span])
            reach = 0
        reach = max(reach, span.end)
    return found


def choose(cluster: Sequence[Span]) -> list[Span]:
    """Spans of `cluster` that do not overlap and cover most bytes, in order.

    Among equals the choice is one with most files that brokers list, and always the same.
    """
    ordered = sorted(cluster, key=lambda s: (s.end, s.begin, not s.is_listed, s.directory, s.name))
    ends = [s.end for s in ordered]
    # best[i]: bytes, and listed files, of the best choice among the first i spans.
    best: list[tuple[int, int]] = [(0, 0)]
    taken: list[bool] = []
    before: list[int] = []
    for index, span in enumerate(ordered):
        prior = bisect_right(ends, span.begin, 0, index)
        length, listed = best[prior]
        with_it = (length + span.end - span.begin, listed + span.is_listed)
        before.append(prior)
        taken.append(with_it > best[index])
        best.append(max(with_it, best[index]))
    chosen: list[Span] = []
    index = len(ordered)
    while index:
        if taken[index - 1]:
            chosen.append(ordered[index - 1])
            index = before[index - 1]
        else:
            index -= 1
    return chosen[::-1]


def uncovered(cluster: Iterable[Span], chosen: Iterable[Span]) -> list[tuple[int, int]]:
    """Bytes that `cluster` holds and `chosen` does not, merged, ascending."""
    left: list[tuple[int, int]] = []
    at = min((s.begin for s in cluster), default=0)
    for span in sorted(chosen):
        if span.begin > at:
            left.append((at, span.begin))
        at = max(at, span.end)
    end = max((s.end for s in cluster), default=at)
    if end > at:
        left.append((at, end))
    return left


def chain(spans: Sequence[Span], begin: int, end: int) -> list[Span]:
    """The fewest of `spans` that together hold all of [begin, end); empty if they do not."""
    found: list[Span] = []
    at = begin
    while at < end:
        best = max((s for s in spans if s.begin <= at < s.end), key=lambda s: s.end, default=None)
        if best is None:
            return []
        found.append(best)
        at = best.end
    return found


def gaps(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Bytes between the first and the last of `spans` that none holds.

    >>> gaps([(0, 10), (5, 12), (20, 30)])
    [(12, 20)]
    """
    found: list[tuple[int, int]] = []
    at: int | None = None
    for begin, end in sorted(spans):
        if at is not None and begin > at:
            found.append((at, begin))
        at = end if at is None else max(at, end)
    return found
