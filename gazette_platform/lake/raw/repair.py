"""Mending raw tables: covered files are moved out of them, and tables are registered up to given offsets now.

Covered files go to ``<store root>/.covered/<journal>/…``. A file is moved only if brokers do not list it, the exact view leaves it out, and files that brokers
list, that are registered and that exist right now hold the same bytes. All of that is looked at
again, and the bytes are compared, immediately before. Nothing is deleted, so a move can be undone by
hand. Outside of a journal's folder brokers do not list a file again, and engines skip its name.

In a folder of this machine that is a rename. Object stores have none: there a file is copied, and
removed when the copy exists. If that ends in the middle the file is where it was, and a copy is left
over; the accounts, which came first, name the file until it is gone, so that audits find it again. What
this process may not write is left as it is: the check stays red and the exact view right.

`catch_up` registers a table by as many ticks as it takes.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from gazette_platform.errors import DataError, LakeError, StatusError, StoreError, TransportError
from gazette_platform.hive import HivePartition
from gazette_platform.lake.raw.account_book import AccountBook
from gazette_platform.lake.raw.listing import (
    HOLES_LOOKED_MAX,
    JournalFiles,
    journal_files,
    listed_in,
)
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.planning import JournalCursor
from gazette_platform.lake.raw.reconcile import Span, chain, reconcile
from gazette_platform.lake.reading.fragment_content import COUNTED_BYTES_MIN, FragmentContent
from gazette_platform.lake.reading.storage import Storage
from gazette_platform.lake.spec.layout import directory_of
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.reconcile import Finding
    from gazette_platform.lake.raw.registration import Registrar
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import Fragment, JournalSpec


COVERED = ".covered"
_LISTED_MAX = 1000
# A bound for one tick: a journal with thousands of overlaps is repaired over many.
# Of as many fragments, in one journal.
_ROUNDS_MAX = 4
_PAGES_MAX = 32


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RepairLimits:
    """Bounds of the repair of one table in one tick; the rest is left for the next."""

    files_max: int = 50
    content_bytes_max: int = 256 << 20
    """Decompressed bytes to compare; one larger file alone is allowed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFile:
    """A file that was moved, and what is left in its Hive partition."""

    finding: Finding
    key: str
    """Of the Hive partition."""
    target: str
    rows: int
    state: PartitionState


@final
@dataclass(slots=True)
class Repair:
    """What one repair did."""

    moved: list[MovedFile] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    """By path: why a file is not moved now; it is looked at again."""
    refused: dict[str, str] = field(default_factory=dict)
    """By path: why a file is not to be moved at all."""
    content_bytes: int = 0


class _NoTime(Exception):
    """Comparing files was given up."""


def _never() -> bool:
    return False


