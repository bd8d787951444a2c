"""Checks of raw tables and of rollups' queries, and marks: whether sources have changed.

Of raw tables: no gap, no overlap, counts agree, data fit the spec, and the table keeps up. The sensor evaluates them as
it registers, without a run. Each can also be executed from the Dagster UI, which looks at the whole table at once;
`fits_spec` then reads all of its fragments. What is only a warning blocks nothing; nor does `keeps_up`, since what is
registered is as good as ever.

Of a rollup `query_fits`: evaluated when the rollup is loaded, when you execute the check, and by each run.

The *mark* of a rollup, or of a typed table, says whether a source has changed since it last looked. It is a digest over the newest materialization of each of its sources, over what their
checks ``no_overlap`` say, and over its own code. A run notes the mark *before* it reads, so what arrives
meanwhile lets it run again and nothing is missed. It only says that looking is worth while: what is made is
decided by offsets. No time is compared.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
    JsonMetadataValue,
    MetadataValue,
    TextMetadataValue,
    asset_check,
)

from gazette_platform.assets.raw import SPECS_KEY, table_key
from gazette_platform.errors import LakeError
from gazette_platform.lake import Finding, FindingKind, RefusedSpec, SpecFolder, TableSpec
from gazette_platform.lake.raw.audits.consistency import audit_index
from gazette_platform.lake.raw.audits.fit import audit_content
from gazette_platform.lake.raw.audits.registration_status import overdue, table_standing
from gazette_platform.lake.raw.planning import problems_with_journals
from gazette_platform.lake.rollups.query_check import QueryCheck
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted
from gazette_platform.resources import BrokerResource, LakeResource, MetastoreResource


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was checked of a raw table."""

    journals: int
    records: int | None = None
    """None: they are not known."""
    uncounted: int = 0
    """Partitions whose records are not counted yet."""

    @property
    def of_records(self) -> str:
        """The number of records, in words."""
        if self.records is None:
            return f"all records of {counted(self.journals, 'journal')}"
        known = f"{self.records:,} {'record' if self.records == 1 else 'records'}"
        if not self.uncounted:
            return known
        return f"{known} and {counted(self.uncounted, 'uncounted partition')}"

    def text(self, check: str) -> str:
        """What a green check says; empty: it is not a check of a raw table."""
        journals = counted(self.journals, "journal")
        return {
            "no_gap": f"{journals}, 0 gaps.",
            "no_overlap": f"{self.of_records}, 0 of them twice.",
            "counts_agree": f"{self.of_records} in {journals}: files, fragments and Hive partitions agree.",
            "fits_spec": f"{self.of_records}, 0 unfit.",
        }.get(check, "")


def with_counts(evaluation: AssetCheckEvaluation, checked: Checked) -> AssetCheckEvaluation:
    """Return the evaluation with what was checked, and with how much that was if it is green."""
    text = checked.text(evaluation.check_name) if evaluation.passed else ""
    counts = {"journals": MetadataValue.int(checked.journals)}
    if checked.records is not None:
        counts["records"] = MetadataValue.int(checked.records)
    return AssetCheckEvaluation(
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        passed=evaluation.passed,
        severity=evaluation.severity,
        description=text or evaluation.description,
        metadata={**evaluation.metadata, **counts},
        blocking=evaluation.blocking,
    )


def rows_told(instance: DagsterInstance, asset: AssetKey) -> int | None:
    """Return the rows of a table in its newest event; None: it has none."""
    for record in instance.fetch_materializations(asset, limit=1).records:
        event = record.asset_materialization
        rows = event.metadata.get("dagster/row_count") if event is not None else None
        if rows is not None and isinstance(rows.value, int):
            return rows.value
    return None


# Newest runs of a check that are looked at for one that has an answer.
_HISTORY = 20


def is_red(evaluation: AssetCheckEvaluation) -> bool:
    """Whether a check failed, with more than a warning."""
    return not evaluation.passed and evaluation.severity is AssetCheckSeverity.ERROR


