"""Names of a typed table in Dagster, and its events: from runs that Dagster starts, and from the sensor for other runs.

Everything is taken from what the table says of itself (`gazette_platform.lake.typed.tables.progress`) and from the newest event,
never from the act of running, as for raw tables. So it is the same for all tables, however they are run; and added up,
the rows of all events give those of the table, however often something is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableColumnDep,
    TableColumnLineage,
    TableSchema,
)

from gazette_platform.assets.automation import EACH_MINUTE
from gazette_platform.assets.checks import in_lines
from gazette_platform.assets.raw import table_key
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster import DagsterInstance, RawMetadataValue

    from gazette_platform.lake import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.ranges import Hole
    from gazette_platform.lake.typed.planning.state import Counts, TypedState
    from gazette_platform.lake.typed.runs.journals import Behind
    from gazette_platform.lake.typed.status import Completeness
    from gazette_platform.lake.typed.tables.progress import TypedProgress

# What is not a row after that is late, where runs go on without end; three runs may have passed by then.
_FRESH_S_MIN: Final = 60.0
_FRESH_RUNS: Final = 3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSources:
    """A typed table as automation asks about it: see `gazette_platform.assets.automation.Sourced`."""

    name: str
    sources: Mapping[str, str]
    cron: str
    code_version: str
    retention: str

    @classmethod
    def of(cls, spec: TypedSpec) -> TypedSources:
        """Those of a spec."""
        return cls(
            name=spec.name,
            sources={"raw": spec.source},
            cron=spec.cron or EACH_MINUTE,
            code_version=spec.digest,
            retention=spec.retention,
        )


def typed_pairs(raws: Iterable[TableSpec]) -> list[tuple[TableSpec, TypedSpec]]:
    """Raw tables that have a typed one, each with that."""
    return [(raw, raw.typed) for raw in raws if raw.typed is not None]


def typed_key(spec: TypedSpec) -> AssetKey:
    """Asset key of the table."""
    return table_key(spec.name)


def quarantine_key(spec: TypedSpec) -> AssetKey:
    """Asset key of its quarantine."""
    return table_key(spec.quarantine)


def backfill_key(spec: TypedSpec) -> AssetKey:
    """Asset key of its backfills. Names of tables have two parts, so this is none."""
    return AssetKey(["backfills", *typed_key(spec).path])


def maintenance_key(spec: TypedSpec) -> AssetKey:
    """Asset key of its upkeep, likewise."""
    return AssetKey(["maintenance", *typed_key(spec).path])


def pool_of(spec: TypedSpec) -> str:
    """The pool, of one, of all that writes to the table. Runs fence each other as well: it spares work in vain."""
    return f"iceberg.{spec.name}"


def fresh_within_s(raw: TableSpec, spec: TypedSpec) -> float:
    """Seconds after which what a store has is to be rows."""
    if spec.every_s:
        return max(_FRESH_S_MIN, _FRESH_RUNS * spec.every_s)
    return raw.fresh_within_s


def column_schema(spec: TypedSpec) -> TableSchema:
    """The columns, those of the system last, with the partitions that are made of each."""
    parts: dict[str, list[str]] = {}
    for each in spec.partitions:
        name = "partition column" if each.transform == "identity" else f"partition: {each.text}"
        parts.setdefault(each.column, []).append(name)
    return TableSchema(
        columns=[
            TableColumn(
                column.name,
                column.type,
                column.comment or None,
                constraints=TableColumnConstraints(other=parts.get(column.name)),
            )
            for column in spec.all_columns
        ]
    )


def column_lineage(raw: TableSpec, spec: TypedSpec) -> TableColumnLineage:
    """Which column of the raw table each column is made of.

    Those of a JSON Schema may be of keys that the raw table has no column of, and those of segments are made of the
    journal's name, for which a raw table has its own column.
    """
    by_key = {column.key: column.name for column in raw.columns}
    segments = {partition.name: partition.column for partition in raw.partitions}
    envelope = by_key.get("after") or by_key.get("payload") if spec.change_data else None
    deps: dict[str, list[TableColumnDep]] = {}
    for column in spec.columns:
        # A segment that the raw spec does not describe has a column of the same name.
        name = (
            segments.get(column.segment, column.segment)
            if column.segment
            else envelope or by_key.get(column.key)
        )
        if name:
            deps[column.name] = [TableColumnDep(table_key(raw.name), name)]
    return TableColumnLineage(deps)


COMPLETE_CHECK: Final = "complete"
QUARANTINE_CHECK: Final = "quarantine"
FRESH_CHECK: Final = "fresh"

_DATA_VERSION: Final = "dagster/data_version"
# Above that share of what was committed it is no matter of some bad records.
_QUARANTINE_SHARE_MAX: Final = 0.01
_JOURNALS_SHOWN: Final = 50
# Of others, in a row, that are looked past.
_EVENTS_MAX: Final = 20
_MB: Final = 1e6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTyped:
    """What the newest event of a table, or of its quarantine, says."""

    snapshot: str = ""
    """Of the newest reported run; empty: none was."""
    rows: int | None = 0
    """None: they were not known."""


def told_typed(instance: DagsterInstance, key: AssetKey) -> ToldTyped:
    """The last report to Dagster. Users may report other events, in the UI, say: these are ignored."""
    for limit in (1, _EVENTS_MAX):
        for record in instance.fetch_materializations(key, limit=limit).records:
            event = record.asset_materialization
            if event is not None and "snapshot" in event.metadata:
                rows = event.metadata.get("dagster/row_count")
                return ToldTyped(
                    snapshot=str(event.metadata["snapshot"].value),
                    rows=rows.value if rows is not None and isinstance(rows.value, int) else None,
                )
    return ToldTyped()


def typed_materialization(
    raw: TableSpec,
    spec: TypedSpec,
    progress: TypedProgress,
    told: ToldTyped,
    *,
    page: Mapping[str, RawMetadataValue],
) -> AssetMaterialization:
    """The event of a table as it is now.

    Args:
        raw: its raw table.
        spec: of it.
        progress: what it says.
        told: in the former event.
        page: metadata with a link to a page of the table, if there is one.
    """
    counts = progress.state.counts
    metadata: dict[str, RawMetadataValue] = {
        "snapshot": str(progress.snapshot_id),
        "published_at": MetadataValue.timestamp(progress.published_at),
        "committed": counts.committed,
        "quarantined": counts.quarantined,
        "duplicates": counts.duplicates,
        "waiting": counts.waiting,
        "journals": len(progress.state.journals),
        "offsets": MetadataValue.text(_offsets(progress.state)),
        "files": progress.files,
        "stored_bytes": progress.stored_bytes,
        "dagster/column_schema": column_schema(spec),
        "dagster/column_lineage": column_lineage(raw, spec),
        **page,
    }
    if progress.rows is not None:
        metadata["dagster/row_count"] = progress.rows
        if told.rows is not None:
            metadata["rows_added"] = progress.rows - told.rows
    if counts.lost_bytes:
        metadata["lost_bytes"] = counts.lost_bytes
    if progress.complete_at is not None:
        metadata["complete_at"] = MetadataValue.timestamp(progress.complete_at)
    if progress.freshness_s is not None:
        metadata["freshness_s"] = progress.freshness_s
    if progress.read_bytes is not None and progress.seconds is not None:
        metadata |= measured(progress.read_bytes, progress.seconds)
    return AssetMaterialization(
        asset_key=typed_key(spec),
        description=f"{counted(counts.typed, 'message')} typed, {counts.quarantined} quarantined",
        metadata=metadata,
        tags={_DATA_VERSION: progress.version},
    )


def measured(read_bytes: int, seconds: float) -> dict[str, RawMetadataValue]:
    """How fast a run was, as numbers that Dagster plots."""
    found: dict[str, RawMetadataValue] = {"read_bytes": read_bytes, "seconds": seconds}
    if seconds > 0:
        found["mb_per_s"] = read_bytes / _MB / seconds
    return found


def quarantine_materialization(
    spec: TypedSpec, progress: TypedProgress, told: ToldTyped
) -> AssetMaterialization | None:
    """The event of a quarantine as it is now; None: Dagster knows."""
    count = progress.state.counts.quarantined
    if told.snapshot and told.rows == count:
        return None
    return AssetMaterialization(
        asset_key=quarantine_key(spec),
        description=f"{counted(count, 'record')} of {spec.name} that are not rows",
        metadata={
            "snapshot": str(progress.snapshot_id),
            "dagster/row_count": count,
            "rows_added": count - (told.rows or 0),
        },
        tags={_DATA_VERSION: f"{count}-{progress.version}"[:63]},
    )


def complete_evaluation(
    spec: TypedSpec, found: Completeness, key: AssetKey | None = None
) -> AssetCheckEvaluation:
    """Red, if a committed message is neither row nor in quarantine, or has two rows.

    Args:
        spec: of the table.
        found: of it.
        key: of the asset that is checked; None: the table.
    """
    texts = [one.text for one in found.findings]
    metadata: dict[str, RawMetadataValue] = {
        "committed": found.counts.committed,
        "typed": found.counts.typed,
        "quarantined": found.counts.quarantined,
        "lost": found.lost,
        "doubled": found.doubled,
    }
    if found.rows is not None:
        metadata["rows"] = found.rows
    if found.notes:
        metadata["notes"] = MetadataValue.text(in_lines(found.notes))
    counts = found.counts
    return _evaluation(
        key or typed_key(spec),
        COMPLETE_CHECK,
        in_lines(texts),
        metadata,
        is_blocking=key is None,
        good=f"{_number(counts.committed)} committed: {counts.typed:,} are rows, {counts.quarantined:,} in quarantine, "
        "0 lost, 0 twice.",
    )


def unreadable_evaluation(spec: TypedSpec, err: Exception) -> AssetCheckEvaluation:
    """Red, as a table does not say how far it has come: a person has to look."""
    return _evaluation(
        typed_key(spec), COMPLETE_CHECK, " ".join(str(err).split()), {}, is_blocking=True
    )


def quarantine_evaluation(spec: TypedSpec, counts: Counts) -> AssetCheckEvaluation:
    """Yellow, if there are bad records; red, if they are not just some."""
    count, share = counts.quarantined, counts.quarantined / max(1, counts.committed)
    text = (
        f"{counted(count, 'record is', 'records are')} no rows of {spec.name}: `gazctl lake quarantine {spec.name}` "
        f"shows why. Correct the spec, or what writes them, then run `gazctl lake reprocess {spec.name}`"
        if count
        else ""
    )
    return _evaluation(
        typed_key(spec),
        QUARANTINE_CHECK,
        text,
        {"committed": counts.committed, "quarantined": count, "share": share},
        is_warning=share <= _QUARANTINE_SHARE_MAX,
        good=f"{_number(counts.committed)} committed, 0 in quarantine.",
    )


def fresh_evaluation(
    raw: TableSpec, spec: TypedSpec, found: Behind, now_s: float
) -> AssetCheckEvaluation:
    """Red, if content that a store has for a while is not in rows, or cannot be read."""
    texts = [_hole_text(hole) for hole in found.holes]
    texts += [
        f"brokers report nothing about {name}: {why}" for name, why in found.unreadable.items()
    ]
    metadata: dict[str, RawMetadataValue] = {
        "bytes_behind": found.bytes,
        "journals_behind": found.journals,
    }
    if found.stored_at is not None:
        age_s = max(0.0, now_s - found.stored_at)
        metadata["seconds_behind"] = age_s
        if age_s > fresh_within_s(raw, spec):
            since = datetime.fromtimestamp(found.stored_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
            texts.append(
                f"a store has content of {counted(found.journals, 'journal')} since {since} UTC that is not in rows: "
                f"{_who_runs(spec)}"
            )
    left = f"{found.bytes:,} bytes of {counted(found.journals, 'journal')}"
    good = f"{left} are not rows yet, which is in time." if found.bytes else "0 bytes behind."
    return _evaluation(typed_key(spec), FRESH_CHECK, in_lines(texts), metadata, good=good)


def _evaluation(
    key: AssetKey,
    check: str,
    text: str,
    metadata: Mapping[str, RawMetadataValue],
    *,
    is_blocking: bool = False,
    is_warning: bool = False,
    good: str = "",
) -> AssetCheckEvaluation:
    return AssetCheckEvaluation(
        asset_key=key,
        check_name=check,
        passed=not text,
        severity=AssetCheckSeverity.WARN if is_warning else AssetCheckSeverity.ERROR,
        description=text or good,
        metadata=metadata,
        blocking=is_blocking,
    )


def _number(messages: int) -> str:
    return f"{messages:,} {'message' if messages == 1 else 'messages'}"


def _who_runs(spec: TypedSpec) -> str:
    if spec.every_s:
        return "does `gazctl lake run --continuous` run? Its log says more"
    if spec.cron:
        return f"it is run when {spec.cron} has passed, and runs say why they fail"
    return (
        "its runs say why they fail (does the daemon run, and the automation sensor of the table?)"
    )


def _hole_text(hole: Hole) -> str:
    from gazette_platform.lake.typed.planning.ranges import HoleKind  # noqa: PLC0415  slow to import

    if hole.kind is HoleKind.MADE_AGAIN:
        return (
            f"{hole.journal} is not the journal that was read up to {hole.end}, and ends at {hole.begin}: it was deleted and "
            f"made again, or lost its end; nothing of it is read until `gazctl lake run --begin-anew {hole.journal}`, or "
            "`begin_anew` of a run here, says from where"
        )
    return (
        f"{hole.journal} stands still before offset {hole.begin}: {hole.kind} up to {hole.end}; it goes on when the "
        f"bytes exist, or by `--give-up {hole.journal}={hole.end}` of `gazctl lake run`, or `given_up` of a run here"
    )


def _offsets(state: TypedState) -> str:
    """How far journals were read: of some of them."""
    journals = sorted(state.journals.items())
    shown = [f"{name}: {one.offset}" for name, one in islice(journals, _JOURNALS_SHOWN)]
    if len(journals) > _JOURNALS_SHOWN:
        shown.append(counted(len(journals) - _JOURNALS_SHOWN, "more journal"))
    return "; ".join(shown)
