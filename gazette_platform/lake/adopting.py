"""Accounts of a raw table for journals that hold what they held, though they were created again.

So it is when etcd was set up again from a listing of specs: their numbers are others (`protocol.identity`), and fragments
are those that were registered. Nothing here proves it: a person says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import LakeError
from gazette_platform.hive import partition_name
from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.hive import HivePartition, HiveTable, MetastoreSession

__all__ = ["adopt_journals"]

_BATCH: Final = 100


def adopt_journals(
    session: MetastoreSession,
    table: HiveTable,
    created: Mapping[str, int],
    *,
    is_dry_run: bool = False,
) -> int:
    """Have accounts belong to the journals that have the names now. Idempotent.

    Args:
        table: as the metastore has it.
        created: by name, which journals there are.
        is_dry_run: change nothing.

    Returns: how many accounts belonged to others, or did not say.
    Raises: GazetteError: the metastore cannot be reached; what was done before is found done.
    """
    if not table.partition_columns:
        return _adopt_table(session, table, created, is_dry_run=is_dry_run)
    keys = [column.name for column in table.partition_columns]
    names = [
        partition_name(keys, one.values)
        for one in session.partitions(table)
        if _adopted(one.parameters, created) is not None
    ]
    for start in range(0, 0 if is_dry_run else len(names), _BATCH):
        with session.accounts_lock(table.database, table.name) as lock:
            changed: list[HivePartition] = []
            for one in session.partitions_named(table, names[start : start + _BATCH]):
                parameters = _adopted(one.parameters, created)
                if parameters is not None:
                    changed.append(replace(one, parameters=parameters))
            if changed:
                lock.require()
                session.alter_partitions(table, changed)
    return len(names)


def _adopt_table(
    session: MetastoreSession, table: HiveTable, created: Mapping[str, int], *, is_dry_run: bool
) -> int:
    with session.accounts_lock(table.database, table.name) as lock:
        current = session.table(table.database, table.name)
        if current is None:
            raise LakeError(f"table {table.full_name} was dropped meanwhile")
        parameters = _adopted(current.parameters, created)
        if parameters is None:
            return 0
        if not is_dry_run:
            lock.require()
            session.alter_table(replace(current, parameters=parameters))
    return 1


def _adopted(parameters: Mapping[str, str], created: Mapping[str, int]) -> dict[str, str] | None:
    """Parameters whose account belongs to the journal of now; None: it does, or holds nothing."""
    state = PartitionState.from_parameters(parameters)
    now = created.get(state.journal, 0)
    is_theirs = state.created and not is_another(state.created, now)
    if not now or not state.ranges or is_theirs:
        return None
    return state.created_again(now).within(parameters)
