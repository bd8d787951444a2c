"""Amendments of a typed table: make rows and quarantined records of messages again that runs have read.

    what goes, what comes ── the table as it is now ── state: the same, except for counts ── publish, fenced ── settle quarantine
                                     └───────────────── a run has published meanwhile ──────┘

An amendment reads nothing that runs have not read, so it leaves offsets and producers as they are. It takes
longer than a run, and runs go on: so if one has published, what was made is published on top of that, once the amendment
has seen that it still holds.

Reprocessing of quarantine: records that were set aside are parsed again, from the bytes that were kept of them.

For after the spec was changed so that they fit. Those that do become rows and leave quarantine, in one publication; the
others stay, with the reason that there is now. No journal is read, so it does not matter what was pruned.

What is committed was decided as the records were read, and all of these were. So each is one row at most, and none comes
twice. A record whose end is missing stays for ever.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThan,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from gazette_platform.errors import LakeError, SchemaMismatch, TableFenced
from gazette_platform.lake.iceberg.catalog import present
from gazette_platform.lake.iceberg.publishing import (
    STATE,
    insisting,
    read_side_file,
    require_parted_by,
    summary_of,
)
from gazette_platform.lake.typed.planning.row_ranges import RowRanges
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.rows.parsing import BlockParser
from gazette_platform.lake.typed.rows.placing import BAD_ROWS_SCHEMA, in_schema, placed_rows
from gazette_platform.lake.typed.tables.progress import COMPLETE_AT
from gazette_platform.lake.typed.tables.quarantine import rows_within, settle_quarantine, write_list
from gazette_platform.lake.typed.tables.stored_rows import stored_rows
from gazette_platform.lake.typed.tables.table import (
    open_both,
    settle_behind,
    state_properties,
    typed_table,
    write_state,
)
from gazette_platform.lake.typed.tables.upserts import FileRewriter, publish_replacing
from gazette_platform.lake.typed.tables.writing import RowWriter, data_file_of
from gazette_platform.message.uuid import uuid_column
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle, TypedCatalog
    from gazette_platform.lake.iceberg.publishing import Published
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.rows.parsing import ParsedBlock
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


# That are parsed at once, as blocks of journals are.
_BLOCK_BYTES: Final = 1 << 20
# Records whose places are held: some 150 bytes each.
_RECORDS_MAX: Final = 1_000_000
_COLUMNS: Final = ("_journal", "_begin", "_end", "reason", "raw")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Which quarantined records are meant; by default all."""

    journal: str = ""
    """Of this one; empty: of any."""
    begin: int = 0
    """First offset."""
    end: int | None = None
    """Offset after the last one; None: there is no end."""
    reason: str = ""
    """Which the reason contains."""

    @property
    def expression(self) -> BooleanExpression:
        """Identifies the files."""
        wanted: BooleanExpression = AlwaysTrue()
        if self.journal:
            wanted = And(wanted, EqualTo("_journal", self.journal))  # type: ignore[call-arg, arg-type]
        if self.begin:
            wanted = And(wanted, GreaterThanOrEqual("_begin", self.begin))  # type: ignore[call-arg, arg-type]
        if self.end is not None:
            wanted = And(wanted, LessThan("_begin", self.end))  # type: ignore[call-arg, arg-type]
        return wanted

    def mask(self, rows: pa.Table) -> pa.BooleanArray:
        """Which rows are meant, of `_COLUMNS`."""
        begin = rows.column("_begin")
        found = pc.greater_equal(begin, self.begin)
        if self.end is not None:
            found = pc.and_(found, pc.less(begin, self.end))
        if self.journal:
            found = pc.and_(found, pc.equal(rows.column("_journal"), self.journal))
        if self.reason:
            said = pc.match_substring(rows.column("reason"), self.reason)
            found = pc.and_(found, pc.fill_null(said, fill_value=False))
        return found


@final
@dataclass(frozen=True, kw_only=True)
class ReprocessReport:
    """What reprocessing did."""

    table: str
    """``schema.table``."""
    metadata: TableMetadata
    """Of the table after it."""
    state: TypedState
    """After it: offsets and producers are unchanged."""
    run: str = ""
    """Name of its publication; empty: there was nothing to be changed."""
    snapshot_id: int | None = None
    """That was published."""
    records: int = 0
    """That were parsed again."""
    typed: int = 0
    """Of these are rows now."""
    told_anew: int = 0
    """Of these stay, for another reason than before."""
    is_whole: bool = True
    """Whether all that were meant were looked at. If not, run again."""
    seconds: float = 0.0
    """That it took."""


def _silent(_: str) -> None:
    return


