"""The two decisions about a Hive partition: what its account lacks (`reconcile`), and whether lost bytes were pruned (`judge`). Pure.

What *ought* to be there are the stored fragments that brokers list in its directory. The account is `PartitionState`.
`reconcile` gives the difference, and each part of it has someone who acts on it:

| difference | who acts on it |
|---|---|
| `missing`: listed, and not in the account | registration counts and adds it; behind the cursor, an audit reports it |
| `again`: in the account, but its rows are not known, or some records did not fit | registration reads it again |
| `lost`: bytes of the account that no listed fragment holds | prunes: `judge` says whether they were pruned |
| `surplus`: the account counted more than is listed | an audit lists the directory; a repair takes one file out of the account |

Whoever acts reads the account again under the table's lock (`accounts`), and changes it by what it says then. So all of
this may be repeated after a crash, or be done by two processes at once, and counts nothing twice.

# Prunes

Brokers never say that something was pruned: they list it no more. So does a store that is not mounted, or
another one in its place, and then nothing may be forgotten. Each part of the evidence is required:

| brokers list in the partition's directory | its files, as this process sees them | proof of the store | verdict |
|---|---|---|---|
| all that the accounts hold | not looked at | not needed | keep |
| less, or nothing | cannot be listed | | doubt |
| less, or nothing | one that brokers do not list, or not one that they do | | wait: a listing is older |
| less, or nothing | just those | no | doubt |
| less | just those | yes | shrink |
| nothing | none | yes | empty |

The *proof* is a fragment in the same store that was registered at an earlier tick, that brokers still list, and
whose file exists. It lies after all that is gone, since a prune leaves the end of a journal. And brokers
listed it without a break: where they once listed nothing of what was registered, that may have been a store that went
away, and what was stored since proves nothing about what was before. Nor does what is stored once more: brokers keep
their copies for some minutes after the primary stored a fragment, and store it again if they find nothing.

Accounts that were emptied stay until Dagster has the event; then their Hive partition is dropped.

# Overlaps

`chain` says which files of a journal hold each byte once, and which bytes none holds.

After a fail-over, or when two brokers' clocks differ by an hour boundary, two files may hold the same
bytes, and an engine that reads both shows rows twice. Rows carry no offsets, so an engine can only use a
file as a whole. Among files that overlap we keep the set that covers most bytes without holding any
twice. Brokers split journals between appends, so such a set nearly always covers everything.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, final

from gazette_platform.lake.spec.layout import is_aside
from gazette_platform.protocol.offsets import subtract_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.raw.planning import JournalCursor, Page
    from gazette_platform.protocol import Fragment


FindingKind = Literal["gap", "overlap", "count", "fit"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with bytes [begin, end) of a journal."""

    kind: FindingKind
    journal: str
    """Empty if it is about the table as a whole."""
    begin: int
    end: int
    text: str
    is_error: bool = True
    """False: worth a look, but queries give what the journal holds."""
    excluded: str = ""
    """Name of a file that the exact view leaves out; empty if this is not about one."""
    directory: str = ""
    """Where the file that this is about lies, below its store; empty if it is about none."""
    since: int = 0
    """Of an overlap: offset of the first byte of all files that are concerned."""
    is_checked: bool = True
    """False: it says that something could not be looked at, and why; nothing is known to be wrong."""
    unfit: int = 0
    """Records that do not fit the spec, if it is about these: of a fragment, or of the table as a whole."""
    values: tuple[str, ...] = ()
    """The Hive partition of the excluded file; or what a finding ``fit`` depends on."""

    @property
    def path(self) -> str:
        """Path of the excluded file below its store."""
        return f"{self.directory}/{self.excluded}"


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
    # Walk back through ties in the same way each time. The view names the files that are left out, and rollups make slices
    # again when it changes, so another choice of equal worth would cost runs.
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
    # From the highest begin down: the lowered offset may lie within a span that begins before, never within one that was
    # passed.
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
    # Both ways: a fragment that came late lies in the Hive partition of its own time, and what covers it in an earlier or a
    # later one.
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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the account of a Hive partition differs from what ought to be in it."""

    missing: tuple[Fragment, ...] = ()
    """Fragments that the account neither holds nor knows as set aside."""
    held: tuple[Fragment, ...] = ()
    """Fragments whose bytes the account holds, perhaps as those of others that were merged into them."""
    again: tuple[Fragment, ...] = ()
    """Those of `held` with a note: their rows are not known, or records did not fit when they were read."""
    lost: tuple[tuple[int, int], ...] = ()
    """Bytes of the account that no fragment holds: disjoint, ascending."""
    surplus: int = 0
    """How many fragments the account counted beyond `held`; below zero: brokers merged some that it counted as one."""
    surplus_bytes: int = 0
    """Their decompressed bytes."""


def reconcile(state: PartitionState, ought: Iterable[Fragment]) -> Difference:
    """Return what ought to be in a Hive partition, less what its account holds.

    Args:
        state: its account.
        ought: what brokers list of its directory. What is not stored yet, or was set aside, is not expected there.
    """
    # A fragment in a spool lies in no directory yet, so an account without it is right. `lost` says only that brokers do
    # not list bytes: their index may be of an empty or another store, so `judge` wants more before anything is forgotten.
    stored = [f for f in ought if f.backing_store and f.content_length and not is_aside(f)]
    held = tuple(f for f in stored if state.covers(f.begin, f.end))
    noted = {(n.begin, n.end) for notes in (state.uncounted, state.unfit) for n in notes}
    return Difference(
        missing=tuple(f for f in stored if not state.settles(f.begin, f.end)),
        held=held,
        again=tuple(f for f in held if (f.begin, f.end) in noted) if noted else (),
        lost=tuple(subtract_ranges(state.ranges, [(f.begin, f.end) for f in stored])),
        surplus=state.fragments - len(held),
        surplus_bytes=state.content_bytes - sum(f.content_length for f in held),
    )


# A broker notes its own time when it stores a fragment; a listing has the store's.
_SKEW_S: Final = 60

Verdict = Literal["keep", "wait", "doubt", "shrink", "empty"]


@final
@dataclass(frozen=True, slots=True)
class Files:
    """Fragments' files in the directory of a Hive partition, as this process sees them now."""

    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By name: begin and end."""
    problem: str = ""
    """Why they could not be listed; then nothing is known of them."""


@final
@dataclass(frozen=True, slots=True)
class Break:
    """Brokers listed nothing any more of what had been registered."""

    offset: int
    """Up to here."""
    stored_at: int | None = None
    """Unix seconds at which the last of it had been stored; None: not known."""

    def is_of_before(self, fragment: Fragment) -> bool:
        """Whether a fragment that is listed was stored before, as far as is known."""
        is_stored = bool(fragment.backing_store)
        return self.stored_at is None or (is_stored and not _is_later(fragment, self.stored_at))

    def joined(self, other: Break) -> Break:
        """Join both; one of them has not been mended yet."""
        times = [b.stored_at for b in (self, other) if b.stored_at is not None]
        return Break(max(self.offset, other.offset), min(times, default=None))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a journal beside the directory in question."""

    proof: Fragment | None = None
    """A fragment in the store in question which was registered at an earlier tick, is listed, and whose file
    exists; the furthest one."""
    first: int | None = None
    """Begin of the first fragment that brokers list; None: they list none, or one that was stored after a break."""
    broken_at: int | None = None
    """Brokers once listed nothing of what had been registered up to here; None: they always did."""
    is_confirmed: bool = False
    """Whether a person says that it was a prune, so that no proof of the store is needed."""


