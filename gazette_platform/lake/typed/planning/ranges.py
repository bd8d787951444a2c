"""What a run of a typed table reads: of each journal a range of bytes, split into tasks. Pure.

A range begins where the state says, or, of a journal that is new to the table, with the oldest byte that is still
held. It ends, and is split, only where a message ends:

- where a fragment begins or ends: brokers close fragments between appends, and an append holds whole messages;
- at the write head, for the same reason. But who writes bytes rather than messages may append half of one. So the
  *live tail*, which no store has yet, ends after the last whole message that its reader finds before
  the head, and the rest is left to the next run (`Task.is_soft`). What ends within a message at the end of a
  stored fragment ends so for ever: that is a bad record, as it is to all other engines.

Each byte has one holder, however fragments overlap (`client.read.extents`). Bytes that no broker or store holds are a *hole*: the
range ends before it, and the plan reports it. A run passes over it only if a person gives it up.

An offset is of one journal (`protocol.offsets`). If another one has its name now, nothing of that is read until a person
says where to begin; `decided` keeps that in the state, so that it does not pass when the new journal has grown.

Who is served when there is more than a run may read: in rounds, one task of each journal in each round, those first
whose next content was stored first. So one journal with years to catch up on keeps no other one from being up to
date, unless a run has not even one task for each; then those left out are the oldest next time.

A *backfill* makes rows of former ranges again and leaves the state as it is. See `plan_backfill`.

Long because runs and backfills share who holds which bytes, and how these are cut into tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import OffsetJump, ValidationError
from gazette_platform.lake.typed.planning.state import JournalState
from gazette_platform.protocol import DOUBTED, is_another, learned
from gazette_platform.protocol.offsets import merge_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_platform.client import FragmentListing
    from gazette_platform.client.read.extents import Extent, JournalSnapshot
    from gazette_platform.lake.typed.planning.state import TypedState
    from gazette_platform.protocol.offsets import Range


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a run reads. All are passed by at most one fragment, which cannot be split."""

    run_bytes: int = 4 << 30
    """Uncompressed, of all journals together. The run takes tasks until it has as much."""
    task_bytes: int = 128 << 20
    """Uncompressed. Smaller fragments are read together, up to that; a larger one is a task of its own."""
    tasks_max: int = 4096

    def __post_init__(self) -> None:
        for name in ("run_bytes", "task_bytes", "tasks_max"):
            if getattr(self, name) < 1:
                raise ValidationError(f"must be at least 1 (got {getattr(self, name)})", path=name)


_LIMITS: Final = Limits()


@final
@dataclass(frozen=True, slots=True)
class Task:
    """Extents of one journal that one reader reads, one after the other."""

    extents: tuple[Extent, ...]
    is_soft: bool = False
    """Whether it ends with the live tail, or within a fragment that was stored meanwhile. Then the summary of the
    task says where: after the last whole message that ends before `end`, or, if there is none, after the first one,
    however long. Only the last task of a range is."""

    @property
    def begin(self) -> int:
        """Offset of its first byte."""
        return self.extents[0].begin

    @property
    def end(self) -> int:
        """Offset after its last one."""
        return self.extents[-1].end


@final
@dataclass(frozen=True, slots=True)
class JournalRange:
    """What a run reads of a journal: tasks that follow each other without a gap."""

    journal: str
    tasks: tuple[Task, ...]
    passed: tuple[Range, ...] = ()
    """Holes before it that a person gave up: the run begins with `JournalState.passing` these."""
    created: int = 0
    """Which journal it is."""

    @property
    def begin(self) -> int:
        """Offset of its first byte."""
        return self.tasks[0].begin

    @property
    def end(self) -> int:
        """Offset after its last one."""
        return self.tasks[-1].end


class HoleKind(StrEnum):
    """Why content cannot be read."""

    PRUNED = "pruned"
    """It was removed before it was read: these messages will never be rows."""
    MISSING = "missing"
    """It is missing, and there is more after it: it may be on its way to its store, or lost."""
    OPEN_PRUNED = "open transaction pruned"
    """A transaction that is open begins in it. Its journal is read on; should it be committed, the run fails, until a person
    gives the transaction up."""
    MADE_AGAIN = "made again"
    """The journal is not the one that was read: it was deleted and made again, or it ends before what was read of it.
    `Hole.begin` is where it ends now, and `Hole.end` how far the former one was read."""


