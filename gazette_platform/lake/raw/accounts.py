"""Accounts of a journal's Hive partitions: which of its directories engines read, and what is in them.

They say, without any listing of files, which bytes were registered in two Hive partitions, or twice
in one. Cost: a call for the names of the Hive partitions of the journal, and one for those of the
offsets that are looked at, with a few of their neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.errors import LakeError
from gazette_platform.hive import partition_name
from gazette_platform.lake.raw.overlaps import in_time, overlapping, walk_outward
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.planning import directory_of
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.spec.layout import (
    Layout,
    journal_values,
    partition_columns,
    plain_location,
)
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.spec.layout import PartitionColumn, StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

_STEP = 24
_BATCH = 100
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
    session: MetastoreSession,
    spec: TableSpec,
    table: HiveTable,
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
    layout = Layout.parse(table.parameters[LAYOUT])
    columns = partition_columns(spec, layout)
    reader = _Reader(roots, journal)
    for f in anchors:
        if f.backing_store:
            reader.note(f.backing_store, directory_of(f))
    # Brokers list no covered fragment, so its directory may appear in no listing. Only accounts
    # still know of it.
    accounts = reader.accounts
    for _, directory in sorted(reader.known.values()):
        try:
            texts = layout.match(directory)
            values = tuple(c.value(t) for c, t in zip(columns, texts, strict=True))
        except LakeError:
            # One odd directory must not hide the overlaps of all others.
            continue  # not of this table; registration says so where it matters
        accounts.values[directory] = values
    if not columns:
        reader.take((), table.location, PartitionState.from_parameters(table.parameters))
        return accounts

    def meets(names: Sequence[str]) -> bool:
        is_met = False
        for partition in session.partitions_named(table, names):
            state = PartitionState.from_parameters(partition.parameters)
            reader.take(partition.values, partition.location, state)
            # The prefix of names also matches `a/b/c` for journal `a/b`, and its offsets say
            # nothing about this journal.
            is_met = is_met or (state.journal == journal and _meets(state, begin, end))
        return is_met

    keys = [c.name for c in table.partition_columns]
    touched = {partition_name(keys, values) for values in accounts.values.values()}
    names = sorted(
        session.partition_names(table, own_values(layout, columns, journal)), key=in_time
    )
    accounts.is_complete = walk_outward(names, touched, meets, step=_STEP, names_max=_NAMES_MAX)
    return accounts


def held_behind(
    session: MetastoreSession, spec: TableSpec, table: HiveTable, journal: str, offset: int
) -> int | None:
    """Up to where a Hive partition holds the journal behind `offset`; None: none does.

    The first one found counts. They are asked from the newest on, so nearly always that is one call.
    """
    # If a journal was deleted and made again, the former account reaches beyond the new head.
    ends = (state.ranges[-1][1] for state in _newest_first(session, spec, table, journal))
    return next((end for end in ends if end > offset), None)


def held_of_former(  # noqa: PLR0917
    session: MetastoreSession,
    spec: TableSpec,
    table: HiveTable,
    journal: str,
    kept: int,
    now: int,
) -> int | None:
    """Up to where a Hive partition holds a journal that was deleted and made again as it was before; None: none does.

    Args:
        kept: which journal was registered (`protocol.identity`), as the cursor has it; 0: not known. Then the newest account that
            knows its journal decides, which is nearly always the first.
        now: which journal has the name.
    """
    for state in _newest_first(session, spec, table, journal):
        # Accounts of former releases do not say which journal they are of. The cursor's knowledge
        # stands in for them.
        if is_another(state.created or kept, now):
            return state.ranges[-1][1]
        if not kept and state.created:
            return None
    return None


def _newest_first(
    session: MetastoreSession, spec: TableSpec, table: HiveTable, journal: str
) -> Iterator[PartitionState]:
    """Accounts of the journal's Hive partitions that hold something."""
    layout = Layout.parse(table.parameters[LAYOUT])
    columns = partition_columns(spec, layout)
    found = [PartitionState.from_parameters(table.parameters)] if not columns else []
    names = session.partition_names(table, own_values(layout, columns, journal)) if columns else []
    # A large table has many Hive partitions, and the answer is nearly always in the newest ones.
    names = sorted(names, key=in_time, reverse=True)
    for start in range(0, max(1, len(names)), _BATCH):
        found += [
            PartitionState.from_parameters(partition.parameters)
            for partition in session.partitions_named(table, names[start : start + _BATCH])
        ]
        yield from (state for state in found if state.journal == journal and state.ranges)
        found = []


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

    def take(self, values: tuple[str, ...], location: str, state: PartitionState) -> None:
        """Take the accounts of a Hive partition."""
        self.accounts.states[values] = state
        if state.journal not in ("", self.journal):
            return  # of a journal whose name continues this journal's name
        # Compare plain locations: one place has several spellings, such as `s3://` and `s3a://`, or
        # with and without a slash.
        plain = plain_location(location)
        found = self.known.get(plain)
        for base, store in self.bases.items():
            # Brokers may list nothing in the directory any more; then its path below the journal's
            # folder says where it is.
            if found is None and (plain == base or plain.startswith(f"{base}/")):
                found = (store, f"{self.journal}{plain[len(base) :]}")
        if found is not None:
            store, directory = found
            self.accounts.places[directory] = Place(store, directory, plain, values, state)


def own_values(layout: Layout, columns: Sequence[PartitionColumn], journal: str) -> list[str]:
    """Values of the partition columns that the journal's own name gives, in order."""
    return journal_values(layout, columns, journal) or []


def _meets(state: PartitionState, begin: int, end: int | None) -> bool:
    return any(high > begin and (end is None or low < end) for low, high in state.ranges)
