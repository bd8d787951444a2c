"""Updates of Hive partitions by one tick: adds those that are missing, and counts new fragments into their accounts.

Reading fragments takes long, so the accountant reads first. Then, under the metastore's lock, it reads the accounts
again, leaves out what others have counted meanwhile, and adds the rest. So two registrars that meet count everything
once, and the loser has only read in vain.

A tick leaves fragments that it has no time for to the next one. It registers the first one in any case, so that each
tick makes progress; a later look counts its rows, as it does for damaged files that were restored. A count continues
where the one before ended, within one process. It restarts a few times at most, as long as the file is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import DataError, GazetteError, LakeError
from gazette_platform.hive import HivePartition
from gazette_platform.lake.raw.account_book import (
    COMMIT_MAX,
    AccountBook,
    Change,
    Entry,
    PartitionAccount,
)
from gazette_platform.lake.raw.audits.fit import (
    damage,
    is_of_spec,
    json_columns,
    misfit,
    unfit_fragment,
    unfit_mark,
    unread,
    value_scanner,
)
from gazette_platform.lake.raw.partition_state import RANGES_MAX, TRIES_MAX, PartitionState
from gazette_platform.lake.raw.reconcile import reconcile
from gazette_platform.lake.raw.tables import with_text_columns
from gazette_platform.lake.reading.fragment_content import COUNTED_BYTES_MIN
from gazette_platform.lake.spec.layout import is_aside, is_same_location
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.planning import PlannedPartition
    from gazette_platform.lake.raw.reconcile import Finding
    from gazette_platform.lake.reading.fragment_content import FragmentContent
    from gazette_platform.lake.reading.scanners import ValueReport
    from gazette_platform.lake.reading.storage import Cutover
    from gazette_platform.lake.spec.rules import UnfitFragment
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

# A file may be gone before brokers know; under a wrong root no file exists.
_LOOKED_FOR_MAX: Final = 5
# Of a tick, to count what was registered without: new fragments, and other tables, come first.
_MEND_BYTES_MAX: Final = 256 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUpdate:
    """A Hive partition that a tick changed."""

    key: str
    values: tuple[str, ...]
    location: str
    journal: str
    is_new: bool
    fragments_added: int
    rows_added: int | None
    state: PartitionState
    """Totals after the tick."""


@final
@dataclass(slots=True)
class Accounted:
    """What was done with planned Hive partitions."""

    done: set[tuple[str, int, int]] = field(default_factory=set)
    """Journal, begin and end of the fragments that the accounts hold now."""
    accounts: list[PartitionAccount] = field(default_factory=list)
    """Of all planned Hive partitions that were looked at, changed or not."""
    updates: list[PartitionUpdate] = field(default_factory=list)
    errors: dict[str, GazetteError] = field(default_factory=dict)
    """By journal, the first one; its fragments are tried again."""
    misfits: list[Finding] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    is_complete: bool = True
    """False if time or the limit of bytes was up before all was counted."""


@final
@dataclass(frozen=True, slots=True)
class _Counted:
    rows: int | None
    stored_bytes: int | None
    stamp: str = ""
    """Of its file, if the rows are not known."""
    is_resumed: bool = False
    """Whether an earlier tick had begun with it."""
    breaking: frozenset[str] = frozenset()
    """Columns with a value at which Trino would fail."""
    unfit: UnfitFragment | None = None
    """What of it does not fit, if the rows are known."""


_Counts = dict["Fragment", _Counted]


@final
class Accountant:
    """Counts the fragments of one tick's plan for one table.

    Args:
        content: reads fragments.
        cutover: brings those that lie in another store than the rest of their Hive partition.
        session: the metastore.
        spec: the table's spec.
        table: the table as the metastore has it.
        content_bytes_max: to read at most; one larger fragment alone is allowed.
        is_over: whether the tick's time is over; what is counted by then is kept.
        created: by name, which journals there are (`protocol.offsets`).
    """

    def __init__(
        self,
        content: FragmentContent,
        cutover: Cutover,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        *,
        content_bytes_max: int,
        is_over: Callable[[], bool],
        created: Mapping[str, int],
    ) -> None:
        self._content = content
        self._cutover = cutover
        self._session = session
        self._spec = spec
        self._book = AccountBook(session, table)
        # Its values are looked at as this spec has them.
        self._owner = f"{spec.name} {spec.digest}"
        self._bytes_left = content_bytes_max
        self._has_counted = False
        self._mended_bytes = 0
        # Journals that have more than there was time or bytes for.
        self._full: set[str] = set()
        self._is_over = is_over
        self._created = created
        self.result = Accounted()

    def run(self, planned: Sequence[PlannedPartition]) -> Accounted:
        """Add Hive partitions that are new, and bring the accounts of all up to date. Idempotent.

        Raises: GazetteError: a server cannot be reached; what was written so far is found next time.
        """
        for start in range(0, len(planned), COMMIT_MAX):
            if start and self._is_over():
                self.result.is_complete = False
                break
            self._run(planned[start : start + COMMIT_MAX])
        return self.result

    def _run(self, planned: Sequence[PlannedPartition]) -> None:
        # This read, without the lock, only decides what is worth counting. `_commit` reads again
        # under the lock, and only that read counts.
        table = self._book.refresh()
        found = self._book.at(p.values for p in planned)
        planned = [p for p in planned if p.values in found or not self._is_all_aside(p)]
        good = [p for p in planned if self._is_good(p, found.get(p.values))]
        missing = [p for p in good if p.values not in found]
        if missing:
            # New ones first become visible to engines; counting rows may take a while.
            # Engines list directories themselves, so they see the rows before the accounts do. A
            # crash here leaves an empty account, which the next tick fills.
            self._session.add_partitions(table, [_empty(p) for p in missing])
        work: list[tuple[PlannedPartition, PartitionState]] = []
        for planned_one in good:
            known = found.get(planned_one.values)
            # The metastore's location wins: after a change of stores the same directory exists in
            # two, and engines read only this one.
            one = planned_one if known is None else replace(planned_one, location=known.location)
            work.append((one, known.state if known is not None else PartitionState()))
        batch: list[tuple[PlannedPartition, _Counts]] = []
        for (one, state), counts in zip(work, self._count(work), strict=True):
            if counts:
                batch.append((one, counts))
            else:
                self._settle(one, state)
        self._commit(batch)

    # ------------------------------------------------------------------- reading

    def _is_all_aside(self, planned: PlannedPartition) -> bool:
        """Whether there is nothing to make a Hive partition of; what is aside is not awaited."""
        if not all(map(is_aside, planned.fragments)):
            return False
        self.result.done |= {(f.journal, f.begin, f.end) for f in planned.fragments}
        return True

    def _is_good(self, planned: PlannedPartition, found: Entry | None) -> bool:
        """Whether fragments may be added to it; if not, the result has the reason."""
        try:
            if found is None:
                self._require_some(planned)
                return True
            self._require_journal(planned, found.state)
            _require_room(self._spec.name, planned, found.state)
        except LakeError as err:
            self.result.errors.setdefault(planned.journal, err)
            return False
        return True

    def _require_some(self, planned: PlannedPartition) -> None:
        """Refuse a wrong root, which would make Hive partitions that are empty for ever.

        Raises: LakeError: none of its first fragments exists; names the first one.
        """
        error: LakeError | None = None
        # Several files, since a prune may have removed the first ones between the listing and this
        # look.
        there = [f for f in planned.fragments if not is_aside(f)]
        for fragment in there[:_LOOKED_FOR_MAX]:
            try:
                self._content.require_stored(fragment, planned.location)
            except LakeError as err:
                error = error or err
            else:
                return
        if error is not None:
            raise error

    def _count(self, work: Sequence[tuple[PlannedPartition, PartitionState]]) -> list[_Counts]:
        """Read those of the fragments of each Hive partition that its state does not hold.

        Journals take turns, so that one with a backlog does not use up all time and bytes.
        Each goes on in the order of its offsets, so that what it had no time for leaves no hole.
        """
        counts: list[_Counts] = [{} for _ in work]
        queues: dict[str, list[tuple[Fragment, int]]] = {}
        for index, (planned, state) in enumerate(work):
            queues.setdefault(planned.journal, []).extend(
                (fragment, index) for fragment in reconcile(state, planned.fragments).missing
            )
        for queue in queues.values():
            queue.sort(key=lambda item: (item[0].begin, item[0].end))
        for turn in zip_longest(*queues.values()):
            for fragment, index in filter(None, turn):
                planned, _ = work[index]
                # Skip the rest of this journal as well: counting beyond a gap would leave holes, of
                # which the cursor keeps only 32.
                if planned.journal in self._full:
                    continue
                # One at least, so that a tick that was late from the start gets on, too.
                if self._has_counted and (
                    self._is_over() or fragment.content_length > self._bytes_left
                ):
                    self.result.is_complete = False
                    self._full.add(planned.journal)
                    continue
                counted = self._count_one(planned, fragment)
                if counted is not None:
                    counts[index][fragment] = counted
        for index, (planned, state) in enumerate(work):
            counts[index] |= self._mend(planned, state)
        return counts

    def _mend(self, planned: PlannedPartition, state: PartitionState) -> _Counts:
        """Count those of the fragments whose rows are not known, as far as there is time for that, too.

        And those with records that did not fit a former spec, or a file that was replaced since.
        """
        found: _Counts = {}
        # Tried where there was time for little, a large one would be given up for no fault of its own.
        has_time = not self._has_counted or self._mended_bytes > 0
        for fragment in reconcile(state, planned.fragments).again:
            noted = state.uncounted_at(fragment.begin, fragment.end)
            unfit = state.unfit_at(fragment.begin, fragment.end)
            stamp = self._content.stamp(fragment, planned.location)
            # The same spec and the same file give the same verdict: do not read it again.
            if unfit is not None and unfit.mark == unfit_mark(self._spec, stamp):
                continue
            bytes_after = self._mended_bytes + fragment.content_length
            is_full = self._mended_bytes > 0 and bytes_after > _MEND_BYTES_MAX
            if self._is_over() or is_full:
                break
            if not has_time and fragment.content_length > COUNTED_BYTES_MIN:
                continue
            goes_on = self._content.is_unfinished(fragment, planned.location, self._owner)
            is_tried = noted is not None and noted.stamp == stamp.text
            # Without this limit, one damaged file of a gigabyte would use up every tick. A restored
            # file has another stamp, and gets new tries.
            if noted is not None and noted.tries >= TRIES_MAX and is_tried and not goes_on:
                continue
            self._mended_bytes = bytes_after
            told = len(self.result.misfits)
            counted = self._count_one(planned, fragment, is_kept=True)
            if counted is not None:
                if counted.rows is not None or not counted.is_resumed:
                    found[fragment] = counted  # what only goes on is nothing to note
                if noted is None or (counted.rows is None and counted.stamp == noted.stamp):
                    del self.result.misfits[told:]  # it was reported when it was registered
        return found

    def _count_one(
        self, planned: PlannedPartition, fragment: Fragment, *, is_kept: bool = False
    ) -> _Counted | None:
        """Read a fragment; None: it cannot be now, and the result has the reason if it is not time.

        Args:
            is_kept: whether that there was no time is of interest, too; it is of the first one in any case.
        """
        result = self.result
        is_kept |= not self._has_counted
        self._has_counted = True
        is_large = fragment.content_length > COUNTED_BYTES_MIN
        self._bytes_left -= fragment.content_length
        wanted = json_columns(self._spec) - result.columns
        try:
            # Copy before counting: engines read one location per Hive partition, so rows in another
            # store would be counted and never seen.
            self._cutover.bring(self._spec.name, planned.key, fragment, planned.location)
            counted = self._content.count(
                fragment,
                planned.location,
                columns=wanted,
                scanner=value_scanner(self._spec),
                is_over=self._is_over,
                owner=self._owner if is_kept and is_large else "",
            )
        except DataError as err:
            # Its Hive partition is registered all the same: the other files are good, and the
            # engines, too, name the damaged one.
            result.misfits.append(damage(self._spec, fragment, planned.location, err))
            stamp = self._content.stamp(fragment, planned.location)
            return _Counted(None, stamp.stored_bytes, stamp.text)
        except GazetteError as err:
            result.errors.setdefault(planned.journal, err)
            return None
        # Time was up within the file. Nothing is noted, so the fragment stays awaited, and a later
        # tick counts it.
        if counted.rows is None and not is_kept:
            result.is_complete = False
            self._full.add(planned.journal)
            return None
        result.columns |= counted.columns
        found = misfit(self._spec, fragment, planned.location, counted)
        result.misfits += [found] if found is not None else []
        breaking = self._breaking(counted.values)
        stamp_of = partial(self._content.stamp, fragment, planned.location)
        if counted.rows is None:
            result.misfits.append(unread(self._spec, fragment))
            stamp, is_resumed = stamp_of(), counted.is_resumed
            return _Counted(None, stamp.stored_bytes, stamp.text, is_resumed, breaking)
        unfit = unfit_fragment(self._spec, fragment, counted, stamp_of)
        return _Counted(counted.rows, counted.stored_bytes, breaking=breaking, unfit=unfit)

    def _breaking(self, values: ValueReport | None) -> frozenset[str]:
        """Columns at whose values Trino would fail."""
        if values is None:
            return frozenset()
        is_partitioned = bool(self._book.table.partition_columns)
        return values.breaking if is_partitioned else values.breaking_unpartitioned

    # ------------------------------------------------------------------- writing

    def _commit(self, batch: Sequence[tuple[PlannedPartition, _Counts]]) -> None:
        """Add what was counted to the accounts as they are now."""
        if not batch:
            return
        # Two registrars may have counted the same fragments. The lock orders them, and the second
        # one finds the bytes covered.
        with self._book.changing() as change:
            # Mark first: a crash after the accounts and before the mark would leave a table at
            # which Trino fails, and no tick would look again.
            self._mark_as_text(batch, change)
            found = self._book.at(planned.values for planned, _ in batch)
            changed: list[tuple[Entry, PartitionState]] = []
            settled: list[tuple[PlannedPartition, PartitionState, PartitionUpdate | None]] = []
            for planned, counts in batch:
                now = found.get(planned.values)
                if now is None:
                    continue  # dropped meanwhile: its fragments stay awaited
                if not is_same_location(now.location, planned.location):
                    continue  # made meanwhile, in another store: they are to be brought there
                # All that is decided below rests on this read and not on the first one: minutes may
                # have passed, or a repair may have moved files.
                try:
                    self._require_journal(planned, now.state)
                    _require_room(self._spec.name, planned, now.state)
                except LakeError as err:
                    self.result.errors.setdefault(planned.journal, err)
                    continue
                created = self._created.get(planned.journal, 0)
                update = _update(self._spec, planned, counts, now.state, created)
                settled.append((planned, update.state if update is not None else now.state, update))
                if update is not None:
                    changed.append((now, update.state))
            change.put(changed)
        # Only after the write, outside the lock: what is in `done` moves the cursor, so it must be
        # in the accounts already.
        for planned, state, update in settled:
            self._settle(planned, state)
            # That rows could not be counted again is noted, but not reported.
            if update is not None and (update.fragments_added or update.rows_added):
                self.result.updates.append(update)

    def _mark_as_text(
        self, batch: Sequence[tuple[PlannedPartition, _Counts]], change: Change
    ) -> None:
        """Let Trino read columns as text that it would fail at, before their fragments count as registered."""
        breaking = {n for _, counts in batch for c in counts.values() for n in c.breaking}
        marked = with_text_columns(self._spec, self._book.table, breaking) if breaking else None
        if marked is not None:
            change.alter(marked)
            self.result.is_complete = False

    def _require_journal(self, planned: PlannedPartition, state: PartitionState) -> None:
        # Ranges are offsets of one journal. With two journals in one account, equal offsets would
        # hide fragments.
        if state.journal not in ("", planned.journal):
            raise LakeError(
                f"Hive partition {planned.key} of {self._spec.name} holds journal {state.journal} already, so "
                f"{planned.journal} may not write there; give them different keys"
            )
        created = self._created.get(planned.journal, 0)
        # A recreated journal begins at offset 0 again, so its bytes would look as if they were
        # counted.
        if state.ranges and is_another(state.created, created):
            raise LakeError(
                f"Hive partition {planned.key} of {self._spec.name} holds {planned.journal} as it was before it was "
                "deleted and made again, so nothing is added to it: drop it (which deletes no file)"
            )

    def _settle(self, planned: PlannedPartition, state: PartitionState) -> None:
        settled = {*planned.fragments} - {*reconcile(state, planned.fragments).missing}
        self.result.done |= {(f.journal, f.begin, f.end) for f in settled}
        # An empty account is not worth an event; the partition may have been made by
        # this tick, which then ran out of time.
        if state.ranges or state.aside:
            self.result.accounts.append(
                PartitionAccount(
                    key=planned.key,
                    values=planned.values,
                    location=planned.location,
                    journal=planned.journal,
                    state=state,
                )
            )


def _empty(planned: PlannedPartition) -> HivePartition:
    return HivePartition(
        values=planned.values,
        location=planned.location,
        parameters=PartitionState().to_parameters(),
    )


def _require_room(table: str, planned: PlannedPartition, state: PartitionState) -> None:
    if len(state.ranges) >= RANGES_MAX:
        raise LakeError(
            f"Hive partition {planned.key} of {table} has {len(state.ranges)} holes, and its accounts have "
            "no room for more, so nothing is added to it: see why its fragments are missing "
            "(`gazctl lake check`)"
        )


def _update(
    spec: TableSpec,
    planned: PlannedPartition,
    counts: _Counts,
    before: PartitionState,
    created: int,
) -> PartitionUpdate | None:
    """`before` with those of `counts` that it does not hold; None if it holds all."""
    state = before
    rows_added: int | None = 0
    for fragment, counted in counts.items():
        # Another registrar, or an earlier tick that died before its cursor was stored, has added
        # it. Adding it again would double its rows.
        if state.settles(fragment.begin, fragment.end):
            if counted.rows is None:
                state = state.tried(fragment.begin, fragment.end, counted.stamp)
                continue
            is_uncounted = state.uncounted_at(fragment.begin, fragment.end) is not None
            noted = state.unfit_at(fragment.begin, fragment.end)
            if noted is not None and not is_of_spec(spec, noted):
                # Of fragments that are not noted, only what the former spec says is known.
                state = replace(state, unfit_more=0)
            if is_uncounted or noted is not None:
                state = state.with_unfit(fragment.begin, fragment.end, counted.unfit)
            if is_uncounted:
                state = state.counted(fragment.begin, fragment.end, counted.rows)
                rows_added = None if rows_added is None else rows_added + counted.rows
            continue
        rows_added = (
            None if counted.rows is None or rows_added is None else rows_added + counted.rows
        )
        state = state.adding(
            fragment.journal,
            fragment.begin,
            fragment.end,
            rows=counted.rows,
            stored_bytes=counted.stored_bytes,
            stamp=counted.stamp,
            created=created,
            unfit=counted.unfit,
        )
    if state == before:
        return None
    return PartitionUpdate(
        key=planned.key,
        values=planned.values,
        location=planned.location,
        journal=planned.journal,
        is_new=before == PartitionState(),
        fragments_added=state.fragments - before.fragments,
        rows_added=rows_added,
        state=state,
    )
