"""Dagster's entry: assets, the sensor, jobs and schedules of a platform.

`gazette up` starts Dagster with this module; so does ``dagster dev -w workspace.yaml`` with the
variables of `gazette_platform.lake.settings`. Rollups are there if their engine is configured.
"""

import os
from pathlib import Path

from dagster import Definitions, definitions, in_process_executor

from gazette_platform.assets import (
    raw_asset_specs,
    raw_checks,
    refused_asset_specs,
    refused_checks,
    rollup_definitions,
    rollups_asset_spec,
    rollups_check,
    specs_asset_spec,
    specs_check,
)
from gazette_platform.assets.rollups import ENGINE_RESOURCES
from gazette_platform.lake import LakeSettings, SpecFolder, read_spec_folder
from gazette_platform.lake.rollups import read_rollup_folder
from gazette_platform.resources import platform_resources
from gazette_platform.sensors import catalog_sensor, fragments_sensor

__all__ = ["build_definitions", "defs"]


def build_definitions(settings: LakeSettings) -> Definitions:
    """The definitions of one platform.

    Table specs and rollups are read for the assets. Of table specs that are refused there are assets as
    well, with a check that is red; so has the folder of rollups.
    """
    folder = read_spec_folder(Path(settings.tables)) if settings.tables else SpecFolder()
    specs, refused = folder.specs.values(), folder.refused.values()
    rollups = read_rollup_folder(settings.rollups, folder.specs)
    resources = platform_resources(settings, folder=folder, rollups=rollups)
    engines = {"trino"} if settings.trino else set()
    engines |= {"spark"} if settings.metastore and settings.iceberg_jar else set()
    runnable = [r for r in rollups.specs.values() if ENGINE_RESOURCES[r.engine] in engines]
    return Definitions.merge(
        Definitions(
            assets=[
                specs_asset_spec(),
                *raw_asset_specs(specs, catalog=settings.trino_catalogs.hive),
                *refused_asset_specs(refused),
                *([rollups_asset_spec()] if settings.rollups else []),
            ],
            asset_checks=[
                specs_check(),
                *raw_checks(specs),
                *refused_checks(refused),
                *([rollups_check()] if settings.rollups else []),
            ],
            sensors=[fragments_sensor, catalog_sensor],
            resources=resources,
            # One step a run: a process of its own for it would only cost its imports.
            executor=in_process_executor,
        ),
        rollup_definitions(runnable, catalog=settings.trino_catalogs.iceberg),
    )


@definitions
def defs() -> Definitions:
    """The definitions of the platform that the environment names."""
    return build_definitions(LakeSettings.from_environment(os.environ))
