"""Dagster assets: raw tables and their journals (external), typed tables, and rollups.

A *raw table* is materialised by the sensor, one dynamic partition per time, without a run.
A *typed table* is run by Dagster or beside it, and reported by what it says of itself; its *backfills* are partitions.
A *rollup* is materialised by runs that make those of its slices again whose sources have changed, so
that running one twice changes nothing; automation asks for those whose sources have changed.

Definitions of rollups and of typed tables are assets, jobs, automation sensors, backfills and maintenance.
"""

from collections.abc import Iterable, Mapping

from dagster import Definitions, define_asset_job

from gazette_platform.assets.automation import DepsGood, automation_sensors
from gazette_platform.assets.checks import SOURCES_KEY, raw_checks, refused_checks, specs_check
from gazette_platform.assets.maintenance import (
    UpkeepEngine,
    maintenance_asset,
    maintenance_job,
    maintenance_schedule,
    typed_maintenance_schedule,
)
from gazette_platform.assets.raw import (
    SPECS_KEY,
    journals_key,
    journals_partitions,
    raw_asset_specs,
    refused_asset_specs,
    specs_asset_spec,
    table_key,
    table_partitions,
)
from gazette_platform.assets.rollups import (
    ENGINE_RESOURCES,
    RollupConfig,
    rollup_asset,
    rollup_key,
    rollups_asset_spec,
    rollups_check,
)
from gazette_platform.assets.typed import (
    TypedConfig,
    backfill_asset,
    quarantine_asset_spec,
    typed_asset,
)
from gazette_platform.lake import TableSpec
from gazette_platform.lake.catalog_settings import ICEBERG
from gazette_platform.lake.rollups import PythonRollup, RollupSpec
from gazette_platform.lake.spec.typed import TypedSpec

__all__ = [
    "SOURCES_KEY",
    "SPECS_KEY",
    "DepsGood",
    "RollupConfig",
    "TypedConfig",
    "job_name",
    "journals_key",
    "journals_partitions",
    "raw_asset_specs",
    "raw_checks",
    "refused_asset_specs",
    "refused_checks",
    "rollup_asset",
    "rollup_definitions",
    "rollup_key",
    "rollups_asset_spec",
    "rollups_check",
    "specs_asset_spec",
    "specs_check",
    "table_key",
    "table_partitions",
    "typed_definitions",
]


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


def typed_definitions(
    pairs: Iterable[tuple[TableSpec, TypedSpec]],
    *,
    catalog: str = ICEBERG,
    spark: str = "",
    upkeep: UpkeepEngine | None = None,
) -> Definitions:
    """Assets and jobs of typed tables, the running sensor that asks for them, and their upkeep; without resources.

    Merge them, once, with definitions that have those of `platform_resources`.

    Args:
        pairs: raw tables, and the typed ones that are made of them.
        catalog: what Trino calls the catalog that they are in.
        spark: key of Spark's resource; empty: there is none, and runs read and write in their own process.
        upkeep: looks after tables; None: there is no engine for it.
    """
    given = list(pairs)
    assets = [typed_asset(raw, spec, catalog=catalog, spark=spark) for raw, spec in given]
    # Of a table with a key rows are not of single messages, so that no range of them can be made again.
    backfills = {
        spec.name: backfill_asset(raw, spec, spark=spark) for raw, spec in given if not spec.key
    }
    kept_up = [maintenance_asset(spec, upkeep) for _, spec in given] if upkeep is not None else []
    jobs = [
        define_asset_job(job_name(spec.name), selection=[made])
        for (_, spec), made in zip(given, assets, strict=True)
    ]
    jobs += [
        define_asset_job(job_name(f"{name}_backfill"), selection=[made])
        for name, made in backfills.items()
    ]
    return Definitions(
        assets=[
            *assets,
            *backfills.values(),
            *(quarantine_asset_spec(raw, spec, catalog=catalog) for raw, spec in given),
            *kept_up,
        ],
        jobs=jobs,
        sensors=automation_sensors(
            "typed_automation", "typed tables", [spec.name for _, spec in given if not spec.every_s]
        ),
        schedules=[typed_maintenance_schedule(kept_up)] if kept_up else [],
    )
