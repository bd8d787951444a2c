"""Journals of messages in memory, as hypothesis makes them, and what one sequencer delivers of them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from gazette_platform.message import Envelope, Flags, Sequencer, UuidParts

__all__ = [
    "ACK",
    "CONT",
    "OUT",
    "PRODUCERS",
    "UNKNOWN",
    "between",
    "blocks",
    "honest",
    "hostile",
    "laid_out",
    "parts_of",
    "plain",
    "plans",
    "rings",
    "table_of",
    "uninterrupted",
]

PRODUCERS = tuple(bytes([number]) * 6 for number in (1, 3, 5))
OUT, CONT, ACK = map(int, Flags)
UNKNOWN = 682
TYPES = {
    "begin": pa.int64(),
    "end": pa.int64(),
    "producer": pa.binary(6),
    "clock": pa.uint64(),
    "flags": pa.uint16(),
}


def laid_out(steps):
    """A journal of messages `(producer, clock, flags, length)`, one after the other."""
    log, at = [], 0
    for producer, clock, flags, length in steps:
        log.append(
            Envelope("", at, at + length, UuidParts(PRODUCERS[producer], clock, flags), None)
        )
        at += length
    return log


def uninterrupted(log):
    """Offsets of the rows that one sequencer delivers, and how it stands then."""
    sequencer, rows = Sequencer(ring_size=1 << 16, warn=lambda _: None), []
    for envelope in log:
        sequencer.queue(envelope)
        assert sequencer.replay is None
        while (used := sequencer.dequeued) is not None:
            if used.uuid.flags != ACK or used.uuid.clock == 0:
                rows.append(used.begin)
            sequencer.step()
    return rows, sequencer.checkpoint(horizon=None).producers


def table_of(log):
    rows = [(one.begin, one.end, *one.uuid) for one in log]
    columns = zip(*rows, strict=True) if rows else [()] * len(TYPES)
    return pa.table({n: pa.array(c, t) for (n, t), c in zip(TYPES.items(), columns, strict=True)})


def parts_of(log):
    table = table_of(log).combine_chunks()
    names = ("producer", "clock", "flags")
    return pa.StructArray.from_arrays(
        [table.column(n).combine_chunks() for n in names], list(names)
    )


def between(log, begin, end):
    return [one for one in log if begin <= one.begin < end]


# Cut into runs of so many messages, in tasks that end behind the numbered ones; some die before they commit.
plans = st.lists(
    st.tuples(st.integers(0, 12), st.sets(st.integers(0, 10), max_size=4), st.booleans()),
    max_size=8,
)

# Anything at all: clocks that go back, duplicates, flags without meaning, no UUIDs.
hostile = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 9),
        st.sampled_from([OUT, OUT, CONT, CONT, CONT, ACK, ACK, UNKNOWN]),
        st.integers(1, 3),
    ),
    max_size=40,
)


@st.composite
def honest(draw):
    """Producers that tick, append batches that may come again later, roll back, acknowledge late or never."""
    clocks = [10 * (n + 1) for n in range(len(PRODUCERS))]
    acked = list(clocks)
    steps, sent = [], []
    for _ in range(draw(st.integers(0, 14))):
        who = draw(st.integers(0, len(PRODUCERS) - 1))
        act = draw(
            st.sampled_from(["out", "out", "cont", "cont", "ack", "rollback", "again", "zero"])
        )
        batch = []
        if act in ("out", "cont"):
            for _ in range(draw(st.integers(1, 5))):
                clocks[who] += 1
                batch.append((who, clocks[who], OUT if act == "out" else CONT, 2))
            acked[who] = clocks[who] if act == "out" else acked[who]
        elif act == "ack":
            clocks[who] += 1
            acked[who] = clocks[who]
            batch = [(who, clocks[who], ACK, 1)]
        elif act == "rollback":
            clocks[who] = acked[who]
            batch = [(who, acked[who], ACK, 1)]
        elif act == "zero":
            batch = [(who, 0, draw(st.sampled_from([OUT, CONT, ACK])), 2)]
        elif sent:
            # What was appended is appended once more, now or later.
            batch = draw(st.sampled_from(sent[-4:]))
        steps += batch
        sent.append(batch)
    return steps


def plain(*clocks):
    """Nothing of transactions."""
    flags = st.sampled_from([OUT, OUT, UNKNOWN])
    one = st.tuples(st.integers(0, 2), st.sampled_from(clocks), flags, st.just(1))
    return st.lists(one, max_size=30)


rings = st.sampled_from([1, 2, 5, 100])
blocks = st.integers(1, 9)
