"""Content that stores have had for a while and no Hive partition holds, so that tables lack it."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import GazetteError
from gazette_platform.lake.aside import is_aside
from gazette_platform.lake.progress import subtract
from gazette_platform.lake.source import all_fragments

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.lake.source import FragmentSource
    from gazette_platform.lake.standing import TableStanding
    from gazette_platform.protocol import Fragment

__all__ = ["STALLED_S", "overdue"]

STALLED_S: Final = 300
"""Seconds that what a store has may be unregistered before its journal is said to stall."""

_PAGE: Final = 100
_ALL: Final = (0, (1 << 63) - 1)


def overdue(
    source: FragmentSource,
    standing: TableStanding,
    now_s: float,
    *,
    from_begin: bool = False,
    on_error: Callable[[str, GazetteError], object] | None = None,
) -> list[str]:
    """Why journals of a table stall, one text a journal; none if the table keeps up.

    Args:
        source: lists fragments.
        standing: how the table stands, as a metastore says.
        now_s: unix seconds.
        from_begin: whether to list journals from their begin; else only the next fragments behind
            what is registered.
        on_error: called with why a journal cannot be listed; the others are looked at. None: that is raised.

    Raises: GazetteError: brokers cannot be reached.
    """
    # What is in none, once a journal: it may have as many Hive partitions as fragments.
    missing = {journal: subtract([_ALL], held) for journal, held in standing.held.items()}

    def is_overdue(fragment: Fragment, journal: str) -> bool:
        if not fragment.backing_store or not fragment.content_length or is_aside(fragment):
            return False
        if now_s - fragment.mod_time < STALLED_S:
            return False
        holes = missing.get(journal, [_ALL])
        index = bisect_right(holes, fragment.begin, key=itemgetter(1))
        return index < len(holes) and holes[index][0] < fragment.end

    found: list[str] = []
    for each in standing.journals:
        if not from_begin and not each.lag_bytes:
            continue
        try:
            if from_begin:
                fragments = all_fragments(source, each.journal)
            else:
                fragments = iter(source.fragments(each.journal, each.registered, _PAGE))
            first = next((f for f in fragments if is_overdue(f, each.journal)), None)
        except GazetteError as err:
            if on_error is None:
                raise
            on_error(each.journal, err)
            continue
        if first is not None:
            since = datetime.fromtimestamp(first.mod_time, UTC).strftime("%Y-%m-%d %H:%M:%S")
            found.append(
                f"{each.journal} stalls: a store has its bytes from {first.begin} on since {since} "
                "UTC, and no Hive partition has them: the ticks of the sensor `fragments` say why "
                "(is it running?)"
            )
    return found
