"""How far a raw table is registered: what of its journals is in Hive partitions, what is overdue, and what is wrong.

A fragment is overdue if stores have had it for a while and no Hive partition holds it.

Accounts of a journal's Hive partitions say which of its directories engines read, and what is in them. They say, without any listing of files, which bytes were registered in two Hive partitions, or twice
in one. Cost: a call for the names of the Hive partitions of the journal, and one for those of the
offsets that are looked at, with a few of their neighbours.

Directories of object stores that were listed, and held just what brokers list, are remembered. Accounts may differ from
what brokers list for long: where a prune looks the same as a store that is away, say. Each listing costs money, so such a
directory is listed again only when something has changed, or after a while. Known to this process alone: another one lists
once more.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.raw.account_book import AccountBook
from gazette_platform.lake.raw.audits.fit import partition_fit, table_finding
from gazette_platform.lake.raw.planning import JournalCursor, bounded, problems_with_journals
from gazette_platform.lake.raw.reconcile import overlapping, walk_outward
from gazette_platform.lake.raw.tables import is_current, text_columns
from gazette_platform.lake.reading.fragment_source import all_fragments
from gazette_platform.lake.spec.layout import directory_of, is_aside, plain_location
from gazette_platform.ops.lru import Lru
from gazette_platform.protocol.offsets import subtract_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.account_book import Entry
    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.raw.reconcile import Finding
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment, JournalSpec


_STEP = 24
_NAMES_MAX = 3000


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A directory that engines read, since it is the location of a Hive partition."""

    store: str
    """URL of the store, or of one of those that are the same place."""
    directory: str
    location: str
    """As it compares with others."""
    values: tuple[str, ...]
    state: PartitionState


@final
@dataclass(slots=True)
class Accounts:
    """What the metastore knows of a journal around some offsets."""

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of the Hive partition of each directory asked for that is of the table's layout."""
    states: dict[tuple[str, ...], PartitionState] = field(default_factory=dict)
    """By values, of the Hive partitions that exist, wherever they are."""
    places: dict[str, Place] = field(default_factory=dict)
    """By directory: of the Hive partitions that lie in one of the journal's stores."""
    is_complete: bool = True
    """False: there are more Hive partitions than could be looked at."""

    def state_of(self, directory: str) -> PartitionState | None:
        """The accounts of the Hive partition of a directory asked for; None if it is not registered."""
        values = self.values.get(directory)
        return self.states.get(values) if values is not None else None

    def reads(self, location: str, directory: str) -> bool:
        """Whether engines read the files of a directory which is at `location`."""
        place = self.places.get(directory)
        return place is not None and place.location == plain_location(location)

    def overlaps(self, begin: int, end: int | None) -> dict[str, tuple[int, int]]:
        """Directories that hold bytes of [begin, end) twice, or that others hold, too; and the bytes.

        Bytes that one directory holds twice are not known more closely than by what it holds.
        """
        found = overlapping({p.directory: p.state.ranges for p in self.places.values()}, begin, end)
        for place in self.places.values():
            if place.state.overlap_bytes > 0 and _meets(place.state, begin, end):
                low, high = found.get(place.directory, place.state.ranges[0])
                # Totals do not say which bytes are doubled, so report all; the audit then lists the
                # files.
                ranges = place.state.ranges
                found[place.directory] = (min(low, ranges[0][0]), max(high, ranges[-1][1]))
        return found


