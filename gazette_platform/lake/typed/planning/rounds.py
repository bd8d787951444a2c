"""Orders of a run for a journal's tasks, round after round, until its rows are known. Pure.

    plain    each task is screened by itself, and its rows are written
             `join` says whether that is right. If not:
    plain    those tasks that kept what earlier ones had, once more, with that knowledge
    look     from the first task with transactions on: where messages are, and whose, and nothing is written
             the sequencer decides, here, message by message
    keep     these tasks again: the messages that are rows, by their offsets

Nearly all journals are done after the first round. Whoever drives carries out the `orders` of all journals at
once, wherever it likes, reports the results, and asks for the next ones, until there are none.

Orders of a backfill for a range of a journal: rounds as of a run, one piece after the other. Pure.

A state may lie far before the range, and what follows it may be long, so it is read in pieces, each with the state behind the
one before: what the driver holds goes by the size of a piece. Rows are made of the range alone; all else is screened. What
follows is read only as far as it takes until each transaction that began before the end of the range has ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import DataError, LakeError
from gazette_platform.lake.typed.planning.ranges import JournalRange
from gazette_platform.lake.typed.planning.screening import Again, Plain, Sequenced, join, sequence
from gazette_platform.lake.typed.planning.state import JournalState
from gazette_platform.message.sequencer import RING_SIZE
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from gazette_platform.lake.typed.planning.ranges import BackfillRange, Task
    from gazette_platform.lake.typed.planning.screening import TaskSummary

# The sequencer's part takes some 200 bytes a message that is a row: so many at a time are 400 MB.
_GROUP_MESSAGES: Final = 2_000_000


class Kind(StrEnum):
    """What a worker does with a task."""

    PLAIN = "plain"
    """Screen messages by columns (`TaskScreen`), and write the rows of those that are kept. If there is a transaction,
    nothing has to be written."""
    LOOK = "look"
    """Return offsets and UUIDs of all messages, as `sequence` takes them."""
    KEEP = "keep"
    """Write the rows of the messages that begin at `Order.keep`, and of no others."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be done of one task."""

    journal: str
    task: Task
    kind: Kind = Kind.PLAIN
    known: Mapping[bytes, int] = field(default_factory=dict)
    """For `TaskScreen`."""
    keep: pa.Int64Array | None = None
    """Offsets at which messages begin that are rows, rising."""
    writes: bool = True
    """Of kind `PLAIN`: whether rows are written. If not, the task is only screened."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of an order."""

    summary: TaskSummary | None = None
    """Of kind `PLAIN`."""
    messages: pa.Table | None = None
    """Of kind `LOOK`: `begin`, `end`, `producer`, `clock`, `flags` of each message. Of `PLAIN`, if there is a transaction,
    the same spares the next round."""
    end: int = 0
    """Of kind `LOOK`: offset after the last whole message."""
    typed: int = 0
    """Rows that were written."""
    quarantined: int = 0
    """Records that were set aside."""
    output: Any = None
    """What was written, for who drives; None: nothing."""
    failure: str = ""
    """Why the content could not be read; then nothing else is set. Empty: it was."""


@final
@dataclass(slots=True)
class _Written:
    """Of the orders whose output is used."""

    outputs: list[Any] = field(default_factory=list)
    typed: int = 0
    quarantined: int = 0

    def add(self, done: Done) -> None:
        self.typed += done.typed
        self.quarantined += done.quarantined
        if done.output is not None:
            self.outputs.append(done.output)


