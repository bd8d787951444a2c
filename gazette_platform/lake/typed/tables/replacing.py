"""Publishing with rows removed: what begins in ranges of offsets goes, and files of workers come, in one snapshot.

As in `publish_files`, progress is the fence, and what others commit meanwhile does not matter: which files hold such
rows is looked for again in what the table holds then. A file that lies in the ranges is left out; one with other
rows is rewritten without (`FileRewriter`), so readers find no deletes, and an engine that compacted the file at the
same time is refused by its own catalog.

Rows that an engine deleted stay deleted, where it noted positions. Deletes by values, which Flink makes, are refused
where they may be of a file that has to be rewritten: optimizing applies them.

A file is rewritten column by column: it keeps its own schema, with the ids of its fields, and its partition. Rows stream
through Arrow, so memory does not grow with the file. PyIceberg's own `Table.delete` holds the whole file: to take a tenth of
the rows out of one of 221 MiB its process needed 1,341 MiB, and this one 389 MiB (docs/adr/0013).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table.delete_file_index import DeleteFileIndex

from gazette_platform.errors import TypedRefused
from gazette_platform.lake.iceberg.publishing import (
    RUN,
    began_at,
    publish_files,
    publish_snapshot,
    require_parted_by,
)
from gazette_platform.lake.iceberg.snapshots import manifests_of, replacing_snapshot
from gazette_platform.lake.typed.planning.row_ranges import Overlap
from gazette_platform.lake.typed.tables.stored_rows import stored_rows
from gazette_platform.lake.typed.tables.writing import (
    FileDescriber,
    OpenFile,
    data_file_of,
    remove_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.iceberg.publishing import Published
    from gazette_platform.lake.typed.planning.row_ranges import RowRanges
    from gazette_platform.lake.typed.tables.stored_rows import StoredRows


def publish_replacing(
    handle: TableHandle,
    start: int | None,
    removed: RowRanges,
    files: Sequence[DataFile],
    *,
    run: str,
    properties: Mapping[str, str],
    rewriter: FileRewriter | None = None,
) -> Published:
    """Let readers see files in place of rows that are removed, if no run has published since `start`.

    Same arguments, result and errors as `publish_files`, which it is without ranges.

    Args:
        removed: rows that go. Those of `files` stay, wherever they begin.
        rewriter: of these ranges; it spares what it wrote for a publication that was fenced.
    """
    if not removed:
        return publish_files(handle, start, files, run, properties)
    rewriter = rewriter or FileRewriter(removed)

    def replaced(now: Loaded) -> Snapshot:
        require_parted_by(now.metadata, files, handle.name)
        schema, deletes = now.metadata.schema(), _Deletes(now, handle.name)

        def left(entry: ManifestEntry) -> DataFile | None:
            file = entry.data_file
            match removed.overlap(file, schema):
                case Overlap.ALL:
                    return None
                case Overlap.SOME:
                    return rewriter.without(now, file, deletes.of(entry))
                case Overlap.NONE:
                    return file

        return replacing_snapshot(now, left, files, {**properties, RUN: run})

    return publish_snapshot(handle, run, began_at(start, handle.name), replaced)


@final
class _Deletes:
    """Rows that engines deleted without rewriting their files."""

    def __init__(self, now: Loaded, name: str) -> None:
        self._name = name
        self._positions = DeleteFileIndex()
        self._equal: list[ManifestEntry] = []
        for manifest in manifests_of(now):
            if manifest.content != ManifestContent.DELETES:
                continue
            for entry in manifest.fetch_manifest_entry(now.io, discard_deleted=True):
                if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                    self._equal.append(entry)
                else:
                    self._positions.add_delete_file(entry, entry.data_file.partition)

    def of(self, entry: ManifestEntry) -> Sequence[DataFile]:
        """Files with positions of rows of a data file. Raises: TypedRefused: there may be deletes by values of it."""
        file, number = entry.data_file, entry.sequence_number or 0
        if any((one.sequence_number or 0) > number for one in self._equal):
            raise TypedRefused(
                f"{self._name} has rows that were deleted by their values, as Flink does, which may be of {file.file_path}, "
                "and that has to be rewritten: apply them in Spark by CALL system.rewrite_data_files(…, "
                "options => map('delete-file-threshold', '1')), and run again"
            )
        return sorted(
            self._positions.for_data_file(number, file, file.partition), key=lambda f: f.file_path
        )


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
