"""Hive partitions by time: those of all journals under which content of one time lies, taken together.

The first partition columns of a table are given by the names of its journals, the others by their path postfix,
which says when content was appended. Those others are a Hive partition's *time*. Ten journals by the hour
make 876,000 Hive partitions in ten years, and 87,600 times.

The Hive partitions of a time are asked for by name: one a journal, which the metastore finds by its index. It is never
searched. So journals that are gone have to be named, too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, final

from gazette_platform.lake.raw.accounts import partition_accounts
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.spec.layout import (
    Layout,
    journal_values,
    partition_columns,
    partition_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.accounts import PartitionAccount
    from gazette_platform.lake.spec.table_spec import TableSpec

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
