"""How a raw table stands: what of its journals is in Hive partitions, and what is wrong.

Content that stores have had for a while and no Hive partition holds, so that tables lack it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import GazetteError
from gazette_platform.lake.raw.accounts import AccountBook
from gazette_platform.lake.raw.applying import problems_with_journals
from gazette_platform.lake.raw.audits.unfit_finding import partition_fit, table_finding
from gazette_platform.lake.raw.planning import JournalCursor, bounded
from gazette_platform.lake.raw.tables import is_current, text_columns
from gazette_platform.lake.reading.source import all_fragments
from gazette_platform.lake.spec.layout import is_aside
from gazette_platform.protocol.offsets import subtract_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.reading.findings import Finding
    from gazette_platform.lake.reading.source import FragmentSource
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment, JournalSpec


@final
@dataclass(frozen=True, slots=True)
class JournalStanding:
    """A journal of a table: its head, and the offset up to which it is registered."""

    journal: str
    registered: int
    """End of the furthest fragment that is in a Hive partition."""
    head: int
    holes: tuple[tuple[int, int], ...] = ()
    """Bytes before that in none: pruned, or given up, or registered late."""

    @property
    def cursor(self) -> JournalCursor:
        """Where to go on, for who knows no more than the accounts say."""
        return JournalCursor(self.registered, None, bounded(self.holes))

    @property
    def lag_bytes(self) -> int:
        """Bytes appended, and in no Hive partition."""
        return max(0, self.head - self.registered)


@final
@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """A Hive partition, by its key, and what it holds."""

    key: str
    location: str
    state: PartitionState


@final
@dataclass(slots=True, kw_only=True)
class TableStanding:
    """How one table stands."""

    spec: TableSpec
    journals: list[JournalStanding] = field(default_factory=list)
    partitions: list[PartitionStanding] = field(default_factory=list)
    location: str = ""
    """Where the table is; empty while it is not made."""
    is_known: bool = True
    """Whether a metastore could be asked."""
    as_text: frozenset[str] = frozenset()
    """Columns that Trino reads as text."""
    problems: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int | None:
        """Rows of all Hive partitions; None if those of some are not known."""
        counts = [partition.state.rows for partition in self.partitions]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def content_bytes(self) -> int:
        """Decompressed bytes of all fragments."""
        return sum(partition.state.content_bytes for partition in self.partitions)

    @property
    def unfit_records(self) -> int:
        """Records of all Hive partitions that do not fit the spec."""
        return sum(partition.state.unfit_records for partition in self.partitions)

    @property
    def unfit_finding(self) -> Finding | None:
        """What these records mean for rollups; None: there are none."""
        fits = [partition_fit(each.key, each.state) for each in self.partitions]
        return table_finding(self.spec, [fit for fit in fits if fit is not None], self.as_text)

    @property
    def is_blocked(self) -> bool:
        """Whether rollups wait because of them."""
        finding = self.unfit_finding
        return finding is not None and finding.is_error

    @property
    def lag_bytes(self) -> int:
        """Bytes of all journals that are in no Hive partition."""
        return sum(journal.lag_bytes for journal in self.journals)

    @property
    def held(self) -> dict[str, list[tuple[int, int]]]:
        """By journal, bytes that are in a Hive partition, or aside."""
        held: dict[str, list[tuple[int, int]]] = {}
        for partition in self.partitions:
            state = partition.state
            held.setdefault(state.journal, []).extend([*state.ranges, *state.aside])
        return held

    def summary(self) -> dict[str, Any]:
        """What a list shows, as plain values; None is what is not known."""
        is_made = bool(self.location)
        return {
            "table": self.spec.name,
            "format": self.spec.format,
            "journals": len(self.journals),
            "partitions": len(self.partitions) if self.is_known else None,
            "rows": self.rows if self.is_known else None,
            "content_bytes": self.content_bytes if self.is_known else None,
            "unfit_records": self.unfit_records if self.is_known else None,
            "blocked": self.is_blocked if self.is_known else None,
            "lag_bytes": self.lag_bytes if self.is_known else None,
            "is_made": is_made if self.is_known else None,
            "problems": self.problems,
        }


def table_standing(
    spec: TableSpec,
    journals: Sequence[JournalSpec],
    heads: Mapping[str, int],
    session: MetastoreSession | None,
    at: datetime,
) -> TableStanding:
    """How the table of `spec` stands.

    Args:
        spec: its spec.
        journals: specs of its journals.
        heads: their write heads, by name.
        session: the metastore; None if there is none to ask.
        at: the time now.

    Raises: GazetteError: the metastore broke off.
    """
    standing = TableStanding(spec=spec, is_known=session is not None)
    standing.problems += map(str, problems_with_journals(spec, journals, at))
    table = session.table(spec.schema, spec.stored_table) if session is not None else None
    if session is not None and table is not None:
        standing.location = table.location
        standing.as_text = text_columns(spec, table)
        _look_at(standing, session, table)
    held = standing.held
    for journal in journals:
        ranges = held.get(journal.name, [])
        end = max((high for _, high in ranges), default=0)
        holes = tuple(subtract_ranges([(0, end)], ranges))
        standing.journals.append(
            JournalStanding(journal.name, end, heads.get(journal.name, 0), holes)
        )
    if standing.is_known and table is None and journals and not standing.problems:
        why = (
            "wait for the flush interval, or see the ticks of the sensor `fragments`"
            if any(heads.values())
            else "its journals are empty"
        )
        standing.problems.append(f"the table is not made yet: {why}")
    return standing


def _look_at(standing: TableStanding, session: MetastoreSession, table: HiveTable) -> None:
    """Take Hive partitions, and what is wrong with the table itself."""
    spec = standing.spec
    if not is_current(spec, table):
        standing.problems.append(
            "the table is not as its spec says yet: see the ticks of the sensor `fragments`"
        )
    try:
        standing.partitions = partition_standings(session, table)
    except GazetteError as err:
        standing.problems.append(str(err))
    finding = standing.unfit_finding
    if finding is not None and finding.is_error:
        standing.problems.append(finding.text)


def partition_standings(session: MetastoreSession, table: HiveTable) -> list[PartitionStanding]:
    """All Hive partitions of a table, or the table itself if it has none, by their accounts.

    Raises: GazetteError: the metastore broke off, or accounts cannot be read.
    """
    book = AccountBook(session, table)
    return [PartitionStanding(e.key, e.location, e.state) for e in book.every()]


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
    missing = {journal: subtract_ranges([_ALL], held) for journal, held in standing.held.items()}

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