@final
@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [begin, end) of a journal that a table needs, and that no broker or store holds."""

    journal: str
    begin: int
    end: int
    kind: HoleKind
    behind_at: int | None = None
    """Unix seconds at which what follows was stored. Brokers have readers wait six hours for what is missing."""


@final
@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run reads, and what it cannot."""

    ranges: tuple[JournalRange, ...] = ()
    """By name of journal; those without anything to read are left out."""
    holes: tuple[Hole, ...] = ()
    """Of all journals, for people: journals stop before those that are not open transactions."""
    vanished: tuple[str, ...] = ()
    """Journals that the state knows and that no longer exist. Their rows and state are kept."""
    left_bytes: int = 0
    """What could be read and is left to the next run."""


@final
@dataclass(slots=True)
class _Reach:
    """What of a journal can be read from an offset on, up to the first hole."""

    extents: list[Extent] = field(default_factory=list)
    passed: list[Range] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)


def plan_run(
    state: TypedState,
    journals: Iterable[JournalSnapshot],
    limits: Limits = _LIMITS,
    *,
    given_up: Mapping[str, int] | None = None,
) -> RunPlan:
    """What the next run reads.

    Args:
        state: of the table.
        journals: all there are.
        given_up: by journal, an offset up to which a person has given up missing bytes.

    Returns: the same for the same arguments. An empty plan has nothing to do.
    """
    now = {each.name: each for each in journals}
    reaches = {
        name: _reach_of(each, state.journals.get(name), (given_up or {}).get(name, 0))
        for name, each in sorted(now.items())
    }
    chosen = _served(
        {
            name: _tasks(reach.extents, limits.task_bytes, is_settled=False)
            for name, reach in reaches.items()
        },
        limits,
    )
    left = sum(each.end - each.begin for reach in reaches.values() for each in reach.extents)
    left -= sum(task.end - task.begin for tasks in chosen.values() for task in tasks)
    return RunPlan(
        ranges=tuple(
            JournalRange(name, tuple(tasks), tuple(reaches[name].passed), now[name].created)
            for name, tasks in sorted(chosen.items())
        ),
        holes=tuple(hole for reach in reaches.values() for hole in reach.holes),
        vanished=tuple(sorted(state.journals.keys() - now.keys())),
        left_bytes=left,
    )


def without_pruned(
    state: TypedState, journals: Iterable[JournalSnapshot], given_up: Mapping[str, int]
) -> TypedState:
    """The state without open transactions that begin in what was pruned, and that a person has given up with it.

    Args:
        state, journals, given_up: as of `plan_run`, which is to be given what this returns.
    """
    changed = {}
    for each in journals:
        one = state.journals.get(each.name)
        if one is None or one.open_begin is None:
            continue
        if one.open_begin < each.begin <= given_up.get(each.name, 0):
            changed[each.name] = one.giving_up(each.begin)
    return state.with_journals(changed)


def decided(
    state: TypedState, journals: Iterable[JournalSnapshot], begin_anew: Mapping[str, int]
) -> TypedState:
    """Return the state that says of each journal whether it is the one that was read.

    What no state noted before is noted now. A journal that is shorter than it was is doubted from then on.

    Args:
        state, journals: as of `plan_run`, which is to be given what this returns.
        begin_anew: by journal, where a person has the one of now be read from. Those that are the ones that were read
            stay as they are.

    Raises: ValidationError: such a place is behind the journal's head.
    """
    changed = {}
    for each in journals:
        one = state.journals.get(each.name)
        if one is None:
            continue
        if not _is_another(each, one):
            changed[each.name] = replace(one, created=learned(one.created, each.created))
        elif each.name in begin_anew:
            # What was pruned cannot be read; without this the journal would stop at a hole at once.
            offset = max(begin_anew[each.name], each.begin)
            if offset > each.head:
                raise ValidationError(f"{offset} is behind its head, {each.head}", path=each.name)
            changed[each.name] = one.beginning_anew(offset, each.created)
        elif each.head < one.offset and not is_another(one.created, each.created):
            # It may grow beyond the old offset by the next run; the doubt must outlive that, or two
            # journals would be read as one.
            changed[each.name] = replace(one, created=DOUBTED)
    return state.with_journals(changed)


