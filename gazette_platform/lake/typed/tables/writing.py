"""Rows of a typed table as Parquet files below its location, which no reader sees before they are published.

A worker knows the schema and how rows are partitioned, and not the table. So it reports all that manifests say of a file, in
bytes that travel (`WrittenFile`), and the driver, which has the table, makes PyIceberg's record of it.

A *sink* takes rows in order: `RowWriter` writes files by partition, `ChangeWriter` keeps deletions of a table of changes in
files of their own, `SpooledRows` goes to a local file without a name, `CountedRows` nowhere.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import uuid
from contextlib import ExitStack
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from msgspec import structs
from pyarrow import parquet
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from gazette_platform.errors import LakeError
from gazette_platform.lake.spec.typed.columns import DELETE, TRUNCATE
from gazette_platform.lake.typed.iceberg_types import arrow_schema
from gazette_platform.lake.typed.rows.placing import RowParter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.spec.typed.columns import ChangeOrder

METRICS: Final = {
    "write.metadata.metrics.column._journal": "full",
    "write.metadata.metrics.column._begin": "full",
}
"""Properties of a table that let its files be found by journal; without them bounds of texts are cut."""

# A field has the name of the type.
_Bytes = bytes


@final
class WrittenFile(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A Parquet file below the table's location. Statistics are by field id."""

    path: str
    bytes: int
    rows: int
    spec_id: int
    """Of the partition spec that it was written by."""
    partition: tuple[Any, ...]
    """What its rows have in common, in the order of the spec's fields: dates as days, instants as microseconds, UUIDs
    as 16 bytes, decimals as texts."""
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, _Bytes]
    upper_bounds: dict[int, _Bytes]
    split_offsets: list[int]
    deletes: bool = False
    """Whether its rows are deletions of keys, and nothing else."""

    def dump(self) -> _Bytes:
        """As msgpack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def parse(cls, content: _Bytes) -> Self:
        """What was dumped.

        Raises: LakeError: it is something else.
        """
        try:
            return msgspec.msgpack.decode(content, type=cls)
        except msgspec.MsgspecError as err:
            raise LakeError(
                f"what a worker says of its files cannot be read ({err}): workers of another release wrote it, or it is "
                "damaged; run again"
            ) from err


@final
class FileDescriber:
    """Collects what manifests say of Parquet files of one schema.

    Args:
        schema: of the table; columns are called as in it.
        spec_id: of the partition spec of the rows.
    """

    def __init__(self, schema: Schema, spec_id: int) -> None:
        self._spec_id = spec_id
        self._plan = compute_statistics_plan(schema, METRICS)
        self._leaves = parquet_path_to_id_mapping(schema)

    def describe(
        self, path: str, size: int, parquet_metadata: parquet.FileMetaData, partition: Sequence[Any]
    ) -> WrittenFile:
        """What manifests say of a file that was written.

        Args:
            path: its location, as readers will open it.
            size: bytes.
            parquet_metadata: its footer, as the writer has it.
            partition: the value of each of the spec's fields that all rows have.

        Returns: with whole bounds of `_journal` and `_begin`; texts of others are cut as PyIceberg does.
        """
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=parquet_metadata,
            stats_columns=self._plan,
            parquet_column_mapping=self._leaves,
        ).to_serialized_dict()
        return WrittenFile(
            path=path,
            bytes=size,
            rows=statistics.pop("record_count"),
            spec_id=self._spec_id,
            partition=tuple(map(_plain, partition)),
            **statistics,
        )


def data_file_of(written: WrittenFile, metadata: TableMetadata) -> DataFile:
    """The file as PyIceberg commits it.

    Raises: LakeError: the table has no such partition spec, or one of other fields.
    """
    spec = metadata.specs().get(written.spec_id)
    if spec is None or len(spec.fields) != len(written.partition):
        raise LakeError(
            f"{written.path} was written by partition spec {written.spec_id}, which the table at "
            f"{metadata.location} does not have: it was recreated meanwhile; run again"
        )
    kinds = [field.field_type for field in spec.partition_type(metadata.schema()).fields]
    values = [
        Decimal(value) if isinstance(kind, DecimalType) and value is not None else value
        for kind, value in zip(kinds, written.partition, strict=True)
    ]
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=written.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=written.rows,
        file_size_in_bytes=written.bytes,
        column_sizes=written.column_sizes,
        value_counts=written.value_counts,
        null_value_counts=written.null_value_counts,
        nan_value_counts=written.nan_value_counts,
        lower_bounds=written.lower_bounds,
        upper_bounds=written.upper_bounds,
        split_offsets=written.split_offsets,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = written.spec_id
    return file


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
        case uuid.UUID():
            return value.bytes
        case Decimal():
            return str(value)
        case _:
            return value


# As Arrow holds them, of all partitions together: what a row group has at most. Parting them takes as much again.
# That is what a task of 128 MiB of JSON comes to, and some more: so its partitions have a file each.
_HELD_BYTES: Final = 96 << 20
_FILE_BYTES: Final = 256 << 20
# One in a store of objects holds a part of 10 MiB until it is sent.
_OPEN_FILES: Final = 16
# Columns of many values find out early that a dictionary is work for nothing: with 1 MiB, as is Arrow's own, writing takes
# twice as long, and files are larger by half.
_DICTIONARY_BYTES: Final = 128 << 10

_log = logging.getLogger(__name__)


@final
class RowWriter:
    """Writes rows into files, each of one partition.

    Rows are held until there are enough, and then all are written, each partition's to its file. Files stay
    open meanwhile, except those of the smallest partitions if there are many: so there are more files the
    more partitions rows are scattered over, and memory is the same.

    Args:
        io: of the table.
        location: of the table.
        schema: of the table.
        partitions: the spec that partitions rows.
        held_bytes: of rows that are held, as Arrow counts them. Memory: twice that, and the open files'.
        file_bytes: a file is ended once it has as much.
        open_files: that stay open, at most.

    Raises: LakeError: the partition spec has a transform that specs of typed tables do not have.
    """

    def __init__(
        self,
        io: FileIO,
        location: str,
        schema: Schema,
        partitions: PartitionSpec,
        *,
        held_bytes: int = _HELD_BYTES,
        file_bytes: int = _FILE_BYTES,
        open_files: int = _OPEN_FILES,
    ) -> None:
        self.schema = arrow_schema(schema)
        """Of the rows."""
        self.rows = 0
        """That were taken."""
        self._io = io
        self._location = location
        self._describer = FileDescriber(schema, partitions.spec_id)
        self._parter = RowParter(schema, partitions)
        self._held_bytes_max = held_bytes
        self._file_bytes = file_bytes
        self._open_files = open_files
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._open: dict[tuple[Any, ...], OpenFile] = {}
        self._begun: list[str] = []
        self._written: list[WrittenFile] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows, of `schema`.

        Raises: LakeError: a file cannot be written.
        """
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._held_bytes_max:
            self._write(is_last=False)

    def close(self) -> tuple[WrittenFile, ...]:
        """Write what is held, and end all files. Returns: those that were written; none for no rows.

        Raises: LakeError: a file cannot be written.
        """
        self._write(is_last=True)
        for value in list(self._open):
            self._end(self._open.pop(value))
        return tuple(self._written)

    def abort(self) -> None:
        """Remove all that was written. What cannot be removed is left to maintenance."""
        self._held = []
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        self._written.clear()
        remove_files(self._io, self._begun)

    def _write(self, *, is_last: bool) -> None:
        if not self._held:
            return
        # Tables of many chunks are slow to be parted and written.
        rows = pa.concat_tables(self._held).combine_chunks()
        self._held, self._held_bytes = [], 0
        parts = self._parter.parts(rows)
        del rows
        for value in self._open.keys() - {part.value for part in parts}:
            # As of an hour that is over.
            self._end(self._open.pop(value))
        for value, of_part in parts:
            file = self._open.pop(value, None) or self._new_file(value)
            # At once, for `abort`, should this be the last that is done.
            self._open[value] = file
            size = file.write(of_part)
            if is_last or size >= self._file_bytes or len(self._open) > self._open_files:
                self._end(self._open.pop(value))

    def _new_file(self, value: tuple[Any, ...]) -> OpenFile:
        path = f"{self._location}/data/{uuid.uuid4()}.parquet"
        self._begun.append(path)
        return OpenFile(self._io, path, self.schema, value)

    def _end(self, file: OpenFile) -> None:
        size, metadata = file.close()
        self._written.append(self._describer.describe(file.path, size, metadata, file.partition))


