"""How a typed table stands: what it says of itself, how far it is behind its journals, and what is wrong.

Questions about a typed table, without a run of it: its progress, its lag, whether it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import GazetteError, SchemaMismatch
from gazette_platform.lake.typed.checks.completeness import Completeness, Incomplete, check_counts
from gazette_platform.lake.typed.planning.state import Counts, TypedState
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.runs.lag import behind
from gazette_platform.lake.typed.tables.progress import read_progress
from gazette_platform.lake.typed.tables.quarantine import why_foreign
from gazette_platform.lake.typed.tables.table import handles_of, require_able
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.client import Client
    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle, TypedCatalog
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.typed.spec import TypedSpec
    from gazette_platform.lake.typed.runs.lag import Behind
    from gazette_platform.lake.typed.tables.progress import TypedProgress


@final
@dataclass(slots=True, kw_only=True)
class TypedStanding:
    """How one typed table stands."""

    spec: TypedSpec
    heads: Mapping[str, int] = field(default_factory=dict)
    """Write heads of its journals, by name."""
    location: str | None = None
    """Empty: it is not made yet. None: not known."""
    rows: int | None = None
    """None: not known."""
    state: TypedState | None = None
    """What was read; None: not known."""
    complete_at: str = ""
    """What was acknowledged before this instant is in the table; empty: the last run left something."""
    problems: list[str] = field(default_factory=list)
    is_unread: bool = False
    """Whether something could not be looked at, so that the report is incomplete."""

    @property
    def counts(self) -> Counts | None:
        """What became of all messages; None: not known."""
        return None if self.state is None else self.state.counts

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of all journals that were not read yet; None: not known."""
        if self.state is None:
            return None
        read = {name: one.offset for name, one in self.state.journals.items()}
        return sum(max(0, head - read.get(name, 0)) for name, head in self.heads.items())

    def summary(self) -> dict[str, Any]:
        """What a list shows, as plain values; None is what is not known."""
        return {
            "table": self.spec.name,
            "format": "typed",
            "of": self.spec.source,
            "journals": len(self.heads),
            "rows": self.rows,
            "quarantined": None if self.counts is None else self.counts.quarantined,
            "lag_bytes": self.lag_bytes,
            "complete_at": self.complete_at or None,
            "is_made": None if self.location is None else bool(self.location),
            "problems": self.problems,
        }


def typed_standing(handle: TableHandle, spec: TypedSpec, heads: Mapping[str, int]) -> TypedStanding:
    """How the table of `spec` stands. What keeps it from being looked at is among its problems.

    Args:
        handle: of the table.
        spec: its spec.
        heads: write heads of its journals, by name.
    """
    standing = TypedStanding(spec=spec, heads=heads)
    try:
        loaded = handle.load()
        if loaded is not None:
            standing.location = loaded.metadata.location
            progress = read_progress(loaded, handle.name)
            standing.problems += unable(loaded, spec, handle.name)
        else:
            standing.location, progress = "", None
            standing.problems.append("the table is not made yet: its first run makes it")
    except GazetteError as err:
        standing.problems.append(str(err))
        standing.is_unread = True
        return standing
    if progress is None:
        standing.rows, standing.state = 0, TypedState()
        return standing
    standing.rows, standing.state = progress.rows, progress.state
    standing.complete_at = progress.complete_at.isoformat() if progress.complete_at else ""
    standing.problems += (
        f"{journal}: {why}: see `gazctl lake check`"
        for journal, why in progress.state.unaccounted.items()
    )
    return standing


def unable(loaded: Loaded, spec: TypedSpec, name: str) -> list[str]:
    """Why runs refuse to have the table follow its spec; empty if they do not.

    Raises: LakeError: the table is not ours.
    """
    try:
        require_able(loaded, spec, name)
    except SchemaMismatch as err:
        return [f"runs refuse its spec: {str(err).removeprefix(f'{name}: ')}"]
    return []


def progress_of_table(tables: TypedCatalog, spec: TypedSpec) -> TypedProgress | None:
    """What a table says of itself; None: it is not made, or nothing was published to it.

    Raises: LakeError: the table cannot be read. TypedRolledBack, TypedProgressGone: a person has to look at it.
    """
    loaded = tables.handle(spec.name).load()
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
    handle, quarantine = handles_of(tables, spec)
    typed, held = handle.load(), quarantine.load()
    if typed is None:
        return Completeness(table=spec.name, notes=(f"{spec.name} is not made yet",))
    if held is not None and (why := why_foreign(held, typed, quarantine.name)):
        # What it holds says nothing of this table, and a run would refuse.
        return Completeness(table=spec.name, findings=(Incomplete(text=why, journal=""),))
    return check_counts(
        handle, quarantine if held is not None else None, is_upserted=bool(spec.key)
    )
