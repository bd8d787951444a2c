"""Registering a table up to given offsets now, by as many ticks as it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.raw.listing import HOLES_LOOKED_MAX
from gazette_platform.lake.raw.planning import JournalCursor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gazette_platform.lake.raw.registration import Registrar
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import JournalSpec

# Brokers list a fragment a moment after their store has it.
_AGAIN_S = 0.2


@final
@dataclass(slots=True)
class CaughtUp:
    """What was registered on the way."""

    rows: int | None = 0
    """None if those of some fragment could not be counted."""
    keys: set[str] = field(default_factory=set)
    """Of the Hive partitions that changed."""
    told: list[str] = field(default_factory=list)
    """Warnings, and errors of fragments that keep nothing else from being registered."""


def reachable(journals: Iterable[JournalSpec], ends: Mapping[str, int]) -> dict[str, int]:
    """Those of `ends` that listings can reach.

    A journal that is suspended in full has an end, and nothing is stored before it.
    """
    empty = {journal.name for journal in journals if journal.is_fully_suspended}
    return {journal: end for journal, end in ends.items() if journal not in empty}


def catch_up(
    registrar: Registrar,
    spec: TableSpec,
    begins: Mapping[str, JournalCursor],
    ends: Mapping[str, int],
    *,
    deadline: float,
    clock: Clock,
) -> CaughtUp:
    """Register what journals hold below `ends`.

    It is the sensor's tick, over and over: who else registers meanwhile is no matter. Each hole of the
    accounts is looked at, too, since what is stored late may be behind what was registered.

    Args:
        registrar: does it.
        spec: the table.
        begins: per journal, where to begin: as the accounts say.
        ends: per journal, the offset below which all is in its store.
        deadline: by the monotonic clock.
        clock: gives the time.

    Raises: LakeError: an error is in the way, or it is not done in time; names the journals.
        GazetteError: a server cannot be reached.
    """
    done = CaughtUp()
    offsets: dict[str, int] = {}
    for begin in _rounds(begins):
        cursors = {
            journal: replace(cursor, offset=max(cursor.offset, offsets.get(journal, 0)))
            for journal, cursor in begin.items()
        }
        reached = _round(registrar, spec, cursors, ends, done, deadline, clock)
        offsets = {journal: cursor.offset for journal, cursor in reached.items()}
    return done


def _rounds(begins: Mapping[str, JournalCursor]) -> Iterator[Mapping[str, JournalCursor]]:
    """Cursors with no more holes than one tick looks at; all holes, over all of them."""
    step = HOLES_LOOKED_MAX
    count = max((len(cursor.holes) for cursor in begins.values()), default=0)
    for start in range(0, max(1, count), step):
        yield {j: replace(c, holes=c.holes[start : start + step]) for j, c in begins.items()}


def _round(  # noqa: PLR0917
    registrar: Registrar,
    spec: TableSpec,
    cursors: Mapping[str, JournalCursor],
    ends: Mapping[str, int],
    done: CaughtUp,
    deadline: float,
    clock: Clock,
) -> Mapping[str, JournalCursor]:
    """Ticks until all is registered that is listed now. Returns: the cursors after them."""
    while True:
        report = registrar.tick(spec, cursors, is_over=lambda: clock.monotonic() > deadline)
        is_settled = report.cursors == cursors or not any(c.holes for c in report.cursors.values())
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
        if not behind and not report.has_more and is_settled:
            done.told += [text for text in report.errors if text not in done.told]
            return cursors
        # What a hole cannot take was reported long ago, and delays nothing else.
        if report.errors and behind and not report.updates:
            raise LakeError(f"{spec.name}: {'; '.join(report.errors)}")
        if clock.monotonic() > deadline:
            raise LakeError(
                f"{spec.name}: not registered in time: {', '.join(behind)} (the sensor goes on; "
                "`gazctl lake describe` shows how far it is)"
            )
        if not report.updates and behind:
            time.sleep(_AGAIN_S)
