"""Blocking checks of raw tables: no gap, no overlap, counts agree, data fit the spec.

The sensor evaluates them as it registers, without a run. They can also be executed from the Dagster
UI, which audits the whole table at once and reads all of its fragments. What is only a warning blocks
nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    JsonMetadataValue,
    MetadataValue,
    multi_asset_check,
)

from gazette_platform.assets.raw import table_key
from gazette_platform.errors import LakeError
from gazette_platform.lake import (
    Finding,
    FindingKind,
    TableSpec,
    all_fragments,
    json_columns,
    missing_columns,
)
from gazette_platform.resources import BrokerResource, LakeResource, MetastoreResource

__all__ = ["CHECKS", "OVERLAP_CHECK", "check_evaluations", "raw_checks"]

OVERLAP_CHECK = "no_overlap"
# Check name by kind of finding, with what it says.
CHECKS: dict[FindingKind, tuple[str, str]] = {
    "gap": ("no_gap", "Between a journal's first and last byte, each byte is in a fragment."),
    "overlap": (
        OVERLAP_CHECK,
        "No two files hold the same bytes, so queries see each row once; else use view …_exact.",
    ),
    "count": (
        "counts_agree",
        "Files that engines read, fragments that brokers list and Hive partitions agree.",
    ),
    "fit": ("fits_spec", "Fragments can be read, and hold what the table spec says."),
}
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


def raw_checks(specs: Iterable[TableSpec]) -> list[AssetChecksDefinition]:
    """The checks of the tables known when definitions load."""
    return [_checks(spec) for spec in specs]


def _checks(spec: TableSpec) -> AssetChecksDefinition:
    @multi_asset_check(
        name=f"audit_{spec.schema}__{spec.table}",
        description=f"Compares {spec.name} with the brokers' index and the files.",
        specs=[
            AssetCheckSpec(name, asset=table_key(spec.name), description=text, blocking=True)
            for name, text in CHECKS.values()
        ],
    )
    def audit(
        context: AssetCheckExecutionContext,
        broker: BrokerResource,
        metastore: MetastoreResource,
        lake: LakeResource,
    ) -> Iterator[AssetCheckResult]:
        findings: list[Finding] = []
        with broker.source() as source, metastore.client().connect() as session:
            table = session.table(spec.schema, spec.table)
            if table is None:
                raise LakeError(f"table {spec.name} is not made yet: its journals hold no fragment")
            auditor, fit_checker = lake.auditor(source), lake.fit_checker(source)
            missing = set(json_columns(spec))
            for journal in source.journals(spec.label_selector):
                begin: int | None = 0
                while begin is not None:
                    found = auditor.audit(
                        session, spec, table, journal.name, begin=begin, lists_objects=True
                    )
                    findings += found.findings
                    begin = found.end
                for fragment in all_fragments(source, journal.name):
                    misfit, columns = fit_checker.check(spec, fragment)
                    findings += [misfit] if misfit is not None else []
                    missing -= columns
                context.log.info("%s is audited", journal.name)
            lost = missing_columns(spec, missing)
            findings += [lost] if lost is not None else []
        for evaluation in check_evaluations(spec.name, findings):
            yield AssetCheckResult(
                check_name=evaluation.check_name,
                asset_key=evaluation.asset_key,
                passed=evaluation.passed,
                severity=evaluation.severity,
                description=evaluation.description,
                metadata=evaluation.metadata,
            )

    return audit


def _severity(findings: Sequence[Finding]) -> AssetCheckSeverity:
    is_error = not findings or any(f.is_error for f in findings)
    return AssetCheckSeverity.ERROR if is_error else AssetCheckSeverity.WARN


def _description(findings: Sequence[Finding]) -> str:
    if not findings:
        return "As it should be."
    texts = list(dict.fromkeys(f.text or f.path for f in _wrong_first(findings)))
    lines = texts[:_SHOWN]
    if len(texts) > _SHOWN:
        lines.append(f"… and {len(texts) - _SHOWN} more.")
    return "\n".join(lines)


def _wrong_first(findings: Sequence[Finding]) -> list[Finding]:
    """What is wrong, then what was not checked."""
    return sorted(findings, key=lambda f: not f.is_checked)


def _metadata(findings: Sequence[Finding]) -> dict[str, int | JsonMetadataValue]:
    if not findings:
        return {"findings": 0}
    found = [f for f in findings if f.is_checked]
    return {
        "findings": len(found),
        "not_checked": len({f.text for f in findings if not f.is_checked}),
        "offsets": MetadataValue.json(
            [{"journal": f.journal, "begin": f.begin, "end": f.end} for f in found[:_SHOWN]]
        ),
    }
