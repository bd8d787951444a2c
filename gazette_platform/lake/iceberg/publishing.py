"""How our Iceberg tables change: rows and the progress that they belong to become visible together, or not at all.

One change of the table's metadata adds a snapshot and moves the branch ``main`` and the tag `PROGRESS` to it. The catalog
checks two conditions in the same step:

- the tag is where it was when the run began; otherwise another run has published (the fence);
- main is where this process saw it a moment ago; otherwise maintenance came between, and the snapshot is made again on top
  of that.

A snapshot that an engine has staged is in the table already, unseen by readers. The same change publishes it, without
adding it.

The tag is the progress. No engine expires it and snapshot ids are never reused, so a run that wakes up late, however
late, is refused.

What is too long for a property of a snapshot is a file beside the table, at `<location>.gazette/`, that the snapshot names:
states and lists of quarantined files of a typed table, covers of a rollup. Within the table's location engines would remove
it as an orphan, so our own maintenance removes files that no snapshot names (`snapshots.unnamed_files`).
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast, final

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import load_file_io
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
)

from gazette_platform.errors import (
    LakeError,
    TableFenced,
    TypedProgressGone,
    TypedRefused,
    TypedRolledBack,
)
from gazette_platform.ops import tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle

PROGRESS: Final = "gazette-progress"
"""Tag of the newest snapshot that says how far the table has come."""
RUN: Final = "gazette.run"
"""Property of a snapshot: which run published it, or has staged it."""
WAP_ID: Final = "wap.id"
"""Property of a snapshot that Iceberg's writers staged (write, audit, publish): its name."""
MANIFESTS: Final = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "100",
}
"""Properties of a table: merge its manifests once there are a hundred small ones. Otherwise each commit leaves one
for good, and planning opens them all."""

_MAIN: Final = "main"
_FOREVER_MS: Final = 2**63 - 1
# Each failure means that another writer committed. Engines' maintenance makes a commit or a few.
_ATTEMPTS: Final = 10
# Long enough for a metastore to restart, which takes some seconds.
# The pauses add up to half a minute.
_ASKING_STEPS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)

_T = TypeVar("_T")


class _MovedError(Exception):
    """A snapshot is not on top of main any more, or has expired."""


@final
@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication."""

    snapshot_id: int
    """The published snapshot, of this attempt or an earlier one."""
    metadata: TableMetadata
    """The table's metadata after the publication, or later."""


def head_of(metadata: TableMetadata) -> int | None:
    """Return the snapshot that readers see; None: there never was one."""
    return _ref(metadata, _MAIN)


def progress_of(metadata: TableMetadata) -> int | None:
    """Return the snapshot that holds the table's progress; None: nothing was published."""
    return _ref(metadata, PROGRESS)


def summary_of(metadata: TableMetadata, snapshot_id: int | None) -> Mapping[str, str]:
    """Return the summary properties of a snapshot; empty if it has expired."""
    snapshot = metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None or snapshot.summary is None:
        return {}
    return snapshot.summary.additional_properties


def is_rolled_back(metadata: TableMetadata) -> bool:
    """Return whether main no longer descends from the tagged snapshot, as far as ancestors have not expired."""
    at = progress_of(metadata)
    tagged = metadata.snapshot_by_id(at) if at is not None else None
    snapshot = metadata.current_snapshot()
    if tagged is None:
        return False
    # Walk parents, since maintenance puts snapshots on top of the tagged one. Sequence numbers end
    # the walk early: what is older than the tag cannot descend from it.
    while snapshot is not None and snapshot.snapshot_id != at:
        if (snapshot.sequence_number or 0) < (tagged.sequence_number or 0):
            return True
        if snapshot.parent_snapshot_id is None:
            # PyIceberg's expiry clears the parent; Iceberg's own keeps the id of a parent that is gone.
            # Ancestry is lost here, so ask the row counts. Compaction keeps the number of rows; a
            # rollback to an older snapshot lowers it.
            return _has_fewer_rows(metadata, tagged.snapshot_id)
        snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id)
    return False