def _is_another(journal: JournalSnapshot, state: JournalState) -> bool:
    # Heads never fall, except when a journal is recreated or its brokers have lost content.
    return is_another(state.created, journal.created) or journal.head < state.offset


def _reach_of(journal: JournalSnapshot, state: JournalState | None, given_up: int) -> _Reach:
    # A new journal starts with the oldest byte left: what was pruned before the table knew it is
    # not a loss.
    begin = journal.begin if state is None else state.offset
    if state is not None and _is_another(journal, state):
        hole = Hole(journal.name, journal.head, begin, HoleKind.MADE_AGAIN)
        return _Reach(holes=[hole])
    reach = _reach(journal, begin, journal.head, given_up)
    open_begin = None if state is None else state.open_begin
    if open_begin is not None and open_begin < journal.begin:
        hole = Hole(journal.name, open_begin, journal.begin, HoleKind.OPEN_PRUNED)
        # Report it, and read on: the transaction may still be rolled back, and then nothing is
        # missing.
        reach.holes.append(hole)
    return reach


def _reach(journal: JournalSnapshot, begin: int, end: int, given_up: int = 0) -> _Reach:
    """What can be read of [begin, end) without a gap; holes before it are passed over up to `given_up`."""
    reach, at = _Reach(), begin
    for each in [*journal.between(begin, end), None]:
        low = end if each is None else each.begin
        if at < low:
            # The difference matters to people: pruned content never returns, missing content may
            # still be uploaded.
            kind = HoleKind.PRUNED if at < journal.begin else HoleKind.MISSING
            behind = (
                None if each is None or each.listing is None else each.listing.fragment.mod_time
            )
            if low > given_up:
                reach.holes.append(Hole(journal.name, at, low, kind, behind))
                break
            # One range has one offset at its end, so it cannot contain a gap.
            if reach.extents:
                break  # the next range begins with it
            reach.passed.append((at, low))
            at = low
        if each is not None:
            reach.extents.append(each)
            at = each.end
    return reach


def _tasks(extents: Sequence[Extent], task_bytes: int, *, is_settled: bool) -> list[Task]:
    """Extents as tasks: small ones together, and none after one that ends softly.

    Args:
        is_settled: whether a message is known to end with the last of them. None is soft then.
    """
    tasks: list[Task] = []
    joined: list[Extent] = []
    for each in extents:
        # Cut between extents only: brokers close fragments between appends, so a message ends
        # there.
        if joined and each.end - joined[0].begin > task_bytes:
            tasks.append(Task(tuple(joined)))
            joined = []
        if each.listing is None and each.end - each.begin > task_bytes and not is_settled:
            # Where a message ends within a tail its reader sees.
            return [*tasks, Task((each.cut(each.begin, each.begin + task_bytes),), is_soft=True)]
        joined.append(each)
    if joined:
        last = joined[-1]
        # A fragment may have been stored since the head was asked for, and continue after it.
        # A soft end needs no promise about the head: the reader stops after the last whole message.
        is_open = last.listing is None or last.end < last.listing.fragment.end
        tasks.append(Task(tuple(joined), is_soft=is_open and not is_settled))
    return tasks


def tasks_between(
    journal: JournalSnapshot, begin: int, end: int, task_bytes: int = _LIMITS.task_bytes
) -> tuple[Task, ...]:
    """Tasks for [begin, end), which were read before and end between messages.

    Raises: OffsetJump: a part of them no longer exists.
    """
    reach = _reach(journal, begin, end)
    # Never decide a transaction without its beginning: a part of it would be published as all of
    # it.
    if reach.holes:
        gone = reach.holes[0]
        raise OffsetJump(journal.name, gone.begin, gone.end)
    return tuple(_tasks(reach.extents, task_bytes, is_settled=True))


