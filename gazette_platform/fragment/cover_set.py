"""Which fragments are needed to read a journal, when many overlap.

Fail-overs, retries and compaction leave fragments that hold the same bytes more than once. A cover set
keeps those fragments that no other one covers alone. They are in order, so that a read finds the best
one for an offset by bisection. Pure: no I/O, no clock.

Source: Gazette broker/fragment/cover_set.go.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Span(Protocol):
    """Bytes [begin, end) of a journal."""

    @property
    def begin(self) -> int:
        """First byte."""
        ...

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        ...


T = TypeVar("T", bound=Span)


@final
class CoverSet(Generic[T]):
    """Spans, none within another: begins and ends both strictly increase.

    Adding at the end is O(1), elsewhere O(n) with a small constant; look-ups are O(log n).
    """

    __slots__ = ("_begins", "_ends", "_items")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = []
        # Bounds are kept beside the items, so that bisection compares plain integers.
        self._begins: list[int] = []
        self._ends: list[int] = []
        for item in items:
            self.add(item)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __getitem__(self, index: int) -> T:
        return self._items[index]

    @property
    def begin(self) -> int:
        """First byte of the first member; 0 if there is none."""
        return self._begins[0] if self._begins else 0

    @property
    def end(self) -> int:
        """Offset after the last byte of the last member; 0 if there is none."""
        return self._ends[-1] if self._ends else 0

    @property
    def last(self) -> T | None:
        """The last member."""
        return self._items[-1] if self._items else None

    def copy(self) -> CoverSet[T]:
        """An independent set of the same members."""
        made: CoverSet[T] = CoverSet()
        made._items = self._items.copy()
        made._begins = self._begins.copy()
        made._ends = self._ends.copy()
        return made

    def add(self, item: T) -> bool:
        """Add `item`, unless it is empty or lies within a larger member.

        It displaces members that lie within it, also one of the same span. So what is added later
        wins: a stored fragment takes the place of the local one.

        Returns: whether it was added.
        """
        return self.insert(item) is not None

    def insert(self, item: T) -> list[T] | None:
        """Like `add`. Returns: the members that it displaced; None: it was not added."""
        begin, end = item.begin, item.end
        if begin >= end:
            return None
        begins, ends = self._begins, self._ends
        if not ends or (begin > begins[-1] and end > ends[-1]):  # the usual case, without a search
            self._items.append(item)
            begins.append(begin)
            ends.append(end)
            return []
        if begin == begins[-1] and end >= ends[-1]:  # the open fragment grew
            displaced = [self._items[-1]]
            self._items[-1] = item
            ends[-1] = end
            return displaced
        # Of all members that begin no later than `item`, the last one ends last.
        before = bisect_right(begins, begin) - 1
        if before >= 0 and ends[before] >= end and (begins[before], ends[before]) != (begin, end):
            return None
        first = bisect_left(begins, begin)
        behind = bisect_right(ends, end)
        displaced = self._items[first:behind]
        self._items[first:behind] = [item]
        begins[first:behind] = [begin]
        ends[first:behind] = [end]
        return displaced

    def lookup(self, offset: int) -> tuple[int, bool]:
        """Find the member to read at `offset`.

        Returns: the index of the member with the most content from `offset` on, and True. If no
            member covers `offset`: the index of the first member after it, or the length if there
            is none; and False.
        """
        index = max(bisect_right(self._ends, offset), bisect_right(self._begins, offset) - 1)
        return index, index < len(self._begins) and self._begins[index] <= offset

    def covers(self, begin: int, end: int) -> bool:
        """Whether members, one or a run of them without a gap, hold all of [begin, end)."""
        if end > self.end:
            return begin >= end
        while begin < end:
            index, found = self.lookup(begin)
            if not found:
                return False
            begin = self._ends[index]
        return True

    def remove(self, item: T) -> bool:
        """Remove the member with the span of `item`. Returns: whether there was one."""
        index = bisect_left(self._begins, item.begin)
        if index == len(self._begins) or self._items[index].begin != item.begin:
            return False
        if self._ends[index] != item.end:
            return False
        del self._items[index], self._begins[index], self._ends[index]
        return True

    def overlapping(self, begin: int, end: int) -> list[T]:
        """Members that hold any byte of [begin, end), in order."""
        return self._items[bisect_right(self._ends, begin) : bisect_left(self._begins, end)]
