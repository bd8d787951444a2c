"""Rows of a table's data files as they are stored, a few at a time, without those that engines deleted.

Memory goes by a batch of rows, and not by the file, or by its row groups: one may be all of a file.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet
from pyiceberg.manifest import FileFormat

from gazette_platform.errors import LakeError, TypedRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from gazette_platform.lake.typed.catalog.doors import Loaded

__all__ = ["StoredRows", "stored_rows"]

_FIELD_ID: Final = b"PARQUET:field_id"
# As they are stored, before they are compressed; in Arrow it is about as much.
_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS_MAX: Final = 1 << 16
# Of each column. Without, Arrow reads row groups whole.
_BUFFER_BYTES: Final = 1 << 20


@contextmanager
def stored_rows(now: Loaded, file: DataFile, deletes: Iterable[DataFile]) -> Iterator[StoredRows]:
    """Open a data file of a table.

    Args:
        now: the table.
        deletes: files with positions of rows that engines deleted.

    Raises: LakeError: a file cannot be read, here or within. TypedRefused: one is not Parquet.
    """
    deletes = sorted(deletes, key=lambda one: one.file_path)
    _require_parquet(file, *deletes)
    try:
        deleted = _positions(now.io, file, deletes)
        with now.io.new_input(file.file_path).open() as stream:
            source = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            yield StoredRows(source, now.metadata.schema(), deleted)
    except (OSError, pa.ArrowException) as err:
        raise LakeError(
            f"{file.file_path} cannot be read, or rewritten ({err}): make sure that it exists, and run again"
        ) from err


@final
class StoredRows:
    """Rows of a file.

    Args:
        source: the file.
        schema: of the table, by whose ids columns are found.
        deleted: positions of rows that are not there, rising.
    """

    def __init__(self, source: parquet.ParquetFile, schema: Schema, deleted: Sequence[int]) -> None:
        self.schema: pa.Schema = source.schema_arrow
        """Of the file."""
        self._source = source
        self._table_schema = schema
        self._deleted = deleted
        groups = range(source.num_row_groups)
        size = sum(source.metadata.row_group(n).total_byte_size for n in groups)
        bytes_each = max(1, size // max(1, source.metadata.num_rows))
        self._batch_rows = max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES // bytes_each))

    def name_of(self, column: str) -> str:
        """What the file calls a column of the table.

        Raises: TypedRefused: it has none of that id.
        """
        wanted = str(self._table_schema.find_field(column).field_id).encode()
        for field in self.schema:
            if (field.metadata or {}).get(_FIELD_ID) == wanted:
                return str(field.name)
        raise TypedRefused(
            f"a data file has no column with the id of {column}, so the origin of its rows is unknown: someone "
            "added it by hand; remove those rows, and run again"
        )

    def batches(
        self, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray]]:
        """All rows, in their order, each batch with a mask of existing ones.

        Args:
            columns: as the file calls them; None: all.
        """
        at = 0
        for batch in self._source.iter_batches(
            self._batch_rows, columns=columns, use_threads=False
        ):
            yield batch, self._is_there(at, batch.num_rows)
            at += batch.num_rows

    def _is_there(self, at: int, count: int) -> pa.BooleanArray:
        low, high = (bisect_left(self._deleted, bound) for bound in (at, at + count))
        if low == high:
            return pa.repeat(pa.scalar(value=True), count)
        gone = pa.array(self._deleted[low:high], pa.int64())
        positions = pa.array(range(at, at + count), pa.int64())
        return pc.invert(pc.is_in(positions, value_set=gone))


def _positions(io: FileIO, file: DataFile, deletes: Sequence[DataFile]) -> Sequence[int]:
    found: set[int] = set()
    for one in deletes:
        with io.new_input(one.file_path).open() as stream:
            source = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            for batch in source.iter_batches(columns=["file_path", "pos"], use_threads=False):
                is_its = pc.equal(batch.column("file_path").cast(pa.string()), file.file_path)
                found.update(batch.column("pos").filter(is_its).to_pylist())
    return sorted(found)


def _require_parquet(*files: DataFile) -> None:
    for file in files:
        if file.file_format != FileFormat.PARQUET:
            raise TypedRefused(
                f"{file.file_path} is {file.file_format.value}, and only Parquet is read here: optimize the table by an "
                "engine that writes Parquet, and run again"
            )
