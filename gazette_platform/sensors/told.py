"""What Dagster was told of Hive partitions, and what is to be told: whatever differs.

Accounts in the metastore say what is registered. Dagster's own log says what it was told. An event is
made from the account and from the newest event of its Hive partition, never from the act of
registering, so it does not matter who registered, or what ended before it could tell. Added up, the
events of a Hive partition give its account, however often ticks were repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from dagster import AssetKey, AssetRecordsFilter, DagsterEventType

from gazette_platform.sensors.keys import table_partition
from gazette_platform.sensors.versions import DATA_VERSION, data_version

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster import DagsterInstance

    from gazette_platform.lake import PartitionAccount
    from gazette_platform.lake.partition_state import PartitionState

__all__ = ["Added", "InstanceTold", "RowTotal", "Told", "Totals", "added_since", "untold"]

_ROWS = "dagster/row_count"

# Of others, in a row, that are looked past.
_EVENTS_MAX = 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the newest event of a Hive partition with numbers says that it holds."""

    fragments: int = 0
    content_bytes: int = 0
    rows: int | None = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What an account has more than was told; less, if files were moved out of it."""

    fragments: int
    content_bytes: int
    rows: int | None
    is_first: bool


class Told(Protocol):
    """Answers what Dagster was told."""

    def versions(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, str]:
        """Data version of the newest event of each of `partitions` that has one."""
        ...

    def totals(self, asset: AssetKey, partition: str) -> Totals | None:
        """What the newest event of a partition says; None if there is none."""
        ...

    def rows(self, asset: AssetKey) -> int | None:
        """Rows of the table, as its newest event says; 0 before the first one, None if not known."""
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


def untold(
    accounts: Sequence[PartitionAccount], versions: Mapping[str, str]
) -> list[PartitionAccount]:
    """Those of `accounts` that Dagster does not know as they are; the last one of each key."""
    latest = {account.key: account for account in accounts}
    return [
        a for a in latest.values() if versions.get(table_partition(a.key)) != data_version(a.state)
    ]


def added_since(state: PartitionState, told: Totals | None) -> Added:
    """What is more in `state` than was told."""
    before = told or Totals()
    is_known = state.rows is not None and before.rows is not None
    return Added(
        fragments=state.fragments - before.fragments,
        content_bytes=state.content_bytes - before.content_bytes,
        rows=(state.rows or 0) - (before.rows or 0) if is_known else None,
        is_first=told is None,
    )


@final
class RowTotal:
    """Rows of a whole table, from one of a tick's events to the next.

    Args:
        told: what was told before the tick.
        asset: of the table.
    """

    def __init__(self, told: Told, asset: AssetKey) -> None:
        self._told = told
        self._asset = asset
        self._rows: int | None = None
        self._partitions: dict[str, int | None] = {}

    def after(self, partition: str, rows: int | None, told: Totals | None) -> int | None:
        """The total after an event that says how many rows a partition has; None: not known.

        Args:
            partition: its key.
            rows: that it has.
            told: of it before this tick.
        """
        if not self._partitions:
            self._rows = self._told.rows(self._asset)
        before = self._partitions.get(partition, (told or Totals()).rows)
        self._partitions[partition] = rows
        is_known = self._rows is not None and rows is not None and before is not None
        self._rows = (self._rows or 0) + (rows or 0) - (before or 0) if is_known else None
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

    def totals(self, asset: AssetKey, partition: str) -> Totals | None:
        """What the newest event of a partition says that tells numbers; None if there is none.

        Anybody may report others, in the UI, say.
        """
        only = AssetRecordsFilter(asset_key=asset, asset_partitions=[partition])
        for record in self._instance.fetch_materializations(only, limit=_EVENTS_MAX).records:
            event = record.asset_materialization
            values = {n: v.value for n, v in event.metadata.items()} if event is not None else {}
            fragments, content_bytes = values.get("fragments"), values.get("content_bytes")
            if isinstance(fragments, int) and isinstance(content_bytes, int):
                rows = values.get("dagster/partition_row_count")
                return Totals(
                    fragments=fragments,
                    content_bytes=content_bytes,
                    rows=rows if isinstance(rows, int) else None,
                )
        return None

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

    def rows(self, asset: AssetKey) -> int | None:
        """Rows of the table, as its newest event says; one query.

        Once the rows of a Hive partition are not known, those of the table are not until it is told anew.
        """
        records = self._instance.fetch_materializations(asset, limit=1).records
        found = records[0].asset_materialization if records else None
        if found is None:
            return 0
        rows = found.metadata[_ROWS].value if _ROWS in found.metadata else None
        return rows if isinstance(rows, int) else None
