"""What runs of Dagster's do with a typed table: bring it up to date, check it, and report it."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    DataVersion,
    MaterializeResult,
    MetadataValue,
)

from gazette_platform.assets.checks import result_of
from gazette_platform.assets.source_marks import SOURCES_KEY, sources_mark
from gazette_platform.assets.typed_events import (
    COMPLETE_CHECK,
    FRESH_CHECK,
    QUARANTINE_CHECK,
    complete_evaluation,
    fresh_evaluation,
    measured,
    quarantine_evaluation,
    quarantine_materialization,
    told_typed,
    typed_materialization,
    unreadable_evaluation,
)
from gazette_platform.assets.typed_keys import TypedSources, quarantine_key, typed_key
from gazette_platform.errors import TableFenced, TypedProgressGone, TypedRolledBack
from gazette_platform.lake import TableSpec
from gazette_platform.lake.engines.spark import prepare_environment
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from dagster import RawMetadataValue

    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.typed.runs.jobs import Workers
    from gazette_platform.lake.typed.runs.lag import Behind
    from gazette_platform.lake.typed.runs.running import RunReport

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
    from gazette_platform.lake.typed.checks.status import progress_of_table  # noqa: PLC0415
    from gazette_platform.lake.typed.runs.running import TypedRunner  # noqa: PLC0415

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
        from gazette_platform.lake.typed.checks.status import behind_now  # noqa: PLC0415

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
    from gazette_platform.lake.typed.runs.lag import Behind  # noqa: PLC0415

    return Behind(bytes=report.left_bytes, holes=report.holes, unreadable=report.unreadable)


def _results(
    tables: "TypedCatalog",
    raw: TableSpec,
    spec: TypedSpec,
    wanted: set[str],
    found: "Behind | None",
) -> Iterator[AssetCheckResult]:
    from gazette_platform.lake.typed.checks.status import completeness_of  # noqa: PLC0415

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
