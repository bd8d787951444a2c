"""Snapshots in which data files are replaced: some leave the table, others come, the rest stays where it is.

PyIceberg's own overwrite is not used, for two reasons. It writes every added file by the table's newest partition spec,
and a file that was rewritten keeps the spec of the one that it replaces. And it judges manifests in several threads with
one evaluator, which remembers the manifest that it judges: it may miss files that have to leave.

Nothing here commits. `publishing.publish_snapshot` adds the snapshot to the table.

Cost: reads all manifests of the newest snapshot, and writes those that lose a file, and one for each partition
spec of added files.

Maintenance that all our Iceberg tables share is here too. Engines merge small files, expire snapshots and remove unreferenced files. The tag of progress survives all of it. Files
beside a table are removed here, once no snapshot names them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from pyarrow.fs import FileSelector, FileType  # type: ignore[import-untyped]
from pyiceberg.io.pyarrow import PyArrowFileIO
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

from gazette_platform.errors import LakeError
from gazette_platform.lake.catalog_settings import ICEBERG
from gazette_platform.lake.iceberg.publishing import NAMED_BY, head_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile, ManifestWriter
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle


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


RETAINED_S: Final = 7 * 24 * 3600.0
"""Seconds for which snapshots are kept, and files that none names: the least that Trino allows. Readers of an
old snapshot, and runs that have not committed yet, have that long."""


def maintenance_statements(
    dialect: str,
    table: str,
    *,
    now_s: float,
    snapshots_s: float = RETAINED_S,
    orphans_s: float = RETAINED_S,
    catalog: str = ICEBERG,
) -> list[str]:
    """Statements that optimize an Iceberg table, expire snapshots and remove orphans, in this order.

    Args:
        dialect: of the engine: `trino` or `spark`.
        table: ``schema.table``.
        now_s: unix seconds.
        snapshots_s: seconds for which snapshots are kept; Trino refuses less than seven days unless its session
            says otherwise.
        orphans_s: seconds for which files are kept that no snapshot names, likewise; Spark refuses less than a day.
        catalog: what the engine calls the catalog of the table.
    """
    if dialect == "trino":
        schema, _, name = table.partition(".")
        altered = f'ALTER TABLE "{catalog}"."{schema}"."{name}" EXECUTE'
        kept = "(retention_threshold => '{}s')"
        return [
            f"{altered} optimize",
            f"{altered} expire_snapshots{kept.format(int(snapshots_s))}",
            f"{altered} remove_orphan_files{kept.format(int(orphans_s))}",
        ]
    of = f"table => '{table}'"
    call = f"CALL {catalog}.system."
    return [
        f"{call}rewrite_data_files({of}, options => map('min-input-files', '2'))",
        f"{call}expire_snapshots({of}, {_older_than(now_s - snapshots_s)})",
        f"{call}remove_orphan_files({of}, {_older_than(now_s - orphans_s)})",
    ]


def _older_than(unix_s: float) -> str:
    at = datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"older_than => TIMESTAMP '{at}'"


def unnamed_files(handle: TableHandle, *, now_s: float, older_than_s: float) -> list[str]:
    """Return the files beside a table that no snapshot names and that can be removed.

    A run writes them before it publishes, so a snapshot may still come to name a young file.

    Args:
        handle: of the table.
        now_s: unix seconds, of the clock of the store that holds them.
        older_than_s: seconds; longer than any run takes.

    Returns: their paths, sorted; nothing, if there is no such table.
    Raises: LakeError: the place cannot be listed.
    """
    loaded = handle.load()
    if loaded is None:
        return []
    # This load gives the location only. What is named is asked after the listing, below.
    folder = f"{loaded.metadata.location}.gazette"
    scheme, netloc, path = PyArrowFileIO.parse_location(folder, loaded.io.properties)
    arrow = (
        loaded.io
        if isinstance(loaded.io, PyArrowFileIO)
        else PyArrowFileIO(properties=loaded.io.properties)
    )
    try:
        found = arrow.fs_by_scheme(scheme, netloc).get_file_info(
            # A table that was never published has no such folder.
            FileSelector(path, allow_not_found=True)
        )
    except OSError as err:
        raise LakeError(
            f"cannot list {folder}, beside {handle.name} ({err}): see that the place can be read"
        ) from err
    # Load again after the listing: a file that a run has published meanwhile is kept.
    after = handle.load()
    if after is None:
        return []
    # Compare names without folders: they are uuids, and engines may write the same location as
    # `s3://` or `s3a://`.
    named = {
        summary.additional_properties.get(key, "").rpartition("/")[2]
        for summary in (snapshot.summary for snapshot in after.metadata.snapshots)
        if summary is not None
        for key in NAMED_BY
    }
    return sorted(
        f"{folder}/{file.base_name}"
        for file in found
        if file.type == FileType.File
        and file.base_name not in named
        # A run that has not published yet may have written it. Age is by the store's clock: one
        # that is ahead here would delete files of running runs.
        and file.mtime.timestamp() < now_s - older_than_s
    )
