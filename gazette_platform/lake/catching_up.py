"""Registering a table up to given offsets now, by as many ticks as it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.progress import JournalCursor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.lake.registration import Registrar
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.ops.clock import Clock

__all__ = ["CaughtUp", "catch_up"]

# Brokers list a fragment a moment after their store has it.
_AGAIN_S = 0.2


@final
@dataclass(slots=True)
class CaughtUp:
    """What was registered on the way."""

    rows: int | None = 0
    """None if those of some fragment could not be counted."""
    keys: set[str] = field(default_factory=set)
    """Dagster's partition keys of the Hive partitions that changed."""
    told: list[str] = field(default_factory=list)
    """Warnings, and errors of fragments that keep nothing else from being registered."""


def catch_up(
    registrar: Registrar,
    spec: TableSpec,
    begins: Mapping[str, int],
    ends: Mapping[str, int],
    *,
    deadline: float,
    clock: Clock,
) -> CaughtUp:
    """Register what journals hold below `ends`.

    It is the sensor's tick, over and over: who else registers meanwhile is no matter.

    Args:
        registrar: does it.
        spec: the table.
        begins: per journal, where to begin: the offset that accounts reach.
        ends: per journal, the offset below which all is in its store.
        deadline: by the monotonic clock.
        clock: tells the time.

    Raises: LakeError: an error is in the way, or it is not done in time; says of which journals.
        GazetteError: a server cannot be reached.
    """
    done = CaughtUp()
    cursors: Mapping[str, JournalCursor] = {
        journal: JournalCursor(begin) for journal, begin in begins.items()
    }
    while True:
        report = registrar.tick(spec, cursors, is_over=lambda: clock.monotonic() > deadline)
        cursors = report.cursors
        for update in report.updates:
            done.keys.add(update.key)
            is_known = done.rows is not None and update.rows_added is not None
            done.rows = (done.rows or 0) + (update.rows_added or 0) if is_known else None
        done.told += report.warnings
        behind = [
            journal
            for journal, end in ends.items()
            if cursors.get(journal, JournalCursor()).offset < end
        ]
        if not behind and not report.has_more:
            done.told += report.errors
            return done
        if report.errors and not report.updates:
            raise LakeError(f"{spec.name}: {'; '.join(report.errors)}")
        if clock.monotonic() > deadline:
            raise LakeError(
                f"{spec.name}: not registered in time: {', '.join(behind)} (the sensor goes on; "
                "`gazctl lake describe` shows how far it is)"
            )
        if not report.updates:
            time.sleep(_AGAIN_S)
