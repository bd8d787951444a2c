"""Engines that make slices: Trino, and Spark for SQL as well as for functions of data frames."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import msgspec
from typing_extensions import override

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.catalogs import TrinoCatalogs
from gazette_platform.lake.rollups.spec import RollupSpec, check_rollup
from gazette_platform.lake.rollups.statements import create_staging, insert_staging, select_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from gazette_platform.lake.rollups.statements import Dialect, SourceTable, StagingTable

    _Query = tuple[RollupSpec, Mapping[str, SourceTable]]

__all__ = ["PythonRollup", "RollupEngine", "SparkEngine", "TrinoEngine", "rollup"]


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
