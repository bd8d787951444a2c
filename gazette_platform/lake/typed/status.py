"""How a typed table stands: what was read, its lag, and whether each committed message is a row, or in quarantine, once.

    account    what the state says of itself: what was committed was made rows, or quarantined
    count      rows of the two tables, by journal, against that, by what manifests say of files
    recount    journals are read again, and offsets compared: see `recount`

The first two look at no journal, and take seconds for any table. They do not notice a row in the place of another one; the third does.

In a table with a `key` each row stands for the last message of its key. Only the state says how many messages that were. So the
first two check that there are no more rows than messages, and they find duplicate keys by reading all keys, unless these are too many.
Only the third finds a lost row.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import GazetteError, LakeError, SchemaMismatch
from gazette_platform.lake.typed.planning.state import Counts, TypedState
from gazette_platform.lake.typed.runs.journals import behind, journals_now
from gazette_platform.lake.typed.tables.progress import read_progress
from gazette_platform.lake.typed.tables.quarantine import moment_of, rows_at, why_foreign
from gazette_platform.lake.typed.tables.table import handles_of, require_able, typed_table
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gazette_platform.client import Client
    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle, TypedCatalog
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.runs.journals import Behind
    from gazette_platform.lake.typed.tables.progress import TypedProgress
    from gazette_platform.lake.typed.tables.quarantine import RowCounts

# Some 200 MB of them, as long as they are.
_KEYS_MAX: Final = 2_000_000

HEAL: Final = (
    "a backfill of the journal makes its rows again, which adds what is lost and removes duplicates"
)
"""What to do, as findings say it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete:
    """One difference between a table and what was committed."""

    text: str
    """What, in what journal, how many, and what to do."""
    journal: str
    """Empty: it is about all of them."""
    begin: int | None = None
    """Offset of the first message that is concerned; None: not known."""
    end: int | None = None
    """Offset after the last one."""
    lost: int = 0
    """Messages that are neither row nor in quarantine."""
    doubled: int = 0
    """Rows, or quarantined records, that are duplicates, or should not exist at all."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """What was found of a table."""

    table: str
    """``schema.table``."""
    counts: Counts = Counts()  # noqa: RUF009  frozen
    """What the state says, of all journals together."""
    rows: int | None = None
    """In the table; None: they were not counted."""
    quarantined: int | None = None
    """In the quarantine table; likewise."""
    findings: tuple[Incomplete, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why. Nothing is known to be wrong there."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is known to be wrong."""
        return not self.findings

    @property
    def lost(self) -> int:
        """Messages of all findings."""
        return sum(one.lost for one in self.findings)

    @property
    def doubled(self) -> int:
        """Rows of all findings."""
        return sum(one.doubled for one in self.findings)


def account(name: str, state: TypedState) -> tuple[Incomplete, ...]:
    """How the counts of a state contradict each other.

    Args:
        name: of the table.
        state: of it.
    """
    return tuple(
        Incomplete(
            journal=journal,
            text=f"{journal}: {why}: the state of {name} contradicts itself, which no run should bring about; keep the "
            f"table as it is for its makers, and then {HEAL}",
            lost=max(0, _missing(state, journal)),
            doubled=max(0, -_missing(state, journal)),
        )
        for journal, why in state.unaccounted.items()
    )


def check_counts(
    handle: TableHandle, quarantine: TableHandle | None, *, is_upserted: bool = False
) -> Completeness:
    """Ask the state, and count the rows of both tables, of one moment.

    Args:
        handle: of the typed table.
        quarantine: of its quarantine table; None: it is not there, and is not looked at.
        is_upserted: whether the table has a `key`.

    Raises: LakeError: there is no such table, a file cannot be read, or runs publish faster than rows are counted.
        TypedProgressGone, TypedRolledBack: a person has to look.
    """
    moment = moment_of(handle, quarantine)
    table = typed_table(moment.typed, handle.name)
    found = compared(
        handle.name,
        table.state,
        rows_at(moment),
        is_upserted=is_upserted,
        has_quarantine=quarantine is not None,
    )
    return _with_keys(found, moment.typed, table.key) if is_upserted else found


