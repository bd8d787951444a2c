"""Which files of a journal hold each byte once, and which bytes none holds. Pure.

After a fail-over, or when two brokers' clocks differ by an hour boundary, two files may hold the same
bytes, and an engine that reads both shows rows twice. Rows carry no offsets, so an engine can only use a
file as a whole. Among files that overlap we keep the set that covers most bytes without holding any
twice. Brokers split journals between appends, so such a set nearly always covers everything.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


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


def lowered(begin: int, spans: Iterable[tuple[int, int]]) -> int:
    """The greatest offset ≤ `begin` that none of `spans` spans.

    >>> lowered(7, [(0, 2), (3, 6), (5, 9)])
    3
    """
    for low, high in sorted(spans, reverse=True):
        if low < begin < high:
            begin = low
    return begin


def overlapping(
    ranges: Mapping[str, Iterable[tuple[int, int]]], begin: int, end: int | None
) -> dict[str, tuple[int, int]]:
    """Names with a range that shares bytes of [begin, end) with one of another name, and the bytes.

    Where a name shares several, the bytes are from the first to the last of them.

    >>> overlapping({"a": [(0, 9)], "b": [(6, 12)], "c": [(12, 20)]}, 0, None)
    {'a': (6, 9), 'b': (6, 9)}
    """
    found: dict[str, tuple[int, int]] = {}
    ordered = sorted((low, high, name) for name, spans in ranges.items() for low, high in spans)
    open_ones: list[tuple[int, str]] = []
    for low, high, name in ordered:
        open_ones = [one for one in open_ones if one[0] > low]
        for other_end, other in open_ones:
            shared = (
                max(low, begin),
                min(high, other_end) if end is None else min(high, other_end, end),
            )
            if other == name or shared[0] >= shared[1]:
                continue
            for each in (name, other):
                before = found.get(each, shared)
                found[each] = (min(before[0], shared[0]), max(before[1], shared[1]))
        open_ones.append((high, name))
    return dict(sorted(found.items()))


def in_time(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names of Hive partitions by time, since numbers have no leading zeros.

    >>> sorted(["hour=10", "hour=9"], key=in_time)
    ['hour=9', 'hour=10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(name)]


_NUMBERS = re.compile(r"([0-9]+)")


def walk_outward(
    names: Sequence[str],
    touched: Collection[str],
    meets: Callable[[Sequence[str]], bool],
    *,
    step: int,
    names_max: int,
) -> bool:
    """Show `meets` all names between the first and the last of `touched`, and beyond while it is true.

    What overlaps is nearly always next to each other in the order of names, which is that of time. So
    beyond both ends it is asked of `step` names at once, until none of them meets.

    Args:
        names: in order.
        touched: some of them.
        meets: whether any of the given names is of interest.
        step: names to show at once.
        names_max: names to show at most.

    Returns: whether it came to an end within `names_max`.
    """
    places = [index for index, name in enumerate(names) if name in touched]
    if not places:
        return True
    first, last = places[0], places[-1] + 1
    inner = names[first : min(last, first + names_max)]
    meets(inner)
    shown = len(inner)
    if shown < last - first:
        return False
    for direction in (-1, 1):
        while True:
            batch = (
                names[max(0, first - step) : first] if direction < 0 else names[last : last + step]
            )
            if not batch or not meets(batch):
                break
            shown += len(batch)
            if shown >= names_max:
                return False
            first, last = (
                (first - len(batch), last) if direction < 0 else (first, last + len(batch))
            )
    return True