def _published_behind(metadata: TableMetadata) -> int | None:
    """Return the newest publication that main has and the tag does not; None unless the tag was moved."""
    at = progress_of(metadata)
    tagged = metadata.snapshot_by_id(at) if at is not None else None
    snapshot = metadata.current_snapshot() if tagged is not None else None
    # Publishing moves main and tag together, so only a person who moved the tag back makes this
    # find something. Reading from there would publish the same rows twice.
    while snapshot is not None and snapshot.snapshot_id != at:
        if RUN in summary_of(metadata, snapshot.snapshot_id):
            return snapshot.snapshot_id
        snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
    return None


def _has_fewer_rows(metadata: TableMetadata, than: int) -> bool:
    """Return whether main surely has fewer rows than a snapshot had. No maintenance does that."""
    now, before = summary_of(metadata, head_of(metadata)), summary_of(metadata, than)
    # A compaction applies deletes, so rows fall by at most their number. Engines may note a row as deleted twice.
    deleted = int(before.get("total-position-deletes", 0))
    return int(now.get("total-records", 0)) < int(before.get("total-records", 0)) - deleted


def require_progress(metadata: TableMetadata, name: str) -> None:
    """Require that the table's progress is known and that main has it.

    Args:
        name: of the table, for errors.

    Raises: TypedProgressGone: it has rows and no tag. TypedRolledBack: main is before the tag, or after it.
    """
    head, at = head_of(metadata), progress_of(metadata)
    # Without the tag a run would read journals from their beginning and double all rows. An empty
    # snapshot is fine: Trino's CREATE TABLE makes one.
    if at is None and head is not None and summary_of(metadata, head).get("total-records") != "0":
        raise TypedProgressGone(
            f"{name} has rows, and no tag {PROGRESS}, which says what was read: set the tag to the newest "
            f"snapshot that has the property `{RUN}`, or drop the table and run again. {_accepting(name)}"
        )
    if is_rolled_back(metadata):
        raise TypedRolledBack(
            f"{name} was rolled back to snapshot {head}, and what was read is recorded at {at}: move the tag "
            f"{PROGRESS} to one before it, and what came behind is read again; or roll the table forward to {at}. "
            f"{_accepting(name)}"
        )
    behind = _published_behind(metadata)
    if behind is not None:
        raise TypedRolledBack(
            f"{name} has what was published as {behind}, and its tag {PROGRESS} was moved back to {at}, so that rows would "
            f"come twice: roll the table back to {at} as well, and what came behind is read again; or move the tag to {behind}. "
            f"{_accepting(name)}"
        )


def _accepting(name: str) -> str:
    return (
        f"`gazctl lake run {name} --accept-rollback` shows what would be read again or be lost, and moves the tag to what "
        "the table has"
    )


def updates_moving(snapshot_id: int) -> tuple[SetSnapshotRefUpdate, ...]:
    """Return the metadata changes that move main and the tag to a snapshot."""
    moved = {"action": "set-snapshot-ref", "snapshot-id": snapshot_id}
    # Both in one change: a tag that moved later would be lost by a crash in between, and the next
    # run would publish the same rows again.
    return (
        SetSnapshotRefUpdate.model_validate({**moved, "ref-name": _MAIN, "type": "branch"}),
        _tagged(PROGRESS, snapshot_id),
    )


def _tagged(name: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    # A table may limit the age of references (`history.expire.max-ref-age-ms`); the tag must outlive any run.
    return SetSnapshotRefUpdate.model_validate(
        {
            "action": "set-snapshot-ref",
            "ref-name": name,
            "type": "tag",
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": _FOREVER_MS,
        }
    )


def _expired(table: str, run: str) -> LakeError:
    # Asking again gives no other answer.
    return TypedRefused(
        f"what run {run} was to publish to {table} has expired, so nothing was changed: let its snapshots live longer than "
        "a run takes, and run again"
    )


def still_at(metadata: TableMetadata, start: int | None) -> AssertRefSnapshotId:
    """The fence: the condition that no run has published since progress was at `start`.

    Args:
        metadata: of the table as it was looked at.
        start: what `progress_of` was when a run began.
    """
    # PyIceberg cannot express a condition on a tag of a table without snapshots.
    # Before the first snapshot, "main does not exist" says the same as "the tag does not exist".
    return _ref_at(PROGRESS, start) if metadata.snapshots else _ref_at(_MAIN, None)


def still_headed(metadata: TableMetadata) -> AssertRefSnapshotId:
    """Return the condition that main has not moved."""
    return _ref_at(_MAIN, head_of(metadata))


def still_parted_by(metadata: TableMetadata) -> AssertDefaultSpecId:
    """Return the condition that the table still partitions new files in the same way."""
    return AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id})


