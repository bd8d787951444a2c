"""Typed tables as assets: each of a spec, with its quarantine and its checks.

A typed table is an asset without partitions, since what a run reads is decided by offsets. Its data version is that of its
rows, so a run that finds nothing triggers nothing downstream. How it is run is said by its spec: when its raw table has
changed, or by the clock, by runs of Dagster's; or without end, by a process beside Dagster, which the sensor `typed`
says. Both are reported in the same way: see `gazette_platform.assets.typed_events`.
"""

from collections.abc import Iterator
from datetime import timedelta

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    Config,
    FreshnessPolicy,
    MaterializeResult,
    RetryPolicy,
    multi_asset,
)
from pydantic import Field

from gazette_platform.assets.automation import typed_condition
from gazette_platform.assets.raw import table_key
from gazette_platform.assets.typed_events import COMPLETE_CHECK, FRESH_CHECK, QUARANTINE_CHECK
from gazette_platform.assets.typed_keys import (
    TypedSources,
    column_schema,
    pool_of,
    quarantine_key,
    typed_key,
)
from gazette_platform.assets.typed_runs import look_at_table, run_table
from gazette_platform.lake import TableSpec
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.spec.typed import TypedSpec

_CHECKS = {
    COMPLETE_CHECK: "Each committed message is exactly once in the table or in quarantine.",
    QUARANTINE_CHECK: "No record is in quarantine.",
    FRESH_CHECK: "Stored content reaches the table in time, and all of it can be read.",
}
_TEXT = """\
{comment}

Typed table of the committed messages of the journals `{selector}`. {how}"""


class TypedConfig(Config):
    """How a run is to be different from others."""

    given_up: dict[str, int] = Field(
        default_factory=dict,
        description="For each journal, the offset up to which to skip missing content. Its rows will never exist.",
    )
    begin_anew: dict[str, int] = Field(
        default_factory=dict,
        description="For each journal that was deleted and created again, the offset to read from. Rows of the former journal stay.",
    )


def typed_asset(
    raw: TableSpec, spec: TypedSpec, *, catalog: str = ICEBERG, spark: str = ""
) -> AssetsDefinition:
    """The asset of a typed table; needs resources ``lake``, ``metastore``, ``broker`` and that of Spark.

    Args:
        raw: the raw table.
        spec: of the typed one.
        catalog: what Trino calls the catalog that it is in.
        spark: key of the resource; empty: there is no Spark, and runs read and write in their own process.
    """
    key = typed_key(spec)

    # The checks can be had alone, without a run.
    @multi_asset(
        name="__".join(key.path),
        specs=[
            AssetSpec(
                key,
                deps=[table_key(raw.name)],
                description=_TEXT.format(
                    comment=raw.comment, selector=raw.selector, how=_how(spec)
                ).strip(),
                group_name="typed",
                kinds={"iceberg", "pyspark" if spark else "python"},
                owners=raw.owners,
                tags=raw.tags,
                code_version=TypedSources.of(spec).code_version,
                automation_condition=None
                if spec.every_s
                else typed_condition(TypedSources.of(spec)),
                freshness_policy=FreshnessPolicy.time_window(
                    fail_window=timedelta(seconds=raw.fresh_within_s),
                    warn_window=timedelta(seconds=raw.fresh_within_s / 2),
                ),
                metadata={
                    "dagster/table_name": f"{catalog}.{spec.name}",
                    "dagster/column_schema": column_schema(spec),
                },
            )
        ],
        check_specs=[
            AssetCheckSpec(name, asset=key, description=text, blocking=name == COMPLETE_CHECK)
            for name, text in _CHECKS.items()
        ],
        can_subset=True,
        retry_policy=RetryPolicy(max_retries=1, delay=5),
        pool=pool_of(spec),
        required_resource_keys={"lake", "metastore", "broker", *([spark] if spark else [])},
    )
    def make(
        context: AssetExecutionContext, config: TypedConfig
    ) -> Iterator[MaterializeResult[None] | AssetCheckResult]:
        if context.selected_asset_keys:
            yield run_table(
                context,
                raw,
                spec,
                given_up=config.given_up,
                begin_anew=config.begin_anew,
                spark=spark,
                catalog=catalog,
            )
        else:
            yield from look_at_table(context, raw, spec)

    return make


def quarantine_asset_spec(raw: TableSpec, spec: TypedSpec, *, catalog: str = ICEBERG) -> AssetSpec:
    """The quarantine of a typed table, which runs of that fill."""
    return AssetSpec(
        quarantine_key(spec),
        deps=[table_key(raw.name)],
        description=f"Committed records of {raw.name} that do not fit {spec.name}, with the reason and their bytes. You do "
        "not run it: runs of the typed table fill it.",
        group_name="typed",
        kinds={"iceberg"},
        owners=raw.owners,
        tags=raw.tags,
        metadata={"dagster/table_name": f"{catalog}.{spec.quarantine}"},
    )


def _how(spec: TypedSpec) -> str:
    if spec.every_s:
        return (
            f"A process beside Dagster, `gazctl lake run --continuous`, writes it every {spec.every_s:g} s, and a "
            "sensor reports it here. You may also materialize it: two runs at once write no row twice."
        )
    if spec.cron:
        return f"Dagster runs it at `{spec.cron}` if the raw table has changed."
    return "Dagster runs it when the raw table has changed, at most once a minute."
