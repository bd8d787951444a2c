"""A table as a data set of Arrow, which DuckDB scans: it says which columns it needs, and which rows.

DuckDB takes any subclass of `pyarrow.dataset.Dataset`, asks its `scanner` for the columns of a query and
hands down comparisons as an Arrow expression. Which extents may hold such rows is decided by Arrow,
from what is known of each: its partition values, its journal, its offsets. Only those are read. Of the
other ways that were tried, parsing lines in SQL is half as fast, and DuckDB's `read_json` over whole files, which is the fastest,
gives other values without an error. Tried with DuckDB 1.5: for `bigint` it makes 5 of ``5.0``, 6 of ``5.7``, 1000 of ``1e3``, 12 of
``" 12"`` and 1 of ``true``, where Trino, Spark and this give NULL; for `boolean` it makes true of ``1``, for `decimal(10,2)` 1.25
of ``1.255`` (1.26), for `string` ``1.5`` of ``1.50``. A blank line is not a row, two values of a key or half a line fail the query, or
with `ignore_errors` are other rows. Only a look at all values would say whether a file has such ones, and that costs as much as
reading them (`ScalarReader`).
"""

from __future__ import annotations

from collections import deque
from datetime import date
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from pyarrow.fs import LocalFileSystem  # type: ignore[import-untyped]
from typing_extensions import override

from gazette_platform.lake.engines.duckdb.names import quoted
from gazette_platform.lake.engines.duckdb.snapshot import ExtentReader, ScanCounts
from gazette_platform.lake.reading.arrow_types import arrow_type
from gazette_platform.lake.reading.json_columns import array_of
from gazette_platform.lake.reading.raw_rows import row_parser
from gazette_platform.lake.spec.formats import header_pattern, header_places
from gazette_platform.lake.spec.types import ColumnType, parse_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from gazette_platform.lake.engines.duckdb.snapshot import Piece, TableExtent, TableSnapshot
    from gazette_platform.lake.reading.raw_rows import RowParser

ORIGIN_COLUMNS: Final = ("_journal", "_offset", "_fragment")
"""Where a row comes from: its journal, the byte offset of its record, and the name of the persisted
fragment's file, NULL in the live tail. One that is a name of the table's own columns is left out."""

# That are parsed while another one is used: as many as make a scan use two cores, and memory for three.
_BLOCKS_AHEAD: Final = 2

_STRING: Final = ColumnType("string")
_ORIGIN_TYPES: Final = (pa.string(), pa.int64(), pa.string())


class _Blocks(NamedTuple):
    """How blocks of a scan are had, in the thread of DuckDB that pulls."""

    next: Callable[[ExtentReader], list[Piece]]
    close: Callable[[ExtentReader], None]


