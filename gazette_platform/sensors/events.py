"""Events of raw tables in Dagster: one per time of a table and per journal; what they said, and what they are to say.

Accounts in the metastore say what is registered. Dagster's own log says what was reported. An event is made from the
accounts of all Hive partitions of a time, and from the newest event of that time, never from the act of registering. So it
does not matter which process registered, or which ended before it could report. Added up, the events of a time give its
accounts, however often ticks were repeated. A *data version* is text that changes exactly when what queries read does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, final
from urllib.parse import unquote

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterEventType,
    MetadataValue,
)

from gazette_platform.assets.raw import (
    SPECS_KEY,
    column_schema,
    describes_partitions,
    journals_key,
    table_key,
    time_partition,
)
from gazette_platform.lake import PartitionColumn, partition_key
from gazette_platform.lake.catalog_settings import HIVE
from gazette_platform.lake.engines.trino import partition_query
from gazette_platform.lake.spec.layout import partition_values
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from dagster import DagsterInstance, RawMetadataValue

    from gazette_platform.hive import HiveColumn
    from gazette_platform.lake import JournalProgress, MovedFile, SpecFolder, TableSpec
    from gazette_platform.lake.raw.account_book import TimeAccount

DATA_VERSION: Final = "dagster/data_version"
_TAG_CHARACTERS_MAX = 63


def data_version(account: TimeAccount) -> str:
    """The covered offsets; or a digest of them where they are of several journals, or more than Dagster has room for."""
    text = account.data_version
    if not text:
        return "empty"
    if len(text) <= _TAG_CHARACTERS_MAX:
        return text.replace(" ", "_")
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_ROWS = "dagster/row_count"
_ROWS_KNOWN = "rows_known"
_UNCOUNTED = "partitions_uncounted"

# Of others, in a row, that are looked past.
_EVENTS_MAX = 20
# Events asked for in one query.
_BATCH = 500


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the newest event of a partition with numbers says that it holds."""

    fragments: int = 0
    content_bytes: int = 0
    rows: int | None = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What an account has more than was reported; less, if files were moved out of it."""

    fragments: int
    content_bytes: int
    rows: int | None
    is_first: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of a whole table."""

    known: int = 0
    """Of all partitions whose rows are known."""
    uncounted: int = 0
    """How many partitions hold something that is not counted yet."""

    @property
    def metadata(self) -> dict[str, int]:
        """What an event says of it."""
        if self.uncounted:
            return {_ROWS_KNOWN: self.known, _UNCOUNTED: self.uncounted}
        return {_ROWS: self.known}

    @classmethod
    def of(cls, event: AssetMaterialization) -> TableRows | None:
        """What an event has said of it; None: nothing."""
        values = {name: value.value for name, value in event.metadata.items()}
        rows, known, uncounted = map(values.get, (_ROWS, _ROWS_KNOWN, _UNCOUNTED))
        if isinstance(rows, int):
            return cls(known=rows)
        if isinstance(known, int) and isinstance(uncounted, int):
            return cls(known=known, uncounted=uncounted)
        return None


class Told(Protocol):
    """Answers what was reported to Dagster."""

    def versions(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, str]:
        """Data version of the newest event of each of `partitions` that has one."""
        ...

    def totals(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, Totals]:
        """What the newest event of each of `partitions` says, of those that have one."""
        ...

    def rows(self, asset: AssetKey) -> TableRows | None:
        """Rows of the table, as its newest event says; none before the first one, None if not known."""
        ...

    def partitions(self, name: str, keys: Sequence[str]) -> Collection[str]:
        """Those of `keys` that the dynamic partitions `name` have."""
        ...

    def known(self, name: str, after: str, limit: int) -> tuple[Sequence[str], str]:
        """Keys of the dynamic partitions `name`, at most `limit`, and where to go on.

        Args:
            name: of the partitions.
            after: where to go on, of the answer before; empty: at the first one.
            limit: of keys.

        Returns: keys, in the order in which Dagster got them; and text, empty if there are no more.
        """
        ...


def untold(accounts: Sequence[TimeAccount], versions: Mapping[str, str]) -> list[TimeAccount]:
    """Those of `accounts` that Dagster does not know as they are.

    Args:
        accounts: one a time.
        versions: data version of the newest event, by Dagster's partition key.
    """
    return [a for a in accounts if versions.get(time_partition(a.time)) != data_version(a)]