def newest_evaluations(
    instance: DagsterInstance, keys: Iterable[AssetCheckKey]
) -> dict[AssetCheckKey, AssetCheckEvaluation]:
    """What each of these checks said last.

    One that is under way, or ended without an answer, leaves the answer before it in force. Of a partitioned check
    that of the partition evaluated last counts.
    """
    storage = instance.event_log_storage
    found: dict[AssetCheckKey, AssetCheckEvaluation] = {}
    for key, newest in storage.get_latest_asset_check_execution_by_key(list(keys)).items():
        records = [newest]
        if not isinstance(newest.evaluation, AssetCheckEvaluation):  # one that is only planned
            records = list(storage.get_asset_check_execution_history(key, limit=_HISTORY))
        answers = [r.evaluation for r in records if isinstance(r.evaluation, AssetCheckEvaluation)]
        if answers:
            found[key] = answers[0]
    return found


OVERLAP_CHECK = "no_overlap"
KEEPS_UP_CHECK = "keeps_up"
SPECS_CHECK = "specs_are_good"
# Each may read a whole table: as many at a time as the pool allows.
CHECKS_POOL = "lake.checks"
# Check name by kind of finding, with what it says.
CHECKS: dict[FindingKind, tuple[str, str]] = {
    "gap": ("no_gap", "The fragments of each journal follow each other without gaps."),
    "overlap": (
        OVERLAP_CHECK,
        "No two files hold the same bytes. If this fails, query the view …_exact, which returns each row once.",
    ),
    "count": (
        "counts_agree",
        "The brokers' fragments, the files that engines read and the Hive partitions agree.",
    ),
    "fit": (
        "fits_spec",
        "All fragments can be read, and the number of unfit records is within the spec's `unfit` threshold.",
    ),
}
_KEEPS_UP = (
    "The table spec is valid and selects journals, and stored fragments are registered in time."
)
_SHOWN = 20


def check_evaluations(table: str, findings: Sequence[Finding]) -> list[AssetCheckEvaluation]:
    """One evaluation per check: red, with every finding (the first 20 in words).

    What could not be looked at is a warning, never green.
    """
    return [
        AssetCheckEvaluation(
            asset_key=table_key(table),
            check_name=name,
            passed=not told,
            severity=_severity(told),
            description=_description(told),
            metadata=_metadata(told),
            blocking=True,
        )
        for kind, (name, _) in CHECKS.items()
        for told in [[f for f in findings if f.kind == kind]]
    ]


def keeps_up_evaluation(
    table: str, problems: Sequence[str], file: str = "", journals: int | None = None
) -> AssetCheckEvaluation:
    """Red, with what keeps a table from following its spec and its journals; green if nothing does.

    Args:
        table: its name.
        problems: what is wrong.
        file: of its spec.
        journals: that it has; None: they are not known.
    """
    of_them = counted(journals, "journal") if journals is not None else "its journals"
    good = f"The spec is good, and all stored content of {of_them} is registered."
    metadata: dict[str, int | TextMetadataValue] = {"problems": len(problems)}
    if file:
        metadata["spec_file"] = MetadataValue.text(file)
    return AssetCheckEvaluation(
        asset_key=table_key(table),
        check_name=KEEPS_UP_CHECK,
        passed=not problems,
        severity=AssetCheckSeverity.ERROR,
        description=in_lines(problems) or good,
        metadata=metadata,
        blocking=False,
    )


def specs_evaluation(folder: SpecFolder) -> AssetCheckEvaluation:
    """Red, with all that is wrong with any file of the folder."""
    texts = [" ".join(str(error).split()) for error in folder.errors]
    return AssetCheckEvaluation(
        asset_key=SPECS_KEY,
        check_name=SPECS_CHECK,
        passed=not texts,
        severity=AssetCheckSeverity.ERROR,
        description=in_lines(texts)
        or f"{counted(len(folder.specs), 'table spec')}, 0 files refused.",
        metadata={"tables": len(folder.specs), "refused": len(folder.refused)},
        blocking=False,
    )


def specs_check() -> AssetChecksDefinition:
    """The check of the folder of table specs."""

    @asset_check(
        asset=SPECS_KEY,
        name=SPECS_CHECK,
        description="All files in the folder of table specs are valid.",
    )
    def look(lake: LakeResource) -> AssetCheckResult:
        return result_of(specs_evaluation(lake.folder()))

    return look


def raw_checks(specs: Iterable[TableSpec]) -> list[AssetChecksDefinition]:
    """The checks of the tables known when definitions load; each can be executed alone."""
    return [
        check
        for spec in specs
        for check in (_keeps_up(spec.name), *(_audit(spec, kind) for kind in CHECKS))
    ]