def compared(
    name: str,
    state: TypedState,
    found: RowCounts,
    *,
    is_upserted: bool = False,
    has_quarantine: bool = True,
) -> Completeness:
    """What `check_counts` finds, of rows that were counted.

    Args:
        name: of the table.
        state: of the moment at which rows were counted.
        found: rows.
        is_upserted: whether the table has a `key`.
        has_quarantine: whether the quarantine table was counted.
    """
    counts = {journal: one.counts for journal, one in state.journals.items()}
    findings = list(account(name, state))
    notes: list[str] = []
    if is_upserted:
        notes.append(
            f"{name} has a key: {counted(sum(found.rows.values()), 'row')} of "
            f"{counted(state.counts.typed, 'message')}; a lost row is seen only if journals are read"
        )
        findings += _upserted(name, counts, found.rows)
    else:
        expected = {journal: one.typed for journal, one in counts.items()}
        findings += _differing(expected, found.rows, name, "row")
    if has_quarantine:
        expected = {journal: one.quarantined for journal, one in counts.items()}
        findings += _differing(expected, found.quarantined, f"the quarantine of {name}", "record")
    elif state.counts.quarantined:
        notes.append(
            f"the quarantine of {name} is not there, and {counted(state.counts.quarantined, 'record')} should be in it"
        )
    return Completeness(
        table=name,
        counts=state.counts,
        rows=sum(found.rows.values()),
        quarantined=sum(found.quarantined.values()) if has_quarantine else None,
        findings=tuple(findings),
        notes=tuple(notes),
    )


def _with_keys(found: Completeness, loaded: Loaded, key: tuple[str, ...]) -> Completeness:
    columns = ", ".join(key)
    query = f"SELECT {columns} FROM {found.table} GROUP BY {columns} HAVING count(*) > 1"  # noqa: S608  reported, not run
    if (found.rows or 0) > _KEYS_MAX:
        told = (
            f"{found.table}: duplicate keys are not checked above {_KEYS_MAX} rows: see `{query}`"
        )
        return replace(found, notes=(*found.notes, told))
    try:
        twice = doubled_keys(loaded, key)
    except OSError as err:
        raise LakeError(f"keys of {found.table} cannot be read: {err}") from err
    if not twice.rows:
        return found
    told = (
        f"{found.table} has {counted(twice.rows, 'row')} of keys that have another one, such as {twice.first[0]} (all: `{query}`): if "
        "it was not edited by hand, no run should cause that; drop the table, and runs make it again from what journals hold"
    )
    # Some of these are reported already, if they are more than there were messages.
    more = max(0, twice.rows - found.doubled)
    finding = Incomplete(journal="", text=told, doubled=more)
    return replace(found, findings=(*found.findings, finding))


def _missing(state: TypedState, journal: str) -> int:
    counts = state.journals[journal].counts
    return counts.committed - counts.typed - counts.quarantined


def _upserted(
    name: str, counts: Mapping[str, Counts], rows: Mapping[str, int]
) -> Iterator[Incomplete]:
    for journal, count in sorted(rows.items()):
        most = counts[journal].typed if journal in counts else 0
        if count > most:
            yield Incomplete(
                journal=journal,
                doubled=count - most,
                text=f"{journal}: {name} has {counted(count, 'row')} of {counted(most, 'message')}, where a key is "
                f"one at most, so at least {count - most} are too many: if it was not edited by hand, {HEAL}",
            )


def _differing(
    expected: Mapping[str, int], found: Mapping[str, int], where: str, one: str
) -> Iterator[Incomplete]:
    for journal in sorted({*expected, *found}):
        wanted, count = expected.get(journal, 0), found.get(journal, 0)
        if wanted == count:
            continue
        many = counted(abs(wanted - count), one)
        told = (
            f"{many} lost: someone deleted them, or overwrote a commit"
            if count < wanted
            else f"{many} too many: it was edited by hand, or a run was published twice"
        )
        yield Incomplete(
            journal=journal,
            lost=max(0, wanted - count),
            doubled=max(0, count - wanted),
            text=f"{journal}: {where} has {count} of {wanted}, {told}; {HEAL}",
        )


class DoubledKeys(NamedTuple):
    """What was found."""

    rows: int
    """That are too many."""
    first: list[dict[str, Any]]
    """Some of the keys."""


def doubled_keys(loaded: Loaded, key: Sequence[str], *, shown: int = 5) -> DoubledKeys:
    """Keys with several rows.

    Memory: all keys of the table, some three times.

    Args:
        loaded: the table.
        key: its columns.
        shown: how many keys are reported, at most.

    Raises: OSError: a file cannot be read.
    """
    found = loaded.table.scan(selected_fields=tuple(key)).to_arrow().select(list(key))
    plain = pa.table([_plain(column) for column in found.columns], names=list(key))
    counts = plain.group_by(list(key)).aggregate([([], "count_all")])
    counts = counts.filter(pc.greater(counts.column("count_all"), 1))
    more = (pc.sum(counts.column("count_all")).as_py() or 0) - counts.num_rows
    first = counts.select(list(key)).slice(0, shown).to_pylist()
    for column in found.schema:
        if isinstance(column.type, pa.UuidType):
            for each in first:
                each[column.name] = str(uuid.UUID(bytes=each[column.name]))
    return DoubledKeys(more, first)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow groups by no type that is an extension, such as UUIDs."""
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
    return column


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
