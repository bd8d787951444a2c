"""The thorough check of completeness: journals are read again, and what is committed in them is compared with the tables.

Offsets are compared, so a row that stands in for another one is seen, and each finding says where. It reads all that it is
asked about, which may be some Hive partitions, and looks at each message by the sequencer, in order: a quarter of a million
a second, say.

Offsets are compared once no transaction is open before them, because whether a message is a row may be decided far behind it.

Which message of a key is the last, message by message; `last_rows` says the same in SQL.

The thorough check of a table with a `key`: journals are read again, and the last message of each key is to be its row.

What journals do not hold any more is not compared, and neither is a table of too many keys: all of them are in memory.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError, OffsetJump
from gazette_platform.lake.spec.typed.columns import TRUNCATE
from gazette_platform.lake.typed.planning.ranges import held_ranges, plan_backfill, tasks_between
from gazette_platform.lake.typed.planning.rounds import Kind, Order
from gazette_platform.lake.typed.planning.screening import sequence
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.runs.running import job_of
from gazette_platform.lake.typed.runs.tail import pin_tail, spool_tail
from gazette_platform.lake.typed.status import HEAL, Completeness, Incomplete
from gazette_platform.lake.typed.tables.progress import FormerStates
from gazette_platform.lake.typed.tables.quarantine import begins_at, moment_of
from gazette_platform.lake.typed.tables.table import handles_of, typed_table
from gazette_platform.lake.typed.tables.writing import are_deletions
from gazette_platform.message.uuid import parse_uuid
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gazette_platform.client import Client, FragmentListing
    from gazette_platform.client.read.extents import JournalSnapshot
    from gazette_platform.lake.iceberg.catalog import Loaded, TypedCatalog
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.spec.typed.columns import ChangeOrder
    from gazette_platform.lake.typed.planning.ranges import BackfillRange, Task
    from gazette_platform.lake.typed.planning.rounds import Done
    from gazette_platform.lake.typed.runs.jobs import Workers
    from gazette_platform.lake.typed.runs.tail import PinnedTail
    from gazette_platform.ops.clock import Clock

# Each is 128 MiB, some 400,000 messages of 330 bytes; 34 bytes of each are held here.
_TASKS_AT_A_TIME: Final = 4
_OFFSETS_SHOWN: Final = 5


class CommittedSpan(NamedTuple):
    """Offsets that are decided."""

    begin: int
    end: int
    committed: pa.Int64Array
    """Where the messages begin that are rows, or in quarantine, in no order."""


def committed_spans(
    wanted: BackfillRange,
    look: Callable[[Sequence[Task]], Sequence[Done]],
    tasks_between: Callable[[int, int], Sequence[Task]],
    *,
    tasks_at_a_time: int = _TASKS_AT_A_TIME,
) -> Iterator[CommittedSpan]:
    """What is committed of a range, span by span, which follow each other from its begin to its end.

    Args:
        wanted: the range, and what is read for it.
        look: returns the messages of tasks, as orders of kind `LOOK` do.
        tasks_between: gives earlier tasks for [begin, end), in which a transaction began. Raises, if it is gone.
        tasks_at_a_time: tasks whose messages are held.

    Raises: DataError: messages are not in order. And what `look` and `tasks_between` raise.
    """

    def reread(begin: int, end: int) -> pa.Table:
        found = pa.concat_tables([_messages(one) for one in look(tasks_between(begin, end))])
        column = found.column("begin")
        return found.filter(pc.and_(pc.greater_equal(column, begin), pc.less(column, end)))

    state, frontier = wanted.start, wanted.begin
    held: list[pa.Int64Array] = []
    tasks = [*wanted.before, *wanted.tasks, *wanted.follow]
    while tasks and frontier < wanted.end:
        group, tasks = tasks[:tasks_at_a_time], tasks[tasks_at_a_time:]
        done = look(group)
        messages = pa.concat_tables([_messages(one) for one in done])
        found = sequence(state, messages, reread, end=group[-1].end)
        state = found.state
        held.append(found.begin)
        open_begin = state.open_begin
        settled = min(wanted.end, state.offset if open_begin is None else open_begin)
        if settled > frontier:
            every = pa.concat_arrays(held)
            yield CommittedSpan(frontier, settled, _within(every, frontier, settled))
            held, frontier = [_within(every, settled, wanted.end)], settled
    if frontier < wanted.end:
        # Transactions that are open yet: their messages are not rows.
        every = pa.concat_arrays([*held, pa.array([], pa.int64())])
        yield CommittedSpan(frontier, wanted.end, _within(every, frontier, wanted.end))


@final
class Recounter:
    """Compares typed tables with their journals.

    Args:
        catalog: where the tables are.
        workers: who read.
        client: of the brokers.
        clock: for what journals are asked by.
    """

    def __init__(
        self, catalog: TypedCatalog, workers: Workers, client: Client, *, clock: Clock | None = None
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._client = client
        self._clock = clock or SystemClock()

    def recount(
        self,
        spec: TypedSpec,
        raw: TableSpec,
        *,
        journals: Collection[str] | None = None,
        is_wanted: Callable[[FragmentListing], bool] | None = None,
    ) -> Completeness:
        """Read journals again, up to where the table has come, and compare.

        Args:
            spec: of the typed table.
            raw: of the raw one: its selector says which journals there are.
            journals: names of those to read; None: all.
            is_wanted: fragments whose content is read, such as those of a Hive partition; None: all that is held.

        Returns: of a table with a `key` rows that should not exist, and no lost ones, which `recount_keys` finds. What is gone from journals
            is not compared; where no state from before it is left either, what was appended again since is reported as lost.
        Raises: LakeError: there is no such table, or a file of it cannot be read. TransportError, StatusError,
            DataError: a journal cannot be read.
        """
        moment = moment_of(*handles_of(self._catalog, spec))
        table = typed_table(moment.typed, spec.name)
        asked = self._client.asynchronous
        now = self._client.run(journals_now(asked, raw.label_selector, TypedState(), self._clock))
        by_name = {
            one.name: one
            for one in now.journals
            if one.name in table.state.journals and (journals is None or one.name in journals)
        }
        wanted = _wanted(by_name, table.state, is_wanted)
        states = FormerStates(table).before(wanted)
        plan = plan_backfill(states, by_name.values(), wanted)
        assert moment.quarantine is not None  # it was asked for
        job = job_of(spec, table, moment.quarantine, self._client.config)

        def look(journal: str, tasks: Sequence[Task]) -> Sequence[Done]:
            orders = [Order(journal=journal, task=task, kind=Kind.LOOK) for task in tasks]
            return self._workers.carry_out(job, orders)

        notes = [f"{name} is not read: {why}" for name, why in sorted(now.unreadable.items())]
        notes += [
            f"{hole.journal} is not read from offset {hole.begin} to {hole.end}: {hole.kind}"
            for hole in plan.holes
        ]
        findings: list[Incomplete] = []
        for each in plan.ranges:
            compared = _Compared(each.journal, is_upserted=bool(spec.key))
            try:
                for span in committed_spans(
                    each,
                    partial(look, each.journal),
                    partial(tasks_between, by_name[each.journal]),
                ):
                    compared.add(span, begins_at(moment, each.journal, span.begin, span.end))
            except OffsetJump as err:
                notes.append(f"{each.journal} is not read from offset {compared.end} on: {err}")
            findings += compared.findings(spec.name)
        return Completeness(
            table=spec.name,
            counts=table.state.counts,
            findings=tuple(findings),
            notes=tuple(notes),
        )


@final
@dataclass(slots=True)
class _Offsets:
    """Of messages with which the same is wrong."""

    count: int = 0
    first: list[int] = field(default_factory=list)
    last: int = 0

    def add(self, offsets: pa.Int64Array) -> None:
        """Take some after the earlier ones."""
        if len(offsets):
            rising = pc.take(offsets, pc.array_sort_indices(offsets))
            self.first = self.first or rising.slice(0, _OFFSETS_SHOWN).to_pylist()
            self.last = rising[-1].as_py()
            self.count += len(offsets)


@final
class _Compared:
    """What is wrong with a range of a journal."""

    def __init__(self, journal: str, *, is_upserted: bool) -> None:
        self._journal = journal
        self._is_upserted = is_upserted
        self._lost, self._twice, self._strange = _Offsets(), _Offsets(), _Offsets()
        self.end = 0

    def add(self, span: CommittedSpan, present: pa.Int64Array) -> None:
        """Compare what is committed with the rows."""
        self.end = span.end
        if not self._is_upserted:
            self._lost.add(_without(span.committed, present))
        self._strange.add(_without(present, span.committed))
        counts = pc.value_counts(present)
        more = pc.filter(counts, pc.greater(counts.field("counts"), 1))
        self._twice.add(more.field("values"))

    def findings(self, name: str) -> list[Incomplete]:
        """In words."""
        found = []
        for offsets, what, is_lost in (
            (self._lost, "committed, and neither row nor in quarantine", True),
            (self._twice, "there more than once", False),
            (
                self._strange,
                "there, and not committed, or no message begins at their offsets",
                False,
            ),
        ):
            if offsets.count:
                first = ", ".join(map(str, offsets.first))
                more = ", …" if offsets.count > len(offsets.first) else ""
                found.append(Incomplete(
                    journal=self._journal,
                    begin=offsets.first[0],
                    end=offsets.last + 1,
                    lost=offsets.count if is_lost else 0,
                    doubled=0 if is_lost else offsets.count,
                    text=f"{self._journal}: {counted(offsets.count, 'message is', 'messages are')} {what} in {name} "
                    f"(offsets {first}{more}); {HEAL}",
                ))  # fmt: skip
        return found


def _wanted(
    journals: Mapping[str, JournalSnapshot],
    state: TypedState,
    is_wanted: Callable[[FragmentListing], bool] | None,
) -> dict[str, list[tuple[int, int]]]:
    """Offsets by journal, up to where the table has come."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, journal in journals.items():
        reached = state.journals[name].offset
        ranges = (
            [(journal.begin, reached)] if is_wanted is None else held_ranges(journal, is_wanted)
        )
        cut = [(begin, min(end, reached)) for begin, end in ranges if begin < reached]
        if cut:
            found[name] = cut
    return found


