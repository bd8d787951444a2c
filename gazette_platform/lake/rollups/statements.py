"""SQL that makes slices of a rollup into a staging table, for Trino and Spark.

The query of a rollup becomes a subquery below a WITH that gives each source, by its alias, with only the
rows of the slices being made. Values come from the metastore, never from records; they are
written as literals since engines prune Hive partitions by literals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.catalogs import ICEBERG, TrinoCatalogs
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.rollups.spec import RollupSpec

__all__ = [
    "Dialect",
    "SourceTable",
    "StagingTable",
    "create_staging",
    "iceberg_catalog",
    "insert_staging",
    "select_source",
]

Dialect = Literal["trino", "spark"]

# Spark's catalogs have the names that the platform's configuration gives them.
_SPARK_HIVE: Final = "spark_catalog"
_NAMED: Final = TrinoCatalogs()
_NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A source as engines name it."""

    schema: str
    table: str
    """Of a raw table, its exact view."""
    is_iceberg: bool
    types: Mapping[str, str]
    """Hive type of each column that can choose slices."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTable:
    """A table that holds slices until they are committed."""

    name: str
    location: str
    slices: tuple[str, ...]
    """Its partition columns."""


def iceberg_catalog(dialect: Dialect, catalogs: TrinoCatalogs = _NAMED) -> str:
    """Name of the catalog of rollups."""
    return catalogs.iceberg if dialect == "trino" else ICEBERG


def create_staging(
    dialect: Dialect,
    staging: StagingTable,
    spec: RollupSpec,
    sources: Mapping[str, SourceTable],
    slices: Sequence[tuple[str, ...]],
    *,
    catalogs: TrinoCatalogs = _NAMED,
) -> str:
    """A statement that makes the staging table with some slices.

    Args:
        dialect: of the engine.
        staging: what to make.
        spec: the rollup.
        sources: by alias.
        slices: values of the slices to make; of a rollup without slices, one empty tuple.
        catalogs: what Trino calls its catalogs; Spark's have names of ours.

    Raises: LakeError: a slice column has a type that cannot choose slices.
    """
    name, select = _parts(dialect, staging, spec, sources, slices, catalogs)
    text = _text(dialect, staging.location)
    if dialect == "trino":
        columns = ", ".join(_text(dialect, _quoted(dialect, c)) for c in staging.slices)
        return (
            f"CREATE TABLE {name}\nWITH (format = 'PARQUET', format_version = 2, "
            f"partitioning = ARRAY[{columns}], location = {text})\nAS {select}"
        )
    columns = ", ".join(_quoted(dialect, c) for c in staging.slices)
    partitioned = f"PARTITIONED BY ({columns})\n" if columns else ""
    return (
        f"CREATE TABLE {name}\nUSING iceberg\n{partitioned}LOCATION {text}\n"
        f"TBLPROPERTIES ('format-version' = '2', 'write.format.default' = 'parquet')\nAS {select}"
    )


def insert_staging(
    dialect: Dialect,
    staging: StagingTable,
    spec: RollupSpec,
    sources: Mapping[str, SourceTable],
    slices: Sequence[tuple[str, ...]],
    *,
    catalogs: TrinoCatalogs = _NAMED,
) -> str:
    """A statement that adds more slices to the staging table; see `create_staging`."""
    name, select = _parts(dialect, staging, spec, sources, slices, catalogs)
    return f"INSERT INTO {name}\n{select}"


def _parts(  # noqa: PLR0917
    dialect: Dialect,
    staging: StagingTable,
    spec: RollupSpec,
    sources: Mapping[str, SourceTable],
    slices: Sequence[tuple[str, ...]],
    catalogs: TrinoCatalogs,
) -> tuple[str, str]:
    """Name of the staging table, and the query that fills it."""
    name = _table(dialect, iceberg_catalog(dialect, catalogs), STAGING_SCHEMA, staging.name)
    return name, select_slices(dialect, spec, sources, slices, catalogs=catalogs)


def select_slices(
    dialect: Dialect,
    spec: RollupSpec,
    sources: Mapping[str, SourceTable],
    slices: Sequence[tuple[str, ...]],
    *,
    catalogs: TrinoCatalogs = _NAMED,
) -> str:
    """The rollup's query over its sources, as far as they belong to the slices."""
    given = ",\n".join(
        f"{_quoted(dialect, alias)} AS ({select_source(dialect, spec, source, slices, catalogs=catalogs)})"
        for alias, source in sources.items()
    )
    # The query may end in a comment.
    return f"{'WITH ' if given else ''}{given}\nSELECT * FROM (\n{spec.sql}\n)"


def select_source(
    dialect: Dialect,
    spec: RollupSpec,
    source: SourceTable,
    slices: Sequence[tuple[str, ...]],
    *,
    catalogs: TrinoCatalogs = _NAMED,
) -> str:
    """The rows of a source that belong to the slices; all, of one that is not sliced."""
    catalog = (
        iceberg_catalog(dialect, catalogs)
        if source.is_iceberg
        else {"trino": catalogs.hive, "spark": _SPARK_HIVE}[dialect]
    )
    table = _table(dialect, catalog, source.schema, source.table)
    select = f"SELECT * FROM {table}"  # noqa: S608 (see above)
    if not spec.slices or not set(spec.slices) <= set(source.types):
        return select
    types = [source.types[column] for column in spec.slices]
    columns = [_quoted(dialect, column) for column in spec.slices]
    # Each column by itself, so that all engines prune, then which values go together.
    conditions = []
    for index, (column, kind) in enumerate(zip(columns, types, strict=True)):
        values = sorted({values[index] for values in slices})
        listed = ", ".join(_literal(dialect, spec.slices[index], kind, v) for v in values)
        conditions.append(f"{column} IN ({listed})")
    if len(columns) > 1:
        together = " OR ".join(
            "("
            + " AND ".join(
                f"{column} = {_literal(dialect, name, kind, value)}"
                for column, name, kind, value in zip(
                    columns, spec.slices, types, values, strict=True
                )
            )
            + ")"
            for values in slices
        )
        conditions.append(f"({together})")
    return f"{select} WHERE {' AND '.join(conditions)}"


def _table(dialect: Dialect, *parts: str) -> str:
    return ".".join(_quoted(dialect, part) for part in parts)


def _quoted(dialect: Dialect, name: str) -> str:
    quote = '"' if dialect == "trino" else "`"
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"


def _text(dialect: Dialect, value: str) -> str:
    if dialect == "trino":
        return "'" + value.replace("'", "''") + "'"
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _literal(dialect: Dialect, column: str, kind: str, value: str) -> str:
    if kind == "string":
        return _text(dialect, value)
    if kind == "date":
        return f"DATE {_text(dialect, value)}"
    if kind in _NUMBERS:
        return str(int(value))
    raise LakeError(
        f"column {column} is {kind}, which cannot choose slices (only string, date and integers)"
    )
