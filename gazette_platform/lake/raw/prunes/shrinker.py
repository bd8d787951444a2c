"""Accounts follow prunes: Hive partitions that lost fragments shrink, and those that lost all are dropped.

A look takes some Hive partitions of one journal, in the order of time, and compares their accounts with what brokers
list, which is one metastore call and a page or two. Only where these differ are directories listed, the proof of the
store looked for, and what is left counted again; `verdict` then decides. Nothing is ever deleted but entries
of the metastore, and those come back by the round over old fragments if the files do.

Dropping takes two steps, so that the caller can report Hive partitions before they are gone: a look
empties the accounts, and `drop` drops what is empty, once its caller has reported that.

Long because a look and what it asks of brokers and stores are read together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import GazetteError, LakeError, StoreError
from gazette_platform.hive import HivePartition, partition_name
from gazette_platform.lake.raw.accounting import PartitionAccount
from gazette_platform.lake.raw.accounts import own_values
from gazette_platform.lake.raw.audits.fit import header_scanner
from gazette_platform.lake.raw.listing import journal_files, nearest_before
from gazette_platform.lake.raw.overlaps import in_time
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.planning import directory_of
from gazette_platform.lake.raw.prunes.recounting import Recount
from gazette_platform.lake.raw.prunes.verdict import (
    Evidence,
    Files,
    is_emptied,
    judge,
    lost_ranges,
    pruned_front,
)
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.reading.content import FragmentContent
from gazette_platform.lake.reading.storage import Storage
from gazette_platform.lake.spec.layout import (
    Layout,
    partition_columns,
    partition_key,
    plain_location,
)
from gazette_platform.protocol import LabelSelector, LabelSet, is_another, learned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.planning import JournalCursor
    from gazette_platform.lake.raw.prunes.verdict import Break, Judgement
    from gazette_platform.lake.reading.source import FragmentSource
    from gazette_platform.lake.spec.layout import PartitionColumn, StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment, JournalSpec

_PAGE: Final = 1000
# Of one look; more only where the first Hive partition alone holds as many fragments.
_PAGES_MAX: Final = 8
_PAGES_OF_ONE_MAX: Final = 500
# What is written under one lock, as in `accounting`.
_COMMIT_MAX: Final = 50
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
        if not table.partition_columns:
            return pruned_front(listed[0], PartitionState.from_parameters(table.parameters))
        names = _names(session, spec, table, journal)
        for found in session.partitions_named(table, names[:_FRONT]):
            state = PartitionState.from_parameters(found.parameters)
            if state.journal == journal:
                return is_emptied(state) or pruned_front(listed[0], state)
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
        view = _View(self._source, self._roots, self._storage, spec, table, journal, cursor)
        parts, following = self._parts(session, view, after)
        # Nothing is locked here: judging lists stores, which may take minutes. `_write` compares
        # with what was judged.
        result = Look(following=following)
        judged: list[tuple[_Part, Judgement]] = []
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
            if lost_ranges(part.state, view.here(part)):
                judged.append((part, view.judge(session, part, broken, is_confirmed=is_confirmed)))
        if is_dry_run:
            result.shrunk = sum(j.verdict in {"shrink", "empty"} for _, j in judged)
            return result
        done = self._shrink(session, table, view, judged, result, is_over)
        for part in parts:
            state = done.get(part.name, part.state)
            if state.journal == journal.name:
                result.note(view.account(part, state), is_changed=part.name in done)
        result.is_mended = broken is not None and view.lists_before(broken)
        doubts: dict[str, list[_Part]] = {}
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
        keys = [c.name for c in table.partition_columns]
        gone: list[PartitionAccount] = []
        for start in range(0, len(accounts), _COMMIT_MAX):
            batch = {
                partition_name(keys, a.values): a for a in accounts[start : start + _COMMIT_MAX]
            }
            with session.accounts_lock(table.database, table.name) as lock:
                found = session.partitions_named(table, list(batch))
                # A late fragment may have been registered since the look emptied the account.
                # Dropping it would hide its rows.
                filled = {
                    p.values
                    for p in found
                    if not is_emptied(PartitionState.from_parameters(p.parameters))
                }
                names = [name for name, a in batch.items() if a.values not in filled]
                if names:
                    lock.require()
                    session.drop_partitions(table, names)
            gone += [batch[name] for name in names]
        return gone

    # ------------------------------------------------------------------- reading

    def _parts(
        self, session: MetastoreSession, view: _View, after: str
    ) -> tuple[list[_Part], str | None]:
        """The Hive partitions in turn, and the name of the last of them if there are more."""
        table, journal = view.table, view.journal.name
        if not table.partition_columns:
            state = PartitionState.from_parameters(table.parameters)
            whole = HivePartition(values=(), location=table.location, parameters=table.parameters)
            return ([_Part("", whole, state)] if state.journal == journal else []), None
        names = _names(session, view.spec, table, journal)
        left = [name for name in names if not after or in_time(name) > in_time(after)]
        chosen = left[: self._limits.partitions_max]
        keys = [c.name for c in table.partition_columns]
        found = {partition_name(keys, p.values): p for p in session.partitions_named(table, chosen)}
        parts: list[_Part] = []
        for name in chosen:
            if name in found:
                state = PartitionState.from_parameters(found[name].parameters)
                if state.journal == journal:
                    parts.append(_Part(name, found[name], state))
        return parts, chosen[-1] if len(left) > len(chosen) else None

    # ------------------------------------------------------------------- writing

    def _shrink(  # noqa: PLR0917
        self,
        session: MetastoreSession,
        table: HiveTable,
        view: _View,
        judged: Sequence[tuple[_Part, Judgement]],
        result: Look,
        is_over: Callable[[], bool],
    ) -> dict[str, PartitionState]:
        """Change the accounts as judged. Returns: the new ones, by name of the Hive partition."""
        wanted: dict[str, tuple[_Part, PartitionState]] = {}
        limit = self._limits.content_bytes_max
        recount = Recount(
            self._content, view.sizes, limit, is_over, lambda: header_scanner(view.spec)
        )
        for part, judgement in judged:
            if judgement.verdict == "empty":
                wanted[part.name] = (part, PartitionState(journal=part.state.journal))
            elif judgement.verdict == "shrink":
                created = learned(part.state.created, view.created)
                state = recount.state(part.state, judgement.kept, part.partition.location, created)
                # Accounts of former releases took the smallest of many holes for covered.
                if state is not None and state != part.state:
                    wanted[part.name] = (part, state)
        result.is_complete = result.is_complete and recount.is_complete
        done: dict[str, PartitionState] = {}
        items = list(wanted.items())
        for start in range(0, len(items), _COMMIT_MAX):
            done |= _write(session, table, dict(items[start : start + _COMMIT_MAX]))
        result.shrunk = len(done)
        return done


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """A Hive partition, or a table that has none."""

    name: str
    partition: HivePartition
    state: PartitionState


def _write(
    session: MetastoreSession, table: HiveTable, wanted: Mapping[str, tuple[_Part, PartitionState]]
) -> dict[str, PartitionState]:
    """Write new accounts of those Hive partitions whose accounts are still what was judged."""
    done: dict[str, PartitionState] = {}
    changed: list[HivePartition] = []
    with session.accounts_lock(table.database, table.name) as lock:
        # It may have got columns since, and what is written must have them, too.
        current = session.table(table.database, table.name)
        if current is None:
            return {}
        if not current.partition_columns:
            ((name, (part, state)),) = wanted.items()
            if PartitionState.from_parameters(current.parameters) == part.state:
                lock.require()
                parameters = state.within(current.parameters)
                session.alter_table(replace(current, parameters=parameters))
                done[name] = state
            return done
        keys = [c.name for c in current.partition_columns]
        for found in session.partitions_named(current, list(wanted)):
            name = partition_name(keys, found.values)
            part, state = wanted[name]
            # A registrar may have added a fragment since. Skip it: the next look judges again.
            if PartitionState.from_parameters(found.parameters) == part.state:
                changed.append(replace(found, parameters=state.within(found.parameters)))
                done[name] = state
        if changed:
            lock.require()
            session.alter_partitions(current, changed)
    return done


def _layout_of(table: HiveTable) -> Layout:
    """Raises: LakeError: it is not a table of ours."""
    if LAYOUT not in table.parameters:
        raise LakeError(
            f"table {table.full_name} was made by others, so nothing of it is forgotten: drop it, or give the table "
            "spec another name"
        )
    return Layout.parse(table.parameters[LAYOUT])


def _names(session: MetastoreSession, spec: TableSpec, table: HiveTable, journal: str) -> list[str]:
    """Names of the Hive partitions that the journal may have, in the order of time."""
    layout = Layout.parse(table.parameters[LAYOUT])
    values = own_values(layout, partition_columns(spec, layout), journal)
    return sorted(session.partition_names(table, values), key=in_time)


@final
class _View:
    """What is asked of brokers and stores about one journal, as far as it is needed, and once."""

    def __init__(  # noqa: PLR0917
        self,
        source: FragmentSource,
        roots: StoreRoots,
        storage: Storage,
        spec: TableSpec,
        table: HiveTable,
        journal: JournalSpec,
        cursor: JournalCursor,
    ) -> None:
        self.spec = spec
        self.table = table
        self.journal = journal
        self.sizes: dict[tuple[str, str], int] = {}
        found = source.created(LabelSelector(include=LabelSet.of(name=journal.name)))
        self.created = found.get(journal.name, 0)
        """Which journal it is (`protocol.identity`)."""
        self._source = source
        self._roots = roots
        self._storage = storage
        self._cursor = cursor
        self._layout = _layout_of(table)
        self._columns: Sequence[PartitionColumn] = partition_columns(spec, self._layout)
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

    def account(self, part: _Part, state: PartitionState) -> PartitionAccount:
        """The accounts of a Hive partition, as they are reported."""
        return PartitionAccount(
            key=partition_key(self._columns, part.partition.values),
            values=part.partition.values,
            location=part.partition.location,
            journal=self.journal.name,
            state=state,
        )

    def doubt(self, reason: str, parts: Sequence[_Part]) -> str:
        """Why what is gone of some Hive partitions is not forgotten."""
        keys = [partition_key(self._columns, part.partition.values) for part in parts]
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        return (
            f"{self.journal.name}: fragments of Hive partition {keys[0]}{more} are gone, but may not have been "
            f"pruned, so they are kept in mind: {reason} (bring the store back; if they were pruned, "
            f"`gazctl lake repair --pruned {self.spec.name}` forgets them)"
        )

    def reach(self, part: _Part, *, is_first: bool) -> bool:
        """Have listed all of the bytes that a Hive partition holds. Returns: whether that was little enough.

        The first one of a look may hold half a million fragments, as a table without partition columns does, which
        take some seconds.
        """
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

    def here(self, part: _Part) -> list[Fragment]:
        """What brokers list, in the directory of a Hive partition, of the bytes that it holds."""
        listed = self._by_location.get(plain_location(part.partition.location), ())
        found = [f for f in listed if _touches(f.begin, f.end, part.state)]
        return sorted(found, key=lambda f: (f.begin, f.end))

    def lists_before(self, broken: Break) -> bool:
        """Whether brokers list anything from before a break again."""
        first = self._first_listed(broken)
        return first is not None and first < broken.offset

    def judge(
        self,
        session: MetastoreSession,
        part: _Part,
        broken: Break | None,
        *,
        is_confirmed: bool,
    ) -> Judgement:
        """What is to become of a Hive partition that lost something."""
        store, directory = self._place(part)
        files = self._files(store, directory, part.state)
        evidence = Evidence(
            proof=self._proof(session, store) if store else None,
            first=self._first_listed(broken),
            broken_at=broken.offset if broken is not None else None,
            is_confirmed=is_confirmed,
        )
        local = [span for span, f in self._listed.items() if not f.backing_store]
        return judge(part.state, self.here(part), local, files, evidence)

    def _first_listed(self, broken: Break | None) -> int | None:
        if self._first is None:
            self._first = self._source.fragments(self.journal.name, 0, 1)
        return next(
            (f.begin for f in self._first if broken is None or broken.is_of_before(f)), None
        )

    def _place(self, part: _Part) -> tuple[str, str]:
        """Store and directory of a Hive partition; empty: it is in no store of the journal."""
        plain, name = plain_location(part.partition.location), self.journal.name
        stores = [*self.journal.fragment.stores]
        stores += [f.backing_store for f in self._listed.values() if f.backing_store]
        for store in dict.fromkeys(stores):
            base = self._base(store)
            # Only stores that the journal names count: a directory elsewhere proves nothing about a
            # prune.
            if plain == base or plain.startswith(f"{base}/"):
                return store, f"{name}{plain[len(base) :]}"
        return "", ""

    def _base(self, store: str) -> str:
        """The journal's folder in a store; where two stores are one place, the same for both."""
        try:
            return plain_location(self._roots.location(store, self.journal.name))
        except GazetteError:
            return ""  # a folder that only brokers know

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

    def _proof(self, session: MetastoreSession, store: str) -> Fragment | None:
        """The furthest fragment that shows that a store is the one that it was; see `Evidence`."""
        base = self._base(store)
        if base not in self._proofs:
            known = [f for f in self._candidates() if self._base(f.backing_store) == base]
            known.sort(key=lambda f: -f.begin)
            # The listing alone may be stale: brokers list files of a store that has gone until
            # their next refresh.
            proofs = (f for f in known[:_PROOFS_MAX] if self._is_there(session, f))
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

    def _is_there(self, session: MetastoreSession, fragment: Fragment) -> bool:
        """Whether its accounts hold a fragment, and its file is in its store."""
        try:
            texts = self._layout.match(directory_of(fragment))
            values = tuple(c.value(t) for c, t in zip(self._columns, texts, strict=True))
            state = PartitionState.from_parameters(self._parameters(session, values))
            if not state.covers(fragment.begin, fragment.end):
                return False
            return self._storage.files(fragment.backing_store).exists(fragment.content_path)
        except (LakeError, StoreError):
            return False

    def _parameters(self, session: MetastoreSession, values: tuple[str, ...]) -> Mapping[str, str]:
        if not self._columns:
            return self.table.parameters
        found = session.partitions_of(self.table, [values]).get(values)
        return found.parameters if found is not None else {}


def _touches(low: int, high: int, state: PartitionState) -> bool:
    return any(low < end and begin < high for begin, end in state.ranges)