@final
class Repairer:
    """Moves covered files of raw tables. Holds no state and no connections.

    Args:
        source: lists fragments.
        roots: where fragment stores lie.
        limits: bounds of one call.
    """

    def __init__(
        self, source: FragmentSource, roots: StoreRoots, limits: RepairLimits | None = None
    ) -> None:
        self._source = source
        self._roots = roots
        self._limits = limits or RepairLimits()
        self._content = FragmentContent(source)
        self._storage = Storage(roots)

    def repair(
        self,
        session: MetastoreSession,
        table: HiveTable,
        findings: Sequence[Finding],
        cursors: Mapping[str, JournalCursor],
        *,
        is_over: Callable[[], bool] = _never,
    ) -> Repair:
        """Move the files that `findings` name, as far as they are covered. Idempotent.

        Args:
            session: the metastore, for the accounts of the Hive partitions.
            table: the table.
            findings: of overlaps; each is checked again.
            cursors: by journal, how far it is registered.
            is_over: whether time is up; what is left is looked at again.

        Raises: GazetteError: the metastore cannot be reached.
        """
        # An audit made the findings minutes ago. Files may have moved and brokers may list others,
        # so each is judged again here.
        repair = Repair()
        book = AccountBook(session, table)
        targets = [f for f in findings if f.excluded]
        for journal in dict.fromkeys(f.journal for f in targets):
            if is_over():
                break
            mine = [f for f in targets if f.journal == journal]
            try:
                cursor = cursors.get(journal, JournalCursor())
                self._repair_journal(book, mine, cursor, repair, is_over)
            except (StatusError, TransportError) as err:
                # Brokers cannot list it right now; what was moved before is reported all the same.
                repair.waiting |= {f.path: f"it is not moved now: {err}" for f in mine}
        return repair

    def _repair_journal(
        self,
        book: AccountBook,
        targets: Sequence[Finding],
        cursor: JournalCursor,
        repair: Repair,
        is_over: Callable[[], bool],
    ) -> None:
        # In the order of offsets, so that one page of listings serves several findings.
        left = sorted(targets, key=lambda f: f.since)
        for _ in range(_ROUNDS_MAX):
            if not left:
                return
            now, reach = self._look(left, cursor)
            # What begins after the last fragment listed is for the next round.
            within = [f for f in left if reach is None or f.end <= reach] or left[:1]
            left = [f for f in left if f not in within]
            if not self._repair_within(book, within, now, repair, is_over):
                return

    def _look(self, targets: Sequence[Finding], cursor: JournalCursor) -> tuple[_Now, int | None]:
        """Return files and listings around `targets`, and up to which offset; None: to the end."""
        journal = targets[0].journal
        listed = self._source.fragments(journal, targets[0].since, _LISTED_MAX)
        # Beyond a full page nothing is known, and what is not known must not be taken for not
        # listed.
        reach = listed[-1].end if len(listed) >= _LISTED_MAX else None
        end = max(f.end for f in targets)
        # A fragment in a spool covers nothing: it may be lost with its broker.
        listed = [f for f in listed if f.backing_store]
        stores = dict.fromkeys(f.backing_store for f in listed)
        # A file lies where the finding says, in one of the stores.
        places = [(store, f.directory) for f in targets for store in stores]
        places += [(f.backing_store, directory_of(f)) for f in listed if f.begin < end]
        now = _Now(
            journal_files(self._storage, journal, places),
            {(directory_of(f), f.content_name): f for f in listed},
            cursor,
        )
        return now, reach

    def _repair_within(
        self,
        book: AccountBook,
        targets: Sequence[Finding],
        now: _Now,
        repair: Repair,
        is_over: Callable[[], bool],
    ) -> bool:
        """Returns: whether there is time for more."""
        for target in targets:
            if is_over() or len(repair.moved) >= self._limits.files_max:
                return False
            place = (target.directory, target.excluded)
            if place not in now.files.fragments:
                continue  # gone, or not on this machine
            # Brokers would answer reads of these offsets with an error once the file is away.
            if place in now.listed:
                repair.waiting[target.path] = (
                    "brokers serve reads from this file, so it is left where it is"
                )
                continue
            # Equal ranges are not enough: the covering files must be listed, registered and
            # present, or queries would lose the rows.
            covers = now.covers(target)
            if not covers:
                continue
            cost = sum(f.content_length for f in covers) + target.end - target.begin
            budget = self._limits.content_bytes_max
            if repair.content_bytes and repair.content_bytes + cost > budget:
                return False
            # The first file may be larger than the budget; else a large file would never be
            # repaired.
            is_first = not repair.content_bytes
            repair.content_bytes += cost
            fragment = _fragment(target, now.files.stores[place])
            # Compare before taking the lock: reading gigabytes would outlast its lease.
            rows = self._rows_of_twin(fragment, target, covers, repair, is_over, is_first=is_first)
            if rows is not None:
                self._move(book, target, fragment, rows, covers, now, repair)
        return True

    def _rows_of_twin(
        self,
        fragment: Fragment,
        target: Finding,
        covers: Sequence[Fragment],
        repair: Repair,
        is_over: Callable[[], bool],
        *,
        is_first: bool,
    ) -> int | None:
        """Rows of the file, if `covers` hold the same bytes; None: `repair` has the reason."""
        files = self._storage.files(fragment.backing_store)
        try:
            # Find out before reading: without the right to write, comparing each tick would cost
            # much and do nothing.
            files.check_movable(target.path)
        except StoreError as err:
            repair.waiting[target.path] = f"it cannot be moved, because {err}"
            return None
        try:
            rows, own = self._digest([fragment], fragment, is_over)
            _, others = self._digest(covers, fragment, is_over)
        except _NoTime:
            reason = (
                "it is not moved, because comparing it with the files that cover it takes longer than a tick "
                "has: `gazctl lake repair` does"
            )
            # What had all of a repair's time is not tried at each of them.
            (repair.refused if is_first else repair.waiting)[target.path] = reason
            return None
        except DataError as err:
            repair.refused[target.path] = f"it is not moved: {err}"
            return None
        except LakeError as err:  # a file went away meanwhile
            repair.waiting[target.path] = f"it is not moved now: {err}"
            return None
        # After lost replicas, brokers may have written different bytes at the same offsets. Only a
        # person can choose.
        if own != others:
            repair.refused[target.path] = (
                "it is not moved, because it holds other bytes than the files that cover it, as "
                "after replicas were lost: compare them, and keep what is right"
            )
            return None
        return rows

    def _move(  # noqa: PLR0917
        self,
        book: AccountBook,
        target: Finding,
        fragment: Fragment,
        rows: int,
        covers: Sequence[Fragment],
        now: _Now,
        repair: Repair,
    ) -> None:
        place = (target.directory, target.excluded)
        is_local = self._storage.is_local(fragment.backing_store)
        with book.changing() as change:
            entry = book.at([target.values]).get(target.values)
            if entry is None and not is_local and book.table.partition_columns:
                # Dropped since the audit. With the next fragment its directory comes back, and with it the file, if
                # this is killed between copy and removal. Without an account to name it, no audit would look for it.
                location = self._roots.location(fragment.backing_store, target.directory)
                held = PartitionState(journal=target.journal).to_parameters()
                entry = change.add(
                    HivePartition(values=target.values, location=location, parameters=held)
                )
            before = entry.state if entry is not None else PartitionState()

            def put(state: PartitionState) -> None:
                change.put([(entry, state)] if entry is not None else [])

            # Whether the account counted this file cannot be looked up; it follows from what else the
            # account counted.
            beside = listed_in(self._source, target.journal, target.directory, before, _PAGES_MAX)
            if beside is None:
                repair.waiting[target.path] = (
                    f"it is not moved, because {target.directory} holds more fragments than are looked "
                    "through for whether its rows were counted: give the journal a path postfix"
                )
                return
            state = _without(before, fragment, rows, now, place, beside)
            # First the accounts: if this ends here, the next time finds them done. Of a store that takes its time
            # for it, and that audits do not list, they say what was begun.
            here = now.files.fragments
            left = tuple(n for n in state.moving if (place[0], n) in here and n != place[1])
            is_begun = place[1] in state.moving
            begun = left if is_local else (*left, place[1])
            state = replace(state, moving=left)
            # Accounts first: a crash before the move leaves a file too many, which the next audit
            # finds. In the other order rows would be counted that no file has.
            put(replace(state, moving=begun))
            try:
                # Within the lock: a registrar that looked between both writes would count the file
                # again.
                moved = self._put_aside(fragment.backing_store, target, covers, is_begun=is_begun)
            except (LakeError, StoreError) as err:
                # If this fails, too, the next time finds the accounts done and the file to be moved.
                with suppress(LakeError):
                    put(replace(before, moving=begun))
                repair.waiting[target.path] = f"it is not moved now: {err}"
                return
            if not is_local:
                with suppress(LakeError):  # else it is named for longer than need be
                    put(state)
        del now.files.fragments[place]
        key = book.key(target.values)
        repair.moved.append(
            MovedFile(finding=target, key=key, target=moved, rows=rows, state=state)
        )

    def _put_aside(
        self, store: str, target: Finding, covers: Sequence[Fragment], *, is_begun: bool
    ) -> str:
        """Move the file of `target` to where engines and brokers do not look. Returns: where it is.

        Args:
            is_begun: whether another repair may have copied it, and did not end.

        Raises: LakeError: one of `covers` is gone; the file stays. StoreError: the store refuses.
        """
        files = self._storage.files(store)
        hidden, number = f"{COVERED}/{target.path}", 1
        # Object stores overwrite without asking, so look first. A file set aside is the only copy
        # of its bytes.
        while files.exists(hidden):  # moved once before, and restored
            if is_begun and files.size(hidden) == files.size(target.path):
                break  # copied, by a repair that did not end
            number += 1
            hidden = f"{COVERED}/{target.path}~{number}"
        # Pruning may delete a covering file at any time, so look before and after the move.
        self._require(covers)
        files.move(target.path, hidden)
        try:
            self._require(covers)
        except (LakeError, StoreError):
            # A cover went in that moment, so this file may be the last with these bytes. Bring it
            # back.
            files.move(hidden, target.path)
            raise
        return files.text(hidden)

    def _require(self, covers: Sequence[Fragment]) -> None:
        for cover in covers:
            files = self._storage.files(cover.backing_store)
            if not files.exists(cover.content_path):
                raise LakeError(f"file {files.text(cover.content_path)}, which covers it, has gone")

    def _digest(
        self, fragments: Sequence[Fragment], wanted: Fragment, is_over: Callable[[], bool]
    ) -> tuple[int, bytes]:
        """Rows and digest of the bytes of `wanted`, read from `fragments`, which hold them all.

        Raises: LakeError: a file is gone. DataError: one is damaged, or shorter than its name says. _NoTime.
        """
        digest = hashlib.sha1(usedforsecurity=False)
        rows, at, last = 0, wanted.begin, b"\n"
        for fragment in fragments:
            location = self._roots.location(fragment.backing_store, directory_of(fragment))
            offset = fragment.begin
            # Compare decompressed bytes: brokers may compress the same content differently.
            for block in self._content.blocks(fragment, location):
                piece = memoryview(block)[max(0, at - offset) :][: wanted.end - at]
                offset += len(block)
                if offset <= at or not piece:
                    continue
                digest.update(piece)
                rows += bytes(piece).count(b"\n")
                last = bytes(piece[-1:])
                at += len(piece)
                if COUNTED_BYTES_MIN <= at - wanted.begin < wanted.content_length and is_over():
                    raise _NoTime
            # A truncated object would match a truncated one; the name gives the true length.
            if offset != fragment.end:
                raise DataError(
                    f"{fragment.content_path} holds {offset - fragment.begin} bytes where its name "
                    f"says {fragment.content_length}"
                )
        return rows + (last != b"\n"), digest.digest()


