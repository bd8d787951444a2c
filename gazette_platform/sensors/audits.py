"""Audits of a tick: which journals to look at, what is known to be wrong, and when to tell.

Each tick audits the journals whose Hive partitions it changed, from the first of these on, and one
slice of one more journal in turn, so that all of a table is looked at again and again with bounded
work. What was found is kept in the cursor until an audit of the same bytes finds otherwise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from gazette_platform.assets.checks import check_evaluations
from gazette_platform.errors import ValidationError
from gazette_platform.lake import (
    Audit,
    Auditor,
    Finding,
    TableReport,
    TableSpec,
    ensure_exact_view,
    excluded_files,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import AssetCheckEvaluation

    from gazette_platform.hive import MetastoreSession

__all__ = ["AuditState", "audit_table"]

_JOURNALS_MAX = 16
_FINDINGS_MAX = 500
_FIELDS = ("kind", "journal", "begin", "end", "text", "excluded", "values")


@final
@dataclass(frozen=True, slots=True)
class AuditState:
    """What is known of one table, and where the round of audits stands."""

    journal: str = ""
    """The journal audited last in turn."""
    offset: int = 0
    """Where to go on in it; 0: with the next journal."""
    findings: tuple[Finding, ...] = ()
    told: str = ""
    """Digest of the findings last told to Dagster; empty: never."""

    @classmethod
    def from_json(cls, raw: Any) -> AuditState:
        """The state whose `to_json` was `raw`.

        Raises: ValidationError: it is not one.
        """
        try:
            findings = tuple(
                Finding(**{**dict(zip(_FIELDS, row, strict=True)), "values": tuple(row[-1])})
                for row in raw.get("findings", [])
            )
            return cls(str(raw["journal"]), int(raw["offset"]), findings, str(raw["told"]))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as err:
            raise ValidationError("audits are malformed: clear the cursor", path="cursor") from err

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        raw: dict[str, Any] = {"journal": self.journal, "offset": self.offset, "told": self.told}
        if self.findings:
            raw["findings"] = [[getattr(f, name) for name in _FIELDS] for f in self.findings]
        return raw


def audit_table(
    auditor: Auditor,
    session: MetastoreSession,
    spec: TableSpec,
    report: TableReport,
    state: AuditState,
) -> tuple[AuditState, list[AssetCheckEvaluation]]:
    """Audit a part of a table, bring its exact view up to date, and tell what changed.

    Raises: GazetteError: a server cannot be reached, or the view's name is taken.
    """
    table = session.table(spec.schema, spec.table)
    if table is None:
        return AuditState(), []
    journals = sorted(p.journal for p in report.journals)
    state, slices = _slices(journals, report, state)
    findings = [f for f in state.findings if f.journal in journals]
    for journal, begin in slices:
        audit = auditor.audit(
            session, spec, table, journal, begin=begin, registered=report.offsets.get(journal, 0)
        )
        findings = _merged(findings, audit)
        if journal == state.journal and begin == state.offset:
            state = replace(state, offset=audit.end or 0)
    findings.sort(key=lambda f: (f.journal, f.begin, f.end, f.kind, f.text))
    ensure_exact_view(session, spec, table, excluded_files(findings))
    digest = hashlib.sha256(json.dumps([f.text for f in findings]).encode()).hexdigest()[:16]
    events = check_evaluations(spec.name, findings) if digest != state.told else []
    return replace(state, findings=tuple(findings[:_FINDINGS_MAX]), told=digest), events


def _slices(
    journals: Sequence[str], report: TableReport, state: AuditState
) -> tuple[AuditState, list[tuple[str, int]]]:
    """Journals to audit and where to begin, and the state with the journal that is in turn."""
    begins: dict[str, int] = {}
    for update in report.updates:
        first = update.state.ranges[0][0]
        begins[update.journal] = min(first, begins.get(update.journal, first))
    slices = list(begins.items())[:_JOURNALS_MAX]
    if not journals:
        return AuditState(findings=state.findings, told=state.told), slices
    if not state.offset or state.journal not in journals:
        following = [j for j in journals if j > state.journal] or journals
        state = replace(state, journal=following[0], offset=0)
    if (state.journal, state.offset) not in slices:
        slices.append((state.journal, state.offset))
    return state, slices


def _merged(findings: Sequence[Finding], audit: Audit) -> list[Finding]:
    kept = [
        f
        for f in findings
        if f.journal != audit.journal
        or f.begin < audit.begin
        or (audit.end is not None and f.begin >= audit.end)
    ]
    return kept + list(audit.findings)
