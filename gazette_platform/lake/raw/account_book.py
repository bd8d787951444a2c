"""Accounts of a raw table's Hive partitions, in the metastore: how they are found, read and changed, and taken together.

What a Hive partition holds is in its own parameters (`partition_state`). A table without partition columns is its own,
and only, Hive partition: its name and its values are empty. All who read or change accounts go through here.

There is one way to change them: `AccountBook.changing` takes the table's lock, the caller reads again, decides by what it
reads *now*, and `Change.put` writes. So a change is idempotent: repeated after a crash, or met by another process, it
finds the accounts as they are to be, and writes nothing. The lock lasts a minute: read files before, not within.

The first partition columns of a table are given by the names of its journals, the others by their path postfix, which
says when content was appended. Those others are a Hive partition's *time*. Ten journals by the hour make 876,000 Hive
partitions in ten years, and 87,600 times. The Hive partitions of a time are asked for by name: one a journal, which the
metastore finds by its index; it is never searched. So journals that are gone have to be named, too.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.errors import LakeError
from gazette_platform.hive import HivePartition, partition_name
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import in_time
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.spec.layout import (
    Layout,
    PartitionColumn,
    journal_values,
    partition_columns,
    partition_key,
    partition_values,
)
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gazette_platform.hive import HeldLock, HiveTable, MetastoreSession
    from gazette_platform.lake.spec.table_spec import TableSpec

COMMIT_MAX: Final = 50
"""Accounts that are written under one lock: a second or two, so that a tick ends in time, and well within half of the
lease on a slow metastore. A holder that outlives its lease of 60 s loses the lock to another registrar."""

_BATCH: Final = 100


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAccount:
    """A Hive partition as its accounts say, whoever changed them."""

    key: str
    """As `layout.partition_key` writes it."""
    values: tuple[str, ...]
    location: str
    journal: str
    state: PartitionState


@final
@dataclass(frozen=True)
class Entry:
    """A Hive partition of a table, or the table itself if it has none, as it was read."""

    name: str
    """As the metastore has it."""
    key: str
    """As `layout.partition_key` writes it."""
    partition: HivePartition

    @property
    def values(self) -> tuple[str, ...]:
        """Of the partition columns."""
        return self.partition.values

    @property
    def location(self) -> str:
        """Of its directory, as the metastore has it."""
        return self.partition.location

    @cached_property
    def state(self) -> PartitionState:
        """Its account. Raises: LakeError: another hand changed it."""
        return PartitionState.from_parameters(self.partition.parameters)

    def account(self, state: PartitionState | None = None) -> PartitionAccount:
        """Its account as it is reported, or the one that it has now."""
        state = self.state if state is None else state
        return PartitionAccount(
            key=self.key,
            values=self.values,
            location=self.location,
            journal=state.journal,
            state=state,
        )


@final
class AccountBook:
    """The accounts of one table.

    Args:
        session: the metastore.
        table: as it was read.

    Every method raises LakeError if the metastore cannot be reached, or the table was made by others.
    """

    def __init__(self, session: MetastoreSession, table: HiveTable) -> None:
        self._session = session
        self.table = table

    @classmethod
    def of(cls, session: MetastoreSession, spec: TableSpec) -> AccountBook:
        """Return the book of the table of `spec`. Raises: LakeError: it is not made yet."""
        table = session.table(spec.schema, spec.stored_table)
        if table is None or LAYOUT not in table.parameters:
            raise LakeError(
                f"{spec.name} is not made yet, so no file is in it (`gazctl lake list` says why)"
            )
        return cls(session, table)

    # ------------------------------------------------------------------- places

    @cached_property
    def layout(self) -> Layout:
        """Of its directories; it stays as long as the table does."""
        if LAYOUT not in self.table.parameters:
            raise LakeError(
                f"table {self.table.full_name} was made by others, so nothing of it is changed: drop it, or give the "
                "table spec another name"
            )
        return Layout.parse(self.table.parameters[LAYOUT])

    @cached_property
    def columns(self) -> list[PartitionColumn]:
        """Its partition columns, in the order of the layout's keys."""
        return [
            PartitionColumn(key=key, column=column.name, type=column.type)
            for key, column in zip(self.layout.keys, self.table.partition_columns, strict=True)
        ]

    def place(self, directory: str) -> tuple[str, ...]:
        """Return the values of the Hive partition of a directory. Raises: LakeError: it is not of this table's layout."""
        texts = self.layout.match(directory)
        return tuple(c.value(t) for c, t in zip(self.columns, texts, strict=True))

    def key(self, values: Iterable[str]) -> str:
        """Return the key of a Hive partition."""
        return partition_key(self.columns, values)

    def name(self, values: Sequence[str]) -> str:
        """Return the name of a Hive partition."""
        keys = [column.name for column in self.table.partition_columns]
        return partition_name(keys, tuple(values)) if keys else ""

    # ------------------------------------------------------------------- reading

    def refresh(self) -> HiveTable:
        """Read the table again: it may have got columns, which what is written must have, too."""
        current = self._session.table(self.table.database, self.table.name)
        if current is None:
            raise LakeError(f"table {self.table.full_name} was dropped meanwhile; it is made again")
        self.table = current
        return current

    def names(self, journal: str) -> list[str]:
        """Return the names of the Hive partitions that a journal may have, in the order of time.

        Those of journals whose names continue this journal's name are among them.
        """
        if not self.table.partition_columns:
            return [""]
        # The metastore sorts names as texts, and `hour=10` comes before `hour=9` then. Looks go on by time, and the newest
        # Hive partition answers most questions, so the order has to be that of numbers.
        own = journal_values(self.layout, self.columns, journal) or []
        return sorted(self._session.partition_names(self.table, own), key=in_time)

    def named(self, names: Sequence[str]) -> list[Entry]:
        """Return those of the Hive partitions with these names that exist."""
        if not self.table.partition_columns:
            return [self._entry(self._whole())] if names else []
        # By name, which the metastore finds by its index. It would evaluate a filter over values for all Hive partitions of
        # the table, and a table may have a million of them.
        return [self._entry(p) for p in self._session.partitions_named(self.table, names)]

    def at(self, values: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], Entry]:
        """Return those of the Hive partitions with these values that exist, by their values."""
        return {entry.values: entry for entry in self.named([self.name(v) for v in values])}

    def every(self) -> list[Entry]:
        """Return all Hive partitions."""
        if not self.table.partition_columns:
            return self.named([""])
        return [self._entry(p) for p in self._session.partitions(self.table)]

    def newest_first(self, journal: str) -> Iterator[PartitionState]:
        """Yield the accounts of the journal's Hive partitions that hold something."""
        # A large table has many Hive partitions, and the answer is nearly always in the newest ones.
        names = self.names(journal)[::-1]
        for start in range(0, len(names), _BATCH):
            for entry in self.named(names[start : start + _BATCH]):
                if entry.state.journal == journal and entry.state.ranges:
                    yield entry.state

    def _whole(self) -> HivePartition:
        table = self.table
        return HivePartition(values=(), location=table.location, parameters=table.parameters)

    def _entry(self, partition: HivePartition) -> Entry:
        return Entry(self.name(partition.values), self.key(partition.values), partition)

    # ------------------------------------------------------------------- writing

    @contextmanager
    def changing(self) -> Iterator[Change]:
        """Hold the sole right to change accounts. Read within, and put what is decided by that.

        Raises: LakeError: others hold the lock too long, or the table was dropped.
        """
        # Refresh under the lock: a registrar may have added columns since the caller read the table. Engines read a file by
        # the columns of its Hive partition, so one that is written with the former columns would show NULLs for ever.
        with self._session.accounts_lock(self.table.database, self.table.name) as lock:
            self.refresh()
            yield Change(self, self._session, lock)


