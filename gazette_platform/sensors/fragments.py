"""The sensor that turns persisted fragments into tables.

One sensor serves all table specs, because it reads their folder anew at each tick: a spec written
while the platform runs works at the next tick, with no restart and no reload. Each tick moves each
table on by a bounded amount of work. A table with a problem holds up no other: the problem is a line
in the tick's log, and turns the table's check `keeps_up` red. A tick that has nothing to tell Dagster gives
its problems as the reason why; Dagster calls ticks without runs skipped, whatever they did.

Dagster stores a tick's events first and its cursor last, so a crash between them replays the tick.
Registration is idempotent by content, so the replay registers nothing twice; and events follow from
what accounts say and Dagster was told, so it tells just what was not told.

Work is shared out by turns. A tick ends by its own clock, and the next one begins with the table that
had no time; and each looks again at one slice of what was registered long ago.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DefaultSensorStatus,
    DeleteDynamicPartitionsRequest,
    MetadataValue,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from gazette_platform.assets.checks import keeps_up_evaluation, specs_evaluation
from gazette_platform.assets.raw import journals_partitions, table_key, table_partitions
from gazette_platform.errors import GazetteError, TransportError
from gazette_platform.hive import SharedMetastore
from gazette_platform.lake import (
    PartitionAccount,
    Registrar,
    Repair,
    SpecFolder,
    SweepPoint,
    TableReport,
    TableSpec,
)
from gazette_platform.lake.accounting import partition_accounts
from gazette_platform.ops.clock import SystemClock
from gazette_platform.resources import BrokerResource, LakeResource, MetastoreResource
from gazette_platform.sensors.audits import AuditState, TableAudits
from gazette_platform.sensors.cursor import SensorCursor, problem_digest
from gazette_platform.sensors.events import (
    journal_materialization,
    journal_partition,
    materialization,
    observation,
    pruned_materialization,
    repair_materialization,
    specs_materialization,
)
from gazette_platform.sensors.keys import hive_partition, table_partition
from gazette_platform.sensors.retention import Retention
from gazette_platform.sensors.told import (
    Added,
    InstanceTold,
    RowTotal,
    Told,
    Totals,
    added_since,
    untold,
)
from gazette_platform.sensors.turns import TickState, following, in_turn
from gazette_platform.sensors.waits import follow

__all__ = ["TickOutcome", "TickPorts", "fragments_sensor", "run_tick"]

_log = logging.getLogger(__name__)
_INTERVAL_S = 3
# Each event is a write of some milliseconds to Dagster's storage: a tick that tells more than this
# leaves the other tables to the next one.
_EVENTS_MAX = 2000
# A call each to metastore and Dagster's storage, of a table a tick.
_LOOKED_MAX = 100
# Seconds after which a tick begins nothing more. Dagster gives up on one, with all its events, after
# 60 s unless it is told otherwise; what was begun by then has the rest.
_TICK_S = 25.0


def _never() -> bool:
    return False


def _no_page(_table: str) -> Mapping[str, MetadataValue]:
    return {}


@final
@dataclass(slots=True)
class TickOutcome:
    """What a tick did to all tables."""

    events: list[AssetMaterialization | AssetObservation | AssetCheckEvaluation] = field(
        default_factory=list
    )
    partitions: list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest] = field(
        default_factory=list
    )
    summaries: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cursor: SensorCursor = field(default_factory=SensorCursor)

    @property
    def text(self) -> str:
        """What the tick says of itself: problems first, then what was registered."""
        return "\n".join([*self.problems, *self.warnings, *self.summaries]) or "No new fragments."

    @property
    def skip_reason(self) -> str | None:
        """Why nothing was done; None if something was, which Dagster is not to log as skipped."""
        return None if self.events or self.partitions or self.summaries else self.text


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
    clock = SystemClock()
    ends_at = clock.monotonic() + _TICK_S
    cursor = SensorCursor.parse(context.cursor)
    folder = lake.folder()
    if not folder.specs and not folder.refused and cursor.folder in {"", folder.digest}:
        # The folder may just not be there: nothing is forgotten.
        return SensorResult(
            skip_reason=f"No table specs (*.yaml) in {lake.tables}.", cursor=cursor.dump()
        )
    with broker.source() as source, SharedMetastore(metastore.client()) as shared:
        outcome = run_tick(
            TickPorts(
                registrar=lake.registrar(source, shared),
                audits=TableAudits(
                    lake.auditor(source),
                    lake.repairer(source),
                    lake.fit_checker(source),
                    shared,
                    lake.trino_catalog,
                ),
                retention=Retention(lake.shrinker(source), shared),
                told=InstanceTold(context.instance),
                is_over=lambda: clock.monotonic() >= ends_at,
                now_s=clock.unix_s,
                table_page=lake.table_page,
            ),
            folder,
            cursor,
        )
    for problem in outcome.problems:
        context.log.error(problem)
    for warning in outcome.warnings:
        context.log.warning(warning)
    for summary in outcome.summaries:
        context.log.info(summary)
    return SensorResult(
        asset_events=outcome.events,
        dynamic_partitions_requests=outcome.partitions,
        skip_reason=outcome.skip_reason,
        cursor=outcome.cursor.dump(),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TickPorts:
    """What a tick asks, and what it acts through."""

    registrar: Registrar
    audits: TableAudits
    retention: Retention
    told: Told
    is_over: Callable[[], bool] = _never
    """Whether the tick's time is up."""
    now_s: Callable[[], float] = SystemClock().unix_s
    """Unix seconds."""
    table_page: Callable[[str], Mapping[str, MetadataValue]] = _no_page
    """Metadata with a link to the page of ``catalog.schema.table``, if there is one."""


