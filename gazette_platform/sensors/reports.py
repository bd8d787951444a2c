"""Data versions of Dagster's partitions: text that changes exactly when what queries read does.

Dagster's events of the times of a table, and the differences that a tick has to report.

Accounts in the metastore say what is registered. Dagster's own log says what was reported. An event is
made from the accounts of all Hive partitions of a time, and from the newest event of that time, never from the act of
registering, so it does not matter which process registered, or which ended before it could report. Added up, the
events of a time give its accounts, however often ticks were repeated.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

from dagster import AssetKey, AssetRecordsFilter, DagsterEventType

from gazette_platform.assets.raw import time_partition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from dagster import AssetMaterialization, DagsterInstance

    from gazette_platform.lake.raw.times import TimeAccount

DATA_VERSION: Final = "dagster/data_version"
_TAG_CHARACTERS_MAX = 63


def data_version(account: TimeAccount) -> str:
    """The covered offsets; or a digest of them where they are of several journals, or more than Dagster has room for."""
    text = account.data_version
    if not text:
        return "empty"
    if len(text) <= _TAG_CHARACTERS_MAX:
        return text.replace(" ", "_")
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_ROWS = "dagster/row_count"
_ROWS_KNOWN = "rows_known"
_UNCOUNTED = "partitions_uncounted"

# Of others, in a row, that are looked past.
_EVENTS_MAX = 20
# Events asked for in one query.
_BATCH = 500


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the newest event of a partition with numbers says that it holds."""

    fragments: int = 0
    content_bytes: int = 0
    rows: int | None = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What an account has more than was reported; less, if files were moved out of it."""

    fragments: int
    content_bytes: int
    rows: int | None
    is_first: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of a whole table."""

    known: int = 0
    """Of all partitions whose rows are known."""
    uncounted: int = 0
    """How many partitions hold something that is not counted yet."""

    @property
    def metadata(self) -> dict[str, int]:
        """What an event says of it."""
        if self.uncounted:
            return {_ROWS_KNOWN: self.known, _UNCOUNTED: self.uncounted}
        return {_ROWS: self.known}

    @classmethod
    def of(cls, event: AssetMaterialization) -> TableRows | None:
        """What an event has said of it; None: nothing."""
        values = {name: value.value for name, value in event.metadata.items()}
        rows, known, uncounted = map(values.get, (_ROWS, _ROWS_KNOWN, _UNCOUNTED))
        if isinstance(rows, int):
            return cls(known=rows)
        if isinstance(known, int) and isinstance(uncounted, int):
            return cls(known=known, uncounted=uncounted)
        return None


class Told(Protocol):
    """Answers what was reported to Dagster."""

    def versions(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, str]:
        """Data version of the newest event of each of `partitions` that has one."""
        ...

    def totals(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, Totals]:
        """What the newest event of each of `partitions` says, of those that have one."""
        ...

    def rows(self, asset: AssetKey) -> TableRows | None:
        """Rows of the table, as its newest event says; none before the first one, None if not known."""
        ...

    def partitions(self, name: str, keys: Sequence[str]) -> Collection[str]:
        """Those of `keys` that the dynamic partitions `name` have."""
        ...

    def known(self, name: str, after: str, limit: int) -> tuple[Sequence[str], str]:
        """Keys of the dynamic partitions `name`, at most `limit`, and where to go on.

        Args:
            name: of the partitions.
            after: where to go on, of the answer before; empty: at the first one.
            limit: of keys.

        Returns: keys, in the order in which Dagster got them; and text, empty if there are no more.
        """
        ...


def untold(accounts: Sequence[TimeAccount], versions: Mapping[str, str]) -> list[TimeAccount]:
    """Those of `accounts` that Dagster does not know as they are.

    Args:
        accounts: one a time.
        versions: data version of the newest event, by Dagster's partition key.
    """
    return [a for a in accounts if versions.get(time_partition(a.time)) != data_version(a)]


def added_since(account: TimeAccount, told: Totals | None) -> Added:
    """What is more in `account` than was reported."""
    before = told or Totals()
    is_known = account.rows is not None and before.rows is not None
    return Added(
        fragments=account.fragments - before.fragments,
        content_bytes=account.content_bytes - before.content_bytes,
        rows=(account.rows or 0) - (before.rows or 0) if is_known else None,
        is_first=told is None,
    )


def totals_of(account: TimeAccount) -> Totals:
    """What an event of `account` says."""
    return Totals(
        fragments=account.fragments, content_bytes=account.content_bytes, rows=account.rows
    )