def read_accounts(  # noqa: PLR0917
    book: AccountBook,
    roots: StoreRoots,
    journal: str,
    anchors: Iterable[Fragment],
    begin: int,
    end: int | None,
) -> Accounts:
    """Accounts of the Hive partitions of `anchors`, and of all others that hold bytes of [begin, end).

    Those that brokers list nothing in, since what is in them is covered by now, are looked for in the
    neighbourhood of the others, in the order of names.

    Args:
        anchors: fragments that brokers list, at least one if there are any.
    """
    reader = _Reader(roots, journal)
    for f in anchors:
        if f.backing_store:
            reader.note(f.backing_store, directory_of(f))
    # Brokers list no covered fragment, so its directory may appear in no listing. Only accounts
    # still know of it.
    accounts = reader.accounts
    for _, directory in sorted(reader.known.values()):
        # One odd directory must not hide the overlaps of all others; registration reports it.
        with suppress(LakeError):
            accounts.values[directory] = book.place(directory)

    def meets(names: Sequence[str]) -> bool:
        is_met = False
        for entry in book.named(names):
            reader.take(entry)
            # The prefix of names also matches `a/b/c` for journal `a/b`, and its offsets say
            # nothing about this journal.
            is_met = is_met or (entry.state.journal == journal and _meets(entry.state, begin, end))
        return is_met

    names = book.names(journal)
    touched = {book.name(values) for values in accounts.values.values()} or {""}
    accounts.is_complete = walk_outward(names, touched, meets, step=_STEP, names_max=_NAMES_MAX)
    return accounts


@final
@dataclass(slots=True)
class _Reader:
    """Finds out which directory a Hive partition is, by its location."""

    roots: StoreRoots
    journal: str
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By location: a store, and a directory that brokers list fragments in."""
    bases: dict[str, str] = field(default_factory=dict)
    """By location of the journal: a store."""
    accounts: Accounts = field(default_factory=Accounts)

    def note(self, store: str, directory: str) -> None:
        """Take notice of a directory of a store."""
        location = plain_location(self.roots.location(store, directory))
        self.known.setdefault(location, (store, directory))
        self.bases.setdefault(plain_location(self.roots.location(store, self.journal)), store)

    def take(self, entry: Entry) -> None:
        """Take the accounts of a Hive partition."""
        state = entry.state
        self.accounts.states[entry.values] = state
        if state.journal not in ("", self.journal):
            return  # of a journal whose name continues this journal's name
        # Compare plain locations: one place has several spellings, such as `s3://` and `s3a://`, or
        # with and without a slash.
        plain = plain_location(entry.location)
        found = self.known.get(plain)
        for base, store in self.bases.items():
            # Brokers may list nothing in the directory any more; then its path below the journal's
            # folder says where it is.
            if found is None and (plain == base or plain.startswith(f"{base}/")):
                found = (store, f"{self.journal}{plain[len(base) :]}")
        if found is not None:
            store, directory = found
            self.accounts.places[directory] = Place(store, directory, plain, entry.values, state)


def _meets(state: PartitionState, begin: int, end: int | None) -> bool:
    return any(high > begin and (end is None or low < end) for low, high in state.ranges)


# A file that a person adds or removes changes neither account nor index, so a directory is listed again after a while.
_KEPT_S: Final = 600.0
_COUNT_MAX: Final = 10_000


@final
class Looked:
    """What was looked at lately. Any thread may ask.

    Args:
        monotonic_s: gives the time.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._found: Lru[str, tuple[Hashable, float]] = Lru(_COUNT_MAX)

    def is_known(self, location: str, state: Hashable) -> bool:
        """Whether `location` was well a while ago, when all that is known of it was `state`."""
        with self._lock:
            known = self._found.get(location)
        return known is not None and known[0] == state and self._monotonic_s() < known[1] + _KEPT_S

    def note(self, location: str, state: Hashable) -> None:
        """Note that `location` is well, and what is known of it."""
        with self._lock:
            self._found.put(location, (state, self._monotonic_s()))


LOOKED: Final = Looked()
"""That of this process: sensors make new auditors at each tick."""


