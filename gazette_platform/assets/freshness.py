"""Has the source of a rollup changed since the rollup was made?

The *version* of a raw table, or of a part of it, is a digest over the newest materialization of each
of its Hive partitions, and over what its check ``no_overlap`` says. A run notes the version it read *before* it reads, so what arrives meanwhile
makes it stale again and nothing is missed. No time is compared.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckKey,
    AssetCheckSeverity,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterRunStatus,
    RunsFilter,
)

from gazette_platform.assets.checks import OVERLAP_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dagster import AssetKey, DagsterInstance

__all__ = ["SOURCE_KEY", "has_unfinished_run", "noted_version", "source_version"]

# Metadata key under which a rollup notes what it was made from.
SOURCE_KEY = "gazette/source_version"

_UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def source_version(
    instance: DagsterInstance, source: AssetKey, belongs: Callable[[str], bool] = lambda _: True
) -> str:
    """The version of the part of `source` whose partition keys `belongs` accepts.

    Returns: 16 hex digits, or empty text if nothing was materialised.
    """
    newest = instance.get_latest_storage_id_by_partition(
        source, DagsterEventType.ASSET_MATERIALIZATION
    )
    parts = sorted((key, storage_id) for key, storage_id in newest.items() if belongs(key))
    if not parts:
        return ""
    return hashlib.sha256(repr((parts, _overlaps(instance, source))).encode()).hexdigest()[:16]


def _overlaps(instance: DagsterInstance, source: AssetKey) -> str:
    """What check ``no_overlap`` says; empty while it is green, or yellow: nothing is known to be wrong.

    When it turns red a rollup may have read rows twice, before the exact view left them out.
    """
    record = instance.get_latest_asset_check_evaluation_record(AssetCheckKey(source, OVERLAP_CHECK))
    event = record.event if record is not None else None
    told = event.dagster_event if event is not None else None
    if told is None or told.event_type is not DagsterEventType.ASSET_CHECK_EVALUATION:
        return ""
    evaluation = told.asset_check_evaluation_data
    is_red = not evaluation.passed and evaluation.severity is AssetCheckSeverity.ERROR
    return str(evaluation.description) if is_red else ""


def noted_version(instance: DagsterInstance, rollup: AssetKey, partition: str) -> str:
    """The version that the newest materialization of a rollup's partition was made from."""
    found = instance.fetch_materializations(
        AssetRecordsFilter(asset_key=rollup, asset_partitions=[partition]), limit=1
    )
    for record in found.records:
        materialization = record.asset_materialization
        if materialization is not None and SOURCE_KEY in materialization.metadata:
            return str(materialization.metadata[SOURCE_KEY].value)
    return ""


def has_unfinished_run(instance: DagsterInstance, job: str) -> bool:
    """Whether a run of `job` waits or runs."""
    runs: Sequence[object] = instance.get_run_records(
        RunsFilter(job_name=job, statuses=_UNFINISHED), limit=1
    )
    return bool(runs)