def _served(waiting: Mapping[str, Sequence[Task]], limits: Limits) -> dict[str, list[Task]]:
    """Which tasks of each journal are done, its first ones, in rounds."""
    order = sorted(
        (name for name, tasks in waiting.items() if tasks), key=lambda n: _age(waiting, n)
    )
    chosen: dict[str, list[Task]] = {}
    count = total = turn = 0
    while order:
        for name in order:
            # Checked before each task and not for each journal, so that a large journal does not
            # use up the round of others.
            if count >= limits.tasks_max or total >= limits.run_bytes:
                return chosen
            task = waiting[name][turn]
            chosen.setdefault(name, []).append(task)
            total += task.end - task.begin
            count += 1
        turn += 1
        order = [name for name in order if turn < len(waiting[name])]
    return chosen


def _age(waiting: Mapping[str, Sequence[Task]], name: str) -> tuple[float, int, str]:
    """Least for the journal whose next content was stored first; live tails come last, the longest first."""
    tasks = waiting[name]
    listing = tasks[0].extents[0].listing
    # By the store's time and not by offsets, which do not compare between journals.
    stored_at = inf if listing is None else listing.fragment.mod_time
    return stored_at, tasks[0].begin - tasks[-1].end, name


# ------------------------------------------------------------------ backfills


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRange:
    """Rows [begin, end) of a journal that are made again.

    In one commit, rows with this `_journal` and with `_begin` in [begin, end) are removed, and what is committed of
    these messages is added. So it may be done any number of times.

    Which of them are committed depends on what is before, and, of transactions, on what is behind. So it is read from
    where a state is known, and screened from there; only what begins in [begin, end) becomes rows. If a
    transaction that began before `end` is open there, `follow` is read, too, in order.
    """

    journal: str
    begin: int
    end: int
    start: JournalState
    """What is known where the tasks begin."""
    before: tuple[Task, ...]
    """Up to `begin`. No task ends softly."""
    tasks: tuple[Task, ...]
    """Of [begin, end)."""
    follow: tuple[Task, ...]
    """From `end` to where the table has come: messages behind commit, or take back, those before."""


@final
@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill reads, and what it leaves as it is."""

    ranges: tuple[BackfillRange, ...] = ()
    holes: tuple[Hole, ...] = ()
    """Of what was asked for: rows of such bytes are kept, for they could not be made again."""
    behind: tuple[tuple[str, int, int], ...] = ()
    """Journals and offsets of what was asked for that no run has read yet: that is a run's to do."""


def plan_backfill(
    states: Sequence[TypedState],
    journals: Iterable[JournalSnapshot],
    wanted: Mapping[str, Sequence[Range]],
    task_bytes: int = _LIMITS.task_bytes,
) -> BackfillPlan:
    """Plan how to make the rows of some content again. The state of the table stays as it is.

    Args:
        states: the table's now, and earlier ones, of snapshots that still exist: each range is screened from the
            newest one that lies before it. With none, all that is still stored before it has to be read.
        journals: those of `wanted`, with all of their fragments.
        wanted: by journal, offsets that begin and end where messages do, such as `held_ranges` and `whole_ranges` give.
        task_bytes: as of `Limits`.

    Raises: ValidationError: there is no state; a range is empty, or its journal unknown.
    """
    if not states:
        raise ValidationError("a table that was never written to has nothing to make again")
    now = {each.name: each for each in journals}
    found: list[BackfillRange] = []
    holes: list[Hole] = []
    behind: list[tuple[str, int, int]] = []
    for name, ranges in sorted(wanted.items()):
        if name not in now:
            raise ValidationError(
                f"there is no journal {name}, or none of the table", path="journal"
            )
        known = _of_one_journal(
            [state.journals[name] for state in states if name in state.journals]
        )
        reached = max((one.offset for one in known), default=0)
        for begin, end in ranges:
            if begin >= end:
                raise ValidationError(
                    f"offsets {begin} to {end} of {name} hold nothing", path="range"
                )
        for begin, end in merge_ranges(ranges):
            if end > reached:
                behind.append((name, max(begin, reached), end))
            # Rows of two journals share these offsets. Replacing by offset would remove rows of the
            # former one, which exist nowhere else.
            low, high = _shared(now[name], known), min(end, reached)
            if begin < min(low, high):
                gone = Hole(name, begin, min(low, high), HoleKind.MADE_AGAIN)
                holes.append(gone)
            pieces, missing = _pieces(now[name], max(begin, low), high)
            holes += missing
            found += [_backfilled(now[name], piece, known, reached, task_bytes) for piece in pieces]
    return BackfillPlan(tuple(found), tuple(holes), tuple(behind))


