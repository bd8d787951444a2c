"""Commits of a typed table, as its proof tries them: staged by Spark, published in three ways.

Staged is a snapshot that the table has and no reader sees. Published it is by Iceberg's own procedures
(`SparkTable.cherry_pick`, `fast_forward`), or by `publish`: one change of the table's metadata, which moves the
branch ``main`` and the tag that progress is pinned by, if both are still where the run saw them.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
)

from gazette_platform.lake.iceberg.catalog import CatalogHandle, MetastoreHandle
from gazette_platform.lake.iceberg.publishing import (
    PROGRESS,
    RUN,
    head_of,
    is_rolled_back,
    progress_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame, SparkSession

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle

__all__ = [
    "PROGRESS",
    "RUN",
    "CatalogHandle",
    "Fenced",
    "MetastoreHandle",
    "RolledBack",
    "SparkRefused",
    "SparkTable",
    "StagedIsGone",
    "TableMoved",
    "head_of",
    "is_rolled_back",
    "progress_of",
    "publish",
    "rebased",
]

MAIN = "main"
_FOREVER_MS = 2**63 - 1
_ATTEMPTS = 5


class Fenced(Exception):
    """Another run has published since this one began."""


class StagedIsGone(Exception):
    """The staged snapshot has expired before it was published."""


class TableMoved(Exception):
    """Maintenance has changed what the staged snapshot replaces: stage it again, from the same start."""


class RolledBack(Exception):
    """Main is where it was before the progress that the tag names: a person has to say which counts."""


class SparkRefused(Exception):
    """Spark refused; `kind` is the Java class of the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


# ------------------------------------------------------------------ Spark


