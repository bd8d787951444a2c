"""A connection to DuckDB in which table specs are tables: persisted fragments and the live tail in one query."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from gazette_platform.client import Client, ClientConfig
from gazette_platform.client.read_ahead import ReadAhead
from gazette_platform.errors import GazetteError, LakeError, ValidationError
from gazette_platform.lake.layout import StoreRoots
from gazette_platform.lake.local_sql.advice import advised, table_missing
from gazette_platform.lake.local_sql.names import (
    OFFSETS_SUFFIX,
    RESERVED,
    key_of,
    names_of,
    quoted as _quoted,
    typed_of,
)
from gazette_platform.lake.local_sql.snapshot import take_snapshot
from gazette_platform.lake.local_sql.typed_view import TypedViews
from gazette_platform.lake.meant import or_meant
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec_folder import load_table_specs
from gazette_platform.ops import platforms
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.closing import Closing
from gazette_platform.ops.extras import required
from gazette_platform.ops.side_by_side import side_by_side
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import duckdb
    import pyarrow as pa  # type: ignore[import-untyped]
    from duckdb import DuckDBPyConnection

    from gazette_platform.lake.local_sql.dataset import TableDataset
    from gazette_platform.lake.local_sql.reading import Piece, ScanCounts, SegmentReader
    from gazette_platform.lake.local_sql.rows import RowParser
    from gazette_platform.lake.local_sql.snapshot import TableSnapshot
    from gazette_platform.lake.local_sql.typed_view import TypedSeam
    from gazette_platform.lake.segments import Segment
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.lake.typed.catalog.catalogs import TypedCatalog

__all__ = ["LocalSql", "QueryResult", "connect"]

T = TypeVar("T")

# DuckDB's name of a database without a file.
_DATABASE: Final = "memory"
_TABLES_AT_A_TIME: Final = 8
_PARSERS: Final = min(4, os.cpu_count() or 1)
_BATCH_ROWS: Final = 65536
_DATASET: Final = "gazette_platform.lake.local_sql.dataset"
# What a query without a table may be about, nevertheless.
_LISTS: Final = re.compile(r"\b(show|information_schema|pragma|duckdb_\w+)\b", re.IGNORECASE)
_NAMES_SHOWN: Final = 20
# Types of statements that are there for their rows. Others tell how many they changed.
_ANSWERS: Final = frozenset({"SELECT", "EXPLAIN", "CALL", "EXECUTE"})


def connect(
    tables: str | Path | Iterable[TableSpec] | None = None,
    *,
    client: Client | None = None,
    settings: LakeSettings | None = None,
) -> LocalSql:
    """SQL over table specs, in this process: DuckDB reads what is persisted, and the tail up to now.

    Args:
        tables: the folder of table specs, or specs; default: the settings'.
        client: stays its caller's to close; default: one as gazctl's variables say, such as ``BROKER_AUTH_TOKEN``.
        settings: where brokers, specs and fragment files are; default: see `platforms.complete`.

    Raises: SetupError: DuckDB is not installed, or no brokers or specs are known. ValidationError: a
        setting or spec is malformed, or the folder has none.
    """
    required("duckdb", extra="sql", by="SQL queries")
    if find_spec("pyarrow") is None:
        required("pyarrow", extra="sql", by="SQL queries")
    environment = platforms.complete(os.environ) if settings is None else dict(os.environ)
    address = (settings.broker if settings else "") or environment.get("BROKER_ADDRESS", "")
    settings = settings or LakeSettings.from_environment(environment)
    if tables is None:
        tables = settings.required("tables")
    refused: dict[str, ValidationError] = {}
    if isinstance(tables, str | Path):
        specs, refused = _specs(Path(tables))
    else:
        specs = {spec.name: spec for spec in tables}
    owned = None
    if client is None:
        address = address or settings.required("broker")
        config = ClientConfig.from_environment(environment, address=address)
        # Tails of typed tables are read from files that are on this machine.
        config = replace(config, file_root=config.file_root or settings.file_root)
        client = owned = Client(config)
    try:
        return LocalSql(
            specs,
            client=client,
            roots=settings.store_roots,
            refused=refused,
            owned=owned,
            catalog=partial(_catalog_of, settings, environment),
        )
    except BaseException:
        if owned is not None:
            owned.close()
        raise


def _catalog_of(settings: LakeSettings, environment: Mapping[str, str]) -> TypedCatalog:
    from gazette_platform.lake.typed.catalog.catalogs import typed_catalog  # noqa: PLC0415  an extra

    return typed_catalog(settings, environment=environment)


def _specs(folder: Path) -> tuple[dict[str, TableSpec], dict[str, ValidationError]]:
    """As `load_table_specs`. Raises: ValidationError: there is no good one."""
    if not folder.is_dir():
        raise ValidationError(f"there is no folder {folder} of table specs", path="tables")
    specs, errors = load_table_specs(folder)
    if not specs:
        if errors:
            raise next(iter(errors.values()))
        raise ValidationError(
            f"{folder} holds no table spec (*.yaml; docs/reference/table-spec.md has an example)",
            path="tables",
        )
    return specs, errors


@final
class LocalSql(Closing):
    """Tables of specs in a DuckDB of this process. Made by `connect`. One thread at a time uses it.

    Each query sees one snapshot of every table that it names: journals up to their write heads when it
    began. Content is streamed, and only that of Hive partitions that the query may need. A table
    ``schema.table`` has that name, and ``table`` alone if no other schema has one. Typed tables of specs are tables, too:
    their rows and the tail behind these.

    Args:
        specs: by name.
        client: of brokers.
        roots: fragment-store URL → where it lies on this machine.
        refused: what is wrong with other specs, by file name.
        owned: a client to close at the end.
        catalog: opens the one of typed tables, once there is a query of one; None: these are no tables.
        clock: by which snapshots are dated.

    Attributes:
        refused: why specs of the folder make no table, by file name.
        on_progress: called when more was read, in any thread; `scans` tells how much.
    """

    def __init__(
        self,
        specs: Mapping[str, TableSpec],
        *,
        client: Client,
        roots: Mapping[str, str],
        refused: Mapping[str, ValidationError] | None = None,
        owned: Client | None = None,
        catalog: Callable[[], TypedCatalog] | None = None,
        clock: Clock | None = None,
    ) -> None:
        import duckdb  # noqa: PLC0415  the core goes without it

        self._specs = {n: spec for n, spec in specs.items() if spec.schema not in RESERVED}
        self._client = client
        self._owned = owned
        self._roots = StoreRoots(roots)
        self._clock = clock or SystemClock()
        self._typed = TypedViews(
            typed_of(self._specs) if catalog is not None else {},
            client=client,
            open_catalog=catalog,
            failed=self._failed,
            clock=self._clock,
        )
        self._names = names_of(self._specs, self._typed.specs)
        self._datasets: dict[str, TableDataset] = {}
        self._failure: BaseException | None = None
        self._query = ""
        self._unavailable: dict[str, GazetteError] = {}
        self.refused = dict(refused or {})
        for name in specs.keys() - self._specs.keys():
            told = "is in a schema of DuckDB's own: give the table another one"
            self.refused[name] = ValidationError(told, path=name)
        self.on_progress: Callable[[], None] | None = None
        self._tasks = TaskGroup("local-sql")
        self._pool = ReadAhead(self._tasks, client.config.read_ahead_bytes_max)
        self._parsers = ThreadPoolExecutor(_PARSERS, "gazette-sql")
        # In memory: views over journals make no sense in a file. Tables of one's own go to one by ATTACH.
        self._duckdb = duckdb.connect()
        self._empty: DuckDBPyConnection | None = None
        self._is_new = True
        # Arrow takes a while to be imported, and brokers to answer.
        self._parsers.submit(import_module, _DATASET)
        for schema in sorted({name.partition(".")[0] for name in self.tables}):
            self._duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {_DATABASE}.{_quoted(schema)}")

    @property
    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """The connection underneath, in which tables are as the last query, or `refresh`, saw them."""
        self._is_new = False
        return self._duckdb

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables, as ``schema.table``, sorted."""
        return tuple(sorted((*self._specs, *self._typed.specs)))

    def execute(self, query: str, parameters: Sequence[Any] | None = None) -> QueryResult:
        """Run a query, on snapshots taken now of the tables that it names.

        Args:
            query: DuckDB's SQL; of several statements the last one gives the rows.
            parameters: for ``?`` in it.

        Raises: LakeError: DuckDB refuses it; names the known tables if it names another one.
            ValidationError: it is empty, or rows of a statement before the last one would be lost.
            ValidationError, TransportError, DataError: a table cannot be read.
        """
        import duckdb  # noqa: PLC0415

        self._begin(query)
        try:
            _require_one_answer(statements := self._duckdb.extract_statements(query))
            self._refresh_for(query)
            for statement in statements[:-1]:
                self._ask(statement.query, None)
            return QueryResult(self, self._ask(statements[-1].query, parameters))
        except duckdb.Error as err:
            raise self._told(err) from err

    def _ask(self, query: str, parameters: Sequence[Any] | None) -> DuckDBPyConnection:
        """Run a statement. If DuckDB fails to hand its filters to Arrow, DuckDB filters the rows itself."""
        import duckdb  # noqa: PLC0415

        try:
            return _asked(self._duckdb, query, parameters)
        except duckdb.Error as err:
            # What Python code raises in DuckDB, such as Arrow's, has no class of its own.
            is_of_filters = type(err) is duckdb.Error or isinstance(err, duckdb.NotSupportedError)
            if not is_of_filters or self._failure is not None:
                raise
            try:
                self._leave_filters_to_duckdb()
            except duckdb.Error:  # the statement is in a transaction, which has failed
                raise err from None
        return _asked(self._duckdb, query, parameters)

    def _leave_filters_to_duckdb(self) -> None:
        """Make the views of the present snapshots again, so that scans read all rows."""
        for dataset in list(self._datasets.values()):
            self._register(dataset.snapshot, is_filtered=False)
        for name, view in self._typed.views.items():
            view.make(self._duckdb, _DATABASE, self._short(name), is_filtered=False)

    def _begin(self, query: str) -> None:
        """Forget what was of the query before."""
        self._failure, self._query = None, query
        for dataset in self._datasets.values():
            dataset.counts = []
        self._typed.begin()

    def refresh(self, tables: Iterable[str] | None = None) -> None:
        """Take new snapshots of `tables`, by full name; of all by default.

        Raises: ValidationError: not a table's name, or a table's journals are not there. LakeError,
            TransportError: as `take_snapshot`, and of typed tables as `TypedViews.pin`.
        """
        wanted = self.tables if tables is None else tuple(sorted(tables))
        for name in wanted:
            if name not in self.tables:
                raise ValidationError(self._unknown(name))
        for snapshot in self._client.run(self._snapshots(n for n in wanted if n in self._specs)):
            if isinstance(snapshot, GazetteError):
                raise snapshot
            self._register(snapshot)
        for name in wanted:
            if name not in self._specs:
                self._register_typed(name)

    def snapshot(self, table: str) -> TableSnapshot:
        """What the last query saw of `table`, by full name: its journals, their heads, and the seams.

        Raises: ValidationError: no query has named it.
        """
        if table not in self._datasets:
            raise ValidationError(f"{table}: no query has read it yet (run one, or `refresh`)")
        return self._datasets[table].snapshot

    def scans(self) -> dict[str, list[ScanCounts]]:
        """What scans of the last query read, by table, in the order in which they began."""
        return {name: list(d.counts) for name, d in self._datasets.items() if d.counts}

    def seams(self) -> dict[str, TypedSeam]:
        """What the last query saw of typed tables that it read: where rows end, and the tail."""
        return self._typed.seams()

    def interrupt(self) -> None:
        """Have the query that another thread runs fail with a KeyboardInterrupt, soon."""
        self._duckdb.interrupt()

    def close(self) -> None:
        """End all that is under way."""
        self._duckdb.close()
        if self._empty is not None:
            self._empty.close()
        self._typed.close()
        self._client.run(self._close_reads())
        self._parsers.shutdown(cancel_futures=True)
        if self._owned is not None:
            self._owned.close()

    async def _close_reads(self) -> None:
        self._pool.close()
        await self._tasks.close()

    def _refresh_for(self, query: str) -> None:
        """Take the snapshots that a query needs."""
        import duckdb  # noqa: PLC0415

        try:
            names = self._without_views().get_table_names(query, qualified=True)
            named = {key_of(name) for name in names}
        except (
            duckdb.Error
        ):  # several statements, or a name that is not there yet: any may be meant
            self._refresh_all()
            return
        wanted = {self._names[name] for name in named if name in self._names}
        if named - self._names.keys():  # it may be a view over tables of ours
            wanted |= self._datasets.keys() | self._typed.views.keys()
        if wanted:
            self.refresh(wanted)
        elif not named and _LISTS.search(query):
            self._refresh_all()

    def _without_views(self) -> DuckDBPyConnection:
        """Where to ask which tables a query names: views would be looked through. At first there are none."""
        import duckdb  # noqa: PLC0415

        if self._is_new:
            self._is_new = False
            return self._duckdb
        if self._empty is None:
            self._empty = duckdb.connect()
        return self._empty

    def _refresh_all(self) -> None:
        """As `refresh`, for queries that may mean any table: one that fails is told when it is asked for."""
        self._unavailable = {}
        found = self._client.run(self._snapshots(self._specs))
        for name, snapshot in zip(self._specs, found, strict=True):
            if isinstance(snapshot, GazetteError):
                self._unavailable[name] = snapshot
                self._unregister(name)
            else:
                self._register(snapshot)
        for name in self._typed.specs:
            try:
                self._register_typed(name)
            except GazetteError as err:
                self._unavailable[name] = err
                view = self._typed.forget(name)
                if view is not None:
                    view.drop(self._duckdb, _DATABASE, self._short(name))

    async def _snapshots(self, names: Iterable[str]) -> list[TableSnapshot | GazetteError]:
        async def one(name: str) -> TableSnapshot | GazetteError:
            try:
                return await take_snapshot(
                    self._client.asynchronous, self._specs[name], self._clock.now()
                )
            except GazetteError as err:
                return err

        return await side_by_side(one, names, at_a_time=_TABLES_AT_A_TIME)

    def _unregister(self, name: str) -> None:
        """Leave no table of an earlier query in the place of one that cannot be had now."""
        dataset = self._datasets.pop(name, None)
        if dataset is None:
            return
        spec = dataset.snapshot.spec
        for suffix in ("", OFFSETS_SUFFIX):
            view = _quoted(spec.table + suffix)
            self._duckdb.execute(f"DROP VIEW IF EXISTS {_place(spec)}.{view}")
            if self._names.get(spec.table) == name:
                self._duckdb.execute(f"DROP VIEW IF EXISTS temp.main.{view}")

    def _register(self, snapshot: TableSnapshot, *, is_filtered: bool = True) -> None:
        from gazette_platform.lake.local_sql.dataset import TableDataset, selected  # noqa: PLC0415

        spec = snapshot.spec
        self._is_new = False
        dataset = TableDataset(
            snapshot,
            open_reader=self._reader,
            next_block=self._next_block,
            close=self._close_reader,
            failed=self._failed,
            parsers=self._parsers,
        )
        self._datasets[spec.name] = dataset
        whole = f"{spec.name}{OFFSETS_SUFFIX}"
        self._duckdb.register(whole, dataset)
        own = {column.name for column in spec.columns} | {c.column for c in snapshot.columns}
        fields = list(dataset.schema)
        for suffix, seen in (
            (OFFSETS_SUFFIX, fields),
            ("", [field for field in fields if field.name in own]),
        ):
            view, columns = _quoted(spec.table + suffix), selected(seen, is_filtered=is_filtered)
            views = [f"VIEW {_place(spec)}.{view}"]
            if self._names.get(spec.table) == spec.name:
                views.append(f"TEMP VIEW {view}")
            for each in views:
                self._duckdb.execute(
                    f"CREATE OR REPLACE {each} AS SELECT {columns} FROM temp.main.{_quoted(whole)}"  # noqa: S608
                )

    def _register_typed(self, name: str) -> None:
        self._is_new = False
        self._typed.pin(name).make(self._duckdb, _DATABASE, self._short(name))

    def _short(self, name: str) -> str:
        """What a typed table is called without a schema: its name in full, quoted, if another one is called so."""
        table = name.partition(".")[2]
        return table if self._names.get(table) == name else name

    # ------------------------------------------------------------------ in DuckDB's threads

    def _reader(
        self, segments: Sequence[Segment], parser: RowParser, counts: ScanCounts
    ) -> SegmentReader:
        from gazette_platform.lake.local_sql.reading import SegmentReader  # noqa: PLC0415

        return SegmentReader(
            self._client.asynchronous,
            self._pool,
            segments,
            roots=self._roots,
            parser=parser,
            counts=counts,
        )

    def _next_block(self, reader: SegmentReader) -> list[Piece]:
        pieces = self._client.run(reader.next_block())
        if self.on_progress is not None:
            self.on_progress()
        return pieces

    def _close_reader(self, reader: SegmentReader) -> None:
        self._client.run(reader.aclose())

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    # ------------------------------------------------------------------ errors

    def _told(self, error: Exception) -> BaseException:
        """What to raise for what DuckDB raised: the cause, if it is ours."""
        import duckdb  # noqa: PLC0415

        failure, self._failure = self._failure, None
        if failure is not None:
            return failure
        if isinstance(error, duckdb.InterruptException):
            return KeyboardInterrupt()
        if missing := table_missing(str(error)):
            name = self._names.get(key_of(missing), "")
            # DuckDB leaves out a schema that there is.
            for each in (name, *self._unavailable):
                if (
                    each in self._unavailable
                    and each.partition(".")[2] == key_of(missing).rpartition(".")[2]
                ):
                    return self._unavailable[each]
            return LakeError(self._unknown(missing))
        columns = {column.name for spec in self._specs.values() for column in spec.columns}
        columns |= {c.name for s in self._typed.specs.values() if s.typed for c in s.typed.columns}
        return LakeError(advised(str(error), self._query, {*self._names, *columns}))

    def _unknown(self, name: str) -> str:
        if name in self.tables:
            schema, _, table = name.partition(".")
            return f'there is no table "{name}": quotes go around each part, as in "{schema}"."{table}"'
        shown = ", ".join(self.tables[:_NAMES_SHOWN])
        more = len(self.tables) - _NAMES_SHOWN
        refused = f"; refused: {next(iter(self.refused.values()))}" if self.refused else ""
        return (
            f"there is no table {name} (known: {shown}{f' and {more} more' if more > 0 else ''}; a spec "
            f"in the tables folder makes another one{refused}){or_meant([name], self.tables)}"
        )


