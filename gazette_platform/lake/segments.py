"""What of a journal a query reads from where: decided purely.

Fragments that brokers list may overlap in part, as after a fail-over. Since their offsets are known, and
we read their bytes ourselves, they are cut where they meet: each byte of the journal below its head is
in one segment, or in none if no one holds it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gazette_platform.client import FragmentListing

__all__ = ["Segment", "SegmentPlan", "plan_segments"]

Values = tuple[str | None, ...]


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes [begin, end) of a journal, and who holds them."""

    journal: str
    begin: int
    end: int
    values: Values
    """Of the partition columns; None: not known before the fragment is persisted."""
    listing: FragmentListing | None
    """The persisted fragment that is read; None: brokers are asked."""


@final
@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Segments of one journal in order, without overlaps."""

    segments: tuple[Segment, ...]
    begin: int
    """First byte that anyone holds; what came before was pruned."""
    persisted_end: int
    """Where the last persisted fragment that is read ends, and the live tail begins."""
    gaps: tuple[tuple[int, int], ...]
    """Bytes after `begin` that no broker or store holds."""


def plan_segments(
    journal: str,
    listed: Sequence[FragmentListing],
    head: int,
    *,
    values_of: Callable[[FragmentListing], Values],
    live_values: Values,
) -> SegmentPlan:
    """Cut [0, head) of `journal` into segments.

    At each offset the persisted fragment is taken that reaches farthest. What only spools hold, and all
    after the last persisted fragment, is read through brokers.

    Args:
        listed: fragments, in any order; those without a backing store are in spools.
        head: where the query ends, at most the write head.
        values_of: partition values of a persisted fragment.
        live_values: those of what is not persisted yet.
    """
    stored = sorted(
        (each for each in listed if each.is_persisted and each.fragment.content_length),
        key=lambda each: each.fragment.begin,
    )
    spooled = _disjoint(
        (f.begin, f.end) for each in listed if not (f := each.fragment).backing_store
    )
    begins = [each.fragment.begin for each in stored[:1]] + [begin for begin, _ in spooled[:1]]
    at = first = min([*begins, head], default=head) if begins else 0
    segments: list[Segment] = []
    gaps: list[tuple[int, int]] = []
    index, persisted_end = 0, at
    best: FragmentListing | None = None
    while at < head:
        while index < len(stored) and stored[index].fragment.begin <= at:
            if best is None or stored[index].fragment.end > best.fragment.end:
                best = stored[index]
            index += 1
        if best is not None and best.fragment.end > at:
            end = min(best.fragment.end, head)
            segments.append(Segment(journal, at, end, values_of(best), best))
            at = persisted_end = end
            continue
        if index == len(stored):
            segments.append(Segment(journal, at, head, live_values, None))
            break
        end = min(stored[index].fragment.begin, head)
        for begin, stop, is_held in _parts(spooled, at, end):
            if is_held:
                segments.append(Segment(journal, begin, stop, live_values, None))
            else:
                gaps.append((begin, stop))
        at = end
    return SegmentPlan(tuple(segments), first, persisted_end, tuple(gaps))


def _disjoint(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """`spans` in order, each without what those before it hold.

    >>> _disjoint([(3, 5), (0, 4), (1, 2)])
    [(0, 4), (4, 5)]
    """
    found: list[tuple[int, int]] = []
    reach = 0
    for low, high in sorted(spans):
        if high > reach:
            found.append((max(low, reach), high))
            reach = high
    return found


def _parts(spans: Sequence[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int, bool]]:
    """[begin, end) cut into what the disjoint, sorted `spans` hold, and what they do not.

    >>> _parts([(0, 4), (6, 9)], 2, 8)
    [(2, 4, True), (4, 6, False), (6, 8, True)]
    """
    found: list[tuple[int, int, bool]] = []
    # While a store takes nothing, there are many: each cut begins where its bytes may be, not at the first one.
    index = bisect_right(spans, begin, key=itemgetter(1))
    while index < len(spans) and spans[index][0] < end:
        low, high = max(spans[index][0], begin), min(spans[index][1], end)
        index += 1
        if low >= high:
            continue
        if low > begin:
            found.append((begin, low, False))
        found.append((low, high, True))
        begin = high
    if begin < end:
        found.append((begin, end, False))
    return found