@final
class Change:
    """The sole right to change the accounts of a table."""

    def __init__(self, book: AccountBook, session: MetastoreSession, lock: HeldLock) -> None:
        self._book = book
        self._session = session
        self._lock = lock

    def put(self, changed: Sequence[tuple[Entry, PartitionState]]) -> None:
        """Write new accounts of Hive partitions that were read within this scope. Other parameters stay."""
        if not changed:
            return
        # The lease may have ended while the accounts were read. Writing then would overwrite what the
        # new holder has counted.
        self._lock.require()
        table = self._book.table
        parts = [
            replace(entry.partition, parameters=state.within(entry.partition.parameters))
            for entry, state in changed
        ]
        if table.partition_columns:
            self._session.alter_partitions(table, parts)
        else:
            self._session.alter_table(replace(table, parameters=parts[0].parameters))

    def add(self, partition: HivePartition) -> Entry:
        """Add a Hive partition that does not exist, as was seen within this scope."""
        self._lock.require()
        self._session.add_partitions(self._book.table, [partition])
        return self._book.at([partition.values])[partition.values]

    def drop(self, entries: Sequence[Entry]) -> None:
        """Drop Hive partitions that were read within this scope; their files stay."""
        if entries:
            self._lock.require()
            self._session.drop_partitions(self._book.table, [entry.name for entry in entries])

    def alter(self, table: HiveTable) -> None:
        """Change the table itself, before accounts are read within this scope."""
        self._lock.require()
        # Columns of Hive partitions follow when the table evolves: over a million of them a cascade outlasts the lock.
        self._session.alter_table(table, is_cascading=False)
        self._book.refresh()


