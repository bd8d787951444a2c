"""The lag of a table: content that is not in rows yet, and since when a store has it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.lake.typed.planning.ranges import plan_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.lake.typed.planning.ranges import Hole
    from gazette_platform.lake.typed.planning.state import TypedState
    from gazette_platform.lake.typed.runs.journals import JournalsNow


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """How far a typed table is behind its journals."""

    bytes: int = 0
    """That could be read, and were not."""
    journals: int = 0
    """That have some of these."""
    stored_at: int | None = None
    """Unix seconds since which a store has the oldest of them; None: no store has any, so they are younger than a
    fragment gets."""
    holes: tuple[Hole, ...] = ()
    """What cannot be read."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """By journal, why brokers report nothing about it."""


def behind(now: JournalsNow, state: TypedState) -> Behind:
    """What a run that begins now would find.

    Args:
        now: what brokers hold.
        state: of the table.
    """
    plan = plan_run(state, now.journals)
    first = (one.tasks[0].extents[0].listing for one in plan.ranges)
    return Behind(
        bytes=sum(one.end - one.begin for one in plan.ranges) + plan.left_bytes,
        journals=len(plan.ranges),
        stored_at=min((one.fragment.mod_time for one in first if one is not None), default=None),
        holes=plan.holes,
        unreadable=now.unreadable,
    )