@final
class JournalRounds:
    """A run over the range of one journal.

    Args:
        state: of the journal before the run; None: it is new to the table.
        wanted: what is read of it.
        tasks_of: gives tasks for [begin, end), which lies before the range: a transaction began there. Raises, if
            something of that is gone.
        look: carries out orders of kind `LOOK` at once, for these.
        only: offsets [begin, end) of messages whose rows are wanted; tasks end there. All are screened. None: all.
        group_messages: how many messages the sequencer is given at a time, as far as tasks allow.
        ring_size: of the sequencer.
    """

    def __init__(
        self,
        state: JournalState | None,
        wanted: JournalRange,
        *,
        tasks_of: Callable[[int, int], Sequence[Task]],
        look: Callable[[Sequence[Order]], Sequence[Done]],
        only: tuple[int, int] | None = None,
        group_messages: int = _GROUP_MESSAGES,
        ring_size: int = RING_SIZE,
    ) -> None:
        self._journal = wanted.journal
        self._tasks = wanted.tasks
        self._state = _begun(state, wanted)
        # Kept for the balance in `_finish`: rows written must equal messages committed.
        self._committed_before = self._state.counts.committed
        self._tasks_of = tasks_of
        self._look = look
        self._only = only
        # Committed, and not wanted.
        self._passed = 0
        self._is_new = state is None
        self._oldest: int | None = None
        self._group_messages = group_messages
        self._ring_size = ring_size
        self._done: dict[int, Done] = {}
        self._written = _Written()
        self._discarded: list[Any] = []
        self._phase = Kind.PLAIN
        # The first task can get at once what was known before; others seldom need it.
        self._numbers = list(range(len(self._tasks)))
        self.orders: list[Order] = [
            self._plain_order(n, {} if n else self._state.known) for n in self._numbers
        ]
        """What is to be done next; empty: the journal is done."""

    @property
    def state(self) -> JournalState:
        """Behind the run, with what it wrote. Only once there are no orders."""
        return self._state

    @property
    def outputs(self) -> Sequence[Any]:
        """What was written, and is to be published."""
        return self._written.outputs

    @property
    def discarded(self) -> Sequence[Any]:
        """What was written in vain."""
        return self._discarded

    @property
    def oldest_clock(self) -> int | None:
        """Clock of the oldest message that the run committed; None: none has one, or the journal is new to the table."""
        return None if self._is_new else self._oldest

    def drop(self, done: Sequence[Done] = ()) -> None:
        """Give the journal up for this run, with what came of its orders: all that was written was in vain."""
        held = [*self._done.values(), *done]
        # Files of a journal that is given up must not be published with those of others: their
        # offsets stay unread.
        self._discarded += [one.output for one in held if one.output is not None]
        self._discarded += self._written.outputs
        self._written, self._done, self.orders = _Written(), {}, []

    def take(self, done: Sequence[Done]) -> None:
        """Go on with what came of `orders`, in their order; none of them failed.

        Raises: LakeError: tasks do not fit together, or what was written is not what is committed; nothing is to be
            published. DataError: a worker gave messages out of order, or what has to be read again is gone.
        """
        if self._phase is Kind.KEEP:
            for one in done:
                self._written.add(one)
            self._finish(self._state)
            return
        for number, one in zip(self._numbers, done, strict=True):
            # An earlier result of the same task is worthless: it kept messages that were not new.
            self._replace(number, one)
        if self._phase is Kind.LOOK:
            self._in_order()
            return
        # All summaries again, not only the new ones: what one task drops changes what the tasks
        # after it may keep.
        verdict = join(self._state, [_summary(self._done[n]) for n in range(len(self._tasks))])
        match verdict:
            case Again():
                self._ask(
                    [(n, self._plain_order(n, known)) for n, known in sorted(verdict.known.items())]
                )
            case Plain():
                self._use(len(self._tasks))
                self._finish(verdict.state)
            case Sequenced():
                self._begin_looking(verdict)

    def _plain_order(self, number: int, known: Mapping[bytes, int]) -> Order:
        task = self._tasks[number]
        return Order(
            journal=self._journal, task=task, known=known, writes=self._is_wanted(task.begin)
        )

    def _is_wanted(self, begin: int) -> bool:
        return self._only is None or self._only[0] <= begin < self._only[1]

    def _replace(self, number: int, done: Done) -> None:
        before = self._done.get(number)
        if before is not None and before.output is not None:
            self._discarded.append(before.output)
        self._done[number] = done

    def _ask(self, orders: Sequence[tuple[int, Order]]) -> None:
        self._numbers = [number for number, _ in orders]
        self.orders = [order for _, order in orders]

    def _use(self, count: int) -> None:
        for number in range(count):
            done = self._done.pop(number)
            self._written.add(done)
            summary = _summary(done)
            self._note(clocks.first for clocks in summary.clocks.values())
            if not self._is_wanted(self._tasks[number].begin):
                self._passed += summary.messages - summary.duplicates

    def _begin_looking(self, verdict: Sequenced) -> None:
        """Keep what is plain, and have the rest looked at where that is not done."""
        # Plain tasks before the first transaction are final: no later message can change them.
        self._use(verdict.first)
        self._state, self._phase = verdict.state, Kind.LOOK
        for number, one in self._done.items():
            if one.output is not None:
                self._discarded.append(one.output)
            ended = one.end or _summary(one).end
            self._done[number] = Done(messages=one.messages, end=ended)
        self._ask(
            [
                (n, Order(journal=self._journal, task=self._tasks[n], kind=Kind.LOOK))
                for n, one in sorted(self._done.items())
                if one.messages is None
            ]
        )
        if not self.orders:
            self._in_order()

    def _in_order(self) -> None:
        """Let the sequencer decide which messages are rows, and order these."""
        pa = required("pyarrow", extra="lake", by="typed tables")
        numbers = sorted(self._done)
        # Where each task begins, then where the range ends.
        begins = [self._tasks[n].begin for n in numbers]
        keep: dict[int, list[Any]] = defaultdict(list)
        before: list[Any] = []
        committed: list[Any] = []
        # Groups bound the memory of the sequencer; the state carries producers and open
        # transactions from one to the next.
        state = self._state
        for group in self._groups(numbers):
            messages = pa.concat_tables([self._messages(n) for n in group])
            found = sequence(
                state,
                messages,
                self._reread,
                end=self._done[group[-1]].end,
                ring_size=self._ring_size,
            )
            state = found.state
            committed.append(found.begin)
            wanted = found.begin if self._only is None else _within(found.begin, *self._only)
            self._passed += len(found.begin) - len(wanted)
            _sort_in(keep, before, wanted, begins, numbers)
        for number in numbers:
            self._note(_clocks(self._messages(number), pa.concat_arrays(committed)))
        self._done.clear()
        self._state = state
        orders = [self._keeping_order(self._tasks[n], keep[n]) for n in sorted(keep)]
        if before:
            # A transaction of an earlier run is committed now. Its messages were read then, and
            # written by no one.
            low, high = min(a[0].as_py() for a in before), self._range_begin
            orders += [self._keeping_order(task, before) for task in self._tasks_of(low, high)]
        self._phase, self.orders = Kind.KEEP, orders
        if not orders:
            self._finish(state)

    def _note(self, clocks: Iterable[int]) -> None:
        """Remember the oldest of clocks of messages that are committed; 0 is none."""
        oldest = min((clock for clock in clocks if clock), default=None)
        if oldest is not None:
            self._oldest = oldest if self._oldest is None else min(self._oldest, oldest)

    @property
    def _range_begin(self) -> int:
        return self._tasks[0].begin

    def _groups(self, numbers: Sequence[int]) -> list[list[int]]:
        """Tasks whose messages the sequencer gets together."""
        groups: list[list[int]] = []
        size = self._group_messages
        for number in numbers:
            count = self._messages(number).num_rows
            if size + count > self._group_messages:
                groups.append([])
                size = 0
            groups[-1].append(number)
            size += count
        return groups

    def _messages(self, number: int) -> pa.Table:
        found = self._done[number].messages
        assert found is not None  # it was asked for
        return found

    def _reread(self, begin: int, end: int) -> pa.Table:
        """Messages of [begin, end), which a former group, the plain tasks or a former run had."""
        pa = required("pyarrow", extra="lake", by="typed tables")
        tasks: list[Task] = []
        if begin < self._range_begin:
            tasks += self._tasks_of(begin, min(end, self._range_begin))
        tasks += [task for task in self._tasks if task.begin < end and task.end > begin]
        held = {self._tasks[number].begin: one.messages for number, one in self._done.items()}
        # Usually the messages are still in memory; only a group that was dropped, or an earlier
        # run, costs a read.
        missing = [task for task in tasks if task.begin not in held]
        orders = [Order(journal=self._journal, task=t, kind=Kind.LOOK) for t in missing]
        for task, one in zip(missing, self._look(orders), strict=True):
            if one.failure:
                raise DataError(one.failure)
            held[task.begin] = one.messages
        return _between(pa.concat_tables([held[task.begin] for task in tasks]), begin, end)

    def _keeping_order(self, task: Task, begins: Sequence[pa.Int64Array]) -> Order:
        pa = required("pyarrow", extra="lake", by="typed tables")
        pc = required("pyarrow.compute", extra="lake", by="typed tables")
        kept = _within(pa.concat_arrays(begins), task.begin, task.end)
        kept = pc.take(kept, pc.array_sort_indices(kept))
        return Order(journal=self._journal, task=task, kind=Kind.KEEP, keep=kept)

    def _finish(self, state: JournalState) -> None:
        written = self._written
        committed = state.counts.committed - self._committed_before - self._passed
        # The last guard before publishing: a fault in screening or writing must stop the run.
        # Published rows would be wrong for good.
        if committed != written.typed + written.quarantined:
            raise LakeError(
                f"{self._journal}: {committed} messages are committed from offset {self._range_begin} to "
                f"{state.offset}, and workers wrote {written.typed} rows and set {written.quarantined} aside: nothing "
                "was published; run it again, and if that does not help, please report this bug"
            )
        self._state = state.with_rows(written.typed, written.quarantined)
        self.orders = []


