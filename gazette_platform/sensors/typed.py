"""The sensor that reports typed tables to Dagster, whatever process runs them.

The table says what it holds, and Dagster's log what was reported; the sensor reports the difference, as for raw tables. So a
process that goes on without end is seen, and a run of `gazctl`, and all of it once more when Dagster's home was lost. Runs that
Dagster starts report themselves, in the same words, and then nothing differs. While one is under way its table is left to it:
if both reported what it has published, the same rows would count twice.

A tick looks at each table: at a file of metadata, no more, unless something was published. Each tick it is the turn of one
of them to be looked at thoroughly: its rows are counted, and brokers are asked for its lag. What checks say is reported
when it has changed.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    MetadataValue,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from gazette_platform.assets.checks import newest_evaluations
from gazette_platform.assets.typed_events import (
    complete_evaluation,
    fresh_evaluation,
    quarantine_evaluation,
    quarantine_key,
    quarantine_materialization,
    told_typed,
    typed_key,
    typed_materialization,
    typed_pairs,
    unreadable_evaluation,
)
from gazette_platform.errors import GazetteError, TypedProgressGone, TypedRolledBack
from gazette_platform.lake import TableSpec
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.ops.clock import SystemClock
from gazette_platform.resources import BrokerResource, LakeResource, MetastoreResource
from gazette_platform.sensors.cursor import following, in_turn

if TYPE_CHECKING:
    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.typed.runs.journals import Behind

_log = logging.getLogger(__name__)
_INTERVAL_S = 20
# Seconds after which a tick begins nothing more; what was begun by then has the rest of the 60 that Dagster gives it.
_TICK_S = 25.0
_UNDER_WAY = frozenset(
    {DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING}
)
_Event = AssetMaterialization | AssetCheckEvaluation


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TypedPorts:
    """What a tick asks."""

    instance: DagsterInstance
    tables: "TypedCatalog"
    behind: Callable[[TableSpec, TypedSpec], "Behind"]
    """Asks brokers how far a table is behind."""
    trino_catalog: str
    """What Trino calls the catalog of the tables."""
    table_page: Callable[[str], Mapping[str, MetadataValue]]
    """Metadata with a link to the page of ``catalog.schema.table``, if there is one."""
    is_over: Callable[[], bool]
    """Whether the tick's time is up."""
    now_s: Callable[[], float]
    """Unix seconds."""