@final
@dataclass(frozen=True, slots=True)
class _Now:
    """A journal right now: its files, and what brokers list."""

    files: JournalFiles
    listed: Mapping[tuple[str, str], Fragment]
    cursor: JournalCursor

    def covers(self, target: Finding) -> list[Fragment]:
        """Listed, registered fragments, with their files, that hold all bytes of `target`."""
        # A fragment that the cursor still wants is not registered, so its rows are not visible yet.
        standing = [
            Span(f.begin, f.end, *place, is_listed=True)
            for place, f in self.listed.items()
            if place in self.files.fragments and not self.cursor.wants(f)
        ]
        found = chain(standing, target.begin, target.end)
        return [self.listed[s.directory, s.name] for s in found]


def _without(  # noqa: PLR0917
    state: PartitionState,
    fragment: Fragment,
    rows: int,
    now: _Now,
    place: tuple[str, str],
    beside: Sequence[Fragment],
) -> PartitionState:
    """Accounts without `fragment`, if they counted it beside what brokers list.

    Args:
        place: its directory and name.
        beside: all that brokers list of its directory and the accounts hold. What these counted
            beyond it was of files that others cover.
    """
    # Moving the file must not lower figures that never included it.
    if not state.covers(fragment.begin, fragment.end):
        return state  # such as one that brokers only ever listed elsewhere
    # Accounts keep sums and no names. A surplus of exactly this file's size, or of more than
    # it, says that it was counted.
    more = reconcile(state, beside)
    is_counted = (
        more.surplus_bytes == fragment.content_length
        if more.surplus == 1
        else more.surplus > 1 and more.surplus_bytes > fragment.content_length
    )
    if not is_counted:
        return state
    # By files that exist, not by listings: other covered files are still in the directory,
    # and engines read them.
    left = [span for at, span in now.files.fragments.items() if at[0] == place[0] and at != place]
    size = now.files.sizes[place]
    return state.without(fragment.begin, fragment.end, rows=rows, stored_bytes=size, left=left)