def run_tick(ports: TickPorts, folder: SpecFolder, cursor: SensorCursor) -> TickOutcome:
    """Move every table on, in turn. Tables whose spec is gone are forgotten by the cursor.

    Args:
        ports: registrar, audits, and what Dagster was told.
        folder: specs of the tables. While some are refused, no table is forgotten.
        cursor: of the last tick.

    Raises: TransportError: no broker can be reached, and nothing was registered before; the tick is
        then red in the UI, and the next one tries again.
    """
    specs = folder.specs
    names = list(specs)
    outcome = TickOutcome()
    has_all_specs = bool(specs) and not folder.refused
    kept = None if has_all_specs else cursor
    state = TickState.of(cursor, names, kept)
    swept = following(names, cursor.swept, is_again=True)
    round_ = _Round(cursor.sweep, cursor.looked) if swept == cursor.swept else _Round()
    audited = following(names, cursor.audited)
    turn = ""
    totals = {name: RowTotal(ports.told, table_key(name)) for name in names}
    for name in in_turn(names, cursor.turn):
        if ports.is_over() or len(outcome.events) >= _EVENTS_MAX:
            turn = name
            break
        ran = _run_table(
            ports,
            specs[name],
            state,
            outcome,
            totals[name],
            file=folder.files.get(name, ""),
            again=round_ if name == swept else None,
            is_audited=name == audited,
        )
        if name == swept:
            # A table with a problem loses its turn, so that the others get theirs.
            state.swept = name if ran.again is not None else following(names, name)
            left = ran.again or _Round()
            state.sweep, state.looked = left.sweep, left.looked
        if ran.is_last:
            # The others would wait in vain for the same brokers.
            turn = following(names, name)
            break
    if not turn and not ports.is_over():
        _follow_prunes(specs, cursor, state, _Teller(ports, outcome, totals))
    _tell_folder(outcome, folder, cursor, state)
    outcome.cursor = state.cursor(turn=turn, audited=audited, folder=folder.digest)
    return outcome


def _follow_prunes(
    specs: Mapping[str, TableSpec], before: SensorCursor, state: TickState, teller: "_Teller"
) -> None:
    """What there is time for, once all tables had their turn."""
    ports, outcome = teller.ports, teller.outcome
    try:
        found = ports.retention.run(
            specs, before.registered.tables, state.retention, ports.told, teller, ports.is_over
        )
    except GazetteError as err:
        outcome.warnings.append(_one_line(str(err)))
        return
    state.retention = found.state
    outcome.partitions += found.deletions
    outcome.summaries += found.summaries
    outcome.warnings += map(_one_line, found.warnings)


@final
@dataclass(frozen=True, slots=True)
class _Teller:
    """Tells of prunes, in events of the tick."""

    ports: TickPorts
    outcome: TickOutcome
    totals: Mapping[str, RowTotal]

    def tell(self, spec: TableSpec, accounts: Sequence[PartitionAccount]) -> None:
        """See `retention.Teller`."""
        asset = table_key(spec.name)
        just_told = {
            e.partition
            for e in self.outcome.events
            if isinstance(e, AssetMaterialization) and e.asset_key == asset
        }
        left = [a for a in accounts if table_partition(a.key) not in just_told]
        report = TableReport(table=spec.name, accounts=left)
        _tell(self.outcome, spec, report, self.ports, self.totals[spec.name])

    def tell_pruned(self, spec: TableSpec, account: PartitionAccount) -> None:
        """See `retention.Teller`."""
        event, added = _event_of(spec, account, self.ports, self.totals[spec.name])
        self.outcome.events.append(pruned_materialization(event, account, added))


