"""What stores have had for a while, and no Hive partition has: of which tables should have been told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gazette_platform.lake.progress import subtract
from gazette_platform.lake.source import all_fragments

if TYPE_CHECKING:
    from gazette_platform.lake.source import FragmentSource
    from gazette_platform.lake.standing import TableStanding
    from gazette_platform.protocol import Fragment

__all__ = ["STALLED_S", "overdue"]

STALLED_S: Final = 300
"""Seconds that what a store has may be unregistered before its journal is said to stall."""

_PAGE: Final = 100


def overdue(
    source: FragmentSource, standing: TableStanding, now_s: float, *, from_begin: bool = False
) -> list[str]:
    """Why journals of a table stall, one text a journal; none if the table keeps up.

    Args:
        source: lists fragments.
        standing: how the table stands, as a metastore says.
        now_s: unix seconds.
        from_begin: whether to list journals from their begin; else only the next fragments behind
            what is registered.

    Raises: GazetteError: brokers cannot be reached.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    for partition in standing.partitions:
        ranges.setdefault(partition.state.journal, []).extend(partition.state.ranges)

    def is_overdue(fragment: Fragment, journal: str) -> bool:
        if not fragment.backing_store or not fragment.content_length:
            return False
        if now_s - fragment.mod_time < STALLED_S:
            return False
        return bool(subtract([(fragment.begin, fragment.end)], ranges.get(journal, [])))

    found: list[str] = []
    for each in standing.journals:
        if from_begin:
            fragments = all_fragments(source, each.journal)
        elif each.lag_bytes:
            fragments = iter(source.fragments(each.journal, each.registered, _PAGE))
        else:
            continue
        first = next((f for f in fragments if is_overdue(f, each.journal)), None)
        if first is not None:
            since = datetime.fromtimestamp(first.mod_time, UTC).strftime("%Y-%m-%d %H:%M:%S")
            found.append(
                f"{each.journal} stalls: a store has its bytes from {first.begin} on since {since} "
                "UTC, and no Hive partition has them: the ticks of the sensor `fragments` say why "
                "(is it running?)"
            )
    return found