@final
class TableDataset(ds.Dataset):  # type: ignore[misc]
    """A snapshot of a table; each scan reads it again.

    Args:
        snapshot: what is in it.
        open_reader: makes the reader of a scan.
        next_block, close: drive it, from any thread.
        failed: called with why a scan fails: DuckDB passes texts on only.
        parsers: threads that parse blocks, two at a time for each scan.

    Attributes:
        counts: of each scan, in order.
    """

    def __init__(
        self,
        snapshot: TableSnapshot,
        *,
        open_reader: Callable[[Sequence[TableExtent], RowParser, ScanCounts], ExtentReader],
        next_block: Callable[[ExtentReader], list[Piece]],
        close: Callable[[ExtentReader], None],
        failed: Callable[[BaseException], None],
        parsers: ThreadPoolExecutor,
    ) -> None:
        self.snapshot = snapshot
        self.counts: list[ScanCounts] = []
        self._open_reader = open_reader
        self._blocks = _Blocks(next_block, close)
        self._failed = failed
        self._parsers = parsers
        self._parser = row_parser(snapshot.spec)
        self._header = header_pattern(snapshot.spec)
        self._schema = _schema_of(snapshot)

    @property
    @override
    def schema(self) -> pa.Schema:
        """Of all columns: origin, data, partition."""
        return self._schema

    @override
    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **_: Any,
    ) -> Scanner:
        """Begin a scan, as DuckDB asks for one.

        Args:
            columns: what batches have, in this order; None: all.
            filter: rows for which it is not true are left out.
        """
        names = list(columns) if columns is not None else self._schema.names
        wanted = pa.schema([self._schema.field(name) for name in names])
        extents = prune(self.snapshot, self._schema, filter)
        counts = ScanCounts(
            extents=len(extents),
            extents_planned=len(self.snapshot.extents),
            bytes_planned=sum(extent.end - extent.begin for extent in extents),
        )
        self.counts.append(counts)
        # The expression does not list its columns; its text names them all.
        text = str(filter) if filter is not None else ""
        read = [name for name in self._schema.names if name in names or name in text]
        batches = self._batches(extents, read, wanted, filter, counts)
        return Scanner(pa.RecordBatchReader.from_batches(wanted, batches))

    def _batches(
        self,
        extents: Sequence[TableExtent],
        read: list[str],
        wanted: pa.Schema,
        condition: pc.Expression | None,
        counts: ScanCounts,
    ) -> Iterator[pa.RecordBatch]:
        if not extents:
            return
        reader = self._open_reader(extents, self._parser, counts)
        parsed: deque[Future[pa.Table]] = deque()
        try:
            while pieces := self._blocks.next(reader):
                parsed.append(self._parsers.submit(self._table, pieces, read, condition))
                if len(parsed) > _BLOCKS_AHEAD:
                    yield from _batches_of(parsed.popleft(), wanted)
            while parsed:
                yield from _batches_of(parsed.popleft(), wanted)
        except GeneratorExit:
            raise
        except BaseException as err:
            self._failed(err)
            raise
        finally:
            for future in parsed:
                future.cancel()
            self._blocks.close(reader)

    def _table(
        self, pieces: Sequence[Piece], read: Sequence[str], condition: pc.Expression | None
    ) -> pa.Table:
        """The columns `read` of the records of `pieces` for which `condition` is true. In a thread."""
        data = [column.name for column in self.snapshot.spec.columns if column.name in read]
        content = b"".join(piece.content for piece in pieces) if data else b""
        parsed = dict(zip(data, self._parser.columns(content, data), strict=True)) if data else {}
        if parsed and len(pieces) == 1:
            rows = [len(parsed[data[0]])]
        else:
            rows = [self._parser.count(piece.content) for piece in pieces]
        places = {column.column: i for i, column in enumerate(self.snapshot.columns)}
        arrays = []
        for name in read:
            if name in parsed:
                arrays.append(parsed[name])
            elif name in places:
                values = [p.extent.values[places[name]] for p in pieces]
                kind = parse_type(self.snapshot.columns[places[name]].type)
                arrays.append(_repeated(values, rows, kind))
            elif name == "_offset":
                arrays.append(pa.concat_arrays([self._offsets(piece) for piece in pieces]))
            elif name == "_journal":
                arrays.append(_repeated([p.extent.journal for p in pieces], rows, _STRING))
            else:
                arrays.append(_repeated([_file_name(p.extent) for p in pieces], rows, _STRING))
        table = pa.Table.from_arrays(
            arrays, schema=pa.schema([self._schema.field(name) for name in read])
        )
        table = self._without_headers(table, pieces)
        return table if condition is None else table.filter(condition)

    def _without_headers(self, table: pa.Table, pieces: Sequence[Piece]) -> pa.Table:
        if self._header is None:
            return table
        places = header_places(b"".join(piece.content for piece in pieces), self._header)
        if not places:
            return table
        is_row = [True] * table.num_rows
        for place in places:
            is_row[place] = False
        return table.filter(pa.array(is_row))

    def _offsets(self, piece: Piece) -> pa.Int64Array:
        ends = self._parser.ends(piece.content)
        begins = pa.concat_arrays([pa.array([0], pa.int64()), ends.slice(0, len(ends) - 1)])
        return pc.add(begins, piece.begin)