@final
class OpenFile:
    """A Parquet file that is being written.

    Args:
        io: of the table.
        path: where it will be.
        schema: of its rows, with ids of fields.
        partition: that all rows have in common.

    Raises: LakeError: it cannot be written; so do the methods.
    """

    def __init__(
        self,
        io: FileIO,
        path: str,
        schema: pa.Schema,
        partition: tuple[Any, ...],
    ) -> None:
        self.path = path
        self.partition = partition
        try:
            self._stream = io.new_output(path).create()
            self._writer = parquet.ParquetWriter(
                self._stream,
                schema,
                compression="zstd",
                compression_level=1,
                dictionary_pagesize_limit=_DICTIONARY_BYTES,
                # As Iceberg wants decimals of few digits, and its readers in Java are fastest.
                store_decimal_as_integer=True,
            )
        except OSError as err:
            raise _unwritten(path, err) from err

    def write(self, rows: pa.Table) -> int:
        """Write rows as a row group. Returns: bytes of the file until now."""
        try:
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            return int(self._stream.tell())
        except OSError as err:
            raise _unwritten(self.path, err) from err

    def close(self) -> tuple[int, Any]:
        """End the file. Returns: its bytes, and what its footer says."""
        try:
            self._writer.close()
            size = int(self._stream.tell())
            self._stream.close()
        except OSError as err:
            self.abandon()
            raise _unwritten(self.path, err) from err
        return size, self._writer.writer.metadata

    def abandon(self) -> None:
        """Release a file that will not be read."""
        for each in (self._writer, self._stream):
            try:
                each.close()
            except OSError as err:
                _log.debug("%s is abandoned: %s", self.path, err)


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Remove files that will not be read. What cannot be removed is logged, and left to maintenance."""
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except OSError as err:
            _log.warning("%s stays, for maintenance to remove: %s", path, err)


def _unwritten(path: str, err: OSError) -> LakeError:
    return LakeError(
        f"cannot write {path} ({err}): see that there is room, and that the place can be written, and run again"
    )


_CODEC = "lz4"


class SpooledBatch(NamedTuple):
    """Where in a spool some rows are."""

    begin: int
    size: int
    plain_size: int
    """Uncompressed."""


@final
class RowSpool:
    """Rows on the local disk, in a file that has no name and so is gone with its process, whatever ends that.

    All methods may be called from any thread.

    Args:
        schema: of all rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._file = tempfile.TemporaryFile(prefix="gazette-rows-")  # noqa: SIM115  see `close`
        self._end = 0
        self._lock = threading.Lock()

    def add(self, rows: pa.Table) -> list[SpooledBatch]:
        """Write rows after all others.

        Raises: LakeError: the disk is full, or fails.
        """
        return [self._write(batch.serialize()) for batch in rows.to_batches() if batch.num_rows]

    def read(self, places: Iterable[SpooledBatch]) -> Iterator[pa.RecordBatch]:
        """Rows that were written, any number of times.

        Raises: LakeError: the disk fails.
        """
        codec = pa.Codec(_CODEC)
        for place in places:
            try:
                stored = os.pread(self._file.fileno(), place.size, place.begin)
            except OSError as err:
                raise LakeError(f"rows cannot be read back from the local disk: {err}") from err
            content = codec.decompress(stored, place.plain_size)
            yield pa.ipc.read_record_batch(content, self.schema)

    def close(self) -> None:
        """Give the disk back. What is being read fails."""
        self._file.close()

    def _write(self, content: pa.Buffer) -> SpooledBatch:
        stored = memoryview(pa.Codec(_CODEC).compress(content, asbytes=True))
        with self._lock:
            begin, self._end = self._end, self._end + len(stored)
        at = begin
        try:
            while at < begin + len(stored):
                at += os.pwrite(self._file.fileno(), stored[at - begin :], at)
        except OSError as err:
            raise LakeError(
                f"rows cannot be kept on the local disk ({err}): make room, or name a folder that has some in TMPDIR"
            ) from err
        return SpooledBatch(begin, len(stored), content.size)


