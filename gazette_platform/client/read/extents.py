"""Who holds which bytes of a journal. Pure.

Brokers list fragments. Some overlap, as after a fail-over; some bytes are only in spools; bytes that were pruned or lost are
nowhere. `snapshot_of` cuts what lies below a write head into *extents*: each byte is in one extent, and so has one holder, or in
none. `gazctl sql`, typed runs, Spark and readers of a store all use it.

`choose_next` makes the same choice for one offset, among a page of fragments. `StorePlan` knows no more than the listing of a
store: it also decides when content that is missing counts as gone.

Cost: n log n for n fragments; a look-up is a bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Self, final

from typing_extensions import override

from gazette_platform.protocol.offsets import clip_ranges, subtract_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gazette_platform.client.results import FragmentListing
    from gazette_platform.protocol import Fragment
    from gazette_platform.protocol.offsets import Range

POLL_S_MIN: Final = 1.0
POLL_S_MAX: Final = 60.0
# As of brokers: a younger hole may be a fragment that is still being stored.
_JUMP_AGE_S: Final = 6 * 3600
# The beginning of a journal is pruned in time, mostly of what is younger than that. Brokers ask each other
# what of it is still to be stored; here no broker can be asked. But fragments reach a store within minutes
# of each other: what failed is tried again after three at the latest, and a put takes five at most.
_PRUNED_AGE_S: Final = 600

_end_of = attrgetter("end")


@dataclass(frozen=True, slots=True, repr=False)
class Extent:
    """Bytes [begin, end) of a journal, all with one holder."""

    journal: str
    begin: int
    end: int
    listing: FragmentListing | None = None
    """The stored fragment that holds them; None: brokers do."""

    @override
    def __repr__(self) -> str:
        # A signed URL lets anyone fetch the fragment, and engines log what they plan.
        return f"{type(self).__name__}({self.journal!r}, {self.begin}, {self.end})"

    def cut(self, begin: int, end: int) -> Self:
        """Return the part within [begin, end)."""
        if begin <= self.begin and self.end <= end:
            return self
        return replace(self, begin=max(self.begin, begin), end=min(self.end, end))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSnapshot:
    """A journal up to its write head, at an instant."""

    name: str
    """Of the journal."""
    begin: int
    """The first byte that a broker or store holds; the head, if none does."""
    head: int
    """Byte offset. What was appended later is not in the snapshot."""
    extents: tuple[Extent, ...]
    """Disjoint, ascending, all below `head`."""
    aside: tuple[Range, ...] = ()
    """Bytes that only fragments hold which the reader leaves out."""
    created: int = 0
    """Which journal it is; see `protocol.offsets`."""

    @property
    def stored_end(self) -> int:
        """Where the last stored extent ends, and the live tail begins."""
        stored = (each.end for each in reversed(self.extents) if each.listing is not None)
        return next(stored, self.begin)

    @property
    def fragments(self) -> int:
        """How many stored fragments are read."""
        return sum(each.listing is not None for each in self.extents)

    @property
    def gaps(self) -> list[Range]:
        """Bytes from `begin` on that no broker or store holds."""
        return subtract_ranges(self.missing(self.begin, self.head), self.aside)

    def between(self, begin: int, end: int) -> list[Extent]:
        """Return the extents within [begin, end), cut at both ends."""
        found: list[Extent] = []
        for index in range(bisect_right(self.extents, begin, key=_end_of), len(self.extents)):
            each = self.extents[index]
            if max(begin, each.begin) >= end:
                break
            found.append(each.cut(begin, end))
        return found

    def missing(self, begin: int, end: int) -> list[Range]:
        """Return the parts of [begin, end) that are in no extent."""
        held = ((each.begin, each.end) for each in self.between(begin, end))
        return subtract_ranges([(begin, end)], held)


def snapshot_of(
    journal: str,
    listed: Iterable[FragmentListing],
    head: int,
    *,
    begin: int | None = None,
    created: int = 0,
    is_aside: Callable[[Fragment], bool] | None = None,
) -> JournalSnapshot:
    """Cut a journal into extents.

    At each offset the stored fragment is taken that ends last. Brokers hold what only spools have, and all that follows the last
    stored fragment: it may have been appended after the fragments were listed. If nothing is listed, all was pruned, and nobody
    holds a byte.

    Args:
        journal: its name.
        listed: fragments, in any order; those without a backing store are in spools.
        head: where the snapshot ends. Ask for the write head before the fragments, and no byte below it is overlooked.
        begin: the first byte that exists, if `listed` does not begin with it.
        created: which journal it is.
        is_aside: whether the reader leaves out a stored fragment. Brokers would serve its bytes, so it is no part of the live tail
            either.
    """
    held = [each for each in listed if each.fragment.content_length]
    stored = [each for each in held if each.is_persisted]
    read = [each for each in stored if is_aside is None or not is_aside(each.fragment)]
    first = min((each.fragment.begin for each in held), default=head)
    extents: tuple[Extent, ...] = ()
    if held:
        tail = max((each.fragment.end for each in stored), default=first)
        spooled = _disjoint(
            (each.fragment.begin, each.fragment.end) for each in held if not each.is_persisted
        )
        extents = tuple(_cut(journal, read, spooled, at=first, tail=tail, head=head))
    found = JournalSnapshot(
        name=journal,
        begin=min(first if begin is None else begin, head),
        head=head,
        extents=extents,
        created=created,
    )
    if len(read) == len(stored):
        return found
    missing = found.missing(found.begin, head)
    lost = subtract_ranges(missing, ((each.fragment.begin, each.fragment.end) for each in stored))
    return replace(found, aside=tuple(subtract_ranges(missing, lost)))


def _cut(
    journal: str,
    stored: Iterable[FragmentListing],
    spooled: Sequence[Range],
    *,
    at: int,
    tail: int,
    head: int,
) -> Iterator[Extent]:
    """Yield extents from `at` on; the live tail begins at `tail`."""
    waiting = sorted(stored, key=lambda each: each.fragment.begin)
    index = 0
    best: FragmentListing | None = None
    while at < min(tail, head):
        while index < len(waiting) and waiting[index].fragment.begin <= at:
            if best is None or waiting[index].fragment.end > best.fragment.end:
                best = waiting[index]
            index += 1
        if best is not None and best.fragment.end > at:
            end = min(best.fragment.end, head)
            yield Extent(journal, at, end, best)
        else:
            following = waiting[index].fragment.begin if index < len(waiting) else tail
            end = min(following, head)
            for low, high in clip_ranges(spooled, at, end):
                yield Extent(journal, low, high)
        at = end
    if at < head:
        yield Extent(journal, at, head)


def _disjoint(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order, each without what those before it hold.

    They are not merged: a message ends where a fragment of a spool ends, and readers may stop there.

    >>> _disjoint([(3, 5), (0, 4), (1, 2)])
    [(0, 4), (4, 5)]
    """
    found: list[Range] = []
    reach = 0
    for begin, end in sorted(ranges):
        if end > reach:
            found.append((max(begin, reach), end))
            reach = end
    return found


