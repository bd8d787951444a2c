"""Quarantined records of a typed table: committed ones that could not be rows.

They are rows of an Iceberg table beside it, ``<name>_quarantine``. Two tables cannot be changed in one step, so the
typed table comes first: its snapshot names a list of what becomes of quarantine (`write_list`): files that its run wrote,
and ranges of offsets whose records go, where rows were made again. `settle_quarantine` brings the quarantine table up to
that, afterwards. A record is in quarantine exactly once, whoever dies, because:

1. *At most one publication is pending.* Each run settles what the run before it left, before it publishes
   itself; and it is fenced, if another has published meanwhile. So the newest publication alone can be unsettled,
   and the tag of progress keeps its snapshot, and with it the list, from expiring.
2. *What is settled is known.* The quarantine table is published to as any typed table, under the name of the run: its
   tag's snapshot says which was settled last.
3. *Zombies are fenced.* The quarantine table's tag T is read **before** the typed table's progress P. Whoever was held up
   behind either has an old T, once another process has settled anything, and is refused. In the other order a
   zombie would have a P that was settled long ago, with a T that is fresh, and settle it again.

Files of an unsettled list are orphans to every engine: maintenance settles before it removes any.

What a person does to the typed table is heeded, as snapshots of the quarantine table say which publication they settled
(`_SETTLED`). If progress was moved back, so is quarantine: what came after is read again, and would be duplicated. Of a
table that was dropped and recreated, records of the former one are in the way, and an error says so.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    Or,
)
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.types import BinaryType, LongType, NestedField, StringType, UUIDType

from gazette_platform.errors import LakeError, TableFenced
from gazette_platform.lake.iceberg.catalog import NewTable, present
from gazette_platform.lake.iceberg.publishing import (
    MANIFESTS,
    QUARANTINE,
    QUARANTINED,
    RUN,
    progress_of,
    read_side_file,
    still_at,
    still_headed,
    summary_of,
    updates_moving,
    write_side_file,
)
from gazette_platform.lake.typed.planning.row_ranges import Overlap, RowRanges
from gazette_platform.lake.typed.tables.stored_rows import stored_rows
from gazette_platform.lake.typed.tables.upserts import publish_replacing
from gazette_platform.lake.typed.tables.writing import METRICS, WrittenFile, data_file_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle
    from gazette_platform.lake.typed.tables.stored_rows import StoredRows

OF: Final = "gazette.quarantine-of"
"""Property of a quarantine table: name of the typed one."""
_SETTLED: Final = "gazette.settled"
"""Property of a snapshot of a quarantine table: UUID of the typed one, and sequence number of the snapshot, whose list was settled."""

_PROPERTIES: Final = {
    "format-version": "2",
    "write.format.default": "parquet",
    **METRICS,
    **MANIFESTS,
}
# Runs come seconds apart, and counting opens manifests of two tables between.
_ATTEMPTS: Final = 5
_NOTHING: Final = RowRanges({})


@final
class _List(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What becomes of quarantine behind a publication."""

    files: tuple[WrittenFile, ...]
    """That come."""
    removed: dict[str, tuple[tuple[int, int], ...]]
    """Offsets by journal, whose records go."""


def quarantine_schema() -> Schema:
    """Columns of a quarantine table that is to be made; files are written by those that it has then."""
    return Schema(
        NestedField(1, "_journal", StringType(), required=True),
        NestedField(2, "_begin", LongType(), required=True),
        NestedField(3, "_end", LongType(), required=True),
        NestedField(4, "_uuid", UUIDType(), required=False),
        NestedField(5, "reason", StringType(), required=False),
        NestedField(6, "raw", BinaryType(), required=False),
    )


