"""When a rollup is made: as soon as its sources have changed, and none of them is known to be wrong.

And when a typed table is run: as soon as its raw table has changed. It reads journals, and not that table, so checks of
that delay nothing: bad records, say, are what quarantine is for.

Dagster evaluates these conditions in the code server. Its own conditions would not do, for three reasons. They
forget what happened before they were first evaluated, or while their cursor was lost; a mark that the rollup
noted forgets nothing (see `gazette_platform.assets.checks`). They take a warning for a failure, so that a hole in
a journal would hold up all rollups after it. And they take a check that was not evaluated since the last
materialization for one that says nothing, while the sensor reports a check when it changes: a red one stays red.

One sensor asks for all rollups, and one for all typed tables. Each table gets a run of its own, so that one that is
slow, or takes its process with it, holds up no other. One look costs 25 to 50 ms of CPU beside a hundred tables.

Dagster's evaluation of a condition says why it is met, or not, in place of its name.
"""

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetSelection,
    AutomationCondition,
    AutomationConditionSensorDefinition,
    AutomationContext,
    AutomationResult,
    BetaWarning,
    DefaultSensorStatus,
    RunRequest,
)
from typing_extensions import override

from gazette_platform.assets.checks import (
    CHECKS,
    OVERLAP_CHECK,
    QUERY_CHECK,
    is_red,
    newest_evaluations,
    noted_mark,
    sources_mark,
    sources_missing,
)
from gazette_platform.assets.raw import table_key

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from gazette_platform.assets.checks import Sourced

EACH_MINUTE = "* * * * *"
"""`cron` of what is made as soon as its sources have changed."""

_INTERVAL_S = 30
# Dagster refuses sensors of more than 500.
_ASSETS_MAX = 400
# Of what a red check says, in one line of an evaluation.
_CHARACTERS_SHOWN = 300


@final
class _Reasoned(AutomationResult[AssetKey]):
    """A result whose line in Dagster's evaluation says why it is so."""

    def __init__(self, context: AutomationContext[AssetKey], *, is_true: bool, reason: str) -> None:
        subset = context.candidate_subset if is_true else context.get_empty_subset()
        super().__init__(context, subset)
        self._reason = reason

    @cached_property
    @override
    def value_hash(self) -> str:
        """Another reason makes another evaluation, which Dagster keeps."""
        return hashlib.sha256(f"{super().value_hash} {self._reason}".encode()).hexdigest()[:32]

    @cached_property
    @override
    def serializable_evaluation(self) -> Any:
        made = super().serializable_evaluation
        # As its name: Dagster's UI cuts labels after some forty characters.
        return replace(made, condition_snapshot=made.condition_snapshot._replace(name=self._reason))


class _Condition(AutomationCondition[AssetKey]):
    """A condition that is evaluated by itself, and in the code server only."""

    @property
    @override
    def requires_cursor(self) -> bool:
        return False

    def reason(self, context: AutomationContext[AssetKey]) -> tuple[bool, str]:
        """Return whether it is met, and why."""
        raise NotImplementedError

    @override
    def evaluate(self, context: AutomationContext[AssetKey]) -> AutomationResult[AssetKey]:
        if context.candidate_subset.is_empty:  # another condition is false already
            return AutomationResult(context, context.get_empty_subset())
        is_true, reason = self.reason(context)
        return _Reasoned(context, is_true=is_true, reason=reason)


class SourcesChanged(_Condition):
    """True if a rollup has not seen all that its sources hold, or was made by other code."""

    def __init__(self, spec: "Sourced") -> None:
        self.spec = spec

    @property
    @override
    def name(self) -> str:
        return "sources_changed"

    @property
    @override
    def description(self) -> str:
        return f"{_sources(self.spec)} changed since the rollup last looked"

    @override
    def reason(self, context: AutomationContext[AssetKey]) -> tuple[bool, str]:
        instance = context.asset_graph_view.instance
        mark = sources_mark(instance, self.spec)
        if not mark:
            missing = ", ".join(sources_missing(instance, self.spec))
            return False, f"waiting for the first data of {missing}"
        noted = noted_mark(instance, context.key)
        if mark == noted:
            return False, f"nothing new in {_sources(self.spec)} since the last run"
        return True, (
            f"{_sources(self.spec)} or its code changed since the last run"
            if noted
            else "it was never built, or its last run must be repeated"
        )


