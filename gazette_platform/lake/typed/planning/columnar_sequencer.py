"""What is committed of a range with transactions, by columns, as far as its producers behave. Pure.

The sequencer takes a step of Python for each message. What it says of a producer depends on that producer's messages
alone, and of most producers there is little to say. One is *regular* in a range if, in the order of the journal,

    each of its messages is new, which is to say that its clock is above all before; or it is a duplicate:
        outside of transactions with a clock up to what was committed, within one with any,
        an ACK with the very clock that was committed last, and no transaction open
    no transaction is given up: its end, if it has one, is an ACK
    no flags mean nothing

Then all new messages outside of transactions are committed, and those of transactions that an ACK ends. The sequencer
has to decide on the rest: all messages of other producers, and of transactions that were open before the range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from gazette_platform.lake.typed.planning.state import Producer
from gazette_platform.message.uuid import Flags
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

_CONTINUE, _ACK = int(Flags.CONTINUE_TXN), int(Flags.ACK_TXN)
_NONE: Final = -1


@final
class Regular(NamedTuple):
    """What is known of a range without the sequencer. Rows are those of its messages."""

    kept: pa.Int64Array
    """Rows of messages that are committed, ACKs not among them."""
    committed_by: pa.Int64Array
    """Row of the message that commits each of these: itself, or an ACK."""
    others: pa.Int64Array
    """Rows that the sequencer has to decide on, rising."""
    producers: dict[bytes, Producer]
    """Behind the range: of regular producers, unless all of their messages are left to the sequencer."""
    messages: int
    """That were decided on."""
    duplicates: int
    """Of these, there before."""
    acks: int
    """Of these."""


def regular_of(known: Mapping[bytes, Producer], messages: pa.Table) -> Regular:
    """Decide on messages of regular producers.

    Args:
        known: producers before the range.
        messages: all of the range, in order: `begin`, `producer`, `clock`, `flags`, each of one chunk.
    """
    pa = required("pyarrow", extra="lake", by="typed tables")
    pc = required("pyarrow.compute", extra="lake", by="typed tables")
    clock = messages.column("clock").combine_chunks()
    is_tracked = pc.not_equal(clock, pa.scalar(0, pa.uint64()))
    # Without UUID: always new, and without producer.
    untracked = pc.indices_nonzero(pc.invert(is_tracked)).cast(pa.int64())
    rows = pc.indices_nonzero(is_tracked).cast(pa.int64())
    encoded = pc.dictionary_encode(messages.column("producer").combine_chunks().take(rows))
    names, codes = encoded.dictionary.to_pylist(), encoded.indices
    if not names:
        return Regular(untracked, untracked, rows, {}, len(untracked), 0, 0)
    clock = clock.take(rows)
    flags = messages.column("flags").combine_chunks().take(rows)
    tracked = pa.table({"code": codes, "clock": clock, "flags": flags, "row": rows})
    heads, floors, irregular = _heads(known, names, tracked)
    if len(heads):
        tracked = tracked.filter(pc.invert(pc.is_in(rows, value_set=heads)))
    spans = _Spans(floors, tracked)
    irregular |= spans.irregular()
    is_regular = pc.invert(pc.is_in(spans.codes, value_set=pa.array(sorted(irregular), pa.int32())))
    is_message = pc.and_(is_regular, spans.is_message)
    is_kept = pc.and_(is_message, spans.is_committed)
    left = spans.rows.filter(pc.and_(pc.invert(is_regular), spans.is_message))
    others = pa.concat_arrays([heads, left])
    acks = pc.sum(pc.and_(is_message, spans.is_ack)).as_py() or 0
    new = pc.sum(pc.and_(is_message, pc.and_(spans.is_new, pc.invert(spans.is_ack)))).as_py() or 0
    decided = pc.sum(is_message).as_py() or 0
    begins = messages.column("begin").combine_chunks()
    return Regular(
        kept=pa.concat_arrays([untracked, spans.rows.filter(is_kept)]),
        committed_by=pa.concat_arrays([untracked, spans.committing_rows().filter(is_kept)]),
        others=others.take(pc.array_sort_indices(others)),
        producers={
            names[code]: producer
            for code, producer in spans.producers(begins)
            if code not in irregular
        },
        messages=decided + len(untracked),
        duplicates=decided - acks - new,
        acks=acks,
    )


def _heads(
    known: Mapping[bytes, Producer], names: Sequence[bytes], tracked: pa.Table
) -> tuple[Any, list[int], set[int]]:
    """What ends transactions that were open before, and all before that of their producers.

    Returns: rows of these; by code of a producer, the clock that is committed behind; and codes of producers that are
        not regular, as is seen by that.
    """
    pa = required("pyarrow", extra="lake", by="typed tables")
    pc = required("pyarrow.compute", extra="lake", by="typed tables")
    floors = [known[name].last_ack if name in known else 0 for name in names]
    opened = {code for code, name in enumerate(names) if name in known and known[name].begin >= 0}
    found: list[int] = []
    irregular: set[int] = set()
    if opened:
        is_opened = pc.is_in(tracked.column("code"), value_set=pa.array(sorted(opened), pa.int32()))
        for code, at, flag, row in _values(tracked.filter(is_opened)):
            if code not in opened:
                continue
            found.append(row)
            if flag != _CONTINUE:
                opened.discard(code)
                # Else it takes something back, or is a duplicate.
                if at > floors[code]:
                    floors[code] = at
                else:
                    irregular.add(code)
                if not opened:
                    break
    return pa.array(found, pa.int64()), floors, irregular


def _values(table: pa.Table) -> Iterator[tuple[int, ...]]:
    """Rows of a table, as few at a time as are needed."""
    for batch in table.to_batches(max_chunksize=1 << 12):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@final
class _Spans:
    """Messages, those of a producer together and in the order of the journal.

    The first one of each producer is none: it stands for what was committed before, so that one comparison says all.

    Args:
        floors: by code of a producer, the clock of that.
        messages: in their order, `code`, `clock`, `flags`, `row` of each.
    """

    def __init__(self, floors: Sequence[int], messages: pa.Table) -> None:
        pa = self._pa = required("pyarrow", extra="lake", by="typed tables")
        pc = self._pc = required("pyarrow.compute", extra="lake", by="typed tables")
        before = pa.table(
            {
                "code": range(len(floors)),
                "clock": floors,
                "flags": [0] * len(floors),
                "row": [_NONE] * len(floors),
            },
            schema=messages.schema,
        )
        codes, clocks, flags, rows = (
            column.combine_chunks() for column in pa.concat_tables([before, messages]).columns
        )
        order = pc.array_sort_indices(codes)  # stable
        self.codes, self._clocks = codes.take(order), clocks.take(order)
        self._flags, self.rows = flags.take(order), rows.take(order)
        self.is_message = pc.greater_equal(self.rows, 0)
        self.is_ack = pc.equal(self._flags, pa.scalar(_ACK, pa.uint16()))
        self._is_within = pc.equal(self._flags, pa.scalar(_CONTINUE, pa.uint16()))
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(self.codes))
        self._indices = pc.subtract(pc.cumulative_sum(ones), pa.scalar(1, pa.int64()))
        self._find_new()
        self._find_ends()

    def _find_new(self) -> None:
        """Compare clocks with those before; they take all of their 64 bits, so that it is ranks that are compared."""
        pa, pc = self._pa, self._pc
        width = pa.scalar(len(self.codes) + 1, pa.uint64())
        floor = pc.multiply(self.codes.cast(pa.uint64()), width)
        keys = pc.add(floor, pc.rank(self._clocks, tiebreaker="dense"))
        self.is_new = pc.greater(keys, self._shifted(pc.cumulative_max(keys), 0))
        self._ends = pc.and_(self.is_new, pc.invert(self._is_within))
        committed = self._shifted(pc.cumulative_max(pc.if_else(self._ends, keys, floor)), 0)
        self._is_up_to_committed = pc.less_equal(keys, committed)
        self._is_last_committed = pc.equal(keys, committed)

    def _find_ends(self) -> None:
        """Where the transaction of each message ends, or would end; after all: nowhere."""
        pa, pc = self._pa, self._pc
        count = len(self.codes)
        back = pc.subtract(pa.scalar(count - 1, pa.int64()), self._indices)
        ends = pc.if_else(self._ends, self._indices, pa.scalar(count, pa.int64()))
        end = pc.cumulative_min(ends.take(back)).take(back) if count else ends
        # What comes first of the next producer ends nothing of this one.
        codes = pa.concat_arrays([self.codes, pa.array([_NONE], pa.int32())])
        is_own = pc.equal(codes.take(end), self.codes)
        self._end = pc.if_else(is_own, end, pa.scalar(count, pa.int64()))
        acks = pa.concat_arrays([self.is_ack, pa.array([False])])
        self._is_acked = acks.take(self._end)

    @property
    def is_committed(self) -> Any:
        """Which of them are committed, ACKs not among them, if their producers are regular."""
        pc = self._pc
        is_plain = pc.invert(pc.or_(self._is_within, self.is_ack))
        is_of_commit = pc.and_(self._is_within, self._is_acked)
        return pc.and_(self.is_new, pc.or_(is_plain, is_of_commit))

    def committing_rows(self) -> Any:
        """Row of what commits each of those that are committed."""
        pa, pc = self._pa, self._pc
        rows = pa.concat_arrays([self.rows, pa.array([_NONE], pa.int64())])
        return pc.if_else(self._is_within, rows.take(self._end), self.rows)

    def irregular(self) -> set[int]:
        """Codes of producers that are not regular."""
        pa, pc = self._pa, self._pc
        is_again = pc.and_(self.is_message, pc.invert(self.is_new))
        is_plain = pc.invert(pc.or_(self._is_within, self.is_ack))
        goes_back = pc.and_(is_plain, pc.invert(self._is_up_to_committed))
        is_repeated = pc.and_(self._is_last_committed, pc.invert(self._is_open_before()))
        takes_back = pc.and_(self.is_ack, pc.invert(is_repeated))
        has_end = pc.less(self._end, pa.scalar(len(self.codes), pa.int64()))
        is_given_up = pc.and_(
            pc.and_(self.is_new, self._is_within), pc.and_(has_end, pc.invert(self._is_acked))
        )
        is_odd = pc.greater(self._flags, pa.scalar(_ACK, pa.uint16()))
        found = pc.or_(
            pc.and_(is_again, pc.or_(goes_back, takes_back)), pc.or_(is_given_up, is_odd)
        )
        return set(pc.unique(self.codes.filter(found)).to_pylist())

    def _is_open_before(self) -> Any:
        """Before which of them a transaction of their producer is open."""
        pa, pc = self._pa, self._pc
        zero = pa.scalar(0, pa.int64())
        newest = pc.cumulative_max(pc.if_else(self.is_new, self._indices, zero))
        return self._shifted(self._is_within.take(newest), value=False)

    def producers(self, begins: Any) -> Iterator[tuple[int, Producer]]:
        """Codes of those that have messages, and what is known of them behind, if they are regular.

        Args:
            begins: offset of each message of the range, by rows.
        """
        pa, pc = self._pa, self._pc
        count = len(self.codes)
        firsts = pc.indices_nonzero(pc.invert(self.is_message)).to_pylist()
        zero = pa.scalar(0, pa.int64())
        ended = pc.cumulative_max(pc.if_else(self._ends, self._indices, zero))
        is_waiting = pc.and_(
            pc.and_(self.is_new, self._is_within), pc.equal(self._end, pa.scalar(count, pa.int64()))
        )
        waiting = pa.table({"code": self.codes, "row": self.rows}).filter(is_waiting)
        grouped = waiting.group_by("code").aggregate([("row", "min"), ("row", "count")])
        opened = {
            one["code"]: (begins[one["row_min"]].as_py(), one["row_count"])
            for one in grouped.to_pylist()
        }
        for code, (first, end) in enumerate(zip(firsts, [*firsts[1:], count], strict=True)):
            if end - first == 1:
                continue
            last = ended[end - 1].as_py()
            last_ack = self._clocks[last].as_py()
            if last == first and not last_ack:  # nothing was known of it, nor is anything committed
                last_ack = self._clocks[first + 1].as_py() - 1
            yield code, Producer(last_ack, *opened.get(code, ()))

    def _shifted(self, values: Any, value: Any) -> Any:
        """What was said of the one before each; of the first: `value`."""
        first = self._pa.array([value] if len(values) else [], values.type)
        return self._pa.concat_arrays([first, values.slice(0, max(len(values) - 1, 0))])
