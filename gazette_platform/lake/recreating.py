"""Make a raw table again if it cannot follow a change of its spec. No file is deleted.

The entries of the metastore are dropped, and the sensor registers all fragments again that brokers list. Rows that no
broker lists any more, such as those of a deleted journal, would not come back. Such a table is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gazette_platform.lake.exact import VIEW_OF
from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.lake.spec_rules import EXACT_SUFFIX, LINES_SUFFIX
from gazette_platform.lake.tables import LAYOUT, TABLE
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession

__all__ = ["HeldNow", "drop_entries", "entries_of", "held_states", "stored_entry", "why_missed"]


def entries_of(session: MetastoreSession, name: str) -> list[HiveTable]:
    """Return what the metastore has of the raw table `name`, in whichever form: views first, then the table."""
    schema, _, table = name.partition(".")
    stored = {name, f"{name}{LINES_SUFFIX}"}
    names = (table, f"{table}{EXACT_SUFFIX}", f"{table}{LINES_SUFFIX}")
    found = [entry for each in names if (entry := session.table(schema, each)) is not None]
    own = [
        entry
        for entry in found
        if entry.parameters.get(VIEW_OF) in stored or entry.parameters.get(TABLE) == name
    ]
    return sorted(own, key=lambda entry: VIEW_OF not in entry.parameters)


def stored_entry(entries: Sequence[HiveTable]) -> HiveTable | None:
    """Return the entry with the Hive partitions; None if there is none."""
    return next((entry for entry in entries if LAYOUT in entry.parameters), None)


def held_states(session: MetastoreSession, table: HiveTable) -> list[PartitionState]:
    """Return the accounts of all Hive partitions of a table, or of one without.

    Raises: LakeError: they cannot be read.
    """
    holders = session.partitions(table) if table.partition_columns else [table]
    return [PartitionState.from_parameters(each.parameters) for each in holders]


class HeldNow(NamedTuple):
    """What brokers hold of a journal."""

    begin: int
    """The first offset that they list."""
    head: int
    created: int = 0
    """Which journal it is (`protocol.identity`)."""


def why_missed(states: Sequence[PartitionState], held: Mapping[str, HeldNow]) -> str:
    """Return why rows would be missed if a table were made again; empty if none would.

    Args:
        states: accounts of its Hive partitions.
        held: by journal that exists, what brokers hold of it.
    """
    for state in states:
        if not state.ranges:
            continue
        now = held.get(state.journal)
        if now is None:
            return f"its rows of {state.journal} would be gone, because that journal is"
        if is_another(state.created, now.created) or state.ranges[-1][1] > now.head:
            return (
                f"its rows of {state.journal} would be gone, because that journal was deleted and made again since (if it "
                f"holds what it held, `gazctl lake repair --same {state.journal}` says so)"
            )
        if state.ranges[0][0] < now.begin:
            return f"its rows of {state.journal} before offset {now.begin} would be gone, because brokers list none of them"
    return ""


def drop_entries(session: MetastoreSession, entries: Sequence[HiveTable]) -> None:
    """Drop the entries of a table while no sensor changes it. Idempotent; files stay."""
    for entry in entries:
        with session.accounts_lock(entry.database, entry.name) as lock:
            lock.require()
            session.drop_table(entry.database, entry.name)