def _batches_of(parsed: Future[pa.Table], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    table = parsed.result()
    if table.num_rows:
        yield from table.select(wanted.names).cast(wanted).to_batches()


@final
class Scanner:
    """What DuckDB takes of a scanner."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches."""
        return self._reader


def selected(fields: Iterable[pa.Field], *, is_filtered: bool = True) -> str:
    """Return the list of columns with which a view selects fields of a data set.

    DuckDB leaves comparisons of a plain column to Arrow, and those of floating-point numbers are not its own: to
    DuckDB, NaN is greater than all numbers, to Arrow it compares as false. A column in a CASE stays with DuckDB.

    Args:
        fields: of the data set.
        is_filtered: whether DuckDB may leave comparisons to Arrow. It fails on some that Arrow does not have.
    """
    return ", ".join(
        f"CASE WHEN {name} IS NULL THEN NULL ELSE {name} END AS {name}"
        if not is_filtered or _has_floats(field.type)
        else name
        for field, name in ((field, quoted(field.name)) for field in fields)
    )


def _has_floats(kind: pa.DataType) -> bool:
    """Whether a type is of floating-point numbers, or a struct that has some."""
    if pa.types.is_struct(kind):
        return any(_has_floats(field.type) for field in kind)
    return bool(pa.types.is_floating(kind))


def prune(
    snapshot: TableSnapshot, schema: pa.Schema, condition: pc.Expression | None
) -> list[TableExtent]:
    """The extents that may hold rows for which `condition` is true, in order."""
    if condition is None:
        return list(snapshot.extents)
    origin = _origin_columns(snapshot)
    groups: dict[tuple[str, tuple[str | None, ...]], list[TableExtent]] = {}
    for extent in snapshot.extents:
        groups.setdefault((extent.journal, extent.values), []).append(extent)
    keys = list(groups)
    expressions = [
        _all_of(
            [
                *([ds.field("_journal") == journal] if "_journal" in origin else []),
                *_known(snapshot, values),
            ]
        )
        for journal, values in keys
    ]
    kept = [s for i in possible(expressions, schema, condition) for s in groups[keys[i]]]
    if "_offset" in origin and "_offset" in str(condition):
        offset = ds.field("_offset")
        expressions = [(offset >= s.begin) & (offset < s.end) for s in kept]
        kept = [kept[i] for i in possible(expressions, schema, condition)]
    return kept


def possible(
    guarantees: Iterable[pc.Expression], schema: pa.Schema, condition: pc.Expression
) -> list[int]:
    """Indices of the guarantees under which `condition` may be true: Arrow's own pruning of files.

    The files are never opened; their names are the indices.
    """
    files, kind = LocalFileSystem(), ds.IpcFileFormat()
    parts = [
        kind.make_fragment(str(index), files, partition_expression=guarantee)
        for index, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(parts, schema, kind, files)
    return [int(part.path) for part in dataset.get_fragments(filter=condition)]


def _known(snapshot: TableSnapshot, values: tuple[str | None, ...]) -> list[pc.Expression]:
    found = []
    for column, text in zip(snapshot.columns, values, strict=True):
        field = ds.field(column.column)
        found.append(
            field.is_null() if text is None else field == _scalar(text, _type(column.type))
        )
    return found


def _all_of(expressions: Sequence[pc.Expression]) -> pc.Expression:
    return reduce(and_, expressions, pc.scalar(True))


def _type(text: str) -> pa.DataType:
    return arrow_type(parse_type(text))


def _scalar(text: str | None, kind: pa.DataType) -> pa.Scalar:
    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_date(kind):
        return pa.scalar(date.fromisoformat(text), kind)
    return pa.scalar(int(text) if pa.types.is_integer(kind) else text, kind)


def _repeated(values: Sequence[str | None], rows: Sequence[int], kind: ColumnType) -> pa.Array:
    """Each text, as a value of the type, as many times as there are rows."""
    is_integer = kind.name.endswith("int")
    found: list[Any] = [
        value
        if value is None
        else int(value)
        if is_integer
        else date.fromisoformat(value)
        if kind.name == "date"
        else value
        for value in values
    ]
    # Arrow's own way from Python values imports pandas where that is installed, which takes half a second.
    runs = [pa.repeat(one, count) for one, count in zip(array_of(found, kind), rows, strict=True)]
    return pa.concat_arrays(runs)


def _file_name(extent: TableExtent) -> str | None:
    return extent.listing.fragment.content_name if extent.listing is not None else None


def _origin_columns(snapshot: TableSnapshot) -> dict[str, pa.DataType]:
    """Types of the columns that say where a row comes from. DuckDB ignores the case of names."""
    own = {column.name.lower() for column in snapshot.spec.columns}
    own |= {column.column for column in snapshot.columns}
    kinds = zip(ORIGIN_COLUMNS, _ORIGIN_TYPES, strict=True)
    return {name: kind for name, kind in kinds if name not in own}


def _schema_of(snapshot: TableSnapshot) -> pa.Schema:
    return pa.schema(
        [
            *_origin_columns(snapshot).items(),
            *((column.name, arrow_type(column.parsed)) for column in snapshot.spec.columns),
            *((column.column, _type(column.type)) for column in snapshot.columns),
        ]
    )
