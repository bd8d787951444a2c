"""Which stored fragments to read next. Pure.

`choose_next` picks among fragments that brokers have listed. `StorePlan` knows no more than the listing
of a store: it also decides when content that is missing counts as gone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.client.results import FragmentListing

POLL_S_MIN: Final = 1.0
POLL_S_MAX: Final = 60.0
# As of brokers: a younger hole may be a fragment that is still being stored.
_JUMP_AGE_S: Final = 6 * 3600
# The beginning of a journal is pruned in time, mostly of what is younger than that. Brokers ask each other
# what of it is still to be stored; here no broker can be asked. But fragments reach a store within minutes
# of each other: what failed is tried again after three at the latest, and a put takes five at most.
_PRUNED_AGE_S: Final = 600


def choose_next(listed: Iterable[FragmentListing], offset: int) -> FragmentListing | None:
    """The stored fragment to read at `offset`: of those that hold it, the one that ends last.

    Args:
        listed: in any order; they may overlap, as after a fail-over.
    """
    best: FragmentListing | None = None
    for listing in listed:
        fragment = listing.fragment
        if not (listing.is_persisted and fragment.begin <= offset < fragment.end):
            continue
        if best is None or fragment.end > best.fragment.end:
            best = listing
    return best


class Place(NamedTuple):
    """Where a read goes on."""

    offset: int
    """The one that was asked for, or the one after missing content."""
    listing: FragmentListing
    """Of the fragment that holds it."""


@final
class StorePlan:
    """Stored fragments of a journal, without those that others cover: begins and ends increase.

    Args:
        listed: in any order.
        is_beginning: whether nothing was stored before them, so that the journal begins with them.
    """

    def __init__(self, listed: Iterable[FragmentListing], *, is_beginning: bool) -> None:
        self._is_beginning = is_beginning
        self._chain: list[FragmentListing] = []
        end = 0
        for each in sorted(listed, key=lambda each: (each.fragment.begin, -each.fragment.end)):
            if each.fragment.end > end:
                self._chain.append(each)
                end = each.fragment.end
        self._begins = [each.fragment.begin for each in self._chain]

    @property
    def end(self) -> int:
        """Offset after the last stored byte; 0 if there is none."""
        return self._chain[-1].fragment.end if self._chain else 0

    def place(self, offset: int, now_s: float) -> Place | None:
        """Where to read on at `offset`; None: it is not stored, or not yet.

        A hole is passed over if what follows was stored long ago: at the beginning of the journal, which
        is pruned in time, ten minutes, else six hours.

        Args:
            now_s: Unix seconds.
        """
        index = bisect_right(self._begins, offset)
        if index and offset < self._chain[index - 1].fragment.end:
            return Place(offset, self._chain[index - 1])
        if index == len(self._chain):
            return None
        fragment = self._chain[index].fragment
        is_beginning = index == 0 and self._is_beginning
        age_s_min = _PRUNED_AGE_S if is_beginning else _JUMP_AGE_S
        if fragment.mod_time < now_s - age_s_min:
            return Place(fragment.begin, self._chain[index])
        return None

    def begins_from(self, offset: int, count: int) -> Sequence[FragmentListing]:
        """Up to `count` fragments that begin at `offset` or behind."""
        first = bisect_left(self._begins, offset)
        return self._chain[first : first + count]


def next_poll_s(before_s: float, *, is_new: bool) -> float:
    """Seconds until the next listing: sooner after one with something new, later after one without.

    >>> (
    ...     next_poll_s(8.0, is_new=True),
    ...     next_poll_s(8.0, is_new=False),
    ...     next_poll_s(50.0, is_new=False),
    ... )
    (4.0, 12.0, 60.0)
    """
    return max(POLL_S_MIN, before_s / 2) if is_new else min(POLL_S_MAX, before_s * 1.5)