@final
class Reprocessor:
    """Reprocesses quarantine of typed tables, in this process.

    Memory: of blocks, and of rows that are held until they are written; and 150 bytes for each record that changes.

    Args:
        catalog: where the tables are.
        log: gets a line for each step.
        records_max: that change at a time.
    """

    def __init__(
        self,
        catalog: TypedCatalog,
        *,
        log: Callable[[str], None] = _silent,
        clock: Clock | None = None,
        records_max: int = _RECORDS_MAX,
    ) -> None:
        self._catalog = catalog
        self._log = log
        self._clock = clock or SystemClock()
        self._records_max = records_max

    def run(self, spec: TypedSpec, meant: Quarantined | None = None) -> ReprocessReport:
        """Make rows of quarantined records that fit by now. Runs may go on meanwhile.

        Args:
            spec: of the typed table, which is changed as it says.
            meant: which records; None: all.

        Raises: SchemaMismatch: the table has a key, or cannot become what the spec says. TableFenced: another one has
            changed the same records, or the table, meanwhile: run again. TypedProgressGone, TypedRolledBack: a person
            has to look. LakeError: a catalog or store broke off.
        """
        began, began_at = self._clock.monotonic(), self._clock.now()
        require_no_key(spec)
        opened = open_both(self._catalog, spec, self._log)
        handles, table = opened.handles, opened.table
        held = present(handles[1])
        with _Reprocessing(spec, table, held, self._records_max) as work:
            work.parse(_records(held, meant or Quarantined()))
            amended = None
            if work.records:
                amended = publish_amendment(
                    handles, work, began_at=began_at, clock=self._clock, log=self._log
                )
        self._log(
            f"{spec.name}: of {work.looked_at} quarantined records {work.typed} are rows now, and {work.told_anew} "
            "have another reason"
        )
        return ReprocessReport(
            table=spec.name,
            metadata=table.metadata if amended is None else amended.metadata,
            state=table.state if amended is None else amended.state,
            run="" if amended is None else amended.run,
            snapshot_id=None if amended is None else amended.snapshot_id,
            records=work.looked_at,
            typed=work.typed,
            told_anew=work.told_anew,
            is_whole=work.is_whole,
            seconds=self._clock.monotonic() - began,
        )


class _Record(NamedTuple):
    journal: str
    begin: int
    end: int
    reason: str | None
    raw: bytes


def _records(held: Loaded, meant: Quarantined) -> Iterator[_Record]:
    """Those that are meant, with their whole content, in no order."""
    for task in held.table.scan(row_filter=meant.expression).plan_files():
        with stored_rows(held, task.file, task.delete_files) as rows:
            names = [rows.name_of(column) for column in _COLUMNS]
            for batch, is_there in rows.batches(names):
                columns = [batch.column(name) for name in names]
                found = pa.Table.from_arrays(columns, names=list(_COLUMNS)).filter(is_there)
                found = found.filter(pc.and_(meant.mask(found), _is_whole(found)))
                lists = (found.column(name).to_pylist() for name in _COLUMNS)
                yield from map(_Record._make, zip(*lists, strict=True))


def _is_whole(rows: pa.Table) -> pa.ChunkedArray:
    ends = pc.ends_with(rows.column("raw"), pattern=b"\n")
    return pc.fill_null(ends, fill_value=False)


