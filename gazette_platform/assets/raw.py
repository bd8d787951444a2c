"""Dagster's partition keys of a raw table: the times of its Hive partitions.

External assets of table specs: the raw table, and the journals that it is made of.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from dagster import (
    AssetKey,
    AssetSpec,
    DynamicPartitionsDefinition,
    FreshnessPolicy,
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
)

from gazette_platform.lake.catalog_settings import HIVE
from gazette_platform.lake.raw.account_book import WHOLE, Time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.hive import HiveColumn
    from gazette_platform.lake import RefusedSpec, TableSpec


def time_partition(time: Time) -> str:
    """Dagster's partition key of a time: its values, distinct for the times of one table.

    >>> time_partition(Time(2, "date=2026-01-31/hour=5")), time_partition(Time(1, "all"))
    ('2026-01-31/5', 'all')
    """
    return _values(time.key)


def parse_partition(key: str, columns: Sequence[str], own: Iterable[int]) -> Time | None:
    """Return the time that a partition key of Dagster is the key of.

    >>> parse_partition("5", ["origin", "hour"], [1])
    Time(own=1, key='hour=5')

    Args:
        key: Dagster's.
        columns: names of the table's partition columns.
        own: how many of them, the first ones, names of journals give; in more than one way if they differ in shape.

    Returns: None: it is not a key of this table, such as one that a person added in the UI.
    """
    names, parts = list(columns), key.split("/")
    if key == WHOLE and len(names) in own:
        return Time(len(names), WHOLE)
    count = len(names) - len(parts)
    return Time(count, _named(names[count:], parts)) if count in own else None


def _values(key: str) -> str:
    # A percent sign within a value has digits after it.
    values = [part.partition("=")[2] or "%" for part in key.split("/")]
    return key if key == WHOLE else "/".join(values)


def _named(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = zip(names, values, strict=True)
    return "/".join(f"{name}={'' if value == '%' else value}" for name, value in pairs)


# What the page of an asset says of it. Under Automation the page names the sensor that fills it.
_TABLE_TEXT = """\
{comment}

Raw table of the journals `{selector}`. You do not run it: a sensor registers the files that brokers store, and \
reports them here."""
_JOURNALS_TEXT = """\
The journals `{selector}`, the source of table `{table}`. Of each journal you see the end (`write_head`), the offset up \
to which the table has it (`registered`), and the difference (`lag_bytes`). Offsets count bytes from a journal's begin."""

# Names of tables have two parts, so this is none.
SPECS_KEY = AssetKey("table_specs")


def table_key(table: str) -> AssetKey:
    """Asset key of the raw table ``schema.table``; such names need no escaping."""
    return AssetKey(table.split("."))


def journals_key(table: str) -> AssetKey:
    """Asset key of the journals of the raw table ``schema.table``."""
    return AssetKey(["journals", *table.split(".")])


def table_partitions(table: str) -> DynamicPartitionsDefinition:
    """One dynamic partition per time of the table: see `gazette_platform.lake.raw.account_book`."""
    return DynamicPartitionsDefinition(name=table)


def journals_partitions(table: str) -> DynamicPartitionsDefinition:
    """One dynamic partition per journal of the table."""
    return DynamicPartitionsDefinition(name=f"journals.{table}")


def refused_asset_specs(refused: Iterable[RefusedSpec]) -> list[AssetSpec]:
    """Assets of tables whose spec is refused, so that they are seen with what is wrong, and not gone."""
    return [
        AssetSpec(
            table_key(table),
            description="The table spec is not valid: see the check.",
            group_name="raw",
            kinds={"hive"},
            partitions_def=table_partitions(table),
        )
        for table in sorted({bad.table for bad in refused if bad.table})
    ]


def column_schema(spec: TableSpec, partitions: Iterable[HiveColumn] | None = None) -> TableSchema:
    """Return the columns of a table for Dagster's catalog, partition columns last.

    Args:
        spec: of the table.
        partitions: its partition columns; None: those that the spec describes.
    """
    described = {p.column: p for p in spec.partitions}
    path = (
        [(c.name, c.type) for c in partitions]
        if partitions is not None
        else [(p.column, p.type) for p in spec.partitions]
    )
    data = [TableColumn(c.name, c.parsed.hive, c.comment or None) for c in spec.columns]
    return TableSchema(
        columns=data
        + [
            partition_column(name, kind, described[name].comment if name in described else "")
            for name, kind in path
        ]
    )


def partition_column(name: str, kind: str, text: str = "") -> TableColumn:
    """Return a partition column of a table."""
    return TableColumn(
        name,
        kind,
        text or "From the path of the files.",
        constraints=TableColumnConstraints(other=["partition column"]),
    )


def describes_partitions(spec: TableSpec, partitions: Iterable[HiveColumn]) -> bool:
    """Return whether a spec describes all partition columns of its table."""
    return {c.name for c in partitions} <= {p.column for p in spec.partitions}


def specs_asset_spec() -> AssetSpec:
    """The folder of table specs, whose check has what is wrong with any file."""
    return AssetSpec(
        SPECS_KEY,
        description="The folder of table specs, as the sensor `fragments` last read it.",
        group_name="raw",
        kinds={"yaml"},
    )


def _described(spec: TableSpec) -> str:
    """What a person needs to know of a raw table. Lists of assets show the first line."""
    return _TABLE_TEXT.format(comment=spec.comment, selector=spec.selector).strip()


def raw_asset_specs(specs: Iterable[TableSpec], *, catalog: str = HIVE) -> list[AssetSpec]:
    """External assets of the tables known when definitions load.

    A spec added later works at once: its events appear under the same keys. Sensor `catalog` has
    Dagster load the definitions again, which adds its description, lineage and checks.

    Args:
        specs: the tables.
        catalog: what Trino calls the catalog that they are in.
    """
    assets: list[AssetSpec] = []
    for spec in specs:
        assets.append(
            AssetSpec(
                journals_key(spec.name),
                description=_JOURNALS_TEXT.format(selector=spec.selector, table=spec.name),
                group_name="journals",
                kinds={"gazette"},
                owners=spec.owners,
                tags=spec.tags,
                partitions_def=journals_partitions(spec.name),
                metadata={"selector": spec.selector},
            )
        )
        assets.append(
            AssetSpec(
                table_key(spec.name),
                deps=[journals_key(spec.name)],
                description=_described(spec),
                group_name="raw",
                kinds={"hive", spec.format},
                owners=spec.owners,
                tags=spec.tags,
                partitions_def=table_partitions(spec.name),
                freshness_policy=FreshnessPolicy.time_window(
                    fail_window=timedelta(seconds=spec.fresh_within_s),
                    warn_window=timedelta(seconds=spec.fresh_within_s / 2),
                ),
                metadata={
                    "dagster/table_name": f"{catalog}.{spec.name}",
                    "dagster/column_schema": column_schema(spec),
                    "spec_digest": MetadataValue.text(spec.digest),
                },
            )
        )
    return assets
