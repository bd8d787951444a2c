"""The sources of a rollup as they are now: their parts, their states, and their names in engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.errors import LakeError
from gazette_platform.hive import partition_name
from gazette_platform.lake.exact import VIEW_OF, excluded_digests
from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.lake.rollups.covers import Seen
from gazette_platform.lake.rollups.planning import SourceState
from gazette_platform.lake.rollups.statements import SourceTable
from gazette_platform.lake.spec_rules import EXACT_SUFFIX, LINES_SUFFIX
from gazette_platform.lake.tables import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.rollups.iceberg import IcebergTables
    from gazette_platform.lake.rollups.spec import RollupSpec

__all__ = ["Source", "read_sources"]


@final
@dataclass(frozen=True, slots=True)
class Source:
    """A source as it is now."""

    state: SourceState
    table: SourceTable
    columns: tuple[str, ...]
    """Names that a query has for its columns, those of partitions last."""
    locations: Mapping[str, str] = field(default_factory=dict)
    """Of a raw table: directories by name of the part."""
    unfit_records: int = 0
    """Of a raw table: records that do not fit its spec, by its accounts."""


def read_sources(
    session: MetastoreSession, tables: IcebergTables, spec: RollupSpec
) -> dict[str, Source]:
    """The sources of a rollup by alias.

    What is read of them later is at least what is reported here, unless it was pruned: see `whole`.

    Raises: LakeError: a table is not there, or neither a raw table nor Iceberg's; or a server or file
        cannot be reached.
    """
    found: dict[str, Source] = {}
    for alias, name in spec.sources.items():
        schema, _, table_name = name.partition(".")
        table = session.table(schema, table_name)
        if table is None:
            raise LakeError(f"{spec.name} waits for {name}, which is not made yet")
        if table.parameters.get(VIEW_OF) == f"{name}{LINES_SUFFIX}":
            table = session.table(schema, f"{table_name}{LINES_SUFFIX}") or table
        if LAYOUT in table.parameters:
            found[alias] = _raw(session, name, table)
        else:
            found[alias] = _iceberg(session, tables, name)
    return found


def _raw(session: MetastoreSession, name: str, table: HiveTable) -> Source:
    view_name = f"{name.partition('.')[2]}{EXACT_SUFFIX}"
    view = session.table(table.database, view_name)
    if view is None:
        raise LakeError(
            f"view {name}{EXACT_SUFFIX} is not made yet; the sensor makes it when it first audits "
            "the table"
        )
    excluded = excluded_digests(view)
    keys = [c.name for c in table.partition_columns]
    parts: dict[str, tuple[tuple[str, ...], Seen]] = {}
    locations: dict[str, str] = {}
    unfit_records = 0
    if keys:
        for partition in session.partitions(table):
            state = PartitionState.from_parameters(partition.parameters)
            part = partition_name(keys, partition.values)
            if state.ranges:  # else it is new, or all of it was pruned
                parts[part] = (partition.values, _seen(state, part, excluded))
                locations[part] = partition.location
                unfit_records += state.unfit_records
    else:
        state = PartitionState.from_parameters(table.parameters)
        if state.ranges:
            parts[""] = ((), _seen(state, "", excluded))
            locations[""] = table.location
            unfit_records = state.unfit_records
    return Source(
        SourceState(table=name, columns=tuple(keys), parts=parts),
        SourceTable(
            schema=table.database,
            table=view_name,
            is_iceberg=False,
            types={c.name: c.type for c in table.partition_columns},
        ),
        tuple(c.name for c in (*table.columns, *table.partition_columns)),
        locations,
        unfit_records,
    )


def _seen(state: PartitionState, name: str, excluded: dict[str, str]) -> Seen:
    notes = [f"twice-{state.overlap_bytes}"] if state.overlap_bytes else []
    notes += [f"without-{excluded[key]}" for key in ("*", name) if key in excluded]
    return Seen(state.journal, state.ranges, " ".join(notes), state.created, state.formerly)


def _iceberg(session: MetastoreSession, tables: IcebergTables, name: str) -> Source:
    schema, _, table_name = name.partition(".")
    table = tables.load_within(session, schema, table_name)
    if table is None:
        raise LakeError(f"{name} was dropped at this moment; the next run looks again")
    types = table.slice_types()
    columns: tuple[str, ...] = ()
    parts: dict[str, tuple[tuple[str, ...], Seen]] = {}
    if table.covers_path:
        covers = tables.read_covers(table)
        columns = covers.columns
        for values, cover in covers.slices.items():
            parts[partition_name(columns, values)] = (values, Seen(note=cover.digest))
    elif table.snapshot is not None:
        parts[""] = ((), Seen(note=str(table.snapshot.snapshot_id)))
    return Source(
        SourceState(table=name, columns=columns, parts=parts, can_shrink=False),
        SourceTable(
            schema=schema,
            table=table_name,
            is_iceberg=True,
            types={column: types[column] for column in columns if column in types},
        ),
        tuple(f.name for f in table.metadata.schema().fields),
    )
