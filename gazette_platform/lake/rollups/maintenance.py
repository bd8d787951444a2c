"""Upkeep of rollups: small files are merged, old snapshots and unreferenced files are removed.

Each is a procedure of the engine that makes the rollup. What the table covers is untouched, so runs and
maintenance may cross: whoever commits second builds on the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from gazette_platform.lake.catalogs import ICEBERG, TrinoCatalogs
from gazette_platform.lake.rollups.engines import iceberg_catalog
from gazette_platform.lake.rollups.stored_covers import covers_path, paths_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.lake.iceberg.metastore import IcebergTables
    from gazette_platform.lake.rollups.engines import Dialect
    from gazette_platform.lake.rollups.spec import RollupSpec

RETAINED_S: Final = 7 * 24 * 3600.0
"""Seconds for which snapshots are kept, and files that none names: the least that Trino allows. Readers of an
old snapshot, and runs that have not committed yet, have that long."""


_NAMED: Final = TrinoCatalogs()


@final
@dataclass(frozen=True, slots=True)
class Maintenance:
    """What was done to a table."""

    snapshots_before: int
    snapshots: int
    files_before: int
    files: int
    undeleted: tuple[str, ...] = ()
    """Files beside the table that could not be deleted, with the reason; tried again next time."""


def maintenance_statements(
    dialect: Dialect,
    table: str,
    *,
    now_s: float,
    snapshots_s: float = RETAINED_S,
    orphans_s: float = RETAINED_S,
    catalog: str = ICEBERG,
) -> list[str]:
    """Statements that optimize an Iceberg table, expire snapshots and remove orphans, in this order.

    Args:
        dialect: of the engine.
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


def maintain(
    tables: IcebergTables,
    dialect: Dialect,
    execute: Callable[[str], object],
    spec: RollupSpec,
    *,
    now_s: float,
    retained_s: float = RETAINED_S,
    catalogs: TrinoCatalogs = _NAMED,
) -> Maintenance | None:
    """Look after a rollup.

    Args:
        tables: where it is.
        dialect: of the engine.
        execute: runs a statement on it.
        spec: the rollup.
        now_s: unix seconds.
        retained_s: seconds for which snapshots and orphans are kept.
        catalogs: what Trino calls its catalogs.

    Returns: what was done; None: the rollup is not made yet.
    Raises: LakeError: the engine cannot be reached, or refused; what was done before holds.
    """
    before = tables.load(spec.schema, spec.table)
    if before is None:
        return None
    for statement in maintenance_statements(
        dialect,
        spec.name,
        now_s=now_s,
        snapshots_s=retained_s,
        orphans_s=retained_s,
        catalog=iceberg_catalog(dialect, catalogs),
    ):
        execute(statement)
    after = tables.load(spec.schema, spec.table)
    if after is None:
        return None
    # Beside the table, where no engine looks: what covers were of snapshots that are gone.
    stale = paths_of(before) - paths_of(after) - {covers_path(after)}
    return Maintenance(
        snapshots_before=len(before.metadata.snapshots),
        snapshots=len(after.metadata.snapshots),
        files_before=len(tables.data_files(before)),
        files=len(tables.data_files(after)),
        undeleted=tuple(tables.delete_files(sorted(stale))),
    )
