"""Dagster's entry: assets, the sensor, jobs and schedules of a platform.

`gazette up` starts Dagster with this module; so does ``dagster dev -w workspace.yaml`` with the
variables of `gazette_platform.lake.settings`. Rollups are there if their engine is configured.
"""

import os
from pathlib import Path

from dagster import AssetsDefinition, Definitions, definitions, in_process_executor

from gazette_platform.assets import (
    delays_by_month,
    raw_asset_specs,
    raw_checks,
    rollup_jobs,
    rollup_schedules,
    route_by_month,
)
from gazette_platform.lake import LakeSettings, load_table_specs
from gazette_platform.resources import platform_resources
from gazette_platform.sensors import catalog_sensor, fragments_sensor

__all__ = ["build_definitions", "defs"]


def build_definitions(settings: LakeSettings) -> Definitions:
    """The definitions of one platform.

    Table specs are read for the assets' descriptions; broken ones are left to the sensor to tell.
    """
    specs, _ = load_table_specs(Path(settings.tables)) if settings.tables else ({}, {})
    rollups: list[AssetsDefinition] = []
    resources = platform_resources(settings, specs=specs)
    if settings.trino:
        rollups.append(route_by_month)
    if "spark" in resources:
        rollups.append(delays_by_month)
    jobs = rollup_jobs(rollups)
    return Definitions(
        assets=[*raw_asset_specs(specs.values()), *rollups],
        asset_checks=raw_checks(specs.values()),
        jobs=list(jobs.values()),
        schedules=rollup_schedules(rollups, jobs),
        sensors=[fragments_sensor, catalog_sensor],
        resources=resources,
        # One step a run: a process of its own for it would only cost its imports.
        executor=in_process_executor,
    )


@definitions
def defs() -> Definitions:
    """The definitions of the platform that the environment names."""
    return build_definitions(LakeSettings.from_environment(os.environ))