@tracing.span("gazette typed commit")
def publish_files(
    handle: TableHandle,
    start: int | None,
    files: Sequence[DataFile],
    run: str,
    properties: Mapping[str, str],
) -> Published:
    """Publish the files of a run, if no other run has published since it began.

    After any failure call again with the same `run`: the result says what became of the first attempt. A run without
    files publishes as well, because its progress has changed.

    Args:
        handle: of the table.
        start: what `progress_of` was when the run began.
        files: to be appended, of the table's partition spec. They must lie below its location.
        run: of this publication and no other.
        properties: of the snapshot; `RUN` is added.

    Returns: what was published; it need not be the newest, if this is asked late.
    Raises: TableFenced: another run has published, or parted the table otherwise, since `start`; nothing was changed,
        unless this had been published and has expired: do not remove the files. TypedRolledBack, TypedProgressGone:
        a person has to look; nothing was changed. LakeError: the catalog broke off, or the table is changed all
        the time: ask again.
    """

    def appended(now: Loaded) -> Snapshot:
        # Evolution may have changed the partition spec since workers wrote the files. Iceberg would
        # accept them, and queries would skip them by wrong partition values.
        require_parted_by(now.metadata, files, handle.name)
        return _appended(now, files, {**properties, RUN: run})

    return publish_snapshot(handle, run, began_at(start, handle.name), appended)


def publish_staged(
    handle: TableHandle,
    start: int | None,
    staged: int,
    run: str,
    *,
    spent: Sequence[int] = (),
    tags: Mapping[str, int] | None = None,
) -> Published | None:
    """Publish a snapshot that an engine has staged, if no other run has published since the run began.

    After any failure call again, as with `publish_files`.

    Args:
        handle: of the table.
        start: what `progress_of` was when the run began.
        staged: a snapshot with the property `RUN` on top of main, on no branch.
        run: of this publication and no other.
        spent: snapshots that are no longer needed, and that the same change removes.
        tags: other tags that the same change moves, and to which snapshots.

    Returns: what was published; None: main has moved since it was staged, or it has expired, so that it has to be
        staged again.
    Raises: as `publish_files`.
    """

    def found(now: Loaded) -> Snapshot:
        snapshot = now.metadata.snapshot_by_id(staged)
        # A MERGE was computed against its parent. On top of any other snapshot it would bring
        # deleted rows back, so it has to be staged again.
        if snapshot is None or snapshot.parent_snapshot_id != head_of(now.metadata):
            raise _MovedError
        return snapshot

    try:
        require = began_at(start, handle.name)
        return publish_snapshot(handle, run, require, found, spent=spent, tags=tags)
    except _MovedError:
        return None


