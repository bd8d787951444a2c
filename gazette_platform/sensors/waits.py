"""What journals wait for, since when, and when that is a stall: decided purely.

A journal *waits* while it has bytes that are in no Hive partition. That is as it should be until its
fragment closes and its store has it, so a wait is a *stall* only when the first of these bytes stays
the same for longer than that may take. Waits that go on are reported to Dagster now and then, so that the head
that brokers reported last, and how far behind it the table is, are to be seen also while nothing arrives.

The cursor holds the time when a wait was seen first, and none while nothing waits: its text is the same
for the same progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.lake.raw.audits.status import STALLED_S
from gazette_platform.ops.text import SECOND_NS, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.lake import JournalProgress, TableReport

_TOLD_EVERY_S: Final = 60
# Dagster keeps every event: ten a minute, over all journals that wait, are 14,000 a day.
_TOLD_APART_S: Final = 6
# Of a table. Others are not forgotten by brokers, only looked at later.
_WAITS_MAX: Final = 200


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """A journal that waits."""

    complete_to: int
    """The first byte that is waited for."""
    since: int
    """Unix seconds: when it was first seen that this byte is waited for."""
    told_at: int
    """Unix seconds: when this journal was last reported to Dagster, or the wait began."""
    told_head: int = -1
    """The head in that report; -1: none yet."""

    def to_json(self) -> list[int]:
        """As JSON values."""
        return [self.complete_to, self.since, self.told_at, self.told_head]

    @classmethod
    def from_json(cls, raw: Any) -> Wait:
        """The wait whose `to_json` was `raw`.

        Raises: ValueError, TypeError: it is none.
        """
        complete_to, since, told_at, told_head = raw
        return cls(int(complete_to), int(since), int(told_at), int(told_head))


@final
@dataclass(slots=True)
class Followed:
    """What waits after a tick, and what to report."""

    waits: dict[str, Wait] = field(default_factory=dict)
    """By journal."""
    to_tell: list[JournalProgress] = field(default_factory=list)
    """Journals to report to Dagster, besides those with newly registered content."""
    stalls: list[str] = field(default_factory=list)
    """One text a journal that stalls."""


def follow(
    waits: Mapping[str, Wait], report: TableReport, now_s: float, *, waiting: int = 1
) -> Followed:
    """What waits after a tick over one table.

    Args:
        waits: before it, by journal.
        report: what the tick did. Journals that it had no time for go on waiting.
        now_s: unix seconds.
        waiting: journals that wait, over all tables: the more there are, the less often each is reported.
    """
    now = int(now_s)
    every_s = max(_TOLD_EVERY_S, _TOLD_APART_S * waiting)
    followed = Followed()
    seen = {progress.journal: progress for progress in report.journals}
    for journal in sorted(report.matched, key=lambda name: (name not in waits, name)):
        former, progress = waits.get(journal), seen.get(journal)
        if progress is None:
            if former is not None:
                followed.waits[journal] = former
            continue
        if not progress.lag_bytes:
            if former is not None and former.told_head >= 0:
                followed.to_tell.append(progress)
            continue
        if len(followed.waits) >= _WAITS_MAX:
            continue
        wait = former or Wait(progress.complete_to, now, now)
        if wait.complete_to != progress.complete_to:
            wait = replace(wait, complete_to=progress.complete_to, since=now)
        if now - wait.told_at >= every_s and wait.told_head != progress.write_head:
            wait = replace(wait, told_at=now, told_head=progress.write_head)
            followed.to_tell.append(progress)
        followed.waits[journal] = wait
        if _is_stalled(progress, now - wait.since):
            followed.stalls.append(stall_text(report.table, progress, wait.since))
    return followed


def _is_stalled(progress: JournalProgress, waited_s: float) -> bool:
    if progress.is_stored or progress.hole_bytes:
        return waited_s >= STALLED_S
    # What is open may be so for as long as the flush interval, and without one for ever.
    interval_s = progress.flush_interval_s
    return interval_s > 0 and waited_s >= interval_s + STALLED_S


def stall_text(table: str, progress: JournalProgress, since_s: float) -> str:
    """That a journal stalls, why as far as that is known, and what to do."""
    since = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    text = (
        f"{table}: {progress.journal} stalls: its bytes from {progress.complete_to} on are not "
        f"registered, and were not at {since} UTC"
    )
    if progress.is_stored:
        return (
            f"{text}, though a store has some of them: other problems of the table say why, or "
            f"`gazctl lake check {table}` does"
        )
    if progress.hole_bytes:
        return (
            f"{text}: brokers list none of them, but what follows: one of them may still be "
            "uploading, or the bytes are lost (`gazctl journals fragments` lists what exists)"
        )
    interval = format_duration(round(progress.flush_interval_s * SECOND_NS))
    return (
        f"{text}: no store has them, though the flush interval is {interval}: see whether brokers "
        "can reach the store (`gazctl journals store-health`), and their logs"
    )
