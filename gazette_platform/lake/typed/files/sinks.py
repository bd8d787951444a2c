"""Where rows of an order go that are to be no files of the table: into a file without a name, or nowhere.

Rows of a table of changes as Parquet files: deletions in files of their own, which are kept once rows are merged.
"""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from msgspec import structs

from gazette_platform.errors import LakeError
from gazette_platform.lake.spec.typed.columns import DELETE, TRUNCATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gazette_platform.lake.spec.typed.columns import ChangeOrder
    from gazette_platform.lake.typed.files.writing import RowWriter, WrittenFile

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
