"""When a rollup is made: as soon as its sources have changed, and none of them is known to be wrong.

And when a typed table is run: as soon as its raw table has changed. It reads journals, and not that table, so checks of
that are in nobody's way: bad records, say, are what quarantine is there for.

Dagster evaluates these conditions in the code server. Its own conditions would not do, for three reasons. They
forget what happened before they were first evaluated, or while their cursor was lost; a mark that the rollup
noted forgets nothing (see `gazette_platform.assets.freshness`). They take a warning for a failure, so that a hole in
a journal would hold up all rollups behind it. And they take a check that was not evaluated since the last
materialization for one that says nothing, while the sensor tells of a check when it changes: a red one stays red.

Each rollup has an automation sensor of its own. What one sensor asks for is one run: a slow rollup, or one that
takes its process with it, would hold up the others in it. One look costs 25 to 50 ms of CPU beside a hundred tables.
"""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetSelection,
    AutomationCondition,
    AutomationConditionSensorDefinition,
    AutomationContext,
    AutomationResult,
    BetaWarning,
    DefaultSensorStatus,
)
from typing_extensions import override

from gazette_platform.assets.checks import CHECKS, OVERLAP_CHECK
from gazette_platform.assets.freshness import is_red, newest_evaluations, noted_mark, sources_mark
from gazette_platform.assets.raw import table_key

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from gazette_platform.assets.freshness import Sourced

__all__ = [
    "EACH_MINUTE",
    "DepsRed",
    "SourcesChanged",
    "automation_sensor",
    "red_checks",
    "rollup_condition",
    "typed_condition",
]

EACH_MINUTE = "* * * * *"
"""`cron` of what is made as soon as its sources have changed."""

_INTERVAL_S = 30


class SourcesChanged(AutomationCondition[AssetKey]):
    """True if a rollup has not seen all that its sources hold, or was made by other code."""

    def __init__(self, spec: "Sourced") -> None:
        self.spec = spec

    @property
    @override
    def requires_cursor(self) -> bool:
        return False

    @property
    @override
    def name(self) -> str:
        return "sources_changed"

    @property
    @override
    def description(self) -> str:
        return f"{_sources(self.spec)} changed since the rollup last looked"

    @override
    def evaluate(self, context: AutomationContext[AssetKey]) -> AutomationResult[AssetKey]:
        if context.candidate_subset.is_empty:  # what comes before is false already
            return _result(context, is_true=False)
        instance = context.asset_graph_view.instance
        mark = sources_mark(instance, self.spec)
        return _result(context, is_true=mark not in {"", noted_mark(instance, context.key)})


class DepsRed(AutomationCondition[AssetKey]):
    """True while a blocking check of something that the asset depends on is red.

    For assets of users' own too, in place of Dagster's `all_deps_blocking_checks_passed`; the sensor that evaluates
    it needs `use_user_code_server=True`. Of a raw table in another code location the checks are known, of other
    assets there they are not.

    Args:
        reads_exact_view: whether the asset reads raw tables by their views ``…_exact``, so that overlaps do not count.
    """

    def __init__(self, *, reads_exact_view: bool = False) -> None:
        self._ignored = {OVERLAP_CHECK} if reads_exact_view else set()

    @property
    @override
    def requires_cursor(self) -> bool:
        return False

    @property
    @override
    def name(self) -> str:
        return "deps_red"

    @property
    @override
    def description(self) -> str:
        return "A blocking check of a dependency is red"

    @override
    def evaluate(self, context: AutomationContext[AssetKey]) -> AutomationResult[AssetKey]:
        if context.candidate_subset.is_empty:
            return _result(context, is_true=False)
        graph = context.asset_graph
        keys = [k for dep in graph.get(context.key).parent_keys for k in self._checks(graph, dep)]
        red = red_checks(context.asset_graph_view.instance, keys)
        if red:
            names = ", ".join(sorted(key.to_user_string() for key in red))
            context.log.info("%s waits: %s", context.key.to_user_string(), names)
        return _result(context, is_true=bool(red))

    def _checks(self, graph: Any, dep: AssetKey) -> Iterable[AssetCheckKey]:
        """Blocking checks of a dependency: those that the definitions have, and those that raw tables have.

        Raw tables may be of another code location, of which nothing is known here.
        """
        node = graph.get(dep) if graph.has(dep) else None
        own = {key for key in node.check_keys if graph.get(key).blocking} if node else set()
        if node is not None and node.is_executable:
            return own
        raw = {AssetCheckKey(dep, name) for name, _ in CHECKS.values()}
        return {key for key in own | raw if key.name not in self._ignored}