def partition_accounts(
    session: MetastoreSession, table: HiveTable, keys: Sequence[str]
) -> list[PartitionAccount]:
    """Return the accounts of those of the Hive partitions with these `keys` that exist, also of empty ones.

    Raises: LakeError: the metastore cannot be reached.
    """
    count = len(table.partition_columns)
    wanted = [values for key in keys if len(values := partition_values(key)) == count > 0]
    found = AccountBook(session, table).at(wanted).values() if wanted else ()
    # One without a journal was added by a person, or by a tick that died before it counted. It holds nothing to report.
    return [entry.account() for entry in found if entry.state.journal]


def held_beyond(book: AccountBook, journal: str, offset: int) -> int | None:
    """Return up to where a Hive partition holds the journal beyond `offset`; None: none does.

    The first one found counts. They are asked from the newest on, so nearly always that is one call.
    """
    # If a journal was deleted and made again, the former account reaches beyond the new head.
    ends = (state.ranges[-1][1] for state in book.newest_first(journal))
    return next((end for end in ends if end > offset), None)


def held_of_former(book: AccountBook, journal: str, known: int, now: int) -> int | None:
    """Return up to where a Hive partition holds a journal as it was before it was deleted and made again; None: none does.

    Args:
        book: of the table.
        journal: its name.
        known: which journal was registered (`protocol.offsets`), as the cursor has it; 0: not known. Then the newest
            account that knows its journal decides, which is nearly always the first.
        now: which journal has the name.
    """
    for state in book.newest_first(journal):
        # Brokers of Gazette do not say which journal it is, so accounts may not know. The cursor's
        # knowledge stands in for them.
        if is_another(state.created or known, now):
            return state.ranges[-1][1]
        if not known and state.created:
            return None
    return None


