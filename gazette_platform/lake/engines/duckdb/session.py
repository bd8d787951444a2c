"""A connection to DuckDB in which table specs are tables: persisted fragments and the live tail in one query."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.client import Client, ClientConfig
from gazette_platform.client.read_ahead import ReadAhead
from gazette_platform.errors import GazetteError, LakeError, ValidationError
from gazette_platform.lake.engines.duckdb.names import (
    MACRO,
    MACRO_WITHOUT_VIEWS,
    OFFSETS_SUFFIX,
    RESERVED,
    called,
    data_of,
    describable,
    journal_missing,
    key_of,
    names_of,
    quoted as _quoted,
    typed_of,
    view_of,
)
from gazette_platform.lake.engines.duckdb.results import (
    QueryResult,
    advised,
    require_one_answer,
    table_missing,
)
from gazette_platform.lake.engines.duckdb.snapshot import take_snapshot
from gazette_platform.lake.engines.duckdb.typed_view import TypedViews
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec.folder import load_table_specs, or_meant
from gazette_platform.lake.spec.layout import StoreRoots
from gazette_platform.ops import platforms
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.extras import required
from gazette_platform.ops.tasks import Closing, TaskGroup, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import duckdb
    from duckdb import DuckDBPyConnection, Statement

    from gazette_platform.lake.engines.duckdb.dataset import TableDataset
    from gazette_platform.lake.engines.duckdb.journal_tables import InferredTable
    from gazette_platform.lake.engines.duckdb.snapshot import (
        ExtentReader,
        Piece,
        ScanCounts,
        TableExtent,
        TableSnapshot,
    )
    from gazette_platform.lake.engines.duckdb.typed_view import TypedSeam
    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.reading.raw_rows import RowParser
    from gazette_platform.lake.spec.table_spec import TableSpec

# DuckDB's name of a database without a file.
_DATABASE: Final = "memory"
_TABLES_AT_A_TIME: Final = 8
_PARSERS: Final = min(4, os.cpu_count() or 1)
_DATASET: Final = "gazette_platform.lake.engines.duckdb.dataset"
# What a query without a table may be about, nevertheless.
_LISTS: Final = re.compile(r"\b(show|information_schema|pragma|duckdb_\w+)\b", re.IGNORECASE)
_NAMES_SHOWN: Final = 20


def connect(
    tables: str | Path | Iterable[TableSpec] | None = None,
    *,
    client: Client | None = None,
    settings: LakeSettings | None = None,
) -> LocalSql:
    """SQL over table specs, in this process: DuckDB reads what is persisted, and the tail up to now.

    Args:
        tables: the folder of table specs, or specs; default: the settings' folder, if any. Queries of `journal(…)`
            need none.
        client: stays its caller's to close; default: one as gazctl's variables say, such as ``BROKER_AUTH_TOKEN``.
        settings: where brokers, specs and fragment files are; default: see `platforms.complete`.

    Raises: SetupError: DuckDB is not installed, or no brokers are known. ValidationError: a setting is malformed,
        or the folder does not exist.
    """
    required("duckdb", extra="sql", by="SQL queries")
    if find_spec("pyarrow") is None:
        required("pyarrow", extra="sql", by="SQL queries")
    environment = platforms.complete(os.environ) if settings is None else dict(os.environ)
    address = (settings.broker if settings else "") or environment.get("BROKER_ADDRESS", "")
    settings = settings or LakeSettings.from_environment(environment)
    specs: dict[str, TableSpec] = {}
    refused: dict[str, ValidationError] = {}
    if isinstance(tables, str | Path):
        if not Path(tables).is_dir():
            raise ValidationError(f"there is no folder {tables} of table specs", path="tables")
        specs, refused = load_table_specs(Path(tables))
    elif tables is not None:
        specs = {spec.name: spec for spec in tables}
    elif settings.tables:
        specs, refused = load_table_specs(Path(settings.tables))
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
    from gazette_platform.lake.iceberg.catalog import typed_catalog  # noqa: PLC0415  an extra

    return typed_catalog(settings, environment=environment)


@final
class LocalSql(Closing):
    """Tables of specs in a DuckDB of this process. Made by `connect`. One thread at a time uses it.

    Each query sees one snapshot of every table that it names: journals up to their write heads when it
    began. Content is streamed, and only that of Hive partitions that the query may need. A table
    ``schema.table`` has that name, and ``table`` alone if no other schema has one. Typed tables of specs are tables, too:
    their rows and the tail behind these. ``journal('events/')`` is a table of journals that have no spec.

    Args:
        specs: by name.
        client: of brokers.
        roots: fragment-store URL → where it lies on this machine.
        refused: what is wrong with other specs, by file name.
        owned: a client to close at the end.
        catalog: opens the one of typed tables, once there is a query of one; None: typed tables are not tables here.
        clock: dates snapshots.

    Attributes:
        refused: why specs of the folder make no table, by file name.
        on_progress: called when more was read, in any thread; `scans` says how much.
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
        # Arguments of `journal`, by what queries call them; and what was inferred, for as long as the session.
        self._journals: dict[str, str] = {}
        self._inferred: dict[str, InferredTable] = {}
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
        # In memory: views over journals make no sense in a file. Your own tables go to a file by ATTACH.
        self._duckdb = duckdb.connect()
        self._empty: DuckDBPyConnection | None = None
        self._duckdb.execute(MACRO)
        # Arrow takes a while to be imported, and brokers to answer.
        self._parsers.submit(import_module, _DATASET)
        for schema in sorted({name.partition(".")[0] for name in self.tables}):
            self._duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {_DATABASE}.{_quoted(schema)}")

    @property
    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """The connection underneath, in which tables are as the last query, or `refresh`, saw them."""
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
            query = describable(query, duckdb.tokenize(query))
            require_one_answer(statements := self._duckdb.extract_statements(query))
            self._refresh_for(query)
            for statement in statements[:-1]:
                self._ask(statement, None)
            return QueryResult(self, self._ask(statements[-1], parameters))
        except duckdb.Error as err:
            raise self.told(err) from err

    def journal(self, name: str, *, offsets: bool = False) -> QueryResult:
        """Return all rows of journals that need no table spec.

        Args:
            name: of a journal, or a prefix that ends in ``/``, or a selector.
            offsets: whether rows have the columns `_journal`, `_offset` and `_fragment`.

        Raises: as `execute`.
        """
        return self.execute("FROM journal(?, offsets := ?)", [name, offsets])

    def inferred(self) -> dict[str, InferredTable]:
        """Return what was inferred for each `journal(…)` of the last query, by that text."""
        return {name: table for name, table in self._inferred.items() if name in self._datasets}

    def _ask(self, statement: Statement, parameters: Sequence[Any] | None) -> DuckDBPyConnection:
        """Run a statement. DuckDB says which `journal(…)` of it is not a view yet."""
        import duckdb  # noqa: PLC0415

        missing: list[str] = []
        while True:
            try:
                return self._ask_known(statement, parameters)
            except duckdb.CatalogException as err:
                name = journal_missing(str(err))
                if name is None or name in missing:
                    raise
            missing.append(name)
            # One instant for all journals of the statement.
            self._take_journals(missing)

    def _take_journals(self, names: Sequence[str]) -> None:
        from gazette_platform.lake.engines.duckdb.journal_tables import infer_table  # noqa: PLC0415

        for name in names:
            self._journals[called(name)] = name
            if called(name) not in self._inferred:
                self._inferred[called(name)] = infer_table(self._client, name)
        self._register_all(self._inferred[called(name)].spec for name in names)

    def _forget_journals(self) -> None:
        """Let the next query ask for heads of journals again: views that it does not find are made again."""
        import duckdb  # noqa: PLC0415

        for table, name in self._journals.items():
            self._datasets.pop(table, None)
            for suffix in ("", OFFSETS_SUFFIX):
                # In a transaction that has failed only ROLLBACK is possible.
                with suppress(duckdb.TransactionException):
                    view = _quoted(view_of(name) + suffix)
                    self._duckdb.execute(f"DROP VIEW IF EXISTS temp.main.{view}")

    def _ask_known(
        self, statement: Statement, parameters: Sequence[Any] | None
    ) -> DuckDBPyConnection:
        """Run a statement whose tables are all known. If DuckDB fails to hand its filters to Arrow, DuckDB filters the rows itself."""
        import duckdb  # noqa: PLC0415

        try:
            return _asked(self._duckdb, statement, parameters)
        except duckdb.Error as err:
            # What Python code raises in DuckDB, such as Arrow's, has no class of its own.
            is_of_filters = type(err) is duckdb.Error or isinstance(err, duckdb.NotSupportedError)
            if not is_of_filters or self._failure is not None:
                raise
            try:
                self._leave_filters_to_duckdb()
            except duckdb.Error:  # the statement is in a transaction, which has failed
                raise err from None
        return _asked(self._duckdb, statement, parameters)

    def _leave_filters_to_duckdb(self) -> None:
        """Make the views of the present snapshots again, so that scans read all rows."""
        for dataset in list(self._datasets.values()):
            self._register(dataset.snapshot, is_filtered=False)
        for name, view in self._typed.views.items():
            view.make(self._duckdb, _DATABASE, self._short(name), is_filtered=False)

    def _begin(self, query: str) -> None:
        """Forget what was of the query before."""
        self._failure, self._query = None, query
        self._forget_journals()
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
        self._register_all(self._specs[name] for name in wanted if name in self._specs)
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
        """Where to ask which tables a query names: views would be looked through."""
        import duckdb  # noqa: PLC0415

        if self._empty is None:
            self._empty = duckdb.connect()
            self._empty.execute(MACRO_WITHOUT_VIEWS)
        return self._empty

    def _refresh_all(self) -> None:
        """As `refresh`, for queries that may mean any table: one that fails raises when it is asked for."""
        self._unavailable = {}
        found = self._client.run(self._snapshots(self._specs.values()))
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

    async def _snapshots(self, specs: Iterable[TableSpec]) -> list[TableSnapshot | GazetteError]:
        async def one(spec: TableSpec) -> TableSnapshot | GazetteError:
            try:
                return await take_snapshot(self._client.asynchronous, spec, self._clock.now())
            except GazetteError as err:
                return err

        return await side_by_side(one, specs, at_a_time=_TABLES_AT_A_TIME)

    def _register_all(self, specs: Iterable[TableSpec]) -> None:
        """Take snapshots of tables at one instant. Raises: what the first one fails with."""
        for snapshot in self._client.run(self._snapshots(specs)):
            if isinstance(snapshot, GazetteError):
                raise snapshot
            self._register(snapshot)

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
        from gazette_platform.lake.engines.duckdb.dataset import TableDataset, selected  # noqa: PLC0415

        spec = snapshot.spec
        dataset = TableDataset(
            snapshot,
            open_reader=self._reader,
            next_block=self._next_block,
            close=self._close_reader,
            failed=self._failed,
            parsers=self._parsers,
        )
        self._datasets[spec.name] = dataset
        journal = self._journals.get(spec.name)
        whole = f"{spec.name}{OFFSETS_SUFFIX}" if journal is None else data_of(journal)
        self._duckdb.register(whole, dataset)
        own = {column.name for column in spec.columns} | {c.column for c in snapshot.columns}
        fields = list(dataset.schema)
        for suffix, seen in (
            (OFFSETS_SUFFIX, fields),
            ("", [field for field in fields if field.name in own]),
        ):
            columns = selected(seen, is_filtered=is_filtered)
            for each in self._views(spec, suffix):
                self._duckdb.execute(
                    f"CREATE OR REPLACE {each} AS SELECT {columns} FROM temp.main.{_quoted(whole)}"  # noqa: S608
                )

    def _views(self, spec: TableSpec, suffix: str) -> list[str]:
        """Return the views of a table, as CREATE names them."""
        journal = self._journals.get(spec.name)
        if journal is not None:
            return [f"TEMP VIEW {_quoted(view_of(journal) + suffix)}"]
        view = _quoted(spec.table + suffix)
        is_short = self._names.get(spec.table) == spec.name
        return [f"VIEW {_place(spec)}.{view}", *([f"TEMP VIEW {view}"] if is_short else [])]

    def _register_typed(self, name: str) -> None:
        self._typed.pin(name).make(self._duckdb, _DATABASE, self._short(name))

    def _short(self, name: str) -> str:
        """What a typed table is called without a schema: its name in full, quoted, if another one is called so."""
        table = name.partition(".")[2]
        return table if self._names.get(table) == name else name

    # ------------------------------------------------------------------ in DuckDB's threads

    def _reader(
        self, extents: Sequence[TableExtent], parser: RowParser, counts: ScanCounts
    ) -> ExtentReader:
        from gazette_platform.lake.engines.duckdb.snapshot import ExtentReader  # noqa: PLC0415

        return ExtentReader(
            self._client.asynchronous,
            self._pool,
            extents,
            roots=self._roots,
            parser=parser,
            counts=counts,
        )

    def _next_block(self, reader: ExtentReader) -> list[Piece]:
        pieces = self._client.run(reader.next_block())
        if self.on_progress is not None:
            self.on_progress()
        return pieces

    def _close_reader(self, reader: ExtentReader) -> None:
        self._client.run(reader.aclose())

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    # ------------------------------------------------------------------ errors

    def told(self, error: Exception) -> BaseException:
        """Return the error to raise for what DuckDB raised: the cause, if it is ours."""
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
        if "/" in name:
            return f"there is no table {name}: to read journals without a table spec, write FROM {called(name)}"
        if not self.tables and not self.refused:
            return (
                f"there is no table {name}: no table spec is known (create a table with `gazctl lake create`, read journals "
                "without one by FROM journal('NAME'), or name another folder of specs by --tables)"
            )
        shown = ", ".join(self.tables[:_NAMES_SHOWN])
        more = len(self.tables) - _NAMES_SHOWN
        refused = f"; refused: {next(iter(self.refused.values()))}" if self.refused else ""
        return (
            f"there is no table {name} (known: {shown}{f' and {more} more' if more > 0 else ''}; a spec "
            f"in the tables folder makes another one{refused}){or_meant([name], self.tables)}"
        )


def _asked(
    _duckdb: DuckDBPyConnection, _statement: Statement, _parameters: Sequence[Any] | None
) -> DuckDBPyConnection:
    """Run a statement. DuckDB takes variables of who calls it for tables: here are none that it may name."""
    return _duckdb.execute(_statement, _parameters)


def _place(spec: TableSpec) -> str:
    """Where its views are: a schema may be called like a database, and another one may be in use."""
    return f"{_DATABASE}.{_quoted(spec.schema)}"
