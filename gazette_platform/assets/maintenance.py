"""Maintenance of rollups and typed tables, once a night: merge small files, remove old snapshots and unreferenced files.

Rollups share a job; each typed table has an asset, so that Dagster plots its files and snapshots.

Optimizing, expiring and removing orphans are procedures of an engine. Progress of a typed table is a tag, which none of them touches,
so runs go on after all of it, and beside it. What engines do not know is done here, in this order:

1. *Quarantine is settled first.* Records that the newest run has set aside are in files that only a list beside the table
   names: orphans to every engine.
2. *Whoever began long ago is fenced.* Files of workers are orphans until they are published, and publishing looks at no
   file. A run that was held up for longer than orphans are kept would publish files that are gone, if no run has
   published since it began. So an empty run is published then, from the state that there is: it moves the tag. Amendments,
   which go on top of runs, write their files up to `LATE_S` before what they are fenced by.
3. *Files beside the table* that no snapshot names any more, states and lists, are removed as orphans are.

A table that is written every few seconds has thousands of snapshots a day, and every metadata file lists them all. So they
expire by number as well as by age.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from dagster import (
    AssetExecutionContext,
    AssetObservation,
    AssetsDefinition,
    DefaultScheduleStatus,
    Failure,
    JobDefinition,
    MaterializeResult,
    MetadataValue,
    OpExecutionContext,
    RetryPolicy,
    ScheduleDefinition,
    asset,
    define_asset_job,
    graph,
    op,
)
from pyiceberg.table.metadata import TableMetadata

from gazette_platform.assets.rollups import ENGINE_RESOURCES, engine_of, rollup_key
from gazette_platform.assets.typed_events import maintenance_key, typed_key
from gazette_platform.errors import GazetteError, LakeError, TableFenced
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.engines.spark import prepare_environment
from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
from gazette_platform.lake.iceberg.metastore import deleting
from gazette_platform.lake.iceberg.publishing import (
    QUARANTINE,
    RUN,
    head_of,
    progress_of,
    publish_files,
    require_progress,
    summary_of,
)
from gazette_platform.lake.iceberg.snapshots import (
    RETAINED_S,
    maintenance_statements,
    unnamed_files,
)
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.engines import RollupEngine
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.typed.runs.amending import LATE_S
from gazette_platform.lake.typed.tables.progress import OLDEST_AT, READ_BYTES, SECONDS
from gazette_platform.lake.typed.tables.quarantine import settle_quarantine
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from dagster import RawMetadataValue

ORPHANS_S: Final = 24 * 3600.0
"""Seconds for which unreferenced files are kept: longer than any run takes. The least that Spark allows."""

_SNAPSHOTS_MAX: Final = 2000
# Readers of an old snapshot, and runs that replace rows, have that long at least.
_SNAPSHOTS_S_MIN: Final = 6 * 3600.0
# Clocks of catalogs, stores and this process may differ.
_CLOCKS_S: Final = 3600.0
# Properties of snapshots that are ours.
_OURS: Final = "gazette."
# Of these, what is of the run that published one, and not of the table: an empty run has read nothing.
_OF_A_RUN: Final = frozenset((RUN, QUARANTINE, READ_BYTES, SECONDS, OLDEST_AT))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What was done to one table."""

    name: str
    """``schema.table``."""
    files_before: int = 0
    files: int = 0
    bytes_before: int = 0
    """Of data files, as they are stored."""
    bytes: int = 0
    snapshots_before: int = 0
    snapshots: int = 0
    orphans: int | None = None
    """Unreferenced files that were removed; None: the engine does not say."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TypedMaintenance:
    """What was done to a typed table and to its quarantine."""

    table: Upkeep
    quarantine: Upkeep | None
    """None: there is no such table."""
    is_fenced: bool
    """Whether an empty run was published, so that whoever began long ago is refused."""
    side_files: int
    """Files beside the table that were removed."""
    undeleted: tuple[str, ...] = ()
    """Those that could not be, with the reason; tried again next time."""


def maintain_typed(
    handle: TableHandle,
    quarantine: TableHandle,
    engine: RollupEngine,
    *,
    now_s: float,
    catalog: str = ICEBERG,
    orphans_s: float = ORPHANS_S,
    snapshots_max: int = _SNAPSHOTS_MAX,
) -> TypedMaintenance | None:
    """Look after a typed table and its quarantine.

    Args:
        handle: of the typed table.
        quarantine: of its quarantine table, which need not exist.
        engine: that has both in a catalog.
        now_s: unix seconds.
        catalog: what the engine calls that.
        orphans_s: as `ORPHANS_S`.
        snapshots_max: how many snapshots are kept, if they are old enough.

    Returns: what was done; None: nothing was published to it yet.
    Raises: LakeError: the engine or the catalog cannot be reached, or refused; what was done before holds.
        TypedRolledBack, TypedProgressGone: a person has to look.
    """
    loaded = handle.load()
    if loaded is None or progress_of(loaded.metadata) is None:
        return None
    # Optimized, and expired, it would not be seen any more that it was rolled back.
    require_progress(loaded.metadata, handle.name)
    has_quarantine = quarantine.load() is not None
    if has_quarantine:
        # Only now, behind the look at the table: what was pending then is settled.
        settle_quarantine(handle, quarantine)
    is_fenced = fence_before(handle, loaded, now_s - orphans_s + LATE_S + _CLOCKS_S)
    names = [handle, quarantine] if has_quarantine else [handle]
    done = [
        _kept_up(
            one,
            engine,
            catalog,
            now_s=now_s,
            orphans_s=orphans_s,
            snapshots_s=keeping_s(_metadata(one), now_s, snapshots_max),
        )
        for one in names
    ]
    stale = unnamed_files(handle, now_s=now_s, older_than_s=orphans_s)
    undeleted = tuple(deleting(lambda _: loaded.io, stale))
    return TypedMaintenance(
        table=done[0],
        quarantine=done[1] if has_quarantine else None,
        is_fenced=is_fenced,
        side_files=len(stale) - len(undeleted),
        undeleted=undeleted,
    )


def fence_before(handle: TableHandle, loaded: Loaded, began_s: float) -> bool:
    """See that no run that began before an instant can publish any more.

    Args:
        handle: of the table.
        loaded: the table, to which something was published. Its quarantine was settled since it was loaded.
        began_s: unix seconds.

    Returns: whether an empty run was published; else another run has published since.
    Raises: LakeError, TypedRolledBack, TypedProgressGone: as `publish_files` does.
    """
    start = progress_of(loaded.metadata)
    assert start is not None  # the caller has looked
    snapshot = loaded.metadata.snapshot_by_id(start)
    if snapshot is not None and snapshot.timestamp_ms / 1000 >= began_s:
        return False
    # What the newest run says of the table holds on: nothing was read since. What it quarantined is settled.
    told = summary_of(loaded.metadata, start).items()
    same = {key: value for key, value in told if key.startswith(_OURS) and key not in _OF_A_RUN}
    try:
        publish_files(handle, start, [], uuid.uuid4().hex, same)
    except TableFenced:
        return False  # another run has, at this moment
    return True


def keeping_s(metadata: TableMetadata, now_s: float, snapshots_max: int = _SNAPSHOTS_MAX) -> float:
    """For how many seconds snapshots are to be kept, so that not too many are."""
    ages = sorted(now_s - one.timestamp_ms / 1000 for one in metadata.snapshots)
    by_number = ages[snapshots_max - 1] if len(ages) > snapshots_max else RETAINED_S
    return min(RETAINED_S, max(_SNAPSHOTS_S_MIN, by_number))


def _kept_up(
    handle: TableHandle,
    engine: RollupEngine,
    catalog: str,
    *,
    now_s: float,
    orphans_s: float,
    snapshots_s: float,
) -> Upkeep:
    before = _metadata(handle)
    if engine.dialect == "trino":
        snapshots_s = orphans_s = RETAINED_S  # the least that it allows
    rows: Sequence[object] = ()
    for statement in maintenance_statements(
        engine.dialect,
        handle.name,
        now_s=now_s,
        snapshots_s=snapshots_s,
        orphans_s=orphans_s,
        catalog=catalog,
    ):
        rows = engine.execute(statement)
    after = _metadata(handle)
    files, size = _stored(after)
    files_before, size_before = _stored(before)
    return Upkeep(
        name=handle.name,
        files_before=files_before,
        files=files,
        bytes_before=size_before,
        bytes=size,
        snapshots_before=len(before.snapshots),
        snapshots=len(after.snapshots),
        # Spark's procedure gives a row of each.
        orphans=len(rows) if engine.dialect == "spark" else None,
    )


def _metadata(handle: TableHandle) -> TableMetadata:
    loaded = handle.load()
    if loaded is None:
        raise LakeError(f"{handle.name} was dropped while it was looked after")
    return loaded.metadata


def _stored(metadata: TableMetadata) -> tuple[int, int]:
    """Data files and their bytes, as the newest snapshot says."""
    told = summary_of(metadata, head_of(metadata))
    return int(told.get("total-data-files", 0)), int(told.get("total-files-size", 0))


# It reads and writes whole tables: a run that takes longer than a day is not to meet the next one. Runs of rollups may
# cross it, so they have pools of their own.
MAINTENANCE_POOL = "iceberg.maintenance"
_JOB = "rollup_maintenance"
# At night, and not at the full hour, when other jobs begin.
_CRON = "17 3 * * *"


def maintenance_job(
    specs: Sequence[RollupSpec], engines: Mapping[str, str] = ENGINE_RESOURCES
) -> JobDefinition:
    """The job; needs resources ``lake``, ``metastore`` and those of the rollups' engines.

    What was done to each rollup is an observation of its asset. One that fails holds up no other.
    """
    needed = {engines[spec.engine] for spec in specs}

    @op(
        name="maintain_rollups",
        pool=MAINTENANCE_POOL,
        required_resource_keys={"lake", "metastore", *needed},
    )
    def maintain_rollups(context: OpExecutionContext) -> None:
        from gazette_platform.lake.rollups.table import maintain  # noqa: PLC0415  slow

        tables = context.resources.lake.iceberg_tables(context.resources.metastore.client())
        errors = []
        for spec in specs:
            try:
                engine = engine_of(context.resources, engines[spec.engine], spec)
                done = maintain(
                    tables,
                    engine.dialect,
                    engine.execute,
                    spec,
                    now_s=SystemClock().unix_s(),
                    catalogs=engine.catalogs,
                )
            except GazetteError as err:
                context.log.exception("%s", spec.name)
                errors.append(f"{spec.name}: {err}")
                continue
            if done is None:
                continue
            context.log_event(
                AssetObservation(
                    rollup_key(spec.name),
                    metadata={
                        "snapshots_expired": max(0, done.snapshots_before - done.snapshots),
                        "snapshots": done.snapshots,
                        "files_before": done.files_before,
                        "files": done.files,
                        "undeleted": len(done.undeleted),
                    },
                )
            )
        if errors:
            raise Failure("\n".join(errors))

    @graph(name=_JOB)
    def all_rollups() -> None:
        maintain_rollups()

    return all_rollups.to_job(
        description="Merges small files of rollups, expires snapshots and removes unreferenced files."
    )


def maintenance_schedule() -> ScheduleDefinition:
    """Runs the job each night."""
    return ScheduleDefinition(
        name=f"{_JOB}_schedule",
        job_name=_JOB,
        cron_schedule=_CRON,
        default_status=DefaultScheduleStatus.RUNNING,
    )


_TYPED_JOB = "typed_maintenance"
# After that of rollups, which shares the pool.
_TYPED_CRON = "47 3 * * *"
_TYPED_TEXT = """\
Maintenance of {name} and its quarantine: merges small files, expires snapshots and removes unreferenced files. \
It runs each night; runs of the table continue meanwhile, and their progress is kept."""


class UpkeepEngine(NamedTuple):
    """Who looks after tables."""

    dialect: str
    """``spark`` or ``trino``."""
    resource: str
    """Key of its resource."""


def maintenance_asset(spec: TypedSpec, engine: UpkeepEngine) -> AssetsDefinition:
    """The upkeep of a typed table; needs resources ``lake``, ``metastore`` and that of the engine."""

    @asset(
        key=maintenance_key(spec),
        deps=[typed_key(spec)],
        description=_TYPED_TEXT.format(name=spec.name),
        group_name="maintenance",
        kinds={"iceberg", "pyspark" if engine.dialect == "spark" else "trino"},
        pool=MAINTENANCE_POOL,
        retry_policy=RetryPolicy(max_retries=1, delay=60),
        required_resource_keys={"lake", "metastore", engine.resource},
    )
    def maintain(context: AssetExecutionContext) -> MaterializeResult[None]:
        # Slow to import, and every process that loads definitions loads this module.
        from gazette_platform.assets.maintenance import maintain_typed  # noqa: PLC0415

        tables = context.resources.lake.typed_catalog(context.resources.metastore.client())
        used = _upkeep_engine(context.resources, engine)
        done = maintain_typed(
            tables.handle(spec.name),
            tables.handle(spec.quarantine),
            used,
            now_s=SystemClock().unix_s(),
            catalog=tables.name if used.dialect == "spark" else used.catalogs.typed,
        )
        if done is None:
            context.log.info("%s: nothing was published to it yet", spec.name)
            return MaterializeResult()
        return MaterializeResult(metadata=_upkeep_metadata(done))

    return maintain


def typed_maintenance_schedule(assets: Sequence[AssetsDefinition]) -> ScheduleDefinition:
    """Runs the job of all of them each night. One that fails holds up no other."""
    job = define_asset_job(
        _TYPED_JOB, selection=list(assets), description="Maintains all typed tables, one by one."
    )
    return ScheduleDefinition(
        name=f"{_TYPED_JOB}_schedule",
        job=job,
        cron_schedule=_TYPED_CRON,
        default_status=DefaultScheduleStatus.RUNNING,
    )


def _upkeep_engine(resources: Any, engine: UpkeepEngine) -> RollupEngine:
    from gazette_platform.lake.rollups.engines import SparkEngine, TrinoEngine  # noqa: PLC0415

    resource = getattr(resources, engine.resource)
    if engine.dialect == "trino":
        return TrinoEngine(resource, resource.catalogs)
    prepare_environment()
    return SparkEngine(resource.spark_session)


def _upkeep_metadata(done: TypedMaintenance) -> dict[str, "RawMetadataValue"]:
    """What was done, as numbers that Dagster plots."""
    metadata: dict[str, RawMetadataValue] = {
        **_of_table(done.table, ""),
        "is_fenced": done.is_fenced,
        "side_files_removed": done.side_files,
        "undeleted": len(done.undeleted),
    }
    if done.quarantine is not None:
        metadata |= _of_table(done.quarantine, "quarantine_")
    if done.undeleted:
        metadata["undeleted_files"] = MetadataValue.text("\n".join(done.undeleted[:50]))
    return metadata


def _of_table(done: Upkeep, prefix: str) -> dict[str, "RawMetadataValue"]:
    found: dict[str, RawMetadataValue] = {
        "files_before": done.files_before,
        "files": done.files,
        "bytes_before": done.bytes_before,
        "bytes": done.bytes,
        "snapshots_before": done.snapshots_before,
        "snapshots": done.snapshots,
        "snapshots_expired": max(0, done.snapshots_before - done.snapshots),
    }
    if done.orphans is not None:
        found["orphans_removed"] = done.orphans
    return {f"{prefix}{key}": value for key, value in found.items()}
