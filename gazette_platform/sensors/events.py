"""What a tick tells Dagster: one event per Hive partition and per journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import AssetMaterialization, AssetObservation, MetadataValue

from gazette_platform.assets.raw import SPECS_KEY, column_schema, journals_key, table_key
from gazette_platform.lake import PartitionColumn, partition_key
from gazette_platform.lake.catalogs import HIVE
from gazette_platform.lake.links import partition_query
from gazette_platform.sensors.keys import table_partition
from gazette_platform.sensors.versions import DATA_VERSION, data_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster import RawMetadataValue

    from gazette_platform.lake import (
        JournalProgress,
        MovedFile,
        PartitionAccount,
        SpecFolder,
        TableSpec,
    )
    from gazette_platform.lake.partition_state import PartitionState
    from gazette_platform.sensors.told import Added

__all__ = [
    "journal_materialization",
    "journal_partition",
    "materialization",
    "observation",
    "pruned_materialization",
    "repair_materialization",
    "specs_materialization",
]

_JOURNAL = PartitionColumn(key="journal", column="journal", type="string")
_PROBLEMS_SHOWN = 20


def materialization(
    spec: TableSpec,
    account: PartitionAccount,
    added: Added,
    *,
    rows: int | None = None,
    page: Mapping[str, RawMetadataValue],
    catalog: str = HIVE,
) -> AssetMaterialization:
    """The event of a Hive partition: its totals, and what they have more than the event before.

    Args:
        spec: of the table.
        account: of the Hive partition.
        added: since the event before.
        rows: of the whole table, if known.
        page: metadata with a link to a page of the table, if there is one.
        catalog: what Trino calls the catalog of the table.
    """
    state = account.state
    metadata = _totals(spec, account.key, account.journal, state, rows=rows, catalog=catalog) | {
        "location": MetadataValue.path(account.location),
        "query": MetadataValue.md(
            f"```sql\n{partition_query(spec, account.key, account.values, catalog)}\n```"
        ),
        "fragments_added": added.fragments,
        "content_bytes_added": added.content_bytes,
    }
    if added.rows is not None:
        metadata["rows_added"] = added.rows
    if added.is_first:
        metadata["dagster/column_schema"] = column_schema(spec)
    metadata |= page
    return AssetMaterialization(
        asset_key=table_key(spec.name),
        partition=table_partition(account.key),
        description=f"{added.fragments} fragments of {account.journal}"
        if added.fragments >= 0
        else f"{-added.fragments} fragments of {account.journal} are gone",
        metadata=metadata,
        tags={DATA_VERSION: data_version(state)},
    )


def pruned_materialization(
    event: AssetMaterialization, account: PartitionAccount, added: Added
) -> AssetMaterialization:
    """The `materialization` of a Hive partition of which all was pruned, its last: then it is dropped."""
    text = f"all {-added.fragments} fragments of {account.journal} were pruned"
    return event._replace(description=text)


def repair_materialization(
    spec: TableSpec, moved: Sequence[MovedFile], *, rows: int | None = None, catalog: str = HIVE
) -> AssetMaterialization:
    """The event of a Hive partition that `moved` files, all of them, were moved out of."""
    last = moved[-1]
    return AssetMaterialization(
        asset_key=table_key(spec.name),
        partition=table_partition(last.key),
        description=f"{len(moved)} files that others cover were moved aside",
        metadata=_totals(
            spec, last.key, last.finding.journal, last.state, rows=rows, catalog=catalog
        )
        | {
            "files_moved": len(moved),
            "rows_moved": sum(m.rows for m in moved),
            "content_bytes_moved": sum(m.finding.end - m.finding.begin for m in moved),
            "moved": MetadataValue.json(
                [{"file": m.finding.path, "to": m.target} for m in moved[:_PROBLEMS_SHOWN]]
            ),
        },
        tags={DATA_VERSION: data_version(last.state)},
    )


def _totals(
    spec: TableSpec,
    key: str,
    journal: str,
    state: PartitionState,
    *,
    rows: int | None,
    catalog: str,
) -> dict[str, RawMetadataValue]:
    """What a Hive partition holds now, and how many rows the whole table has."""
    metadata: dict[str, RawMetadataValue] = {
        "dagster/table_name": f"{catalog}.{spec.name}",
        "partition": key,
        "journal": journal,
        "offsets": MetadataValue.json([list(covered) for covered in state.ranges]),
        "fragments": state.fragments,
        "content_bytes": state.content_bytes,
    }
    if state.ranges:
        metadata |= {"begin": state.ranges[0][0], "end": state.ranges[-1][1]}
    if state.rows is not None:
        metadata["dagster/partition_row_count"] = state.rows
    if rows is not None:
        metadata["dagster/row_count"] = rows
    if state.stored_bytes is not None:
        metadata["stored_bytes"] = state.stored_bytes
    if state.overlap_bytes:
        # Raw queries see these rows twice until the overlap is repaired.
        metadata["overlap_bytes"] = state.overlap_bytes
    if len(state.ranges) > 1:
        metadata["gaps"] = len(state.ranges) - 1
    return metadata


def specs_materialization(folder: SpecFolder) -> AssetMaterialization:
    """The event of a folder of table specs that is another one than before."""
    return AssetMaterialization(
        asset_key=SPECS_KEY,
        description=f"{len(folder.specs)} tables, {len(folder.refused)} files refused",
        metadata={
            "tables": MetadataValue.json(dict(folder.files)),
            "refused": MetadataValue.json(
                {file: [str(e) for e in bad.errors] for file, bad in folder.refused.items()}
            ),
        },
        tags={DATA_VERSION: folder.digest},
    )


def journal_materialization(table: str, progress: JournalProgress) -> AssetMaterialization:
    """The event of a journal of which something was registered."""
    return AssetMaterialization(
        asset_key=journals_key(table),
        partition=journal_partition(progress.journal),
        description=f"Registered up to {progress.registered}.",
        metadata=_progress(progress),
        tags={DATA_VERSION: str(progress.registered)},
    )


def observation(table: str, progress: JournalProgress) -> AssetObservation:
    """How far a journal is, of which nothing was registered meanwhile."""
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
