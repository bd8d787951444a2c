"""Which fragments of a journal are needed to read it, which may be removed, and what is wrong with the others. Pure.

Fail-overs, retries and compaction leave fragments that hold the same bytes more than once. A cover set
keeps those fragments that no other one covers alone. They are in order, so that a read finds the best
one for an offset by bisection.

Brokers never remove a fragment; `gazctl journals prune` asks `plan_prune` first. What a plan removes, the journal can do
without:

- The fragment that ends last stays. When brokers have lost their disks, only it shows where the
  journal ends, and appends would give out its offsets a second time without it. It may go only while the
  spec itself says so: that of a suspended journal notes its head.
- What readers have named by a savepoint stays, with all that follows it.
- A gap is made only where reads jump over it at once: before the first fragment that stores hold of the
  journal, or before one that is old. Before a younger one they wait, as another broker might be about to
  store what is missing.

Fragments that lie within others are judged like these, each by its own age: so they do not come to light
once the larger one is gone. `audit_names` compares fragments by their names and sizes.

Source: Gazette broker/fragment/cover_set.go, cmd/gazctl/gazctlcmd/journals_prune.go. Prunes depart in all of the
above, and in that a retention of 0 keeps everything.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, final

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.offsets import gaps_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_platform.protocol import Fragment


JUMP_AGE_S: Final = 6 * 3600
"""Seconds. A younger hole may be a fragment that another broker is still uploading, so readers wait for
it. The content of an older hole was deleted or lost, and readers continue after it."""


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


_OFFSET_MAX: Final = (1 << 63) - 1


class Kept(enum.Enum):
    """Why a stored fragment is not removed; the text follows "kept: 3 "."""

    YOUNG = "younger than the retention"
    OUTSIDE = "not whole within the range"
    LAST = "at the end of the journal"
    SAVEPOINT = "that a savepoint needs"
    GAP = "before a fragment that is too young for reads to jump to"


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """A fragment as a listing of its store shows it."""

    fragment: Fragment
    """With store, postfix and time."""
    size: int
    """Stored (maybe compressed) bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PruneRule:
    """Which fragments are to go: old ones, or those of a range."""

    retention_s: float = 0
    """Seconds since they were stored; 0 keeps all, unless `end` is given."""
    begin: int = 0
    """First byte of the range."""
    end: int = 0
    """Offset after its last byte; then age does not matter. 0: no range, and age decides."""

    def __post_init__(self) -> None:
        """Raises: ValidationError: a range that is none."""
        if not 0 <= self.begin <= _OFFSET_MAX or not 0 <= self.end <= _OFFSET_MAX:
            raise ValidationError(f"offsets must be from 0 to 2^63-1 ({self.begin}, {self.end})")
        if self.begin and self.begin >= self.end:
            raise ValidationError(f"the range from {self.begin} to {self.end} is empty")

    def keeps(self, fragment: Fragment, now_s: float) -> Kept | None:
        """Why it is not to go, as far as age or range decide; None: it is."""
        if self.end:
            is_within = self.begin <= fragment.begin and fragment.end <= self.end
            return None if is_within else Kept.OUTSIDE
        is_old = 0 < self.retention_s <= now_s - fragment.mod_time
        return None if is_old else Kept.YOUNG