def added_since(account: TimeAccount, reported: Totals | None) -> Added:
    """What is more in `account` than was reported."""
    before = reported or Totals()
    is_known = account.rows is not None and before.rows is not None
    return Added(
        fragments=account.fragments - before.fragments,
        content_bytes=account.content_bytes - before.content_bytes,
        rows=(account.rows or 0) - (before.rows or 0) if is_known else None,
        is_first=reported is None,
    )


def totals_of(account: TimeAccount) -> Totals:
    """What an event of `account` says."""
    return Totals(
        fragments=account.fragments, content_bytes=account.content_bytes, rows=account.rows
    )


@final
class RowTotal:
    """Rows of a whole table, from one of a tick's events to the next.

    Args:
        reported: what was reported before the tick.
        asset: of the table.
    """

    def __init__(self, reported: Told, asset: AssetKey) -> None:
        self._told = reported
        self._asset = asset
        self._rows: TableRows | None = None
        self._partitions: dict[str, int | None] = {}

    def now(self) -> TableRows | None:
        """Return the total after all events so far; None: not known."""
        return self._rows if self._partitions else self._told.rows(self._asset)

    def after(self, partition: str, rows: int | None, reported: Totals | None) -> TableRows | None:
        """The total after an event that says how many rows a partition has; None: not known.

        Args:
            partition: its key.
            rows: that it has.
            reported: what was reported of it before this tick.
        """
        if not self._partitions:
            self._rows = self._told.rows(self._asset)
        before = self._partitions.get(partition, (reported or Totals()).rows)
        self._partitions[partition] = rows
        if self._rows is not None:
            self._rows = TableRows(
                known=self._rows.known + (rows or 0) - (before or 0),
                uncounted=max(0, self._rows.uncounted + (rows is None) - (before is None)),
            )
        return self._rows


@final
class InstanceTold:
    """What a Dagster instance has in its log.

    Args:
        instance: of the sensor's tick.
    """

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance

    def versions(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, str]:
        """Data version of the newest event of each of `partitions` that has one; one query."""
        if not partitions:
            return {}
        tags = self._instance.event_log_storage.get_latest_tags_by_partition(
            asset,
            DagsterEventType.ASSET_MATERIALIZATION,
            [DATA_VERSION],
            asset_partitions=list(partitions),
        )
        return {key: found[DATA_VERSION] for key, found in tags.items() if DATA_VERSION in found}

    def totals(self, asset: AssetKey, partitions: Sequence[str]) -> Mapping[str, Totals]:
        """What the newest event with numbers says of each of `partitions`; two queries for 500 of them.

        Anybody may report others, in the UI, say: of such partitions some more events are asked for.
        """
        found: dict[str, Totals] = {}
        for start in range(0, len(partitions), _BATCH):
            newest = self._instance.get_latest_storage_id_by_partition(
                asset,
                DagsterEventType.ASSET_MATERIALIZATION,
                set(partitions[start : start + _BATCH]),
            )
            if not newest:
                continue
            only = AssetRecordsFilter(asset_key=asset, storage_ids=list(newest.values()))
            for event in self._events(only, len(newest)):
                totals = _totals(event) or self._older(asset, str(event.partition))
                if totals is not None:
                    found[str(event.partition)] = totals
        return found

    def _older(self, asset: AssetKey, partition: str) -> Totals | None:
        """What the newest event of a partition with numbers says, if it is not the newest of all."""
        only = AssetRecordsFilter(asset_key=asset, asset_partitions=[partition])
        found = map(_totals, self._events(only, _EVENTS_MAX))
        return next((totals for totals in found if totals is not None), None)

    def _events(self, only: AssetRecordsFilter, limit: int) -> Iterator[AssetMaterialization]:
        for record in self._instance.fetch_materializations(only, limit=limit).records:
            if record.asset_materialization is not None:
                yield record.asset_materialization

    def partitions(self, name: str, keys: Sequence[str]) -> Collection[str]:
        """Those of `keys` that the dynamic partitions `name` have; one query.

        There may be a million others, after years of hours.
        """
        return frozenset(self._instance.get_existing_dynamic_partitions(name, keys))

    def known(self, name: str, after: str, limit: int) -> tuple[Sequence[str], str]:
        """A page of the keys of the dynamic partitions `name`; see `Told`. One query."""
        page = self._instance.get_paginated_dynamic_partitions(
            name, limit, ascending=True, cursor=after or None
        )
        return page.results, page.cursor if page.has_more else ""

    def rows(self, asset: AssetKey) -> TableRows | None:
        """Rows of the table, by its newest event that has them; one query or two."""
        only = AssetRecordsFilter(asset_key=asset)
        for limit in (1, _EVENTS_MAX):
            events = list(self._events(only, limit))
            if not events:
                return TableRows()
            # Anybody may report others, in the UI, say.
            ours = next((event for event in events if _totals(event) is not None), None)
            if ours is not None:
                return TableRows.of(ours)
        return None