@final
@dataclass(frozen=True, slots=True)
class JournalStanding:
    """A journal of a table: its head, and the offset up to which it is registered."""

    journal: str
    registered: int
    """End of the furthest fragment that is in a Hive partition."""
    head: int
    holes: tuple[tuple[int, int], ...] = ()
    """Bytes before that in none: pruned, or given up, or registered late."""

    @property
    def cursor(self) -> JournalCursor:
        """Where to go on, for who knows no more than the accounts say."""
        return JournalCursor(self.registered, None, bounded(self.holes))

    @property
    def lag_bytes(self) -> int:
        """Bytes appended, and in no Hive partition."""
        return max(0, self.head - self.registered)


@final
@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """A Hive partition, by its key, and what it holds."""

    key: str
    location: str
    state: PartitionState


@final
@dataclass(slots=True, kw_only=True)
class TableStanding:
    """How one table stands."""

    spec: TableSpec
    journals: list[JournalStanding] = field(default_factory=list)
    partitions: list[PartitionStanding] = field(default_factory=list)
    location: str = ""
    """Where the table is; empty while it is not made."""
    is_known: bool = True
    """Whether a metastore could be asked."""
    as_text: frozenset[str] = frozenset()
    """Columns that Trino reads as text."""
    problems: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int | None:
        """Rows of all Hive partitions; None if those of some are not known."""
        counts = [partition.state.rows for partition in self.partitions]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def content_bytes(self) -> int:
        """Decompressed bytes of all fragments."""
        return sum(partition.state.content_bytes for partition in self.partitions)

    @property
    def unfit_records(self) -> int:
        """Records of all Hive partitions that do not fit the spec."""
        return sum(partition.state.unfit_records for partition in self.partitions)

    @property
    def findings(self) -> Finding | None:
        """What these records mean for rollups; None: there are none."""
        fits = [partition_fit(each.key, each.state) for each in self.partitions]
        return table_finding(self.spec, [fit for fit in fits if fit is not None], self.as_text)

    @property
    def is_blocked(self) -> bool:
        """Whether rollups wait because of them."""
        finding = self.findings
        return finding is not None and finding.is_error

    @property
    def lag_bytes(self) -> int:
        """Bytes of all journals that are in no Hive partition."""
        return sum(journal.lag_bytes for journal in self.journals)

    @property
    def held(self) -> dict[str, list[tuple[int, int]]]:
        """By journal, bytes that are in a Hive partition, or aside."""
        held: dict[str, list[tuple[int, int]]] = {}
        for partition in self.partitions:
            state = partition.state
            held.setdefault(state.journal, []).extend([*state.ranges, *state.aside])
        return held

    def summary(self) -> dict[str, Any]:
        """What a list shows, as plain values; None is what is not known."""
        is_made = bool(self.location)
        return {
            "table": self.spec.name,
            "format": self.spec.format,
            "journals": len(self.journals),
            "partitions": len(self.partitions) if self.is_known else None,
            "rows": self.rows if self.is_known else None,
            "content_bytes": self.content_bytes if self.is_known else None,
            "unfit_records": self.unfit_records if self.is_known else None,
            "blocked": self.is_blocked if self.is_known else None,
            "lag_bytes": self.lag_bytes if self.is_known else None,
            "is_made": is_made if self.is_known else None,
            "problems": self.problems,
        }


def table_standing(
    spec: TableSpec,
    journals: Sequence[JournalSpec],
    heads: Mapping[str, int],
    session: MetastoreSession | None,
    at: datetime,
) -> TableStanding:
    """How the table of `spec` stands.

    Args:
        spec: its spec.
        journals: specs of its journals.
        heads: their write heads, by name.
        session: the metastore; None if there is none to ask.
        at: the time now.

    Raises: GazetteError: the metastore broke off.
    """
    standing = TableStanding(spec=spec, is_known=session is not None)
    standing.problems += map(str, problems_with_journals(spec, journals, at))
    table = session.table(spec.schema, spec.stored_table) if session is not None else None
    if session is not None and table is not None:
        standing.location = table.location
        standing.as_text = text_columns(spec, table)
        _look_at(standing, session, table)
    # From accounts alone. A restored metastore may hold less, or more, than any cursor that was stored elsewhere says.
    held = standing.held
    for journal in journals:
        ranges = held.get(journal.name, [])
        end = max((high for _, high in ranges), default=0)
        holes = tuple(subtract_ranges([(0, end)], ranges))
        standing.journals.append(
            JournalStanding(journal.name, end, heads.get(journal.name, 0), holes)
        )
    if standing.is_known and table is None and journals and not standing.problems:
        why = (
            "wait for the flush interval, or see the ticks of the sensor `fragments`"
            if any(heads.values())
            else "its journals are empty"
        )
        standing.problems.append(f"the table is not made yet: {why}")
    return standing


