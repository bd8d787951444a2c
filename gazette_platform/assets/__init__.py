"""Dagster assets: raw tables and their journals (external), and the rollups of the demo.

A *raw table* is materialised by the sensor, one dynamic partition per Hive partition, without a run.
A *rollup* is materialised by runs that replace whole partitions, so that running one twice changes
nothing; a schedule asks for those whose source has changed.
"""

from gazette_platform.assets.checks import raw_checks
from gazette_platform.assets.freshness import SOURCE_KEY
from gazette_platform.assets.raw import (
    journals_key,
    journals_partitions,
    raw_asset_specs,
    table_key,
    table_partitions,
)
from gazette_platform.assets.rollups import delays_by_month, route_by_month
from gazette_platform.assets.schedules import rollup_jobs, rollup_schedules

__all__ = [
    "SOURCE_KEY",
    "delays_by_month",
    "journals_key",
    "journals_partitions",
    "raw_asset_specs",
    "raw_checks",
    "rollup_jobs",
    "rollup_schedules",
    "route_by_month",
    "table_key",
    "table_partitions",
]