def _totals(event: AssetMaterialization) -> Totals | None:
    """What an event says that a partition holds; None: it has no numbers."""
    values = {name: value.value for name, value in event.metadata.items()}
    fragments, content_bytes = values.get("fragments"), values.get("content_bytes")
    if not isinstance(fragments, int) or not isinstance(content_bytes, int):
        return None
    rows = values.get("dagster/partition_row_count")
    return Totals(
        fragments=fragments,
        content_bytes=content_bytes,
        rows=rows if isinstance(rows, int) else None,
    )


_JOURNAL = PartitionColumn(key="journal", column="journal", type="string")
_PROBLEMS_SHOWN = 20
# Events are kept for ever, and of an hour there are many.
_JOURNALS_SHOWN = 50
# Of a journal at one time: it has several only if there are holes, or another time between.
_SPANS_SHOWN = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What took fragments from a time, as its event says."""

    moved: Sequence[MovedFile] = ()
    """Files that others cover, and that were moved aside."""
    pruned: str = ""
    """The journal that lost all of its fragments at that time to a prune."""

    def text(self, added: Added) -> str:
        """Return the description of the event; empty: it has the usual one."""
        if self.moved:
            return moved_aside(len(self.moved))
        count = -added.fragments
        if not self.pruned or count <= 0:
            return ""
        all_of_it = "the only fragment" if count == 1 else f"all {count} fragments"
        return f"{all_of_it} of {self.pruned} {'was' if count == 1 else 'were'} pruned"

    @property
    def metadata(self) -> dict[str, RawMetadataValue]:
        """What the event says besides."""
        if not self.moved:
            return {}
        return {
            "files_moved": len(self.moved),
            "rows_moved": sum(m.rows for m in self.moved),
            "content_bytes_moved": sum(m.finding.end - m.finding.begin for m in self.moved),
            "moved": MetadataValue.json(
                [{"file": m.finding.path, "to": m.target} for m in self.moved[:_PROBLEMS_SHOWN]]
            ),
        }


NO_CAUSE: Final = Cause()


def materialization(
    spec: TableSpec,
    account: TimeAccount,
    added: Added,
    *,
    rows: TableRows | None = None,
    page: Mapping[str, RawMetadataValue],
    partitions: Sequence[HiveColumn] = (),
    catalog: str = HIVE,
    cause: Cause = NO_CAUSE,
) -> AssetMaterialization:
    """The event of a time: its totals over all Hive partitions, and what they have more than the event before.

    Args:
        spec: of the table.
        account: of the time.
        added: since the event before.
        rows: of the whole table, if known.
        page: metadata with a link to a page of the table, if there is one.
        partitions: partition columns of the table.
        catalog: what Trino calls the catalog of the table.
        cause: what took fragments from it, if that is known.
    """
    key, filled = account.time.key, account.filled
    parts = filled or account.parts
    query = partition_query(spec, key, partition_values(key), catalog)
    metadata: dict[str, RawMetadataValue] = {
        "dagster/table_name": f"{catalog}.{spec.name}",
        "partition": key,
        "journals": len(filled),
        "offsets": MetadataValue.text(_offsets({p.journal: p.state.ranges for p in filled})),
        "fragments": account.fragments,
        "content_bytes": account.content_bytes,
        "unfit_records": account.unfit_records,
        "query": MetadataValue.md(f"```sql\n{query}\n```"),
        "fragments_added": added.fragments,
        "content_bytes_added": added.content_bytes,
    }
    optional = {
        "dagster/partition_row_count": account.rows,
        "stored_bytes": account.stored_bytes,
        # Raw queries see these rows twice until the overlap is repaired.
        "overlap_bytes": account.overlap_bytes or None,
        "gaps": account.gaps or None,
        "rows_added": added.rows,
    }
    metadata |= {name: figure for name, figure in optional.items() if figure is not None}
    metadata |= rows.metadata if rows is not None else {}
    if len(parts) == 1:
        metadata["location"] = MetadataValue.path(parts[0].location)
    # Dagster shows the columns of the newest event, or else of the definition, which knows what the spec describes.
    if added.is_first or not describes_partitions(spec, partitions):
        metadata["dagster/column_schema"] = column_schema(spec, partitions or None)
    of = f"of {parts[0].journal}" if len(parts) == 1 else f"in {counted(len(parts), 'journal')}"
    fragments = counted(abs(added.fragments), "fragment")
    gone = f" {'is' if added.fragments == -1 else 'are'} gone" if added.fragments < 0 else ""
    return AssetMaterialization(
        asset_key=table_key(spec.name),
        partition=time_partition(account.time),
        description=cause.text(added) or f"{fragments} {of}{gone}",
        metadata={**metadata, **page, **cause.metadata},
        tags={DATA_VERSION: data_version(account)},
    )


def _offsets(covered: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Bytes by journal: of some journals, and some spans of each.

    Args:
        covered: spans [begin, end) by journal.

    >>> _offsets({"JFK/000": [(0, 1234), (2000, 2100)], "JFK/001": [(0, 9)]})
    'JFK/000: [0, 1234), [2000, 2100); JFK/001: [0, 9)'
    """
    texts = []
    for journal, spans in islice(covered.items(), _JOURNALS_SHOWN):
        shown = [f"[{begin}, {end})" for begin, end in spans[:_SPANS_SHOWN]]
        more = [f"{len(spans) - len(shown)} more"] if len(spans) > len(shown) else []
        texts.append(f"{journal}: {', '.join([*shown, *more])}")
    if len(covered) > _JOURNALS_SHOWN:
        texts.append(counted(len(covered) - _JOURNALS_SHOWN, "more journal"))
    return "; ".join(texts)