class DepsGood(_Condition):
    """True unless a blocking check of something that the asset depends on is red.

    For your own assets too, in place of Dagster's `all_deps_blocking_checks_passed`; the sensor that evaluates
    it needs `use_user_code_server=True`. Checks of raw tables in another code location are known, of other
    assets there they are not.

    Args:
        reads_exact_view: whether the asset reads raw tables by their views ``…_exact``, so that overlaps do not count.
    """

    def __init__(self, *, reads_exact_view: bool = False) -> None:
        self._ignored = {OVERLAP_CHECK} if reads_exact_view else set()

    @property
    @override
    def name(self) -> str:
        return "deps_good"

    @property
    @override
    def description(self) -> str:
        return "No blocking check of a dependency is red"

    @override
    def reason(self, context: AutomationContext[AssetKey]) -> tuple[bool, str]:
        graph = context.asset_graph
        keys = [k for dep in graph.get(context.key).parent_keys for k in self._checks(graph, dep)]
        red = red_checks(context.asset_graph_view.instance, keys)
        if not red:
            return True, "no blocking check of a source is red"
        text = "; ".join(_red_text(key, evaluation) for key, evaluation in red.items())
        context.log.info("%s waits: %s", context.key.to_user_string(), text)
        return False, f"blocked by a red check: {text}"

    def _checks(self, graph: Any, dep: AssetKey) -> Iterable[AssetCheckKey]:
        """Blocking checks of a dependency: those that the definitions have, and those that raw tables have.

        Raw tables may be of another code location, which is unknown here.
        """
        node = graph.get(dep) if graph.has(dep) else None
        own = {key for key in node.check_keys if graph.get(key).blocking} if node else set()
        if node is not None and node.is_executable:
            return own
        raw = {AssetCheckKey(dep, name) for name, _ in CHECKS.values()}
        return {key for key in own | raw if key.name not in self._ignored}


class QueryFits(_Condition):
    """True unless the rollup's own check `query_fits` is red: a run would only fail."""

    @property
    @override
    def name(self) -> str:
        return "query_fits"

    @property
    @override
    def description(self) -> str:
        return "The query fits its sources, as far as is known"

    @override
    def reason(self, context: AutomationContext[AssetKey]) -> tuple[bool, str]:
        key = AssetCheckKey(context.key, QUERY_CHECK)
        red = red_checks(context.asset_graph_view.instance, [key])
        if not red:
            return True, "the query fits its sources"
        return False, f"the query is wrong: {_red_text(key, red[key])}"


def rollup_condition(spec: "Sourced") -> AutomationCondition[AssetKey]:
    """When a rollup is to be made.

    With the default for `cron` whenever its sources have changed, at most once a minute, however often it fails.
    With another one if they have when one of its ticks passes, though perhaps later: once nothing is in the way.
    """
    # A red `no_overlap` is in no rollup's way: it reads each row once, from the exact view. If it was made before
    # that left a file out, it has to be made again for the very reason that the check is red.
    good = DepsGood(reads_exact_view=True) & QueryFits()
    return (SourcesChanged(spec) & good & _idle() & _due(spec)).with_label(_label(spec))


def typed_condition(spec: "Sourced") -> AutomationCondition[AssetKey]:
    """When a typed table is to be run: as a rollup, whatever checks of its raw table say."""
    return (SourcesChanged(spec) & _idle() & _due(spec)).with_label(_label(spec))


def _idle() -> AutomationCondition[Any]:
    return (~AutomationCondition.in_progress()).with_label("no run is in progress")


