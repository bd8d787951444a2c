"""Dagster's entry: assets, the sensor, jobs and schedules of a platform.

`gazette up` starts Dagster with this module; so does ``dagster dev -w workspace.yaml`` with the
variables of `gazette_platform.lake.settings`. Rollups are there if their engine is configured.
"""

import os
from pathlib import Path

from dagster import Definitions, definitions, in_process_executor

from gazette_platform.assets import raw_asset_specs, raw_checks, rollup_definitions
from gazette_platform.assets.rollups import ENGINE_RESOURCES
from gazette_platform.lake import LakeSettings, load_table_specs
from gazette_platform.resources import load_rollups, platform_resources
from gazette_platform.sensors import catalog_sensor, fragments_sensor

__all__ = ["build_definitions", "defs"]


def build_definitions(settings: LakeSettings) -> Definitions:
    """The definitions of one platform.

    Table specs and rollups are read for the assets; broken ones are left to the sensors to tell.
    """
    specs, _ = load_table_specs(Path(settings.tables)) if settings.tables else ({}, {})
    rollups, _ = load_rollups(settings.rollups, specs)
    resources = platform_resources(settings, specs=specs, rollups=rollups)
    engines = {"trino"} if settings.trino else set()
    engines |= {"spark"} if settings.metastore and settings.iceberg_jar else set()
    runnable = [r for r in rollups.values() if ENGINE_RESOURCES[r.engine] in engines]
    return Definitions.merge(
        Definitions(
            assets=raw_asset_specs(specs.values()),
            asset_checks=raw_checks(specs.values()),
            sensors=[fragments_sensor, catalog_sensor],
            resources=resources,
            # One step a run: a process of its own for it would only cost its imports.
            executor=in_process_executor,
        ),
        rollup_definitions(runnable),
    )


@definitions
def defs() -> Definitions:
    """The definitions of the platform that the environment names."""
    return build_definitions(LakeSettings.from_environment(os.environ))