def _fragment(target: Finding, store: str) -> Fragment:
    parsed = parse_fragment_path(target.journal, target.excluded)
    postfix = target.directory[len(target.journal) + 1 :]
    return replace(parsed, backing_store=store, path_postfix=postfix)


# Brokers list a fragment a moment after their store has it.
_AGAIN_S = 0.2


@final
@dataclass(slots=True)
class CaughtUp:
    """What was registered on the way."""

    rows: int | None = 0
    """None if those of some fragment could not be counted."""
    keys: set[str] = field(default_factory=set)
    """Of the Hive partitions that changed."""
    told: list[str] = field(default_factory=list)
    """Warnings, and errors of fragments that keep nothing else from being registered."""
    is_whole: bool = True
    """Whether there is no such error."""


def reachable(journals: Iterable[JournalSpec], ends: Mapping[str, int]) -> dict[str, int]:
    """Those of `ends` that listings can reach.

    A journal that is suspended in full has an end, and nothing is stored before it.
    """
    empty = {journal.name for journal in journals if journal.is_fully_suspended}
    return {journal: end for journal, end in ends.items() if journal not in empty}


def catch_up(
    registrar: Registrar,
    spec: TableSpec,
    begins: Mapping[str, JournalCursor],
    ends: Mapping[str, int],
    *,
    deadline: float,
    clock: Clock,
) -> CaughtUp:
    """Register what journals hold below `ends`.

    It is the sensor's tick, over and over: who else registers meanwhile is no matter. Each hole of the
    accounts is looked at, too, since what is stored late may be behind what was registered.

    Args:
        registrar: does it.
        spec: the table.
        begins: per journal, where to begin: as the accounts say.
        ends: per journal, the offset below which all is in its store.
        deadline: by the monotonic clock.
        clock: gives the time.

    Raises: LakeError: an error is in the way, or it is not done in time; names the journals.
        GazetteError: a server cannot be reached.
    """
    done = CaughtUp()
    offsets: dict[str, int] = {}
    for begin in _rounds(begins):
        cursors = {
            journal: replace(cursor, offset=max(cursor.offset, offsets.get(journal, 0)))
            for journal, cursor in begin.items()
        }
        reached = _round(registrar, spec, cursors, ends, done, deadline, clock)
        offsets = {journal: cursor.offset for journal, cursor in reached.items()}
    return done


