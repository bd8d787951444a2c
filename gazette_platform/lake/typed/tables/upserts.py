"""Upserts: of a typed table with a key, a row is the last committed message of its key.

    files of workers ── a snapshot of them alone, on no branch ── merged by an engine, into one on no branch ── published

Which of two messages is the last:

- of one journal, the one with the larger `_begin`;
- of two journals, the one whose UUID has the larger clock, where none counts as zero; then the one whose journal has the
  larger name.

That is not an order of all messages: three of two journals may each be later than the next, where clocks run against the order
of a journal. So an engine keeps of each journal the last message of a key, then of these the last, and compares that with the row.

What workers wrote is a snapshot of the table, so that the engine reads it as it reads the table, whatever the types of
columns, and wherever files are.

Deletions that a table of changes keeps, so that older messages that come later bring no row back.

The tag `DELETES` is at a snapshot of the table that holds deletions alone, of all runs. Each run adds files to it; many small
ones are put together, which engines do for the branch main only.

`publish_replacing` publishes with rows removed: what begins in ranges of offsets goes, and files of workers come, in one
snapshot. As in `publish_files`, progress is the fence, and what others commit meanwhile does not matter: which files hold such
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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID

from gazette_platform.errors import LakeError, TypedRefused
from gazette_platform.lake.iceberg.publishing import (
    RUN,
    WAP_ID,
    Published,
    began_at,
    head_of,
    insisting,
    loaded_from,
    publish_files,
    publish_snapshot,
    publish_staged,
    published_by,
    require_parted_by,
    require_progress,
    require_start,
    still_headed,
    still_parted_by,
    summary_of,
    updates_moving,
)
from gazette_platform.lake.iceberg.snapshots import manifests_of, replacing_snapshot
from gazette_platform.lake.typed.iceberg_types import spec_type
from gazette_platform.lake.typed.planning.row_ranges import Overlap
from gazette_platform.lake.typed.tables.stored_rows import TableHistory, stored_rows
from gazette_platform.lake.typed.tables.writing import (
    FileDescriber,
    OpenFile,
    RowWriter,
    data_file_of,
    remove_files,
)
from gazette_platform.ops import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.spec.typed.columns import ChangeOrder
    from gazette_platform.lake.spec.types import ColumnType
    from gazette_platform.lake.typed.planning.row_ranges import RowRanges
    from gazette_platform.lake.typed.tables.stored_rows import StoredRows


UPSERTED: Final = {
    "write.merge.mode": "merge-on-read",
    # Of rows that were replaced; as many files as there are of rows, however many runs replaced some.
    "write.delete.granularity": "file",
}
"""Properties of a table with a key. Else each run would rewrite all files with a row that it replaces."""

_STAGED: Final = "write.wap.enabled"
# Each that fails means that maintenance came between.
_ATTEMPTS: Final = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What an engine is to stage."""

    catalog: str
    """What the engine calls the table's."""
    table: str
    """``schema.table``."""
    key: Mapping[str, ColumnType]
    """Types of its columns, by their names."""
    upserts: int
    """A snapshot of the table, which holds the new rows alone."""
    rows: int
    """How many these are."""
    attempt: str
    """Identifies the staged snapshot: its `WAP_ID`."""
    properties: Mapping[str, str]
    """Of the staged snapshot."""
    columns: tuple[str, ...] = ()
    """Names of all the table's columns."""
    changes: ChangeOrder | None = None
    """Which messages delete rows, and what orders messages besides; None: none does, and nothing."""
    deletes: int | None = None
    """A snapshot of the table, which holds the deletions of earlier runs alone; None: there were none."""


class Merger(Protocol):
    """An engine that merges."""

    def merge(self, merge: Merge) -> None:
        """Stage the table, as main has it, with the new rows in it.

        Raises: LakeError: the engine cannot be reached, or refused; it may have staged all the same.
        """
        ...


