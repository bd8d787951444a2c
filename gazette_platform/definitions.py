"""Dagster's entry: assets, sensors and jobs of a platform.

`gazette up` starts Dagster with this module; so does ``dagster dev -w workspace.yaml`` with the
variables of `gazette_platform.lake.settings`. Projects of users' own call `lake_definitions`, or have a
`gazette_platform.components.GazetteLake` do so.
"""

import os
from collections.abc import Container, Iterable, Mapping, Sequence
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
    typed_definitions,
)
from gazette_platform.assets.maintenance import UpkeepEngine
from gazette_platform.assets.rollups import ENGINE_RESOURCES
from gazette_platform.assets.typed_events import typed_pairs
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings, SpecFolder, read_spec_folder
from gazette_platform.lake.rollups import PythonRollup, read_rollup_folder
from gazette_platform.resources import platform_resources
from gazette_platform.sensors import catalog_sensor, fragments_sensors, typed_sensor


def lake_definitions(
    settings: LakeSettings | None = None,
    *,
    functions: Sequence[PythonRollup] = (),
    engines: Mapping[str, str] | None = None,
) -> Definitions:
    """All of a lake, to be merged once with what else a project has: raw and typed tables, checks, sensors and rollups.

    Table specs and rollups are read for the assets. Of table specs that are refused there are assets as
    well, with a check that is red; so has the folder of rollups. Rollups exist if their engine is configured; typed
    tables are in any case, and are run by Spark if that is.

    Args:
        settings: where all is; None: as the environment says.
        functions: rollups in Python, beside those of the folder.
        engines: by ``trino`` and ``spark``, key of a resource that the project has, to be used in place of the one
            that comes with the definitions: a `TrinoResource`, and one with a `spark_session`.

    Raises: ValidationError: two rollups, or a rollup and a table or view of a table spec, have one name; an engine is not
        known; there is no such number of sensors; or the environment is malformed.
    """
    settings = settings or LakeSettings.from_environment(os.environ)
    own = dict(engines or {})
    for name in own.keys() - {"trino", "spark"}:
        raise ValidationError(f"{name!r} is not an engine; use trino or spark", path="engines")
    folder = read_spec_folder(Path(settings.tables)) if settings.tables else SpecFolder()
    specs, refused = folder.specs.values(), folder.refused.values()
    rollups = read_rollup_folder(settings.rollups, folder.tables)
    _check_names(functions, folder.tables | rollups.specs.keys())
    resources = platform_resources(settings, folder=folder, rollups=rollups)
    configured = set(own)
    configured |= {"trino"} if settings.trino else set()
    configured |= {"spark"} if settings.metastore and settings.iceberg_jar else set()
    runnable = [r for r in rollups.specs.values() if ENGINE_RESOURCES[r.engine] in configured]
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
            sensors=[
                *fragments_sensors(settings.fragment_sensors, folder),
                typed_sensor(typed_pairs(specs)),
                catalog_sensor,
            ],
            resources={key: value for key, value in resources.items() if key not in own},
        ),
        rollup_definitions(
            [*runnable, *(functions if "spark" in configured else [])],
            catalog=settings.trino_catalogs.iceberg,
            engines={name: own.get(key, key) for name, key in ENGINE_RESOURCES.items()},
        ),
        typed_definitions(
            typed_pairs(specs),
            catalog=settings.trino_catalogs.typed,
            spark=own.get("spark", "spark") if "spark" in configured else "",
            upkeep=next(
                (
                    UpkeepEngine(name, own.get(name, name))
                    for name in ("spark", "trino")
                    if name in configured
                ),
                None,
            ),
        ),
    )


def _check_names(functions: Iterable[PythonRollup], taken: Container[str]) -> None:
    seen: set[str] = set()
    for name in (function.spec.name for function in functions):
        if name in taken or name in seen:
            raise ValidationError(
                f"there is a table or rollup {name} already: give the function another name",
                path=name,
            )
        seen.add(name)


def build_definitions(settings: LakeSettings) -> Definitions:
    """The definitions of a platform that has Dagster to itself."""
    # One step a run: a process of its own for it would only cost its imports.
    return Definitions.merge(lake_definitions(settings), Definitions(executor=in_process_executor))


@definitions
def defs() -> Definitions:
    """The definitions of the platform that the environment names."""
    return build_definitions(LakeSettings.from_environment(os.environ))