@final
class QueryResult:
    """Rows of a query, once. Of a statement without rows it is empty. The next query ends it.

    All methods raise as `LocalSql.execute`: content is read as rows are taken.
    """

    def __init__(self, owner: LocalSql, result: duckdb.DuckDBPyConnection) -> None:
        self._owner = owner
        self._result = result

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return [column[0] for column in self._result.description or ()]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return self._run(self._result.fetchall)

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None at the end."""
        return self._run(self._result.fetchone)

    def arrow(self) -> pa.Table:
        """All rows that are left, as an Arrow table: for pandas, polars and others."""
        return self._run(self._result.to_arrow_table)

    def batches(self, rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Rows as Arrow record batches of at most about `rows` rows, as they come."""
        return self.batches_of(self.reader(rows))

    def reader(self, rows: int = _BATCH_ROWS) -> pa.RecordBatchReader:
        """The batches, as a reader. What fails is an error of Arrow: `batches_of` raises ours."""
        return self._run(lambda: self._result.to_arrow_reader(rows))

    def batches_of(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """What is left of a `reader`."""
        while True:
            try:
                batch = self._run(reader.read_next_batch)
            except StopIteration:
                return
            yield batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def _run(self, take: Callable[[], T]) -> T:
        import duckdb  # noqa: PLC0415

        try:
            return take()
        except duckdb.Error as err:
            raise self._owner._told(err) from err  # noqa: SLF001  its owner
        except OSError as err:  # as Arrow calls what a stream fails with
            raise self._owner._told(err) from err  # noqa: SLF001


def _asked(
    _duckdb: DuckDBPyConnection, _query: str, _parameters: Sequence[Any] | None
) -> DuckDBPyConnection:
    """Run a query. DuckDB takes variables of who calls it for tables: here are none that a query may name."""
    return _duckdb.execute(_query, _parameters)


def _place(spec: TableSpec) -> str:
    """Where its views are: a schema may be called like a database, and another one may be in use."""
    return f"{_DATABASE}.{_quoted(spec.schema)}"


def _require_one_answer(statements: Sequence[duckdb.Statement]) -> None:
    """Refuse a query that gives nothing, or rows that nobody would see.

    Raises: ValidationError: with what to do instead.
    """
    if not statements:
        raise ValidationError(
            "is empty: it takes a statement of SQL, such as SHOW TABLES", path="query"
        )
    for number, statement in enumerate(statements[:-1], 1):
        if statement.type.name in _ANSWERS:
            raise ValidationError(
                f"has {len(statements)} statements, of which only the last one's rows are shown, and "
                f"statement {number} gives rows, too: run each by itself, or join them by UNION ALL",
                path="query",
            )
