"""The tables of a case as others have them: who maintains and damages them, and who reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gazette_platform.errors import LakeError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.iceberg.catalog import HiveTables
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.rollups.engines import SparkEngine
from gazette_platform.lake.spec.rules import QUARANTINE_SUFFIX
from gazette_platform.lake.typed.runs.maintenance import fence_before, maintain_typed
from gazette_platform.lake.typed.tables.quarantine import count_rows, settle_quarantine
from gazette_platform.lake.typed.tables.table import typed_table
from gazette_platform.ops.clock import SystemClock
from tests.benches.typed_commits import SparkTable
from tests.typed_crash.oracle import Record, Row
from tests.typed_crash.verdict import Found

if TYPE_CHECKING:
    from random import Random

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from tests.typed_crash.world import World

__all__ = ["Tables"]

_DAY_S = 86400.0
# Spark keeps orphans for a day, whatever the options say.
_ORPHANS_S = 25 * 3600.0


class Tables:
    """A typed table and its quarantine.

    Args:
        world: servers.
        name: ``schema.table``.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def _handles(self) -> tuple[TableHandle, TableHandle]:
        settings = self._world.settings
        tables = HiveTables(IcebergTables(MetastoreClient(settings.metastore), settings.warehouse))
        return tables.handle(self._name), tables.handle(self._name + QUARANTINE_SUFFIX)

    def maintain(self, what: str) -> None:
        """See `plan.Maintain`. Does nothing if no life has made the table yet."""
        handle, quarantine = self._handles()
        loaded = handle.load()
        if loaded is None:
            return
        table = SparkTable(self._world.spark, self._name)
        if what in ("optimize", "both"):
            table.optimize()
        if what in ("expire", "both"):
            table.expire()
        if what == "upkeep" and quarantine.load() is not None:
            self._upkeep(handle, quarantine, loaded)

    def _upkeep(self, handle: TableHandle, quarantine: TableHandle, loaded: Loaded) -> None:
        """What the product does days later: all that lies there by now is old then, and so is the newest publication."""
        now_s = SystemClock().unix_s()
        if typed_table(loaded, self._name).start is None:
            return  # nothing was published: the product leaves it alone
        settle_quarantine(handle, quarantine)
        fence_before(handle, loaded, now_s)
        for each in (handle, quarantine):
            now = each.load()
            assert now is not None
            root = Path(urlsplit(now.metadata.location).path)
            for path in (*root.rglob("*"), *Path(f"{root}.gazette").rglob("*")):
                os.utime(path, (now_s - 3 * _DAY_S,) * 2)
        maintain_typed(
            handle,
            quarantine,
            SparkEngine(self._world.spark),
            # So that all snapshots but those that are named are old enough.
            now_s=now_s + 8 * _DAY_S,
            orphans_s=8 * _DAY_S + _ORPHANS_S,
        )

    def damage(self, draw: Random) -> None:
        """See `plan.Damage`."""
        table, third = SparkTable(self._world.spark, self._name), draw.randrange(3)
        table.sql(f"DELETE FROM {table.full_name} WHERE n % 3 = {third}")
        table.sql(
            f"INSERT INTO {table.full_name} SELECT * FROM {table.full_name} WHERE n % 3 = {(third + 1) % 3}"
        )

    def offsets(self) -> dict[str, int]:
        """How far journals were read."""
        loaded = self._handles()[0].load()
        if loaded is None:
            return {}
        journals = typed_table(loaded, self._name).state.journals
        return {name: one.offset for name, one in journals.items()}

    def found(self, *, has_late: bool, is_parted: bool) -> Found:
        """The rows, by Spark, and what the table says of itself.

        Raises: LakeError: there is no table.
        """
        handle, quarantine = self._handles()
        loaded = handle.load()
        if loaded is None:
            raise LakeError(f"there is no table {self._name}")
        late = "late" if has_late else "CAST(NULL AS bigint)"
        day = "CAST(_partition.at_day AS string)" if is_parted else "''"
        sql = self._world.spark.sql
        rows = sql(
            "SELECT _journal, _begin, _end, _uuid, n, k, date_format(at, 'yyyy-MM-dd HH:mm:ss'), "
            f"{late}, {day} FROM iceberg.{self._name}"
        ).collect()
        aside = sql(
            f"SELECT _journal, _begin, _end, _uuid, reason, raw FROM iceberg.{self._name}{QUARANTINE_SUFFIX}"
        ).collect()
        counted = count_rows(handle, quarantine)
        return Found(
            rows=[(row[0], row[1], Row(*row[2:])) for row in rows],
            quarantined=[(row[0], row[1], Record(*row[2:5], bytes(row[5]))) for row in aside],
            state=typed_table(loaded, self._name).state,
            counted=(counted.rows, counted.quarantined),
        )
