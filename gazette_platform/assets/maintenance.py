"""Maintenance of rollups and typed tables, once a night: merge small files, remove old snapshots and unreferenced files.

Rollups share a job; each typed table has an asset, so that Dagster plots its files and snapshots. `lake.rollups.table` and
`lake.typed.runs.maintenance` do the work.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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

from gazette_platform.assets.rollups import ENGINE_RESOURCES, engine_of, rollup_key
from gazette_platform.assets.typed_events import maintenance_key, typed_key
from gazette_platform.errors import GazetteError
from gazette_platform.lake.engines.spark import prepare_environment
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.engines import RollupEngine
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from dagster import RawMetadataValue

    from gazette_platform.lake.typed.runs.maintenance import TypedMaintenance, Upkeep

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
        from gazette_platform.lake.typed.runs.maintenance import maintain_typed  # noqa: PLC0415  slow

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


def _upkeep_metadata(done: "TypedMaintenance") -> dict[str, "RawMetadataValue"]:
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


def _of_table(done: "Upkeep", prefix: str) -> dict[str, "RawMetadataValue"]:
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
