"""A typed table as two data sets of Arrow, which DuckDB scans: its rows as they were pinned, and the tail after them.

As of raw tables (`dataset`), DuckDB says which columns it needs, and which rows; files of the table are pruned by that.
UUIDs are 16 bytes here, which a view makes UUIDs: DuckDB compares no UUIDs by way of Arrow.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from typing_extensions import override

from gazette_platform.lake.engines.duckdb.dataset import Scanner, possible
from gazette_platform.lake.typed.iceberg_types import arrow_schema
from gazette_platform.lake.typed.runs.tail import spool_tail
from gazette_platform.lake.typed.tables.stored_rows import TableHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.schema import Schema

    from gazette_platform.lake.iceberg.catalog import Loaded
    from gazette_platform.lake.typed.runs.tail import PinnedTail, SpooledTail

_UUID = pa.uuid()


def uuid_columns(schema: pa.Schema) -> list[str]:
    """Columns that are UUIDs, which data sets have as bytes."""
    return [field.name for field in schema if field.type == _UUID]


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a data set of these columns."""
    return pa.schema([
        (field.name, _UUID.storage_type if field.type == _UUID else field.type) for field in schema
    ])  # fmt: skip


class _Rows(ds.Dataset):  # type: ignore[misc]
    """Rows that are made as they are scanned.

    Args:
        schema: of rows, with UUIDs.
        failed: called with why a scan fails: DuckDB passes texts on only.

    Attributes:
        scans: that were begun.
    """

    def __init__(self, schema: pa.Schema, failed: Callable[[BaseException], None]) -> None:
        self.scans = 0
        self._schema = plain_schema(schema)
        self._failed = failed

    @property
    @override
    def schema(self) -> pa.Schema:
        return self._schema

    @override
    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **_: Any,
    ) -> Scanner:
        """Begin a scan, as DuckDB asks for one. See `TableDataset.scanner`."""
        self.scans += 1
        names = list(columns) if columns is not None else self._schema.names
        wanted = pa.schema([self._schema.field(name) for name in names])
        # The expression does not list its columns; its text names them all.
        text = str(filter) if filter is not None else ""
        read = [name for name in self._schema.names if name in names or name in text]
        batches = self._told(self._batches(read or self._schema.names[:1], filter), wanted, filter)
        return Scanner(pa.RecordBatchReader.from_batches(wanted, batches))

    def _batches(
        self, columns: Sequence[str], condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows with these columns, among them at least all for which the condition is true."""
        raise NotImplementedError

    def _told(
        self,
        batches: Iterator[pa.RecordBatch],
        wanted: pa.Schema,
        condition: pc.Expression | None,
    ) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                table = pa.Table.from_arrays(
                    [_plain(column) for column in batch.columns],
                    schema=pa.schema([self._schema.field(name) for name in batch.schema.names]),
                )
                if condition is not None:
                    table = table.filter(condition)
                if table.num_rows:
                    yield from table.select(wanted.names).to_batches()
        except GeneratorExit:
            raise
        except BaseException as err:
            self._failed(err)
            raise


@final
class HistoryDataset(_Rows):
    """Rows of a table; none, if there is no table yet.

    Args:
        loaded: the table; its current snapshot is read. None: there is none.
        schema: of its rows.
        failed: see `_Rows`.

    Attributes:
        files: that were opened.
    """

    def __init__(
        self, loaded: Loaded | None, schema: Schema, failed: Callable[[BaseException], None]
    ) -> None:
        self.files = 0
        self._history = None if loaded is None else TableHistory(loaded)
        super().__init__(arrow_schema(schema), failed)

    @override
    def _batches(
        self, columns: Sequence[str], condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        history = self._history
        if history is None:
            return
        files = history.files
        if condition is not None:
            asked = [name for name in columns if name in str(condition)]
            known = (history.known_of(one.file, asked) for one in files)
            files = tuple(files[at] for at in possible(known, self._schema, condition))
        for file in files:
            self.files += 1
            yield from history.batches(file, columns)


@final
class TailDataset(_Rows):
    """What is behind the table. It is read once, by the first scan, whatever that asks for.

    Args:
        pinned: says where it is.
        failed: see `_Rows`.
        threads: that read.
    """

    def __init__(
        self, pinned: PinnedTail, failed: Callable[[BaseException], None], *, threads: int
    ) -> None:
        self._pinned = pinned
        self._threads = threads
        self._spooled: SpooledTail | None = None
        self._lock = threading.Lock()
        super().__init__(arrow_schema(pinned.schema), failed)

    @property
    def quarantined(self) -> int | None:
        """Records of the tail that cannot be rows; None: the tail was not read."""
        return None if self._spooled is None else self._spooled.quarantined

    def close(self) -> None:
        """Forget what was read."""
        with self._lock:
            if self._spooled is not None:
                self._spooled.close()

    @override
    def _batches(
        self, columns: Sequence[str], condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        with self._lock:
            if self._spooled is None:
                self._spooled = spool_tail(self._pinned, threads=self._threads)
            spooled = self._spooled
        for batch in spooled.batches():
            yield batch.select(columns)


def _plain(column: pa.Array) -> pa.Array:
    return column.storage if column.type == _UUID else column
