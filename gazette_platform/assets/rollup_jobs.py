"""Rollups with all that makes and keeps them: assets, jobs, their automation sensor and maintenance."""

from collections.abc import Iterable, Mapping

from dagster import Definitions, define_asset_job

from gazette_platform.assets.automation import automation_sensors
from gazette_platform.assets.maintenance import maintenance_job, maintenance_schedule
from gazette_platform.assets.rollups import ENGINE_RESOURCES, rollup_asset
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.rollups import PythonRollup, RollupSpec


def rollup_definitions(
    rollups: Iterable[RollupSpec | PythonRollup],
    *,
    catalog: str = ICEBERG,
    engines: Mapping[str, str] = ENGINE_RESOURCES,
) -> Definitions:
    """Assets and jobs of rollups, the running sensor that asks for them, and their maintenance; without resources.

    Merge them, once, with definitions that have those of `platform_resources`.

    Args:
        rollups: what to make.
        catalog: what Trino calls the catalog that they are in.
        engines: keys of resources by engine.
    """
    given = list(rollups)
    specs = [one.spec if isinstance(one, PythonRollup) else one for one in given]
    assets = [rollup_asset(one, catalog=catalog, engines=engines) for one in given]
    jobs = [
        define_asset_job(job_name(spec.name), selection=[made])
        for spec, made in zip(specs, assets, strict=True)
    ]
    return Definitions(
        assets=assets,
        jobs=[*jobs, *([maintenance_job(specs, engines)] if specs else [])],
        sensors=automation_sensors("rollup_automation", "rollups", [spec.name for spec in specs]),
        schedules=[maintenance_schedule()] if specs else [],
    )


def job_name(rollup: str) -> str:
    """Name of the job that makes the rollup ``schema.table``."""
    return f"{rollup.replace('.', '__')}_job"  # without the end it would be that of an op