def adopt_journals(
    book: AccountBook, created: Mapping[str, int], *, is_dry_run: bool = False
) -> int:
    """Let accounts belong to the journals that have the names now. Idempotent.

    After etcd was set up again from a listing of specs, journals hold what they held and have other numbers
    (`protocol.offsets`). Nothing here proves it: a person says so.

    Args:
        book: of the table.
        created: by name, which journals exist.
        is_dry_run: change nothing.

    Returns: how many accounts belonged to others, or did not say.
    Raises: GazetteError: the metastore cannot be reached; what was done before is found done.
    """

    def adopted(entry: Entry) -> PartitionState | None:
        state = entry.state
        now = created.get(state.journal, 0)
        is_theirs = state.created and not is_another(state.created, now)
        return None if not now or not state.ranges or is_theirs else state.created_again(now)

    # Find them without the lock, which lasts a minute and less than reading all accounts takes. Decide again within it:
    # a registrar may have learned the journal meanwhile.
    names = [entry.name for entry in book.every() if adopted(entry) is not None]
    for start in range(0, 0 if is_dry_run else len(names), COMMIT_MAX):
        with book.changing() as change:
            found = [(e, adopted(e)) for e in book.named(names[start : start + COMMIT_MAX])]
            change.put([(entry, state) for entry, state in found if state is not None])
    return len(names)


WHOLE = "all"
"""The time of Hive partitions whose columns are all given by the names of their journals."""


class Time(NamedTuple):
    """A time of a table."""

    own: int
    """How many of the partition columns, the first ones, the journals' names give."""
    key: str
    """Of the others ``column=value/…``, as `layout.partition_key` writes them; `WHOLE` if there are none."""

    def of_journal(self, prefix: str) -> str:
        """The key of the Hive partition of the journal whose name gives the columns `prefix`."""
        if not self.own:
            return self.key
        return prefix if self.key == WHOLE else f"{prefix}/{self.key}"


# Of the journals of some tables; each has many Hive partitions.
@lru_cache(maxsize=10_000)
def own_columns(journal: str) -> int:
    """How many of the partition columns of its table the name of a journal gives.

    >>> own_columns("flights/origin=JFK/part=000"), own_columns("flights")
    (2, 0)

    Raises: LakeError: a key occurs twice in it, or has no value.
    """
    return len(Layout.of_directory(journal).keys)


def time_of(key: str, journal: str) -> Time:
    """The time of a Hive partition.

    >>> time_of("origin=JFK/part=000/hour=5", "flights/origin=JFK/part=000")
    Time(own=2, key='hour=5')
    >>> time_of("part=0", "logs/part=0"), time_of("all", "logs")
    (Time(own=1, key='all'), Time(own=0, key='all'))

    Args:
        key: of the Hive partition, as `layout.partition_key` writes it.
        journal: whose content it holds.
    """
    own = own_columns(journal)
    return Time(own, "/".join(key.split("/")[own:]) or WHOLE)


def time_of_directory(spec: TableSpec, journal: str, directory: str) -> Time:
    """The time of the Hive partition that fragments in a directory are in, or would be.

    Args:
        spec: of the raw table.
        journal: whose fragments they are.
        directory: below the prefix of their store; see `gazette_platform.lake.spec.layout.home_directory`.

    Raises: LakeError: a value in it is not of its column's type. ValidationError: it lacks a key that the spec describes.
    """
    layout = Layout.of_directory(directory)
    columns = partition_columns(spec, layout)
    texts = layout.match(directory)
    values = [column.value(text) for column, text in zip(columns, texts, strict=True)]
    return time_of(partition_key(columns, values), journal)


@final
@dataclass(frozen=True, kw_only=True)
class TimeAccount:
    """What the Hive partitions of a time hold together, as their accounts say."""

    time: Time
    parts: tuple[PartitionAccount, ...]
    """By key, the empty ones, too; at least one."""

    @cached_property
    def filled(self) -> tuple[PartitionAccount, ...]:
        """Those of the Hive partitions that hold something."""
        return tuple(part for part in self.parts if part.state.ranges)

    @property
    def fragments(self) -> int:
        """Fragments of all of them."""
        return sum(part.state.fragments for part in self.parts)

    @property
    def content_bytes(self) -> int:
        """Decompressed bytes of all of them."""
        return sum(part.state.content_bytes for part in self.parts)

    @property
    def rows(self) -> int | None:
        """Lines of all of them; None if those of some are not known."""
        return _sum(part.state.rows for part in self.parts)

    @property
    def unfit_records(self) -> int:
        """Records of all of them that do not fit the spec."""
        return sum(part.state.unfit_records for part in self.parts)

    @property
    def stored_bytes(self) -> int | None:
        """Sizes of all files; None if those of some are not known."""
        return _sum(part.state.stored_bytes for part in self.parts)

    @property
    def overlap_bytes(self) -> int:
        """Bytes that more than one fragment of a Hive partition holds."""
        return sum(part.state.overlap_bytes for part in self.parts)

    @property
    def gaps(self) -> int:
        """Holes between the bytes that each of them holds."""
        return sum(len(part.state.ranges) - 1 for part in self.filled)

    @property
    def data_version(self) -> str:
        """Text that changes exactly when that of a Hive partition does, or one comes or goes; empty: all are."""
        if not self.filled:
            return ""
        if not self.time.own:
            return self.filled[0].state.data_version
        texts = [f"{part.key} {part.state.data_version}" for part in self.filled]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]