def held_ranges(
    journal: JournalSnapshot, is_wanted: Callable[[FragmentListing], bool]
) -> tuple[Range, ...]:
    """Offsets that a backfill of a Hive partition is of: those read from fragments that are wanted. Merged.

    Bytes of fragments that overlap are of the one that reaches farther, and of no other partition.
    """
    return tuple(
        merge_ranges(
            (each.begin, each.end)
            for each in journal.extents
            if each.listing is not None and is_wanted(each.listing)
        )
    )


def whole_ranges(journal: JournalSnapshot, wanted: Iterable[Range]) -> tuple[Range, ...]:
    """Ranges made wider, to begin and end where messages do: with fragments, or all of the live tail. Merged.

    Args:
        wanted: any offsets.
    """
    found: list[Range] = []
    for begin, end in merge_ranges(wanted):
        cut = [each for each in journal.extents if each.begin < end and begin < each.end]
        found.append((
            min([begin, *(each.begin for each in cut[:1])]),
            max([end, *(each.end for each in cut[-1:])]),
        ))  # fmt: skip
    return tuple(merge_ranges(found))


def _of_one_journal(states: Sequence[JournalState]) -> list[JournalState]:
    """Those of the journal that the first one is of: offsets of a former one of that name say nothing about it."""
    return [
        one
        for one in states
        if one.shared_to == states[0].shared_to and not is_another(one.created, states[0].created)
    ]


def _shared(journal: JournalSnapshot, known: Sequence[JournalState]) -> int:
    """Up to where rows of a former journal have the same offsets, or all rows are of one; a message begins there."""
    if not known:
        return 0
    if _is_another(journal, known[0]):
        return known[0].offset
    shared = known[0].shared_to
    begins = (each.begin for each in journal.extents if each.begin >= shared)
    return min(begins, default=known[0].offset) if shared else 0


def _pieces(journal: JournalSnapshot, begin: int, end: int) -> tuple[list[Range], list[Hole]]:
    """Parts of [begin, end) that exist, and missing ones."""
    pieces: list[Range] = []
    holes: list[Hole] = []
    while begin < end:
        reach = _reach(journal, begin, end)
        if reach.extents:
            pieces.append((begin, reach.extents[-1].end))
        if not reach.holes:
            break
        holes.append(reach.holes[0])
        begin = reach.holes[0].end
    return pieces, holes


def _backfilled(
    journal: JournalSnapshot,
    piece: Range,
    known: Sequence[JournalState],
    reached: int,
    task_bytes: int,
) -> BackfillRange:
    begin, end = piece
    # A state inside the range would take messages of it for duplicates of themselves.
    lower = [one for one in known if one.offset <= begin]
    start = max(lower, key=lambda one: one.offset, default=JournalState())
    # After the last hole before it: what that state knows holds after a hole, too.
    read_from, last_end = start.offset, start.offset
    for each in journal.between(start.offset, end):
        # Messages between a hole and the range may be the first of their producers, so screening
        # must begin after the hole.
        if each.begin > last_end and each.begin <= begin:
            read_from = each.begin
        last_end = each.end
    # Counts start at zero: they are compared with what this backfill writes.
    start = JournalState(offset=read_from, producers=start.producers)
    before, tasks, follow = (
        tuple(_tasks(_reach(journal, *span).extents, task_bytes, is_settled=True))
        for span in ((read_from, begin), (begin, end), (end, reached))
    )
    return BackfillRange(
        journal=journal.name,
        begin=begin,
        end=end,
        start=start,
        before=before,
        tasks=tasks,
        follow=follow,
    )
