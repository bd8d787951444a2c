"""`gazctl lake list` and `describe`: rollups."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from gazette_platform.cli.output import NONE, note
from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.dagster_web import DagsterWeb, LastRun, RedCheck
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.folder import read_rollup_folder
from gazette_platform.lake.rollups.iceberg import IcebergTables
from gazette_platform.lake.rollups.standing import (
    QUERY_CHECK,
    RollupStanding,
    RollupState,
    rollup_standing,
)
from gazette_platform.lake.typed.catalog.catalogs import io_properties_of

__all__ = ["rollup_full", "rollup_lines", "rollup_row", "rollup_standings", "rollups_apart"]


def rollups_apart(
    settings: LakeSettings, names: Sequence[str]
) -> tuple[list[str], list[RollupSpec]]:
    """Return names that are not those of rollups, and the rollups; without names, all rollups."""
    every = read_rollup_folder(settings.rollups, ()).specs
    if not names:
        return [], [*every.values()]
    others = [name for name in names if name not in every]
    return others, [every[name] for name in dict.fromkeys(names) if name in every]


def rollup_standings(settings: LakeSettings, specs: Sequence[RollupSpec]) -> list[RollupStanding]:
    """How rollups stand. Those that cannot be looked at say why."""
    if not specs:
        return []
    if not settings.metastore:
        return [RollupStanding(spec=spec, state=RollupState.UNKNOWN) for spec in specs]
    metastore = MetastoreClient(settings.metastore)
    dagster = DagsterWeb(settings.dagster) if settings.dagster else None
    red, runs = _of_dagster(dagster, specs)
    found = []
    io_properties = io_properties_of(settings, os.environ)
    tables = IcebergTables(metastore, settings.required("warehouse"), io_properties)
    for spec in specs:
        try:
            standing = rollup_standing(
                metastore,
                tables,
                spec,
                dagster=dagster,
                red=red,
                last_run=runs.get(spec.name),
            )
        except GazetteError as err:
            standing = RollupStanding(spec=spec, state=RollupState.UNKNOWN, why=[str(err)])
        found.append(standing)
    return found


def _of_dagster(
    dagster: DagsterWeb | None, specs: Sequence[RollupSpec]
) -> tuple[list[RedCheck], dict[str, LastRun]]:
    """Red checks of all rollups and their sources, and last runs of all rollups, as far as there is a Dagster to ask."""
    if dagster is None:
        return [], {}
    names = [spec.name for spec in specs]
    asked = {*names, *(source for spec in specs for source in spec.sources.values())}
    try:
        return dagster.red_checks(sorted(asked), {QUERY_CHECK}), dagster.last_runs(names)
    except LakeError as err:
        note(f"note: {err}; failed runs and red checks are not looked at")
        return [], {}


def rollup_row(standing: RollupStanding) -> dict[str, str]:
    """Cells of the list, by column."""
    return {
        "Table": standing.spec.name,
        "Format": "rollup",
        "State": standing.state.value,
        "Partitions": _cell(standing.slices),
        "Rows": _cell(standing.rows),
        "Problems": str(len(standing.why)) if standing.why else "",
    }


def rollup_full(standing: RollupStanding) -> dict[str, Any]:
    """All that is known, as plain values."""
    spec = standing.spec
    return {
        **standing.summary(),
        "engine": spec.engine,
        "sources": spec.sources,
        "sliced_by": list(spec.slices),
        "cron": spec.cron,
        "retention": spec.retention,
        "comment": spec.comment,
        "location": standing.location or None,
    }


def rollup_lines(standing: RollupStanding) -> Iterable[str]:
    """The same for people."""
    spec = standing.spec
    yield f"{spec.name}: rollup" + (f": {spec.comment}" if spec.comment else "")
    summary = standing.summary()
    rows = [
        ("State", standing.state.value),
        ("Made", summary["made_at"] or NONE),
        ("Engine", spec.engine),
        ("Sources", ", ".join(sorted(spec.sources.values()))),
        *([("Sliced by", ", ".join(spec.slices))] if spec.slices else []),
        ("Slices", _cell(standing.slices)),
        ("To make", _cell(standing.to_make)),
        ("Rows", _cell(standing.rows)),
        ("Location", standing.location or NONE),
    ]
    yield from (f"  {title + ':':<12}{value}" for title, value in rows)
    yield from (f"  Problem:    {problem}" for problem in standing.problems)


def _cell(value: object) -> str:
    return NONE if value is None else str(value)
