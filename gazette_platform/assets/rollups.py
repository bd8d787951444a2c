"""Rollups as assets: each of a spec, with the job that makes it; and their folder, whose check reports refused files.

A rollup is an asset without partitions: which of its slices are made is decided by offsets, within the run. Its
data version is the digest of what it covers, so a run that changes nothing triggers nothing downstream.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AssetSpec,
    Config,
    DataVersion,
    FreshnessPolicy,
    MaterializeResult,
    MetadataValue,
    RetryPolicy,
    TableColumn,
    TableColumnConstraints,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
    asset_check,
    multi_asset,
)
from pydantic import Field

from gazette_platform.assets.automation import EACH_MINUTE, rollup_condition
from gazette_platform.assets.checks import (
    QUERY_CHECK,
    QUERY_TEXT,
    SOURCES_KEY,
    SPECS_CHECK,
    in_lines,
    query_evaluation,
    result_of,
    sources_mark,
)
from gazette_platform.errors import TableFenced
from gazette_platform.lake.catalog_settings import ICEBERG
from gazette_platform.lake.engines.spark import prepare_environment
from gazette_platform.lake.rollups import PythonRollup, RollupFolder, RollupSpec
from gazette_platform.lake.rollups.query_check import (
    QueryCheck,
    check_queries,
    made_by,
    source_columns,
)
from gazette_platform.ops.text import counted
from gazette_platform.resources import LakeResource

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster import RawMetadataValue
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame

    from gazette_platform.lake.rollups.engines import RollupEngine
    from gazette_platform.lake.rollups.planning import Sealed
    from gazette_platform.lake.rollups.running import RollupReport

# Keys of the resources of `platform_resources` by engine.
ENGINE_RESOURCES = {"trino": "trino", "spark": "spark", "python": "spark"}
COMPLETE_CHECK = "slices_complete"
_ENGINE_NAMES = {"trino": "Trino", "spark": "Spark", "python": "A function in Spark"}
_KINDS = {"trino": "trino", "spark": "pyspark", "python": "pyspark"}
_SHOWN = 50
# Iceberg's names of types where SQL, and raw tables, have another.
_IN_SQL = {"long": "bigint"}


class RollupConfig(Config):
    """How a run is to be different from others."""

    force: bool = Field(
        default=False,
        description="Rebuild all slices from current content. Rows whose raw content was pruned are lost.",
    )


def rollup_key(name: str) -> AssetKey:
    """Asset key of the rollup ``schema.table``."""
    return AssetKey(name.split("."))


def rollup_asset(
    rollup: RollupSpec | PythonRollup,
    *,
    catalog: str = ICEBERG,
    engines: Mapping[str, str] = ENGINE_RESOURCES,
) -> AssetsDefinition:
    """The asset of a rollup; needs resources ``lake``, ``metastore`` and that of its engine.

    Args:
        rollup: what to make.
        catalog: what Trino calls the catalog that it is in.
        engines: keys of resources by engine.
    """
    spec = rollup.spec if isinstance(rollup, PythonRollup) else rollup
    function = rollup.function if isinstance(rollup, PythonRollup) else None
    resource = engines[spec.engine]
    key = rollup_key(spec.name)

    # The check can be had alone: it needs no engine, and no row is made for it.
    @multi_asset(
        name="__".join(key.path),
        specs=[
            AssetSpec(
                key,
                deps=[rollup_key(source) for source in sorted(set(spec.sources.values()))],
                description=_described(spec),
                group_name="rollups",
                kinds={_KINDS[spec.engine], "iceberg"},
                owners=list(spec.owners),
                tags=spec.tags,
                code_version=spec.code_version,
                automation_condition=rollup_condition(spec),
                freshness_policy=FreshnessPolicy.time_window(
                    fail_window=timedelta(seconds=spec.fresh_within_s),
                    warn_window=timedelta(seconds=spec.fresh_within_s / 2),
                ),
                metadata={
                    "dagster/table_name": f"{catalog}.{spec.name}",
                    "query": MetadataValue.md(
                        f"```{'python' if function else 'sql'}\n{spec.sql}\n```"
                    ),
                },
            )
        ],
        check_specs=[
            AssetCheckSpec(
                COMPLETE_CHECK,
                asset=key,
                description="All slices are up to date. A slice stays outdated if some of its raw content was pruned.",
            ),
            *(
                [AssetCheckSpec(QUERY_CHECK, asset=key, description=QUERY_TEXT)]
                if not function
                else []
            ),
        ],
        can_subset=True,
        retry_policy=RetryPolicy(max_retries=1, delay=5),
        pool=f"iceberg.{spec.name}",
        required_resource_keys={"lake", "metastore", resource},
    )
    def make(
        context: AssetExecutionContext, config: RollupConfig
    ) -> Iterator[MaterializeResult[None] | AssetCheckResult]:
        if context.selected_asset_keys:
            engine = engine_of(context.resources, resource, spec, function)
            yield _run(context, spec, engine, is_forced=config.force, catalog=catalog)
        else:
            yield from _look(context, spec)

    return make


def _described(spec: RollupSpec) -> str:
    """Describe a rollup: by its header, by the comment that its query begins with, and by what it is made of.

    Lists of assets show the first line.
    """
    sources = ", ".join(f"`{name}`" for name in sorted(set(spec.sources.values())))
    engine = _ENGINE_NAMES[spec.engine]
    slices = (
        f" Each value of {' and '.join(f'`{c}`' for c in spec.slices)} is a slice."
        if spec.slices
        else ""
    )
    pace = (
        "as soon as one changes" if spec.cron == EACH_MINUTE else f"at `{spec.cron}` if one changed"
    )
    made = f"{engine} builds it from {sources}, {pace}.{slices}"
    return "\n\n".join(filter(None, [spec.comment, spec.query_comment, made]))


def _look(context: AssetExecutionContext, spec: RollupSpec) -> Iterator[AssetCheckResult]:
    """Evaluate the checks of a rollup as it is, without a run of it."""
    from gazette_platform.lake.rollups.running import slices_behind  # noqa: PLC0415  as below

    lake, metastore = context.resources.lake, context.resources.metastore.client()
    tables = lake.iceberg_tables(metastore)
    wanted = {check.name for check in context.selected_asset_check_keys}
    if QUERY_CHECK in wanted:
        rollups = {**lake.rollup_folder().specs, spec.name: spec}
        with metastore.connect() as session:
            columns = source_columns(rollups.values(), lake.folder(), session)
        found = check_queries(rollups, columns, partial(made_by, lambda: tables))
        yield result_of(query_evaluation(found[spec.name]))
    if COMPLETE_CHECK in wanted:
        yield _complete(spec, slices_behind(metastore, tables, spec))


def _complete(
    spec: RollupSpec, sealed: "Iterable[Sealed]", total: int | None = None
) -> AssetCheckResult:
    behind = [
        ", ".join(f"{c}={v}" for c, v in zip(spec.slices, s.values, strict=True)) or "all"
        for s in sealed
    ]
    return AssetCheckResult(
        asset_key=rollup_key(spec.name),
        passed=not behind,
        check_name=COMPLETE_CHECK,
        severity=AssetCheckSeverity.WARN,
        description=_behind_text(spec, behind, total),
        metadata={"slices_behind": len(behind)},
    )


def _run(
    context: AssetExecutionContext,
    spec: RollupSpec,
    engine: "RollupEngine",
    *,
    is_forced: bool,
    catalog: str,
) -> MaterializeResult[None]:
    """Bring a rollup up to date, and report it."""
    # Slow to import, and every process that loads definitions loads this module.
    from gazette_platform.lake.rollups.running import RollupRunner  # noqa: PLC0415

    mark = sources_mark(context.instance, spec)
    lake, metastore = context.resources.lake, context.resources.metastore.client()
    tables = lake.iceberg_tables(metastore)
    runner = RollupRunner(metastore, tables, engine, log=context.log.info)
    try:
        report = runner.run(spec, is_forced=is_forced)
    except TableFenced as err:
        context.log.warning("%s", err)
        mark = ""  # it is asked for again
        report = runner.run(spec)
    if report.is_waiting:
        mark = ""  # no event says when a store is back
    metadata: dict[str, RawMetadataValue] = {
        "slices": len(report.covers.slices),
        "slices_made": len(report.made),
        "slices_dropped": len(report.dropped),
        "rows_made": report.rows_made,
        # Of its sources: rows of the rollup count them, with the values that its engine reads.
        "unfit_records": report.unfit_records,
        "covers": MetadataValue.json(_covers_shown(report.covers.offsets())),
        **lake.table_page(f"{catalog}.{spec.name}"),
        SOURCES_KEY: mark,
    }
    # The run is committed: its report asks no metastore, which may be away by now.
    snapshot = report.now.current_snapshot() if report.now is not None else None
    if report.now is not None and snapshot is not None:
        metadata |= _table_metadata(spec, report.now, snapshot)
        metadata |= _lineage_metadata(context, spec, report, report.now)
    return MaterializeResult(
        asset_key=rollup_key(spec.name),
        metadata=metadata,
        data_version=DataVersion(report.covers.digest),
        check_results=list(_results(context, spec, report)),
    )


def _results(
    context: AssetExecutionContext, spec: RollupSpec, report: "RollupReport"
) -> Iterator[AssetCheckResult]:
    """Evaluate those checks that a run is to evaluate. It proves the query."""
    wanted = {check.name for check in context.selected_asset_check_keys}
    if COMPLETE_CHECK in wanted:
        yield _complete(spec, report.behind, len(report.covers.slices))
    if QUERY_CHECK in wanted:
        known = {spec.sources[alias]: len(names) for alias, names in report.source_columns.items()}
        yield result_of(query_evaluation(QueryCheck(rollup=spec.name, known=known)))


def engine_of(
    resources: Any,
    key: str,
    spec: RollupSpec,
    function: "Callable[..., DataFrame] | None" = None,
) -> "RollupEngine":
    """The engine of a rollup, out of a run's resources. Starts Spark if it is that.

    Args:
        resources: of the run.
        key: of the engine's.
        spec: of the rollup.
        function: that makes it, if one does.
    """
    # Slow to import, as above.
    from gazette_platform.lake.rollups.engines import SparkEngine, TrinoEngine  # noqa: PLC0415

    resource = getattr(resources, key)
    if spec.engine == "trino":
        return TrinoEngine(resource, resource.catalogs)
    prepare_environment()
    return SparkEngine(resource.spark_session, function)


def _table_metadata(
    spec: RollupSpec, table: "TableMetadata", snapshot: "Snapshot"
) -> "dict[str, RawMetadataValue]":
    summary = snapshot.summary
    fields = table.schema().fields
    return {
        "dagster/row_count": int(summary["total-records"] or 0) if summary else 0,
        "dagster/column_schema": TableSchema(
            columns=[
                TableColumn(
                    f.name,
                    _IN_SQL.get(str(f.field_type), str(f.field_type)),
                    f.doc,
                    constraints=TableColumnConstraints(
                        other=["partition column"] if f.name.lower() in spec.slices else None
                    ),
                )
                for f in fields
            ]
        ),
        "snapshot": str(snapshot.snapshot_id),
    }


def _lineage_metadata(
    context: AssetExecutionContext, spec: RollupSpec, report: "RollupReport", table: "TableMetadata"
) -> "dict[str, RawMetadataValue]":
    """Column lineage, as far as the query shows it; else nothing, and a warning."""
    if spec.engine == "python":
        return {}
    try:
        # Slow to import, as below.
        from gazette_platform.lake.rollups.query_process import column_lineage_apart  # noqa: PLC0415

        origins = column_lineage_apart(spec.sql, spec.engine, report.source_columns)
        return {"dagster/column_lineage": _lineage(spec, table, origins)}
    # Whatever it is: the run is committed, and to fail would only have it repeated.
    except Exception as err:  # noqa: BLE001  reported
        context.log.warning("%s: its column lineage is not reported: %s", spec.name, err)
        return {}


def _lineage(
    spec: RollupSpec, table: "TableMetadata", origins: Mapping[str, list[tuple[str, str]]]
) -> TableColumnLineage:
    """Origins of columns of the table, whose names may be in upper case, each once."""
    names = [field.name for field in table.schema().fields]
    deps = {
        name: {(spec.sources[alias], column) for alias, column in origins[name.lower()]}
        for name in names
        if name.lower() in origins
    }
    return TableColumnLineage(
        {
            name: [TableColumnDep(rollup_key(source), column) for source, column in sorted(of)]
            for name, of in deps.items()
        }
    )


def _covers_shown(offsets: dict[str, list[tuple[int, int]]]) -> dict[str, str]:
    """Offsets by journal in words; those of the first journals, if they are many."""
    shown = {
        journal: ", ".join(f"{begin}-{end}" for begin, end in ranges[:_SHOWN])
        for journal, ranges in list(offsets.items())[:_SHOWN]
    }
    if len(offsets) > _SHOWN:
        shown["…"] = f"and {len(offsets) - _SHOWN} more journals"
    return shown


def _behind_text(spec: RollupSpec, behind: Iterable[str], total: int | None) -> str:
    slices = list(behind)
    if not slices:
        return (
            f"{counted(total, 'slice')}, 0 behind." if total is not None else "No slice is behind."
        )
    more = f" and {len(slices) - _SHOWN} more" if len(slices) > _SHOWN else ""
    return (
        f"Raw content of {'; '.join(slices[:_SHOWN])}{more} was pruned, or its store is unavailable. So runs do not "
        "rebuild these slices, although there is new content or code. If the store is unavailable, bring it back. If "
        f"content was pruned, slice {spec.name} by a column that is pruned as a whole, such as the date of arrival; or "
        "set `retention: follow`; or run it with `force: true`, which loses the rows of pruned content."
    )


ROLLUPS_KEY = AssetKey(["rollup_specs"])


def rollups_asset_spec() -> AssetSpec:
    """The folder of rollups."""
    return AssetSpec(
        ROLLUPS_KEY,
        description="The folder of rollups, as the sensor `catalog` last read it.",
        group_name="rollups",
        kinds={"sql"},
    )


def rollups_check() -> AssetChecksDefinition:
    """The check of the folder of rollups."""

    @asset_check(
        asset=ROLLUPS_KEY,
        name=SPECS_CHECK,
        description="All files in the folder of rollups are valid.",
    )
    def look_at_rollups(lake: LakeResource) -> AssetCheckResult:
        return result_of(rollups_evaluation(lake.rollup_folder()))

    return look_at_rollups


def rollups_evaluation(folder: RollupFolder) -> AssetCheckEvaluation:
    """Red, with all that is wrong with any file of the folder."""
    texts = [" ".join(str(error).split()) for error in folder.errors.values()]
    return AssetCheckEvaluation(
        asset_key=ROLLUPS_KEY,
        check_name=SPECS_CHECK,
        passed=not texts,
        severity=AssetCheckSeverity.ERROR,
        description=in_lines(texts) or f"{counted(len(folder.specs), 'rollup')}, 0 files refused.",
        metadata={"rollups": len(folder.specs), "refused": len(texts)},
        blocking=False,
    )


def rollups_materialization(folder: RollupFolder) -> AssetMaterialization:
    """The event of a folder of rollups that is another one than before."""
    return AssetMaterialization(
        asset_key=ROLLUPS_KEY,
        description=f"{counted(len(folder.specs), 'rollup')}, {len(folder.errors)} refused",
        metadata={
            "rollups": MetadataValue.json(list(folder.specs)),
            "refused": MetadataValue.json({file: str(e) for file, e in folder.errors.items()}),
        },
        tags={"dagster/data_version": folder.digest},
    )