@final
class _Reprocessing:
    """Records parsed again, to be published on top of what runs publish meanwhile."""

    def __init__(self, spec: TypedSpec, table: TypedTable, held: Loaded, records_max: int) -> None:
        self.looked_at = self.typed = self.told_anew = 0
        self.is_whole = True
        self.rows = RowRanges({})
        """See `Amending`: no row goes."""
        self.records = self.rows
        """Those that changed."""
        self._spec = spec
        self._name, self._state = table.name, table.state
        self._parser = BlockParser(spec)
        self._records_max = records_max
        self._spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._going: Counter[str] = Counter()
        self._staying: Counter[str] = Counter()
        self._good = RowWriter(table.io, table.location, table.schema, table.partition_spec)
        metadata = held.metadata
        self._bad = RowWriter(
            held.io, metadata.location, metadata.schema(), UNPARTITIONED_PARTITION_SPEC
        )
        self._files: Sequence[WrittenFile] = ()
        self._quarantined: Sequence[WrittenFile] = ()

    def __enter__(self) -> _Reprocessing:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # What was to be published may have been, unless it was not even tried.
        if error is not None and not self.records:
            with ExitStack() as stack:
                stack.callback(self._bad.abort)
                stack.callback(self._good.abort)

    def parse(self, records: Iterable[_Record]) -> None:
        """Parse records, and write what came of them.

        Raises: LakeError: a file cannot be written; or what is in quarantine is not what runs put there.
        """
        for journal, block in _blocks(records):
            self._parse(journal, block)
            if self._going.total() >= self._records_max:
                self.is_whole = False
                break
        self._files, self._quarantined = self._good.close(), self._bad.close()
        ranges = RowRanges(self._spans)
        for journal, merged in ranges.by_journal.items():
            if _size(merged) < _size(self._spans[journal]):
                raise LakeError(self._twice(journal))
        self.records = ranges

    def _twice(self, journal: str) -> str:
        state = self._state.journals.get(journal)
        if state is not None and (shared_to := state.shared_to):
            return (
                f"the quarantine of {self._name} has records of {journal} at the same offsets, as it was made again: nothing "
                f"was changed; those after offset {shared_to} are of one journal (`--journal {journal} --begin {shared_to}`), "
                "as are those of other journals"
            )
        return (
            f"the quarantine of {self._name} has records of {journal} twice, or such that overlap, so nothing was changed: "
            "a backfill of it heals that"
        )

    def _parse(self, journal: str, block: Sequence[_Record]) -> None:
        content = b"".join([one.raw for one in block])
        parsed = self._parser.parse(0, content)
        if len(parsed.begins) != len(block) or parsed.rows.num_rows + len(parsed.bad) != len(block):
            raise LakeError(
                f"the quarantine of {self._name} has bytes of {journal}, between offsets {block[0].begin} and "
                f"{block[-1].end}, which are not of one record each, so nothing was changed: a backfill of these heals it"
            )
        parsed = parsed._replace(
            begins=pa.array([one.begin for one in block], pa.int64()),
            ends=pa.array([one.end for one in block], pa.int64()),
        )
        self.looked_at += len(block)
        self._good.add(placed_rows(self._spec, self._good.schema, journal, parsed, None))
        self.typed += parsed.rows.num_rows
        told_anew = {
            one.number: one.reason for one in parsed.bad if one.reason != block[one.number].reason
        }
        self.told_anew += len(told_anew)
        if told_anew:
            bad = _told(journal, block, parsed, told_anew)
            self._bad.add(in_schema(bad, self._bad.schema))
            self._staying[journal] += len(told_anew)
        still = {one.number for one in parsed.bad} - told_anew.keys()
        changed = [one for number, one in enumerate(block) if number not in still]
        self._going[journal] += len(changed)
        _join(self._spans[journal], changed)

    def amendment(
        self,
        table: TypedTable,
        going: Mapping[str, int],
        staying: Mapping[str, int],  # noqa: ARG002
    ) -> Amendment:
        """See `Amending`."""
        if +self._going != going:
            raise TableFenced(
                f"quarantined records of {table.name} were changed by others while they were parsed again, so this "
                "changed nothing: run again"
            )
        states = table.state.journals
        return Amendment(
            files=self._files,
            quarantined=self._quarantined,
            records={
                name: states[name].counts.quarantined - count + self._staying[name]
                for name, count in going.items()
            },
        )


def _blocks(records: Iterable[_Record]) -> Iterator[tuple[str, list[_Record]]]:
    """Records of one journal each, so many as are parsed at once."""
    block: list[_Record] = []
    size = 0
    for record in records:
        if block and (record.journal != block[0].journal or size >= _BLOCK_BYTES):
            yield block[0].journal, block
            block, size = [], 0
        block.append(record)
        size += len(record.raw)
    if block:
        yield block[0].journal, block


def _told(
    journal: str, block: Sequence[_Record], parsed: ParsedBlock, reasons: Mapping[int, str]
) -> pa.Table:
    """Rows of `BAD_ROWS_SCHEMA`, with reasons by number in the block."""
    indices = pa.array(reasons, pa.int64())
    arrays = [
        pa.array([journal] * len(reasons), pa.string()),
        parsed.begins.take(indices),
        parsed.ends.take(indices),
        uuid_column(parsed.parts.take(indices)),
        pa.array(reasons.values(), pa.string()),
        pa.array([block[number].raw for number in reasons], pa.binary()),
    ]
    return pa.Table.from_arrays(arrays, schema=BAD_ROWS_SCHEMA)


def _size(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in spans)


def _join(spans: list[tuple[int, int]], records: Iterable[_Record]) -> None:
    """Note places of records; of those that follow each other, where the first begins and the last ends."""
    for one in records:
        if spans and spans[-1][1] == one.begin:
            spans[-1] = spans[-1][0], one.end
        else:
            spans.append((one.begin, one.end))