def _begun(state: JournalState | None, wanted: JournalRange) -> JournalState:
    """The state where the range begins, after what was given up before it."""
    begun = state
    if begun is None:
        offset = wanted.passed[0][0] if wanted.passed else wanted.begin
        begun = JournalState(offset=offset, created=wanted.created)
    for _, end in wanted.passed:
        # Open transactions go with it: they could not be read again, should they be committed.
        # For each gap in turn, so that `lost_bytes` counts only what is missing.
        begun = begun.passing(end).giving_up(end)
    return begun


def _clocks(messages: pa.Table, begins: pa.Int64Array) -> Iterable[int]:
    """The least clock of the messages that begin at these offsets, if one has any."""
    pa = required("pyarrow", extra="lake", by="typed tables")
    pc = required("pyarrow.compute", extra="lake", by="typed tables")
    is_wanted = pc.is_in(messages.column("begin"), value_set=begins)
    clocks = messages.column("clock").filter(is_wanted)
    # Of its own type: clocks take all of their 64 bits.
    least = pc.min(clocks.filter(pc.greater(clocks, pa.scalar(0, pa.uint64())))).as_py()
    return () if least is None else (least,)


def _summary(done: Done) -> TaskSummary:
    assert done.summary is not None  # it was asked for
    return done.summary