def open_quarantine(handle: TableHandle, of: str, location: str) -> Loaded:
    """The quarantine table, created unless it exists.

    Args:
        handle: of the quarantine table.
        of: name of the typed one.
        location: of a table that has to be made.

    Raises: LakeError: there is another table of that name, or the catalog cannot be reached.
    """
    loaded = handle.load()
    if loaded is None:
        loaded = handle.create(NewTable(
            schema=quarantine_schema(), partitions=UNPARTITIONED_PARTITION_SPEC, location=location,
            properties={**_PROPERTIES, OF: of},
        ))  # fmt: skip
    if loaded.metadata.properties.get(OF) != of:
        raise LakeError(
            f"{handle.name} exists and is not the quarantine of {of}: rename it, or give the typed table another "
            "`name`"
        )
    return loaded


def write_list(
    location: str,
    files: Sequence[WrittenFile],
    io: FileIO | None = None,
    *,
    removed: RowRanges = _NOTHING,
) -> str:
    """Write what becomes of quarantine beside the typed table at `location`.

    Args:
        files: that were quarantined.
        io: of the table; None: one by PyIceberg's defaults.
        removed: records that go. Those of `files` stay, wherever they begin.

    Returns: the path, for `state_properties`; empty, if there is nothing.
    Raises: LakeError: it cannot be written.
    """
    if not files and not removed:
        return ""
    content = msgspec.msgpack.encode(_List(files=tuple(files), removed=removed.by_journal))
    return write_side_file(location, "quarantine", content, io)


def settle_quarantine(handle: TableHandle, quarantine: TableHandle) -> bool:
    """Have the newest publication's quarantined records in the quarantine table.

    To be called by each run before it publishes, and again behind; and before orphans are removed. See the module
    for why records come once.

    Args:
        handle: of the typed table.
        quarantine: of its quarantine table, which exists.

    Returns: whether this call has settled something.
    Raises: LakeError: a catalog broke off, or a list is gone: ask again. It also says so if a person has to do
        something about the quarantine table. TypedRolledBack, TypedProgressGone: likewise.
    """
    held = present(quarantine)
    # Only now, behind the look at quarantine: see the module.
    typed = present(handle)
    if _is_ahead(held, typed, quarantine.name):
        _take_back(quarantine, held, typed)
        held, typed = present(quarantine), present(handle)
    told = _told(typed)
    if not _is_pending(held, typed):
        return False
    at = progress_of(held.metadata)
    files, removed = _listed(typed.io, told[QUARANTINE], held, handle.name)
    _require_whole(held.metadata, files, quarantine.name)
    settled = {_SETTLED: f"{typed.metadata.table_uuid} {_number(typed)}"}
    try:
        publish_replacing(quarantine, at, removed, files, run=told[RUN], properties=settled)
    except TableFenced:
        return False  # another process has settled it
    return True


@final
@dataclass(frozen=True, slots=True)
class Moment:
    """A typed table and its quarantine, of one moment."""

    typed: Loaded
    quarantine: Loaded | None
    pending: Sequence[DataFile] = ()
    """Files of quarantined records that are still to be settled."""
    going: RowRanges = _NOTHING
    """Records of `quarantine` that go as it is."""

    @property
    def start(self) -> int | None:
        """The typed table's progress."""
        return progress_of(self.typed.metadata)


def moment_of(handle: TableHandle, quarantine: TableHandle | None) -> Moment:
    """Look at a typed table and its quarantine so that what they hold is of one state.

    Args:
        handle: of the typed table.
        quarantine: of its quarantine table; None: it is not looked at.

    Raises: LakeError: a table is gone, a list cannot be read, or runs publish faster than tables can be looked at.
    """
    for _ in range(_ATTEMPTS):
        typed = present(handle)
        if quarantine is None:
            return Moment(typed, None)
        held = present(quarantine)
        # A run that publishes from now on settles the one before it; so of both tables one moment is seen.
        if progress_of(present(handle).metadata) != progress_of(typed.metadata):
            continue
        if not _is_pending(held, typed):
            return Moment(typed, held)
        path = _told(typed)[QUARANTINE]
        return Moment(typed, held, *_listed(typed.io, path, held, handle.name))
    raise LakeError(
        f"runs have published to {handle.name} {_ATTEMPTS} times while it was looked at: try again"
    )