@final
class SparkTable:
    """An Iceberg table as Spark sees it.

    Args:
        session: with the catalog.
        name: ``schema.table``.
        catalog: what Spark calls the catalog.
    """

    def __init__(self, session: SparkSession, name: str, catalog: str = "iceberg") -> None:
        self.session = session
        self.name = name
        self.catalog = catalog
        self.full_name = f"{catalog}.{name}"

    def create(
        self, columns: str = "n BIGINT, k STRING", partitioned_by: str = "", **more: str
    ) -> None:
        """Make the table, empty; Spark may stage into it."""
        schema = self.name.partition(".")[0]
        self.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.{schema}")
        properties = {"format-version": "2", "write.wap.enabled": "true", **more}
        told = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        clause = f"PARTITIONED BY ({partitioned_by}) " if partitioned_by else ""
        self.sql(
            f"CREATE TABLE {self.full_name} ({columns}) USING iceberg {clause}TBLPROPERTIES ({told})"
        )

    def sql(self, statement: str, session: SparkSession | None = None) -> list[tuple[Any, ...]]:
        """Rows of a statement. Raises: SparkRefused."""
        try:
            return [tuple(row) for row in (session or self.session).sql(statement).collect()]
        except Exception as err:
            raise _refusal(err) from err

    def call(self, procedure: str, *arguments: str) -> list[tuple[Any, ...]]:
        """Rows of one of Iceberg's procedures. Raises: SparkRefused."""
        told = ", ".join((f"table => '{self.name}'", *arguments))
        return self.sql(f"CALL {self.catalog}.system.{procedure}({told})")

    def frame(self, rows: Iterable[tuple[int, str]]) -> DataFrame:
        """A data frame of columns n and k, in one file."""
        values = ", ".join(f"(CAST({n} AS BIGINT), '{k}')" for n, k in rows)
        return self.session.sql(f"SELECT * FROM VALUES {values} AS t(n, k)").coalesce(1)

    def stage(self, rows: Iterable[int] | DataFrame, wap_id: str = "", **properties: str) -> int:
        """Append rows to a snapshot that no reader sees. Returns: its id.

        Args:
            wap_id: empty: one of its own.
            properties: of the snapshot, with ``_`` for ``.``.
        """
        frame = self.frame((n, "k") for n in rows) if not hasattr(rows, "writeTo") else rows
        with self._staging(wap_id, properties) as run:
            try:
                frame.writeTo(self.full_name).append()
            except Exception as err:
                raise _refusal(err) from err
        return self.snapshot_of(run)

    @contextmanager
    def _staging(self, wap_id: str, properties: Mapping[str, str]) -> Iterator[str]:
        """Have what is written within staged. Yields: the attempt, which is in the snapshot."""
        run = uuid.uuid4().hex
        told = {RUN: run, **{key.replace("_", "."): value for key, value in properties.items()}}
        settings = {"spark.wap.id": wap_id or run}
        settings |= {f"spark.sql.iceberg.snapshot-property.{k}": v for k, v in told.items()}
        for key, value in settings.items():
            self.session.conf.set(key, value)
        try:
            yield run
        finally:
            for key in settings:
                self.session.conf.unset(key)

    def stage_merge(self, rows: Iterable[tuple[int, str]], **properties: str) -> int:
        """Upsert rows by n, into a snapshot that no reader sees. Returns: its id."""
        self.frame(rows).createOrReplaceTempView("upserts")
        with self._staging("", properties) as run:
            self.sql(
                f"MERGE INTO {self.full_name} t USING upserts s ON t.n = s.n "
                "WHEN MATCHED THEN UPDATE SET k = s.k WHEN NOT MATCHED THEN INSERT *"
            )
        return self.snapshot_of(run)

    def stage_on_branch(
        self, branch: str, start: int | None, rows: Iterable[int], **told: str
    ) -> None:
        """Append rows to a new branch that begins at a snapshot."""
        begin = f"AS OF VERSION {start} " if start is not None else ""
        self.sql(f"ALTER TABLE {self.full_name} CREATE BRANCH {branch} {begin}RETAIN 7 DAYS")
        writer = self.frame((n, "k") for n in rows).writeTo(f"{self.full_name}.branch_{branch}")
        for key, value in told.items():
            writer = writer.option(f"snapshot-property.{key.replace('_', '.')}", value)
        writer.append()

    def snapshot_of(self, run: str) -> int:
        """The snapshot that an attempt made."""
        ((found,),) = self.sql(
            f"SELECT snapshot_id FROM {self.full_name}.snapshots WHERE summary['{RUN}'] = '{run}'"
        )
        return int(found)

    def cherry_pick(self, snapshot_id: int) -> None:
        """Publish by Iceberg's procedure. Raises: SparkRefused."""
        self.call("cherrypick_snapshot", f"snapshot_id => {snapshot_id}")

    def fast_forward(self, branch: str) -> None:
        """Let main be where `branch` is, if main is an ancestor of it. Raises: SparkRefused."""
        self.call("fast_forward", f"branch => '{MAIN}'", f"to => '{branch}'")

    def optimize(self) -> None:
        """Put all files together, even if there is but one."""
        self.call(
            "rewrite_data_files", "options => map('min-input-files', '1', 'rewrite-all', 'true')"
        )

    def now(self) -> str:
        """The time, as `expire` takes it."""
        ((text,),) = self.sql("SELECT date_format(now(), 'yyyy-MM-dd HH:mm:ss.SSS')")
        return str(text)

    def expire(self, older_than: str = "") -> None:
        """Expire what is older, by default all that may; the newest snapshot of main stays."""
        older = older_than or self.now()
        self.call("expire_snapshots", f"older_than => TIMESTAMP '{older}'", "retain_last => 1")

    def numbers(self) -> list[int]:
        """Column n, sorted."""
        return sorted(row[0] for row in self.sql(f"SELECT n FROM {self.full_name}"))

    def summaries(self) -> list[dict[str, str]]:
        """Summaries of the ancestors of main that the table still has, newest first."""
        found = self.sql(f"SELECT snapshot_id, parent_id, summary FROM {self.full_name}.snapshots")
        by_id = {row[0]: row for row in found}
        heads = [row[0] for row in self.refs() if row[1] == MAIN]
        at = heads[0] if heads else None
        ancestors = []
        while at in by_id:
            ancestors.append(by_id[at][2])
            at = by_id[at][1]
        return ancestors

    def refs(self) -> list[tuple[int, str]]:
        """Snapshots and names of branches and tags."""
        return self.sql(f"SELECT snapshot_id, name FROM {self.full_name}.refs")  # type: ignore[return-value]


