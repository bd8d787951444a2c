"""SQL that makes slices of a rollup into a staging table, for Trino and Spark.

The query of a rollup becomes a subquery below a WITH that gives each source, by its alias, with only the
rows of the slices being made. Values come from the metastore, never from records; they are
written as literals since engines prune Hive partitions by literals.

Engines that make slices: Trino, and Spark for SQL as well as for functions of data frames.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import msgspec
from typing_extensions import override

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.catalog_settings import ICEBERG, TrinoCatalogs
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA, Dialect, RollupSpec, check_rollup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    _Query = tuple[RollupSpec, Mapping[str, "SourceTable"]]


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


class RollupEngine(Protocol):
    """Makes slices of rollups into staging tables."""

    @property
    def dialect(self) -> Dialect:
        """Of its statements."""
        ...

    @property
    def catalogs(self) -> TrinoCatalogs:
        """What it calls its catalogs, if it is Trino."""
        ...

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement. Returns: its rows.

        Raises: LakeError: the engine cannot be reached, or refused.
        """
        ...

    def stage(
        self,
        staging: StagingTable,
        spec: RollupSpec,
        sources: Mapping[str, SourceTable],
        slices: Sequence[tuple[str, ...]],
        *,
        is_first: bool,
    ) -> None:
        """Make slices.

        Args:
            staging: the table that gets them.
            spec: the rollup.
            sources: by alias.
            slices: their values.
            is_first: whether the staging table is to be made; else it has slices already.

        Raises: LakeError: the engine cannot be reached, or refused the query.
        """
        ...


class _Queries(Protocol):
    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...


class _SqlEngine(ABC):
    """Makes slices by statements, which it runs itself, one by one."""

    dialect: Dialect
    catalogs: TrinoCatalogs

    @abstractmethod
    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; see `RollupEngine`."""

    def stage(
        self,
        staging: StagingTable,
        spec: RollupSpec,
        sources: Mapping[str, SourceTable],
        slices: Sequence[tuple[str, ...]],
        *,
        is_first: bool,
    ) -> None:
        """Make slices; see `RollupEngine`."""
        statement = create_staging if is_first else insert_staging
        with self._query(staging, spec, sources, slices) as (query, read):
            sql = statement(self.dialect, staging, query, read, slices, catalogs=self.catalogs)
            self.execute(sql)

    def _query(
        self,
        staging: StagingTable,  # noqa: ARG002
        spec: RollupSpec,
        sources: Mapping[str, SourceTable],
        slices: Sequence[tuple[str, ...]],  # noqa: ARG002
    ) -> AbstractContextManager[_Query]:
        """What a statement is to be made of: the rollup itself, where that is SQL."""
        return nullcontext((spec, sources))


@final
class TrinoEngine(_SqlEngine):
    """Runs rollups of ``trino/``.

    Args:
        trino: a `TrinoSession`, or Dagster's resource of it.
        catalogs: what that Trino calls its catalogs; None: `hive` and `iceberg`.
    """

    dialect: Dialect = "trino"

    def __init__(self, trino: _Queries, catalogs: TrinoCatalogs | None = None) -> None:
        self._trino = trino
        self.catalogs = catalogs or TrinoCatalogs()

    @override
    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; see `RollupEngine`."""
        return self._trino.query(sql)


@final
class SparkEngine(_SqlEngine):
    """Runs rollups of ``spark/``, and those that are functions.

    Args:
        session: with the Iceberg catalog.
        function: of a Python rollup; None: the spec has SQL.
    """

    dialect: Dialect = "spark"

    def __init__(
        self, session: SparkSession, function: Callable[..., DataFrame] | None = None
    ) -> None:
        self._session = session
        self._function = function
        self.catalogs = TrinoCatalogs()

    @override
    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; see `RollupEngine`."""
        from pyspark.errors import PySparkException  # noqa: PLC0415  slow to import

        try:
            return [tuple(row) for row in self._session.sql(sql).collect()]
        except PySparkException as err:
            raise _refused(err) from err

    @override
    @contextmanager
    def _query(
        self,
        staging: StagingTable,
        spec: RollupSpec,
        sources: Mapping[str, SourceTable],
        slices: Sequence[tuple[str, ...]],
    ) -> Iterator[_Query]:
        if self._function is None:
            yield spec, sources
            return
        from pyspark.errors import PySparkException  # noqa: PLC0415  slow to import

        try:
            frames = {
                alias: self._session.sql(select_source("spark", spec, source, slices))
                for alias, source in sources.items()
            }
            self._function(**frames).createOrReplaceTempView(staging.name)
        except PySparkException as err:
            raise _refused(err) from err
        try:
            yield msgspec.structs.replace(spec, sql=f"SELECT * FROM `{staging.name}`"), {}  # noqa: S608 (a name of ours)
        finally:
            self._session.catalog.dropTempView(staging.name)


def _refused(err: Exception) -> LakeError:
    text = str(err).partition("\n\nJVM stacktrace:")[0].partition(";\n'")[0]
    return LakeError(f"Spark refused a statement: {text}")


@final
@dataclass(frozen=True, slots=True)
class PythonRollup:
    """A rollup that is a function; made by `rollup`."""

    spec: RollupSpec
    function: Callable[..., DataFrame]
    """Gets a data frame for each source, by its alias; gives the rows of the slices."""


def rollup(
    *,
    name: str,
    sources: Sequence[str] | Mapping[str, str],
    slices: Sequence[str] = (),
    version: str = "",
    **options: Any,
) -> Callable[[Callable[..., DataFrame]], PythonRollup]:
    """Make a function of Spark's data frames a rollup.

    Args:
        name: ``schema.table``.
        sources: tables by the names of the function's parameters; in a list, by their names.
        slices: columns that slice the table.
        version: marks a change of the code; empty: the function's own text, so that functions
            which it calls may change unnoticed.
        options: ``cron``, ``retention``, ``comment``, ``fresh_within``, ``owners`` and ``tags``, as in the
            header of a file.

    Raises: ValidationError: of the function: a rule of rollup specs is broken.
    """
    by_alias = (
        {source.rpartition(".")[2]: source for source in sources}
        if not hasattr(sources, "items")
        else dict(sources.items())
    )

    def make(function: Callable[..., DataFrame]) -> PythonRollup:
        raw = {
            **options,
            "name": name,
            "engine": "python",
            "sql": inspect.getsource(function),
            "sources": by_alias,
            "slices": tuple(slices),
            "version": version,
        }
        try:
            spec = msgspec.convert(raw, RollupSpec)
        except msgspec.ValidationError as err:
            raise ValidationError(f"rollup {name}: {err}") from err
        check_rollup(spec)
        return PythonRollup(spec, function)

    return make
