"""Publishing with rows removed: what begins in ranges of offsets goes, and files of workers come, in one snapshot.

As in `publish_files`, progress is the fence, and what others commit meanwhile does not matter: which files hold such
rows is looked for again in what the table holds then. A file that lies in the ranges is left out; one with other
rows is rewritten without (`rewriting`), so readers find no deletes, and an engine that compacted the file at the
same time is refused by its own catalog.

Rows that an engine deleted stay deleted, where it noted positions. Deletes by values, which Flink makes, are refused
where they may be of a file that has to be rewritten: optimizing applies them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)

from gazette_platform.errors import TypedRefused
from gazette_platform.lake.iceberg.publishing import (
    RUN,
    head_of,
    publish_files,
    publish_snapshot,
    require_parted_by,
)
from gazette_platform.lake.typed.files.stored_rows import FileRewriter
from gazette_platform.lake.typed.planning.row_ranges import Overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile, ManifestWriter
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.iceberg.publishing import Published
    from gazette_platform.lake.typed.planning.row_ranges import RowRanges

_CODEC: Final = "deflate"


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
        change = _planned(now, removed, rewriter, handle.name)
        change.added += files
        return _written(now, change, {**properties, RUN: run})

    return publish_snapshot(handle, start, run, replaced)


@final
@dataclass(slots=True)
class _Change:
    """What becomes of the manifests of a table."""

    kept: list[ManifestFile] = field(default_factory=list)
    changed: list[tuple[ManifestFile, list[ManifestEntry], list[ManifestEntry]]] = field(
        default_factory=list
    )
    """Manifests with files that go: their entries that stay, and those that go."""
    added: list[DataFile] = field(default_factory=list)


def _planned(now: Loaded, removed: RowRanges, rewriter: FileRewriter, name: str) -> _Change:
    """Which files go, and what is written in their place."""
    change = _Change()
    head = now.metadata.snapshot_by_id(head_of(now.metadata) or -1)
    manifests = head.manifests(now.io) if head is not None else []
    deletes = _Deletes(now, [one for one in manifests if one.content == ManifestContent.DELETES])
    schema = now.metadata.schema()
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            change.kept.append(manifest)
            continue
        staying: list[ManifestEntry] = []
        going: list[ManifestEntry] = []
        for entry in manifest.fetch_manifest_entry(now.io, discard_deleted=True):
            file = entry.data_file
            overlap = removed.overlap(file, schema)
            left: DataFile | None = file
            if overlap is Overlap.ALL:
                left = None
            elif overlap is Overlap.SOME:
                left = rewriter.without(now, file, deletes.of(entry, name))
            if left is not file and left is not None:
                change.added.append(left)
            (staying if left is file else going).append(entry)
        if going:
            change.changed.append((manifest, staying, going))
        elif staying:
            change.kept.append(manifest)
    return change


@final
class _Deletes:
    """Rows that engines deleted without rewriting their files."""

    def __init__(self, now: Loaded, manifests: Iterable[ManifestFile]) -> None:
        self._positions = DeleteFileIndex()
        self._equal: list[ManifestEntry] = []
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(now.io, discard_deleted=True):
                if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                    self._equal.append(entry)
                else:
                    self._positions.add_delete_file(entry, entry.data_file.partition)

    def of(self, entry: ManifestEntry, name: str) -> Sequence[DataFile]:
        """Files with positions of rows of a data file. Raises: TypedRefused: there may be deletes by values of it."""
        file, number = entry.data_file, entry.sequence_number or 0
        if any((one.sequence_number or 0) > number for one in self._equal):
            raise TypedRefused(
                f"{name} has rows that were deleted by their values, as Flink does, which may be of {file.file_path}, "
                "and that has to be rewritten: apply them in Spark by CALL system.rewrite_data_files(…, "
                "options => map('delete-file-threshold', '1')), and run again"
            )
        return sorted(
            self._positions.for_data_file(number, file, file.partition), key=lambda f: f.file_path
        )


def _written(now: Loaded, change: _Change, properties: Mapping[str, str]) -> Snapshot:
    """The snapshot with its manifests, which are written."""
    metadata = now.metadata
    snapshot = metadata.new_snapshot_id()
    parent = metadata.snapshot_by_id(head_of(metadata) or -1)
    writers = _Manifests(now, snapshot)
    manifests = [
        *writers.added(change.added),
        *(writers.changed(*one) for one in change.changed),
        *change.kept,
    ]
    path = writers.path(f"snap-{snapshot}-0-{writers.id}.avro")
    number = metadata.next_sequence_number()
    with write_manifest_list(
        format_version=metadata.format_version,
        output_file=now.io.new_output(path),
        snapshot_id=snapshot,
        parent_snapshot_id=None if parent is None else parent.snapshot_id,
        sequence_number=number,
        avro_compression=_CODEC,
    ) as writer:
        writer.add_manifests(manifests)
    going = [entry.data_file for _, _, entries in change.changed for entry in entries]
    summary = update_snapshot_summaries(
        Summary(Operation.OVERWRITE, **_sums(metadata, change.added, going), **properties),
        parent.summary if parent is not None else None,
    )
    return Snapshot.model_validate({
        "snapshot-id": snapshot,
        "parent-snapshot-id": None if parent is None else parent.snapshot_id,
        "sequence-number": number,
        "manifest-list": path,
        "summary": summary,
        "schema-id": metadata.current_schema_id,
    })  # fmt: skip


def _sums(
    metadata: TableMetadata, added: Sequence[DataFile], removed: Sequence[DataFile]
) -> dict[str, str]:
    collector = SnapshotSummaryCollector()
    specs, schema = metadata.specs(), metadata.schema()
    for file in added:
        collector.add_file(file, schema, specs[file.spec_id])
    for file in removed:
        collector.remove_file(file, schema, specs[file.spec_id])
    return collector.build()


@final
class _Manifests:
    """Writes manifests of one snapshot."""

    def __init__(self, now: Loaded, snapshot_id: int) -> None:
        self.id = uuid.uuid4()
        self._now = now
        self._snapshot_id = snapshot_id
        self._places = now.table.location_provider()
        self._count = 0

    def path(self, name: str) -> str:
        return self._places.new_metadata_location(name)

    def added(self, files: Sequence[DataFile]) -> list[ManifestFile]:
        """Of new files, one for each partition spec."""
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in files:
            by_spec[file.spec_id].append(file)
        return [self._added(spec_id, of_it) for spec_id, of_it in sorted(by_spec.items())]

    def _added(self, spec_id: int, files: Sequence[DataFile]) -> ManifestFile:
        with self._writer(spec_id) as writer:
            for file in files:
                # Their number is that of the snapshot, which readers know.
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def changed(
        self, of: ManifestFile, staying: Sequence[ManifestEntry], going: Sequence[ManifestEntry]
    ) -> ManifestFile:
        """A manifest without files that go."""
        with self._writer(of.partition_spec_id) as writer:
            for entry in staying:
                writer.existing(entry)
            for entry in going:
                writer.delete(entry)
        return writer.to_manifest_file()

    def _writer(self, spec_id: int) -> ManifestWriter:
        metadata = self._now.metadata
        path = self.path(f"{self.id}-m{self._count}.avro")
        self._count += 1
        return write_manifest(
            format_version=metadata.format_version,
            spec=metadata.specs()[spec_id],
            schema=metadata.schema(),
            output_file=self._now.io.new_output(path),
            snapshot_id=self._snapshot_id,
            avro_compression=_CODEC,
        )