def _rounds(begins: Mapping[str, JournalCursor]) -> Iterator[Mapping[str, JournalCursor]]:
    """Cursors with no more holes than one tick looks at; all holes, over all of them."""
    step = HOLES_LOOKED_MAX
    count = max((len(cursor.holes) for cursor in begins.values()), default=0)
    for start in range(0, max(1, count), step):
        yield {j: replace(c, holes=c.holes[start : start + step]) for j, c in begins.items()}


def _round(  # noqa: PLR0917
    registrar: Registrar,
    spec: TableSpec,
    cursors: Mapping[str, JournalCursor],
    ends: Mapping[str, int],
    done: CaughtUp,
    deadline: float,
    clock: Clock,
) -> Mapping[str, JournalCursor]:
    """Ticks until all is registered that is listed now. Returns: the cursors after them."""
    while True:
        report = registrar.tick(spec, cursors, is_over=lambda: clock.monotonic() > deadline)
        is_settled = report.cursors == cursors or not any(c.holes for c in report.cursors.values())
        cursors = report.cursors
        for update in report.updates:
            done.keys.add(update.key)
            is_known = done.rows is not None and update.rows_added is not None
            done.rows = (done.rows or 0) + (update.rows_added or 0) if is_known else None
        done.told += report.warnings
        behind = [
            journal
            for journal, end in ends.items()
            if cursors.get(journal, JournalCursor()).offset < end
        ]
        if not behind and not report.has_more and is_settled:
            done.told += [text for text in report.errors if text not in done.told]
            done.is_whole &= not report.errors
            return cursors
        # What a hole cannot take was reported long ago, and delays nothing else.
        if report.errors and behind and not report.updates:
            raise LakeError(f"{spec.name}: {'; '.join(report.errors)}")
        if clock.monotonic() > deadline:
            raise LakeError(
                f"{spec.name}: not registered in time: {', '.join(behind) or 'all that brokers list'} (the sensor goes on, "
                "as does the same command; `gazctl lake describe` shows how far it is)"
            )
        if not report.updates:
            time.sleep(_AGAIN_S)
