"""The check `query_fits` of a rollup: evaluated when it is loaded, when you execute it, and by each run."""

from typing import TYPE_CHECKING

from dagster import AssetCheckEvaluation, AssetCheckKey, AssetCheckSeverity

from gazette_platform.assets.raw import table_key
from gazette_platform.assets.source_marks import newest_evaluations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster import DagsterInstance

    from gazette_platform.lake.rollups.query_check import QueryCheck

QUERY_CHECK = "query_fits"
QUERY_TEXT = "The query is valid SQL, and its sources have all columns that it names."


def query_evaluation(found: "QueryCheck") -> AssetCheckEvaluation:
    """Return the evaluation: red with what is wrong with the query, else green with what was checked."""
    return AssetCheckEvaluation(
        asset_key=table_key(found.rollup),
        check_name=QUERY_CHECK,
        passed=not found.faults,
        severity=AssetCheckSeverity.ERROR,
        description=found.text,
        metadata={"faults": len(found.faults), "columns_known": sum(found.known.values())},
        blocking=False,
    )


def new_evaluations(
    instance: "DagsterInstance", checks: "Iterable[QueryCheck]"
) -> list[AssetCheckEvaluation]:
    """Return the evaluations that Dagster does not have yet."""
    made = [query_evaluation(found) for found in checks]
    keys = {one.asset_key: AssetCheckKey(one.asset_key, QUERY_CHECK) for one in made}
    newest = newest_evaluations(instance, keys.values())
    return [
        one
        for one in made
        if (known := newest.get(keys[one.asset_key])) is None
        or (known.passed, known.description) != (one.passed, one.description)
    ]