@final
@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows by journal, of one moment."""

    start: int | None
    """The typed table's progress, to whose state they belong."""
    rows: Mapping[str, int]
    quarantined: Mapping[str, int]
    """As they are once all is settled."""


def count_rows(handle: TableHandle, quarantine: TableHandle | None) -> RowCounts:
    """Count rows of a typed table and of its quarantine, by journal, for they must be those of its state.

    Raises: LakeError: as `moment_of` and `rows_at` do.
    """
    return rows_at(moment_of(handle, quarantine))


def rows_at(moment: Moment) -> RowCounts:
    """Count rows by journal, as of a moment.

    Files of one journal, which is what runs write, are counted by what manifests say; of others, and those of
    which rows were deleted, the column `_journal` is read.

    Raises: LakeError: a file cannot be read.
    """
    quarantined: Counter[str] = Counter()
    if moment.quarantine is not None:
        pending = [FileScanTask(file) for file in moment.pending]
        quarantined = _counted(moment.quarantine, pending)
        quarantined += _counted(moment.quarantine, _tasks(moment.quarantine), moment.going)
    rows = _counted(moment.typed, _tasks(moment.typed))
    return RowCounts(moment.start, dict(rows), dict(quarantined))


def begins_at(moment: Moment, journal: str, begin: int, end: int) -> pa.Int64Array:
    """`_begin` of all rows and quarantined records of a journal in [begin, end), in no order, as of a moment.

    Raises: LakeError: a file cannot be read.
    """
    wanted = And(
        EqualTo("_journal", journal),  # type: ignore[call-arg, arg-type]
        GreaterThanOrEqual("_begin", begin),  # type: ignore[call-arg, arg-type]
        LessThan("_begin", end),  # type: ignore[call-arg, arg-type]
    )
    found = [_begins(moment.typed, wanted)]
    if moment.quarantine is not None:
        held = _begins(moment.quarantine, wanted)
        gone = moment.going.mask(pa.repeat(pa.scalar(journal), len(held)), held)
        found.append(held.filter(pc.invert(gone)))
        found.append(_begins(moment.quarantine, wanted, moment.pending))
    return pa.concat_arrays(found)


def rows_within(loaded: Loaded, ranges: RowRanges) -> tuple[Counter[str], Counter[str]]:
    """How many rows of a table begin in ranges, and how many do not, both by journal.

    Args:
        loaded: a typed table, or a quarantine table with nothing to be settled.

    Raises: LakeError: a file cannot be read.
    """
    tasks = _tasks(loaded)
    others = _counted(loaded, tasks, ranges)
    return _counted(loaded, tasks) - others, others


def why_foreign(held: Loaded, typed: Loaded, name: str) -> str:
    """Why quarantine is not that of a typed table as it is, but of one that was called so before; empty: it is.

    Args:
        held: the quarantine.
        typed: the typed table.
        name: of the quarantine.
    """
    newest = _told(held)
    if _SETTLED not in newest or _settled(newest, typed) >= 0:
        return ""
    return (
        f"{name} has records of a table that was dropped since: drop it, too, or rename it if its records are to be "
        "kept, and run again, which creates it"
    )


def quarantined_rows(
    quarantine: TableHandle,
    *,
    journal: str = "",
    begin: int = 0,
    reason: str = "",
    limit: int | None = None,
) -> pa.Table:
    """Quarantined records, as Arrow, by journal and offset.

    With a limit, no more of them are in memory than that; of all others, where they are.

    Args:
        quarantine: handle of the quarantine table.
        journal: only of this one; empty: of all.
        begin: first offset.
        reason: only those whose reason has this text in it.
        limit: how many, the first ones; None: all.

    Returns: the columns of `quarantine_schema`. What the newest run left to be settled is not among them yet.
    Raises: LakeError: there is no such table.
    """
    loaded = present(quarantine)
    wanted: BooleanExpression = AlwaysTrue()
    if journal:
        wanted = And(wanted, EqualTo("_journal", journal))  # type: ignore[call-arg, arg-type]
    if begin:
        wanted = And(wanted, GreaterThanOrEqual("_begin", begin))  # type: ignore[call-arg, arg-type]
    if limit is not None:
        places = _matching(loaded, wanted, reason, ("_journal", "_begin")).slice(0, limit)
        if not len(places):
            return _matching(loaded, AlwaysFalse(), "", ("*",))
        wanted = And(wanted, _up_to(places.slice(len(places) - 1).to_pylist()[0]))
    return _matching(loaded, wanted, reason, ("*",))