@final
class RowTotal:
    """Rows of a whole table, from one of a tick's events to the next.

    Args:
        told: what was reported before the tick.
        asset: of the table.
    """

    def __init__(self, told: Told, asset: AssetKey) -> None:
        self._told = told
        self._asset = asset
        self._rows: TableRows | None = None
        self._partitions: dict[str, int | None] = {}

    def now(self) -> TableRows | None:
        """Return the total after all events so far; None: not known."""
        return self._rows if self._partitions else self._told.rows(self._asset)

    def after(self, partition: str, rows: int | None, told: Totals | None) -> TableRows | None:
        """The total after an event that says how many rows a partition has; None: not known.

        Args:
            partition: its key.
            rows: that it has.
            told: what was reported of it before this tick.
        """
        if not self._partitions:
            self._rows = self._told.rows(self._asset)
        before = self._partitions.get(partition, (told or Totals()).rows)
        self._partitions[partition] = rows
        if self._rows is not None:
            self._rows = TableRows(
                known=self._rows.known + (rows or 0) - (before or 0),
                uncounted=max(0, self._rows.uncounted + (rows is None) - (before is None)),
            )
        return self._rows


@final
class InstanceTold:
    """What a Dagster instance has in its log.

    Args:
        instance: of the sensor's tick.
    """

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance

    def versions(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, str]:
        """Data version of the newest event of each of `partitions` that has one; one query."""
        if not partitions:
            return {}
        tags = self._instance.event_log_storage.get_latest_tags_by_partition(
            asset,
            DagsterEventType.ASSET_MATERIALIZATION,
            [DATA_VERSION],
            asset_partitions=list(partitions),
        )
        return {key: found[DATA_VERSION] for key, found in tags.items() if DATA_VERSION in found}

    def totals(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, Totals]:
        """What the newest event with numbers says of each of `partitions`; two queries for 500 of them.

        Anybody may report others, in the UI, say: of such partitions some more events are asked for.
        """
        found: dict[str, Totals] = {}
        for start in range(0, len(partitions), _BATCH):
            newest = self._instance.get_latest_storage_id_by_partition(
                asset,
                DagsterEventType.ASSET_MATERIALIZATION,
                set(partitions[start : start + _BATCH]),
            )
            if not newest:
                continue
            only = AssetRecordsFilter(asset_key=asset, storage_ids=list(newest.values()))
            for event in self._events(only, len(newest)):
                totals = _totals(event) or self._older(asset, str(event.partition))
                if totals is not None:
                    found[str(event.partition)] = totals
        return found

    def _older(self, asset: AssetKey, partition: str) -> Totals | None:
        """What the newest event of a partition with numbers says, if it is not the newest of all."""
        only = AssetRecordsFilter(asset_key=asset, asset_partitions=[partition])
        found = map(_totals, self._events(only, _EVENTS_MAX))
        return next((totals for totals in found if totals is not None), None)

    def _events(self, only: AssetRecordsFilter, limit: int) -> Iterator[AssetMaterialization]:
        for record in self._instance.fetch_materializations(only, limit=limit).records:
            if record.asset_materialization is not None:
                yield record.asset_materialization

    def partitions(self, name: str, keys: Sequence[str]) -> Collection[str]:
        """Those of `keys` that the dynamic partitions `name` have; one query.

        There may be a million others, after years of hours.
        """
        return frozenset(self._instance.get_existing_dynamic_partitions(name, keys))

    def known(self, name: str, after: str, limit: int) -> tuple[Sequence[str], str]:
        """A page of the keys of the dynamic partitions `name`; see `Told`. One query."""
        page = self._instance.get_paginated_dynamic_partitions(
            name, limit, ascending=True, cursor=after or None
        )
        return page.results, page.cursor if page.has_more else ""

    def rows(self, asset: AssetKey) -> TableRows | None:
        """Rows of the table, by its newest event that has them; one query or two."""
        only = AssetRecordsFilter(asset_key=asset)
        for limit in (1, _EVENTS_MAX):
            events = list(self._events(only, limit))
            if not events:
                return TableRows()
            # Anybody may report others, in the UI, say.
            ours = next((event for event in events if _totals(event) is not None), None)
            if ours is not None:
                return TableRows.of(ours)
        return None


def _totals(event: AssetMaterialization) -> Totals | None:
    """What an event says that a partition holds; None: it has no numbers."""
    values = {name: value.value for name, value in event.metadata.items()}
    fragments, content_bytes = values.get("fragments"), values.get("content_bytes")
    if not isinstance(fragments, int) or not isinstance(content_bytes, int):
        return None
    rows = values.get("dagster/partition_row_count")
    return Totals(
        fragments=fragments,
        content_bytes=content_bytes,
        rows=rows if isinstance(rows, int) else None,
    )
