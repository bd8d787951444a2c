"""The sensor that turns persisted fragments into tables.

One sensor serves all table specs, because it reads their folder anew at each tick: a spec written
while the platform runs works at the next tick, with no restart and no reload. Each tick moves each
table on by a bounded amount of work. A table with a problem holds up no other: the problem is the
tick's skip reason, a line in its log and, once per change, an observation of the table's asset.

Dagster stores a tick's events first and its cursor last, so a crash between them replays the tick.
Registration is idempotent by content, so the replay finds nothing new.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from dagster import (
    AssetCheckEvaluation,
    AssetMaterialization,
    AssetObservation,
    DefaultSensorStatus,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.definitions.dynamic_partitions_request import AddDynamicPartitionsRequest

from gazette_platform.assets.raw import journals_partitions, table_partitions
from gazette_platform.errors import GazetteError, TransportError
from gazette_platform.lake import Registrar, RegistrationCursor, Repair, TableReport, TableSpec
from gazette_platform.resources import BrokerResource, LakeResource, MetastoreResource
from gazette_platform.sensors.audits import AuditState, TableAudits
from gazette_platform.sensors.cursor import SensorCursor, problem_digest
from gazette_platform.sensors.events import (
    journal_partition,
    materialization,
    observation,
    problem_observation,
    repair_materialization,
)

__all__ = ["TickOutcome", "fragments_sensor", "run_tick"]

_INTERVAL_S = 3
# Each event is a write of some milliseconds to Dagster's storage: a tick that tells more than this
# leaves the other tables to the next one.
_EVENTS_MAX = 2000


@final
@dataclass(slots=True)
class TickOutcome:
    """What a tick did to all tables."""

    events: list[AssetMaterialization | AssetObservation | AssetCheckEvaluation] = field(
        default_factory=list
    )
    partitions: list[AddDynamicPartitionsRequest] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cursor: SensorCursor = field(default_factory=SensorCursor)

    @property
    def text(self) -> str:
        """What the tick says of itself: problems first, then what was registered."""
        return "\n".join([*self.problems, *self.warnings, *self.summaries]) or "No new fragments."


@sensor(
    name="fragments",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=DefaultSensorStatus.RUNNING,
    description="Registers persisted fragments as Hive partitions of the tables in the folder of "
    "table specs.",
)
def fragments_sensor(
    context: SensorEvaluationContext,
    broker: BrokerResource,
    metastore: MetastoreResource,
    lake: LakeResource,
) -> SensorResult:
    """Register what is new of every table."""
    cursor = SensorCursor.parse(context.cursor)
    specs, errors = lake.specs()
    problems = [str(err) for _, err in sorted(errors.items())]
    if not specs and not problems:
        return SensorResult(
            skip_reason=f"No table specs (*.yaml) in {lake.tables}.", cursor=SensorCursor().dump()
        )
    with broker.source() as source:
        client = metastore.client()
        outcome = run_tick(
            lake.registrar(source, client),
            TableAudits(
                lake.auditor(source), lake.repairer(source), lake.fit_checker(source), client
            ),
            specs,
            cursor,
            trino_ui=lake.trino_ui,
        )
    outcome.problems[:0] = problems
    for problem in outcome.problems:
        context.log.error(problem)
    for warning in outcome.warnings:
        context.log.warning(warning)
    return SensorResult(
        asset_events=outcome.events,
        dynamic_partitions_requests=outcome.partitions,
        skip_reason=outcome.text,
        cursor=outcome.cursor.dump(),
    )


def run_tick(
    registrar: Registrar,
    audits: TableAudits,
    specs: Mapping[str, TableSpec],
    cursor: SensorCursor,
    *,
    trino_ui: str = "",
) -> TickOutcome:
    """Move every table on. Tables whose spec is gone are forgotten by the cursor.

    Raises: TransportError: no broker can be reached, and nothing was registered before; the tick is
        then red in the UI, and the next one tries again.
    """
    outcome = TickOutcome()
    known: dict[str, AuditState] = {}
    offsets: dict[str, Mapping[str, int]] = {}
    told: dict[str, str] = {}
    is_over = False
    for name, spec in specs.items():
        offsets[name] = before = cursor.registered.offsets.get(name, {})
        former = cursor.problems.get(name, "")
        if name in cursor.audits:
            known[name] = cursor.audits[name]
        if is_over or len(outcome.events) >= _EVENTS_MAX:
            if former:
                told[name] = former
            continue
        problems: list[str] = []
        try:
            report = registrar.tick(spec, before)
            offsets[name] = report.offsets
            problems = [_one_line(text) for text in report.errors]
            outcome.warnings += [*report.warnings, *(_one_line(f.text) for f in report.misfits)]
            _tell(outcome, spec, report, trino_ui)
            audited = audits.run(spec, report, known.get(name, AuditState()))
            _tell_repair(outcome, spec, audited.repair)
            outcome.events += audited.evaluations
            known[name] = audited.state
        except TransportError as err:
            if not outcome.events:
                raise
            # The others would wait in vain for the same brokers.
            is_over = True
            problems.append(_one_line(str(err)))
        except GazetteError as err:
            problems.append(_one_line(str(err)))
        outcome.problems += problems
        digest = problem_digest(problems)
        if digest != former:
            outcome.events.append(problem_observation(name, problems))
        if digest:
            told[name] = digest
    known = {name: state for name, state in known.items() if state != AuditState()}
    outcome.cursor = SensorCursor(RegistrationCursor(offsets), told, known)
    return outcome


def _tell(outcome: TickOutcome, spec: TableSpec, report: TableReport, trino_ui: str) -> None:
    if not report.updates:
        return
    outcome.events += [materialization(spec, u, trino_ui=trino_ui) for u in report.updates]
    touched = {u.journal for u in report.updates}
    progress = [p for p in report.journals if p.journal in touched]
    outcome.events += [observation(spec.name, p) for p in progress]
    outcome.partitions += [
        table_partitions(spec.name).build_add_request([u.key for u in report.updates]),
        journals_partitions(spec.name).build_add_request(
            [journal_partition(p.journal) for p in progress]
        ),
    ]
    rows = [u.rows_added for u in report.updates]
    known = sum(n for n in rows if n is not None)
    outcome.summaries.append(
        f"{spec.name}: {sum(u.fragments_added for u in report.updates)} fragments in "
        f"{len(report.updates)} Hive partitions, {known} rows"
        + (" or more" if None in rows else "")
        + ("; more at the next tick" if report.has_more else "")
        + "."
    )


def _tell_repair(outcome: TickOutcome, spec: TableSpec, repair: Repair) -> None:
    """One event a Hive partition that files were moved out of."""
    if not repair.moved:
        return
    partitions = dict.fromkeys(m.finding.values for m in repair.moved)
    for values in partitions:
        moved = [m for m in repair.moved if m.finding.values == values]
        outcome.events.append(repair_materialization(spec, moved))
    outcome.summaries.append(
        f"{spec.name}: {len(repair.moved)} files that others cover were moved aside, "
        f"{sum(m.rows for m in repair.moved)} rows are seen once again."
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
