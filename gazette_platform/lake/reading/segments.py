"""What of a journal a query reads from where: decided purely.

Fragments that brokers list may overlap in part, as after a fail-over. Since their offsets are known, and
we read their bytes ourselves, they are cut where they meet: each byte of the journal below its head is
in one segment, or in none if no one holds it.

Which files of a journal hold each byte once, and which bytes none holds: decided purely.

After a fail-over, or when two brokers' clocks differ by an hour boundary, two files may hold the same
bytes, and an engine that reads both shows rows twice. Rows carry no offsets, so a file can only be
used as a whole. Among files that overlap we keep the set that covers most bytes without holding any
twice. Brokers split journals between appends, so such a set nearly always covers everything.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gazette_platform.client import FragmentListing

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
