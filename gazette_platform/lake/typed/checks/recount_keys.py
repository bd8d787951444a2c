"""The thorough check of a table with a `key`: journals are read again, and the last message of each key is to be its row.

What journals do not hold any more is not compared, and neither is a table of too many keys: all of them are in memory.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.checks.completeness import Completeness, Incomplete
from gazette_platform.lake.typed.checks.last_messages import LastMessages, keys_of
from gazette_platform.lake.typed.runs.tail import pin_tail, spool_tail
from gazette_platform.lake.typed.tables.table import typed_table
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gazette_platform.client import Client
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.lake.typed.catalog.catalogs import TypedCatalog
    from gazette_platform.lake.typed.catalog.doors import Loaded
    from gazette_platform.lake.typed.checks.last_messages import Key
    from gazette_platform.lake.typed.planning.state import TypedState
    from gazette_platform.lake.typed.runs.tail import PinnedTail
    from gazette_platform.lake.typed_spec.spec import TypedSpec
    from gazette_platform.ops.clock import Clock

__all__ = ["recount_keys"]

# Some 600 MB of them.
_KEYS_MAX: Final = 1_000_000
_SHOWN: Final = 5
_PLACE: Final = ("_journal", "_begin")
_REMEDY: Final = (
    "if nobody wrote to it by hand, no run should bring that about; drop the table, and runs make it anew of what "
    "journals hold"
)
_FALLING: Final = (
    "the newest change of {} lies before an earlier one in the database's log. After a restart the connector repeats "
    "changes, and catches up. If the database moved to a server whose log counts from its start, new changes are ignored: set "
    "`order: journal`"
)


class _Place(NamedTuple):
    journal: str
    begin: int


def recount_keys(
    catalog: TypedCatalog,
    spec: TypedSpec,
    raw: TableSpec,
    client: Client,
    *,
    threads: int = 1,
    clock: Clock | None = None,
) -> Completeness:
    """Read journals again, up to where the table has come, and compare the last message of each key with its row.

    Args:
        catalog: where the table is.
        spec: of the table, which has a `key`.
        raw: of the raw table: its selector says which journals there are.
        client: of the brokers.
        threads: that read.
        clock: for what journals are asked by.

    Raises: LakeError: there is no such table, or a file of it cannot be read. TransportError, DataError: a journal cannot
        be read.
    """
    pinned = pin_tail(catalog.door(spec.name), spec, raw, client, is_whole=True, clock=clock)
    if pinned.loaded is None:
        return _unlooked(spec.name, "it is not made yet")
    state = typed_table(pinned.loaded, spec.name).state
    why = _why_not(pinned, state)
    if why:
        return _unlooked(spec.name, why)
    last = LastMessages(spec.key, spec.changes)
    with closing(spool_tail(pinned, threads=threads)) as spooled:
        for batch in spooled.batches():
            table = pa.Table.from_batches([batch])
            last.add(table.filter(_are_read(table, state)))
            if len(last) > _KEYS_MAX:
                return _unlooked(spec.name, f"it has more than {_KEYS_MAX} keys")
    if pinned.deletes is not None:
        columns = {*spec.key, *_PLACE, "_uuid", *(one.name for one in spec.written_columns)}
        last.add(_scanned(pinned.deletes, spec.name, sorted(columns)))
    expected = {key: _Place(one.journal, one.begin) for key, one in last.rows()}
    held = {one.name: one.begin for one in pinned.journals}
    findings = tuple(_differing(spec.name, expected, _places(pinned.loaded, spec), held))
    notes = tuple(_FALLING.format(journal) for journal in last.falling())
    return Completeness(table=spec.name, counts=state.counts, findings=findings, notes=notes)


def _why_not(pinned: PinnedTail, state: TypedState) -> str:
    """Why the table cannot be compared; empty: it can be."""
    if pinned.plan.left_bytes:
        return "its journals hold more than is read at once"
    for hole in pinned.holes:
        return f"{hole.journal} has bytes that nobody holds"
    read = {one.name for one in pinned.journals}
    if gone := sorted(state.journals.keys() - read):
        return f"{gone[0]} is gone"
    for name, one in sorted(state.journals.items()):
        if one.open_begin is not None:
            return f"a transaction is open in {name}"
    return ""


def _unlooked(name: str, why: str) -> Completeness:
    note = f"{name}: rows are not compared with the last message of each key: {why}"
    return Completeness(table=name, notes=(note,))


def _are_read(rows: pa.Table, state: TypedState) -> pa.BooleanArray:
    """Which messages lie before where the table has come."""
    ends = {name: one.offset for name, one in state.journals.items()}
    places = zip(
        rows.column("_journal").to_pylist(), rows.column("_begin").to_pylist(), strict=True
    )
    return pa.array([begin < ends.get(journal, 0) for journal, begin in places], pa.bool_())


def _scanned(loaded: Loaded, name: str, columns: Sequence[str]) -> pa.Table:
    try:
        return loaded.table.scan(
            snapshot_id=loaded.metadata.current_snapshot_id, selected_fields=tuple(columns)
        ).to_arrow()
    except OSError as err:
        raise LakeError(f"keys of {name} cannot be read: {err}") from err


def _places(loaded: Loaded, spec: TypedSpec) -> dict[Key, _Place]:
    found = _scanned(loaded, spec.name, [*spec.key, *_PLACE])
    places = map(_Place, *(found.column(name).to_pylist() for name in _PLACE))
    return dict(zip(keys_of(found, spec.key), places, strict=True))


def _differing(
    name: str, expected: dict[Key, _Place], found: dict[Key, _Place], held: dict[str, int]
) -> Iterator[Incomplete]:
    """What is wrong, by what it is.

    Args:
        held: by journal, the first offset that is held: of messages before, nothing is known.
    """
    known = {key for key, at in found.items() if at.begin >= held.get(at.journal, 0)}
    lost = sorted(expected.keys() - found.keys(), key=str)
    stale = sorted((k for k in expected.keys() & known if expected[k] != found[k]), key=str)
    strange = sorted(known - expected.keys(), key=str)
    for keys, what, lost_count, doubled in (
        (lost, "has no row of the last message of", len(lost), 0),
        (stale, "has rows of other messages than the last ones of", len(stale), 0),
        (strange, "has rows, which were deleted or never written, of", 0, len(strange)),
    ):
        if keys:
            shown = ", ".join(_shown(key) for key in keys[:_SHOWN])
            more = ", …" if len(keys) > _SHOWN else ""
            yield Incomplete(
                journal="",
                lost=lost_count,
                doubled=doubled,
                text=f"{name} {what} {counted(len(keys), 'key')} ({shown}{more}): {_REMEDY}",
            )


def _shown(key: Key) -> str:
    return str(key[0]) if len(key) == 1 else f"({', '.join(map(str, key))})"
