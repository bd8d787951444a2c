"""Audits of a tick: which journals to look at, what is known to be wrong, and when to report it.

Each tick audits the journals whose Hive partitions it changed, from the first of these on, those that
had overlaps, and one slice of one more journal in turn, so that all of a table is looked at again and
again with bounded work. What was found is kept in the cursor until an audit of the same bytes finds
otherwise. An overlap that was reported before, and persists, is repaired if it can be.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from gazette_platform.assets.checks import check_evaluations, with_counts
from gazette_platform.errors import StatusError, TransportError
from gazette_platform.lake import (
    Audit,
    Auditor,
    Finding,
    FitChecker,
    JournalCursor,
    Repair,
    Repairer,
    TableReport,
    TableSpec,
    ensure_views,
    excluded_files,
    json_columns,
    missing_columns,
    without_columns,
)
from gazette_platform.lake.catalog_settings import HIVE
from gazette_platform.lake.raw.account_book import partition_accounts
from gazette_platform.lake.raw.audits.fit import (
    PartitionFit,
    is_of_spec,
    partition_fit,
    table_finding,
)
from gazette_platform.lake.raw.audits.registration_status import partition_standings
from gazette_platform.lake.raw.tables import text_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dagster import AssetCheckEvaluation

    from gazette_platform.assets.checks import Checked
    from gazette_platform.hive import HiveTable, Metastore, MetastoreSession

# Hive partitions with unfit records: those that are known of a table, and those looked at again a tick.
_UNFIT_MAX = 200
_UNFIT_LOOKED_MAX = 50
# Fragments that a tick looks at again, since the spec has changed.
_AGAIN_MAX = 20
# Seconds after which checks say how much they looked at if that has changed at all.
_SAID_S = 600
# In place of a digest: checks are to be reported whatever it is.
_OUTGROWN = "outgrown"
_JOURNALS_MAX = 16
# Of a kind. Files that the exact view leaves out are kept whatever their number, without their texts.
_FINDINGS_MAX = 500
_FITS_MAX = 50
_FIELDS = (
    "kind", "journal", "begin", "end", "text", "is_error", "excluded", "directory", "since",
    "is_checked", "unfit", "values",
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class AuditState:
    """What is known of one table, and where the round of audits stands."""

    journal: str = ""
    """The journal audited last in turn."""
    offset: int = 0
    """Where to go on in it; 0: with the next journal."""
    findings: tuple[Finding, ...] = ()
    fits: tuple[Finding, ...] = ()
    """Findings of kind ``fit`` except unfit records, the one to be looked at again first."""
    unfit: tuple[PartitionFit, ...] = ()
    """Hive partitions with records that do not fit, those to be looked at again first."""
    again: tuple[tuple[str, int], ...] = ()
    """Journal and begin of fragments to count again: some of their records did not fit a former spec."""
    is_blocked: bool = False
    """Whether unfit records stop rollups."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By path: why a file that others cover is not to be moved."""
    told: str = ""
    """Digest of the findings last reported to Dagster; empty: never."""
    records: int = -1
    """Of the table when checks were last reported; -1: not known."""
    told_at: int = 0
    """When that was, in Unix seconds."""

    @property
    def is_open(self) -> bool:
        """Whether the table is to be looked at at once: never reported, or something is wrong."""
        is_wrong = self.findings or self.fits or self.again or self.is_blocked
        return not self.told or bool(is_wrong)

    @classmethod
    def from_json(cls, raw: Any) -> AuditState:
        """The state whose `to_json` was `raw`; an empty one if it is of another release.

        All of it is found out again, so nothing is lost by that.
        """
        try:
            return cls(
                str(raw["journal"]),
                int(raw["offset"]),
                _findings_from_json(raw.get("findings", [])),
                _findings_from_json(raw.get("fits", [])),
                tuple(map(PartitionFit.from_json, raw.get("unfit", []))),
                tuple((str(journal), int(begin)) for journal, begin in raw.get("again", [])),
                bool(raw.get("is_blocked", False)),
                {str(path): str(reason) for path, reason in raw.get("refused", {}).items()},
                str(raw["told"]),
                records=int(raw.get("records", -1)),
                told_at=int(raw.get("told_at", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            return cls()

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        raw: dict[str, Any] = {"journal": self.journal, "offset": self.offset, "told": self.told}
        for name, findings in (("findings", self.findings), ("fits", self.fits)):
            if findings:
                raw[name] = [[getattr(f, key) for key in _FIELDS] for f in findings]
        if self.unfit:
            raw["unfit"] = [fit.to_json() for fit in self.unfit]
        if self.again:
            raw["again"] = [list(place) for place in self.again]
        if self.is_blocked:
            raw["is_blocked"] = True
        if self.refused:
            raw["refused"] = dict(self.refused)
        if self.told_at:
            raw |= {"records": self.records, "told_at": self.told_at}
        return raw


def _findings_from_json(rows: Iterable[Any]) -> tuple[Finding, ...]:
    return tuple(
        Finding(**{**dict(zip(_FIELDS, row, strict=True)), "values": tuple(row[-1])})
        for row in rows
    )


@final
@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """The report of an audit."""

    state: AuditState = field(default_factory=AuditState)
    evaluations: Sequence[AssetCheckEvaluation] = ()
    repair: Repair = field(default_factory=Repair)
    problems: Sequence[str] = ()
    """Of journals that brokers could not list: what is known of them is kept."""


def _never() -> bool:
    return False


@final
@dataclass(frozen=True, slots=True)
class TableAudits:
    """What audits and repairs a table after its part of a tick."""

    auditor: Auditor
    repairer: Repairer
    fit_checker: FitChecker
    metastore: Metastore
    trino_catalog: str = HIVE
    """What Trino calls the catalog of the exact views."""

    def run(
        self,
        spec: TableSpec,
        report: TableReport,
        state: AuditState,
        *,
        is_over: Callable[[], bool] = _never,
        checked: Checked | None = None,
        now_s: float = 0,
    ) -> AuditOutcome:
        """Audit a part of a table, repair it, update its exact view, and report what changed.

        Checks are reported again, too, when the table has grown by 1 % since, or by anything in ten minutes: green
        ones say how much they looked at.

        A table that is not made yet has nothing to audit. Nor has one whose selector matches no
        journal right now, but what is known of it is kept. When time is up, journals that were to be
        audited are left to the round.

        Raises: GazetteError: a server cannot be reached, or the view's name is taken.
        """
        if report.definition is None:
            return AuditOutcome(state)
        with self.metastore.connect() as session:
            table = session.table(spec.schema, spec.stored_table)
            if table is None:
                return AuditOutcome()
            if checked is not None and _is_outgrown(state, checked, now_s):
                state = replace(state, told=_OUTGROWN)
            outcome = self._run(session, spec, table, report, state, is_over)
        if checked is None or not outcome.evaluations:
            return outcome
        records = -1 if checked.records is None else checked.records
        return replace(
            outcome,
            state=replace(outcome.state, records=records, told_at=int(now_s)),
            evaluations=[with_counts(one, checked) for one in outcome.evaluations],
        )

    def _run(  # noqa: PLR0917
        self,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        report: TableReport,
        state: AuditState,
        is_over: Callable[[], bool],
    ) -> AuditOutcome:
        journals = sorted(p.journal for p in report.journals)
        known = {f.path for f in state.findings if f.excluded}
        before = state
        state, slices = _slices(journals, report, state)
        # Files of a journal that is gone are still in the table: the exact view goes on without them.
        findings = [f for f in state.findings if f.journal in journals or f.excluded]
        problems: dict[str, str] = {}
        is_at_turn = False
        for number, (journal, begin) in enumerate(slices):
            if number and is_over():
                break
            audit = self._audit(session, table, journal, begin, report, findings, problems)
            findings = _merged(findings, audit)
            if journal == state.journal and begin == state.offset:
                is_at_turn = True
                state = replace(state, offset=audit.end or 0 if audit is not None else 0)
        if not is_at_turn:
            state = replace(state, journal=before.journal, offset=before.offset)
        # A new finding is reported first, which turns the check red and corrects the view.
        targets = [
            f
            for f in findings
            if f.path in known
            and f.path not in state.refused
            and f.journal in journals
            and f.journal not in problems
        ]
        repair = self.repairer.repair(session, table, targets, report.cursors, is_over=is_over)
        for journal in dict.fromkeys(m.finding.journal for m in repair.moved):
            begin = min(f.begin for f in findings if f.journal == journal)
            audit = self._audit(session, table, journal, begin, report, findings, problems)
            findings = _merged(findings, audit)
        paths = {f.path for f in findings}
        refused = {p: r for p, r in {**state.refused, **repair.refused}.items() if p in paths}
        named = [f for f in state.fits if not f.journal or f.journal in journals]
        fits = self._fits(spec, report, named, problems, is_over)
        unfit, again = _unfit(session, spec, table, report, state)
        too_many = table_finding(spec, unfit, text_columns(spec, table))
        findings.sort(key=lambda f: (f.journal, f.begin, f.end, f.kind, f.text))
        ensure_views(session, spec, table, excluded_files(findings), catalog=self.trino_catalog)
        told = [_with_reason(f, {**repair.waiting, **refused}) for f in findings]
        told += [too_many] if too_many is not None else []
        told += sorted(fits, key=lambda f: (f.journal, f.begin, f.end))
        texts = sorted({_told(f) for f in _kept(told)})
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
        return AuditOutcome(
            replace(
                state,
                findings=_kept(findings),
                fits=tuple(fits[:_FITS_MAX]),
                unfit=tuple(unfit),
                again=tuple(again),
                is_blocked=too_many is not None and too_many.is_error,
                refused=refused,
                told=digest,
            ),
            check_evaluations(spec.name, told) if digest != state.told else (),
            repair,
            tuple(problems.values()),
        )

    def _audit(  # noqa: PLR0917
        self,
        session: MetastoreSession,
        table: HiveTable,
        journal: str,
        begin: int,
        report: TableReport,
        former: Sequence[Finding],
        problems: dict[str, str],
    ) -> Audit | None:
        """An audit of one journal; None: brokers cannot list it, and `problems` has the reason."""
        known = {f.directory for f in former if f.excluded and f.journal == journal}
        try:
            return self.auditor.audit(
                session,
                table,
                journal,
                begin=begin,
                cursor=report.cursors.get(journal, JournalCursor()),
                known=known,
            )
        except (StatusError, TransportError) as err:
            problems[journal] = str(err)
            return None

    def _fits(
        self,
        spec: TableSpec,
        report: TableReport,
        former: Sequence[Finding],
        problems: dict[str, str],
        is_over: Callable[[], bool],
    ) -> list[Finding]:
        """What of `former` still holds, as far as looked at again, and what is new."""
        missing = next((f for f in former if not f.journal), None)
        if missing is not None:
            missing = without_columns(missing, spec, report.columns)
        elif report.is_changed and report.updates:
            missing = missing_columns(spec, json_columns(spec) - report.columns)
        named = [f for f in former if f.journal]
        if named and not is_over():
            # One a tick, since each may be a large file to read.
            again: Finding | None = named[0]
            try:
                again = self.fit_checker.look_again(spec, named[0])
            except (StatusError, TransportError) as err:
                problems[named[0].journal] = str(err)
            named = [*named[1:], *([again] if again is not None else [])]
        # Accounts report unfit records.
        named = [f for f in (*named, *report.misfits) if not f.unfit]
        return [*([missing] if missing is not None else []), *named]


def _unfit(
    session: MetastoreSession,
    spec: TableSpec,
    table: HiveTable,
    report: TableReport,
    state: AuditState,
) -> tuple[list[PartitionFit], list[tuple[str, int]]]:
    """What does not fit of Hive partitions that a tick touched, of some of those known, and of the others as it was.

    With nothing known and nothing reported, all accounts are looked through: a red check must not turn green because of that.

    Returns: these, those to be looked at next first; and fragments to count again.
    """
    states = {account.key: account.state for account in report.accounts}
    left = [fit for fit in state.unfit if fit.key not in states]
    looked = {fit.key for fit in left[:_UNFIT_LOOKED_MAX]}
    if not state.told or not table.partition_columns:
        states |= {p.key: p.state for p in partition_standings(session, table)}
    else:
        states |= {a.key: a.state for a in partition_accounts(session, table, sorted(looked))}
    fits = [partition_fit(key, each) for key, each in states.items()]
    found = [fit for fit in left if fit.key not in looked and fit.key not in states]
    found += [fit for fit in fits if fit is not None]
    if len(found) > _UNFIT_MAX:
        threshold = spec.unfit.threshold
        worst = sorted(found, key=lambda f: (f.verdict(threshold) != "blocked", -f.percent))
        kept = {fit.key for fit in worst[:_UNFIT_MAX]}
        found = [fit for fit in found if fit.key in kept]
    again = [
        (each.journal, fragment.begin)
        for each in states.values()
        for fragment in each.unfit
        if not is_of_spec(spec, fragment)
    ]
    return found, again[:_AGAIN_MAX]


def _told(finding: Finding) -> str:
    """What distinguishes a finding from another one: of unfit records not how many others there are by now."""
    if finding.unfit and finding.values:
        return " ".join(finding.values)
    return finding.text or finding.path


def _is_outgrown(state: AuditState, checked: Checked, now_s: float) -> bool:
    """Whether what checks said of the size of the table is to be reported again."""
    if not state.told or checked.records is None or checked.records == state.records:
        return False
    is_late = now_s - state.told_at >= _SAID_S
    return is_late or abs(checked.records - state.records) * 100 >= max(state.records, 1)


def _with_reason(finding: Finding, reasons: Mapping[str, str]) -> Finding:
    reason = reasons.get(finding.path) if finding.excluded else None
    return replace(finding, text=f"{finding.text}; {reason}") if reason else finding


def _slices(
    journals: Sequence[str], report: TableReport, state: AuditState
) -> tuple[AuditState, list[tuple[str, int]]]:
    """Journals to audit and where to begin, and the state with the journal that is in turn."""
    begins: dict[str, int] = {}
    for update in report.updates:
        first = update.state.ranges[0][0]
        begins[update.journal] = min(first, begins.get(update.journal, first))
    for finding in state.findings:
        if finding.excluded and finding.journal in journals:
            first = finding.begin
            begins[finding.journal] = min(first, begins.get(finding.journal, first))
    slices = list(begins.items())[:_JOURNALS_MAX]
    if not journals:
        return replace(state, journal="", offset=0), slices
    if not state.offset or state.journal not in journals:
        following = [j for j in journals if j > state.journal] or journals
        state = replace(state, journal=following[0], offset=0)
    if (state.journal, state.offset) not in slices:
        # Not last, or it would not have its turn while much changes and time is short.
        slices.insert(1, (state.journal, state.offset))
    return state, slices


def _merged(findings: Sequence[Finding], audit: Audit | None) -> list[Finding]:
    if audit is None:
        return list(findings)
    kept = [f for f in findings if not audit.replaces(f)]
    return list(dict.fromkeys([*kept, *audit.findings]))


def _kept(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Of each kind as many as are shown at most, and all files that the exact view leaves out.

    A table with many gaps must not lose sight of its overlaps, nor show a row twice for their number.
    """
    kept: list[Finding] = []
    counts: Counter[str] = Counter()
    for finding in findings:
        counts[finding.kind] += 1
        if counts[finding.kind] <= _FINDINGS_MAX:
            kept.append(finding)
        elif finding.excluded:
            kept.append(replace(finding, text=""))
    return tuple(kept)
