"""What a tick of the sensor did, and has to report.

Whose turn it is, and the cursor that a tick leaves behind: decided purely.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.lake import JournalCursor, RegistrationCursor, SweepPoint
from gazette_platform.sensors.audits import AuditState
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.prunes import RetentionState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster import (
        AddDynamicPartitionsRequest,
        AssetCheckEvaluation,
        AssetMaterialization,
        AssetObservation,
        DeleteDynamicPartitionsRequest,
    )

    from gazette_platform.sensors.waits import Wait


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


def in_turn(names: Sequence[str], first: str) -> list[str]:
    """`names`, beginning with `first`, or with the one that would come after it.

    >>> in_turn(["a", "b", "c"], "b")
    ['b', 'c', 'a']
    """
    ordered = sorted(names)
    at = next((i for i, name in enumerate(ordered) if name >= first), 0)
    return ordered[at:] + ordered[:at]


def following(names: Sequence[str], last: str, *, is_again: bool = False) -> str:
    """The name whose turn it is after `last`; `last` itself if it `is_again`; empty if there is none.

    >>> following(["a", "b"], "b"), following(["a", "b"], "b", is_again=True), following([], "x")
    ('a', 'b', '')
    """
    if is_again and last in names:
        return last
    return next((n for n in sorted(names) if n > last), min(names, default=""))


@final
@dataclass(slots=True)
class TickState:
    """The next cursor in the making."""

    tables: dict[str, Mapping[str, JournalCursor]]
    problems: dict[str, str]
    audits: dict[str, AuditState]
    waits: dict[str, Mapping[str, Wait]] = field(default_factory=dict)
    swept: str = ""
    sweep: SweepPoint = field(default_factory=SweepPoint)
    looked: str = ""
    retention: RetentionState = field(default_factory=RetentionState)

    @classmethod
    def of(cls, cursor: SensorCursor, names: Sequence[str], kept: SensorCursor | None) -> TickState:
        """What `cursor` says of the tables `names`, and of all in `kept`."""
        wanted = {*names, *(kept.registered.tables if kept is not None else ())}
        return cls(
            {n: cursor.registered.tables.get(n, {}) for n in sorted(wanted)},
            # Also of tables whose spec was refused from the beginning.
            {n: d for n, d in cursor.problems.items() if n in wanted or kept is not None},
            {n: state for n, state in cursor.audits.items() if n in wanted},
            {n: waits for n, waits in cursor.waits.items() if n in wanted},
            swept=cursor.swept if cursor.swept in wanted else "",
            sweep=cursor.sweep,
            looked=cursor.looked,
            retention=cursor.retention.only([*wanted]),
        )

    def cursor(self, *, turn: str, audited: str, folder: str, epoch: int) -> SensorCursor:
        """The cursor that a tick ends with."""
        return SensorCursor(
            RegistrationCursor(self.tables),
            {n: digest for n, digest in self.problems.items() if digest},
            {n: state for n, state in self.audits.items() if state != AuditState()},
            turn=turn,
            swept=self.swept,
            sweep=self.sweep,
            looked=self.looked,
            audited=audited,
            waits={n: waits for n, waits in self.waits.items() if waits},
            folder=folder,
            retention=self.retention,
            epoch=epoch,
        )