def refused_checks(refused: Iterable[RefusedSpec]) -> list[AssetChecksDefinition]:
    """The checks of tables whose spec is refused."""
    return [_keeps_up(table) for table in sorted({bad.table for bad in refused if bad.table})]


def _keeps_up(table: str) -> AssetChecksDefinition:
    @asset_check(
        asset=table_key(table),
        name=KEEPS_UP_CHECK,
        description=_KEEPS_UP,
        blocking=False,
        pool=CHECKS_POOL,
    )
    def look(
        broker: BrokerResource, metastore: MetastoreResource, lake: LakeResource
    ) -> AssetCheckResult:
        folder = lake.folder()
        spec = folder.specs.get(table)
        if spec is None:
            errors = [
                e for bad in folder.refused.values() if bad.table == table for e in bad.errors
            ]
            texts = [str(error) for error in errors] or [f"no table spec defines {table}"]
            return result_of(keeps_up_evaluation(table, texts))
        clock = SystemClock()
        with broker.source() as source, metastore.client().connect() as session:
            journals = source.journals(spec.label_selector)
            problems = [str(e) for e in problems_with_journals(spec, journals, clock.now())]
            standing = table_standing(spec, journals, {}, session, clock.now())
            problems += overdue(source, standing, clock.unix_s(), from_begin=True)
        found = keeps_up_evaluation(table, problems, folder.files[table], len(journals))
        return result_of(found)

    return look


def _audit(spec: TableSpec, kind: FindingKind) -> AssetChecksDefinition:
    name, text = CHECKS[kind]

    @asset_check(
        asset=table_key(spec.name), name=name, description=text, blocking=True, pool=CHECKS_POOL
    )
    def audit(
        context: AssetCheckExecutionContext,
        broker: BrokerResource,
        metastore: MetastoreResource,
        lake: LakeResource,
    ) -> AssetCheckResult:
        roots = lake.roots()
        # Its threshold may have changed since definitions were loaded.
        now = lake.folder().specs.get(spec.name, spec)
        with broker.source() as source, metastore.client().connect() as session:
            table = session.table(spec.schema, spec.stored_table)
            checked = Checked(
                journals=len(source.journals(spec.label_selector)),
                records=rows_told(context.instance, table_key(spec.name)),
            )
            if table is None:
                raise LakeError(f"table {spec.name} is not made yet: its journals hold no fragment")
            if kind == "fit":
                found = list(audit_content(now, source, roots))
            else:
                found = list(audit_index(session, now, table, source, roots))
        context.log.info("%s: %d findings of all kinds", spec.name, len(found))
        (evaluation,) = (e for e in check_evaluations(spec.name, found) if e.check_name == name)
        return result_of(with_counts(evaluation, checked))

    return audit


def result_of(evaluation: AssetCheckEvaluation) -> AssetCheckResult:
    """What a run says of a check, as the sensor would."""
    return AssetCheckResult(
        check_name=evaluation.check_name,
        asset_key=evaluation.asset_key,
        passed=evaluation.passed,
        severity=evaluation.severity,
        description=evaluation.description,
        metadata=evaluation.metadata,
    )


def _severity(findings: Sequence[Finding]) -> AssetCheckSeverity:
    is_error = not findings or any(f.is_error for f in findings)
    return AssetCheckSeverity.ERROR if is_error else AssetCheckSeverity.WARN


def _description(findings: Sequence[Finding]) -> str:
    if not findings:
        return "Nothing is wrong."
    return in_lines(list(dict.fromkeys(f.text or f.path for f in _wrong_first(findings))))


def in_lines(texts: Sequence[str]) -> str:
    """The first of `texts`, and how many more there are."""
    lines = list(texts[:_SHOWN])
    if len(texts) > _SHOWN:
        lines.append(f"… and {len(texts) - _SHOWN} more.")
    return "\n".join(lines)


def _wrong_first(findings: Sequence[Finding]) -> list[Finding]:
    """What is wrong with the table as a whole, then with parts of it, then what was not checked."""
    return sorted(findings, key=lambda f: (not f.is_checked, not f.is_error, bool(f.journal)))