def publish_snapshot(
    handle: TableHandle,
    run: str,
    require: Callable[[TableMetadata], None],
    made: Callable[[Loaded], Snapshot],
    *,
    spent: Sequence[int] = (),
    tags: Mapping[str, int] | None = None,
    shaped: Callable[[Loaded], Loaded] | None = None,
) -> Published:
    """Publish a snapshot of any kind: the one loop that changes rows of our tables.

    Args:
        handle: of the table.
        run: of this publication and no other.
        require: raises unless the table is still what the change was planned from. `began_at` gives that of typed
            tables.
        made: gives a snapshot on top of what the table holds now, with the property `RUN`. It is called again
            whenever others have changed the table meanwhile.
        spent: snapshots that the same change removes.
        tags: others that the same change moves, and to which snapshots.
        shaped: replaces the metadata before the snapshot is added, with the same `token`; None: the table keeps its
            shape. Only for a catalog that compares nothing but the token (`MetastoreHandle`).

    Returns: what was published; it need not be the newest, if this is asked late.
    Raises: what `require` and `made` raise; nothing was changed. LakeError: as `publish_files`.
    """
    refused: CommitFailedException | None = None
    for _ in range(_ATTEMPTS):
        now = loaded_from(handle)
        # Ask this before the fence: after a lost answer the tag is at this run's own snapshot. The
        # fence would report another run, and the caller would delete published files.
        before = published_by(now.metadata, run)
        if before is not None:
            return Published(before.snapshot_id, now.metadata)
        # Check here as well as in the catalog: the catalog says only that something differs, and
        # not which error a person needs.
        require(now.metadata)
        now = now if shaped is None else shaped(now)
        snapshot = made(now)
        requirements = (
            AssertTableUUID(uuid=now.metadata.table_uuid),
            still_headed(now.metadata),
            # `require` has looked at the tag that this is. Metadata of another shape has none yet.
            still_at(now.metadata, progress_of(now.metadata)),
            # The uuid above refuses a table of the same name that was made again. Main keeps
            # maintenance's rewrite from being undone; the tag is the fence.
            still_parted_by(now.metadata),
        )
        known = {one.snapshot_id for one in now.metadata.snapshots}
        # A staged snapshot is in the metadata already; catalogs refuse to add it again.
        added = [AddSnapshotUpdate(snapshot=snapshot)] if snapshot.snapshot_id not in known else []
        # Expiry may have removed some of these; a catalog refuses to remove what does not exist.
        gone = sorted(known & set(spent))
        # A tag at an expired snapshot would lose deletions for good. No retry helps, so this is a
        # refusal and not an outage.
        if not known.issuperset((tags or {}).values()):
            raise _expired(handle.name, run)
        removed = [RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone})] if gone else []
        moved = (_tagged(name, to) for name, to in (tags or {}).items())
        updates = (*added, *updates_moving(snapshot.snapshot_id), *moved, *removed)
        try:
            handle.commit(now, requirements, updates)
        except CommitFailedException as err:
            refused = err
            continue
        # Load again: others may have committed on top since, and reports should show what readers
        # see.
        return Published(snapshot.snapshot_id, loaded_from(handle).metadata)
    raise LakeError(
        f"{handle.name} was changed by others {_ATTEMPTS} times while run {run} tried to publish: ask again, or "
        "look at who writes to it"
    ) from refused


def insisting(ask: Callable[[], _T], log: Callable[[str], None]) -> _T:
    """Repeat a publication until the catalog answers. A repetition publishes nothing twice.

    Raises: TableFenced, TypedRolledBack, TypedProgressGone, TypedRefused: that is the answer. LakeError: there was no
        answer for half a minute.
    """
    for pause_s in _ASKING_STEPS_S:
        try:
            return ask()
        # These are answers. Only an outage leaves open whether the change was made.
        except (TableFenced, TypedRolledBack, TypedProgressGone, TypedRefused):
            raise
        except LakeError as err:
            log(f"asking again whether it was published: {err}")
            time.sleep(pause_s)
    return ask()


def loaded_from(handle: TableHandle) -> Loaded:
    """Load the table as it is now.

    Raises: LakeError: it is gone, or the catalog cannot be reached.
    """
    now = handle.load()
    if now is None:
        raise LakeError(
            f"{handle.name} was dropped while a run wrote to it: run again, from its start"
        )
    return now


def published_by(metadata: TableMetadata, run: str) -> Snapshot | None:
    """Return the snapshot that a run has published; None: it has not, or the snapshot has expired."""
    # A staged snapshot has the run's name before it is published. The log holds what main has
    # pointed to, so it tells both apart.
    was_head = {entry.snapshot_id for entry in metadata.snapshot_log}
    for snapshot in reversed(metadata.snapshots):
        summary = summary_of(metadata, snapshot.snapshot_id)
        # A snapshot that was not staged exists only once it is published. A run may stage several.
        if summary.get(RUN) == run and (WAP_ID not in summary or snapshot.snapshot_id in was_head):
            return snapshot
    return None