def moved_aside(count: int) -> str:
    """That so many files were moved out of a table."""
    return counted(
        count, "file that others cover was moved aside", "files that others cover were moved aside"
    )


def specs_materialization(folder: SpecFolder) -> AssetMaterialization:
    """The event of a folder of table specs that is another one than before."""
    return AssetMaterialization(
        asset_key=SPECS_KEY,
        description=f"{counted(len(folder.specs), 'table')}, {counted(len(folder.refused), 'file')} refused",
        metadata={
            "tables": MetadataValue.json(dict(folder.files)),
            "refused": MetadataValue.json(
                {file: [str(e) for e in bad.errors] for file, bad in folder.refused.items()}
            ),
        },
        tags={DATA_VERSION: folder.digest},
    )


def journal_materialization(table: str, progress: JournalProgress) -> AssetMaterialization:
    """The event of a journal with newly registered content."""
    return AssetMaterialization(
        asset_key=journals_key(table),
        partition=journal_partition(progress.journal),
        description=f"Registered up to {progress.registered}.",
        metadata=_progress(progress),
        tags={DATA_VERSION: str(progress.registered)},
    )


def observation(table: str, progress: JournalProgress) -> AssetObservation:
    """The progress of a journal without newly registered content."""
    return AssetObservation(
        asset_key=journals_key(table),
        partition=journal_partition(progress.journal),
        metadata=_progress(progress),
    )


def _progress(progress: JournalProgress) -> dict[str, RawMetadataValue]:
    """How far a journal is registered, and appended."""
    return {
        "journal": progress.journal,
        "write_head": progress.write_head,
        "registered": progress.registered,
        "lag_bytes": progress.lag_bytes,
        # Bytes before `registered` that no broker has stored yet, or that cannot be taken.
        "awaited_bytes": progress.hole_bytes,
    }


def journal_partition(journal: str) -> str:
    """Dagster's partition key of a journal, distinct for distinct names; slashes stay readable."""
    return partition_key([_JOURNAL], [journal]).partition("=")[2].replace("%2F", "/")


def journal_name(key: str) -> str:
    """The journal that Dagster has under a `journal_partition`."""
    return unquote(key)
