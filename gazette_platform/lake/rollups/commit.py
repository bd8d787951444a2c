"""Commits of rollups: slices of staging tables replace those of the rollup, in one step, or not at all.

The fence: what is committed was planned from covers; it is refused unless the table still covers just that. Who was
held up and comes late (a zombie) finds that another run has committed, and changes nothing. Commits of
maintenance, which leave covers alone, do not matter: then the same files are replaced in what they left.

Data files are not copied: they lie at the rollup's own location from the start, and the commit names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.partitioning import PARTITION_FIELD_ID_START
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import SetPropertiesUpdate, update_table_metadata

from gazette_platform.errors import LakeError, RollupFenced
from gazette_platform.lake.iceberg.metastore import IcebergTable, IcebergTables, slice_of
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA
from gazette_platform.lake.rollups.stored_covers import COVERS, covers_path, write_covers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    from gazette_platform.lake.rollups.covers import Covers
    from gazette_platform.lake.rollups.spec import RollupSpec

CODE: Final = "gazette.code"
"""Property of a table, and of its snapshots: the code version that made it."""
_OFFSETS: Final = "gazette.offsets"
# So many journals are listed in a snapshot's summary, which every reader of the table loads.
_JOURNALS_MAX: Final = 20
# Engines optimize a table once a day or so; more than a few commits in a row are not maintenance.
_ATTEMPTS: Final = 5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is to be committed."""

    spec: RollupSpec
    base: IcebergTable | None
    """The table when the commit was planned; None: there was none."""
    location: str
    """Of the table: below it lie the files of the staging table."""
    staging: str
    """Name of the staging table; empty: nothing was made."""
    replaced: Collection[tuple[str, ...]]
    """Slices with no existing file to stay."""
    made: Collection[tuple[str, ...]]
    """Slices that the staging table may have rows of."""
    covers: Covers
    """What the table covers afterwards."""
    replaces_all: bool
    """Whether no existing file is to stay at all."""


