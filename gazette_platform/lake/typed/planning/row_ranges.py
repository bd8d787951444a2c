"""Rows that are to be removed from a table: by journal, those that begin in ranges of offsets. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.conversions import from_bytes
from pyiceberg.types import LongType

from gazette_platform.protocol.offsets import merge_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema


_Range = tuple[int, int]
# Offsets are not below 0: an empty range before all others of a journal, so that none of another one reaches into it.
_NOTHING: Final = (-1, -1)


class Overlap(Enum):
    """Which rows of a file lie in ranges, as far as its bounds show."""

    NONE = auto()
    SOME = auto()
    """Or all, or none: only reading shows."""
    ALL = auto()


@final
class RowRanges:
    """Offsets [begin, end) by journal. A row lies in them if its message begins there.

    >>> ranges = RowRanges({"b": [(4, 6), (0, 2), (1, 5)], "a": [(3, 3)]})
    >>> ranges.by_journal
    {'b': ((0, 6),)}

    Args:
        ranges: in any order; they may overlap.
    """

    def __init__(self, ranges: Mapping[str, Iterable[_Range]]) -> None:
        merged = {journal: tuple(merge_ranges(of_it)) for journal, of_it in sorted(ranges.items())}
        self.by_journal: dict[str, tuple[_Range, ...]] = {j: r for j, r in merged.items() if r}
        """Sorted, disjoint, and none of them empty."""
        self._names = [journal.encode() for journal in self.by_journal]
        self._of = list(self.by_journal.values())
        rows = [(n, *span) for n, of_it in enumerate(self._of) for span in (_NOTHING, *of_it)]
        columns = list(zip(*rows, strict=True)) or [()] * 3
        self._codes, self._begins, self._ends = (pa.array(one, pa.int64()) for one in columns)
        self._journals = pa.array(list(self.by_journal), pa.string())

    def __bool__(self) -> bool:
        return bool(self.by_journal)

    def overlap(self, file: DataFile, schema: Schema) -> Overlap:
        """How many rows of a file lie in the ranges, by what its manifest says of it.

        Args:
            schema: of the table.
        """
        journal, begin = (schema.find_field(name).field_id for name in ("_journal", "_begin"))
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        first, last = lower.get(journal), upper.get(journal)
        low, high = _number(lower.get(begin)), _number(upper.get(begin))
        found = self._between(first, last)
        if low is not None and high is not None:
            found = [of_it for of_it in found if _touches(of_it, low, high)]
        if not found:
            return Overlap.NONE
        # A bound that was cut is not a value, and then the two differ.
        is_one = first is not None and first == last
        if is_one and low is not None and high is not None and _holds(found[0], low, high):
            return Overlap.ALL
        return Overlap.SOME

    def mask(self, journals: pa.StringArray, begins: pa.Int64Array) -> pa.BooleanArray:
        """Which rows lie in the ranges.

        Args:
            journals: of each row.
            begins: of each row.
        """
        codes = pc.index_in(journals, value_set=self._journals).cast(pa.int64())
        # Ranges and rows, sorted: each row follows the last range of its journal that begins before it, or with it.
        # Rows of other journals come last.
        sorted_by = pa.table([
            pa.concat_arrays([self._codes, codes]),
            pa.concat_arrays([self._begins, begins]),
        ], names=["code", "at"])  # fmt: skip
        order = pc.sort_indices(sorted_by, sort_keys=[("code", "ascending"), ("at", "ascending")])
        ends = pa.concat_arrays([self._ends, pa.nulls(len(begins), pa.int64())]).take(order)
        inside = pc.less(sorted_by["at"].combine_chunks().take(order), pc.fill_null_forward(ends))
        in_rows = inside.take(pc.array_sort_indices(order)).slice(len(self._ends))
        return pc.and_(pc.is_valid(codes), pc.fill_null(in_rows, fill_value=False))

    def _between(self, first: bytes | None, last: bytes | None) -> list[Sequence[_Range]]:
        low = 0 if first is None else bisect_left(self._names, first)
        high = len(self._names) if last is None else bisect_right(self._names, last)
        return list(self._of[low:high])


def _number(bound: bytes | None) -> int | None:
    return None if bound is None else int(from_bytes(LongType(), bytes(bound)))


def _touches(ranges: Sequence[_Range], low: int, high: int) -> bool:
    index = bisect_left(ranges, low, key=lambda span: span[1] - 1)
    return index < len(ranges) and ranges[index][0] <= high


def _holds(ranges: Sequence[_Range], low: int, high: int) -> bool:
    index = bisect_right(ranges, low, key=lambda span: span[0]) - 1
    return index >= 0 and high < ranges[index][1]