@final
class SpooledRows:
    """Rows that go into a spool. A `Sink`."""

    def __init__(self, spool: RowSpool) -> None:
        self.schema = spool.schema
        self.rows = 0
        self._spool = spool
        self._places: list[SpooledBatch] = []

    def add(self, rows: pa.Table) -> None:
        """See `Sink`."""
        self.rows += rows.num_rows
        self._places += self._spool.add(rows)

    def close(self) -> tuple[Any, ...]:
        """See `Sink`. Returns: places in the spool."""
        return tuple(self._places)

    def abort(self) -> None:
        """See `Sink`. What was written stays in the spool, at an unknown place."""
        self.rows, self._places = 0, []


@final
class CountedRows:
    """Rows that are counted, and go nowhere. A `Sink`."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """See `Sink`."""
        self.rows += rows.num_rows

    def close(self) -> tuple[Any, ...]:
        """See `Sink`. Returns: nothing."""
        return ()

    def abort(self) -> None:
        """See `Sink`."""
        self.rows = 0


def are_deletions(rows: pa.Table, changes: ChangeOrder) -> pa.BooleanArray:
    """Return which rows delete a key, or all of them. `ChangeOrder.deletes` says the same in SQL."""
    column = rows.column(changes.deleted)
    if changes.is_envelope:
        return pc.is_in(column, value_set=pa.array([DELETE, TRUNCATE]))
    return pc.fill_null(pc.equal(pc.ascii_lower(column.cast(pa.string())), "true"), False)


@final
class ChangeWriter:
    """A `Sink` that keeps deletions apart.

    Args:
        rows: writes all other rows.
        deletes: writes deletions.
        changes: says which they are.
    """

    def __init__(self, rows: RowWriter, deletes: RowWriter, changes: ChangeOrder) -> None:
        self.schema = rows.schema
        self._rows = rows
        self._deletes = deletes
        self._changes = changes

    @property
    def rows(self) -> int:
        """See `Sink`."""
        return self._rows.rows + self._deletes.rows

    def add(self, rows: pa.Table) -> None:
        """See `Sink`."""
        deletes = are_deletions(rows, self._changes)
        self._rows.add(rows.filter(pc.invert(deletes)))
        self._deletes.add(rows.filter(deletes))

    def close(self) -> tuple[WrittenFile, ...]:
        """See `Sink`."""
        deletes = (structs.replace(file, deletes=True) for file in self._deletes.close())
        return (*self._rows.close(), *deletes)

    def abort(self) -> None:
        """See `Sink`."""
        with ExitStack() as stack:
            stack.callback(self._deletes.abort)
            stack.callback(self._rows.abort)
