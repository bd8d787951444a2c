"""The table of a rollup: what it covers, commits of slices, and maintenance.

A commit replaces slices in one step, or changes nothing. It goes the way of all our tables (`publish_snapshot`): a snapshot,
the branch main and the tag of progress move together, if the catalog still has what was compared.

The fence: a commit is planned from covers, and is refused unless main still covers just that. A run that was held up and
comes late finds that another one has committed, and changes nothing. Maintenance leaves covers alone, so runs and
maintenance may cross: whichever commits second builds on the first. A rollback by an engine counts: the next run makes
what main then lacks.

Covers are a file beside the table, which snapshots of commits name. The tag keeps the newest of these from expiring.

Data files are not copied: they lie at the rollup's own location from the start, and the commit names them.
"""

from __future__ import annotations

import gzip
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

from pyiceberg.partitioning import PARTITION_FIELD_ID_START
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from gazette_platform.errors import LakeError, TableFenced
from gazette_platform.lake.catalog_settings import TrinoCatalogs
from gazette_platform.lake.iceberg.catalog import MetastoreHandle, NewTable, PinnedHandle, present
from gazette_platform.lake.iceberg.metastore import slice_of
from gazette_platform.lake.iceberg.publishing import (
    COVERS,
    RUN,
    head_of,
    is_rolled_back,
    progress_of,
    publish_snapshot,
    summary_of,
    write_side_file,
)
from gazette_platform.lake.iceberg.snapshots import (
    RETAINED_S,
    maintenance_statements,
    replacing_snapshot,
    unnamed_files,
)
from gazette_platform.lake.rollups.engines import iceberg_catalog
from gazette_platform.lake.rollups.planning import Covers
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.iceberg.metastore import IcebergTable, IcebergTables
    from gazette_platform.lake.rollups.spec import Dialect, RollupSpec

CODE: Final = "gazette.code"
"""Property of a snapshot: the code version that made it."""
_OFFSETS: Final = "gazette.offsets"
# So many journals are listed in a snapshot's summary, which every reader of the table loads.
_JOURNALS_MAX: Final = 20
_PROPERTIES: Final = {"format-version": "2", "write.format.default": "parquet"}
_NAMED: Final = TrinoCatalogs()
# Properties of snapshots that are ours.
_OURS: Final = "gazette."


# ------------------------------------------------------------------ covers


def noted(metadata: TableMetadata) -> Mapping[str, str]:
    """Return the properties of the newest commit that main has; empty: it has none.

    Snapshots of maintenance are passed over. Those between them and the commit may have expired; then the tag leads to it.
    """
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        said = summary_of(metadata, snapshot.snapshot_id)
        if COVERS in said:
            return said
        snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
    return {} if is_rolled_back(metadata) else summary_of(metadata, progress_of(metadata))


def covers_path(metadata: TableMetadata) -> str:
    """Return the path of the file that says what the table covers; empty: no snapshot says it."""
    return noted(metadata).get(COVERS, "")


def read_covers(tables: IcebergTables, table: IcebergTable | None) -> Covers:
    """Return what a rollup covers; nothing, if it has not been made yet.

    Raises: LakeError: the table is not a rollup, or the file cannot be read.
    """
    if table is None or table.snapshot is None:
        return Covers()
    path = covers_path(table.metadata)
    if not path:
        raise LakeError(
            f"{table.full_name} exists, but does not say what it covers: it is not a rollup, or was "
            "rolled back to before it was one; drop it, or use another name"
        )
    try:
        with tables.io(path).new_input(path).open() as stream:
            return Covers.parse(gzip.decompress(stream.read()))
    except (OSError, EOFError) as err:
        raise LakeError(f"cannot read what {table.full_name} covers, at {path}: {err}") from err


def _write_covers(tables: IcebergTables, location: str, covers: Covers) -> str:
    # Without a suffix `.gz`: Arrow would compress the file once more.
    content = gzip.compress(covers.dump().encode(), mtime=0)
    return write_side_file(location, "covers", content, tables.io(location))


