"""What a tick reports to Dagster: one event per time of a table and per journal."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dagster import AssetMaterialization, AssetObservation, MetadataValue

from gazette_platform.assets.raw import (
    SPECS_KEY,
    column_schema,
    describes_partitions,
    journals_key,
    table_key,
    time_partition,
)
from gazette_platform.lake import PartitionColumn, partition_key
from gazette_platform.lake.catalogs import HIVE
from gazette_platform.lake.engines.trino import partition_query
from gazette_platform.lake.spec.layout import partition_values
from gazette_platform.ops.text import counted
from gazette_platform.sensors.reports import DATA_VERSION, data_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster import RawMetadataValue

    from gazette_platform.hive import HiveColumn
    from gazette_platform.lake import (
        JournalProgress,
        MovedFile,
        SpecFolder,
        TableSpec,
    )
    from gazette_platform.lake.raw.times import TimeAccount
    from gazette_platform.sensors.reports import Added, TableRows

_JOURNAL = PartitionColumn(key="journal", column="journal", type="string")
_PROBLEMS_SHOWN = 20
# Events are kept for ever, and of an hour there are many.
_JOURNALS_SHOWN = 50
# Of a journal at one time: it has several only if there are holes, or another time between.
_SPANS_SHOWN = 8


def materialization(
    spec: TableSpec,
    account: TimeAccount,
    added: Added,
    *,
    rows: TableRows | None = None,
    page: Mapping[str, RawMetadataValue],
    partitions: Sequence[HiveColumn] = (),
    catalog: str = HIVE,
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
    """
    key, parts = account.time.key, account.filled or account.parts
    query = partition_query(spec, key, partition_values(key), catalog)
    metadata = _totals(spec, account, rows=rows, catalog=catalog) | {
        "query": MetadataValue.md(f"```sql\n{query}\n```"),
        "fragments_added": added.fragments,
        "content_bytes_added": added.content_bytes,
    }
    if len(parts) == 1:
        metadata["location"] = MetadataValue.path(parts[0].location)
    if added.rows is not None:
        metadata["rows_added"] = added.rows
    # Dagster shows the columns of the newest event, or else of the definition, which knows what the spec describes.
    if added.is_first or not describes_partitions(spec, partitions):
        metadata["dagster/column_schema"] = column_schema(spec, partitions or None)
    metadata |= page
    of = f"of {parts[0].journal}" if len(parts) == 1 else f"in {counted(len(parts), 'journal')}"
    fragments = counted(abs(added.fragments), "fragment")
    return AssetMaterialization(
        asset_key=table_key(spec.name),
        partition=time_partition(account.time),
        description=f"{fragments} {of}"
        if added.fragments >= 0
        else f"{fragments} {of} {'is' if added.fragments == -1 else 'are'} gone",
        metadata=metadata,
        tags={DATA_VERSION: data_version(account)},
    )


def pruned_materialization(
    event: AssetMaterialization, journal: str, added: Added
) -> AssetMaterialization:
    """The `materialization` of a time that lost all of a journal to a prune: its Hive partition is dropped then."""
    count = -added.fragments
    all_of_it = "the only fragment" if count == 1 else f"all {count} fragments"
    text = f"{all_of_it} of {journal} {'was' if count == 1 else 'were'} pruned"
    return event._replace(description=text)


def repair_materialization(
    spec: TableSpec,
    account: TimeAccount,
    moved: Sequence[MovedFile],
    *,
    rows: TableRows | None = None,
    catalog: str = HIVE,
) -> AssetMaterialization:
    """The event of a time that `moved` files, all of them, were moved out of."""
    return AssetMaterialization(
        asset_key=table_key(spec.name),
        partition=time_partition(account.time),
        description=moved_aside(len(moved)),
        metadata=_totals(spec, account, rows=rows, catalog=catalog)
        | {
            "files_moved": len(moved),
            "rows_moved": sum(m.rows for m in moved),
            "content_bytes_moved": sum(m.finding.end - m.finding.begin for m in moved),
            "moved": MetadataValue.json(
                [{"file": m.finding.path, "to": m.target} for m in moved[:_PROBLEMS_SHOWN]]
            ),
        },
        tags={DATA_VERSION: data_version(account)},
    )


def _totals(
    spec: TableSpec, account: TimeAccount, *, rows: TableRows | None, catalog: str
) -> dict[str, RawMetadataValue]:
    """What a time holds now, and how many rows the whole table has."""
    filled = account.filled
    metadata: dict[str, RawMetadataValue] = {
        "dagster/table_name": f"{catalog}.{spec.name}",
        "partition": account.time.key,
        "journals": len(filled),
        "offsets": MetadataValue.text(_offsets({p.journal: p.state.ranges for p in filled})),
        "fragments": account.fragments,
        "content_bytes": account.content_bytes,
        "unfit_records": account.unfit_records,
    }
    if account.rows is not None:
        metadata["dagster/partition_row_count"] = account.rows
    if rows is not None:
        metadata |= rows.metadata
    if account.stored_bytes is not None:
        metadata["stored_bytes"] = account.stored_bytes
    if account.overlap_bytes:
        # Raw queries see these rows twice until the overlap is repaired.
        metadata["overlap_bytes"] = account.overlap_bytes
    if account.gaps:
        metadata["gaps"] = account.gaps
    return metadata


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
