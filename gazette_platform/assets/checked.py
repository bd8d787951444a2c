"""How much of a raw table its checks looked at, which green ones say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from dagster import AssetCheckEvaluation, MetadataValue

from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from dagster import AssetKey, DagsterInstance


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was checked of a raw table."""

    journals: int
    records: int | None = None
    """None: they are not known."""
    uncounted: int = 0
    """Partitions whose records are not counted yet."""

    @property
    def of_records(self) -> str:
        """The number of records, in words."""
        if self.records is None:
            return f"all records of {counted(self.journals, 'journal')}"
        known = f"{self.records:,} {'record' if self.records == 1 else 'records'}"
        if not self.uncounted:
            return known
        return f"{known} and {counted(self.uncounted, 'uncounted partition')}"

    def text(self, check: str) -> str:
        """What a green check says; empty: it is not a check of a raw table."""
        journals = counted(self.journals, "journal")
        return {
            "no_gap": f"{journals}, 0 gaps.",
            "no_overlap": f"{self.of_records}, 0 of them twice.",
            "counts_agree": f"{self.of_records} in {journals}: files, fragments and Hive partitions agree.",
            "fits_spec": f"{self.of_records}, 0 unfit.",
        }.get(check, "")


def with_counts(evaluation: AssetCheckEvaluation, checked: Checked) -> AssetCheckEvaluation:
    """Return the evaluation with what was checked, and with how much that was if it is green."""
    text = checked.text(evaluation.check_name) if evaluation.passed else ""
    counts = {"journals": MetadataValue.int(checked.journals)}
    if checked.records is not None:
        counts["records"] = MetadataValue.int(checked.records)
    return AssetCheckEvaluation(
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        passed=evaluation.passed,
        severity=evaluation.severity,
        description=text or evaluation.description,
        metadata={**evaluation.metadata, **counts},
        blocking=evaluation.blocking,
    )


def rows_told(instance: DagsterInstance, asset: AssetKey) -> int | None:
    """Return the rows of a table in its newest event; None: it has none."""
    for record in instance.fetch_materializations(asset, limit=1).records:
        event = record.asset_materialization
        rows = event.metadata.get("dagster/row_count") if event is not None else None
        if rows is not None and isinstance(rows.value, int):
            return rows.value
    return None