def _metadata(findings: Sequence[Finding]) -> dict[str, int | JsonMetadataValue]:
    if not findings:
        return {"findings": 0}
    found = [f for f in findings if f.is_checked]
    unfit = sum(f.unfit for f in found if not f.journal)
    return {
        "findings": len(found),
        "not_checked": len({f.text for f in findings if not f.is_checked}),
        "offsets": MetadataValue.json(
            [{"journal": f.journal, "begin": f.begin, "end": f.end} for f in found[:_SHOWN]]
        ),
        **({"unfit_records": unfit} if unfit else {}),
    }


QUERY_CHECK = "query_fits"
QUERY_TEXT = "The query is valid SQL, and its sources have all columns that it names."


def query_evaluation(found: QueryCheck) -> AssetCheckEvaluation:
    """Return the evaluation: red with what is wrong with the query, else green with what was checked."""
    return AssetCheckEvaluation(
        asset_key=table_key(found.rollup),
        check_name=QUERY_CHECK,
        passed=not found.faults,
        severity=AssetCheckSeverity.ERROR,
        description=found.text,
        metadata={"faults": len(found.faults), "columns_known": sum(found.known.values())},
        blocking=False,
    )


def new_evaluations(
    instance: DagsterInstance, checks: Iterable[QueryCheck]
) -> list[AssetCheckEvaluation]:
    """Return the evaluations that Dagster does not have yet."""
    made = [query_evaluation(found) for found in checks]
    keys = {one.asset_key: AssetCheckKey(one.asset_key, QUERY_CHECK) for one in made}
    newest = newest_evaluations(instance, keys.values())
    return [
        one
        for one in made
        if (known := newest.get(keys[one.asset_key])) is None
        or (known.passed, known.description) != (one.passed, one.description)
    ]


# Metadata key under which a rollup notes its mark.
SOURCES_KEY = "gazette/sources_mark"
_DATA_VERSION = "dagster/data_version"


class Sourced(Protocol):
    """What is made of other tables: a rollup, or a typed table."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        ...

    @property
    def sources(self) -> Mapping[str, str]:
        """Tables that it is made of."""
        ...

    @property
    def cron(self) -> str:
        """When it is made."""
        ...

    @property
    def code_version(self) -> str:
        """Marks a change of its code."""
        ...

    @property
    def retention(self) -> str:
        """What becomes of rows whose raw content goes."""
        ...


def sources_mark(instance: DagsterInstance, spec: Sourced) -> str:
    """The mark of what is made of sources as these are now.

    Returns: 16 hex digits, or empty text if one of them was never materialized.
    """
    marks = [spec.code_version, spec.retention]
    for source in sorted(spec.sources.values()):
        key = AssetKey(source.split("."))
        mark = _source_mark(instance, key)
        if not mark:
            return ""
        marks += [mark, _overlaps(instance, key)]
    return hashlib.sha256(repr(marks).encode()).hexdigest()[:16]


def sources_missing(instance: DagsterInstance, spec: Sourced) -> list[str]:
    """Return the sources that were never materialized."""
    names = sorted(spec.sources.values())
    return [name for name in names if not _source_mark(instance, AssetKey(name.split(".")))]


def noted_mark(instance: DagsterInstance, rollup: AssetKey) -> str:
    """The mark that the newest materialization of a rollup noted; empty: there is none."""
    for record in instance.fetch_materializations(rollup, limit=1).records:
        materialization = record.asset_materialization
        if materialization is not None and SOURCES_KEY in materialization.metadata:
            return str(materialization.metadata[SOURCES_KEY].value)
    return ""


def _source_mark(instance: DagsterInstance, source: AssetKey) -> str:
    """Of an asset without partitions its data version, which runs that change nothing leave alone."""
    for record in instance.fetch_materializations(source, limit=1).records:
        materialization = record.asset_materialization
        if materialization is not None:
            version = (materialization.tags or {}).get(_DATA_VERSION)
            is_whole = materialization.partition is None
            return version if version and is_whole else str(record.storage_id)
    return ""


def _overlaps(instance: DagsterInstance, source: AssetKey) -> str:
    """What check ``no_overlap`` says; empty while it is green, or yellow: nothing is known to be wrong.

    When it turns red a rollup may have read rows twice, before the exact view left them out.
    """
    key = AssetCheckKey(source, OVERLAP_CHECK)
    evaluation = newest_evaluations(instance, [key]).get(key)
    return str(evaluation.description) if evaluation is not None and is_red(evaluation) else ""
