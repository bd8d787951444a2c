"""The thorough check of completeness: journals are read again, and what is committed in them is compared with the tables.

Offsets are compared, so a row that stands in for another one is seen, and each finding says where. It reads all that it is
asked about, which may be some Hive partitions, and looks at each message by the sequencer, in order: a quarter of a million
a second, say.

Offsets are compared once no transaction is open before them, because whether a message is a row may be decided far behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.errors import OffsetJump
from gazette_platform.lake.typed.checks.completeness import HEAL, Completeness, Incomplete
from gazette_platform.lake.typed.planning.ranges import held_ranges, plan_backfill, tasks_between
from gazette_platform.lake.typed.planning.rounds import Kind, Order
from gazette_platform.lake.typed.planning.screening import sequence
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.runs.former_states import FormerStates
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.runs.running import job_of
from gazette_platform.lake.typed.tables.opening import doors_of
from gazette_platform.lake.typed.tables.quarantined import begins_at, moment_of
from gazette_platform.lake.typed.tables.table import typed_table
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from gazette_platform.client import Client, FragmentListing
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.lake.typed.catalog.catalogs import TypedCatalog
    from gazette_platform.lake.typed.planning.ranges import BackfillRange, JournalNow, Task
    from gazette_platform.lake.typed.planning.rounds import Done
    from gazette_platform.lake.typed.runs.jobs import Workers
    from gazette_platform.lake.typed_spec.spec import TypedSpec
    from gazette_platform.ops.clock import Clock

__all__ = ["CommittedSpan", "Recounter", "committed_spans"]

# Each is 128 MiB, some 400,000 messages of 330 bytes, of which 34 bytes are held here.
_TASKS_AT_A_TIME: Final = 4
_OFFSETS_SHOWN: Final = 5


class CommittedSpan(NamedTuple):
    """Offsets of which all is decided."""

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
        look: tells the messages of tasks, as orders of kind `LOOK` do.
        tasks_between: gives tasks for [begin, end) of before, in which a transaction began. Raises, if it is gone.
        tasks_at_a_time: of which messages are held.

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
        # Transactions that are open yet: their messages are no rows.
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
            is_wanted: fragments of which content is read, such as those of a Hive partition; None: all that is held.

        Returns: of a table with a `key` rows that should not be there, and no lost ones, which `recount_keys` finds. What is gone from journals
            is not compared; where no state from before it is left either, what was appended again since is told as lost.
        Raises: LakeError: there is no such table, or a file of it cannot be read. TransportError, StatusError,
            DataError: a journal cannot be read.
        """
        moment = moment_of(*doors_of(self._catalog, spec))
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
        """Take some behind those of before."""
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
        """Compare what is committed with what is there."""
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
    journals: Mapping[str, JournalNow],
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
