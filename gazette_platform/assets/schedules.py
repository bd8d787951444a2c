"""Schedules of rollups: run those whose sources have changed, and no other."""

from collections.abc import Iterable

from dagster import (
    DefaultScheduleStatus,
    Definitions,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    schedule,
)

from gazette_platform.assets.freshness import has_unfinished_run, noted_mark, sources_mark
from gazette_platform.assets.maintenance import maintenance_job, maintenance_schedule
from gazette_platform.assets.rollups import rollup_asset, rollup_key
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.rollups import PythonRollup, RollupSpec

__all__ = ["job_name", "rollup_definitions"]


def rollup_definitions(
    rollups: Iterable[RollupSpec | PythonRollup], *, catalog: str = ICEBERG
) -> Definitions:
    """Assets, jobs and running schedules of rollups, and of their maintenance; without resources.

    Merge them, once, with definitions that have those of `platform_resources`.

    Args:
        rollups: what to make.
        catalog: what Trino calls the catalog that they are in.
    """
    given = list(rollups)
    specs = [one.spec if isinstance(one, PythonRollup) else one for one in given]
    assets = [rollup_asset(one, catalog=catalog) for one in given]
    jobs = [
        define_asset_job(job_name(spec.name), selection=[made])
        for spec, made in zip(specs, assets, strict=True)
    ]
    return Definitions(
        assets=assets,
        jobs=[*jobs, *([maintenance_job(specs)] if specs else [])],
        schedules=[
            *(_schedule(spec) for spec in specs),
            *([maintenance_schedule()] if specs else []),
        ],
    )


def job_name(rollup: str) -> str:
    """Name of the job that makes the rollup ``schema.table``."""
    return f"{rollup.replace('.', '__')}_job"  # without the end it would be that of an op


def _schedule(spec: RollupSpec) -> ScheduleDefinition:
    name = job_name(spec.name)

    @schedule(
        name=f"{spec.name.replace('.', '__')}_schedule",
        cron_schedule=spec.cron,
        job_name=name,
        default_status=DefaultScheduleStatus.RUNNING,
        description=f"Runs {spec.name} when {', '.join(sorted(spec.sources.values()))} has changed.",
    )
    def evaluate(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        if has_unfinished_run(context.instance, name):
            return SkipReason(f"A run of {name} is under way; the next tick looks again.")
        mark = sources_mark(context.instance, spec)
        if not mark:
            return SkipReason("Not all of its sources are there yet.")
        if mark == noted_mark(context.instance, rollup_key(spec.name)):
            return SkipReason(f"Nothing is new in {', '.join(sorted(spec.sources.values()))}.")
        return RunRequest()

    return evaluate
