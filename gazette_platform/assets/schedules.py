"""Every minute: run the rollups whose source has changed, and no other."""

from collections.abc import Mapping

from dagster import (
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    DefaultScheduleStatus,
    PartitionsDefinition,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    schedule,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from gazette_platform.assets.freshness import has_unfinished_run, noted_version, source_version
from gazette_platform.assets.rollups import FLIGHTS, MONTHS, ORIGINS, of_origin

__all__ = ["rollup_jobs", "rollup_schedules", "stale_partitions"]

_RANGE_START = "dagster/asset_partition_range_start"
_RANGE_END = "dagster/asset_partition_range_end"


def rollup_jobs(rollups: list[AssetsDefinition]) -> dict[str, UnresolvedAssetJobDefinition]:
    """One job per rollup, by the name of its table."""
    return {
        rollup.key.path[-1]: define_asset_job(
            rollup.key.path[-1], selection=AssetSelection.assets(rollup.key)
        )
        for rollup in rollups
    }


def rollup_schedules(
    rollups: list[AssetsDefinition], jobs: Mapping[str, UnresolvedAssetJobDefinition]
) -> list[ScheduleDefinition]:
    """One schedule per rollup, running from the start, over its job of `rollup_jobs`."""
    return [_schedule(rollup, jobs[rollup.key.path[-1]]) for rollup in rollups]


def stale_partitions(instance: DagsterInstance, rollup: AssetsDefinition) -> list[str]:
    """Partitions of `rollup` that were made from another state of their source, in order."""
    partitions: PartitionsDefinition | None = rollup.partitions_def
    if partitions == ORIGINS:
        return [
            origin
            for origin in ORIGINS.get_partition_keys()
            if (version := source_version(instance, FLIGHTS, lambda k, o=origin: of_origin(o, k)))  # type: ignore[misc]
            and version != noted_version(instance, rollup.key, origin)
        ]
    version = source_version(instance, FLIGHTS)
    if not version:
        return []
    return [
        month
        for month in MONTHS.get_partition_keys()
        if version != noted_version(instance, rollup.key, month)
    ]


def _schedule(rollup: AssetsDefinition, job: UnresolvedAssetJobDefinition) -> ScheduleDefinition:
    name = rollup.key.path[-1]

    @schedule(
        name=f"{name}_schedule",
        cron_schedule="* * * * *",
        job=job,
        default_status=DefaultScheduleStatus.RUNNING,
        description=f"Runs {name} when flights.flights has changed.",
    )
    def evaluate(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        if has_unfinished_run(context.instance, name):
            return SkipReason(f"A run of {name} is under way; the next tick looks again.")
        stale = stale_partitions(context.instance, rollup)
        if not stale:
            return SkipReason("Nothing is new in flights.flights.")
        return RunRequest(tags={_RANGE_START: stale[0], _RANGE_END: stale[-1]})

    return evaluate