def rollup_condition(spec: "Sourced") -> AutomationCondition[AssetKey]:
    """When a rollup is to be made.

    With the default for `cron` whenever its sources have changed, at most once a minute, however often it fails.
    With another one if they have when one of its ticks passes, though perhaps later: once nothing is in the way.
    """
    # A red `no_overlap` is in no rollup's way: it reads each row once, from the exact view. If it was made before
    # that left a file out, it has to be made again for the very reason that the check is red.
    red = DepsRed(reads_exact_view=True)
    return (_due(spec) & ~red & ~AutomationCondition.in_progress()).with_label(_label(spec))


def typed_condition(spec: "Sourced") -> AutomationCondition[AssetKey]:
    """When a typed table is to be run: as a rollup, whatever checks of its raw table say."""
    return (_due(spec) & ~AutomationCondition.in_progress()).with_label(_label(spec))


def _due(spec: "Sourced") -> AutomationCondition[AssetKey]:
    """Whether sources have changed, and it is time."""
    changed = SourcesChanged(spec)
    tick: AutomationCondition[Any] = AutomationCondition.cron_tick_passed(spec.cron)
    if spec.cron == EACH_MINUTE:
        # A new rollup need not wait for the minute to end.
        due: AutomationCondition[Any] = tick | AutomationCondition.initial_evaluation()
    else:
        due = tick & changed
    return due.since(AutomationCondition.newly_requested()).with_label("due") & changed


def _label(spec: "Sourced") -> str:
    return f"sources changed, {_pace(spec)}"


def automation_sensor(
    spec: "Sourced", *, heeds_checks: bool = True
) -> AutomationConditionSensorDefinition:
    """The sensor, running unless somebody stops it, that has a table made when its condition is true.

    Args:
        spec: of the table.
        heeds_checks: whether its condition is about checks of its sources, too.
    """
    unless = ", unless a blocking check of them is red" if heeds_checks else ""
    with warnings.catch_warnings():
        # Conditions of one's own are evaluated in the code server only.
        warnings.simplefilter("ignore", BetaWarning)
        return AutomationConditionSensorDefinition(
            name=f"{spec.name.replace('.', '__')}_automation",
            target=AssetSelection.assets(table_key(spec.name)),
            default_status=DefaultSensorStatus.RUNNING,
            minimum_interval_seconds=_INTERVAL_S,
            description=f"Has {spec.name} made when {_sources(spec)} changed{unless}.",
            use_user_code_server=True,
        )


def red_checks(instance: "DagsterInstance", checks: Iterable[AssetCheckKey]) -> list[AssetCheckKey]:
    """Those of `checks` that are red by their newest answer."""
    newest = newest_evaluations(instance, dict.fromkeys(checks))
    return [key for key, evaluation in newest.items() if is_red(evaluation)]


def _result(context: AutomationContext[AssetKey], *, is_true: bool) -> AutomationResult[AssetKey]:
    return AutomationResult(
        context, context.candidate_subset if is_true else context.get_empty_subset()
    )


def _pace(spec: "Sourced") -> str:
    return "at most once a minute" if spec.cron == EACH_MINUTE else f"when {spec.cron} has passed"


def _sources(spec: "Sourced") -> str:
    return ", ".join(sorted(spec.sources.values()))