def _matching(
    loaded: Loaded, wanted: BooleanExpression, reason: str, columns: tuple[str, ...]
) -> pa.Table:
    """Records with the reason, by journal and offset. Each batch of rows is looked at as it comes."""
    fields = columns if columns == ("*",) else (*columns, *(("reason",) if reason else ()))
    reader = loaded.table.scan(row_filter=wanted, selected_fields=fields).to_arrow_batch_reader()
    batches = [
        batch.filter(pc.match_substring(batch["reason"], reason)) if reason else batch
        for batch in reader
    ]
    found = pa.Table.from_batches(batches, reader.schema)
    return found.sort_by([("_journal", "ascending"), ("_begin", "ascending")])


def _up_to(place: Mapping[str, Any]) -> BooleanExpression:
    """Records before a place, by journal and offset, or at it."""
    journal, begin = place["_journal"], place["_begin"]
    return Or(
        LessThan("_journal", journal),  # type: ignore[call-arg, arg-type]
        And(EqualTo("_journal", journal), LessThanOrEqual("_begin", begin)),  # type: ignore[call-arg, arg-type]
    )


def _told(loaded: Loaded) -> Mapping[str, str]:
    """What the newest publication of the typed table says."""
    return summary_of(loaded.metadata, progress_of(loaded.metadata))


def _is_pending(held: Loaded, typed: Loaded) -> bool:
    told, newest = _told(typed), _told(held)
    is_behind = _settled(newest, typed) < _number(typed)
    return QUARANTINE in told and newest.get(RUN) != told[RUN] and is_behind


def _number(typed: Loaded) -> int:
    """Orders the publications of a table, also if progress was moved back."""
    at = typed.metadata.snapshot_by_id(progress_of(typed.metadata) or -1)
    return at.sequence_number or 0 if at is not None else 0


def _settled(told: Mapping[str, str], typed: Loaded) -> int:
    """The number of what a snapshot of quarantine has settled; -1: it does not say, or is of another table."""
    of, _, number = told.get(_SETTLED, "").partition(" ")
    return int(number) if of == str(typed.metadata.table_uuid) else -1


def _is_ahead(held: Loaded, typed: Loaded, name: str) -> bool:
    """Whether what is settled was published behind where progress is now.

    Raises: LakeError: it was published to another table.
    """
    if why := why_foreign(held, typed, name):
        raise LakeError(why)
    return _settled(_told(held), typed) > _number(typed)


def _take_back(quarantine: TableHandle, held: Loaded, typed: Loaded) -> None:
    """Have quarantine be what it was when progress was where it is again.

    Raises: LakeError: what it was is unknown.
    """
    newest = _newest_settled(held.metadata, typed)
    # That it is the newest one which there was, and not only the newest which has not expired.
    records = summary_of(held.metadata, newest).get("total-records")
    if newest is None or records != _told(typed).get(QUARANTINED):
        raise LakeError(
            f"{quarantine.name} has records of publications behind the one to which progress was moved back, and what it was "
            "then has expired: drop it, run again, which creates it, and fill it by a backfill of all journals"
        )
    required = (
        AssertTableUUID(uuid=held.metadata.table_uuid),
        still_headed(held.metadata),
        still_at(held.metadata, progress_of(held.metadata)),
    )
    # Another process may have done it.
    with suppress(CommitFailedException):
        quarantine.commit(held, required, updates_moving(newest))


def _newest_settled(metadata: TableMetadata, typed: Loaded) -> int | None:
    """The newest snapshot of quarantine that has settled something up to where progress is."""
    for one in sorted(metadata.snapshots, key=lambda one: -(one.sequence_number or 0)):
        if 0 <= _settled(summary_of(metadata, one.snapshot_id), typed) <= _number(typed):
            return one.snapshot_id
    return None