@final
@dataclass(frozen=True, slots=True)
class _Round:
    """Where the round of looking again stands within a table."""

    sweep: SweepPoint = field(default_factory=SweepPoint)
    """In its fragments, which come first."""
    looked: str = ""
    """Then in its partitions that Dagster knows; empty before that."""


@final
@dataclass(slots=True)
class _Ran:
    """What one table's part of a tick means for the rest of it."""

    again: _Round | None = None
    """Where to go on with what is old; None: with the next table."""
    is_last: bool = False
    """Whether there is no point in going on to other tables."""


def _run_table(
    ports: TickPorts,
    spec: TableSpec,
    state: TickState,
    outcome: TickOutcome,
    total: RowTotal,
    *,
    file: str,
    again: _Round | None,
    is_audited: bool,
) -> _Ran:
    """One table's part of a tick."""
    name = spec.name
    ran = _Ran()
    problems: list[str] = []
    try:
        sweep = again.sweep if again is not None and not again.looked else None
        report = ports.registrar.tick(
            spec, state.tables.get(name, {}), sweep=sweep, is_over=ports.is_over
        )
        looked = ""
        if again is not None and report.swept is None:
            looked = _look_again(ports, spec, report, again.looked)
        _tell(outcome, spec, report, ports, total)
        # Only now: what is not told would not be touched again.
        state.tables[name] = report.cursors
        if report.swept is not None or looked:
            ran.again = _Round(report.swept or SweepPoint(), looked)
        state.retention = state.retention.with_broken(name, report.broken)
        problems = [_one_line(text) for text in (*report.errors, *state.retention.texts(name))]
        waiting = sum(map(len, state.waits.values()))
        followed = follow(state.waits.get(name, {}), report, ports.now_s(), waiting=waiting)
        state.waits[name] = followed.waits
        outcome.events += [observation(name, p) for p in followed.to_tell]
        problems += followed.stalls
        outcome.warnings += [*report.warnings, *(_one_line(f.text) for f in report.misfits)]
        known = state.audits.get(name, AuditState())
        is_due = is_audited or known.is_open or bool(report.updates) or report.is_changed
        if is_due and not ports.is_over():
            audited = ports.audits.run(spec, report, known, is_over=ports.is_over)
            problems += [_one_line(text) for text in audited.problems]
            _tell_repair(outcome, spec, audited.repair, ports, total)
            outcome.events += audited.evaluations
            state.audits[name] = audited.state
    except TransportError as err:
        if not outcome.events:
            raise
        ran.is_last = True
        problems.append(_one_line(str(err)))
    except GazetteError as err:
        problems.append(_one_line(str(err)))
    except Exception as err:  # noqa: BLE001  the supervisor of tables: a fault in one stops no other
        _log.warning("%s: its part of the tick ended", name, exc_info=err)
        text = f"{name}: unexpected {type(err).__name__}: {err} (this is a bug; the log has more)"
        problems.append(_one_line(text))
    # New fragments, old ones and audits of a journal that cannot be listed have one.
    _tell_problems(outcome, state, name, list(dict.fromkeys(problems)), file)
    return ran


def _look_again(ports: TickPorts, spec: TableSpec, report: TableReport, after: str) -> str:
    """Add accounts to the report that Dagster may have been told other things of.

    A Hive partition in which brokers list nothing any more, since all of its files were moved aside, is
    on no list of fragments. If the tick that emptied it could not tell, this finds it.

    Args:
        after: where to go on in what Dagster knows; empty: at its begin.

    Returns: where to go on; empty: this was the last of it.
    """
    if report.definition is None:
        return ""
    name = str(table_partitions(spec.name).name)
    known, left = ports.told.known(name, after, _LOOKED_MAX)
    columns = [column.name for column in report.definition.partition_columns]
    keys = [hive_partition(key, columns) for key in known]
    with ports.audits.metastore.connect() as session:
        # Those of the tick come behind, since they are newer.
        report.accounts[:0] = partition_accounts(session, report.definition, keys)
    return left


def _tell_problems(
    outcome: TickOutcome, state: TickState, table: str, problems: list[str], file: str
) -> None:
    """What keeps a table from keeping up; Dagster is told when that has changed."""
    outcome.problems += [
        text if not file or text.startswith(f"{file}: ") else f"{file}: {text}" for text in problems
    ]
    digest = problem_digest(problems)
    if digest != state.problems.get(table, ""):
        outcome.events.append(keeps_up_evaluation(table, problems, file))
    state.problems[table] = digest


