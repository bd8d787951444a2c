"""What Dagster calls the things of a typed table, and what is known of them before anything ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from dagster import (
    AssetKey,
    TableColumn,
    TableColumnConstraints,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
)

from gazette_platform.assets.automation import EACH_MINUTE
from gazette_platform.assets.raw import table_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.lake import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec

# What is not a row after that is late, where runs go on without end; three runs may have passed by then.
_FRESH_S_MIN: Final = 60.0
_FRESH_RUNS: Final = 3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSources:
    """A typed table as automation asks about it: see `gazette_platform.assets.automation.Sourced`."""

    name: str
    sources: Mapping[str, str]
    cron: str
    code_version: str
    retention: str

    @classmethod
    def of(cls, spec: TypedSpec) -> TypedSources:
        """Those of a spec."""
        return cls(
            name=spec.name,
            sources={"raw": spec.source},
            cron=spec.cron or EACH_MINUTE,
            code_version=spec.digest,
            retention=spec.retention,
        )


def typed_pairs(raws: Iterable[TableSpec]) -> list[tuple[TableSpec, TypedSpec]]:
    """Raw tables that have a typed one, each with that."""
    return [(raw, raw.typed) for raw in raws if raw.typed is not None]


def typed_key(spec: TypedSpec) -> AssetKey:
    """Asset key of the table."""
    return table_key(spec.name)


def quarantine_key(spec: TypedSpec) -> AssetKey:
    """Asset key of its quarantine."""
    return table_key(spec.quarantine)


def backfill_key(spec: TypedSpec) -> AssetKey:
    """Asset key of its backfills. Names of tables have two parts, so this is none."""
    return AssetKey(["backfills", *typed_key(spec).path])


def maintenance_key(spec: TypedSpec) -> AssetKey:
    """Asset key of its upkeep, likewise."""
    return AssetKey(["maintenance", *typed_key(spec).path])


def pool_of(spec: TypedSpec) -> str:
    """The pool, of one, of all that writes to the table. Runs fence each other as well: it spares work in vain."""
    return f"iceberg.{spec.name}"


def fresh_within_s(raw: TableSpec, spec: TypedSpec) -> float:
    """Seconds after which what a store has is to be rows."""
    if spec.every_s:
        return max(_FRESH_S_MIN, _FRESH_RUNS * spec.every_s)
    return raw.fresh_within_s


def column_schema(spec: TypedSpec) -> TableSchema:
    """The columns, those of the system last, with the partitions that are made of each."""
    parts: dict[str, list[str]] = {}
    for each in spec.partitions:
        name = "partition column" if each.transform == "identity" else f"partition: {each.text}"
        parts.setdefault(each.column, []).append(name)
    return TableSchema(
        columns=[
            TableColumn(
                column.name,
                column.type,
                column.comment or None,
                constraints=TableColumnConstraints(other=parts.get(column.name)),
            )
            for column in spec.all_columns
        ]
    )


def column_lineage(raw: TableSpec, spec: TypedSpec) -> TableColumnLineage:
    """Which column of the raw table each column is made of.

    Those of a JSON Schema may be of keys that the raw table has no column of, and those of segments are made of the
    journal's name, for which a raw table has its own column.
    """
    by_key = {column.key: column.name for column in raw.columns}
    segments = {partition.name: partition.column for partition in raw.partitions}
    envelope = by_key.get("after") or by_key.get("payload") if spec.change_data else None
    deps: dict[str, list[TableColumnDep]] = {}
    for column in spec.columns:
        # A segment that the raw spec does not describe has a column of the same name.
        name = (
            segments.get(column.segment, column.segment)
            if column.segment
            else envelope or by_key.get(column.key)
        )
        if name:
            deps[column.name] = [TableColumnDep(table_key(raw.name), name)]
    return TableColumnLineage(deps)