def _due(spec: "Sourced") -> AutomationCondition[AssetKey]:
    """Whether it is time."""
    tick: AutomationCondition[Any] = AutomationCondition.cron_tick_passed(spec.cron)
    if spec.cron == EACH_MINUTE:
        # A new rollup need not wait for the minute to end.
        due: AutomationCondition[Any] = tick | AutomationCondition.initial_evaluation()
    else:
        due = tick & SourcesChanged(spec)
    label = (
        "not requested in this minute yet"
        if spec.cron == EACH_MINUTE
        else f"{spec.cron} passed and the sources have changed"
    )
    return due.since(AutomationCondition.newly_requested()).with_label(label)


def _label(spec: "Sourced") -> str:
    return f"sources changed, {_pace(spec)}"


@final
class _OneRunEach(AutomationConditionSensorDefinition):
    """An automation sensor that asks for a run of each asset by itself."""

    @override
    def resolve_run_requests(self, *args: Any, **named: Any) -> list[RunRequest]:
        asked = super().resolve_run_requests(*args, **named)
        each = [one for request in asked for one in _one_each(request)]
        return sorted(each, key=lambda one: list(one.asset_selection or ()))

    @override
    def with_attributes(self, *, jobs: Any = None, metadata: Any = None) -> "_OneRunEach":
        return _sensor(
            self.name,
            self.asset_selection,
            self.description or "",
            metadata=self.metadata if metadata is None else metadata,
        )


def _sensor(
    name: str, target: AssetSelection, description: str, *, metadata: Any = None
) -> _OneRunEach:
    with warnings.catch_warnings():
        # Conditions that are not Dagster's own are evaluated in the code server only.
        warnings.simplefilter("ignore", BetaWarning)
        return _OneRunEach(
            name,
            target=target,
            default_status=DefaultSensorStatus.RUNNING,
            minimum_interval_seconds=_INTERVAL_S,
            description=description,
            metadata=metadata,
            use_user_code_server=True,
        )


def _one_each(asked: RunRequest) -> list[RunRequest]:
    """Split a request for several assets, each with its checks."""
    checks = asked.asset_check_keys or []
    return [
        asked.with_replaced_attrs(
            asset_selection=[key], asset_check_keys=[c for c in checks if c.asset_key == key]
        )
        for key in asked.asset_selection or []
    ]


def automation_sensors(
    name: str, what: str, tables: Sequence[str]
) -> list[AutomationConditionSensorDefinition]:
    """Return the running sensor that asks for tables when their conditions are true.

    Args:
        name: of the sensor. Dagster takes 500 assets a sensor at most: where there are more, others follow.
        what: the kind of the tables, in the plural.
        tables: their names.
    """
    text = (
        f"Requests a run of each of the {what} whose sources have changed. If it requests none, the evaluations under "
        "Automation on the asset's page say why."
    )
    return [
        _sensor(
            name if not begin else f"{name}_{begin // _ASSETS_MAX + 1}",
            AssetSelection.assets(*map(table_key, tables[begin : begin + _ASSETS_MAX])),
            text,
        )
        for begin in range(0, len(tables), _ASSETS_MAX)
    ]


def _red_text(key: AssetCheckKey, evaluation: AssetCheckEvaluation) -> str:
    """Name a red check, and say what it found, in one line."""
    said = " ".join((evaluation.description or "").split())
    shown = said if len(said) <= _CHARACTERS_SHOWN else f"{said[:_CHARACTERS_SHOWN]}…"
    return f"{'.'.join(key.asset_key.path)} {key.name}" + (f": {shown}" if shown else "")


def red_checks(
    instance: "DagsterInstance", checks: Iterable[AssetCheckKey]
) -> dict[AssetCheckKey, AssetCheckEvaluation]:
    """Return those of `checks` that are red by their newest answer, with that."""
    newest = newest_evaluations(instance, dict.fromkeys(checks))
    return {key: evaluation for key, evaluation in newest.items() if is_red(evaluation)}


def _pace(spec: "Sourced") -> str:
    return "at most once a minute" if spec.cron == EACH_MINUTE else f"when {spec.cron} has passed"


def _sources(spec: "Sourced") -> str:
    return ", ".join(sorted(spec.sources.values()))