def _look_at(standing: TableStanding, session: MetastoreSession, table: HiveTable) -> None:
    """Take Hive partitions, and what is wrong with the table itself."""
    spec = standing.spec
    if not is_current(spec, table):
        standing.problems.append(
            "the table is not as its spec says yet: see the ticks of the sensor `fragments`"
        )
    try:
        standing.partitions = partition_standings(session, table)
    except GazetteError as err:
        standing.problems.append(str(err))
    finding = standing.findings
    if finding is not None and finding.is_error:
        standing.problems.append(finding.text)


def partition_standings(session: MetastoreSession, table: HiveTable) -> list[PartitionStanding]:
    """All Hive partitions of a table, or the table itself if it has none, by their accounts.

    Raises: GazetteError: the metastore broke off, or accounts cannot be read.
    """
    book = AccountBook(session, table)
    return [PartitionStanding(e.key, e.location, e.state) for e in book.every()]


STALLED_S: Final = 300
"""Seconds that what a store has may be unregistered before its journal is said to stall."""

_PAGE: Final = 100
_ALL: Final = (0, (1 << 63) - 1)


def overdue(
    source: FragmentSource,
    standing: TableStanding,
    now_s: float,
    *,
    from_begin: bool = False,
    on_error: Callable[[str, GazetteError], object] | None = None,
) -> list[str]:
    """Why journals of a table stall, one text a journal; none if the table keeps up.

    Args:
        source: lists fragments.
        standing: how the table stands, as a metastore says.
        now_s: unix seconds.
        from_begin: whether to list journals from their begin; else only the next fragments behind
            what is registered.
        on_error: called with why a journal cannot be listed; the others are looked at. None: that is raised.

    Raises: GazetteError: brokers cannot be reached.
    """
    # What is in none, once a journal: it may have as many Hive partitions as fragments.
    missing = {journal: subtract_ranges([_ALL], held) for journal, held in standing.held.items()}

    def is_overdue(fragment: Fragment, journal: str) -> bool:
        if not fragment.backing_store or not fragment.content_length or is_aside(fragment):
            return False
        if now_s - fragment.mod_time < STALLED_S:
            return False
        holes = missing.get(journal, [_ALL])
        index = bisect_right(holes, fragment.begin, key=itemgetter(1))
        return index < len(holes) and holes[index][0] < fragment.end

    found: list[str] = []
    for each in standing.journals:
        if not from_begin and not each.lag_bytes:
            continue
        try:
            if from_begin:
                fragments = all_fragments(source, each.journal)
            else:
                fragments = iter(source.fragments(each.journal, each.registered, _PAGE))
            first = next((f for f in fragments if is_overdue(f, each.journal)), None)
        except GazetteError as err:
            if on_error is None:
                raise
            on_error(each.journal, err)
            continue
        if first is not None:
            since = datetime.fromtimestamp(first.mod_time, UTC).strftime("%Y-%m-%d %H:%M:%S")
            found.append(
                f"{each.journal} stalls: a store has its bytes from {first.begin} on since {since} "
                "UTC, and no Hive partition has them: the ticks of the sensor `fragments` say why "
                "(is it running?)"
            )
    return found
