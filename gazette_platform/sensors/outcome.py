"""What a tick of the sensor did, and has to report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.sensors.cursor import SensorCursor

if TYPE_CHECKING:
    from dagster import (
        AddDynamicPartitionsRequest,
        AssetCheckEvaluation,
        AssetMaterialization,
        AssetObservation,
        DeleteDynamicPartitionsRequest,
    )

__all__ = ["TickOutcome"]


@final
@dataclass(slots=True)
class TickOutcome:
    """What a tick did to all tables."""

    events: list[AssetMaterialization | AssetObservation | AssetCheckEvaluation] = field(
        default_factory=list
    )
    partitions: list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest] = field(
        default_factory=list
    )
    summaries: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cursor: SensorCursor = field(default_factory=SensorCursor)

    @property
    def text(self) -> str:
        """What the tick says of itself: problems first, then what was registered."""
        return "\n".join([*self.problems, *self.warnings, *self.summaries]) or "No new fragments."

    @property
    def skip_reason(self) -> str | None:
        """Why nothing was done; None if something was, which Dagster is not to log as skipped."""
        return None if self.events or self.partitions or self.summaries else self.text
