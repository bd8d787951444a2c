"""Do the queries of rollups fit their sources? Asked when rollups are loaded, before any of them runs.

The columns of a raw table come from the metastore, or, before it exists, from its spec and the names of its journals.
Those of a typed table come from its spec, and those of a rollup from its own query. Of other tables none are known.

A run of a query proves it. So a query that the parser does not understand is a fault only until the rollup's table
was made by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.rollups.query_process import query_faults_apart
from gazette_platform.lake.rollups.spec import Query
from gazette_platform.lake.spec.layout import path_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_platform.hive import MetastoreSession
    from gazette_platform.lake.iceberg.metastore import IcebergTables
    from gazette_platform.lake.rollups.spec import RollupSpec
    from gazette_platform.lake.spec.folder import SpecFolder
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import JournalSpec

    Columns = Mapping[str, tuple[str, ...] | None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCheck:
    """What was found out about the query of one rollup."""

    rollup: str
    faults: tuple[str, ...] = ()
    known: Mapping[str, int]
    """Number of columns of each source that it was checked against."""
    unknown: tuple[str, ...] = ()
    """Sources whose columns are not known yet."""
    is_checked: bool = True
    """False: the parser took too long, or failed."""

    @property
    def text(self) -> str:
        """What is wrong and what to do; or what was checked."""
        if self.faults:
            return "; ".join(self.faults)
        if not self.is_checked:
            return "Not checked: the parser took too long, or failed. A run will show whether the query is right."
        parts = [f"{name} ({count} columns)" for name, count in self.known.items()]
        checked = f"The query's columns exist in {', '.join(parts)}. " if parts else ""
        left = f"Columns of {', '.join(self.unknown)} are not known yet." if self.unknown else ""
        return f"The query can be parsed. {checked}{left}".strip()


def source_columns(
    rollups: Iterable[RollupSpec],
    folder: SpecFolder,
    session: MetastoreSession,
    journals: Callable[[TableSpec], Sequence[JournalSpec]] | None = None,
) -> dict[str, tuple[str, ...] | None]:
    """Find all columns of the tables that rollups read; None: they are not known.

    Args:
        rollups: whose sources to look at. Those that are rollups themselves are left out.
        folder: the table specs.
        session: the metastore.
        journals: lists those of a raw table that is not in the metastore; None: leave that out.

    Raises: GazetteError: a server cannot be reached.
    """
    specs = list(rollups)
    made = {spec.name for spec in specs}
    typed = {raw.typed.name: raw.typed for raw in folder.specs.values() if raw.typed}
    found: dict[str, tuple[str, ...] | None] = {}
    for name in sorted({source for spec in specs for source in spec.sources.values()} - made):
        raw = folder.specs.get(name)
        table = session.table(raw.schema, raw.stored_table) if raw is not None else None
        if name in typed:
            found[name] = tuple(column.name.lower() for column in typed[name].all_columns)
        elif raw is not None and table is not None and LAYOUT in table.parameters:
            there = [column.name for column in (*table.columns, *table.partition_columns)]
            # A spec that has grown is ahead of the table by a moment.
            ahead = [column.name.lower() for column in raw.columns]
            found[name] = tuple(dict.fromkeys([*there, *ahead]))
        elif raw is not None and journals is not None:
            found[name] = _raw_columns(raw, journals(raw))
        else:
            found[name] = None
    return found


def check_queries(
    rollups: Mapping[str, RollupSpec],
    columns: Columns,
    is_proven: Callable[[RollupSpec], bool],
) -> dict[str, QueryCheck]:
    """Check the queries of all rollups in SQL.

    Args:
        rollups: by name.
        columns: of their sources; see `source_columns`.
        is_proven: whether the table of a rollup was made by its query; see `made_by`.
    """
    written = {name: spec for name, spec in rollups.items() if spec.engine != "python"}
    order = TopologicalSorter({n: set(s.sources.values()) for n, s in written.items()})
    specs = [written[name] for name in order.static_order() if name in written]
    queries = [
        Query(
            name=spec.name,
            sql=spec.sql,
            dialect="spark" if spec.engine == "spark" else "trino",
            sources=spec.sources,
            slices=spec.slices,
        )
        for spec in specs
    ]
    found = query_faults_apart(queries, columns)
    known = {**columns, **{name: faults.columns for name, faults in found.items()}}
    checks: dict[str, QueryCheck] = {}
    for spec in specs:
        told = found.get(spec.name)
        sources = sorted(set(spec.sources.values()))
        faults: list[str] = []
        if told is not None:
            faults += told.names
            if told.syntax and not is_proven(spec):
                faults.append(
                    f"the query {told.syntax}. If {spec.engine.title()} takes it all the same, materialize "
                    "the rollup once by hand: a run proves its query"
                )
            if faults:
                faults[-1] += ". Correct the query, or the specs of its sources"
        checks[spec.name] = QueryCheck(
            rollup=spec.name,
            faults=tuple(faults),
            known={s: len(of) for s in sources if (of := known.get(s)) is not None},
            unknown=tuple(s for s in sources if known.get(s) is None),
            is_checked=told is not None,
        )
    return checks


def made_by(open_tables: Callable[[], IcebergTables], spec: RollupSpec) -> bool:
    """Return whether the rollup's table was made by the query that it has now; False if that is not known."""
    from gazette_platform.lake.rollups.table import CODE, noted  # noqa: PLC0415  slow to import

    try:
        table = open_tables().load(spec.schema, spec.table)
    except GazetteError:
        return False
    return table is not None and noted(table.metadata).get(CODE) == spec.code_version


def _raw_columns(spec: TableSpec, journals: Sequence[JournalSpec]) -> tuple[str, ...] | None:
    """Columns that a raw table will have: those of its spec, and the keys of its journals' paths."""
    if not journals:
        return None
    try:
        keys = path_keys(journals)
    except LakeError:
        return None
    described = {partition.name: partition.column for partition in spec.partitions}
    names = [column.name.lower() for column in spec.columns]
    return tuple(dict.fromkeys([*names, *(described.get(key, key.lower()) for key in keys)]))