@final
@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What to remove, and why the rest stays."""

    remove: tuple[StoredFragment, ...]
    """By offset, those that lie within others first: whoever stops in the middle leaves the end."""
    kept: Counter[Kept]
    jumpable_at: float
    """Unix seconds from which reads jump over the gaps that were not made; 0: there is none."""


def plan_prune(
    stored: Sequence[StoredFragment],
    rule: PruneRule,
    *,
    now_s: float,
    local: Iterable[Fragment] = (),
    noted_head: int = 0,
    savepoint: int | None = None,
) -> PrunePlan:
    """Decide which of the stored fragments of one journal to remove.

    Args:
        stored: all that its stores hold, in the order in which brokers list them; also those that lie
            within others.
        now_s: Unix seconds.
        local: what is in brokers only.
        noted_head: offset at which the spec says that the journal goes on; 0: it says nothing.
        savepoint: the least offset that a savepoint names; None: none does.
    """
    last_end = max((each.fragment.end for each in stored), default=0)
    kept: Counter[Kept] = Counter()
    remaining: CoverSet[Fragment] = CoverSet()
    remove: list[StoredFragment] = []
    for each in stored:
        reason = rule.keeps(each.fragment, now_s)
        if reason is None and savepoint is not None and each.fragment.end > savepoint:
            reason = Kept.SAVEPOINT
        if reason is None and each.fragment.end == last_end > noted_head:
            reason = Kept.LAST
        if reason is None:
            remove.append(each)
        else:
            kept[reason] += 1
            remaining.add(each.fragment)
    in_stores = CoverSet(each.fragment for each in stored)
    for each_local in local:
        # Of what stores hold, too, brokers drop their own copy at the next listing.
        if not in_stores.covers(each_local.begin, each_local.end):
            remaining.add(each_local)
    holes = _waiting_holes(remaining, now_s)
    goes: list[StoredFragment] = []
    jumpable_at = 0.0
    for each in remove:
        found = [at for begin, end, at in holes if _overlap(each.fragment, begin, end)]
        if found:
            kept[Kept.GAP] += 1
            jumpable_at = max(jumpable_at, *found)
        else:
            goes.append(each)
    goes.sort(key=lambda each: (each.fragment.begin, each.fragment.end))
    return PrunePlan(tuple(goes), kept, jumpable_at)


def _overlap(fragment: Fragment, begin: int, end: int) -> bool:
    return fragment.begin < end and begin < fragment.end


def _waiting_holes(remaining: CoverSet[Fragment], now_s: float) -> list[tuple[int, int, float]]:
    """Holes in what remains at which reads would wait: begin, end, and the time until when they do.

    The fragment behind belongs to it: an older one that holds the same bytes is what reads jump to now.
    """
    holes = []
    # Nor do they jump to a beginning that is in brokers only.
    if len(remaining) and not remaining[0].mod_time:
        holes.append((0, remaining[0].end, now_s + JUMP_AGE_S))
    for index in range(1, len(remaining)):
        before, behind = remaining[index - 1], remaining[index]
        if before.end < behind.begin:
            # When a local one will be stored is unknown.
            stored_at = behind.mod_time or now_s
            if stored_at >= now_s - JUMP_AGE_S:
                holes.append((before.end, behind.end, stored_at + JUMP_AGE_S))
    return holes


class Kind(enum.StrEnum):
    """What a finding is about."""

    GAP = "gap"
    """No store and no broker has content between two fragments."""
    OVERLAP = "overlap"
    """Two fragments hold the same offsets, as after a fail-over. Reads take the one that ends last."""
    CONFLICT = "conflict"
    """Two fragments of the same offsets have different digests."""
    MISSING = "missing"
    """Brokers list a stored fragment that its store does not have."""
    LENGTH = "length"
    DIGEST = "digest"
    CODEC = "codec"
    """The object cannot be decompressed."""
    STRANGE = "strange"
    """An object whose name is not that of a fragment."""
    UNREAD = "unread"
    """The store did not give the object."""

    @property
    def is_fault(self) -> bool:
        """Whether it needs an action."""
        return self is not Kind.OVERLAP


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    kind: Kind
    begin: int
    end: int
    """Offsets of the journal, 0 and 0 for a strange object."""
    detail: str
    path: str = ""
    """Of the object below its store; empty for a gap."""
    store: str = ""


def audit_names(stored: Sequence[StoredFragment], known: Iterable[Fragment]) -> list[Finding]:
    """Compare the fragments of a journal with each other, in order of offsets.

    A journal may begin anywhere, since its beginning is pruned in time.

    Args:
        stored: in all stores.
        known: to brokers, also what only their spools hold.
    """
    found = [*_lengths(stored), *_overlaps([each.fragment for each in stored])]
    found += _gaps([*(each.fragment for each in stored), *known])
    return sorted(found, key=lambda finding: (finding.begin, finding.end, finding.kind))


def missing_of(stored: Iterable[StoredFragment], known: Iterable[Fragment]) -> list[Fragment]:
    """Return what brokers list as stored, and listings of the stores lack."""
    names = {(each.fragment.backing_store, each.fragment.content_path) for each in stored}
    return [
        fragment
        for fragment in known
        if fragment.backing_store and (fragment.backing_store, fragment.content_path) not in names
    ]


def _lengths(stored: Iterable[StoredFragment]) -> Iterator[Finding]:
    for each in stored:
        fragment = each.fragment
        if fragment.codec is CompressionCodec.NONE and each.size != fragment.content_length:
            detail = f"stored are {each.size} bytes of {fragment.content_length}"
            yield Finding(
                Kind.LENGTH,
                fragment.begin,
                fragment.end,
                detail,
                fragment.content_path,
                fragment.backing_store,
            )


def _overlaps(fragments: Iterable[Fragment]) -> Iterator[Finding]:
    # Copies of a fragment in two stores, or with two codecs, are one.
    distinct = {(each.begin, each.end, each.sum): each for each in fragments}
    ordered = sorted(distinct.values(), key=lambda each: (each.begin, each.end, each.sum))
    last: Fragment | None = None  # the one that ends last so far
    for each in ordered:
        if last is not None and each.begin < last.end:
            is_same = (each.begin, each.end) == (last.begin, last.end)
            yield Finding(
                Kind.CONFLICT if is_same else Kind.OVERLAP,
                each.begin,
                min(each.end, last.end),
                f"so does {last.content_path} of {last.backing_store}",
                each.content_path,
                each.backing_store,
            )
        if last is None or each.end >= last.end:
            last = each


def _gaps(fragments: Iterable[Fragment]) -> Iterator[Finding]:
    for begin, end in gaps_between((each.begin, each.end) for each in fragments):
        yield Finding(Kind.GAP, begin, end, f"{end - begin} bytes are in no store and no broker")