def began_at(start: int | None, name: str) -> Callable[[TableMetadata], None]:
    """Return what a run of a typed table requires to publish: its progress is at `start`, and main has it."""

    def require(metadata: TableMetadata) -> None:
        require_start(metadata, start, name)
        require_progress(metadata, name)

    return require


def require_start(metadata: TableMetadata, start: int | None, name: str) -> None:
    """Require that no run has published since progress was at `start`.

    Raises: TableFenced: another run has. TypedProgressGone: the table has rows, and no tag.
    """
    # The id of a snapshot never comes again. Times and counters could, after a restored backup or
    # on a machine whose clock is wrong.
    at = progress_of(metadata)
    if at is None:
        # If the tag was dropped, report that, and not that another run had published.
        require_progress(metadata, name)
    if at != start:
        raise TableFenced(
            f"another run has published to {name} since this one began (progress is at snapshot {at}, not "
            f"{start}), so it changed nothing; the next run goes on from there"
        )


def require_parted_by(metadata: TableMetadata, files: Sequence[DataFile], name: str) -> None:
    """Require that all files are partitioned as the table partitions new ones now.

    Raises: TableFenced: some are not.
    """
    other = {file.spec_id for file in files} - {metadata.default_spec_id}
    if other:
        raise TableFenced(
            f"{name} is partitioned by spec {metadata.default_spec_id} by now, and this run wrote files by "
            f"{', '.join(map(str, sorted(other)))}, so it changed nothing; the next run writes them again"
        )


def _appended(now: Loaded, files: Sequence[DataFile], properties: Mapping[str, str]) -> Snapshot:
    """Return a snapshot with the files, on top of what the table holds now, and write its manifests."""
    transaction = now.table.transaction()
    update = transaction.update_snapshot(snapshot_properties=dict(properties))
    # PyIceberg's fast append would leave one manifest per run, and each query plan opens all of
    # them. A failed commit leaves these manifests to maintenance.
    with update.merge_append() as append:
        for file in files:
            append.append_data_file(file)
    return cast("Snapshot", transaction.table_metadata.current_snapshot())


def _ref_at(name: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})


def _ref(metadata: TableMetadata, name: str) -> int | None:
    found = metadata.refs.get(name)
    return found.snapshot_id if found is not None else None


STATE: Final = "gazette.state"
"""Property of a snapshot: path of the file with the state after it."""
QUARANTINE: Final = "gazette.quarantine"
"""Property of a snapshot: path of the list of files that the run has quarantined; absent: none."""
QUARANTINED: Final = "gazette.quarantined"
"""Property of a snapshot of a typed table: how many records are in quarantine, once all is settled."""
COVERS: Final = "gazette.covers"
"""Property of a snapshot of a rollup: path of the file that says what the table covers."""
NAMED_BY: Final = (STATE, QUARANTINE, COVERS)
"""Properties that name files beside a table."""


def write_side_file(location: str, kind: str, content: bytes, io: FileIO | None = None) -> str:
    """Write a file beside the table at `location`, under a new name. Returns: its path.

    Raises: LakeError: it cannot be written.
    """
    # Never write to an existing name: an attempt that lost the fence would overwrite what a
    # published snapshot names.
    path = f"{location}.gazette/{uuid.uuid4()}.{kind}"
    files = io if io is not None else load_file_io({}, path)
    try:
        # It is written before the snapshot that names it. After a crash in between no snapshot
        # names the file, and maintenance removes it.
        with files.new_output(path).create() as stream:
            stream.write(content)
    except OSError as err:
        raise LakeError(
            f"cannot write {path}, beside the table ({err}): see that the place can be written, and run again"
        ) from err
    return path


def read_side_file(io: FileIO, path: str, name: str) -> bytes:
    """Read a file that a snapshot of table `name` names.

    Raises: LakeError: it is gone, or cannot be read.
    """
    try:
        with io.new_input(path).open() as stream:
            return bytes(stream.read())
    except OSError as err:
        raise LakeError(
            f"cannot read {path}, which a snapshot of {name} names ({err}): if it is gone, fetch it from a "
            "backup, or roll the table and its tag "
            f"{PROGRESS} back to a snapshot whose file exists, and what came after it is read again"
        ) from err