def _tell_folder(
    outcome: TickOutcome, folder: SpecFolder, cursor: SensorCursor, state: TickState
) -> None:
    """What is wrong with files, and with the tables that they would be of."""
    by_table: dict[str, list[str]] = {}
    for bad in folder.refused.values():
        texts = [_one_line(str(error)) for error in bad.errors]
        by_table.setdefault(bad.table, []).extend(texts)
    outcome.problems[:0] = by_table.pop("", [])
    for table, texts in by_table.items():
        _tell_problems(outcome, state, table, texts, "")
    if folder.digest != cursor.folder:
        outcome.events += [specs_materialization(folder), specs_evaluation(folder)]


def _tell(
    outcome: TickOutcome, spec: TableSpec, report: TableReport, ports: TickPorts, total: RowTotal
) -> None:
    """Events of what differs from what was told, and partitions that Dagster lacks."""
    if not report.accounts:
        return
    asset = table_key(spec.name)
    former = {table_partition(a.key): a.key for a in report.accounts}
    keys = list(former)
    accounts = untold(report.accounts, ports.told.versions(asset, keys))
    outcome.events += [_event_of(spec, account, ports, total)[0] for account in accounts]
    touched = {a.journal for a in accounts}
    progress = [p for p in report.journals if p.journal in touched]
    outcome.events += [journal_materialization(spec.name, p) for p in progress]
    journals = [journal_partition(a.journal) for a in report.accounts]
    for definition, wanted in (
        (table_partitions(spec.name), keys),
        (journals_partitions(spec.name), list(dict.fromkeys(journals))),
    ):
        # A tick may have ended between its events and its partitions.
        known = ports.told.partitions(str(definition.name), [*wanted, *former.values()])
        missing = [key for key in wanted if key not in known]
        if missing:
            outcome.partitions.append(definition.build_add_request(missing))
        renamed = [k for k in former.values() if k in known and k not in wanted]
        if renamed:
            outcome.partitions.append(definition.build_delete_request(renamed))
    if report.updates:
        rows = [u.rows_added for u in report.updates]
        outcome.summaries.append(
            f"{spec.name}: {sum(u.fragments_added for u in report.updates)} fragments in "
            f"{len(report.updates)} Hive partitions, {sum(n for n in rows if n is not None)} rows"
            + (" or more" if None in rows else "")
            + ("; more at the next tick" if report.has_more else "")
            + "."
        )
    late = {a.key for a in accounts} - {u.key for u in report.updates}
    if late:
        outcome.summaries.append(
            f"{spec.name}: told of {len(late)} Hive partitions that were registered before."
        )


def _event_of(
    spec: TableSpec, account: PartitionAccount, ports: TickPorts, total: RowTotal
) -> tuple[AssetMaterialization, Added]:
    """The event of a Hive partition, and what it has more than the one before."""
    told = _told_of(ports.told, table_key(spec.name), account.key)
    added = added_since(account.state, told)
    rows = total.after(table_partition(account.key), account.state.rows, told)
    catalog = ports.audits.trino_catalog
    page = ports.table_page(f"{catalog}.{spec.name}")
    return materialization(spec, account, added, rows=rows, page=page, catalog=catalog), added


def _tell_repair(
    outcome: TickOutcome, spec: TableSpec, repair: Repair, ports: TickPorts, total: RowTotal
) -> None:
    """One event a Hive partition that files were moved out of."""
    if not repair.moved:
        return
    partitions = dict.fromkeys(m.finding.values for m in repair.moved)
    for values in partitions:
        moved = [m for m in repair.moved if m.finding.values == values]
        key, left = table_partition(moved[-1].key), moved[-1].state.rows
        told = _told_of(ports.told, table_key(spec.name), moved[-1].key)
        rows = total.after(key, left, told)
        outcome.events.append(
            repair_materialization(spec, moved, rows=rows, catalog=ports.audits.trino_catalog)
        )
    outcome.summaries.append(
        f"{spec.name}: {len(repair.moved)} files that others cover were moved aside, "
        f"{sum(m.rows for m in repair.moved)} rows are seen once again."
    )


def _told_of(told: Told, asset: AssetKey, key: str) -> Totals | None:
    """What was told of a Hive partition; former releases had the names of columns in Dagster's keys."""
    return told.totals(asset, table_partition(key)) or told.totals(asset, key)


def _one_line(text: str) -> str:
    return " ".join(text.split())
