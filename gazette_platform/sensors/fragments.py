"""The sensors that turn persisted fragments into tables: one, or several that share the tables out.

They serve all table specs, because they read their folder again at each tick: a spec written
while the platform runs works at the next tick, with no restart and no reload. Each tick moves each
table of its sensor on by a bounded amount of work. A table with a problem holds up no other: the problem is a line
in the tick's log, and turns the table's check `keeps_up` red. A tick that has nothing to report to Dagster gives
its problems as the reason why; Dagster calls ticks without runs skipped, whatever they did.

Dagster stores a tick's events first and its cursor last, so a crash between them replays the tick.
Registration is idempotent by content, so the replay registers nothing twice; and events follow from
what accounts say with Dagster's events, so it reports just what was not reported.

Work is shared out by turns. A tick ends by its own clock, and the next one begins with the table that
had no time; and each looks again at one slice of what was registered long ago.

Several sensors share the tables out. The hash of a table's name decides, so a new table has its sensor at once, and no sensor needs to know the others.
What belongs to no table (the folder of table specs, and files in it that name no table) is the first one's.

An *epoch* begins when the number of sensors changes. Each sensor then finds a cursor that its name has left long ago, or
none. Old offsets in it repeat nothing, since events follow from Dagster's own log. But problems and audits *as they were
reported* do not hold any more: other sensors reported them meanwhile. So a cursor names its epoch, and the event of the
folder of table specs, which the first sensor reports, names the newest one.

One thing is passed on to the sensors of a new epoch: that brokers once listed nothing of a journal any more. Only cursors
know it. If it were lost while a store is away, rows of that store might be taken for pruned.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    DagsterInstance,
    DefaultSensorStatus,
    MetadataValue,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from gazette_platform.assets.checks import is_red, keeps_up_evaluation, specs_evaluation
from gazette_platform.assets.raw import SPECS_KEY, journals_key, table_key
from gazette_platform.errors import GazetteError, TransportError, ValidationError
from gazette_platform.hive import SharedMetastore
from gazette_platform.lake import Registrar, SpecFolder, SweepPoint, TableSpec
from gazette_platform.ops.clock import SystemClock
from gazette_platform.resources import BrokerResource, LakeResource, MetastoreResource
from gazette_platform.sensors.audits import AuditState, TableAudits
from gazette_platform.sensors.cursor import (
    SensorCursor,
    TickOutcome,
    TickState,
    follow,
    following,
    in_turn,
    problem_digest,
)
from gazette_platform.sensors.events import InstanceTold, Told, observation, specs_materialization
from gazette_platform.sensors.prunes import PruneTick, Retention, RetentionState
from gazette_platform.sensors.reporting import KnownSlice, Telling, TellingPorts

SENSORS_MAX: Final = 32
"""Sensors. Each is a thread of Dagster's daemon while it ticks, and all are in one process of its code server."""

_NAME: Final = "fragments"
# Metadata keys of the event of the folder.
_COUNT: Final = "gazette/fragment_sensors"
_EPOCH: Final = "gazette/sensor_epoch"


