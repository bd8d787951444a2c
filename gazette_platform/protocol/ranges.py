"""Ranges [begin, end) of offsets: merge them, subtract them, clip them. Pure.

Results are disjoint, ascending and as few as possible: no two of them touch, and none is empty.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets in the fewest ranges.

    >>> merge_ranges([(4, 6), (0, 2), (1, 3), (6, 8), (9, 9)])
    [(0, 3), (4, 8)]
    """
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def gaps_between(ranges: Iterable[Range]) -> list[Range]:
    """Return the offsets between the first and the last range that are in none.

    >>> gaps_between([(0, 10), (5, 12), (20, 30)])
    [(12, 20)]
    """
    return [(end, begin) for (_, end), (begin, _) in pairwise(merge_ranges(ranges))]


def subtract_ranges(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the offsets of `ranges` that are in none of `taken`.

    >>> subtract_ranges([(0, 10), (10, 20)], [(3, 5), (18, 30)])
    [(0, 3), (5, 18)]
    """
    left: list[Range] = []
    removed = merge_ranges(taken)
    for begin, end in merge_ranges(ranges):
        at = begin
        for low, high in clip_ranges(removed, begin, end):
            if low > at:
                left.append((at, low))
            at = high
        if at < end:
            left.append((at, end))
    return left


def clip_ranges(ranges: Sequence[Range], begin: int, end: int) -> list[Range]:
    """Return the parts of `ranges` within [begin, end).

    Args:
        ranges: disjoint and ascending. There may be many: only those that matter are looked at.
        begin: the first offset.
        end: the offset after the last one.

    >>> clip_ranges([(0, 4), (6, 9), (12, 20)], 2, 8)
    [(2, 4), (6, 8)]
    """
    found: list[Range] = []
    for index in range(bisect_right(ranges, begin, key=itemgetter(1)), len(ranges)):
        low, high = ranges[index]
        if low >= end:
            break
        found.append((max(low, begin), min(high, end)))
    return found