def _sum(figures: Iterable[int | None]) -> int | None:
    total = 0
    for figure in figures:
        if figure is None:
            return None
        total += figure
    return total


def fold(accounts: Iterable[PartitionAccount]) -> list[TimeAccount]:
    """Accounts of Hive partitions by their times, in the order in which these come first.

    Args:
        accounts: of several of one Hive partition the last counts.
    """
    found: dict[Time, dict[str, PartitionAccount]] = {}
    for account in accounts:
        found.setdefault(time_of(account.key, account.journal), {})[account.key] = account
    return [
        TimeAccount(time=time, parts=tuple(parts[key] for key in sorted(parts)))
        for time, parts in found.items()
    ]


@final
class TimeReader:
    """Reads the accounts of all Hive partitions of some times.

    Args:
        session: the metastore.
        spec: the table's spec.
        table: the table as the metastore has it.
        journals: whose Hive partitions are looked for. What is not of the table's layout is left out.

    Raises: ValidationError: the spec does not describe the table.
    """

    def __init__(
        self, session: MetastoreSession, spec: TableSpec, table: HiveTable, journals: Iterable[str]
    ) -> None:
        self._session = session
        self._table = table
        layout = Layout.parse(table.parameters[LAYOUT])
        columns = partition_columns(spec, layout)
        self.columns = [column.column for column in columns]
        """Names of the partition columns."""
        self._prefixes: dict[int, set[str]] = {}
        for journal in journals:
            values = journal_values(layout, columns, journal)
            if values is not None:
                own = len(values)
                prefix = partition_key(columns[:own], values)
                self._prefixes.setdefault(own, set()).add(prefix)

    @property
    def own(self) -> list[int]:
        """How many columns names of journals give: one number, unless journals differ in shape."""
        return sorted(self._prefixes)

    @property
    def journals(self) -> int:
        """How many journals there are."""
        return sum(map(len, self._prefixes.values()))

    def read(
        self, times: Iterable[Time], known: Sequence[PartitionAccount] = ()
    ) -> list[TimeAccount]:
        """What is at `times`. Of a time without Hive partitions there is none.

        Args:
            times: to be read, besides those of `known`.
            known: accounts that need not be read.

        Raises: LakeError: the metastore cannot be reached.
        """
        wanted = dict.fromkeys([*(time_of(a.key, a.journal) for a in known), *times])
        have = {account.key for account in known}
        # Names are made from the journals that are known, also those that are gone: a search by time alone would read all.
        keys = [key for time in wanted for key in self._keys(time) if key not in have]
        return fold([*known, *self.accounts(keys)])

    def accounts(self, keys: Sequence[str]) -> list[PartitionAccount]:
        """Accounts of those of the Hive partitions with these keys that exist.

        Raises: LakeError: the metastore cannot be reached.
        """
        return partition_accounts(self._session, self._table, keys) if keys else []

    def _keys(self, time: Time) -> Iterator[str]:
        for prefix in sorted(self._prefixes.get(time.own, ())):
            yield time.of_journal(prefix)
