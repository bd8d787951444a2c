"""Backfills of typed tables as partitions: those of the raw table, whose rows are made again when they are materialized.

A typed table itself has no partitions, since runs go by offsets. But what is to be made again, after a spec was changed or
rows were lost, is a time of its raw table, which people know and Dagster has partitions of. So each typed table has a second
asset, of the same partitions. Its partitions are materialized by people, one or a thousand at a time, as often as they like;
those that never were are not a fault.
"""

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetDep,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    Config,
    IdentityPartitionMapping,
    MaterializeResult,
    MetadataValue,
    RetryPolicy,
    multi_asset,
)
from pydantic import Field

from gazette_platform.assets.checks import in_lines, result_of
from gazette_platform.assets.raw import table_key, table_partitions, time_partition
from gazette_platform.assets.typed_events import COMPLETE_CHECK, complete_evaluation, measured
from gazette_platform.assets.typed_keys import backfill_key, pool_of
from gazette_platform.assets.typed_runs import workers_of
from gazette_platform.errors import TableFenced
from gazette_platform.lake import TableSpec
from gazette_platform.lake.raw.set_aside import home_directory
from gazette_platform.lake.raw.times import time_of_directory
from gazette_platform.lake.spec.typed import TypedSpec

if TYPE_CHECKING:
    from dagster import RawMetadataValue

    from gazette_platform.client import FragmentListing
    from gazette_platform.lake.typed.runs.backfilling import BackfillReport

# Of one run, which makes all of their rows again in one commit: a day of hours.
_PARTITIONS_MAX = 24
_TEXT = """\
Backfills of {name}. Materialize a partition to rebuild its rows from what was appended to {raw} at that time. One commit \
replaces the rows, so you may repeat a backfill. Normal runs of the typed table need no backfill."""


class BackfillConfig(Config):
    """How a run is to be different from others."""

    compare_only: bool = Field(
        default=False,
        description="Rebuild nothing: read the journals, and let the check `complete` report rows that are missing or "
        "doubled.",
    )


def backfill_asset(raw: TableSpec, spec: TypedSpec, *, spark: str = "") -> AssetsDefinition:
    """The backfills of a typed table; needs resources ``lake``, ``metastore``, ``broker`` and that of Spark.

    Args:
        raw: the raw table, whose partitions it has.
        spec: of the typed one, which has no key.
        spark: key of the resource; empty: there is no Spark.
    """
    key = backfill_key(spec)

    # The check can be had alone, of all that there is; of partitions, by the run's config.
    @multi_asset(
        name="__".join(key.path),
        specs=[
            AssetSpec(
                key,
                deps=[AssetDep(table_key(raw.name), partition_mapping=IdentityPartitionMapping())],
                description=_TEXT.format(name=spec.name, raw=raw.name),
                group_name="typed",
                kinds={"iceberg", "pyspark" if spark else "python"},
                owners=raw.owners,
                tags=raw.tags,
            )
        ],
        check_specs=[
            AssetCheckSpec(
                COMPLETE_CHECK,
                asset=key,
                description="After reading the journals again: each committed message is exactly once in the table or in quarantine.",
            )
        ],
        partitions_def=table_partitions(raw.name),
        backfill_policy=BackfillPolicy.multi_run(_PARTITIONS_MAX),
        can_subset=True,
        retry_policy=RetryPolicy(max_retries=1, delay=5),
        pool=pool_of(spec),
        required_resource_keys={"lake", "metastore", "broker", *([spark] if spark else [])},
    )
    def backfill(
        context: AssetExecutionContext, config: BackfillConfig
    ) -> Iterator[MaterializeResult[None] | AssetCheckResult]:
        if context.selected_asset_keys and not config.compare_only:
            report = _backfilled(context, raw, spec, spark)
            yield MaterializeResult(asset_key=key, metadata=_metadata(report))
        if context.selected_asset_check_keys or config.compare_only:
            yield _compared(context, raw, spec, spark)

    return backfill


def fragments_at(
    raw: TableSpec, partitions: Collection[str]
) -> "Callable[[FragmentListing], bool]":
    """Whether a stored fragment is in some of Dagster's partitions of a raw table.

    Returns: asked of fragments of its journals. It raises LakeError, if a value in a path is not of its column's type.
    """
    wanted = frozenset(partitions)

    # A journal has few directories, and many fragments.
    @cache
    def is_in(journal: str, directory: str) -> bool:
        return time_partition(time_of_directory(raw, journal, directory)) in wanted

    return lambda listing: is_in(listing.fragment.journal, home_directory(listing.fragment))


def _backfilled(
    context: AssetExecutionContext, raw: TableSpec, spec: TypedSpec, spark: str
) -> "BackfillReport":
    # Slow to import, and every process that loads definitions loads this module.
    from gazette_platform.lake.typed.runs.backfilling import BackfillRunner  # noqa: PLC0415

    tables = context.resources.lake.typed_catalog(context.resources.metastore.client())
    with context.resources.broker.client() as client:
        workers = workers_of(context.resources, spark)
        runner = BackfillRunner(tables, workers, client, log=context.log.info)
        try:
            return runner.run(spec, raw, fragments_at(raw, context.partition_keys))
        except TableFenced as err:
            context.log.warning("%s", err)
            return runner.run(spec, raw, fragments_at(raw, context.partition_keys))


def _compared(
    context: AssetExecutionContext, raw: TableSpec, spec: TypedSpec, spark: str
) -> AssetCheckResult:
    """What reading journals again shows, of the run's partitions; if it has none, of all."""
    from gazette_platform.lake.typed.checks.recount import Recounter  # noqa: PLC0415

    has_partitions = context.has_partition_key or context.has_partition_key_range
    tables = context.resources.lake.typed_catalog(context.resources.metastore.client())
    with context.resources.broker.client() as client:
        counter = Recounter(tables, workers_of(context.resources, spark), client)
        found = counter.recount(
            spec,
            raw,
            is_wanted=fragments_at(raw, context.partition_keys) if has_partitions else None,
        )
    return result_of(complete_evaluation(spec, found, backfill_key(spec)))


def _metadata(report: "BackfillReport") -> "dict[str, RawMetadataValue]":
    """What was made again, as numbers that Dagster plots."""
    metadata: dict[str, RawMetadataValue] = {
        "rows": report.typed,
        "rows_before": report.typed_before,
        "quarantined": report.quarantined,
        "quarantined_before": report.quarantined_before,
        # Messages that had been lost; below 0: rows that had been too many.
        "healed": report.healed,
        "files": report.files,
        **measured(report.read_bytes, report.seconds),
    }
    if report.ranges:
        lines = [
            f"{journal}: {', '.join(f'[{begin}, {end})' for begin, end in ranges)}"
            for journal, ranges in report.ranges.items()
        ]
        metadata["offsets"] = MetadataValue.text(in_lines(lines))
    left = [f"{h.journal} from {h.begin} to {h.end}: {h.kind}; its rows stay" for h in report.holes]
    left += [
        f"{name} from {begin} to {end}: no run has read it yet"
        for name, begin, end in report.behind
    ]
    if left:
        metadata["left"] = MetadataValue.text(in_lines(left))
    return metadata
