"""Dagster assets: raw tables and their journals (external), typed tables, and rollups.

A *raw table* is materialised by the sensor, one dynamic partition per time, without a run.
A *typed table* is run by Dagster or beside it, and reported by what it says of itself; its *backfills* are partitions.
A *rollup* is materialised by runs that make those of its slices again whose sources have changed, so
that running one twice changes nothing; automation asks for those whose sources have changed.
"""

from gazette_platform.assets.automation import DepsGood
from gazette_platform.assets.checks import raw_checks, refused_checks, specs_check
from gazette_platform.assets.jobs import job_name, rollup_definitions, typed_definitions
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
    RollupConfig,
    rollup_asset,
    rollup_key,
    rollups_asset_spec,
    rollups_check,
)
from gazette_platform.assets.source_marks import SOURCES_KEY
from gazette_platform.assets.typed import TypedConfig

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