@final
@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` sensors, and the tables that it has.

    >>> [Share(n, 2).owns("shop.orders") for n in range(2)], Share().name, Share(1, 2).name
    ([False, True], 'fragments', 'fragments_1')
    """

    index: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """Of its sensor; of one that is alone as it was before there were several."""
        return _NAME if self.count == 1 else f"{_NAME}_{self.index}"

    @property
    def is_first(self) -> bool:
        """Whether it has what belongs to no table."""
        return self.index == 0

    def owns(self, table: str) -> bool:
        """Whether it has the table ``schema.table``, or for "" what belongs to no table."""
        if not table:
            return self.is_first
        # Python's own hash differs from process to process.
        digest = hashlib.sha256(table.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index

    def part_of(self, folder: SpecFolder) -> SpecFolder:
        """What of a folder it has."""
        if self.count == 1:
            return folder
        specs = {table: spec for table, spec in folder.specs.items() if self.owns(table)}
        return SpecFolder(
            specs,
            {table: file for table, file in folder.files.items() if table in specs},
            {file: bad for file, bad in folder.refused.items() if self.owns(bad.table)},
        )


def shares(count: int) -> list[Share]:
    """All of `count` sensors.

    Raises: ValidationError: they are none, or too many.
    """
    if not 1 <= count <= SENSORS_MAX:
        raise ValidationError(
            f"{count} is not between 1 and {SENSORS_MAX}", path="GAZETTE_FRAGMENT_SENSORS"
        )
    return [Share(index, count) for index in range(count)]


def epoch_of(instance: DagsterInstance, share: Share) -> int:
    """The epoch that a sensor is in; one query. It is a new one as long as Dagster knows another number of them."""
    records = instance.fetch_materializations(SPECS_KEY, limit=1).records
    event = records[0].asset_materialization if records else None
    if event is None:
        return 0
    values = {key: value.value for key, value in event.metadata.items()}
    count, epoch = values.get(_COUNT, 1), values.get(_EPOCH)
    if not isinstance(epoch, int):
        return 0  # a person reported it, in the UI
    return epoch if count == share.count else epoch + 1


def epoch_metadata(share: Share, epoch: int) -> Mapping[str, int]:
    """What the event of the folder says, for `epoch_of`."""
    return {_COUNT: share.count, _EPOCH: epoch}


_SENSOR_NAMES: Final = re.compile(r"fragments(_\d+)?")


def former_cursors(context: SensorEvaluationContext) -> Iterator[SensorCursor]:
    """Cursors of all sensors of this kind that this code location has, or once had; one query."""
    origin = context.code_location_origin
    for state in context.instance.all_instigator_state():
        data = state.sensor_instigator_data
        if data is None or not data.cursor or not _SENSOR_NAMES.fullmatch(state.instigator_name):
            continue
        if origin and state.repository_selector.location_name != origin.location_name:
            continue
        try:
            yield SensorCursor.parse(data.cursor)
        except ValidationError:
            continue  # of another release, or edited by hand; its own sensor would say so


def former_retention(cursors: Iterable[SensorCursor]) -> RetentionState:
    """What those of the last epoch know of breaks, of all tables."""
    found = list(cursors)
    last = max((cursor.epoch for cursor in found), default=0)
    state = RetentionState()
    for cursor in found:
        if cursor.epoch == last:
            for table, broken in cursor.retention.broken.items():
                state = state.with_broken(table, broken)
    return state


_log = logging.getLogger(__name__)
_INTERVAL_S = 3
# Each event is a write of some milliseconds to Dagster's storage: a tick that reports more than this
# leaves the other tables to the next one.
_EVENTS_MAX = 2000
# Seconds for which a tick of a removed sensor may go on after the number of sensors was changed. If
# two reported a table at the same time, both would report the same rows.
_HAND_OVER_S = 60.0
_RESTS = (
    "Waits for a minute, since tables are shared out again: a tick of a sensor that had them may not have "
    "ended yet."
)
# Seconds after which a tick begins nothing more. Dagster gives up on one, with all its events, after
# 60 s by default; what was begun by then has the rest.
_TICK_S = 25.0
# Of these, at the end: nothing more is registered then, so that the audit of what was has time. Without it, rollups
# might run before the check that stops them is red.
_AUDIT_S = 5.0
# For answers of the metastore to what was asked by then.
_ANSWERS_S = 4.0


def _never() -> bool:
    return False


def _no_page(_table: str) -> Mapping[str, MetadataValue]:
    return {}


def _sensor_of(share: Share, fills: Sequence[AssetKey] = ()) -> SensorDefinition:
    """Return a sensor.

    Args:
        share: whose tables it has.
        fills: assets whose pages name the sensor. It starts no run of them.
    """
    part = "" if share.count == 1 else f" that are number {share.index} of {share.count} by name"

    @sensor(
        name=share.name,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Registers persisted fragments as Hive partitions of the tables in the folder of "
        f"table specs{part}, and reports them to Dagster. It starts no runs: Dagster calls a tick "
        "skipped that starts none, whatever it did, and gives a reason only if there was nothing to do.",
        asset_selection=fills or None,
    )
    def register(
        context: SensorEvaluationContext,
        broker: BrokerResource,
        metastore: MetastoreResource,
        lake: LakeResource,
    ) -> SensorResult:
        """Register what is new of every table."""
        return _tick(context, share, broker, metastore, lake)

    return register


fragments_sensor = _sensor_of(Share())
"""The sensor that has all tables."""


def fragments_sensors(count: int, folder: SpecFolder | None = None) -> list[SensorDefinition]:
    """Sensors that share the tables out, by the hash of their names.

    Args:
        count: how many.
        folder: table specs whose assets name the sensor that fills them.

    Raises: ValidationError: they are none, or too many.
    """
    known = folder or SpecFolder()
    return [
        _sensor_of(share, _fills(share, known) if folder is not None else ())
        for share in ([Share()] if count == 1 else shares(count))
    ]


def _fills(share: Share, folder: SpecFolder) -> list[AssetKey]:
    """Return the assets that a sensor reports."""
    part = share.part_of(folder)
    tables = sorted({*part.specs, *(bad.table for bad in part.refused.values() if bad.table)})
    keys = [table_key(table) for table in tables]
    keys += [journals_key(table) for table in part.specs]
    return [*([SPECS_KEY] if share.is_first else []), *keys]


def _tick(
    context: SensorEvaluationContext,
    share: Share,
    broker: BrokerResource,
    metastore: MetastoreResource,
    lake: LakeResource,
) -> SensorResult:
    """One tick of a sensor."""
    clock = SystemClock()
    ends_at = clock.monotonic() + _TICK_S
    cursor = SensorCursor.parse(context.cursor)
    epoch = epoch_of(context.instance, share)
    if cursor.epoch != epoch:
        if not cursor.rests_from:
            # Now, while none of the others has gone on.
            former = former_retention([cursor, *former_cursors(context)])
            cursor = replace(cursor, rests_from=int(clock.unix_s()), retention=former)
        if clock.unix_s() < cursor.rests_from + _HAND_OVER_S:
            return SensorResult(skip_reason=_RESTS, cursor=cursor.dump())
        cursor = cursor.in_epoch(epoch)
    cursor = replace(cursor, rests_from=0).of(share.owns)
    folder = lake.folder()
    if not folder.specs and not folder.refused and cursor.folder in {"", folder.digest}:
        # The folder may just be missing: nothing is forgotten.
        return SensorResult(
            skip_reason=f"No table specs (*.yaml) in {lake.tables}.", cursor=cursor.dump()
        )
    opened = SharedMetastore(metastore.client(), ends_at=ends_at + _ANSWERS_S)
    with broker.source() as source, opened as shared:
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
                is_late=lambda: clock.monotonic() >= ends_at - _AUDIT_S,
                now_s=clock.unix_s,
                table_page=lake.table_page,
            ),
            folder,
            cursor,
            share,
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
    is_late: Callable[[], bool] = _never
    """Whether the rest of the tick's time is for audits."""
    now_s: Callable[[], float] = SystemClock().unix_s
    """Unix seconds."""
    table_page: Callable[[str], Mapping[str, MetadataValue]] = _no_page
    """Metadata with a link to the page of ``catalog.schema.table``, if there is one."""

    def is_full(self) -> bool:
        """Whether the tick registers nothing more."""
        return self.is_late() or self.is_over()


def run_tick(
    ports: TickPorts, folder: SpecFolder, cursor: SensorCursor, share: Share | None = None
) -> TickOutcome:
    """Move every table of a sensor on, in turn. Tables whose spec is gone are forgotten by the cursor.

    Args:
        ports: registrar, audits, and Dagster's events.
        folder: specs of all tables. While some are refused, no table is forgotten.
        cursor: of the last tick, as `SensorCursor.of` gives it.
        share: whose tables they are; None: all are.

    Raises: TransportError: no broker can be reached, and nothing was registered before; the tick is
        then red in the UI, and the next one tries again.
    """
    share = share or Share()
    specs = share.part_of(folder).specs
    names = list(specs)
    outcome = TickOutcome()
    has_all_specs = bool(folder.specs) and not folder.refused
    kept = None if has_all_specs else cursor
    state = TickState.of(cursor, names, kept)
    swept = following(names, cursor.swept, is_again=True)
    round_ = _Round(cursor.sweep, cursor.looked) if swept == cursor.swept else _Round()
    audited = following(names, cursor.audited)
    turn = ""
    telling = TellingPorts(
        told=ports.told,
        metastore=ports.audits.metastore,
        trino_catalog=ports.audits.trino_catalog,
        table_page=ports.table_page,
    )
    tellings = {
        name: Telling(telling, outcome, spec, state.tables[name]) for name, spec in specs.items()
    }
    for name in in_turn(names, cursor.turn):
        if ports.is_full() or len(outcome.events) >= _EVENTS_MAX:
            turn = name
            break
        ran = _run_table(
            ports,
            specs[name],
            state,
            outcome,
            tellings[name],
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
        before = cursor.registered.tables
        tick = PruneTick(
            specs=specs, cursors=before, told=ports.told, tellings=tellings, is_over=ports.is_over
        )
        _follow_prunes(ports.retention, tick, state, outcome)
    _tell_folder(outcome, folder, cursor, state, share)
    # Dagster stores one event after the other, and asks for rollups meanwhile: what blocks them comes first.
    outcome.events.sort(key=lambda event: not _blocks(event))
    outcome.cursor = state.cursor(
        turn=turn, audited=audited, folder=folder.digest, epoch=cursor.epoch
    )
    return outcome


def _blocks(event: object) -> bool:
    return isinstance(event, AssetCheckEvaluation) and bool(event.blocking) and is_red(event)


def _follow_prunes(
    retention: Retention, tick: PruneTick, state: TickState, outcome: TickOutcome
) -> None:
    """Further work, once all tables had their turn and time is left."""
    try:
        found = retention.run(tick, state.retention)
    except GazetteError as err:
        outcome.warnings.append(_one_line(str(err)))
        return
    except Exception as err:  # noqa: BLE001  as in `_run_table`: what was registered is reported all the same
        _log.warning("following prunes ended", exc_info=err)
        outcome.warnings.append(_one_line(f"prunes: unexpected {type(err).__name__}: {err}"))
        return
    state.retention = found.state
    outcome.partitions += found.deletions
    outcome.summaries += found.summaries
    outcome.warnings += map(_one_line, found.warnings)


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
    telling: Telling,
    *,
    file: str,
    again: _Round | None,
    is_audited: bool,
) -> _Ran:
    """One table's part of a tick."""
    name = spec.name
    ran = _Ran()
    problems: list[str] = []
    journals: int | None = None
    try:
        sweep = again.sweep if again is not None and not again.looked else None
        known = state.audits.get(name, AuditState())
        report = ports.registrar.tick(
            spec, state.tables.get(name, {}), sweep=sweep, again=known.again, is_over=ports.is_full
        )
        journals = len(report.journals)
        looked = KnownSlice()
        if again is not None and report.swept is None:
            looked = telling.look_again(report, again.looked)
        telling.tell(report, looked)
        # Only now: what is not reported would not be touched again.
        state.tables[name] = report.cursors
        if report.swept is not None or looked.following:
            ran.again = _Round(report.swept or SweepPoint(), looked.following)
        state.retention = state.retention.with_broken(name, report.broken)
        problems = [_one_line(text) for text in (*report.errors, *state.retention.texts(name))]
        waiting = sum(map(len, state.waits.values()))
        followed = follow(state.waits.get(name, {}), report, ports.now_s(), waiting=waiting)
        state.waits[name] = followed.waits
        outcome.events += [observation(name, p) for p in followed.to_tell]
        problems += followed.stalls
        outcome.warnings += [*report.warnings, *(_one_line(f.text) for f in report.misfits)]
        is_due = is_audited or known.is_open or bool(report.updates) or report.is_changed
        if is_due and not ports.is_over():
            audited = ports.audits.run(
                spec,
                report,
                known,
                is_over=ports.is_over,
                checked=telling.checked(report),
                now_s=ports.now_s(),
            )
            problems += [_one_line(text) for text in audited.problems]
            telling.tell_repair(report.definition, audited.repair)
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
    _tell_problems(outcome, state, name, list(dict.fromkeys(problems)), file, journals)
    return ran


def _tell_problems(  # noqa: PLR0917
    outcome: TickOutcome,
    state: TickState,
    table: str,
    problems: list[str],
    file: str,
    journals: int | None = None,
) -> None:
    """What keeps a table from keeping up; reported to Dagster when it has changed."""
    outcome.problems += [
        text if not file or text.startswith(f"{file}: ") else f"{file}: {text}" for text in problems
    ]
    digest = problem_digest(problems)
    if digest != state.problems.get(table, ""):
        outcome.events.append(keeps_up_evaluation(table, problems, file, journals))
    state.problems[table] = digest


def _tell_folder(
    outcome: TickOutcome,
    folder: SpecFolder,
    cursor: SensorCursor,
    state: TickState,
    share: Share,
) -> None:
    """What is wrong with files, and with the tables that they would be of."""
    by_table: dict[str, list[str]] = {}
    for bad in share.part_of(folder).refused.values():
        texts = [_one_line(str(error)) for error in bad.errors]
        by_table.setdefault(bad.table, []).extend(texts)
    outcome.problems[:0] = by_table.pop("", [])
    for table, texts in by_table.items():
        _tell_problems(outcome, state, table, texts, "")
    if share.is_first and folder.digest != cursor.folder:
        event = specs_materialization(folder)
        since = epoch_metadata(share, cursor.epoch)
        outcome.events += [
            event.with_metadata({**event.metadata, **since}),
            specs_evaluation(folder),
        ]


def _one_line(text: str) -> str:
    return " ".join(text.split())