@final
@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did."""

    table: IcebergTable
    """As it is now."""
    rows: int
    """Of the slices made."""
    rows_total: int
    files: int

    @property
    def snapshot_id(self) -> int:
        """The snapshot that the commit made."""
        snapshot = self.table.snapshot
        assert snapshot is not None
        return snapshot.snapshot_id


def commit(tables: IcebergTables, what: Commit) -> Committed:
    """Commit slices.

    Returns: what was done. If nothing is returned the table may have been changed all the same, when the
        metastore broke off; the next run finds that out.
    Raises: RollupFenced: another run has committed since this one was planned; nothing was changed. LakeError:
        the query gave rows of other slices or other columns than the table has, or a server or file cannot be
        reached.
    """
    staged, files = _staged(tables, what)
    # The covers are a new file each time. A commit that is refused leaves an orphan and changes
    # nothing.
    path = write_covers(tables, what.location, what.covers)
    base = what.base
    # Only `base` changes between attempts; the staged files are the same.
    for _ in range(_ATTEMPTS):
        metadata, kept = _next_metadata(tables, what, base, staged, files, path)
        # Rows and covers become visible by one file name. With two writes, a crash in between would
        # make slices twice or not at all.
        location = tables.write_metadata(metadata, base.version + 1 if base is not None else 0)
        if base is None:
            is_done = tables.create(what.spec.schema, what.spec.table, metadata, location)
        else:
            is_done = tables.swap(base, location)
        if is_done:
            rows = sum(file.record_count for file in files)
            return Committed(
                IcebergTable(what.spec.schema, what.spec.table, metadata, location),
                rows=rows,
                rows_total=rows + sum(file.record_count for file in kept),
                files=len(files),
            )
        base = _rebased(tables, what)
    raise LakeError(
        f"{what.spec.name} was changed by others {_ATTEMPTS} times while this run tried to commit; the next "
        "run tries again"
    )


def _rebased(tables: IcebergTables, what: Commit) -> IcebergTable:
    """The table as it is now, if it still covers what it did when the commit was planned."""
    now = tables.load(what.spec.schema, what.spec.table)
    # Compare the path, not the content: each commit has a file of its own, so a zombie's covers
    # never return.
    before = covers_path(what.base) if what.base is not None else ""
    if now is None or covers_path(now) != before or what.base is None:
        raise RollupFenced(
            f"another run has committed to {what.spec.name} since this one began, so it changed nothing; what "
            "is still missing is made by the next run"
        )
    return now


def _staged(tables: IcebergTables, what: Commit) -> tuple[IcebergTable | None, list[DataFile]]:
    """The staging table and its files, all of the slices made.

    Raises: LakeError: it has others.
    """
    if not what.staging:
        return None, []
    staged = tables.load(STAGING_SCHEMA, what.staging)
    if staged is None:
        raise LakeError(
            f"{STAGING_SCHEMA}.{what.staging} is gone before it could be committed to {what.spec.name}: run "
            "it again"
        )
    files = tables.data_files(staged)
    made = set(what.made)
    for file in files:
        values = slice_of(staged.metadata, file, what.spec.slices)
        # Such rows would stay for good: no cover names their slice, so no run would replace them.
        if values not in made:
            shown = ", ".join(
                f"{column}={value}" for column, value in zip(what.spec.slices, values, strict=True)
            )
            raise LakeError(
                f"the query of {what.spec.name} gives rows of {shown}, a slice that was not asked for: it "
                f"must give {', '.join(what.spec.slices)} as its sources have them"
            )
    return staged, files


def _next_metadata(  # noqa: PLR0917
    tables: IcebergTables,
    what: Commit,
    base: IcebergTable | None,
    staged: IcebergTable | None,
    files: list[DataFile],
    path: str,
) -> tuple[TableMetadata, list[DataFile]]:
    """Metadata of the table after the commit, whose manifests are written, and the files that stay."""
    old = tables.data_files(base) if base is not None else []
    # From the table of now: compaction may have replaced the files that the plan saw.
    kept = [] if base is None or what.replaces_all else _kept(base, what, old)
    if staged is not None and (base is None or not _is_alike(base.metadata, staged.metadata)):
        # Iceberg reads files by column ids. Kept files have the ids of the old columns.
        if kept:
            raise LakeError(
                f"the query of {what.spec.name} gives other columns than the table has, which keeps "
                f"{len(kept)} files of slices that are not made again: give it another name, or run it with "
                "`force: true`, which loses rows of pruned content"
            )
        start = _fresh_metadata(what, base, staged.metadata)
        old = []
    else:
        assert base is not None  # there is something to make or to drop
        start = base.metadata
    start = update_table_metadata(
        start,
        (SetPropertiesUpdate(updates={COVERS: path, CODE: what.spec.code_version}),),
        metadata_location=base.metadata_location if base is not None else None,
    )
    table = Table(
        (what.spec.schema, what.spec.table),
        start,
        "",
        tables.io(what.location),
        NoopCatalog("none"),
    )
    transaction = table.transaction()
    properties = _properties(what, path)
    with transaction.update_snapshot(snapshot_properties=properties).overwrite() as overwrite:
        _judge_each_manifest_apart(overwrite)
        for file in set(old) - set(kept):
            overwrite.delete_data_file(file)
        for file in files:
            # The staging table numbers its spec itself; equal fields were required above.
            file.spec_id = start.default_spec_id
            overwrite.append_data_file(file)
    return transaction.table_metadata, kept


def _judge_each_manifest_apart(overwrite: _OverwriteFiles) -> None:
    """Give each manifest an evaluator of its own.

    PyIceberg 0.12 looks at manifests in several threads with one evaluator, which remembers the manifest
    that it looks at. So it may take the bounds of another column for them, and not find the files to delete.
    """
    build = overwrite._build_manifest_evaluator  # noqa: SLF001

    def build_one_for_each(spec_id: int) -> Callable[[ManifestFile], bool]:
        def judge(manifest: ManifestFile) -> bool:
            return build(spec_id)(manifest)

        return judge

    overwrite._build_manifest_evaluator = build_one_for_each  # type: ignore[method-assign]  # noqa: SLF001


def _kept(base: IcebergTable, what: Commit, old: list[DataFile]) -> list[DataFile]:
    """Existing files that stay."""
    replaced = set(what.replaced)
    return [f for f in old if slice_of(base.metadata, f, what.spec.slices) not in replaced]


def _is_alike(one: TableMetadata, other: TableMetadata) -> bool:
    """Whether files of one table can be files of the other."""
    return one.schema().as_struct() == other.schema().as_struct() and _fields(
        one.spec()
    ) == _fields(other.spec())


def _fields(spec: PartitionSpec) -> list[tuple[int, str, str]]:
    return [(f.source_id, str(f.transform), f.name) for f in spec.fields]


def _fresh_metadata(what: Commit, base: IcebergTable | None, shape: TableMetadata) -> TableMetadata:
    """Metadata of an empty table in the shape of the staging table; without earlier snapshots.

    These would be read by columns that are called alike and are not.
    """
    schema, spec = shape.schema(), shape.spec()
    metadata = new_table_metadata(
        schema,
        spec,
        UNSORTED_SORT_ORDER,
        what.location,
        {
            **(base.metadata.properties if base is not None else {}),
            "format-version": "2",
            "write.format.default": "parquet",
        },
        base.metadata.table_uuid if base is not None else None,
    )
    # With the ids that the files have, rather than fresh ones.
    return metadata.model_copy(
        update={
            "schemas": [schema],
            "last_column_id": schema.highest_field_id,
            "current_schema_id": schema.schema_id,
            "partition_specs": [spec],
            "default_spec_id": spec.spec_id,
            "last_partition_id": max(
                (f.field_id for f in spec.fields), default=PARTITION_FIELD_ID_START - 1
            ),
        }
    )


def _properties(what: Commit, path: str) -> dict[str, str]:
    """What the snapshot says of itself; the covers in words as far as they are short."""
    properties = {
        COVERS: path,
        CODE: what.spec.code_version,
        "gazette.slices-made": str(len(what.made)),
        "gazette.slices": str(len(what.covers.slices)),
    }
    offsets = what.covers.offsets()
    if len(offsets) <= _JOURNALS_MAX:
        properties[_OFFSETS] = "; ".join(
            f"{journal} {', '.join(f'{begin}-{end}' for begin, end in ranges[:3])}"
            + (f" and {len(ranges) - 3} more" if len(ranges) > 3 else "")
            for journal, ranges in offsets.items()
        )
    return properties