@final
@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to become of the accounts of a Hive partition."""

    verdict: Verdict
    kept: tuple[Fragment, ...] = ()
    """Of the verdict `shrink`: what the accounts are to hold."""
    lost: tuple[tuple[int, int], ...] = ()
    reason: str = ""
    """Of `doubt` and `wait`, in words."""


def is_emptied(state: PartitionState) -> bool:
    """Whether a Hive partition held something, and nothing of it is left. A new one holds nothing of no journal.

    While a file is being moved out of its directory, only the account says so: it must stay for those who go on with that.
    """
    return bool(state.journal) and not state.ranges and not state.moving


def is_broken(cursor: JournalCursor, pages: Iterable[Page]) -> bool:
    """Whether brokers list nothing any more of what was registered up to the cursor, as far as was asked.

    Or the last of it, but as stored once more.

    Args:
        cursor: before the tick.
        pages: what was listed since; none: brokers were not asked.
    """
    # Not asked is not nothing listed: a tick that ran out of time must not look like an empty store.
    shown = list(pages)
    if not cursor.offset or cursor.last is None or not shown:
        return False
    before = [f for page in shown for f in page.fragments if f.begin < cursor.offset]
    if not before or cursor.stored_at is None:
        return not before
    newest = [f for f in before if (f.begin, f.end) == (cursor.last, cursor.offset)]
    # Brokers that find their store empty upload from their spools again. The content returns with a
    # later time.
    return any(f.backing_store and _is_later(f, cursor.stored_at) for f in newest)


def _is_later(fragment: Fragment, stored_at: int) -> bool:
    return fragment.mod_time > stored_at + _SKEW_S


def pruned_front(first: Fragment | None, state: PartitionState) -> bool:
    """Whether the first Hive partition of a journal holds bytes before the first fragment listed."""
    return first is not None and bool(state.ranges) and state.ranges[0][0] < first.begin


def judge(
    found: Difference,
    here: Sequence[Fragment],
    local: Collection[tuple[int, int]],
    files: Files,
    evidence: Evidence,
) -> Judgement:
    """Decide what is to become of the accounts of one Hive partition.

    Args:
        found: how its accounts differ from `here`.
        here: stored fragments that brokers list in its directory, and that hold bytes of it.
        local: begin and end of what brokers list as not stored yet, in any directory.
        files: in its directory, that hold bytes of it.
        evidence: about its journal, and its store.
    """
    lost = found.lost
    if not lost:
        return Judgement("keep")
    # The primary may have died after the upload was listed; replicas still hold the bytes and store
    # them again.
    if any(low < end and begin < high for low, high in lost for begin, end in local):
        return Judgement("wait", lost=lost, reason="brokers hold them, and are about to store them")
    if files.problem:
        return Judgement("doubt", lost=lost, reason=files.problem)
    names = {f.content_name for f in here}
    # A broker's listing and ours are of different times. Decide nothing on evidence that disagrees.
    if names != files.spans.keys():
        reason = "its files are not those that brokers list: wait for their next refresh"
        return Judgement("wait", lost=lost, reason=reason)
    # A wrong "pruned" loses rows of tables that rollups keep; a wrong "doubt" only waits. So each
    # missing proof means doubt.
    doubt = "" if evidence.is_confirmed else _doubt(evidence, lost)
    if doubt:
        return Judgement("doubt", lost=lost, reason=doubt)
    return Judgement("shrink" if found.held else "empty", found.held, lost)


def _doubt(evidence: Evidence, lost: Sequence[tuple[int, int]]) -> str:
    """Why what is gone may not have been pruned; empty: it was."""
    broken_at = evidence.broken_at
    is_before = broken_at is not None and lost[0][0] < broken_at
    if is_before and (evidence.first is None or evidence.first >= (broken_at or 0)):
        return (
            f"brokers list nothing any more of what was registered up to offset {broken_at}, as if the store "
            "had gone, or were another one"
        )
    if evidence.proof is None:
        return "nothing that was registered in its store before is there any more"
    # A prune takes the oldest content, so what is lost must lie before what is left.
    if lost[-1][1] > evidence.proof.begin:
        return (
            f"the journal ends at {evidence.proof.end} by now, before bytes that were registered: was it recreated, "
            "or is its store another one?"
        )
    return ""
