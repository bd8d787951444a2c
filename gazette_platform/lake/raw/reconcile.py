"""What ought to be in a Hive partition, less what its account holds: the one comparison of raw tables, decided purely.

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
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, final

from gazette_platform.lake.spec.layout import is_aside
from gazette_platform.protocol.offsets import subtract_ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.raw.planning import JournalCursor, Page
    from gazette_platform.protocol import Fragment


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
