"""Amendments of a typed table: make rows and quarantined records of messages again that runs have read.

    what goes, what comes ── the table as it is now ── state: the same, except for counts ── publish, fenced ── settle quarantine
                                     └───────────────── a run has published meanwhile ──────┘

An amendment reads nothing that runs have not read, so it leaves offsets and producers as they are. It takes
longer than a run, and runs go on: so if one has published, what was made is published on top of that, once the amendment
has seen that it still holds.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

from gazette_platform.errors import SchemaMismatch, TableFenced
from gazette_platform.lake.iceberg.catalog import present
from gazette_platform.lake.iceberg.publishing import (
    STATE,
    insisting,
    read_side_file,
    require_parted_by,
    summary_of,
)
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.tables.progress import COMPLETE_AT
from gazette_platform.lake.typed.tables.quarantine import (
    rows_within,
    settle_quarantine,
    write_list,
)
from gazette_platform.lake.typed.tables.replacing import FileRewriter, publish_replacing
from gazette_platform.lake.typed.tables.table import (
    settle_behind,
    state_properties,
    typed_table,
    write_state,
)
from gazette_platform.lake.typed.tables.writing import data_file_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.iceberg.publishing import Published
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.row_ranges import RowRanges
    from gazette_platform.lake.typed.tables.table import TypedTable
    from gazette_platform.lake.typed.tables.writing import WrittenFile
    from gazette_platform.ops.clock import Clock

LATE_S: Final = 12 * 3600.0
"""Seconds after its begin at which an amendment is given up. Maintenance takes unreferenced files for orphans once they
are old, and an amendment is not fenced by a run that has published since it wrote its files, as runs are."""

# Each that fails means that a run has published between a look at the table and a commit.
_ATTEMPTS: Final = 20


@final
@dataclass(frozen=True, kw_only=True)
class Amendment:
    """What comes in place of what goes."""

    files: Sequence[WrittenFile]
    """Rows."""
    quarantined: Sequence[WrittenFile]
    """Records that were set aside."""
    records: Mapping[str, int]
    """How many there are in quarantine then, by journal, where that changes. What else is committed are rows."""


class Amending(Protocol):
    """Whoever makes an amendment."""

    @property
    def rows(self) -> RowRanges:
        """Rows that begin there go."""
        ...

    @property
    def records(self) -> RowRanges:
        """Quarantined records that begin there go."""
        ...

    def amendment(
        self, table: TypedTable, going: Mapping[str, int], staying: Mapping[str, int]
    ) -> Amendment:
        """The amendment of a table as it is now. It may be asked several times.

        Args:
            table: with nothing left to be settled.
            going: by journal, how many of `records` there are.
            staying: by journal, how many others there are in quarantine.

        Raises: TableFenced: it does not hold any more.
        """
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Amended:
    """What became of an amendment."""

    run: str
    """Name of the publication."""
    snapshot_id: int
    metadata: TableMetadata
    """Of the table after it."""
    state: TypedState
    """After it."""


def publish_amendment(
    handles: tuple[TableHandle, TableHandle],
    amending: Amending,
    *,
    began_at: datetime,
    clock: Clock,
    log: Callable[[str], None],
) -> Amended:
    """Publish an amendment on top of whatever runs have published since it began, and settle quarantine.

    Args:
        handles: of the typed table, and of its quarantine.
        amending: makes it.
        began_at: before it wrote any file. Aware.
        log: gets a line for each step.

    Raises: TableFenced: it does not hold any more, it is late, the table is parted otherwise by now, or runs publish all
        the time. TypedRolledBack, TypedProgressGone: a person has to look. LakeError: a catalog or store broke off.
    """
    # One name and one rewriter for all attempts: files that were rewritten once are used again if
    # they still exist.
    run, rewriter = uuid.uuid4().hex, FileRewriter(amending.rows)
    fenced: TableFenced | None = None
    for _ in range(_ATTEMPTS):
        table, quarantine = _now(handles)
        # Made again at each attempt: a run that published in between may have committed, or taken
        # back, an open transaction of the range.
        amendment = amending.amendment(table, *rows_within(quarantine, amending.records))
        _require_young(table.name, began_at, clock)
        state = _counted_anew(table.state, amendment.records)
        files = [data_file_of(one, table.metadata) for one in amendment.files]
        # Check before rewriting files, which is the expensive part; publishing checks again.
        require_parted_by(table.metadata, files, table.name)
        publish = partial(
            publish_replacing,
            handles[0],
            table.start,
            amending.rows,
            files,
            run=run,
            properties=_properties(table, state, amending.records, amendment, run),
            rewriter=rewriter,
        )
        try:
            published = insisting(publish, log)
        except TableFenced as err:
            fenced = err
            log(f"{table.name}: a run has published meanwhile: trying on top of that")
            continue
        settle_behind(handles, log)
        return _amended(table, published, run)
    raise TableFenced(
        f"{handles[0].name}: runs have published {_ATTEMPTS} times between a look at it and a commit: have its runs wait, "
        "and try again"
    ) from fenced


def require_no_key(spec: TypedSpec) -> None:
    """Accept only tables in which each message is a row.

    Raises: SchemaMismatch: it has a key.
    """
    if spec.key:
        raise SchemaMismatch(
            f"{spec.name} has the key {', '.join(spec.key)}: a row of it is the last message of many, and those "
            "before it are gone, so parts of it cannot be made again; drop the table, and a run makes all of it"
        )


def _now(handles: tuple[TableHandle, TableHandle]) -> tuple[TypedTable, Loaded]:
    """The table, and its quarantine with all that publications up to it have set aside.

    Whatever is published and settled behind the look at the table fences whoever publishes from it.
    """
    table = typed_table(present(handles[0]), handles[0].name)
    # Settle first: replacing quarantined records while older ones are pending would add those
    # afterwards, in vain or twice.
    settle_quarantine(*handles)
    return table, present(handles[1])


def _require_young(name: str, began_at: datetime, clock: Clock) -> None:
    # Asked behind the look at the table: maintenance counts from what it finds published.
    late_s = (clock.now() - began_at).total_seconds()
    if late_s > LATE_S:
        raise TableFenced(
            f"rows of {name} took {late_s / 3600:.0f} h to be made, and by now maintenance may take their files for "
            "orphans, so nothing was changed: make fewer of them at a time"
        )


def _counted_anew(state: TypedState, records: Mapping[str, int]) -> TypedState:
    """The state with other counts: what is committed is a row, or in quarantine."""
    changed = {}
    for name, count in records.items():
        one = state.journals[name]
        counts = replace(one.counts, typed=one.counts.committed - count, quarantined=count)
        changed[name] = replace(one, counts=counts)
    return state.with_journals(changed)


def _properties(
    table: TypedTable, state: TypedState, records: RowRanges, amendment: Amendment, run: str
) -> dict[str, str]:
    # Offsets and producers are those of the newest run. An older state would make the next run read
    # messages again.
    path = write_state(table.location, state, table.io)
    listed = write_list(table.location, amendment.quarantined, table.io, removed=records)
    properties = state_properties(state, path=path, run=run, quarantine=listed)
    # Up to when the table is complete is no matter of what it had read before.
    told = summary_of(table.metadata, table.start)
    return properties | {key: told[key] for key in (COMPLETE_AT,) if key in told}


def _amended(table: TypedTable, published: Published, run: str) -> Amended:
    # It may be what was published by an attempt whose answer was lost.
    told = summary_of(published.metadata, published.snapshot_id)
    state = TypedState.decode(read_side_file(table.io, told[STATE], table.name), where=told[STATE])
    return Amended(
        run=run, snapshot_id=published.snapshot_id, metadata=published.metadata, state=state
    )
