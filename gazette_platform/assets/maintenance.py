"""Once a day: merge small files of rollups, and remove old snapshots and unreferenced files."""

from collections.abc import Mapping, Sequence

from dagster import (
    AssetObservation,
    DefaultScheduleStatus,
    Failure,
    JobDefinition,
    OpExecutionContext,
    ScheduleDefinition,
    graph,
    op,
)

from gazette_platform.assets.rollups import ENGINE_RESOURCES, engine_of, rollup_key
from gazette_platform.errors import GazetteError
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.ops.clock import SystemClock

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
