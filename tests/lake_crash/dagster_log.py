"""What a home of Dagster says of a case's table. All that is known here of Dagster's partition keys is in this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dagster import AssetKey

from gazette_platform.assets.raw import time_partition
from gazette_platform.lake.raw.account_book import fold
from gazette_platform.sensors.events import DATA_VERSION, data_version
from tests.lake_crash.verdict import Account, Told

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagster import DagsterInstance

    from gazette_platform.lake import PartitionAccount

__all__ = ["DagsterLog", "account_of", "as_told", "read_log"]


class DagsterLog(NamedTuple):
    """Of one table, by Dagster's partition keys."""

    told: dict[str, list[Told]]
    """All events, the oldest first."""
    partitions: frozenset[str]
    """Its dynamic partitions."""


def as_told(parts: Sequence[PartitionAccount]) -> dict[str, Account]:
    """What the metastore says of Dagster's partitions; each is a time of all journals.

    Args:
        parts: of Hive partitions.
    """
    return {time_partition(time.time): account_of(time.parts) for time in fold(parts)}


def account_of(parts: Sequence[PartitionAccount]) -> Account:
    """Of some Hive partitions of one time."""
    (whole,) = fold(parts)
    return Account(
        whole.rows,
        whole.fragments,
        sum(part.state.covered_bytes for part in parts),
        data_version(whole),
    )


def read_log(instance: DagsterInstance, database: str, table: str) -> DagsterLog:
    """Events and partitions of a table."""
    told: dict[str, list[Told]] = {}
    for event in _materializations(instance, AssetKey([database, table])):
        told.setdefault(event.partition, []).append(_told(event))
    known = instance.get_dynamic_partitions(f"{database}.{table}")
    return DagsterLog(told, frozenset(known))


def _materializations(instance: DagsterInstance, asset: AssetKey) -> Iterator[Any]:
    """All of an asset, the oldest first."""
    found = instance.fetch_materializations(asset, limit=1000, ascending=True)
    while True:
        yield from (record.asset_materialization for record in found.records)
        if not found.has_more:
            return
        found = instance.fetch_materializations(
            asset, limit=1000, ascending=True, cursor=found.cursor
        )


def _told(event: Any) -> Told:
    values = {name: value.value for name, value in event.metadata.items()}
    return Told(
        version=event.tags[DATA_VERSION],
        rows=values.get("dagster/partition_row_count"),
        added=values.get("rows_added"),
        is_repair="rows_moved" in values,
    )