def _sort_in(
    keep: dict[int, list[pa.Int64Array]],
    before: list[pa.Int64Array],
    found: pa.Int64Array,
    begins: Sequence[int],
    numbers: Sequence[int],
) -> None:
    """Put offsets of rows to the tasks that they lie in, or to those before the range."""
    pc = required("pyarrow.compute", extra="lake", by="typed tables")
    if not len(found):
        return
    rising = pc.take(found, pc.array_sort_indices(found))
    values = memoryview(rising.buffers()[1]).cast("q")[: len(rising)]
    cuts = [*(bisect_left(values, begin) for begin in begins), len(rising)]
    if cuts[0]:
        before.append(rising.slice(0, cuts[0]))
    for place, number in enumerate(numbers):
        low, high = cuts[place], cuts[place + 1]
        if high > low:
            keep[number].append(rising.slice(low, high - low))


def _between(messages: pa.Table, begin: int, end: int) -> pa.Table:
    return messages.filter(_lie_within(messages.column("begin"), begin, end))


def _within(offsets: pa.Int64Array, begin: int, end: int) -> pa.Int64Array:
    return offsets.filter(_lie_within(offsets, begin, end))


def _lie_within(offsets: Any, begin: int, end: int) -> Any:
    pc = required("pyarrow.compute", extra="lake", by="typed tables")
    return pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, end))


