"""Typed tables with all that runs and keeps them: assets, jobs, their automation sensor, backfills and maintenance."""

from collections.abc import Iterable

from dagster import Definitions, define_asset_job

from gazette_platform.assets.automation import automation_sensors
from gazette_platform.assets.rollup_jobs import job_name
from gazette_platform.assets.typed import quarantine_asset_spec, typed_asset
from gazette_platform.assets.typed_backfill import backfill_asset
from gazette_platform.assets.typed_maintenance import (
    UpkeepEngine,
    maintenance_asset,
    typed_maintenance_schedule,
)
from gazette_platform.lake import TableSpec
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.spec.typed import TypedSpec


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
