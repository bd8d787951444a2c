"""Typed tables as assets: what a run does, their quarantines and checks, and their backfills.

A typed table is an asset without partitions, since offsets decide what a run reads. Its data version is that of its rows,
so a run that finds nothing triggers nothing downstream. The spec says how it is run: by Dagster, when its raw table has
changed or by the clock; or without end, by a process beside Dagster, which the sensor `typed` reports. Both report in the
same way: see `gazette_platform.assets.typed_events`.

After a spec was changed or rows were lost, people want to rebuild a time of the raw table, which Dagster knows as a
partition. So each typed table has a second asset with these partitions. People materialize them, one or a thousand at a
time, as often as they like; partitions that were never materialized are not a fault.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetDep,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    Config,
    DataVersion,
    FreshnessPolicy,
    IdentityPartitionMapping,
    MaterializeResult,
    MetadataValue,
    RetryPolicy,
    multi_asset,
)
from pydantic import Field

from gazette_platform.assets.automation import typed_condition
from gazette_platform.assets.checks import SOURCES_KEY, in_lines, result_of, sources_mark
from gazette_platform.assets.raw import table_key, table_partitions, time_partition
from gazette_platform.assets.typed_events import (
    COMPLETE_CHECK,
    FRESH_CHECK,
    QUARANTINE_CHECK,
    TypedSources,
    backfill_key,
    column_schema,
    complete_evaluation,
    fresh_evaluation,
    measured,
    pool_of,
    quarantine_evaluation,
    quarantine_key,
    quarantine_materialization,
    told_typed,
    typed_key,
    typed_materialization,
    unreadable_evaluation,
)
from gazette_platform.errors import TableFenced, TypedProgressGone, TypedRolledBack
from gazette_platform.lake import TableSpec
from gazette_platform.lake.catalog_settings import ICEBERG
from gazette_platform.lake.engines.spark import prepare_environment
from gazette_platform.lake.raw.account_book import time_of_directory
from gazette_platform.lake.spec.layout import home_directory
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from dagster import RawMetadataValue

    from gazette_platform.client import FragmentListing
    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.typed.runs.backfilling import BackfillReport
    from gazette_platform.lake.typed.runs.jobs import Workers
    from gazette_platform.lake.typed.runs.journals import Behind
    from gazette_platform.lake.typed.runs.running import RunReport

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


# What the lake does is imported where it is called: it is slow to import, and every process that loads definitions
# loads this module.

# Of one run of Dagster's. Each publishes, and the next one reads what it has left.
_RUNS_MAX = 1000


def run_table(
    context: AssetExecutionContext,
    raw: TableSpec,
    spec: TypedSpec,
    *,
    given_up: Mapping[str, int],
    begin_anew: Mapping[str, int],
    spark: str,
    catalog: str,
) -> MaterializeResult[None]:
    """Bring a table up to date.

    Args:
        context: of the run.
        raw: the raw table.
        spec: of the typed one.
        given_up: by journal, an offset up to which a person has given up missing bytes.
        begin_anew: by recreated journal, the offset from which a person wants it read.
        spark: key of Spark's resource; empty: there is none.
        catalog: what Trino calls the catalog of the table.
    """
    from gazette_platform.lake.typed.runs.running import TypedRunner  # noqa: PLC0415
    from gazette_platform.lake.typed.status import progress_of_table  # noqa: PLC0415

    # Before journals are looked at: what comes meanwhile lets it run again.
    mark = sources_mark(context.instance, TypedSources.of(spec))
    lake = context.resources.lake
    tables = lake.typed_catalog(context.resources.metastore.client())
    with context.resources.broker.client() as client:
        workers = workers_of(context.resources, spark)
        runner = TypedRunner(tables, workers, client, log=context.log.info)
        run = partial(runner.run, spec, raw, given_up=given_up, begin_anew=begin_anew)
        reports = list(_runs(context, run))
    last = reports[-1]
    if _is_waiting(last):
        mark = ""  # no event says when it is back
    metadata: dict[str, RawMetadataValue] = {}
    progress = progress_of_table(tables, spec)
    if progress is not None:
        told = told_typed(context.instance, typed_key(spec))
        page = lake.table_page(f"{catalog}.{spec.name}")
        metadata |= typed_materialization(raw, spec, progress, told, page=page).metadata
        told = told_typed(context.instance, quarantine_key(spec))
        event = quarantine_materialization(spec, progress, told)
        if event is not None:
            context.log_event(event)
    metadata |= measured(sum(r.read_bytes for r in reports), sum(r.seconds for r in reports))
    metadata |= {"runs": len(reports), "bytes_left": last.left_bytes, SOURCES_KEY: mark}
    if last.vanished:
        metadata["vanished"] = MetadataValue.json(list(last.vanished))
    wanted = {check.name for check in context.selected_asset_check_keys}
    return MaterializeResult(
        asset_key=typed_key(spec),
        metadata=metadata,
        data_version=None if progress is None else DataVersion(progress.version),
        check_results=list(_results(tables, raw, spec, wanted, _left(last))),
    )


def look_at_table(
    context: AssetExecutionContext, raw: TableSpec, spec: TypedSpec
) -> Iterator[AssetCheckResult]:
    """What checks say of a table as it is, without a run of it."""
    tables = context.resources.lake.typed_catalog(context.resources.metastore.client())
    wanted = {check.name for check in context.selected_asset_check_keys}
    found: Behind | None = None
    if FRESH_CHECK in wanted:
        from gazette_platform.lake.typed.status import behind_now  # noqa: PLC0415

        with context.resources.broker.client() as client:
            found = behind_now(client, tables, raw, spec)
    yield from _results(tables, raw, spec, wanted, found)


def workers_of(resources: Any, spark: str) -> "Workers":
    """Who reads and writes for a run: Spark's executors, or this process.

    Args:
        resources: of the run.
        spark: key of Spark's resource; empty: there is none.
    """
    if not spark:
        from gazette_platform.lake.typed.runs.working import local_workers  # noqa: PLC0415

        return local_workers()
    from gazette_platform.spark.typed_workers import SparkWorkers  # noqa: PLC0415

    prepare_environment()
    return SparkWorkers(getattr(resources, spark).spark_session)


def _runs(context: AssetExecutionContext, run: Callable[[], "RunReport"]) -> "Iterator[RunReport]":
    """Runs until nothing is left, or a bound is reached."""
    for _ in range(_RUNS_MAX):
        try:
            report = run()
        except TableFenced as err:
            # By a process that goes on without end, say: from where that has come there is less to do.
            context.log.warning("%s", err)
            report = run()
        yield report
        if not report.left_bytes or not report.run:
            return


def _is_waiting(report: "RunReport") -> bool:
    """Whether something may come back without an event of the raw table."""
    from gazette_platform.lake.typed.planning.ranges import HoleKind  # noqa: PLC0415

    is_missing = any(hole.kind is HoleKind.MISSING for hole in report.holes)
    return bool(report.left_bytes or report.unreadable) or is_missing


def _left(report: "RunReport") -> "Behind":
    """What a run has left."""
    from gazette_platform.lake.typed.runs.journals import Behind  # noqa: PLC0415

    return Behind(bytes=report.left_bytes, holes=report.holes, unreadable=report.unreadable)


def _results(
    tables: "TypedCatalog",
    raw: TableSpec,
    spec: TypedSpec,
    wanted: set[str],
    found: "Behind | None",
) -> Iterator[AssetCheckResult]:
    from gazette_platform.lake.typed.status import completeness_of  # noqa: PLC0415

    try:
        counted = completeness_of(tables, spec)
    except (TypedProgressGone, TypedRolledBack) as err:
        if COMPLETE_CHECK not in wanted:
            raise
        yield result_of(unreadable_evaluation(spec, err))
        return
    if COMPLETE_CHECK in wanted:
        yield result_of(complete_evaluation(spec, counted))
    if QUARANTINE_CHECK in wanted:
        yield result_of(quarantine_evaluation(spec, counted.counts))
    if FRESH_CHECK in wanted and found is not None:
        yield result_of(fresh_evaluation(raw, spec, found, SystemClock().unix_s()))


# Of one run, which makes all of their rows again in one commit: a day of hours.
_PARTITIONS_MAX = 24
_BACKFILL_TEXT = """\
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
                description=_BACKFILL_TEXT.format(name=spec.name, raw=raw.name),
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
            yield MaterializeResult(asset_key=key, metadata=_backfill_metadata(report))
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
    from gazette_platform.lake.typed.recount import Recounter  # noqa: PLC0415

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


def _backfill_metadata(report: "BackfillReport") -> "dict[str, RawMetadataValue]":
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