# As much as a run reads at a time; what follows is seldom needed for more than an ACK.
_PIECE_BYTES: Final = 4 << 30
_FOLLOW_BYTES: Final = 256 << 20


@final
class BackfillRounds:
    """A backfill of one range.

    Args:
        wanted: the range.
        reached: up to where the table has read the journal.
        tasks_of, look, options: as of `JournalRounds`.
        piece_bytes, follow_bytes: of a piece; a task is not split.
    """

    def __init__(
        self,
        wanted: BackfillRange,
        reached: int,
        *,
        tasks_of: Callable[[int, int], Sequence[Task]],
        look: Callable[[Sequence[Order]], Sequence[Done]],
        piece_bytes: int = _PIECE_BYTES,
        follow_bytes: int = _FOLLOW_BYTES,
        **options: Any,
    ) -> None:
        self.wanted = wanted
        self.outputs: list[Any] = []
        """What was written, and is to be published."""
        self.discarded: list[Any] = []
        """What was written in vain."""
        self.reached = reached
        """Up to where it knows what became of transactions, once all is done."""
        self._follow_bytes = follow_bytes
        self._state = wanted.start
        self._options = {"tasks_of": tasks_of, "look": look, **options}
        self._pieces = _pieces([*wanted.before, *wanted.tasks], piece_bytes)
        self._follow = _pieces(wanted.follow, follow_bytes)
        self.rounds: JournalRounds | None = None
        """To be worked through now, and then `go_on`; None: all is done."""
        self._begin(next(self._pieces, None))

    @property
    def journal(self) -> str:
        """Its name."""
        return self.wanted.journal

    @property
    def typed(self) -> int:
        """Rows that were written."""
        return self._state.counts.typed

    @property
    def quarantined(self) -> int:
        """Records that were set aside."""
        return self._state.counts.quarantined

    @property
    def is_open(self) -> bool:
        """Whether a transaction that began before the end of the range has not ended: a run that reads on may commit it."""
        return any(0 <= one.begin < self.wanted.end for one in self._state.producers.values())

    def go_on(self) -> None:
        """Take what came of `rounds`, and begin with the next piece.

        Raises: LakeError: what has to be read to the end of a transaction is gone.
        """
        done = self.rounds
        assert done is not None  # else all is done
        self._state = done.state
        self.outputs += done.outputs
        self.discarded += done.discarded
        piece = next(self._pieces, None)
        # Read on only for an open transaction: its ACK may lie far after the range.
        if piece is None and self.is_open:
            piece = next(self._follow, None)
            if piece is None and self._state.offset < self.reached:
                raise LakeError(
                    f"{self.wanted.journal}: a transaction began before offset {self.wanted.end}, and whether it was "
                    f"committed cannot be read, as no broker or store holds what follows offset {self._state.offset}: nothing was "
                    "changed; choose a range that ends where the transaction began"
                )
        self._begin(piece)

    def drop(self) -> None:
        """Give it up: all that was written was in vain."""
        if self.rounds is not None:
            self.rounds.drop()
            self.discarded += self.rounds.discarded
        self.discarded += self.outputs
        self.outputs, self.rounds = [], None

    def follow_to(self, reached: int, tasks: Sequence[Task]) -> None:
        """Follow transactions that are still open, once the table has read on.

        Args:
            reached: up to there.
            tasks: from where it had come before.
        """
        self.reached = reached
        self._follow = _pieces(tasks, self._follow_bytes)
        self._begin(next(self._follow, None))

    def _begin(self, piece: Sequence[Task] | None) -> None:
        self.rounds = None
        if piece is not None:
            wanted = JournalRange(self.wanted.journal, tuple(piece))
            only = self.wanted.begin, self.wanted.end
            self.rounds = JournalRounds(self._state, wanted, only=only, **self._options)


def _pieces(tasks: Sequence[Task], size: int) -> Iterator[list[Task]]:
    piece: list[Task] = []
    for task in tasks:
        if piece and task.end - piece[0].begin > size:
            yield piece
            piece = []
        piece.append(task)
    if piece:
        yield piece