def _refusal(err: Exception) -> Exception:
    """What Java said; procedures raise it as it is, statements wrap it."""
    java = getattr(err, "java_exception", None)
    if java is not None:
        return SparkRefused(java.getClass().getSimpleName(), str(java.getMessage()))
    return SparkRefused(type(err).__name__, str(err).partition("\n")[0])


# ------------------------------------------------------------------ publishing


def publish(handle: TableHandle, start: int | None, staged: int, run: str = "") -> int:
    """Let readers see a staged snapshot, if no other run has published since `start`.

    May be asked again after any failure: then it says what became of the first time.

    Args:
        handle: of the table.
        start: what `progress_of` was when the run began.
        staged: an append; if maintenance has changed the table since, its files are appended to what
            that left.
        run: of the staged snapshot; known if this is asked again when the snapshot may have expired.

    Returns: the snapshot that was published.
    Raises: Fenced, RolledBack, StagedIsGone, TableMoved: nothing was changed.
    """
    for _ in range(_ATTEMPTS):
        now = handle.load()
        assert now is not None
        at = progress_of(now.metadata)
        snapshot = now.metadata.snapshot_by_id(staged)
        run = run or (snapshot.summary[RUN] if snapshot and snapshot.summary else "") or ""
        if at is not None and _run_of(now.metadata, at) == run:
            return at
        if at != start:
            raise Fenced(f"progress is at {at}, the run began at {start}")
        if snapshot is None:
            raise StagedIsGone(str(staged))
        if is_rolled_back(now.metadata):
            raise RolledBack(f"progress is at {at}, main at {head_of(now.metadata)}")
        head, new, more = head_of(now.metadata), staged, ()
        if snapshot.parent_snapshot_id != head:
            if snapshot.summary.operation != Operation.APPEND:
                raise TableMoved(str(staged))
            after = rebased(now, staged)
            new, more = after.snapshot_id, (AddSnapshotUpdate(snapshot=after),)
        try:
            handle.commit(
                now,
                _requirements(now.metadata, head, start),
                (*more, _moved(MAIN, "branch", new), _moved(PROGRESS, "tag", new)),
            )
        except CommitFailedException:
            continue
        return new
    raise CommitFailedException(f"the table was changed {_ATTEMPTS} times")


def _run_of(metadata: TableMetadata, snapshot_id: int) -> str | None:
    snapshot = metadata.snapshot_by_id(snapshot_id)
    return snapshot.summary[RUN] if snapshot is not None and snapshot.summary else None


def _requirements(metadata: TableMetadata, head: int | None, start: int | None) -> tuple[Any, ...]:
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN, snapshot_id=head),
        AssertRefSnapshotId(ref=PROGRESS, snapshot_id=start),
    )


def _moved(name: str, kind: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    # A table may say for how long references live; that of progress never ends.
    age = {"max_ref_age_ms": _FOREVER_MS} if kind == "tag" else {}
    return SetSnapshotRefUpdate(ref_name=name, type=kind, snapshot_id=snapshot_id, **age)


def rebased(now: Loaded, staged: int) -> Any:
    """A snapshot like an appending one that was staged, on top of what the table holds now."""
    snapshot = now.metadata.snapshot_by_id(staged)
    assert snapshot is not None
    assert snapshot.summary is not None
    kept = {
        key: value
        for key, value in snapshot.summary.additional_properties.items()
        if key.startswith("gazette.")
    }
    table = Table(("", ""), now.metadata, "", now.io, NoopCatalog("none"))
    transaction = table.transaction()
    with transaction.update_snapshot(snapshot_properties=kept).fast_append() as append:
        for file in _added(snapshot, now.io):
            append.append_data_file(file)
    return transaction.table_metadata.current_snapshot()


def _added(snapshot: Any, io: FileIO) -> list[DataFile]:
    return [
        entry.data_file
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