@final
@dataclass(slots=True)
class TypedOutcome:
    """The report of a tick."""

    events: list[_Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    cursor: str = ""
    """Name of the table that was looked at thoroughly."""


def typed_sensor(pairs: Iterable[tuple[TableSpec, TypedSpec]] = ()) -> SensorDefinition:
    """Return the sensor of all typed tables.

    Args:
        pairs: raw and typed tables whose assets name the sensor. It starts no run of them.
    """
    known = [spec for _, spec in pairs]
    fills = [key for spec in known for key in (typed_key(spec), quarantine_key(spec))]

    @sensor(
        name="typed",
        minimum_interval_seconds=_INTERVAL_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Reports to Dagster what was published to typed tables, whatever process runs them, and what their checks say. "
        "It starts no runs: Dagster calls a tick skipped that starts none.",
        asset_selection=fills or None,
    )
    def tell(
        context: SensorEvaluationContext,
        broker: BrokerResource,
        metastore: MetastoreResource,
        lake: LakeResource,
    ) -> SensorResult:
        return _tick(context, broker, metastore, lake)

    return tell


def _tick(
    context: SensorEvaluationContext,
    broker: BrokerResource,
    metastore: MetastoreResource,
    lake: LakeResource,
) -> SensorResult:
    """Report what is new of every typed table."""
    pairs = typed_pairs(lake.folder().specs.values())
    if not pairs:
        return SensorResult(
            skip_reason="No table spec has a section `typed`.", cursor=context.cursor
        )
    # Slow to import, and every process that loads definitions loads this module.
    from gazette_platform.lake.typed.status import behind_now  # noqa: PLC0415

    clock = SystemClock()
    ends_at = clock.monotonic() + _TICK_S
    tables = lake.typed_catalog(metastore.client())

    def behind(raw: TableSpec, spec: TypedSpec) -> "Behind":
        with broker.client() as client:
            return behind_now(client, tables, raw, spec)

    outcome = run_typed_tick(
        TypedPorts(
            instance=context.instance,
            tables=tables,
            behind=behind,
            trino_catalog=lake.trino_typed_catalog,
            table_page=lake.table_page,
            is_over=lambda: clock.monotonic() >= ends_at,
            now_s=clock.unix_s,
        ),
        pairs,
        context.cursor or "",
    )
    for problem in outcome.problems:
        context.log.error(problem)
    reason = None if outcome.events else "\n".join(outcome.problems) or "Nothing was published."
    return SensorResult(asset_events=outcome.events, skip_reason=reason, cursor=outcome.cursor)


def run_typed_tick(
    ports: TypedPorts, pairs: Iterable[tuple[TableSpec, TypedSpec]], cursor: str
) -> TypedOutcome:
    """Report what differs, of each table. One with a problem delays no other.

    Args:
        ports: what is asked.
        pairs: specs of raw tables, and of the typed ones that are made of them.
        cursor: of the tick before.
    """
    specs = {spec.name: (raw, spec) for raw, spec in pairs}
    outcome = TypedOutcome(cursor=following(list(specs), cursor))
    for name in in_turn(list(specs), outcome.cursor):
        if ports.is_over():
            break
        if _is_being_run(ports.instance, typed_key(specs[name][1])):
            continue
        with _supervised(outcome, name):
            outcome.events += _published(ports, *specs[name])
        if name == outcome.cursor:
            # By itself: what was published is reported even if brokers are away.
            with _supervised(outcome, name):
                outcome.events += _changed(ports.instance, _looked_at(ports, *specs[name]))
    return outcome


def _is_being_run(instance: DagsterInstance, key: AssetKey) -> bool:
    """Whether a run of Dagster's is at an asset now."""
    planned = instance.get_latest_planned_materialization_info(key)
    run = instance.get_run_by_id(planned.run_id) if planned is not None else None
    return run is not None and run.status in _UNDER_WAY


@contextmanager
def _supervised(outcome: TypedOutcome, name: str) -> Iterator[None]:
    try:
        yield
    except GazetteError as err:
        outcome.problems.append(f"{name}: {' '.join(str(err).split())}")
    except Exception as err:  # noqa: BLE001  the supervisor of tables: a fault in one stops no other
        _log.warning("%s: its part of the tick ended", name, exc_info=err)
        text = f"{name}: unexpected {type(err).__name__}: {err} (this is a bug; the log has more)"
        outcome.problems.append(" ".join(text.split()))


def _published(ports: TypedPorts, raw: TableSpec, spec: TypedSpec) -> list[_Event]:
    """What to report of one table, if something was published to it since."""
    # Slow to import, and every process that loads definitions loads this module.
    from gazette_platform.lake.typed.status import (  # noqa: PLC0415
        completeness_of,
        progress_of_table,
    )

    try:
        progress = progress_of_table(ports.tables, spec)
    except (TypedProgressGone, TypedRolledBack) as err:
        return _changed(ports.instance, [unreadable_evaluation(spec, err)])
    told = told_typed(ports.instance, typed_key(spec))
    if progress is None or told.snapshot == str(progress.snapshot_id):
        return []
    page = ports.table_page(f"{ports.trino_catalog}.{spec.name}")
    events: list[_Event] = [typed_materialization(raw, spec, progress, told, page=page)]
    held = told_typed(ports.instance, quarantine_key(spec))
    event = quarantine_materialization(spec, progress, held)
    if event is not None:
        events.append(event)
    counts = progress.state.counts
    evaluations = [quarantine_evaluation(spec, counts)]
    # The newest snapshot's summary shows whether counting is worth while.
    is_odd = not spec.key and progress.rows is not None and progress.rows != counts.typed
    if is_odd or progress.state.unaccounted:
        evaluations.append(complete_evaluation(spec, completeness_of(ports.tables, spec)))
    return events + _changed(ports.instance, evaluations)


def _looked_at(
    ports: TypedPorts, raw: TableSpec, spec: TypedSpec
) -> Iterator[AssetCheckEvaluation]:
    """What checks say of a table whose turn it is."""
    from gazette_platform.lake.typed.status import completeness_of  # noqa: PLC0415  slow to import

    if ports.tables.handle(spec.name).load() is not None:
        try:
            yield complete_evaluation(spec, completeness_of(ports.tables, spec))
        except (TypedProgressGone, TypedRolledBack):
            return  # it is reported as what is published
    yield fresh_evaluation(raw, spec, ports.behind(raw, spec), ports.now_s())


def _changed(
    instance: DagsterInstance, evaluations: Iterable[AssetCheckEvaluation]
) -> list[_Event]:
    """Those that say something else than before."""
    found = {one.asset_check_key: one for one in evaluations}
    newest = newest_evaluations(instance, found)
    return [one for key, one in found.items() if key not in newest or _is_news(newest[key], one)]


def _is_news(told: AssetCheckEvaluation, now: AssetCheckEvaluation) -> bool:
    """Whether a check says something else than before; of two green ones, that 1 % more was checked."""
    if not (told.passed and now.passed):
        return told.description != now.description
    before, after = (
        found.value if (found := each.metadata.get("committed")) is not None else 0
        for each in (told, now)
    )
    return isinstance(before, int) and isinstance(after, int) and after * 100 > before * 101
