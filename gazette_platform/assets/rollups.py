"""Rollups of the demo's flights: one in Trino SQL, one in PySpark, both in Iceberg tables."""

from collections.abc import Mapping
from datetime import date, timedelta
from functools import reduce
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    FreshnessPolicy,
    MetadataValue,
    MonthlyPartitionsDefinition,
    RetryPolicy,
    StaticPartitionsDefinition,
    TableColumn,
    TableSchema,
    asset,
)
from dagster_pyspark import LazyPySparkResource

from gazette_platform.assets.freshness import SOURCE_KEY, source_version
from gazette_platform.assets.raw import table_key
from gazette_platform.lake.spark import prepare_environment
from gazette_platform.lake.sql import load_sql
from gazette_platform.resources import LakeResource, TrinoResource

__all__ = [
    "FLIGHTS",
    "FRESHNESS",
    "MONTHS",
    "ORIGINS",
    "delays_by_month",
    "of_origin",
    "route_by_month",
]

FLIGHTS: AssetKey = table_key("flights.flights")
ORIGINS = StaticPartitionsDefinition(["EWR", "JFK", "LGA"])
MONTHS = MonthlyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01")
# As the raw table's default: a rollup is made anew within minutes of new fragments.
FRESHNESS = FreshnessPolicy.time_window(
    fail_window=timedelta(hours=25), warn_window=timedelta(hours=13)
)
_DELAYS = "iceberg.rollups.delays_by_month"
_ROUTES = "iceberg.rollups.route_by_month"


def of_origin(origin: str, partition_key: str) -> bool:
    """Whether a partition of the raw table holds flights from `origin`."""
    return f"origin={origin}" in partition_key.split("/")


@asset(
    key=["rollups", "route_by_month"],
    deps=[FLIGHTS],
    partitions_def=ORIGINS,
    retry_policy=RetryPolicy(max_retries=1, delay=5),
    group_name="rollups",
    kinds={"trino", "iceberg"},
    freshness_policy=FRESHNESS,
    pool="iceberg.rollups.route_by_month",
    metadata={"dagster/table_name": _ROUTES},
)
def route_by_month(
    context: AssetExecutionContext, trino: TrinoResource, lake: LakeResource
) -> None:
    """Flights and mean delays of each route and month, by Trino; a partition per origin."""
    origins = list(context.partition_keys)
    versions = {
        origin: source_version(context.instance, FLIGHTS, lambda key, o=origin: of_origin(o, key))  # type: ignore[misc]
        for origin in origins
    }
    trino.query(load_sql("trino/route_by_month_schema.sql"))
    trino.query(load_sql("trino/route_by_month_table.sql"))
    for origin in origins:
        changed = trino.query(load_sql("trino/route_by_month.sql"), [origin, origin])
        context.log.info("%s: %s rows changed", origin, changed[0][0] if changed else 0)
    counts = {
        str(origin): (int(rows), int(flights))
        for origin, rows, flights in trino.query(load_sql("trino/route_by_month_count.sql"))
    }
    total = sum(rows for rows, _ in counts.values())
    columns = [
        TableColumn(name, kind)
        for name, kind, *_ in trino.query(load_sql("trino/route_by_month_describe.sql"))
    ]
    for origin in origins:
        rows, flights = counts.get(origin, (0, 0))
        context.add_asset_metadata(
            {
                "dagster/row_count": total,
                "dagster/partition_row_count": rows,
                "dagster/column_schema": TableSchema(columns=columns),
                "flights": flights,
                "trino": _link(lake.trino_ui),
                SOURCE_KEY: versions[origin],
            },
            partition_key=origin,
        )


@asset(
    key=["rollups", "delays_by_month"],
    deps=[FLIGHTS],
    partitions_def=MONTHS,
    retry_policy=RetryPolicy(max_retries=1, delay=5),
    group_name="rollups",
    kinds={"pyspark", "iceberg"},
    freshness_policy=FRESHNESS,
    pool="iceberg.rollups.delays_by_month",
    metadata={"dagster/table_name": _DELAYS},
)
def delays_by_month(
    context: AssetExecutionContext, spark: LazyPySparkResource, lake: LakeResource
) -> None:
    """Flights and mean delays of each month, by PySpark; a partition per month."""
    months = list(context.partition_keys)
    version = source_version(context.instance, FLIGHTS)
    prepare_environment()
    counts = write_delays(spark.spark_session, months)
    schema = TableSchema(
        columns=[
            TableColumn(field.name, field.dataType.simpleString())
            for field in spark.spark_session.table(_DELAYS).schema.fields
        ]
    )
    for month in months:
        flights = counts.get(month, 0)
        context.add_asset_metadata(
            {
                "dagster/partition_row_count": int(month in counts),
                "dagster/column_schema": schema,
                "flights": flights,
                "trino": _link(lake.trino_ui),
                SOURCE_KEY: version,
            },
            partition_key=month,
        )


def write_delays(session: Any, months: list[str]) -> Mapping[str, int]:
    """Replace the given months of delays_by_month, in one Iceberg commit.

    Args:
        session: a Spark session with the Iceberg catalog.
        months: first days, ISO, ascending.

    Returns: flights by month; months without any are left out.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415  loads Spark

    session.sql(load_sql("spark/delays_by_month_schema.sql"))
    session.sql(load_sql("spark/delays_by_month_table.sql"))
    frame = session.sql(
        load_sql("spark/delays_by_month.sql"), args={"first": months[0], "last": months[-1]}
    ).cache()
    try:
        counts = {
            date(row["year"], row["month"], 1).isoformat(): int(row["flights"])
            for row in frame.select("year", "month", "flights").collect()
        }
        # Whole Iceberg partitions are named, so that months without any flight left are removed as well.
        days = [date.fromisoformat(month) for month in months]
        named = [(f.col("year") == day.year) & (f.col("month") == day.month) for day in days]
        frame.coalesce(1).writeTo(_DELAYS).overwrite(reduce(lambda a, b: a | b, named))
    finally:
        frame.unpersist()
    return counts


def _link(trino_ui: str) -> MetadataValue:
    return MetadataValue.url(f"{trino_ui}/ui/") if trino_ui else MetadataValue.null()
