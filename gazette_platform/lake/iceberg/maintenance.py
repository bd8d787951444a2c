"""Maintenance that all our Iceberg tables share: what engines are asked for, and files that no engine knows.

Engines merge small files, expire snapshots and remove unreferenced files. The tag of progress survives all of it. Files
beside a table are removed here, once no snapshot names them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyarrow.fs import (  # type: ignore[import-untyped]
    FileSelector,
    FileType,
)
from pyiceberg.io.pyarrow import PyArrowFileIO

from gazette_platform.errors import LakeError
from gazette_platform.lake.catalogs import ICEBERG
from gazette_platform.lake.iceberg.publishing import NAMED_BY

if TYPE_CHECKING:
    from gazette_platform.lake.iceberg.catalog import TableHandle

RETAINED_S: Final = 7 * 24 * 3600.0
"""Seconds for which snapshots are kept, and files that none names: the least that Trino allows. Readers of an
old snapshot, and runs that have not committed yet, have that long."""


def maintenance_statements(
    dialect: str,
    table: str,
    *,
    now_s: float,
    snapshots_s: float = RETAINED_S,
    orphans_s: float = RETAINED_S,
    catalog: str = ICEBERG,
) -> list[str]:
    """Statements that optimize an Iceberg table, expire snapshots and remove orphans, in this order.

    Args:
        dialect: of the engine: `trino` or `spark`.
        table: ``schema.table``.
        now_s: unix seconds.
        snapshots_s: seconds for which snapshots are kept; Trino refuses less than seven days unless its session
            says otherwise.
        orphans_s: seconds for which files are kept that no snapshot names, likewise; Spark refuses less than a day.
        catalog: what the engine calls the catalog of the table.
    """
    if dialect == "trino":
        schema, _, name = table.partition(".")
        altered = f'ALTER TABLE "{catalog}"."{schema}"."{name}" EXECUTE'
        kept = "(retention_threshold => '{}s')"
        return [
            f"{altered} optimize",
            f"{altered} expire_snapshots{kept.format(int(snapshots_s))}",
            f"{altered} remove_orphan_files{kept.format(int(orphans_s))}",
        ]
    of = f"table => '{table}'"
    call = f"CALL {catalog}.system."
    return [
        f"{call}rewrite_data_files({of}, options => map('min-input-files', '2'))",
        f"{call}expire_snapshots({of}, {_older_than(now_s - snapshots_s)})",
        f"{call}remove_orphan_files({of}, {_older_than(now_s - orphans_s)})",
    ]


def _older_than(unix_s: float) -> str:
    at = datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"older_than => TIMESTAMP '{at}'"


def unnamed_files(handle: TableHandle, *, now_s: float, older_than_s: float) -> list[str]:
    """Return the files beside a table that no snapshot names and that can be removed.

    A run writes them before it publishes, so a snapshot may still come to name a young file.

    Args:
        handle: of the table.
        now_s: unix seconds, of the clock of the store that holds them.
        older_than_s: seconds; longer than any run takes.

    Returns: their paths, sorted; nothing, if there is no such table.
    Raises: LakeError: the place cannot be listed.
    """
    loaded = handle.load()
    if loaded is None:
        return []
    # This load gives the location only. What is named is asked after the listing, below.
    folder = f"{loaded.metadata.location}.gazette"
    scheme, netloc, path = PyArrowFileIO.parse_location(folder, loaded.io.properties)
    arrow = (
        loaded.io
        if isinstance(loaded.io, PyArrowFileIO)
        else PyArrowFileIO(properties=loaded.io.properties)
    )
    try:
        found = arrow.fs_by_scheme(scheme, netloc).get_file_info(
            # A table that was never published has no such folder.
            FileSelector(path, allow_not_found=True)
        )
    except OSError as err:
        raise LakeError(
            f"cannot list {folder}, beside {handle.name} ({err}): see that the place can be read"
        ) from err
    # Load again after the listing: a file that a run has published meanwhile is kept.
    after = handle.load()
    if after is None:
        return []
    # Compare names without folders: they are uuids, and engines may write the same location as
    # `s3://` or `s3a://`.
    named = {
        summary.additional_properties.get(key, "").rpartition("/")[2]
        for summary in (snapshot.summary for snapshot in after.metadata.snapshots)
        if summary is not None
        for key in NAMED_BY
    }
    return sorted(
        f"{folder}/{file.base_name}"
        for file in found
        if file.type == FileType.File
        and file.base_name not in named
        # A run that has not published yet may have written it. Age is by the store's clock: one
        # that is ahead here would delete files of running runs.
        and file.mtime.timestamp() < now_s - older_than_s
    )
