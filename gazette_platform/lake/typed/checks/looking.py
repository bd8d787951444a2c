"""Questions about a typed table, without a run of it: its progress, its lag, whether it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.lake.typed.checks.completeness import Completeness, Incomplete, check_counts
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.runs.behind import behind
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.tables.opening import doors_of
from gazette_platform.lake.typed.tables.progress import read_progress
from gazette_platform.lake.typed.tables.quarantined import why_foreign
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from gazette_platform.client import Client
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.lake.typed.catalog.catalogs import TypedCatalog
    from gazette_platform.lake.typed.runs.behind import Behind
    from gazette_platform.lake.typed.tables.progress import TypedProgress
    from gazette_platform.lake.typed_spec.spec import TypedSpec

__all__ = ["behind_now", "completeness_of", "progress_of_table"]


def progress_of_table(tables: TypedCatalog, spec: TypedSpec) -> TypedProgress | None:
    """What a table says of itself; None: it is not made, or nothing was published to it.

    Raises: LakeError: the table cannot be read. TypedRolledBack, TypedProgressGone: a person has to look at it.
    """
    loaded = tables.door(spec.name).load()
    return None if loaded is None else read_progress(loaded, spec.name)


def behind_now(client: Client, tables: TypedCatalog, raw: TableSpec, spec: TypedSpec) -> Behind:
    """How far a table is behind its journals now.

    Raises: TransportError: brokers cannot be reached. LakeError: the table cannot be read. TypedRolledBack,
        TypedProgressGone: a person has to look at it.
    """
    progress = progress_of_table(tables, spec)
    state = TypedState() if progress is None else progress.state
    asked = client.asynchronous
    now = client.run(journals_now(asked, raw.label_selector, state, SystemClock()))
    return behind(now, state)


def completeness_of(tables: TypedCatalog, spec: TypedSpec) -> Completeness:
    """What counting its rows shows of a table.

    Raises: LakeError: a table cannot be read. TypedRolledBack, TypedProgressGone: a person has to look.
    """
    door, quarantine = doors_of(tables, spec)
    typed, held = door.load(), quarantine.load()
    if typed is None:
        return Completeness(table=spec.name, notes=(f"{spec.name} is not made yet",))
    if held is not None and (why := why_foreign(held, typed, quarantine.name)):
        # What it holds says nothing of this table, and a run would refuse.
        return Completeness(table=spec.name, findings=(Incomplete(text=why, journal=""),))
    return check_counts(door, quarantine if held is not None else None, is_upserted=bool(spec.key))
