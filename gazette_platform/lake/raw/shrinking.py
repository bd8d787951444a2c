"""Accounts follow prunes: Hive partitions that lost fragments shrink, and those that lost all are dropped.

A look takes some Hive partitions of one journal, in the order of time, and compares their accounts with what brokers
list, which is one metastore call and a page or two. Only where `reconcile` finds lost bytes does it list the directory and
look for the proof of the store; `reconcile.judge` then decides, and what is left is counted again. Only entries of the
metastore are ever deleted, and those come back by the round over old fragments if the files do.

Dropping takes two steps, so that the caller can report Hive partitions before they are gone: a look
empties the accounts, and `drop` drops what is empty, once its caller has reported that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import LakeError, StoreError
from gazette_platform.lake.raw.account_book import COMMIT_MAX, AccountBook, Entry, PartitionAccount
from gazette_platform.lake.raw.audits.fit import header_scanner
from gazette_platform.lake.raw.listing import (
    journal_base,
    journal_files,
    left_at,
    nearest_before,
    place_of,
)
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import (
    Evidence,
    Files,
    Judgement,
    in_time,
    is_emptied,
    judge,
    pruned_front,
    reconcile,
)
from gazette_platform.lake.raw.recount import Recount
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.reading.fragment_content import FragmentContent
from gazette_platform.lake.reading.storage import Storage
from gazette_platform.lake.spec.layout import directory_of, plain_location
from gazette_platform.protocol import LabelSelector, LabelSet, is_another, learned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.planning import JournalCursor
    from gazette_platform.lake.raw.reconcile import Break
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment, JournalSpec

_PAGE: Final = 1000
# Of one look; more only where the first Hive partition alone holds as many fragments.
_PAGES_MAX: Final = 8
_PAGES_OF_ONE_MAX: Final = 500
_PROOFS_MAX: Final = 5
_TAIL: Final = 16
# The first Hive partition may be of a journal whose name continues this journal's name.
_FRONT: Final = 2
_OFFSET_MAX: Final = (1 << 63) - 1
_TOO_MANY: Final = "there are too many fragments in it to be looked through"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkLimits:
    """Bounds of one look; the rest is for the next."""

    partitions_max: int = 200
    content_bytes_max: int = 256 << 20
    """Decompressed bytes to count again; one larger fragment alone is allowed."""


@final
@dataclass(slots=True)
class Look:
    """What one look found, and did."""

    accounts: list[PartitionAccount] = field(default_factory=list)
    """Of all Hive partitions that were looked at and hold something."""
    emptied: list[PartitionAccount] = field(default_factory=list)
    """Those that hold nothing any more, by this look or an earlier one: to report, and then drop."""
    changed: list[PartitionAccount] = field(default_factory=list)
    """Those of `accounts` that hold less than before, by this look."""
    shrunk: int = 0
    """How many hold less than before, by this look."""
    following: str | None = None
    """Name of the last Hive partition looked at; None: these were the last of the journal."""
    is_complete: bool = True
    """False: something is left that another look may do at once."""
    doubts: list[str] = field(default_factory=list)
    """Why what is gone from a store is not forgotten."""
    is_mended: bool = False
    """Whether brokers list again what they once listed no more: see `verdict.is_broken`."""

    def note(self, account: PartitionAccount, *, is_changed: bool) -> None:
        """Add what the accounts of a Hive partition say now."""
        if is_emptied(account.state):
            self.emptied.append(account)
            return
        self.accounts.append(account)
        if is_changed:
            self.changed.append(account)


def _never() -> bool:
    return False


@final
class Shrinker:
    """Has accounts follow prunes. Holds no state and no connections.

    Args:
        source: lists fragments, and reads them where their store does not serve this process.
        roots: where fragment stores lie for engines.
        limits: bounds of one look.
    """

    def __init__(
        self, source: FragmentSource, roots: StoreRoots, limits: ShrinkLimits | None = None
    ) -> None:
        self._source = source
        self._roots = roots
        self._limits = limits or ShrinkLimits()
        self._storage = Storage(roots)
        self._content = FragmentContent(source)

    def journal(self, name: str) -> JournalSpec | None:
        """The spec of a journal; None: there is none of that name.

        Raises: GazetteError: brokers cannot be reached.
        """
        found = self._source.journals(LabelSelector(include=LabelSet.of(name=name)))
        return found[0] if found else None

    def is_pruned(self, session: MetastoreSession, spec: TableSpec, journal: str) -> bool:
        """Whether the journal seems to have been pruned at its front, where nearly all prunes are.

        One call, to brokers, if nothing was ever pruned; else three more.

        Raises: GazetteError: a server cannot be reached, or the journal cannot be listed.
        """
        listed = self._source.fragments(journal, 0, 1)
        if not listed or not listed[0].begin:
            return False
        table = session.table(spec.schema, spec.stored_table)
        if table is None or LAYOUT not in table.parameters:
            return False
        book = AccountBook(session, table)
        for entry in book.named(book.names(journal)[:_FRONT]):
            if entry.state.journal == journal:
                return is_emptied(entry.state) or pruned_front(listed[0], entry.state)
        return False

    def look(
        self,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        journal: JournalSpec,
        cursor: JournalCursor,
        *,
        after: str = "",
        broken: Break | None = None,
        is_confirmed: bool = False,
        is_dry_run: bool = False,
        is_over: Callable[[], bool] = _never,
    ) -> Look:
        """Compare some Hive partitions of a journal with what brokers list, and shrink those that were pruned.

        Idempotent: what another look did is found done.

        Args:
            session: the metastore.
            spec: the table's spec.
            table: the table as the metastore has it.
            journal: one of the table's journals.
            cursor: how far the journal was registered by *earlier* ticks.
            after: name of the Hive partition to begin behind; empty: at the first.
            broken: where brokers once listed nothing any more; None: they always did.
            is_confirmed: as in `Evidence`.
            is_dry_run: change nothing, and report how much would change.
            is_over: whether time is up; what is left is for another look.

        Raises: GazetteError: a server cannot be reached, or the journal cannot be listed. What was done before
            is found done.
        """
        book = AccountBook(session, table)
        view = _View(self._source, self._roots, self._storage, spec, book, journal, cursor)
        parts, following = self._parts(book, journal.name, after)
        # Nothing is locked here: judging lists stores, which may take minutes. `_shrink` compares
        # with what was judged.
        result = Look(following=following)
        judged: list[tuple[Entry, Judgement]] = []
        for number, part in enumerate(parts):
            if number and is_over():
                # Another look begins with it. One at least, so that a late one gets on, too.
                result.following = parts[number - 1].name
                parts = parts[:number]
                break
            # One offset would stand for two bytes. A person says whether the former files are gone for good.
            is_former = is_another(part.state.created, view.created) and not is_confirmed
            # An emptied account waits for its event in Dagster, and `drop` takes it afterwards.
            if is_emptied(part.state) or is_former:
                continue
            if not view.reach(part, is_first=number == 0):
                # Another look begins with it; if it was the first, it holds too much to be looked through.
                result.following = parts[max(number - 1, 0)].name
                parts = parts[: max(number, 1)]
                if not number:
                    result.doubts.append(view.doubt(_TOO_MANY, [part]))
                break
            if not part.state.ranges or reconcile(part.state, view.here(part)).lost:
                judged.append((part, view.judge(part, broken, is_confirmed=is_confirmed)))
        if is_dry_run:
            result.shrunk = sum(j.verdict in {"shrink", "empty"} for _, j in judged)
            return result
        done = self._shrink(book, view, judged, result, is_over)
        for part in parts:
            state = done.get(part.name, part.state)
            if state.journal == journal.name:
                result.note(part.account(state), is_changed=part.name in done)
        result.is_mended = broken is not None and view.lists_before(broken)
        doubts: dict[str, list[Entry]] = {}
        for part, judgement in judged:
            if judgement.verdict == "doubt":
                doubts.setdefault(judgement.reason, []).append(part)
        result.doubts += [view.doubt(reason, of) for reason, of in doubts.items()]
        return result

    def drop(
        self,
        session: MetastoreSession,
        table: HiveTable,
        accounts: Sequence[PartitionAccount],
    ) -> list[PartitionAccount]:
        """Drop Hive partitions that hold nothing any more. Idempotent.

        Returns: those that are gone now. One that got a fragment meanwhile stays, and so does the account of a
            table without partition columns.
        Raises: GazetteError: the metastore cannot be reached.
        """
        if not table.partition_columns:
            return []
        book = AccountBook(session, table)
        gone: list[PartitionAccount] = []
        for start in range(0, len(accounts), COMMIT_MAX):
            batch = accounts[start : start + COMMIT_MAX]
            with book.changing() as change:
                found = book.at(account.values for account in batch)
                # A late fragment may have been registered since the look emptied the account.
                # Dropping it would hide its rows.
                filled = {values for values, entry in found.items() if not is_emptied(entry.state)}
                change.drop([entry for values, entry in found.items() if values not in filled])
            gone += [account for account in batch if account.values not in filled]
        return gone

    # ------------------------------------------------------------------- reading

    def _parts(self, book: AccountBook, journal: str, after: str) -> tuple[list[Entry], str | None]:
        """The Hive partitions in turn, and the name of the last of them if there are more."""
        left = [n for n in book.names(journal) if not after or in_time(n) > in_time(after)]
        chosen = left[: self._limits.partitions_max]
        found = {entry.name: entry for entry in book.named(chosen)}
        parts = [found[n] for n in chosen if n in found and found[n].state.journal == journal]
        return parts, chosen[-1] if len(left) > len(chosen) else None

    # ------------------------------------------------------------------- writing

    def _shrink(
        self,
        book: AccountBook,
        view: _View,
        judged: Sequence[tuple[Entry, Judgement]],
        result: Look,
        is_over: Callable[[], bool],
    ) -> dict[str, PartitionState]:
        """Change the accounts as judged. Returns: the new ones, by name of the Hive partition."""
        wanted: list[tuple[Entry, PartitionState]] = []
        limit = self._limits.content_bytes_max
        recount = Recount(
            self._content, view.sizes, limit, is_over, scanner=lambda: header_scanner(view.spec)
        )
        # Count before the lock is taken: reading what is left takes longer than its lease lasts.
        for part, judgement in judged:
            if judgement.verdict == "empty":
                # The name of the journal stays. By it, an emptied account whose event Dagster does not
                # have yet differs from a new one that nothing was counted into.
                moving = view.moving(part)
                wanted.append((part, PartitionState(journal=part.state.journal, moving=moving)))
            elif judgement.verdict == "shrink":
                created = learned(part.state.created, view.created)
                state = recount.state(part.state, judgement.kept, part.location, created)
                if state is not None and state != part.state:
                    wanted.append((part, state))
        result.is_complete = result.is_complete and recount.is_complete
        done: dict[str, PartitionState] = {}
        for start in range(0, len(wanted), COMMIT_MAX):
            batch = {part.name: (part, state) for part, state in wanted[start : start + COMMIT_MAX]}
            with book.changing() as change:
                # A registrar may have added a fragment since. Skip it: the next look judges again.
                unchanged = [
                    e for e in book.named(list(batch)) if e.state == batch[e.name][0].state
                ]
                change.put([(entry, batch[entry.name][1]) for entry in unchanged])
            # Report only what was written. The look is repeated after a kill, and finds these accounts as they are to be.
            done |= {entry.name: batch[entry.name][1] for entry in unchanged}
        result.shrunk = len(done)
        return done


@final
class _View:
    """What is asked of brokers and stores about one journal, as far as it is needed, and once."""

    def __init__(  # noqa: PLR0917
        self,
        source: FragmentSource,
        roots: StoreRoots,
        storage: Storage,
        spec: TableSpec,
        book: AccountBook,
        journal: JournalSpec,
        cursor: JournalCursor,
    ) -> None:
        self.spec = spec
        self.journal = journal
        self.sizes: dict[tuple[str, str], int] = {}
        found = source.created(LabelSelector(include=LabelSet.of(name=journal.name)))
        self.created = found.get(journal.name, 0)
        """Which journal it is (`protocol.offsets`)."""
        self._source = source
        self._roots = roots
        self._storage = storage
        self._cursor = cursor
        self._book = book
        self._listed: dict[tuple[int, int], Fragment] = {}
        self._locations: dict[tuple[str, str], str] = {}
        self._by_location: dict[str, list[Fragment]] = {}
        self._pages = 0
        # Of these offsets all that brokers list is in `_listed`.
        self._from = 0
        self._to = 0
        self._first: list[Fragment] | None = None
        self._tail: list[Fragment] | None = None
        self._proofs: dict[str, Fragment | None] = {}

    def doubt(self, reason: str, parts: Sequence[Entry]) -> str:
        """Why what is gone of some Hive partitions is not forgotten."""
        keys = [part.key for part in parts]
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        return (
            f"{self.journal.name}: fragments of Hive partition {keys[0]}{more} are gone, but may not have been "
            f"pruned, so they are kept in mind: {reason} (bring the store back; if they were pruned, "
            f"`gazctl lake repair --pruned {self.spec.name}` forgets them)"
        )

    def reach(self, part: Entry, *, is_first: bool) -> bool:
        """Have listed all of the bytes that a Hive partition holds. Returns: whether that was little enough.

        The first one of a look may hold half a million fragments, as a table without partition columns does, which
        take some seconds.
        """
        if not part.state.ranges:
            return True
        begin, end = part.state.ranges[0][0], part.state.ranges[-1][1]
        is_new = not self._from <= begin <= self._to
        if is_new:
            self._from = self._to = begin
        pages_max = _PAGES_OF_ONE_MAX if is_first else _PAGES_MAX
        while self._to < end and self._pages < pages_max:
            page = self._source.fragments(self.journal.name, self._to, _PAGE)
            self._pages += 1
            if is_new and (not page or page[0].begin > begin):
                # A longer fragment that begins earlier may hold these bytes, so they are not lost.
                near = nearest_before(self._source, self.journal.name, begin)
                self._note([near] if near is not None else [])
            is_new = False
            self._note(page)
            self._to = page[-1].begin + 1 if len(page) >= _PAGE else _OFFSET_MAX
        return self._to >= end

    def _note(self, fragments: Iterable[Fragment]) -> None:
        for f in fragments:
            if (f.begin, f.end) in self._listed:
                continue
            self._listed[f.begin, f.end] = f
            if f.backing_store and f.content_length:
                place = (f.backing_store, directory_of(f))
                if place not in self._locations:
                    self._locations[place] = plain_location(self._roots.location(*place))
                self._by_location.setdefault(self._locations[place], []).append(f)

    def here(self, part: Entry) -> list[Fragment]:
        """What brokers list, in the directory of a Hive partition, of the bytes that it holds."""
        listed = self._by_location.get(plain_location(part.location), ())
        found = [f for f in listed if _touches(f.begin, f.end, part.state)]
        return sorted(found, key=lambda f: (f.begin, f.end))

    def lists_before(self, broken: Break) -> bool:
        """Whether brokers list anything from before a break again."""
        first = self._first_listed(broken)
        return first is not None and first < broken.offset

    def judge(self, part: Entry, broken: Break | None, *, is_confirmed: bool) -> Judgement:
        """What is to become of a Hive partition that lost something, or whose last file a repair began to move."""
        if not part.state.ranges:
            # The repair may have been killed when all was done but this account.
            return Judgement("wait" if self.moving(part) else "empty")
        store, directory = self._place(part)
        files = self._files(store, directory, part.state)
        evidence = Evidence(
            proof=self._proof(store) if store else None,
            first=self._first_listed(broken),
            broken_at=broken.offset if broken is not None else None,
            is_confirmed=is_confirmed,
        )
        local = [span for span, f in self._listed.items() if not f.backing_store]
        here = self.here(part)
        return judge(reconcile(part.state, here), here, local, files, evidence)

    def moving(self, part: Entry) -> tuple[str, ...]:
        """Names of the files that a repair began to move out of a Hive partition, and that may still be in it."""
        names = part.state.moving
        place = self._place(part) if names else ("", "")
        return left_at(self._storage, self.journal.name, place, names)

    def _first_listed(self, broken: Break | None) -> int | None:
        if self._first is None:
            self._first = self._source.fragments(self.journal.name, 0, 1)
        return next(
            (f.begin for f in self._first if broken is None or broken.is_of_before(f)), None
        )

    def _place(self, part: Entry) -> tuple[str, str]:
        """Store and directory of a Hive partition; empty: it is in no store of the journal."""
        # Only stores that the journal names count: a directory elsewhere proves nothing about a
        # prune.
        stores = [*self.journal.fragment.stores]
        stores += [f.backing_store for f in self._listed.values() if f.backing_store]
        return place_of(part.location, self.journal.name, stores, self._roots)

    def _base(self, store: str) -> str:
        return journal_base(self.journal.name, store, self._roots)

    def _files(self, store: str, directory: str, state: PartitionState) -> Files:
        if not store:
            return Files(problem="its files lie in no store that the journal's spec names")
        found = journal_files(self._storage, self.journal.name, [(store, directory)])
        if directory not in found.listed:
            return Files(problem=f"its files cannot be listed: {found.unlisted.get(directory)}")
        self.sizes |= found.sizes
        return Files(
            {n: span for (_, n), span in found.fragments.items() if _touches(*span, state)}
        )

    def _proof(self, store: str) -> Fragment | None:
        """The furthest fragment that shows that a store is the one that it was; see `Evidence`."""
        base = self._base(store)
        if base not in self._proofs:
            known = [f for f in self._candidates() if self._base(f.backing_store) == base]
            known.sort(key=lambda f: -f.begin)
            # The listing alone may be stale: brokers list files of a store that has gone until
            # their next refresh.
            proofs = (f for f in known[:_PROOFS_MAX] if self._is_there(f))
            self._proofs[base] = next(proofs, None)
        return self._proofs[base]

    def _candidates(self) -> list[Fragment]:
        """Stored fragments that earlier ticks took for registered."""
        cursor = self._cursor
        if self._tail is None:
            begin = cursor.offset if cursor.last is None else cursor.last
            self._tail = self._source.fragments(self.journal.name, begin, _TAIL)
            near = nearest_before(self._source, self.journal.name, cursor.offset)
            self._tail += [near] if near is not None else []
        listed = {(f.begin, f.end): f for f in self._tail} | self._listed
        return [
            f
            for f in listed.values()
            # A fragment stored just now may lie in a new, empty store under the same name. Only one
            # that was registered earlier shows that the store is the same.
            if f.backing_store and f.content_length and not cursor.wants(f)
        ]

    def _is_there(self, fragment: Fragment) -> bool:
        """Whether its accounts hold a fragment, and its file is in its store."""
        try:
            values = self._book.place(directory_of(fragment))
            entry = self._book.at([values]).get(values)
            if entry is None or not entry.state.covers(fragment.begin, fragment.end):
                return False
            return self._storage.files(fragment.backing_store).exists(fragment.content_path)
        except (LakeError, StoreError):
            return False


def _touches(low: int, high: int, state: PartitionState) -> bool:
    return any(low < end and begin < high for begin, end in state.ranges)
