"""How a rollup stands: whether it has all that its sources hold, and if not, why not."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups.running import plan_of
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.hive import Metastore
    from gazette_platform.lake.dagster_web import DagsterWeb, LastRun, RedCheck
    from gazette_platform.lake.iceberg.metastore import IcebergTable, IcebergTables
    from gazette_platform.lake.rollups.planning import Plan
    from gazette_platform.lake.rollups.spec import RollupSpec

NOT_HEEDED: Final = "no_overlap"
"""The one blocking check of raw tables that stops no rollup: it reads each row once, from the exact view."""

QUERY_CHECK: Final = "query_fits"
"""The one check of a rollup itself that stops it: its query does not fit its sources."""


class RollupState(enum.StrEnum):
    """Whether a rollup is up to date."""

    FRESH = "fresh"
    BEHIND = "behind"
    """Its sources changed, and the next run will make it."""
    BLOCKED = "blocked"
    """It is not made because a source is red, or missing."""
    FAILED = "failed"
    """Its last run failed."""
    NEVER_MADE = "never made"
    UNKNOWN = "unknown"


@final
@dataclass(slots=True, kw_only=True)
class RollupStanding:
    """How one rollup stands."""

    spec: RollupSpec
    state: RollupState
    why: list[str] = field(default_factory=list)
    """Why it is in that state, each with the next step."""
    slices: int | None = None
    rows: int | None = None
    to_make: int | None = None
    """Slices that the next run makes or drops."""
    made_at: datetime | None = None
    location: str = ""

    @property
    def problems(self) -> list[str]:
        """What a person should look at."""
        return [f"{self.state}: {text}" for text in self.why]

    @property
    def is_unread(self) -> bool:
        """Whether it could not be looked at."""
        return self.state is RollupState.UNKNOWN and bool(self.why)

    def summary(self) -> dict[str, Any]:
        """What a list shows, as plain values; None is what is not known."""
        return {
            "table": self.spec.name,
            "format": "rollup",
            "state": self.state.value,
            "slices": self.slices,
            "rows": self.rows,
            "slices_to_make": self.to_make,
            "made_at": None if self.made_at is None else _instant(self.made_at),
            "problems": self.problems,
        }


def rollup_standing(
    metastore: Metastore,
    tables: IcebergTables,
    spec: RollupSpec,
    *,
    dagster: DagsterWeb | None,
    red: Sequence[RedCheck],
    last_run: LastRun | None,
) -> RollupStanding:
    """How a rollup stands, by what it covers and what its sources hold.

    Args:
        metastore: opens sessions.
        tables: Iceberg tables of the same metastore.
        spec: the rollup.
        dagster: to ask why the last run failed.
        red: checks of tables that are red; those of others than itself and its sources do not matter.
        last_run: of the rollup, if there was one.

    Raises: LakeError: a server cannot be reached.
    """
    base = tables.load(spec.schema, spec.table)
    standing = RollupStanding(spec=spec, state=RollupState.UNKNOWN)
    _look_at(standing, base)
    plan, missing = None, ""
    try:
        plan = plan_of(metastore, tables, spec)
        standing.to_make = len(plan.make) + len(plan.drop)
    except LakeError as err:
        missing = str(err)
    failure = ""
    if last_run is not None and last_run.has_failed:
        cause = dagster.why_failed(last_run.run_id) if dagster is not None else ""
        failure = f"run {last_run.run_id[:8]} failed{_since(last_run.ended_at)}: {cause}"
    standing.state, standing.why = state_of(
        spec, plan, missing=missing, is_made=base is not None, red=red, failure=failure
    )
    return standing


def state_of(
    spec: RollupSpec,
    plan: Plan | None,
    *,
    missing: str,
    is_made: bool,
    red: Sequence[RedCheck],
    failure: str,
) -> tuple[RollupState, list[str]]:
    """Decide the state of a rollup. Pure.

    Args:
        spec: the rollup.
        plan: what the next run would do; None: it could not be made.
        missing: why not.
        is_made: whether the table exists.
        red: as of `rollup_standing`.
        failure: of the last run, in words; empty: it did not fail.

    Returns: the state, and why it is so.
    """
    behind = [] if plan is None else [_behind(len(plan.behind))] * bool(plan.behind)
    if plan is not None and plan.is_idle and is_made:
        return RollupState.FRESH, behind
    if missing:
        return RollupState.BLOCKED, [missing]
    stops = [each for each in red if _stops(each, spec)]
    if stops:
        return RollupState.BLOCKED, [_red(each) for each in stops]
    if failure:
        return RollupState.FAILED, [f"{failure} (correct {spec.name}; Dagster then runs it again)"]
    if not is_made:
        empty = "its sources hold nothing yet" if plan is not None and plan.is_idle else ""
        return RollupState.NEVER_MADE, [empty] if empty else []
    return RollupState.BEHIND, behind


def _stops(red: RedCheck, spec: RollupSpec) -> bool:
    """Whether Dagster does not ask for the rollup because of a red check."""
    if red.table == spec.name:
        return red.check == QUERY_CHECK
    return red.table in spec.sources.values() and red.check not in {NOT_HEEDED, QUERY_CHECK}


def _look_at(standing: RollupStanding, base: IcebergTable | None) -> None:
    """Take what the table itself says."""
    if base is None:
        return
    standing.location = base.metadata.location
    snapshot = base.snapshot
    if snapshot is None:
        return
    standing.made_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    standing.rows = _number(summary.get("total-records"))
    standing.slices = _number(summary.get("gazette.slices"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _red(check: RedCheck) -> str:
    return (
        f"check {check.check} of {check.table} is red{_since(check.since)}: {check.text} (`gazctl lake check "
        f"{check.table}` shows all)"
    )


def _behind(slices: int) -> str:
    return (
        f"{counted(slices, 'slice')} cannot be made again, as raw content was pruned, and stay as they are (a run with "
        "`force: true` makes them from what is left)"
    )


def _since(at: datetime | None) -> str:
    return "" if at is None else f" since {_instant(at)}"


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
