"""Snapshots in which data files are replaced: some leave the table, others come, the rest stays where it is.

PyIceberg's own overwrite is not used, for two reasons. It writes every added file by the table's newest partition spec,
and a file that was rewritten keeps the spec of the one that it replaces. And it judges manifests in several threads with
one evaluator, which remembers the manifest that it judges: it may miss files that have to leave.

Nothing here commits. `publishing.publish_snapshot` adds the snapshot to the table.

Cost: reads all manifests of the newest snapshot, and writes those that lose a file, and one for each partition
spec of added files.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Final, final

from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)

from gazette_platform.lake.iceberg.publishing import head_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile, ManifestWriter
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded

_CODEC: Final = "deflate"


def manifests_of(now: Loaded) -> list[ManifestFile]:
    """Return the manifests of the newest snapshot; none, if the table never held anything."""
    head = now.metadata.snapshot_by_id(head_of(now.metadata) or -1)
    return head.manifests(now.io) if head is not None else []


def replacing_snapshot(
    now: Loaded,
    left: Callable[[ManifestEntry], DataFile | None],
    files: Iterable[DataFile],
    properties: Mapping[str, str],
) -> Snapshot:
    """Return a snapshot on top of the newest one in which data files are replaced, and write its manifests.

    Args:
        now: the table.
        left: gives what is left of a data file: the same, another one, or None.
        files: that come in addition.
        properties: of the snapshot.
    """
    writers = _Manifests(now)
    manifests: list[ManifestFile] = []
    added: list[DataFile] = []
    gone: list[DataFile] = []
    for manifest in manifests_of(now):
        # Deletes of rows stay: they name the data files that they are of, and a missing one does no harm.
        if manifest.content == ManifestContent.DELETES:
            manifests.append(manifest)
            continue
        staying: list[ManifestEntry] = []
        going: list[ManifestEntry] = []
        for entry in manifest.fetch_manifest_entry(now.io, discard_deleted=True):
            rest = left(entry)
            if rest is entry.data_file:
                staying.append(entry)
                continue
            going.append(entry)
            added += [rest] if rest is not None else []
        gone += [entry.data_file for entry in going]
        if going:
            manifests.append(writers.changed(manifest, staying, going))
        elif staying:
            manifests.append(manifest)
    added += files
    return writers.snapshot(
        [*writers.added(added), *manifests],
        Summary(Operation.OVERWRITE, **_sums(now.metadata, added, gone), **properties),
    )


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
    """Writes manifests of one snapshot, and the list of them."""

    def __init__(self, now: Loaded) -> None:
        self._now = now
        self._uuid = uuid.uuid4()
        self._snapshot_id = now.metadata.new_snapshot_id()
        self._places = now.table.location_provider()
        self._count = 0

    def snapshot(self, manifests: list[ManifestFile], summary: Summary) -> Snapshot:
        """Write the list of manifests. Returns: the snapshot that has them."""
        metadata = self._now.metadata
        parent = metadata.snapshot_by_id(head_of(metadata) or -1)
        parent_id = None if parent is None else parent.snapshot_id
        path = self._places.new_metadata_location(f"snap-{self._snapshot_id}-0-{self._uuid}.avro")
        number = metadata.next_sequence_number()
        with write_manifest_list(
            format_version=metadata.format_version,
            output_file=self._now.io.new_output(path),
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=number,
            avro_compression=_CODEC,
        ) as writer:
            writer.add_manifests(manifests)
        before = None if parent is None else parent.summary
        return Snapshot.model_validate({
            "snapshot-id": self._snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": number,
            "manifest-list": path,
            "summary": update_snapshot_summaries(summary, before),
            "schema-id": metadata.current_schema_id,
        })  # fmt: skip

    def added(self, files: Sequence[DataFile]) -> list[ManifestFile]:
        """Write manifests of new files, one for each partition spec."""
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
        """Write a manifest without files that go."""
        with self._writer(of.partition_spec_id) as writer:
            for entry in staying:
                writer.existing(entry)
            for entry in going:
                writer.delete(entry)
        return writer.to_manifest_file()

    def _writer(self, spec_id: int) -> ManifestWriter:
        metadata = self._now.metadata
        path = self._places.new_metadata_location(f"{self._uuid}-m{self._count}.avro")
        self._count += 1
        return write_manifest(
            format_version=metadata.format_version,
            spec=metadata.specs()[spec_id],
            schema=metadata.schema(),
            output_file=self._now.io.new_output(path),
            snapshot_id=self._snapshot_id,
            avro_compression=_CODEC,
        )
