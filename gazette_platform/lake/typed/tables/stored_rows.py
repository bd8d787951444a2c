"""Rows of a table's data files as they are stored, streamed, without those that engines deleted.

Memory goes by a batch of some megabytes, and not by the file, or by its row groups: one may be all of a file. PyIceberg's own
scan keeps all rows of a file in memory, and those of several files at a time.

`stored_rows` opens one file. `TableHistory` has all files of a snapshot; it leaves out those that cannot have wanted rows by
what manifests say of their columns.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor, pyarrow_to_schema
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns, visit_with_partner
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from gazette_platform.errors import LakeError, TypedRefused
from gazette_platform.lake.typed.iceberg_types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask
    from pyiceberg.types import NestedField

    from gazette_platform.lake.iceberg.catalog import Loaded

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


# Whose bounds are in the order in which Arrow compares. Of floating-point numbers NaN is in no bounds.
_BOUNDED: Final = (
    DateType, DecimalType, IntegerType, LongType, StringType, TimestampType, TimestamptzType,
)  # fmt: skip


@final
class TableHistory:
    """Rows of a table.

    Args:
        loaded: the table; its current snapshot is read.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._schema = loaded.metadata.schema()
        self.schema: pa.Schema = arrow_schema(self._schema)
        """Of its rows."""

    @cached_property
    def files(self) -> tuple[FileScanTask, ...]:
        """All data files of the snapshot, each with those of rows that engines deleted of it.

        Raises: LakeError: the manifests cannot be read.
        """
        if self._loaded.metadata.current_snapshot_id is None:
            return ()
        with _reading(self._loaded.metadata.location):
            return tuple(self._loaded.table.scan().plan_files())

    def known_of(self, file: DataFile, columns: Sequence[str]) -> pc.Expression:
        """What is true of all rows of a file, as far as manifests say it.

        Args:
            columns: those that may be reported.
        """
        known = pc.scalar(True)
        for name in columns:
            found = _known(file, self._schema.find_field(name))
            if found is not None:
                known = known & found
        return known

    def batches(self, file: FileScanTask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a file, some megabytes at a time.

        Args:
            columns: of the table: at least one.

        Raises: LakeError: the file cannot be read, or is not Parquet.
        """
        wanted = Schema(*(self._schema.find_field(name) for name in columns))
        target = pa.schema([self.schema.field(name) for name in columns])
        ids = {id_ for id_ in wanted.field_ids if wanted.find_type(id_).is_primitive}
        with stored_rows(self._loaded, file.file, file.delete_files) as rows:
            stored = pyarrow_to_schema(rows.schema)
            own = prune_columns(stored, ids, select_full_types=False)
            # One column at least shows how many rows there are.
            names = [field.name for field in own.fields] or rows.schema.names[:1]
            for batch, is_there in rows.batches(names):
                kept = batch.filter(is_there)
                if kept.num_rows:
                    yield _projected(kept, own, wanted, target)


def _projected(
    batch: pa.RecordBatch, own: Schema, wanted: Schema, target: pa.Schema
) -> pa.RecordBatch:
    """Rows as the table has them now: columns are found by their ids, and are null where the file has none."""
    visitor = ArrowProjectionVisitor(own, True, False, allow_timestamp_tz_mismatch=True)
    found = visit_with_partner(wanted, batch, visitor, ArrowAccessor(own))
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(found.flatten(), target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _known(file: DataFile, field: NestedField) -> pc.Expression | None:
    """What is true of a column in all rows of a file; None: nothing is known."""
    kind = field.field_type
    if not isinstance(kind, _BOUNDED):
        return None
    id_, column = field.field_id, pc.field(field.name)
    nulls = (file.null_value_counts or {}).get(id_)
    if nulls == file.record_count:
        return column.is_null()
    lower, upper = ((told or {}).get(id_) for told in (file.lower_bounds, file.upper_bounds))
    if lower is None or upper is None:
        return None
    try:
        found = arrow_schema(Schema(field)).field(0).type
        lowest, highest = (pa.scalar(from_bytes(kind, bound), found) for bound in (lower, upper))
    except (ValueError, struct.error, pa.ArrowException):
        return None  # the column has become wider since
    bounds = [column >= lowest, column <= highest]
    if nulls != 0:
        # By one bound at a time: of both together with nulls Arrow concludes nothing.
        bounds = [bound | column.is_null() for bound in bounds]
    return bounds[0] & bounds[1]


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as err:
        raise LakeError(f"{what}: its manifests cannot be read: {err}") from err