def choose_next(listed: Iterable[FragmentListing], offset: int) -> FragmentListing | None:
    """Return the stored fragment to read at `offset`: of those that hold it, the one that ends last.

    Args:
        listed: in any order; they may overlap, as after a fail-over.
        offset: of the first byte to read.
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
    """What a store holds of a journal, as far as its listing shows it.

    Args:
        listed: fragments, all of them stored, in any order.
        is_beginning: whether nothing was stored before them, so that the journal begins with them.
    """

    def __init__(self, listed: Sequence[FragmentListing], *, is_beginning: bool) -> None:
        self._is_beginning = is_beginning
        self.end = max((each.fragment.end for each in listed), default=0)
        """Offset after the last stored byte; 0 if there is none."""
        extents = snapshot_of("", listed, self.end).extents
        self._extents = [
            (each.begin, each.end, each.listing) for each in extents if each.listing is not None
        ]
        self._begins = [listing.fragment.begin for _, _, listing in self._extents]

    def place(self, offset: int, now_s: float) -> Place | None:
        """Return where to read on at `offset`; None: it is not stored, or not yet.

        A hole is passed over if what follows was stored long ago: at the beginning of the journal, which
        is pruned in time, ten minutes, else six hours.

        Args:
            offset: where the read has come to.
            now_s: Unix seconds.
        """
        index = bisect_right(self._extents, offset, key=lambda each: each[1])
        if index == len(self._extents):
            return None
        begin, _, listing = self._extents[index]
        if begin <= offset:
            return Place(offset, listing)
        is_beginning = index == 0 and self._is_beginning
        age_s_min = _PRUNED_AGE_S if is_beginning else _JUMP_AGE_S
        if listing.fragment.mod_time < now_s - age_s_min:
            return Place(begin, listing)
        return None

    def begins_from(self, offset: int, count: int) -> Sequence[FragmentListing]:
        """Return up to `count` fragments that begin at `offset` or later."""
        first = bisect_left(self._begins, offset)
        return [listing for _, _, listing in self._extents[first : first + count]]


def next_poll_s(before_s: float, *, is_new: bool) -> float:
    """Return seconds until the next listing: fewer after one with something new, more after one without.

    >>> (
    ...     next_poll_s(8.0, is_new=True),
    ...     next_poll_s(8.0, is_new=False),
    ...     next_poll_s(50.0, is_new=False),
    ... )
    (4.0, 12.0, 60.0)
    """
    return max(POLL_S_MIN, before_s / 2) if is_new else min(POLL_S_MAX, before_s * 1.5)