def _require_whole(metadata: TableMetadata, files: Sequence[DataFile], name: str) -> None:
    if any(file.spec_id != metadata.default_spec_id for file in files):
        raise LakeError(
            f"{name} was partitioned by hand, and runs write it as a whole: make it unpartitioned again (in Trino: "
            f"ALTER TABLE {name} SET PROPERTIES partitioning = ARRAY[]), and run again"
        )


def _listed(io: FileIO, path: str, held: Loaded, name: str) -> tuple[list[DataFile], RowRanges]:
    """Files that come, and records that go."""
    found = _parsed_list(read_side_file(io, path, name), path)
    return [data_file_of(one, held.metadata) for one in found.files], RowRanges(found.removed)


def _parsed_list(content: bytes, path: str) -> _List:
    try:
        return msgspec.msgpack.decode(content, type=_List)
    except msgspec.MsgspecError as err:
        raise LakeError(
            f"{path} cannot be read ({err}): a run of another release wrote it, or it is damaged; fetch it from a backup"
        ) from err


def _tasks(loaded: Loaded) -> list[FileScanTask]:
    return list(loaded.table.scan(selected_fields=("_journal",)).plan_files())


def _counted(
    loaded: Loaded, tasks: Sequence[FileScanTask], removed: RowRanges = _NOTHING
) -> Counter[str]:
    """Rows by journal, except removed ones."""
    schema = loaded.metadata.schema()
    column = schema.find_field("_journal").field_id
    found: Counter[str] = Counter()
    rest = []
    for task in tasks:
        overlap = removed.overlap(task.file, schema)
        journal = _only(task.file, column)
        if overlap is Overlap.ALL:
            continue
        if journal is None or task.delete_files or overlap is Overlap.SOME:
            rest.append(task)
        else:
            found[journal] += task.file.record_count
    found += _read(loaded, rest, removed)
    return found


def _only(file: DataFile, column: int) -> str | None:
    """The one journal of all rows of a file. A bound that was cut is not a value, and then the two differ."""
    lower = (file.lower_bounds or {}).get(column)
    is_one = lower is not None and lower == (file.upper_bounds or {}).get(column)
    return bytes(lower).decode() if is_one and lower is not None else None


def _read(loaded: Loaded, tasks: Sequence[FileScanTask], removed: RowRanges) -> Counter[str]:
    """Rows of files whose journals have to be read, a few at a time: a file may have millions."""
    found: Counter[str] = Counter()
    for task in tasks:
        with stored_rows(loaded, task.file, task.delete_files) as rows:
            for journals in _journals(rows, removed):
                for one in journals.value_counts().to_pylist():
                    found[one["values"]] += one["counts"]
    return found


def _journals(rows: StoredRows, removed: RowRanges) -> Iterator[pa.Array]:
    """Of all rows, except removed ones."""
    journal, begin = rows.name_of("_journal"), rows.name_of("_begin")
    for batch, is_there in rows.batches([journal, begin] if removed else [journal]):
        found = batch.filter(is_there)
        if removed:
            places = found.column(journal).cast(pa.string()), found.column(begin).cast(pa.int64())
            found = found.filter(pc.invert(removed.mask(*places)))
        yield found.column(journal)


def _begins(
    loaded: Loaded, wanted: BooleanExpression, files: Sequence[DataFile] | None = None
) -> pa.Int64Array:
    """Of rows of files; None: of those of the table."""
    try:
        if files is None:
            tasks = list(loaded.table.scan(row_filter=wanted).plan_files())
        else:
            tasks = [FileScanTask(file) for file in files]
        schema = loaded.metadata.schema().select("_begin")
        found = ArrowScan(loaded.metadata, loaded.io, schema, wanted).to_table(tasks)
    except OSError as err:
        raise LakeError(
            f"a file of the table at {loaded.metadata.location} cannot be read ({err})"
        ) from err
    return found.column("_begin").combine_chunks().cast(pa.int64())
