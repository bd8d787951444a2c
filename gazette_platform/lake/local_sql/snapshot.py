"""What tables hold at an instant: heads of journals first, then who holds the bytes below them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError, LakeError, ValidationError
from gazette_platform.lake.layout import Layout, PartitionColumn, partition_columns
from gazette_platform.lake.local_sql.segments import plan_segments
from gazette_platform.lake.planning import directory_of
from gazette_platform.ops.side_by_side import side_by_side
from gazette_platform.protocol import Fragment, JournalSpec, LabelSet, PathPostfixTemplate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from gazette_platform.client import AsyncClient, FragmentListing, JournalListing
    from gazette_platform.lake.local_sql.segments import Segment, SegmentPlan
    from gazette_platform.lake.table_spec import TableSpec

__all__ = ["JournalSnapshot", "TableSnapshot", "take_snapshot"]

_JOURNALS_AT_A_TIME = 16
# Of signed URLs: a query that runs longer reads the rest through brokers.
_URL_TTL_S = 3600.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSnapshot:
    """A journal up to its write head at the instant of the snapshot."""

    journal: str
    begin: int
    """First byte that was not pruned."""
    persisted_end: int
    """The seam: persisted fragments are read up to here, and the live tail from here on."""
    head: int
    """Byte offset; what was appended later is not in the query."""
    fragments: int
    """Persisted ones."""
    gaps: tuple[tuple[int, int], ...]
    """Bytes between `begin` and `head` that nobody holds now."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A table: what is in it, and from where it is read."""

    spec: TableSpec
    columns: tuple[PartitionColumn, ...]
    """The partition columns."""
    journals: tuple[JournalSnapshot, ...]
    segments: tuple[Segment, ...]
    taken_at: datetime
    """Aware, UTC."""


async def take_snapshot(client: AsyncClient, spec: TableSpec, now: datetime) -> TableSnapshot:
    """The table at this instant.

    Args:
        now: by which path postfixes of what is not persisted yet are made.

    Raises: ValidationError: no journal matches, or the spec does not suit their paths. LakeError: their
        paths differ. TransportError. Cancellation: safe.
    """
    matched = await client.list(spec.label_selector)
    if not matched:
        raise ValidationError(
            f"{spec.name}: no journal matches the selector {spec.selector!r} (`gazctl journals list` "
            "shows which there are)"
        )
    # Of the others nothing is stored, so a table of such alone is empty.
    found = [journal for journal in matched if not journal.spec.is_fully_suspended]
    heads = await client.write_heads(found)

    async def listed(journal: JournalListing) -> Sequence[FragmentListing]:
        return await client.fragments(journal.name, ttl_s=_URL_TTL_S)

    fragments = await side_by_side(listed, found, at_a_time=_JOURNALS_AT_A_TIME)
    places = _Places(spec, matched, fragments, now)
    plans = [
        plan_segments(
            journal.name,
            of_journal,
            heads[journal.name],
            values_of=places.values_of,
            live_values=places.live_values(journal.spec),
        )
        for journal, of_journal in zip(found, fragments, strict=True)
    ]
    return TableSnapshot(
        spec=spec,
        columns=places.columns,
        journals=tuple(
            _of_journal(j.name, heads[j.name], p) for j, p in zip(found, plans, strict=True)
        ),
        segments=tuple(segment for plan in plans for segment in plan.segments),
        taken_at=now,
    )


def _of_journal(name: str, head: int, plan: SegmentPlan) -> JournalSnapshot:
    return JournalSnapshot(
        journal=name,
        begin=plan.begin,
        persisted_end=plan.persisted_end,
        head=head,
        fragments=sum(segment.listing is not None for segment in plan.segments),
        gaps=plan.gaps,
    )


@final
class _Places:
    """Partition values of the fragments of a table, by their directories."""

    def __init__(
        self,
        spec: TableSpec,
        journals: Sequence[JournalListing],
        fragments: Sequence[Sequence[FragmentListing]],
        now: datetime,
    ) -> None:
        self._now = now
        stored = (f.fragment for of_one in fragments for f in of_one if f.is_persisted)
        first = next(stored, None)
        directory = directory_of(first) if first else self._live_directory(journals[0].spec)
        self._layout = Layout.of_directory(directory)
        self.columns = partition_columns(spec, self._layout)
        self._known: dict[str, tuple[str | None, ...]] = {}

    def values_of(self, listing: FragmentListing) -> tuple[str | None, ...]:
        """Raises: LakeError: the fragment's directory has another layout than the table's first one."""
        directory = directory_of(listing.fragment)
        values = self._known.get(directory)
        if values is None:
            texts = self._layout.match(directory)
            values = tuple(c.value(t) for c, t in zip(self.columns, texts, strict=True))
            self._known[directory] = values
        return values

    def live_values(self, spec: JournalSpec) -> tuple[str | None, ...]:
        """Those of a fragment that was begun now; None where only the broker will know.

        A fragment gets its path when it is persisted, from the time of its first append. So near the
        end of an hour what is in the tail as of this hour may be persisted as of the last.
        """
        try:
            texts = self._layout.match(self._live_directory(spec))
            return tuple(c.value(t) for c, t in zip(self.columns, texts, strict=True))
        except LakeError:
            keys = dict(segment.split("=", 1) for segment in spec.name.split("/") if "=" in segment)
            return tuple(c.value(keys[c.key]) if c.key in keys else None for c in self.columns)

    def _live_directory(self, spec: JournalSpec) -> str:
        if not spec.fragment.path_postfix_template:
            return spec.name
        try:
            postfix = PathPostfixTemplate(spec.fragment.path_postfix_template).evaluate(
                Fragment(spec.name, 0, 0), self._now, LabelSet(), spec
            )
            return directory_of(Fragment(spec.name, 0, 0, path_postfix=postfix))
        except GazetteError:  # it needs registers, which only brokers know
            return spec.name
