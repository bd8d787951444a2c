"""Which messages of a journal are rows: those that are committed, each once. Pure.

What is committed is decided by `gazette_platform.message.sequencer`, of messages in the order of their journal. A
run reads a journal in tasks that know nothing of each other, and the sequencer costs a step of Python for
each message. But where all messages are *plain* (outside of transactions, or without UUID), its rules come
down to one: a message is new if its clock is above all clocks of its producer before it. So

    each task      TaskScreen     drops what is not new within the task, by columns, and sums up clocks
    the driver     join           compares these summaries, in order, with the state and each other
                     Plain        what the tasks kept is what is committed
                     Again        some tasks kept what tasks before them had: they begin again, with
                     Sequenced    from a task on there are transactions: read that part in order
    one reader     sequence       has the sequencer decide, and says which messages are rows, and when

What a task drops by itself the sequencer would drop, too: the clocks before it in the journal are at least those
before it in the task. What it wrongly keeps has clocks that the driver knows of, by the first it kept of a producer.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping  # noqa: TC003  msgspec looks at it
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, final

import msgspec

from gazette_platform.errors import DataError, LakeError
from gazette_platform.lake.typed.planning.columnar_sequencer import regular_of
from gazette_platform.lake.typed.planning.state import Counts, JournalState, Producer, pruned
from gazette_platform.message.sequencer import (
    RING_SIZE,
    Envelope,
    Outcome,
    ProducerState,
    Sequencer,
    SequencerCheckpoint,
)
from gazette_platform.message.uuid import Flags, UuidParts
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from gazette_platform.lake.typed.planning.columnar_sequencer import Regular

_CONTINUE, _ACK = int(Flags.CONTINUE_TXN), int(Flags.ACK_TXN)
_STEP_ROWS: Final = 1 << 16
_log = logging.getLogger(__name__)


# ------------------------------------------------------------------ tasks


class Clocks(NamedTuple):
    """Of what a task kept of a producer."""

    first: int
    last: int
    """The largest: what is kept of a producer has rising clocks."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """What the driver has to know of a task's messages. Its size goes by producers."""

    begin: int
    """Offset of the first byte that was read."""
    end: int
    """Offset after the last whole message; the next task begins here."""
    messages: int = 0
    duplicates: int = 0
    """Messages that the task dropped; 0: all its clocks rise."""
    is_plain: bool = True
    """Whether there are no transactions. Else only `begin` and `end` mean anything."""
    odd_flags: int = 0
    """Messages whose flags mean nothing. They are taken for plain, as the sequencer does."""
    clocks: Mapping[bytes, Clocks] = field(default_factory=dict)

    def dump(self) -> bytes:
        """As bytes, for a row of a task's results."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """The summary whose `dump` was `content`. Raises: msgspec.DecodeError: it is none."""
        return msgspec.msgpack.decode(content, type=cls)


@final
class TaskScreen:
    """Screens the messages of one task, block by block, and sums them up.

    Args:
        begin: offset of the first byte that is read.
        known: by producer, what is known before the task: clocks up to these are not new. A task can do without,
            and is then begun again if that mattered (`Again`).
    """

    def __init__(self, begin: int, known: Mapping[bytes, int] | None = None) -> None:
        self._begin = begin
        self._known = known or {}
        self._clocks: dict[bytes, Clocks] = {}
        self._messages = self._duplicates = self._odd_flags = 0
        self.is_plain = True
        """Whether all was plain until now. If not, the rest of the task is work for nothing."""
        self._pa = required("pyarrow", extra="lake", by="typed tables")
        # Of its own type: clocks take all of their 64 bits.
        self._zero = self._pa.scalar(0, self._pa.uint64())
        self._pc = required("pyarrow.compute", extra="lake", by="typed tables")

    def take(self, parts: pa.StructArray) -> pa.BooleanArray | None:
        """Look at the next messages, in their order.

        Args:
            parts: `producer`, `clock`, `flags` of each, as `parse_uuid_column` makes them. A bad record counts as a
                message: with its UUID, if that can be read, else with that of zeros.

        Returns: which of them to keep; None: all.
        """
        pc = self._pc
        self._messages += len(parts)
        producer, clock, flags = (parts.field(name) for name in ("producer", "clock", "flags"))
        # From the first transaction on, columns cannot decide: an ACK further on may take messages
        # back.
        if not len(parts) or not self._is_plain(clock, flags):
            return None
        if pc.min(clock).as_py() > 0:
            return self._keep(producer, clock)
        # Without UUID: always new, and compared with nothing.
        is_tracked = pc.not_equal(clock, self._zero)
        kept = self._keep(pc.filter(producer, is_tracked), pc.filter(clock, is_tracked))
        if kept is None:
            return None
        everything = self._pa.repeat(self._pa.scalar(value=True), len(parts))
        return pc.replace_with_mask(everything, is_tracked, kept)

    def summary(self, end: int) -> TaskSummary:
        """All content up to `end`, the offset after the last whole message."""
        return TaskSummary(
            begin=self._begin,
            end=end,
            messages=self._messages,
            duplicates=self._duplicates,
            is_plain=self.is_plain,
            odd_flags=self._odd_flags,
            clocks=dict(self._clocks),
        )

    def _is_plain(self, clock: Any, flags: Any) -> bool:
        pc = self._pc
        if self.is_plain and pc.max(flags).as_py() > 0:
            in_order = pc.or_(pc.equal(flags, _CONTINUE), pc.equal(flags, _ACK))
            tracked = pc.not_equal(clock, self._zero)
            self.is_plain = not pc.any(pc.and_(in_order, tracked)).as_py()
            # Refusing unknown flags would stop the journal for one producer's fault; Gazette's
            # sequencer takes them for plain, too.
            odd = pc.and_(pc.greater(flags, _ACK), tracked)
            self._odd_flags += pc.sum(odd).as_py() or 0
        return self.is_plain

    def _keep(self, producer: Any, clock: Any) -> Any | None:
        """Which of these plain messages are new; None: all."""
        pa, pc = self._pa, self._pc
        encoded = pc.dictionary_encode(producer)
        names = encoded.dictionary.to_pylist()
        if not names:
            return None
        # A first row of each producer holds what is known of it, so that one comparison says all.
        codes = pa.concat_arrays([pa.array(range(len(names)), pa.int32()), encoded.indices])
        clocks = pa.concat_arrays([pa.array(map(self._floor, names), pa.uint64()), clock])
        order = pc.array_sort_indices(
            codes
        )  # stable: of each producer, in the order of the journal
        codes, clocks = pc.take(codes, order), pc.take(clocks, order)
        is_first = _prepended(
            pa, True, pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
        )
        rises = _prepended(pa, True, pc.greater(clocks.slice(1), clocks.slice(0, len(clocks) - 1)))
        kept = None
        if not pc.all(pc.or_(is_first, rises)).as_py():
            is_new = pc.or_(is_first, _tops(pa, pc, codes, clocks))
            in_rows = pc.take(is_new, pc.array_sort_indices(order)).slice(len(names))
            dropped = len(in_rows) - pc.sum(in_rows).as_py()
            self._duplicates += dropped
            kept = in_rows if dropped else None
            clocks, is_first = pc.filter(clocks, is_new), pc.filter(is_first, is_new)
        self._note(names, pc.indices_nonzero(is_first).to_pylist(), clocks)
        return kept

    def _floor(self, name: bytes) -> int:
        """The clock above which messages of a producer are new."""
        noted = self._clocks.get(name)
        # The last kept clock is above the known floor, so one number suffices.
        return noted.last if noted is not None else self._known.get(name, 0)

    def _note(self, names: Sequence[bytes], begins: Sequence[int], clocks: Any) -> None:
        """Remember the first and the last of each producer; the row at each begin is not a message."""
        spans = list(pairwise([*begins, len(clocks)]))
        firsts, lasts = (
            self._pc.take(clocks, self._pa.array(rows, self._pa.int64())).to_pylist()
            for rows in ([min(b + 1, e - 1) for b, e in spans], [e - 1 for _, e in spans])
        )
        for name, (begin, end), first, last in zip(names, spans, firsts, lasts, strict=True):
            if end - begin > 1:
                noted = self._clocks.get(name)
                self._clocks[name] = Clocks(first if noted is None else noted.first, last)


def _prepended(pa: Any, value: bool, rest: Any) -> Any:  # noqa: FBT001
    return pa.concat_arrays([pa.array([value]), rest])


def _tops(pa: Any, pc: Any, codes: Any, clocks: Any) -> Any:
    """Where a clock is above all before it of the same producer; rows are in the order of producers.

    Clocks take all of their 64 bits, so that it is their ranks that are compared, behind the producer's number.
    """
    ranks = pc.rank(clocks, tiebreaker="dense")
    width = pa.scalar(len(clocks) + 1, pa.uint64())
    keys = pc.add(pc.multiply(codes.cast(pa.uint64()), width), ranks)
    highest = pc.cumulative_max(keys)
    return _prepended(pa, True, pc.greater(keys.slice(1), highest.slice(0, len(keys) - 1)))


# ------------------------------------------------------------------ the driver


@final
@dataclass(frozen=True, slots=True)
class Plain:
    """What the tasks kept is what is committed, in the order of the journal."""

    state: JournalState


@final
@dataclass(frozen=True, slots=True)
class Again:
    """Some tasks kept messages of earlier tasks or runs."""

    known: Mapping[int, Mapping[bytes, int]]
    """By number of such a task, what `TaskScreen` needs to know. All summaries are then joined again."""


@final
@dataclass(frozen=True, slots=True)
class Sequenced:
    """There are transactions. Tasks before the first one are plain, and done."""

    state: JournalState
    """Behind these: where `sequence` begins."""
    first: int
    """Number of the first task whose result may not be used."""


def join(state: JournalState, summaries: Sequence[TaskSummary]) -> Plain | Again | Sequenced:
    """What of a journal's tasks is committed.

    Args:
        state: before the first of them.
        summaries: of all tasks of the journal's range, in order, whose bytes follow each other.

    Raises: LakeError: they do not, so that something is missing.
    """
    producers = dict(state.producers)
    offset, counts = state.offset, state.counts
    again: dict[int, dict[bytes, int]] = {}
    plain = 0
    for number, task in enumerate(summaries):
        # Spark may lose or repeat a task's result. Offsets prove that each byte was screened
        # exactly once.
        if task.begin != offset:
            raise LakeError(
                f"task {number} of a journal read from offset {task.begin} on, and what was before ends at "
                f"{offset}: one task is missing or duplicated (nothing was committed; run it again)"
            )
        if not task.is_plain:
            break
        known = {
            name: producers[name].last_ack
            for name, clocks in task.clocks.items()
            # Kept clocks rise, so the first one decides for all of a producer.
            if name in producers and clocks.first <= producers[name].last_ack
        }
        if known:
            again[number] = known
        given_up = 0
        for name, clocks in task.clocks.items():
            one = producers.get(name)
            # Clocks never fall: a task that holds only repetitions must not lower the floor for
            # later ones.
            if one is None or clocks.last > one.last_ack:
                # A message outside of transactions drops the one of its producer.
                given_up += 0 if one is None else one.waiting
                producers[name] = Producer(clocks.last)
        offset, plain = task.end, number + 1
        counts += Counts(
            messages=task.messages,
            committed=task.messages - task.duplicates,
            duplicates=task.duplicates,
            taken_back=given_up,
        )
    # Finish the loop first: one round then repairs all tasks that kept too much.
    if again:
        return Again(again)
    behind = replace(state, offset=offset, producers=pruned(producers), counts=counts)
    return Plain(behind) if plain == len(summaries) else Sequenced(behind, plain)


# ------------------------------------------------------------------ in order


@final
@dataclass(frozen=True, slots=True)
class Screened:
    """What is committed of a range that was read in order."""

    state: JournalState
    """After it."""
    begin: pa.Int64Array
    """Offset of each message that is a row, in the order in which they were committed."""
    row: pa.Int64Array
    """Which row of `messages` each of them is; NULL: it lies before the range, in `reread`."""
    reread: tuple[tuple[int, int], ...]
    """Offsets [begin, end) before the range that were read again, in which transactions began."""


def sequence(
    state: JournalState,
    messages: pa.Table,
    reread: Callable[[int, int], pa.Table],
    *,
    end: int,
    ring_size: int = RING_SIZE,
    warn: Callable[[str], None] = _log.warning,
) -> Screened:
    """Screen a journal's range as the sequencer does: by columns where that is the same, else message by message.

    ACKs are not rows. Memory goes by `messages`, and by `ring_size` for those of open transactions.

    Args:
        state: before the range; its offset is where the range begins.
        messages: all of the range in order, bad ones among them: `producer`, `clock` and `flags` as of
            `TaskScreen.take`, and `begin` and `end`, offsets.
        reread: gives the same of messages from one offset to another one, both before the range. It is called when a
            transaction is committed that began there, and must raise if something of that is gone.
        end: offset after the last whole message of the range.
        warn: called with what should not happen; see `Sequencer`.

    Raises: DataError: messages are not in order, or `reread` gave less than was asked for.
    """
    run = _InOrder(state, messages, reread, ring_size, warn)
    regular = regular_of(state.producers, run.messages)
    for envelope in run.envelopes(regular.others):
        run.queue(envelope)
    return run.screened(end, regular)


@final
class _InOrder:
    """The sequencer over a range of one journal, with counts."""

    def __init__(
        self,
        state: JournalState,
        messages: pa.Table,
        reread: Callable[[int, int], pa.Table],
        ring_size: int,
        warn: Callable[[str], None],
    ) -> None:
        self._state = state
        # Columns of one chunk: replays look into the middle.
        self.messages = messages.combine_chunks()
        self._reread = reread
        self._begins = _numbers(messages, "begin")
        self._ends = _numbers(messages, "end")
        # The sequencer trusts its caller. Messages out of order would commit transactions that are
        # not complete.
        self._require_order()
        self._sequencer: Sequencer[int | None] = Sequencer(
            ring_size=ring_size,
            warn=warn,
            checkpoint=SequencerCheckpoint(
                offsets={"": state.offset},
                producers=tuple(
                    ProducerState("", name, one.last_ack, one.begin)
                    for name, one in state.producers.items()
                ),
            ),
        )
        self._waiting = {name: one.waiting for name, one in state.producers.items() if one.waiting}
        self._counted: dict[str, int] = defaultdict(int)
        # Row of what commits, offset, and row; NULL: it lies before the range.
        self._kept: list[tuple[int, int, int | None]] = []
        self._read_again: list[tuple[int, int]] = []

    def _require_order(self) -> None:
        """Raises: DataError: messages overlap, or lie before the range."""
        pa = required("pyarrow", extra="lake", by="typed tables")
        pc = required("pyarrow.compute", extra="lake", by="typed tables")
        begin, end = (self.messages.column(n).combine_chunks() for n in ("begin", "end"))
        before = pa.concat_arrays([pa.array([self._state.offset], pa.int64()), end])
        before = before.slice(0, len(begin))
        is_odd = pc.or_(pc.less(begin, before), pc.less(end, begin))
        odd = pc.indices_nonzero(is_odd)
        if len(odd):
            row = odd[0].as_py()
            raise DataError(
                f"a message from offset {begin[row]} to {end[row]} comes after offset {before[row]}: out of order"
            )

    def envelopes(self, rows: pa.Int64Array) -> Iterator[Envelope[int | None]]:
        """Messages of the range by their rows; each holds its row."""
        for first in range(0, len(rows), _STEP_ROWS):
            step = rows.slice(first, _STEP_ROWS)
            for row, each in zip(step.to_pylist(), _rows(self.messages.take(step)), strict=True):
                yield _envelope(each, row)

    def queue(self, envelope: Envelope[int | None]) -> None:
        """Have the sequencer decide on the next message, and keep what is committed by it."""
        before = len(self._kept)
        outcome = self._sequencer.queue(envelope)
        wanted = self._sequencer.replay
        if wanted is not None:
            self._replay(wanted.begin, wanted.end, envelope)
        while self._sequencer.dequeued is not None:
            self._keep_and_step(envelope)
        self._count(outcome, envelope.uuid, len(self._kept) - before)

    def screened(self, end: int, regular: Regular) -> Screened:
        """What has come of it, up to offset `end`, with what was decided without the sequencer."""
        pa = required("pyarrow", extra="lake", by="typed tables")
        reached = self._ends[-1] if len(self._ends) else self._state.offset
        # Otherwise the next run would begin within messages that this one has counted.
        if end < reached:
            raise DataError(f"a range that ends at offset {end} has messages up to {reached}")
        # Without a horizon: see `pruned`.
        producers = {
            one.producer: Producer(one.last_ack, one.begin, self._waiting.get(one.producer, 0))
            for one in self._sequencer.checkpoint(horizon=None).producers
        }
        counts = self._state.counts + Counts(**self._counted)
        counts += Counts(
            messages=regular.messages,
            committed=len(regular.kept),
            duplicates=regular.duplicates,
            acks=regular.acks,
        )
        state = replace(
            self._state,
            offset=end,
            producers=pruned(producers | regular.producers),
            counts=counts,
        )
        sequenced = pa.table(
            [pa.array(values, pa.int64()) for values in _columns(self._kept, 3)],
            names=["by", "begin", "row"],
        )
        begins = self.messages.column("begin").combine_chunks().take(regular.kept)
        by_columns = pa.table(
            [regular.committed_by, begins, regular.kept], names=["by", "begin", "row"]
        )
        # A commit has its messages in the order of the journal.
        kept = pa.concat_tables([sequenced, by_columns]).sort_by(
            [("by", "ascending"), ("begin", "ascending")]
        )
        begin, row = (kept.column(name).combine_chunks() for name in ("begin", "row"))
        return Screened(state, begin, row, tuple(self._read_again))

    def _replay(self, begin: int, end: int, last: Envelope[int | None]) -> None:
        """Offer the sequencer all messages of [begin, end) again, which `last` commits."""
        range_begin = self._state.offset
        if begin < range_begin:
            self._read_again.append((begin, range_begin))
            table, at = self._reread(begin, range_begin), begin
            for each in _rows(table):
                envelope = _envelope(each, None)
                self._offer(envelope, last)
                at = envelope.end
            # Reading again must reach the range without a gap; a message missing in between would
            # be lost silently.
            if at != range_begin:
                raise DataError(
                    f"reading a transaction again, from offset {begin} to {range_begin}, ended at {at}"
                )
        pa = required("pyarrow", extra="lake", by="typed tables")
        rows = range(bisect_left(self._begins, begin), bisect_left(self._begins, end))
        for envelope in self.envelopes(pa.array(rows, pa.int64())):
            self._offer(envelope, last)
        self._sequencer.end_replay()

    def _offer(self, envelope: Envelope[int | None], last: Envelope[int | None]) -> None:
        if self._sequencer.offer(envelope):
            self._keep_and_step(last)

    def _keep_and_step(self, last: Envelope[int | None]) -> None:
        used = self._sequencer.dequeued
        assert used is not None  # the caller has looked
        if used.uuid.flags != _ACK or not used.uuid.clock:
            assert last.message is not None  # a message of the range
            self._kept.append((last.message, used.begin, used.message))
        self._sequencer.step()

    def _count(self, outcome: Outcome, uuid: UuidParts, kept: int) -> None:
        counted, waiting = self._counted, self._waiting
        counted["messages"] += 1
        counted["committed"] += kept
        match outcome:
            case (
                Outcome.OUTSIDE_ALREADY_ACKED
                | Outcome.CONTINUE_ALREADY_ACKED
                | Outcome.CONTINUE_RING_CLOCK_LARGER
            ):
                counted["duplicates"] += 1
            case Outcome.CONTINUE_BEGIN_SPAN | Outcome.CONTINUE_EXTEND_SPAN:
                waiting[uuid.producer] = waiting.get(uuid.producer, 0) + 1
            case Outcome.OUTSIDE_COMMIT:
                if uuid.clock:
                    counted["taken_back"] += waiting.pop(uuid.producer, 0)
            case _:
                counted["acks"] += 1
                counted["taken_back"] += waiting.pop(uuid.producer, 0) - kept


def _rows(messages: pa.Table) -> Iterator[tuple[int, int, bytes, int, int]]:
    """Of each message: begin, end, producer, clock, flags."""
    for first in range(0, messages.num_rows, _STEP_ROWS):
        step = messages.slice(first, _STEP_ROWS)
        names = ("begin", "end", "producer", "clock", "flags")
        yield from zip(*(step.column(name).to_pylist() for name in names), strict=True)


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _envelope(row: tuple[int, int, bytes, int, int], number: int | None) -> Envelope[int | None]:
    begin, end, producer, clock, flags = row
    return Envelope("", begin, end, UuidParts(producer, clock, flags), number)


def _numbers(messages: pa.Table, name: str) -> memoryview:
    """A column of offsets, as numbers that need no objects until they are looked at."""
    column = messages.column(name).combine_chunks()
    if column.null_count:
        raise DataError(f"messages without {name} cannot be put in order")
    begin = column.offset
    return memoryview(column.buffers()[1] or b"").cast("q")[begin : begin + len(column)]
