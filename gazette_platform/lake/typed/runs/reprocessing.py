"""Reprocessing of quarantine: records that were set aside are parsed again, from the bytes that were kept of them.

For after the spec was changed so that they fit. Those that do become rows and leave quarantine, in one publication; the
others stay, with the reason that there is now. No journal is read, so it does not matter what was pruned.

What is committed was decided as the records were read, and all of these were. So each is one row at most, and none comes
twice. A record whose end is missing stays for ever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, final

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

from gazette_platform.errors import LakeError, TableFenced
from gazette_platform.lake.iceberg.catalog import present
from gazette_platform.lake.typed.planning.row_ranges import RowRanges
from gazette_platform.lake.typed.rows.parsing import BlockParser
from gazette_platform.lake.typed.rows.placing import BAD_ROWS_SCHEMA, in_schema, placed_rows
from gazette_platform.lake.typed.runs.amending import Amendment, publish_amendment, require_no_key
from gazette_platform.lake.typed.tables.stored_rows import stored_rows
from gazette_platform.lake.typed.tables.table import open_both
from gazette_platform.lake.typed.tables.writing import RowWriter
from gazette_platform.message.uuid import uuid_column
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TypedCatalog
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.state import TypedState
    from gazette_platform.lake.typed.rows.parsing import ParsedBlock
    from gazette_platform.lake.typed.tables.table import TypedTable
    from gazette_platform.lake.typed.tables.writing import WrittenFile
    from gazette_platform.ops.clock import Clock

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
