"""What tables hold at an instant: heads of journals first, then who holds the bytes below them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.client.read.extents import Extent, JournalSnapshot, snapshot_of
from gazette_platform.errors import GazetteError, LakeError, ValidationError
from gazette_platform.lake.spec.layout import (
    Layout,
    PartitionColumn,
    directory_of,
    home_directory,
    is_aside,
    partition_columns,
)
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import Fragment, JournalSpec, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from gazette_platform.client import AsyncClient, FragmentListing, JournalListing
    from gazette_platform.lake.spec.table_spec import TableSpec

Values = tuple[str | None, ...]

_JOURNALS_AT_A_TIME = 16
# Of signed URLs: a query that runs longer reads the rest through brokers.
_URL_TTL_S = 3600.0


@final
@dataclass(frozen=True, slots=True, repr=False)
class TableExtent(Extent):
    """An extent of one of the table's journals, and its Hive partition."""

    values: Values = ()
    """Of the partition columns; None: not known before the fragment is persisted."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A table: what is in it, and from where it is read."""

    spec: TableSpec
    columns: tuple[PartitionColumn, ...]
    """The partition columns."""
    journals: tuple[JournalSnapshot, ...]
    extents: tuple[TableExtent, ...]
    """Of all journals."""
    taken_at: datetime
    """Aware, UTC."""
    layouts: tuple[str, ...] = ()
    """How directories of the journals' fragments are built; of more than one, partition columns are NULL where
    a directory lacks them."""


async def take_snapshot(client: AsyncClient, spec: TableSpec, now: datetime) -> TableSnapshot:
    """The table at this instant.

    Args:
        now: the time for path postfixes of what is not persisted yet.

    Raises: ValidationError: no journal matches, or the spec does not suit their paths. LakeError: a path
        has a key twice, or a value that is not of its column's type. TransportError. Cancellation: safe.
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
    snapshots = [
        snapshot_of(journal.name, of_journal, heads[journal.name], is_aside=is_aside)
        for journal, of_journal in zip(found, fragments, strict=True)
    ]
    return TableSnapshot(
        spec=spec,
        columns=places.columns,
        journals=tuple(snapshots),
        extents=tuple(
            extent
            for journal, snapshot in zip(found, snapshots, strict=True)
            for extent in places.extents_of(journal.spec, snapshot)
        ),
        taken_at=now,
        layouts=places.layouts,
    )


@final
class _Places:
    """Partition values of the fragments of a table, by their directories.

    A table has the partition columns of all of its directories, in the order in which they come up, and NULL
    in those that a directory lacks: after a change of the path postfix, say, or where one journal has another.
    """

    def __init__(
        self,
        spec: TableSpec,
        journals: Sequence[JournalListing],
        fragments: Sequence[Sequence[FragmentListing]],
        now: datetime,
    ) -> None:
        self._now = now
        self._spec = spec
        stored = (f.fragment for of_one in fragments for f in of_one if f.is_persisted)
        directories = dict.fromkeys(home_directory(f) for f in stored)
        found = dict.fromkeys(_layout(spec, directory) for directory in directories)
        for directory in dict.fromkeys(self._live_directory(each.spec) for each in journals):
            # One that continues in a way that only brokers know counts as one that exists.
            live = _layout(spec, directory)
            if not any(str(layout).startswith(f"{live}/") for layout in found):
                found.setdefault(live)
        self.layouts = tuple(map(str, found))
        keys = dict.fromkeys(key for layout in found for key in layout.keys)
        self.columns = partition_columns(spec, Layout(tuple(f"{{{key}}}" for key in keys)))
        self._known: dict[str, Values] = {}

    def extents_of(self, spec: JournalSpec, snapshot: JournalSnapshot) -> Iterator[TableExtent]:
        """Yield the extents of a journal, with their values.

        What is not stored has those of a fragment that is begun now; None where only the broker will know. A fragment gets its
        path when it is persisted, from the time of its first append. So near the end of an hour what is in the tail as of this
        hour may be persisted as of the last.

        Raises: LakeError: a value in a fragment's directory is not of its column's type.
        """
        live = self._live_directory(spec)
        for each in snapshot.extents:
            directory = live if each.listing is None else home_directory(each.listing.fragment)
            yield TableExtent(
                each.journal, each.begin, each.end, each.listing, self._values(directory)
            )

    def _values(self, directory: str) -> Values:
        values = self._known.get(directory)
        if values is None:
            values = self._known[directory] = self._values_in(directory)
        return values

    def _values_in(self, directory: str) -> Values:
        texts = dict(segment.split("=", 1) for segment in directory.split("/") if "=" in segment)
        try:
            return tuple(c.value(texts[c.key]) if c.key in texts else None for c in self.columns)
        except LakeError as err:
            raise LakeError(f"{self._spec.name}: {directory}: {err}") from err

    def _live_directory(self, spec: JournalSpec) -> str:
        if not spec.fragment.path_postfix_template:
            return spec.name
        from gazette_platform.protocol.path_postfix import PathPostfixTemplate  # noqa: PLC0415  slow to import

        try:
            postfix = PathPostfixTemplate(spec.fragment.path_postfix_template).evaluate(
                Fragment(spec.name, 0, 0), self._now, LabelSet(), spec
            )
            return directory_of(Fragment(spec.name, 0, 0, path_postfix=postfix))
        except GazetteError:  # it needs registers, which only brokers know
            return spec.name


def _layout(spec: TableSpec, directory: str) -> Layout:
    try:
        return Layout.of_directory(directory)
    except LakeError as err:
        raise LakeError(f"{spec.name}: {err}") from err