@tracing.span("gazette typed commit")
def publish_upserts(
    handle: TableHandle,
    start: int | None,
    files: Sequence[DataFile],
    run: str,
    properties: Mapping[str, str],
    *,
    catalog: str,
    merger: Merger,
    log: Callable[[str], None],
    changes: ChangeOrder | None = None,
    deletes: Sequence[DataFile] = (),
) -> Published:
    """Let readers see the last message of each key, of the run and of the existing rows.

    After any failure ask again with the same `run`, which says what became of the first time. What the run had written is
    gone once it is published.

    Args:
        handle, start, files, run, properties: as of `publish_files`.
        catalog: of the table, as the merger calls it.
        merger: has that catalog.
        log: gets a line for each time that maintenance came between.
        changes: which messages delete rows; None: none does.
        deletes: those of `files` that hold deletions alone. They are kept, so that older messages that come later bring no row back.

    Raises: as `publish_files`. LakeError: the engine refused, or what was staged has expired, as well; nothing was changed.
    """
    if not files:
        return insisting(lambda: publish_files(handle, start, (), run, properties), log)
    upserts: Snapshot | None = None
    deleted: int | None = None
    for _ in range(_ATTEMPTS):
        now = insisting(lambda: loaded_from(handle), log)
        before = published_by(now.metadata, run)
        if before is not None:
            return Published(before.snapshot_id, now.metadata)
        require_start(now.metadata, start, handle.name)
        require_progress(now.metadata, handle.name)
        _require_staging(now.metadata, handle.name)
        if upserts is None:
            upserts = insisting(lambda: _snapshot_of(handle, files), log)
            if deletes:
                all_deletes = insisting(partial(_snapshot_of, handle, deletes, are_kept=True), log)
                deleted = all_deletes.snapshot_id
            now = insisting(lambda: loaded_from(handle), log)
        merge = Merge(
            catalog=catalog,
            table=handle.name,
            key=_key_of(now.metadata),
            upserts=upserts.snapshot_id,
            rows=sum(file.record_count for file in files),
            attempt=uuid.uuid4().hex,
            properties={**properties, RUN: run},
            columns=tuple(field.name for field in now.metadata.schema().fields),
            changes=changes,
            deletes=deletes_of(now.metadata),
        )
        published = _published(handle, start, now, merge, merger, log, deleted)
        if published is not None:
            kept = {file.file_path for file in deletes}
            _remove(now.io, upserts, [file for file in files if file.file_path not in kept])
            return published
        log(
            f"{handle.name} was changed by others while run {run} was merged into it: it is merged again"
        )
    raise LakeError(
        f"{handle.name} was changed by others {_ATTEMPTS} times while run {run} was merged into it: run again, or look at who "
        "writes to it"
    )


def _published(  # noqa: PLR0917
    handle: TableHandle,
    start: int | None,
    base: Loaded,
    merge: Merge,
    merger: Merger,
    log: Callable[[str], None],
    deleted: int | None,
) -> Published | None:
    """Merge once, and publish. `deleted`: a snapshot of all deletions. Returns: None: main has moved meanwhile."""
    run = merge.properties[RUN]
    failed: LakeError | None = None
    try:
        merger.merge(merge)
    except LakeError as err:
        failed = err
    after = insisting(lambda: loaded_from(handle), log).metadata
    staged = _staged_by(after, merge.attempt)
    if staged is not None:
        # Also if the engine did not get the answer.
        spent = (merge.upserts,)
        tags = {} if deleted is None else {DELETES: deleted}
        return insisting(
            lambda: publish_staged(handle, start, staged, run, spent=spent, tags=tags), log
        )
    if failed is None or after.snapshot_by_id(merge.upserts) is None:
        # Not that there was nothing to change: of that, too, engines stage a snapshot.
        raise LakeError(
            f"what run {run} was to merge into {handle.name}, or what was staged of that, has expired, so nothing was changed: let its "
            "snapshots live longer than a run takes, and run again"
        ) from failed
    if head_of(after) == head_of(base.metadata):
        raise failed
    return None


def _key_of(metadata: TableMetadata) -> dict[str, ColumnType]:
    schema = metadata.schema()
    return {
        field.name: spec_type(field.field_type)
        for field in schema.fields
        if field.field_id in schema.identifier_field_ids
    }


def _require_staging(metadata: TableMetadata, name: str) -> None:
    if metadata.properties.get(_STAGED) != "true":
        raise LakeError(
            f"{name} has no property `{_STAGED}=true`, so that a merge would be seen at once: set it, and run again"
        )


def _staged_by(metadata: TableMetadata, attempt: str) -> int | None:
    for snapshot in reversed(metadata.snapshots):
        if summary_of(metadata, snapshot.snapshot_id).get(WAP_ID) == attempt:
            return snapshot.snapshot_id
    return None


