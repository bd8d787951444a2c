"""Making a table what its spec says, in steps that a tick has time for.

Engines read a text file by the columns and the SerDe parameters of its Hive partition, so what is new
must reach each of these. The metastore's own cascade takes columns alone, as the table has them, and for
thousands of Hive partitions outlasts any deadline. So a table that has some is changed in three steps: its own columns; those of its Hive partitions,
a batch at a time, with a mark in the table's parameters of how far that is; and last the digest of the
spec, until which the next tick goes on. Hive partitions that are not reached yet give NULL for what is
new.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import LakeError, SchemaMismatch
from gazette_platform.lake.raw.tables import DIGEST, evolved_table, keeping_text_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.hive import HiveTable, MetastoreSession

__all__ = ["ensure_table"]

_MARK: Final = "gazette.evolving"
_BATCH: Final = 50


def ensure_table(
    session: MetastoreSession, wanted: HiveTable, *, is_over: Callable[[], bool]
) -> HiveTable:
    """Create `wanted`, or evolve what exists to it. Idempotent.

    Args:
        is_over: whether time is up; at least one batch of Hive partitions is changed before.

    Returns: the table as the metastore has it now: with another digest than `wanted` has if there was no
        time for all of its Hive partitions.
    Raises: SchemaMismatch: one exists that cannot become `wanted`; says in what they differ.
    """
    with session.accounts_lock(wanted.database, wanted.name) as lock:
        existing = session.table(wanted.database, wanted.name)
        if existing is None:
            session.ensure_database(wanted.database)
            if session.create_table(wanted):
                return wanted
            existing = session.table(wanted.database, wanted.name)
            if existing is None:
                raise SchemaMismatch(
                    f"{wanted.full_name} was created and dropped by others; try again"
                )
        evolved = evolved_table(existing, wanted)
        if evolved is None:
            return existing
        parameters = {k: v for k, v in evolved.parameters.items() if k != _MARK}
        evolved = replace(evolved, parameters=parameters)
        names = session.partition_names(existing) if existing.partition_columns else []
        if not names:
            lock.require()
            session.alter_table(evolved, is_cascading=False)
            return evolved
        table = _begin(existing, evolved)
        if table != existing:
            lock.require()
            session.alter_table(table, is_cascading=False)
    return _go_on(session, table, evolved, names, is_over)


def _begin(existing: HiveTable, evolved: HiveTable) -> HiveTable:
    """The table with its own columns as they will be, marked as not done."""
    if _goal(existing) == evolved.parameters[DIGEST]:
        return existing
    former = existing.parameters.get(DIGEST, "")
    return _marked(replace(evolved, parameters={**evolved.parameters, DIGEST: former}), evolved, "")


def _goal(table: HiveTable) -> str:
    """Digest of the spec that its Hive partitions are being brought to; empty: of none."""
    return table.parameters.get(_MARK, "").partition(" ")[0]


def _current(session: MetastoreSession, table: HiveTable) -> HiveTable:
    """The table now. Raises: LakeError: there is none."""
    current = session.table(table.database, table.name)
    if current is None:
        raise LakeError(f"table {table.full_name} was dropped meanwhile; it is made again")
    return current


def _marked(table: HiveTable, evolved: HiveTable, name: str) -> HiveTable:
    mark = f"{evolved.parameters[DIGEST]} {name}"
    return replace(table, parameters={**table.parameters, _MARK: mark})


def _go_on(
    session: MetastoreSession,
    table: HiveTable,
    evolved: HiveTable,
    names: list[str],
    is_over: Callable[[], bool],
) -> HiveTable:
    """Bring the columns to the Hive partitions after the mark, as long as there is time."""
    _, _, done = table.parameters[_MARK].partition(" ")
    left = [name for name in names if name > done]
    for start in range(0, len(left), _BATCH):
        if start and is_over():
            break
        batch = left[start : start + _BATCH]
        with session.accounts_lock(table.database, table.name) as lock:
            current = _current(session, table)
            if _goal(current) != _goal(table):
                return current  # another registrar is done, or follows another spec
            found = session.partitions_named(table, batch)
            lock.require()
            session.alter_partitions(table, found)
        done = batch[-1]
    is_done = not left or done == left[-1]
    with session.accounts_lock(table.database, table.name) as lock:
        current = _current(session, table)
        if current.parameters.get(_MARK) != table.parameters[_MARK]:
            return current  # another registrar was here, and will finish
        result = keeping_text_columns(
            current, evolved if is_done else _marked(table, evolved, done)
        )
        lock.require()
        session.alter_table(result, is_cascading=False)
    return result