# ------------------------------------------------------------------ commits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Slices to commit."""

    spec: RollupSpec
    base: TableMetadata | None
    """The table when the commit was planned; None: there was none."""
    former: str
    """What `covers_path` was then."""
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

    def keeps(self, metadata: TableMetadata, file: DataFile) -> bool:
        """Return whether an existing file of the table stays."""
        if self.replaces_all:
            return False
        return slice_of(metadata, file, self.spec.slices) not in self.replaced


@final
@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit."""

    metadata: TableMetadata
    """Of the table after the commit, or later."""
    path: str
    """`covers_path` after the commit."""
    snapshot_id: int
    rows: int
    """Of the slices made."""
    rows_total: int
    files: int


def commit(tables: IcebergTables, what: Commit) -> Committed:
    """Commit slices.

    Returns: what was done. If nothing is returned the table may have been changed all the same, when the
        metastore broke off; the next run finds that out.
    Raises: TableFenced: another run has committed since this one was planned; nothing was changed. LakeError:
        the query gave rows of other slices or other columns than the table has, or a server or file cannot be
        reached.
    """
    staged, files = _staged(tables, what)
    # The covers are a new file each time, so its path tells commits apart. A commit that is refused leaves an orphan.
    path = _write_covers(tables, what.location, what.covers)
    handle = _opened(tables, what, staged)
    run = uuid.uuid4().hex
    properties = {**_properties(what, path), RUN: run}

    def require(now: TableMetadata) -> None:
        if covers_path(now) != what.former:
            raise _fenced(what)

    def made(now: Loaded) -> Snapshot:
        def left(entry: ManifestEntry) -> DataFile | None:
            return entry.data_file if what.keeps(now.metadata, entry.data_file) else None

        for file in files:
            # The staging table numbers its spec itself. Its fields are those of the table's.
            file.spec_id = now.metadata.default_spec_id
        return replacing_snapshot(now, left, files, properties)

    published = publish_snapshot(
        handle, run, require, made, shaped=lambda now: _shaped(tables, what, staged, now)
    )
    total = summary_of(published.metadata, published.snapshot_id).get("total-records", "0")
    return Committed(
        published.metadata,
        path,
        published.snapshot_id,
        rows=sum(file.record_count for file in files),
        rows_total=int(total),
        files=len(files),
    )


def _opened(tables: IcebergTables, what: Commit, staged: IcebergTable | None) -> TableHandle:
    """Return the handle of the table that was planned from, which is made if there was none."""
    handle = MetastoreHandle(tables, what.spec.name)
    if what.base is not None:
        return PinnedHandle(handle, what.base.table_uuid)
    assert staged is not None  # a table that is to be made gets rows
    shape = staged.metadata
    new = NewTable(
        schema=shape.schema(),
        partitions=shape.spec(),
        location=what.location,
        properties=_PROPERTIES,
    )
    # After a crash from here on there is an empty table, which the next run fills.
    made = handle.create(new).metadata
    # A table of another run, or of an engine, covers nothing either, so its covers do not fence.
    if made.location != what.location:
        raise _fenced(what)
    return PinnedHandle(handle, made.table_uuid)


def _fenced(what: Commit) -> TableFenced:
    return TableFenced(
        f"another run has committed to {what.spec.name} since this one began, so it changed nothing; what "
        "is still missing is made by the next run"
    )


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


def _shaped(
    tables: IcebergTables, what: Commit, staged: IcebergTable | None, now: Loaded
) -> Loaded:
    """Return the table in the shape of the staging table.

    Raises: LakeError: it has another one, and files that stay.
    """
    if staged is None or _is_alike(now.metadata, staged.metadata):
        return now
    # Iceberg reads files by column ids. Files that stay have the ids of the old columns.
    stay = sum(what.keeps(now.metadata, file) for file in tables.data_files(now.token))
    if stay:
        raise LakeError(
            f"the query of {what.spec.name} gives other columns than the table has, which keeps "
            f"{stay} files of slices that are not made again: give it another name, or run it with "
            "`force: true`, which loses rows of pruned content"
        )
    return replace(now, metadata=_fresh_metadata(now.metadata, staged.metadata))


def _is_alike(one: TableMetadata, other: TableMetadata) -> bool:
    """Whether files of one table can be files of the other."""
    return one.schema().as_struct() == other.schema().as_struct() and _fields(
        one.spec()
    ) == _fields(other.spec())


def _fields(spec: PartitionSpec) -> list[tuple[int, str, str]]:
    return [(f.source_id, str(f.transform), f.name) for f in spec.fields]


def _fresh_metadata(base: TableMetadata, shape: TableMetadata) -> TableMetadata:
    """Return metadata of an empty table in the shape of the staging table; without earlier snapshots.

    These would be read by columns that are called alike and are not.
    """
    schema, spec = shape.schema(), shape.spec()
    metadata = new_table_metadata(
        schema,
        spec,
        UNSORTED_SORT_ORDER,
        base.location,
        {**base.properties, **_PROPERTIES},
        base.table_uuid,
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


# ------------------------------------------------------------------ maintenance


@final
@dataclass(frozen=True, slots=True)
class Maintenance:
    """What was done to a table."""

    snapshots_before: int
    snapshots: int
    files_before: int
    files: int
    undeleted: tuple[str, ...] = ()
    """Files beside the table that could not be deleted, with the reason; tried again next time."""


def maintain(
    tables: IcebergTables,
    dialect: Dialect,
    execute: Callable[[str], object],
    spec: RollupSpec,
    *,
    now_s: float,
    retained_s: float = RETAINED_S,
    catalogs: TrinoCatalogs = _NAMED,
) -> Maintenance | None:
    """Look after a rollup.

    Args:
        tables: where it is.
        dialect: of the engine.
        execute: runs a statement on it.
        spec: the rollup.
        now_s: unix seconds.
        retained_s: seconds for which snapshots and orphans are kept.
        catalogs: what Trino calls its catalogs.

    Returns: what was done; None: the rollup is not made yet.
    Raises: LakeError: the engine cannot be reached, or refused; what was done before holds.
    """
    before = tables.load(spec.schema, spec.table)
    if before is None:
        return None
    handle = MetastoreHandle(tables, spec.name)
    optimize, *others = maintenance_statements(
        dialect,
        spec.name,
        now_s=now_s,
        snapshots_s=retained_s,
        orphans_s=retained_s,
        catalog=iceberg_catalog(dialect, catalogs),
    )
    execute(optimize)
    _move_tag(handle, now_s - retained_s)
    for statement in others:
        execute(statement)
    after = tables.load(spec.schema, spec.table)
    if after is None:
        return None
    stale = unnamed_files(handle, now_s=now_s, older_than_s=retained_s)
    return Maintenance(
        snapshots_before=len(before.metadata.snapshots),
        snapshots=len(after.metadata.snapshots),
        files_before=len(tables.data_files(before)),
        files=len(tables.data_files(after)),
        undeleted=tuple(tables.delete_files(stale)),
    )


def _move_tag(handle: TableHandle, before_s: float) -> None:
    """Move the tag to the newest snapshot, if that of maintenance is on top of a commit before an instant.

    The tag would otherwise keep files that optimizing has replaced for as long as sources do not change.
    """
    metadata = present(handle).metadata
    at, path = progress_of(metadata), covers_path(metadata)
    said = summary_of(metadata, at)
    snapshot = metadata.snapshot_by_id(at or -1)
    # A table that was rolled back is left to the next run: the tag says what main does not cover.
    if snapshot is None or at == head_of(metadata) or said.get(COVERS) != path:
        return
    if snapshot.timestamp_ms / 1000 >= before_s:
        return
    run = uuid.uuid4().hex
    # The same covers: to runs that are under way this is maintenance.
    properties = {**{key: said[key] for key in said if key.startswith(_OURS)}, RUN: run}

    def require(now: TableMetadata) -> None:
        if covers_path(now) != path:
            raise TableFenced(f"{handle.name} got another commit while it was maintained")

    with suppress(TableFenced):
        publish_snapshot(
            handle,
            run,
            require,
            lambda now: replacing_snapshot(now, lambda entry: entry.data_file, (), properties),
        )