def _messages(done: Done) -> pa.Table:
    assert done.messages is not None  # it was asked for
    return done.messages


def _within(offsets: pa.Int64Array, begin: int, end: int) -> pa.Int64Array:
    return pc.filter(offsets, pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, end)))


def _without(offsets: pa.Int64Array, others: pa.Int64Array) -> pa.Int64Array:
    return pc.filter(offsets, pc.invert(pc.is_in(offsets, value_set=others)))


Key = tuple[Any, ...]


@final
class Message(NamedTuple):
    """What of a message decides."""

    position: str
    journal: str
    begin: int
    clock: int
    deletes: bool

    def is_later(self, other: Message) -> bool:
        """Whether it is later than another one of the same key; see `last_rows`."""
        if self.position != other.position:
            return self.position > other.position
        if self.journal == other.journal:
            return self.begin > other.begin
        return (self.clock, self.journal) > (other.clock, other.journal)


@final
class LastMessages:
    """The last message of each key, of those that were added. Memory: all keys.

    Args:
        key: columns.
        changes: which messages delete, and what orders them; None: none does.
    """

    def __init__(self, key: Sequence[str], changes: ChangeOrder | None) -> None:
        self._key = list(key)
        self._changes = changes
        self._by_key: dict[Key, dict[str, Message]] = {}
        self._truncations: dict[str, Message] = {}
        # By journal, of changes that have a position.
        self._newest: dict[str, Message] = {}
        self._latest: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, rows: pa.Table) -> None:
        """Take messages, in the columns of the table, in any order."""
        changes = self._changes
        count = rows.num_rows
        positions = [""] * count
        deletes: list[bool] = [False] * count
        truncates = deletes
        if changes is not None:
            deletes = are_deletions(rows, changes).to_pylist()
            if changes.position:
                positions = rows.column(changes.position).to_pylist()
            if changes.is_envelope:
                truncates = [op == TRUNCATE for op in rows.column(changes.deleted).to_pylist()]
        keys = keys_of(rows, self._key)
        places = zip(*(rows.column(n).to_pylist() for n in ("_journal", "_begin")), strict=True)
        clocks = map(_clock_of, rows.column("_uuid").to_pylist())
        told = zip(keys, positions, places, clocks, deletes, truncates, strict=True)
        for key, position, (journal, begin), clock, is_deletion, is_truncation in told:
            message = Message(position, journal, begin, clock, is_deletion)
            _keep(self._truncations if is_truncation else self._by_key.setdefault(key, {}), message)
            if position:
                newest = self._newest.setdefault(journal, message)
                if begin > newest.begin:
                    self._newest[journal] = message
                self._latest[journal] = max(position, self._latest.get(journal, position))

    def falling(self) -> list[str]:
        """Return the journals whose newest change has a lower position than an earlier one."""
        return sorted(j for j, one in self._newest.items() if one.position < self._latest[j])

    def rows(self) -> Iterator[tuple[Key, Message]]:
        """Keys that have a row, and the message that it is."""
        for key, by_journal in self._by_key.items():
            for truncation in self._truncations.values():
                _keep(by_journal, truncation)
            last, *others = by_journal.values()
            for one in others:
                last = one if one.is_later(last) else last
            if not last.deletes:
                yield key, last


def keys_of(rows: pa.Table, key: Sequence[str]) -> Iterator[Key]:
    """Return the key of each row, as plain values: UUIDs as bytes."""
    columns = (rows.column(name).to_pylist() for name in key)
    for values in zip(*columns, strict=True):
        yield tuple(value.bytes if isinstance(value, UUID) else value for value in values)


def _keep(by_journal: dict[str, Message], message: Message) -> None:
    known = by_journal.get(message.journal)
    if known is None or message.is_later(known):
        by_journal[message.journal] = message


def _clock_of(told: Any) -> int:
    return parse_uuid(told).clock if told is not None else 0


# Some 600 MB of them.
_KEYS_MAX: Final = 1_000_000
_SHOWN: Final = 5
_PLACE: Final = ("_journal", "_begin")
_REMEDY: Final = (
    "if it was not edited by hand, no run should cause that; drop the table, and runs make it again from what "
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
    pinned = pin_tail(catalog.handle(spec.name), spec, raw, client, is_whole=True, clock=clock)
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
        return f"{hole.journal} has bytes that no broker or store holds"
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
