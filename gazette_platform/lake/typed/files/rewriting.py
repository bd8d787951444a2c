"""Rewrite data files without some of their rows: those in ranges of offsets, and those that engines deleted.

What is left is copied as it is, column by column: it keeps the schema that the file has, with the ids of its fields, and
its partition. Rows stream through Arrow, so memory does not grow with the file.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.io.pyarrow import pyarrow_to_schema

from gazette_platform.lake.typed.files.stored_rows import stored_rows
from gazette_platform.lake.typed.files.writing import OpenFile, remove_files
from gazette_platform.lake.typed.files.written import FileDescriber, data_file_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.manifest import DataFile

    from gazette_platform.lake.typed.catalog.doors import Loaded
    from gazette_platform.lake.typed.files.stored_rows import StoredRows
    from gazette_platform.lake.typed.planning.row_ranges import RowRanges

__all__ = ["FileRewriter"]

# Of a row group, as Arrow holds it.
_GROUP_BYTES: Final = 64 << 20


@final
class FileRewriter:
    """Rewrites files, each once: the result is kept for later calls.

    Args:
        ranges: rows that are to go.
    """

    def __init__(self, ranges: RowRanges) -> None:
        self._ranges = ranges
        # With those that have no such row, which stay.
        self._known: dict[tuple[str, frozenset[str]], tuple[bool, DataFile | None]] = {}

    def without(self, now: Loaded, file: DataFile, deletes: Sequence[DataFile]) -> DataFile | None:
        """A file of a table without the rows that are to go.

        Args:
            now: the table.
            deletes: files with positions of rows of it that engines deleted.

        Returns: the same, if it has none of them; None, if it has no others.
        Raises: LakeError: a file cannot be read or written.
        """
        key = (file.file_path, frozenset(one.file_path for one in deletes))
        if key not in self._known:
            with stored_rows(now, file, deletes) as rows:
                self._known[key] = self._found(now, file, rows)
        stays, left = self._known[key]
        return file if stays else left

    def _found(self, now: Loaded, file: DataFile, rows: StoredRows) -> tuple[bool, DataFile | None]:
        places = [rows.name_of(name) for name in ("_journal", "_begin")]
        going = staying = 0
        for batch, is_there in rows.batches(places):
            goes = pc.and_(self._goes(batch, places), is_there)
            count = pc.sum(goes).as_py() or 0
            going += count
            staying += (pc.sum(is_there).as_py() or 0) - count
        if not going:
            return True, None
        return False, self._copied(now, file, rows, places) if staying else None

    def _goes(self, batch: pa.RecordBatch, places: Sequence[str]) -> pa.BooleanArray:
        journals, begins = (batch.column(name) for name in places)
        return self._ranges.mask(journals.cast(pa.string()), begins.cast(pa.int64()))

    def _copied(
        self, now: Loaded, file: DataFile, rows: StoredRows, places: Sequence[str]
    ) -> DataFile:
        path = f"{now.metadata.location}/data/{uuid.uuid4()}.parquet"
        describer = FileDescriber(pyarrow_to_schema(rows.schema), file.spec_id)
        partition = tuple(file.partition[index] for index in range(len(file.partition)))
        copy = OpenFile(now.io, path, rows.schema, partition)
        try:
            for group in self._groups(rows, places):
                copy.write(group)
            size, footer = copy.close()
        except BaseException:
            copy.abandon()
            remove_files(now.io, [path])
            raise
        return data_file_of(describer.describe(path, size, footer, partition), now.metadata)

    def _groups(self, rows: StoredRows, places: Sequence[str]) -> Iterator[pa.Table]:
        """Rows that stay, in pieces of the size of a row group."""
        held: list[pa.RecordBatch] = []
        size = 0
        for batch, is_there in rows.batches():
            kept = batch.filter(pc.and_not(is_there, self._goes(batch, places)))
            held.append(kept)
            size += kept.nbytes
            if size >= _GROUP_BYTES:
                yield pa.Table.from_batches(held, rows.schema)
                held, size = [], 0
        if size:
            yield pa.Table.from_batches(held, rows.schema)