def _snapshot_of(
    handle: TableHandle, files: Sequence[DataFile], *, are_kept: bool = False
) -> Snapshot:
    """A snapshot of the table, on no branch, that holds these files alone; or with the deletions that are kept."""
    refused: CommitFailedException | None = None
    for _ in range(_ATTEMPTS):
        now = loaded_from(handle)
        require_parted_by(now.metadata, files, handle.name)
        head = head_of(now.metadata)
        required = (
            AssertTableUUID(uuid=now.metadata.table_uuid),
            still_parted_by(now.metadata),
        )
        try:
            if head is None:
                # Catalogs take a snapshot without parent also behind newer ones, and then count from its number again. By these
                # numbers engines know which rows a delete is of. So there is a first one, of nothing, before others are staged.
                empty = _written(now, ())
                added = AddSnapshotUpdate(snapshot=empty)
                main, _ = updates_moving(empty.snapshot_id)
                handle.commit(now, (*required, still_headed(now.metadata)), (added, main))
                continue
            former = with_deletes(now) if are_kept else None
            if former is not None:
                snapshot = written_with_deletes(former, files)
            else:
                snapshot = _written(now, files).model_copy(update={"parent_snapshot_id": head})
            handle.commit(now, required, (AddSnapshotUpdate(snapshot=snapshot),))
        except CommitFailedException as err:
            refused = err
            continue
        return snapshot
    raise LakeError(
        f"{handle.name} was changed by others {_ATTEMPTS} times while a run was to show its rows to the engine: run again, or "
        "look at who writes to it"
    ) from refused


def _written(now: Loaded, files: Sequence[DataFile]) -> Snapshot:
    """A snapshot that holds these files alone, as if the table had none yet."""
    nothing = replace(now, metadata=now.metadata.model_copy(update={"refs": {}}))
    transaction = nothing.table.transaction()
    with transaction.update_snapshot(branch=None).fast_append() as append:
        for file in files:
            append.append_data_file(file)
    return transaction.table_metadata.snapshots[-1]


def _remove(io: FileIO, upserts: Snapshot, files: Sequence[DataFile]) -> None:
    """Delete what was merged, which no snapshot has any more; what cannot be is left to maintenance."""
    with suppress(OSError):
        manifests = [manifest.manifest_path for manifest in upserts.manifests(io)]
        for path in (*(file.file_path for file in files), *manifests, upserts.manifest_list):
            io.delete(path)


DELETES: Final = "gazette-deletes"
"""Tag of a snapshot that holds deletions alone, of all runs. It moves with what is published."""

_MAIN: Final = "main"
_SMALL_BYTES: Final = 8 << 20
# So many are put together; of a table with many partitions, once there are so many of each.
_SMALL_MAX: Final = 100
_SMALL_OF_EACH_MAX: Final = 4


def deletes_of(metadata: TableMetadata) -> int | None:
    """Return the snapshot that holds the deletions of all runs, and nothing else; None: there were none."""
    found = metadata.refs.get(DELETES)
    return found.snapshot_id if found is not None else None


def with_deletes(loaded: Loaded) -> Loaded | None:
    """Return the table as it would be with the kept deletions, and nothing else; None: there are none."""
    at = deletes_of(loaded.metadata)
    if at is None:
        return None
    refs = {_MAIN: SnapshotRef.model_validate({"snapshot-id": at, "type": "branch"})}
    update = {"current_snapshot_id": at, "refs": refs}
    return replace(loaded, metadata=loaded.metadata.model_copy(update=update))


def written_with_deletes(deletes: Loaded, files: Sequence[DataFile]) -> Snapshot:
    """Write a snapshot of the kept deletions, and of more.

    Args:
        deletes: as `with_deletes` gives it.
        files: of more deletions.

    Raises: LakeError: a file cannot be read, or written.
    """
    history = TableHistory(deletes)
    small = [task for task in history.files if task.file.file_size_in_bytes < _SMALL_BYTES]
    partitions = {(task.file.spec_id, task.file.partition) for task in small}
    transaction = deletes.table.transaction()
    update = transaction.update_snapshot(branch=_MAIN)
    if len(small) < max(_SMALL_MAX, _SMALL_OF_EACH_MAX * len(partitions)):
        with update.merge_append() as append:
            for file in files:
                append.append_data_file(file)
        return transaction.table_metadata.snapshots[-1]
    metadata = deletes.metadata
    writer = RowWriter(deletes.io, metadata.location, metadata.schema(), metadata.spec())
    for task in small:
        for batch in history.batches(task, history.schema.names):
            writer.add(pa.Table.from_batches([batch]).cast(writer.schema))
    with update.overwrite() as overwrite:
        for task in small:
            overwrite.delete_data_file(task.file)
        for file in (*(data_file_of(one, metadata) for one in writer.close()), *files):
            overwrite.append_data_file(file)
    return transaction.table_metadata.snapshots[-1]


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
